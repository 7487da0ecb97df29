"""When a proof is one: what was struck too seldom, and what a violation means for the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from icefront.cli.proving import exit_code
from icefront.proof.checker import Violation
from icefront.proof.prove import Report, needed


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
