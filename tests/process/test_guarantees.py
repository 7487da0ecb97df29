"""docs/guarantees.md promises tests by name: each of them exists, and none of the matrix is missing there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
PROMISED = set(re.findall(r"`(test_\w+)`", (TESTS.parent / "docs" / "guarantees.md").read_text()))


def named_in(paths: Iterator[Path]) -> set[str]:
    functions = (node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_test_that_is_promised_exists() -> None:
    assert named_in(TESTS.rglob("test_*.py")) >= PROMISED


def test_every_test_of_the_matrix_is_promised() -> None:
    controls = {"test_every_failpoint_has_its_zombie", "test_without_sabotage_the_same_program_passes"}
    repetitions = {"test_killed_at_each_failpoint_and_recovered_at_once", "test_each_of_them_alone"}
    written = named_in((TESTS / "process").glob("test_matrix_*.py")) | named_in((TESTS / "process").glob("test_sabotage.py"))
    assert written - controls - repetitions <= PROMISED
