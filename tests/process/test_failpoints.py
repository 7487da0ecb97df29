"""Failpoints: every registered name is passed somewhere, every name passed is registered, and a wrong one is an error at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import icefront
from icefront.core.errors import ConfigError
from icefront.proof import failpoints
from icefront.proof.failpoints import FAILPOINTS, failpoint, parse

SOURCES = Path(icefront.__file__).parent


def texts(node: ast.AST, among: ast.AST) -> Iterator[str]:
    """What an expression can be: a text, or one with a variable in it that is given texts nearby."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id=name)), ast.Constant(value=str(rest))]):
            yield from (text + rest for text in given(name, among))


def given(name: str, among: ast.AST) -> Iterator[str]:
    for node in ast.walk(among):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for named, value in pairs:
                    if isinstance(named, ast.Name) and named.id == name:
                        yield from (n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def passed() -> Iterator[str]:
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
                found = list(texts(node.args[0], tree))
                assert found, f"{path}:{node.lineno}: the name of this failpoint cannot be told"
                yield from found


def test_what_is_registered_is_passed_in_the_code_and_the_other_way_round() -> None:
    assert set(passed()) == set(FAILPOINTS)


@pytest.mark.parametrize(
    "step", ["observe", "table", "claim", "partitioning", "write", "schema", "stage", "publish", "heartbeat", "note", "release"]
)
def test_each_durable_step_has_one_before_and_one_after(step: str) -> None:
    assert {f"{step}.before", f"{step}.after"} <= set(FAILPOINTS)


@pytest.mark.parametrize(
    "text", ["", "write.after=kill", "write.after=delay:0.5@3, note.before=pause", "claim.before=raise@2+12"]
)
def test_what_can_be_armed(text: str) -> None:
    assert len(parse(text)) == len(text.split(",")) - (not text)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="there is no failpoint") as raised:
        parse("publish.beforecommit=kill")
    assert all(name in raised.value.next_step for name in FAILPOINTS)


@pytest.mark.parametrize("what", ["", "explode", "delay", "delay:S", "delay:soon", "kill@first", "kill@2+", "kill:9", "@2"])
def test_an_unknown_action_is_an_error_that_lists_the_known_ones(what: str) -> None:
    with pytest.raises(ConfigError, match="is armed with") as raised:
        parse(f"write.after={what}")
    assert "kill, pause, raise, delay:S" in raised.value.next_step


def test_it_strikes_at_the_passings_it_is_armed_for_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", parse("note.before=raise@2+4"))
    failpoint("note.before")
    failpoint("note.after")
    with pytest.raises(failpoints.FailpointError, match=r"note\.before"):
        failpoint("note.before")
    failpoint("note.before")
    with pytest.raises(failpoints.FailpointError):
        failpoint("note.before")


def test_nothing_is_armed_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failpoints.armed() == {}
    monkeypatch.setattr(failpoints, "_armed", parse("note.before=raise@2, write.after=kill"))
    assert failpoints.armed() == {"note.before": "raise", "write.after": "kill"}
