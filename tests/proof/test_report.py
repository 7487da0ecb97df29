"""When a proof is one: what was struck too seldom, what a violation means for the exit code, and the run that is documented."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from icefront.cli.proving import exit_code
from icefront.proof.checker import Violation
from icefront.proof.faults import BLOWS, FIRST, LIVES
from icefront.proof.prove import Report, needed

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "prove.md"


def report(minutes: float, **struck: int) -> Report:
    return Report(7, minutes, "sqlite", {"zombie": "", "raised": ""}, struck=Counter(struck))


@pytest.mark.parametrize(("minutes", "times"), [(1, 0), (2.9, 0), (3, 1), (11, 1), (12, 2), (60, 10)])
def test_every_kind_has_to_be_struck_once_for_every_six_minutes(minutes: float, times: int) -> None:
    assert needed(minutes) == times


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        (None, ""),
        ("http://127.0.0.1:8181", " --catalog rest --uri http://127.0.0.1:8181"),
        ("http://h/?a=1&b=2", " --catalog rest --uri 'http://h/?a=1&b=2'"),
    ],
)
def test_the_command_that_repeats_it_names_the_catalog(uri: str | None, where: str) -> None:
    again = replace(report(2.5), uri=uri).to_dict()["command"]
    assert again == f"icefront prove --minutes 2.5 --seed 7{where}"


def test_a_kind_that_was_not_struck_fails_the_proof() -> None:
    assert report(3, zombie=1).missing == ["raised"]
    assert exit_code(report(3, zombie=1)) == 1
    assert exit_code(report(3, zombie=1, raised=1)) == 0
    assert report(60, zombie=10, raised=9).missing == ["raised"]


def test_a_violation_counts_for_more_than_what_was_not_struck() -> None:
    found = report(3, zombie=1)
    found.violations.append(Violation("gap", "snapshot 1", "an epoch", "none"))
    assert exit_code(found) == 7


def test_the_run_of_60_minutes_in_the_documentation_struck_with_every_kind_that_there_is() -> None:
    printed = DOCUMENT.read_text(encoding="utf-8").partition("## A run of 60 minutes")[2]
    struck = {kind: int(times) for kind, times in re.findall(r"^([a-z-]+)[ \t]+(\d+)[ \t]", printed, re.MULTILINE)}
    assert struck.keys() == {FIRST.name, *LIVES, *BLOWS}
    assert min(struck.values()) >= needed(60)
