"""Timestamps: order, the printed form, and the form in file names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.core.timestamps import LOGICAL_LIMIT, ORIGIN, Timestamp

LAST_WALL = 2**63 - 1
timestamps = st.builds(Timestamp, st.integers(0, LAST_WALL), st.integers(0, LOGICAL_LIMIT - 1))


@given(timestamps)
def test_what_is_printed_can_be_read_again(timestamp: Timestamp) -> None:
    assert Timestamp.parse(str(timestamp)) == timestamp


@given(timestamps)
def test_a_name_can_be_read_again(timestamp: Timestamp) -> None:
    assert Timestamp.parse_name(timestamp.name()) == timestamp


@given(timestamps, timestamps)
def test_names_sort_as_the_timestamps_do(one: Timestamp, other: Timestamp) -> None:
    assert (one < other) == (one.name() < other.name())
    assert (one == other) == (one.name() == other.name())


def test_it_prints_as_cockroachdb_does() -> None:
    timestamp = Timestamp(1585861087210714000, 7)
    assert str(timestamp) == "1585861087210714000.0000000007"
    assert timestamp.name() == "202004022058072107140000000000007"


@given(st.builds(Timestamp, st.integers(0, LAST_WALL - 1), st.integers(0, LOGICAL_LIMIT - 1)))
def test_prev_undoes_next(timestamp: Timestamp) -> None:
    assert timestamp < timestamp.next()
    assert timestamp.next().prev() == timestamp


def test_nothing_lies_between_a_timestamp_and_the_next() -> None:
    assert Timestamp(5, 3).next() == Timestamp(5, 4)
    assert Timestamp(5, LOGICAL_LIMIT - 1).next() == Timestamp(6, 0)
    assert Timestamp(6, 0).prev() == Timestamp(5, LOGICAL_LIMIT - 1)


def test_wall_time_counts_before_the_logical_part() -> None:
    assert Timestamp(1, 9) < Timestamp(2, 0) < Timestamp(2, 1)


def test_plus_moves_the_wall_and_drops_the_logical_part() -> None:
    assert Timestamp(10, 5).plus(1.5) == Timestamp(1_500_000_010, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.",
        "1.5",
        "1.00000000001",
        "-1.0000000000",
        " 1.0000000000",
        "1.0000000000\n",
        "1e9.0000000000",
        "9" * 21 + ".0" * 10,
    ],
)
def test_what_is_not_a_printed_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a timestamp"):
        Timestamp.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "2020", "2020040220580721071400000000000071", "2020-4022058072107140000000000007x", "202013022058072107140000000000007"],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a file-name timestamp|does not match format|unconverted"):
        Timestamp.parse_name(text)


@pytest.mark.parametrize(("wall", "logical"), [(-1, 0), (2**63, 0), (0, -1), (0, LOGICAL_LIMIT)])
def test_a_timestamp_out_of_range_is_refused(wall: int, logical: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Timestamp(wall, logical)


def test_there_is_nothing_before_the_origin() -> None:
    with pytest.raises(ValueError, match="out of range"):
        ORIGIN.prev()
