"""A run's log tells in which order it published and released."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from icefront.proof.logs import early_releases, events


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
            '{"event": "released upkeep", "frontier": 9}\n',
            '{"frontier": "9.0", "event": "released"',
            'WARN {"frontier": "9.0", "event": "released"}\n',
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


# ── lines that cannot be read ──────────────────────────────────────────────────────────────
CUT = '{"frontier": "9.0", "event": "released", "wri'


@pytest.mark.parametrize("words", ["Exception in thread main ", "WARN Conf{a=b} "])
def test_a_line_is_read_behind_the_words_of_something_else(words: str):
    assert early(said("claimed", 10), words + said("released", 20), said("published", 20))


@pytest.mark.parametrize("line", ['WARN {"a": 1} ' + said("released", 20), "WARN " + said("released", 20).strip() + " and on\n"])
def test_an_event_that_cannot_be_read_between_the_words_of_something_else_is_told(line: str):
    with pytest.raises(ValueError, match="cannot be read"):
        early(said("claimed", 10), line, said("published", 20))


@pytest.mark.parametrize("rest", ["", "\n", "WARN its JVM goes on\n", "\nWARN its JVM goes on\nand on\n"])
def test_the_last_line_of_a_run_that_was_killed_may_be_cut_short_and_its_jvm_go_on_in_it(rest: str):
    log = said("released", 5) + CUT + rest
    assert [event["frontier"] for event in events(log, "released")] == ["5.0000000000"]


@pytest.mark.parametrize(
    "rest",
    [
        "\n" + said("released", 10),
        "WARN its JVM goes on\n" + said("released", 10),
        "\n" + said("claimed", 10),
        "\n" + said("claimed", 10)[:-5] + "\n",
    ],
    ids=["by itself", "with a JVM's words in it", "before an event of another name", "before another such line"],
)
def test_a_line_that_cannot_be_read_and_after_which_the_run_went_on_is_told(rest: str):
    """It may have been a release that came too early."""
    with pytest.raises(ValueError, match=r'a run went on after a line .* cannot be read: \{"frontier": "9\.0"'):
        list(events(said("released", 5) + CUT + rest, "released"))


@pytest.mark.parametrize("cut", range(1, len(CUT)))
def test_wherever_a_line_is_cut_it_is_told_when_the_run_went_on(cut: int):
    with pytest.raises(ValueError, match="cannot be read"):
        list(events(CUT[:cut] + "\n" + said("released", 10), "released"))


def test_two_events_in_one_line_are_told_when_the_run_went_on():
    with pytest.raises(ValueError, match="cannot be read"):
        early(said("claimed", 10).strip() + said("released", 20), said("published", 20))
