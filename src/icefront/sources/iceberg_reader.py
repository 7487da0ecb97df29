"""Rows of changed files as changes: what left is a delete, what came an upsert, at the snapshot's timestamp.

    file changes ─▶ rows that left ─┐
                                    ├─ cancel what a rewritten file carried over ─▶ delete (order 0), upsert (order 1)
                    rows that came ─┘

Netting by key does the rest: of a key that left and came the upsert wins. What cannot be cancelled here, because the two files are in
different splits, is written once more as it was.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from icefront.core.epochs import Epoch
from icefront.core.errors import SchemaRefused, Stopped
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Report, Split, Wish
from icefront.core.timestamps import Timestamp
from icefront.iceberg.evolution import can_widen
from icefront.iceberg.history import as_wide
from icefront.iceberg.live import DeleteEntry, Metrics
from icefront.iceberg.statediff import FileChange, meets
from icefront.iceberg.types import print_type
from icefront.kernels.changelog import rest
from icefront.kernels.datafiles import LEFT, Files, Layout

SMALLEST = 4 << 20
"""Splits are not made smaller than this for parallelism's sake: starting a task costs as much as reading it."""
_STAMPS = [(OP, pa.int8()), (WALL, pa.int64()), (LOGICAL, pa.int32()), (ORDER, pa.int64())]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some file changes of one stage, with the ids of the schemas before (None: nothing was told yet) and after it.

    `is_back`: it leads to a state that is older than the one before.
    """

    at: Timestamp
    snapshot: int | None
    before: int | None
    schema: int
    changes: tuple[FileChange, ...] = ()
    is_back: bool = False

    @property
    def meets(self) -> bool:
        """Say whether rows may both leave and come."""
        return meets(self.changes)


# ── in the driver: planning ────────────────────────────────────────────────────────────────
def plan(pieces: Sequence[Piece], split_bytes: int, parallelism: int) -> tuple[Split, ...]:
    """Pack file changes into splits by the bytes that they make us read.

    Changes of one partition stay together: what a rewritten file carries over is then found where it is read.
    """
    splits = [(piece, part) for piece in pieces for part in _parts(piece, split_bytes, parallelism)]
    return tuple(_split(number, *split) for number, split in enumerate(splits))


def _parts(piece: Piece, split_bytes: int, parallelism: int) -> list[list[FileChange]]:
    if not piece.changes:
        # Also without rows: what a column is called now must be known before its next change.
        return [[]] if piece.before != piece.schema else []
    sized = [(change.bytes, change) for change in sorted(piece.changes, key=_place)]
    total = sum(size for size, _ in sized)
    limit = split_bytes if piece.meets else max(SMALLEST, min(split_bytes, -(-total // max(1, parallelism))))
    parts: list[list[FileChange]] = []
    room = 0
    for size, change in sized:
        if not parts or size > room:
            parts.append([])
            room = limit
        room -= size
        parts[-1].append(change)
    return parts


def _split(number: int, piece: Piece, part: Sequence[FileChange]) -> Split:
    work = replace(piece, changes=tuple(map(_lean, part)))
    return Split(number, sum(change.bytes for change in part), base64.b85encode(pickle.dumps(work)).decode())


def _place(change: FileChange) -> tuple[int, str, str]:
    return change.file.spec_id, repr(change.file.partition), change.file.path


def _lean(change: FileChange) -> FileChange:
    """Leave out what only planning needs."""

    def lean(deletes: tuple[DeleteEntry, ...] | None) -> tuple[DeleteEntry, ...] | None:
        return None if deletes is None else tuple(replace(d, metrics=Metrics()) for d in deletes)

    return FileChange(change.file, lean(change.before), lean(change.after), vectors=change.vectors)


# ── in workers: reading ────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class IcebergReader:
    """Reads splits of one table. Plain values: cheap to pickle."""

    table: str
    layout: Layout
    io_properties: Mapping[str, str]
    location: str
    keys: tuple[str, ...]
    ignored: frozenset[str] = frozenset()

    @cached_property
    def files(self) -> Files:
        return Files(load_file_io(dict(self.io_properties), self.location), self.layout)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "files"}

    def infer(self, split: Split, epoch: Epoch) -> Report:
        """Wish for every column that the split's state has, except those that are ignored."""
        del epoch
        piece = _piece(split)
        fields = [f for f in self.layout.schema(piece.schema).fields if f.name not in self.ignored]
        return Report(split.number, wishes=tuple(Wish(f.name, print_type(f.field_type), self._where(piece)) for f in fields))

    def read(self, split: Split, epoch: Epoch, schema: Schema) -> Iterator[pa.Table | Report]:
        """Yield the split's changes; what the schema lacks is known beforehand, and then nothing is read."""
        del epoch
        piece = _piece(split)
        wishes = tuple(self._wishes(piece, schema))
        count = 0
        if not wishes:
            told = _Telling(self._columns(piece, schema), piece.at, self.keys)
            for side, rows in self._sides(piece):
                count += rows.num_rows
                yield told.deletes(rows) if side == LEFT else told.upserts(rows)
        yield Report(split.number, counts={"read": count, "inside": count}, wishes=wishes)

    def _sides(self, piece: Piece) -> Iterator[tuple[int, pa.Table]]:
        """Return the rows that left and those that came. Only where there are both they are held, to be cancelled."""
        schema = self.layout.schema(piece.schema)
        if piece.before is not None and piece.before in self.layout.schemas:
            schema = as_wide(schema, self.layout.schema(piece.before))
        rows = (
            (side, pa.Table.from_batches([batch]))
            for change in piece.changes
            for side, wanted in self.files.moved(change)
            for _, batch in self.files.rows(change.file, schema, wanted)
        )
        return rest(rows) if piece.meets else rows

    # ── schemas ────────────────────────────────────────────────────────────────────────────
    def _where(self, piece: Piece) -> str:
        return f"{self.table} at snapshot {piece.snapshot}"

    def _wishes(self, piece: Piece, target: Schema) -> Iterator[Wish]:
        before = self.layout.schema(piece.before) if piece.before is not None and piece.before in self.layout.schemas else None
        after = self.layout.schema(piece.schema)
        where = self._where(piece)
        known = {f.name: f.field_type for f in target.fields}
        for field in after.fields:
            if field.name in self.ignored:
                continue
            former = None
            if before is not None:
                former = self._former_name(field, before, known, where)
                if piece.is_back and field.field_id not in before.field_ids and field.name not in known:
                    raise _refused(where, f"column {field.name} is back with what it held before it was dropped")
            kind = print_type(field.field_type)
            if field.name not in known:
                yield Wish(field.name, kind, where, former=former)
            elif not fits(field.field_type, known[field.name]):
                yield Wish(field.name, kind, where, widens=print_type(known[field.name]))

    def _former_name(self, field: NestedField, before: Schema, target: Iterable[str], where: str) -> str | None:
        """Say what a column was called before, if it was called something else; stop where a name means another column now.

        Rows that do not change are not read again: what they show in a column must be what the target has for it.
        """
        namesake = next((f for f in before.fields if f.name == field.name), None)
        old = next((f for f in before.fields if f.field_id == field.field_id), None)
        if namesake is not None and namesake.field_id != field.field_id:
            raise _refused(where, f"column {field.name} is another one than before")
        if old is None:
            if field.initial_default is not None:
                raise _refused(where, f"column {field.name} is new and {field.initial_default!r} in all earlier rows")
            if any(f.name == field.name and f.field_id != field.field_id for f in self._all_fields):
                raise _refused(where, f"column {field.name} is new, and another one was called so before")
            return None
        if old.name == field.name:
            return None
        if old.name in target and field.name in target:
            raise _refused(where, f"column {old.name} is now called {field.name}, and the target has a column of either name")
        return old.name

    @property
    def _all_fields(self) -> Iterator[NestedField]:
        return (f for i in self.layout.schemas for f in self.layout.schema(i).fields)

    def _columns(self, piece: Piece, target: Schema) -> pa.Schema:
        """Return the target's columns as Arrow has them."""
        missing = [key for key in self.keys if key not in self.layout.schema(piece.schema).column_names]
        if missing:
            raise Stopped(
                f"{self._where(piece)} has no column {missing[0]}, which the keys name",
                "correct `keys`, or load into a new table",
            )
        arrow = schema_to_pyarrow(target, include_field_ids=False)
        return pa.schema([pa.field(f.name, f.type) for f in arrow])


