"""Closed files and staged notes."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.core.epochs import Epoch
from icefront.core.errors import NewerFormat, StagedMismatch
from icefront.core.files import NOTE_FORMAT, ClosedFile, FileKind, Staged, deduplicate
from icefront.core.marks import Position
from icefront.core.timestamps import Timestamp

counts = st.dictionaries(st.integers(1, 50), st.integers(0, 10**12), max_size=3)
bounds = st.dictionaries(st.integers(1, 50), st.text("0123456789ABCDEF", max_size=8), max_size=3)
files = st.builds(
    ClosedFile,
    kind=st.sampled_from(FileKind),
    table=st.just("lake.shop.orders"),
    epoch_id=st.uuids().map(str),
    split=st.integers(0, 99),
    attempt=st.text("0123456789abcdef", min_size=1, max_size=8),
    path=st.text(min_size=1, max_size=30),
    size=st.integers(0, 2**40),
    records=st.integers(0, 2**40),
    schema_id=st.integers(0, 9),
    spec_id=st.integers(0, 9),
    sort_order_id=st.none() | st.integers(0, 9),
    partition=st.dictionaries(st.sampled_from(["1000", "1001"]), st.none() | st.integers() | st.text(max_size=5), max_size=2),
    column_sizes=counts,
    value_counts=counts,
    null_value_counts=counts,
    nan_value_counts=counts,
    lower_bounds=bounds,
    upper_bounds=bounds,
    split_offsets=st.lists(st.integers(4, 2**40), max_size=2).map(tuple),
    equality_ids=st.lists(st.integers(1, 50), max_size=2).map(tuple),
)
FILE = ClosedFile(FileKind.DATA, "lake.shop.orders", "e", 0, "a1", "s3://lake/1.parquet", 100, 10, 1, 0, value_counts={1: 10})
STAGED = Staged(
    "shop",
    "orders",
    Epoch(Timestamp(3), Timestamp(5)),
    UUID(int=7),
    Position.of({"low": 2}),
    (FILE,),
    1,
    "s1",
    True,
    {"upserts": 10},
    {"id": 1, "at.x": 4},
)


@given(files)
def test_a_closed_file_can_be_read_again(file: ClosedFile) -> None:
    assert ClosedFile.from_json(file.to_json()) == file
    assert ClosedFile.from_json(file.to_json()).sha256 == file.sha256


@pytest.mark.parametrize(
    "change", [{"records": 11}, {"path": "s3://lake/2.parquet"}, {"lower_bounds": {1: "00"}}, {"attempt": "a2"}]
)
def test_the_hash_covers_every_fact(change: dict[str, object]) -> None:
    assert replace(FILE, **change).sha256 != FILE.sha256  # type: ignore[arg-type]


def test_a_damaged_record_stops() -> None:
    damaged = FILE.to_json().replace('"records":10', '"records":11')
    with pytest.raises(StagedMismatch, match=r"1\.parquet has hash .* noted was"):
        ClosedFile.from_json(damaged)


def test_a_file_reported_twice_counts_once() -> None:
    other = replace(FILE, path="s3://lake/2.parquet")
    assert deduplicate([FILE, other, replace(FILE)]) == (FILE, other)


def test_one_path_with_two_contents_stops() -> None:
    with pytest.raises(StagedMismatch, match="reported twice"):
        deduplicate([FILE, replace(FILE, size=101)])


def test_a_staged_note_can_be_read_again() -> None:
    assert Staged.from_json(STAGED.to_json()) == STAGED
    assert Staged.from_json(replace(STAGED, files=(), fresh=False).to_json()) == replace(STAGED, files=(), fresh=False)


def test_a_note_of_an_older_icefront_does_not_say_what_its_columns_were() -> None:
    older = {name: value for name, value in json.loads(STAGED.to_json()).items() if name != "columns"}
    assert Staged.from_json(json.dumps(older)) == replace(STAGED, columns={})


def test_a_note_of_a_newer_icefront_stops_and_names_both_versions() -> None:
    newer = json.dumps({**json.loads(STAGED.to_json()), "format": NOTE_FORMAT + 1})
    with pytest.raises(NewerFormat, match=f"format {NOTE_FORMAT + 1}.*up to {NOTE_FORMAT}"):
        Staged.from_json(newer)
