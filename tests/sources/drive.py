"""Reading a changefeed as the pipeline does, without one."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, StringType, UUIDType

from icefront.core.epochs import Epoch
from icefront.core.marks import START, Position
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Report
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.sources.changefeed import Changefeed

TYPES = {
    "bigint": "long",
    "small": "long",
    "amount": "decimal(18, 2)",
    "status": "string",
    "text": "string",
    "timestamptz": "timestamptz",
    "date": "date",
    "bool": "boolean",
    "double": "double",
    "uuid": "uuid",
    "bytes": "binary",
    "jsonb": "string",
}


def schema_of(columns: dict[str, str]) -> Schema:
    """Make a schema from column names and types as text."""
    return Schema(*(NestedField(i, name, _type(kind), required=False) for i, (name, kind) in enumerate(columns.items(), 1)))


def _type(kind: str) -> IcebergType:
    if kind == "uuid":
        return UUIDType()
    return NestedField(1, "x", kind, required=False).field_type if kind != "string" else StringType()


def read(source: Changefeed, table: str, epoch: Epoch, start: Position, schema: Schema) -> tuple[pa.Table | None, list[Report]]:
    """Read one epoch of one table: its changes, and the splits' reports."""
    reader = pickle.loads(pickle.dumps(source.reader(table, source.keys(table) or ())))
    tables: list[pa.Table] = []
    reports: list[Report] = []
    for split in source.splits(table, epoch, start):
        for found in reader.read(split, epoch, schema):
            (reports if isinstance(found, Report) else tables).append(found)
    return (pa.concat_tables(tables) if tables else None), reports


class Target:
    """One table's target: what it holds, its frontier, its position, and every change it was given."""

    def __init__(self, table: str, keys: Sequence[str], schema: Schema) -> None:
        self.table, self.keys, self.schema = table, tuple(keys), schema
        self.frontier, self.position = ORIGIN, START
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.changes: list[tuple[tuple[Any, ...], Timestamp]] = []

    def take(self, source: Changefeed, upper: Timestamp) -> None:
        """Read and keep the epoch from here to `upper`."""
        epoch = Epoch(self.frontier, upper)
        changes, reports = read(source, self.table, epoch, self.position, self.schema)
        self._keep(changes.to_pylist() if changes is not None else [], epoch)
        self.position = source.reached(epoch, self.position, reports)
        self.frontier = upper

    def _keep(self, changes: Iterable[dict[str, Any]], epoch: Epoch) -> None:
        seen = set()
        for change in sorted(changes, key=lambda c: (c[WALL], c[LOGICAL], c[ORDER])):
            key, at = tuple(change[k] for k in self.keys), Timestamp(change[WALL], change[LOGICAL])
            assert at in epoch
            if (key, at) not in seen:
                seen.add((key, at))
                self.changes.append((key, at))
            if change[OP] < 0:
                self.rows.pop(key, None)
            else:
                self.rows[key] = {f.name: change[f.name] for f in self.schema.fields}
