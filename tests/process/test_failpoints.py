"""Failpoints: a wrong name is an error at once, where it is armed and where it is passed."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from icefront.core.errors import ConfigError
from icefront.proof import failpoints
from icefront.proof.failpoints import FAILPOINTS, OF_A_RUN, failpoint, parse
from tests.process.matrix import EFFECTS


def test_every_durable_step_has_one_before_and_one_after_it() -> None:
    assert {f"{step}.{side}" for step in (*EFFECTS, "observe") for side in ("before", "after")} <= set(OF_A_RUN)


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


def test_what_is_armed_is_told_once_before_anything_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as told:
        failpoint("settle.before")
        assert told == []
        monkeypatch.setenv(failpoints.ENVIRONMENT, "settle.before=raise, note.before=kill")
        failpoints.arm()
        try:
            with pytest.raises(failpoints.FailpointError):
                failpoint("settle.before")
            failpoint("settle.before")
        finally:
            monkeypatch.undo()
            failpoints.arm()
    (line,) = told
    assert "failpoints are armed" in line["event"]
    assert (line["settle.before"], line["note.before"]) == ("raise", "kill")


def test_what_cannot_be_armed_is_told_when_asked_and_lets_nobody_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that arms may not fail: who imports could not tell it as an error of the environment."""
    failpoints.check()
    monkeypatch.setenv(failpoints.ENVIRONMENT, "note.before=raise, note.befor=kill")
    failpoints.arm()
    try:
        with pytest.raises(ConfigError, match=r'there is no failpoint "note\.befor"'):
            failpoints.check()
        with pytest.raises(ConfigError, match=r'there is no failpoint "note\.befor"'):
            failpoint("write.after")
    finally:
        monkeypatch.undo()
        failpoints.arm()
    failpoints.check()
    failpoint("write.after")


def test_a_name_that_nobody_knows_is_an_error_where_it_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", parse("note.before=raise"))
    with pytest.raises(failpoints.FailpointError, match=r"note\.between is no failpoint"):
        failpoint("note.between")
