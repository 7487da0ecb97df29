"""Row ids in metadata: how files inherit them, and which steps they tell of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.table.snapshots import Snapshot

from icefront.iceberg.history import Step
from icefront.iceberg.lineage import rewrites, tells
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Metrics, first_row_ids
from icefront.iceberg.statediff import FileChange

FILE = DataEntry("f", "parquet", 0, (), sequence=5, records=10, size=100, first_row_id=0)
VECTOR = DeleteEntry(DeleteKind.VECTOR, "puffin", 4, 40, "puffin", 0, (), sequence=6, referenced="f")
EQUALITY = DeleteEntry(
    DeleteKind.EQUALITY, "eq", None, 40, "parquet", 0, (), sequence=6, equality_ids=(1,), metrics=Metrics({1: b"a"})
)


def test_files_without_ids_share_their_manifest_s_range() -> None:
    """The specification's own example, and files that are listed before and after one that has its ids."""
    assert first_row_ids(1000, [800, None, None], [25, 50, 50]) == [800, 1000, 1050]
    assert first_row_ids(1000, [None, 0, None, None, None], [5, 7, 1, 0, 2]) == [1000, 0, 1005, 1006, 1006]


def test_what_is_listed_by_a_snapshot_from_before_format_3_has_no_ids() -> None:
    assert first_row_ids(None, [800, None], [25, 50]) == [None, None]


def step(before: int | None, after: int | None) -> Step:
    def snapshot(number: int, first: int | None) -> Snapshot:
        return Snapshot.model_validate({"snapshot-id": number, "manifest-list": "nowhere", "first-row-id": first})

    return Step(0, snapshot(1, before), snapshot(2, after))


REWRITE = [FileChange(FILE, (), None), FileChange(replace(FILE, path="g", first_row_id=10), None, ())]


def test_lineage_tells_of_steps_between_snapshots_with_ids() -> None:
    assert tells(step(0, 10), REWRITE)
    assert not tells(step(None, 0), REWRITE)
    assert not tells(step(0, None), REWRITE)
    assert not tells(Step(0, None, step(0, 0).snapshot), REWRITE)


@pytest.mark.parametrize(
    ("change", "tells_of_it"),
    [
        (FileChange(FILE, (), (VECTOR,)), True),
        (FileChange(FILE, (EQUALITY,), (EQUALITY, VECTOR)), True),
        (FileChange(FILE, (EQUALITY,), None), True),
        (FileChange(FILE, (), (EQUALITY,)), False),
        (FileChange(FILE, (EQUALITY,), (replace(EQUALITY, path="other"),)), False),
        (FileChange(replace(FILE, first_row_id=None), (), None), False),
        (FileChange(replace(FILE, format="orc"), (), None), False),
    ],
)
def test_one_file_whose_ids_say_nothing_is_enough(change: FileChange, *, tells_of_it: bool) -> None:
    assert tells(step(0, 10), [*REWRITE, change]) is tells_of_it


def test_rows_move_only_where_a_file_went_and_another_came() -> None:
    assert rewrites(REWRITE)
    assert not rewrites(REWRITE[:1])
    assert not rewrites([REWRITE[1], FileChange(FILE, (), (VECTOR,))])
