"""Naming snapshots, and the steps between them."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from icefront.cli.values import as_json
from icefront.core.errors import ConfigError, Overcompacted
from icefront.iceberg.history import Step, as_wide, find, steps

HOUR = 3_600_000


def snapshot(number: int, parent: int | None, operation: str = "append", **told: str) -> Snapshot:
    return Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": number,
            "timestamp-ms": number * HOUR,
            "manifest-list": "nowhere",
            "summary": {"operation": operation, **told},
            "schema-id": 0,
        }
    )


def metadata(*snapshots: Snapshot, current: int, **tags: int) -> TableMetadata:
    branch = {"main": {"snapshot-id": current, "type": "branch"}} if current else {}
    return TableMetadataUtil.parse_obj(
        {
            "format-version": 2,
            "location": "nowhere",
            "table-uuid": str(uuid.uuid4()),
            "last-sequence-number": 0,
            "last-updated-ms": 0,
            "last-column-id": 1,
            "schemas": [
                {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
            ],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": [json.loads(s.model_dump_json()) for s in snapshots],
            "current-snapshot-id": current or None,
            "snapshot-log": [{"snapshot-id": s.snapshot_id, "timestamp-ms": s.timestamp_ms} for s in snapshots],
            "refs": branch | {name: {"snapshot-id": i, "type": "tag"} for name, i in tags.items()},
        }
    )


LINE = metadata(snapshot(1, None), snapshot(2, 1), snapshot(3, 2), current=3, june=2)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (None, 3),
        (2, 2),
        ("2", 2),
        ("june", 2),
        ("main", 3),
        ("1970-01-01T02:30:00", 2),
        ("1970-01-01T04:30:00+02:00", 2),
        (datetime(1970, 1, 1, 1, tzinfo=UTC), 1),
    ],
)
def test_a_snapshot_is_named_by_id_tag_branch_or_time(name: Any, number: int) -> None:
    found = find("t", LINE, name)
    assert found is not None
    assert found.snapshot_id == number


def test_a_time_that_was_shown_names_its_snapshot() -> None:
    """To the millisecond: as floats some of these times are a little before themselves."""
    for milliseconds in range(1_000_000_000_000, 4_000_000_000_000, 7_777_777_777):
        first, then = (snapshot(i, i - 1 or None).model_copy(update={"timestamp_ms": milliseconds + i - 2}) for i in (1, 2))
        shown = as_json(datetime.fromtimestamp(milliseconds / 1000, UTC))
        found = find("t", metadata(first, then, current=2), shown)
        assert found is not None
        assert found.snapshot_id == 2, shown


def test_names_that_are_none_are_told() -> None:
    with pytest.raises(ConfigError, match='"july" is no snapshot of t') as unknown:
        find("t", LINE, "july")
    assert "june, main" in unknown.value.next_step
    with pytest.raises(Overcompacted, match="snapshot 9 of t is not there: the oldest that is left is 1"):
        find("t", LINE, 9)
    with pytest.raises(Overcompacted, match="had no snapshot at 1970-01-01T00:30:00: its history begins at 1970-01-01T01:00:00"):
        find("t", LINE, "1970-01-01T00:30:00")
    assert find("t", metadata(current=0), None) is None


def path(found: Any) -> list[tuple[int | None, int]]:
    return [(step.parent.snapshot_id if step.parent else None, step.snapshot.snapshot_id) for step in found]


def test_steps_follow_the_ancestry() -> None:
    first, _, third = LINE.snapshots
    assert path(steps(LINE, None, third, net=False)) == [(None, 1), (1, 2), (2, 3)]
    assert path(steps(LINE, first, third, net=False)) == [(1, 2), (2, 3)]
    assert path(steps(LINE, first, third, net=True)) == [(1, 3)]
    assert path(steps(LINE, None, third, net=True)) == [(None, 3)]
    assert steps(LINE, third, third, net=False) == ()
    assert [step.ordinal for step in steps(LINE, first, third, net=False)] == [0, 1]


def test_from_a_snapshot_that_is_no_ancestor_it_is_one_step() -> None:
    """After a rollback, on another branch, backwards, or when what was between has expired."""
    rolled = metadata(snapshot(1, None), snapshot(2, 1), snapshot(3, 1), current=3)
    one, two, three = rolled.snapshots
    assert path(steps(rolled, two, three, net=False)) == [(2, 3)]
    assert path(steps(rolled, three, one, net=False)) == [(3, 1)]
    expired = metadata(snapshot(1, None), snapshot(3, 2), snapshot(4, 3), current=4)
    assert path(steps(expired, expired.snapshots[0], expired.snapshots[-1], net=False)) == [(1, 4)]


def test_what_was_before_the_oldest_snapshot_is_not_asked_for() -> None:
    expired = metadata(snapshot(3, 2), snapshot(4, 3), current=4)
    assert path(steps(expired, None, expired.snapshots[-1], net=False)) == [(None, 3), (3, 4)]


@pytest.mark.parametrize(
    ("operation", "told", "silent"),
    [
        ("replace", {}, True),
        ("overwrite", {"icefront.upkeep": "settle"}, True),
        ("overwrite", {"icefront.pipeline": "p"}, False),
        ("delete", {}, False),
        ("append", {}, False),
    ],
)
def test_only_what_reorganises_files_is_silent(operation: str, told: dict[str, str], *, silent: bool) -> None:
    one, two = snapshot(1, None), snapshot(2, 1, operation, **told)
    assert Step(0, one, two).is_silent is silent
    other = snapshot(5, None)
    assert not Step(0, other, two).is_silent, "between others than parent and child it says nothing"
    assert not Step(0, None, two).is_silent


def test_columns_are_as_wide_as_in_the_wider_of_two_schemas() -> None:
    """At any depth, and only where a column is in both."""
    narrow, wide = (
        Schema(
            NestedField(1, "id", number),
            NestedField(2, "l", ListType(3, StructType(NestedField(4, "f", fraction)), element_required=False)),
            NestedField(5, "m", MapType(6, StringType(), 7, DecimalType(precision, 2), value_required=False)),
            NestedField(8, only, number),
            schema_id=schema_id,
        )
        for schema_id, number, fraction, precision, only in (
            (0, IntegerType(), FloatType(), 4, "s"),
            (1, LongType(), DoubleType(), 9, "renamed"),
        )
    )
    found = as_wide(narrow, wide)
    assert (found.schema_id, [f.name for f in found.fields]) == (0, ["id", "l", "m", "s"])
    assert [found.find_type(i) for i in (1, 4, 7, 8)] == [wide.find_type(i) for i in (1, 4, 7, 8)]
    assert as_wide(wide, narrow) == wide
    assert as_wide(narrow, Schema(NestedField(9, "id", LongType()))) == narrow
