"""A table's past: naming a snapshot, and the steps from one to another.

A step is what one snapshot did to the one before it. Usually that is its parent; over a rollback, a moved branch or expired snapshots
it is whatever the reader had seen last: the difference of two states needs no path between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.types import ListType, MapType, NestedField, StructType

from icefront.core.errors import ConfigError, Overcompacted
from icefront.iceberg import summary
from icefront.iceberg.evolution import can_widen

MAIN = "main"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Name = int | str | datetime
"""Of a snapshot: its id, a tag or branch, or a time (the snapshot that was current then)."""


@dataclass(frozen=True)
class Step:
    """From one state of the table to the next; from nothing if there is no `parent`."""

    ordinal: int
    parent: Snapshot | None
    snapshot: Snapshot

    @property
    def is_silent(self) -> bool:
        """Say whether the snapshot only reorganised files: compaction, and upkeep of ours. Nothing else is silent."""
        told = self.snapshot.summary
        if told is None or self.parent is None or self.snapshot.parent_snapshot_id != self.parent.snapshot_id:
            return False
        return told.operation is Operation.REPLACE or told[summary.UPKEEP] is not None

    @property
    def has_lineage(self) -> bool:
        """Say whether rows have ids in both states: snapshots from before format 3 have none."""
        return self.parent is not None and self.parent.first_row_id is not None and self.snapshot.first_row_id is not None


def find(table: str, metadata: TableMetadata, name: Name | None) -> Snapshot | None:
    """Find the snapshot that a name means; None of a table without snapshots, for the newest."""
    match name:
        case None:
            return metadata.current_snapshot()
        case datetime():
            return _at(table, metadata, name)
        case int():
            return _of_id(table, metadata, name)
    if (ref := metadata.refs.get(name)) is not None:
        return _of_id(table, metadata, ref.snapshot_id)
    if name.isdecimal():
        return _of_id(table, metadata, int(name))
    try:
        return _at(table, metadata, datetime.fromisoformat(name))
    except ValueError:
        known = ", ".join(sorted(metadata.refs)) or "none"
        raise ConfigError(
            f'"{name}" is no snapshot of {table}',
            f"give a snapshot id, a time as 2026-01-31T12:00:00, a tag or a branch ({known})",
        ) from None


def _of_id(table: str, metadata: TableMetadata, number: int) -> Snapshot:
    found = metadata.snapshot_by_id(number)
    if found is None:
        oldest = min(metadata.snapshots, key=lambda s: s.timestamp_ms, default=None)
        there = f"the oldest that is left is {oldest.snapshot_id} of {_time(oldest)}" if oldest else "the table has none"
        raise Overcompacted(
            f"snapshot {number} of {table} is not there: {there}", "begin at one that is left, or read the whole table"
        )
    return found


def _at(table: str, metadata: TableMetadata, time: datetime) -> Snapshot:
    """Return what was current at a time; a time without zone is UTC."""
    # In whole numbers: a float may fall short of the very commit whose time it is.
    at = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    passed = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= at]
    if not passed:
        first = min((entry.timestamp_ms for entry in metadata.snapshot_log), default=None)
        since = (
            f"its history begins at {datetime.fromtimestamp(first / 1000, UTC).isoformat()}" if first else "it has no snapshots"
        )
        raise Overcompacted(f"{table} had no snapshot at {time.isoformat()}: {since}", "give a later time, or none at all")
    return _of_id(table, metadata, passed[-1].snapshot_id)


def _time(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat()


def steps(metadata: TableMetadata, begin: Snapshot | None, end: Snapshot | None, *, net: bool) -> Sequence[Step]:
    """Return the steps from one snapshot (None: the empty table) to another, oldest first; with `net` a single one."""
    if end is None or (begin is not None and begin.snapshot_id == end.snapshot_id):
        return ()
    if net:
        return (Step(0, begin, end),)
    chain: list[Snapshot] = []
    for snapshot in ancestors_of(end, metadata):
        if begin is not None and snapshot.snapshot_id == begin.snapshot_id:
            break
        chain.append(snapshot)
    else:
        if begin is not None:  # a rollback, another branch, or what was between has expired
            return (Step(0, begin, end),)
    chain.reverse()
    return tuple(Step(i, chain[i - 1] if i else begin, snapshot) for i, snapshot in enumerate(chain))


def schema_of(metadata: TableMetadata, snapshot: Snapshot | None) -> Schema:
    """Return the schema that a snapshot was written with; very old ones do not say, and had the table's."""
    number = snapshot.schema_id if snapshot is not None and snapshot.schema_id is not None else metadata.current_schema_id
    return next((schema for schema in metadata.schemas if schema.schema_id == number), metadata.schema())


def path(fields: Sequence[NestedField], number: int) -> tuple[str, ...]:
    """Return the names that lead to a column, or to a member of structs, by its id; none to what lists and maps hold."""
    for field in fields:
        if field.field_id == number:
            return (field.name,)
        if isinstance(field.field_type, StructType) and (below := path(field.field_type.fields, number)):
            return (field.name, *below)
    return ()


def as_wide(schema: Schema, other: Schema) -> Schema:
    """Give columns the types that another schema has for them where those are wider: on the way back values may not fit otherwise."""
    fields = _as_wide(schema.as_struct(), -1, other).fields
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def _as_wide(kind: Any, field: int, other: Schema) -> Any:
    match kind:
        case StructType():
            return StructType(
                *(f.model_copy(update={"field_type": _as_wide(f.field_type, f.field_id, other)}) for f in kind.fields)
            )
        case ListType():
            element = _as_wide(kind.element_type, kind.element_id, other)
            return ListType(kind.element_id, element, element_required=kind.element_required)
        case MapType():
            value = _as_wide(kind.value_type, kind.value_id, other)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=kind.value_required)
    theirs = other.find_type(field) if field in other.field_ids else kind
    return theirs if can_widen(kind, theirs) else kind
