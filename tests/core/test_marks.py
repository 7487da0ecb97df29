"""Marks: what a target remembers, and its durable form."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.core.errors import NewerFormat
from icefront.core.marks import MARK_FORMAT, POSITION_LIMIT, START, Identity, Mark, Position, Writer
from icefront.core.timestamps import Timestamp

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3),
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=4)
marks = st.builds(
    Mark,
    pipeline=st.text(min_size=1, max_size=12),
    frontier=st.builds(Timestamp, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
    epoch_id=st.uuids(),
    position=objects.map(Position.of),
    source=objects.map(Identity.of),
    writer=st.builds(Writer, st.text(min_size=1, max_size=12), st.integers(1, 10**6)),
    branch=st.sampled_from(["main", "audit"]),
)


@given(marks)
def test_a_mark_can_be_read_again(mark: Mark) -> None:
    assert Mark.from_json(mark.to_json()) == mark


@given(marks)
def test_equal_marks_have_equal_text(mark: Mark) -> None:
    assert Mark.from_json(mark.to_json()).to_json() == mark.to_json()


MARK = Mark("shop", Timestamp(7), UUID(int=1), START, Identity.of({"feed": "x"}), Writer("run-1", 3))


def test_a_mark_of_a_newer_icefront_stops_and_names_both_versions() -> None:
    newer = json.dumps({**json.loads(MARK.to_json()), "format": MARK_FORMAT + 1})
    with pytest.raises(NewerFormat, match=f"format {MARK_FORMAT + 1}.*up to {MARK_FORMAT}"):
        Mark.from_json(newer)


def test_a_claim_changes_the_owner_and_nothing_else() -> None:
    claimed = MARK.claimed_by(Writer("run-2", 4))
    assert claimed.writer == Writer("run-2", 4)
    assert claimed.claimed_by(MARK.writer) == MARK


def test_a_position_of_four_kilobytes_fits_and_no_larger_one() -> None:
    wrapper = len('{"at":""}')
    assert len(Position.of({"at": "x" * (POSITION_LIMIT - wrapper)}).text) == POSITION_LIMIT
    with pytest.raises(ValueError, match=f"{POSITION_LIMIT + 1} bytes, the limit is {POSITION_LIMIT}"):
        Position.of({"at": "x" * (POSITION_LIMIT - wrapper + 1)})


def test_the_limit_counts_bytes_and_not_characters() -> None:
    with pytest.raises(ValueError, match="the limit is"):
        Position.of({"at": "ü" * (POSITION_LIMIT // 2)})


def test_positions_are_equal_whatever_the_order_of_their_parts() -> None:
    assert Position.of({"a": 1, "b": 2}) == Position.of({"b": 2, "a": 1})
    assert Position.of({}) == START


def test_a_writer_whose_name_holds_the_separator_can_be_read_again() -> None:
    assert Writer.parse(str(Writer("host#1", 12))) == Writer("host#1", 12)
