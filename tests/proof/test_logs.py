"""A run's log tells in which order it published and released."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from icefront.proof.logs import early_releases


def said(event: str, frontier: str | int, table: str = "lake.t.orders") -> str:
    """A line of a run's log, by its own names for the table."""
    named = {"claimed": {"table": table}, "published": {"target": table}, "released": {}}[event]
    printed = f"{frontier}.0000000000" if isinstance(frontier, int) else frontier
    return json.dumps({**named, "frontier": printed, "event": event}) + "\n"


def early(*lines: str) -> Sequence[tuple[str, tuple[int, int]]]:
    return list(early_releases("".join(lines)))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [said("claimed", 0), said("published", 10), said("released", 10), said("published", 20), said("released", 20)],
        [said("claimed", 0), said("published", 10), said("published", 20), said("released", 10)],
        [said("claimed", 10), said("released", 10)],
        [
            "not JSON at all\n",
            '{"frontier": "9.0", "event": "released"',
            'WARN {"frontier": "9.0", "event": "released"}\n',
            '{"event": "released upkeep", "frontier": 9}\n',
        ],
    ],
)
def test_a_release_up_to_what_was_published_or_found_is_as_it_should_be(lines: list[str]):
    assert early(*lines) == []


@pytest.mark.parametrize(
    ("lines", "reached"),
    [
        ([said("claimed", 10), said("released", 20), said("published", 20)], 10),
        ([said("claimed", 0), said("published", 10), said("released", 20), said("published", 20)], 10),
        ([said("released", 20), said("claimed", 20)], 0),
        ([said("released", 20)], 0),
    ],
)
def test_a_release_before_its_publish_is_found_though_that_comes_at_once(lines: list[str], reached: int):
    assert early(*lines) == [("20.0000000000", (reached, 0))]


def test_of_several_targets_the_last_one_holds_the_source_back():
    lines = [said("claimed", 10, "a"), said("claimed", 0, "b"), said("published", 20, "a")]
    assert early(*lines, said("published", 10, "b"), said("released", 10)) == []
    assert early(*lines, said("published", 10, "b"), said("released", 20)) == [("20.0000000000", (10, 0))]


def test_a_target_without_a_table_holds_nothing_back():
    """It has nothing to lose: it goes on from where it has looked."""
    assert early(said("claimed", 10, "a"), said("released", 10), said("claimed", 0, "b")) == []


def test_a_line_that_is_not_whole_yet_is_not_read():
    line = said("released", 20)
    assert not any(early(said("claimed", 10), line[:cut]) for cut in range(len(line)))
    assert early(said("claimed", 10), line)
