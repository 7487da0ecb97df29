"""docs/guarantees.md promises tests by name: each of them runs in every test run, and none of the matrix is missing there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
PROMISED = set(re.findall(r"`(test_\w+)`", (TESTS.parent / "docs" / "guarantees.md").read_text()))
CONTROLS = {
    "test_every_failpoint_has_its_zombie",
    "test_without_sabotage_the_same_faults_are_survived",
    "test_which_requests_the_client_repeats_by_itself",
    "test_iceberg_by_itself_removes_what_a_landed_commit_needs",
}
CHANNEL = ("commits", "late", "pipeline", "sqlite_catalog")
"""What in `rest` is of the matrix; the others are about the proxy itself, and about the words of errors."""


def in_every_run(paths: Iterable[Path]) -> set[str]:
    """Name the tests in these files that `make test` does not leave out."""
    return {name for path in paths for name in _in_every_run(ast.parse(path.read_text()))}


def _in_every_run(module: ast.Module) -> Iterator[str]:
    assigned = (node for node in module.body if isinstance(node, ast.Assign))
    if any(ast.unparse(node.targets[0]) == "pytestmark" and _is_long(node.value) for node in assigned):
        return
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            # Marks of single parameters are inside of `parametrize`: the others are run.
            marks = [d for d in node.decorator_list if not ast.unparse(d).startswith("pytest.mark.parametrize")]
            if not any(map(_is_long, marks)):
                yield node.name


def _is_long(expression: ast.AST) -> bool:
    return "pytest.mark.long" in ast.unparse(expression)


def test_every_test_that_is_promised_runs_in_every_test_run() -> None:
    missing = PROMISED - in_every_run(TESTS.rglob("test_*.py"))
    assert missing == set()


def test_every_test_of_the_matrix_is_promised() -> None:
    channel = [TESTS / "rest" / f"test_{name}.py" for name in CHANNEL]
    matrix = [*(TESTS / "process").glob("test_matrix_*.py"), TESTS / "process" / "test_sabotage.py", *channel]
    missing = in_every_run(matrix) - CONTROLS - PROMISED
    assert missing == set()


def test_what_is_marked_long_is_told_from_what_is_not() -> None:
    marked = """
@pytest.mark.long
def test_a(): ...
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_b(): ...
"""
    assert set(_in_every_run(ast.parse(marked))) == {"test_b"}
    assert not set(_in_every_run(ast.parse(f"pytestmark = [pytest.mark.process, pytest.mark.long]{marked}")))