def _piece(split: Split) -> Piece:
    piece: Piece = pickle.loads(base64.b85decode(split.work))  # noqa: S301 — written by our own driver
    return piece


def fits(kind: IcebergType, target: IcebergType) -> bool:
    """Say whether values of one type are exact in a column of another; ids inside do not matter."""
    return print_type(kind) == print_type(target) or can_widen(kind, target)


def _refused(where: str, fact: str) -> SchemaRefused:
    return SchemaRefused(
        f"{where}: {fact}; the target's rows would differ from the source's",
        "give the column another name in the source, or load into a new table",
    )


@dataclass(frozen=True)
class _Telling:
    """Gives rows of a source table the columns of a change: the target's, then when and what."""

    columns: pa.Schema
    at: Timestamp
    keys: tuple[str, ...]

    def deletes(self, rows: pa.Table) -> pa.Table:
        """Only the key is told of a row that left."""
        return self._told(rows.select([name for name in rows.column_names if name in self.keys]), -1, 0)

    def upserts(self, rows: pa.Table) -> pa.Table:
        return self._told(rows, 1, 1)

    def _told(self, rows: pa.Table, op: int, order: int) -> pa.Table:
        there = set(rows.column_names)
        columns = [rows[f.name].cast(f.type) if f.name in there else pa.nulls(rows.num_rows, f.type) for f in self.columns]
        stamps = [op, self.at.wall, self.at.logical, order]
        columns += [pa.repeat(pa.scalar(value, kind), rows.num_rows) for value, (_, kind) in zip(stamps, _STAMPS, strict=True)]
        return pa.table(columns, schema=pa.schema([*self.columns, *(pa.field(*stamp) for stamp in _STAMPS)]))
