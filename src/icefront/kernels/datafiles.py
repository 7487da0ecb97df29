"""Rows of data files, by field id, at given positions; and which positions deletes make dead.

file + schema  ─▶ row groups that have wanted rows ─▶ Arrow batches in the schema's names and types
file + deletes ─▶ a mask of dead positions
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.selectors import by_name
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowAccessor, PyArrowFileIO, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema, prune_columns, visit_with_partner
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField

from icefront.core.errors import Stopped
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange
from icefront.kernels import vectors
from icefront.kernels.codes import encode, groups, plain
from icefront.kernels.projection import Projector, agreeing, named_by_id, united
from icefront.kernels.vectors import Positions

BATCH_ROWS, WINDOW_ROWS = 128 * 1024, 512 * 1024
WINDOWS = 16
"""In how many places of a file rows are looked for; with more it is read as a whole."""
PAGE_ROWS = 20_000
"""Of how many rows most writers make a page at most."""
KEPT_BYTES = 128 << 20
"""How much of the deletes is kept that were read, if the last file did not need more: files that lie together mostly share them."""
LEFT, CAME = 0, 1

Mask = np.ndarray[Any, np.dtype[np.bool_]]
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_binary,
)


@dataclass(frozen=True)
class Layout:
    """What reading files of a table needs beside their paths. Plain values: cheap to pickle.

    `identities` names, by spec, the partition fields that hold a column's own value: field id → place in the partition. `replaced` are
    the columns that took the place, and the id, of another one of their name with a type that has nothing to do with theirs.
    """

    schemas: Mapping[int, str]
    format_version: int
    identities: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    name_mapping: str | None = None
    replaced: frozenset[int] = frozenset()

    def schema(self, schema_id: int) -> Schema:
        return optional(Schema.model_validate_json(self.schemas[schema_id]))

    def columns(self, ids: Collection[int], others: Iterable[Schema] = ()) -> Schema:
        """Make a schema of some columns, or members of them, also of those that are not in the newest schema any more.

        The metadata may have forgotten a column together with the last schema that had it: then `others` are asked; and only they know
        which of two a column was that was replaced. Names are ours, since a column may be called as another one was.
        """
        schemas = [self.schema(i) for i in sorted(self.schemas)]
        if self.replaced & set(ids):
            schemas = list(others)
        elif not set(ids) <= {i for schema in schemas for i in schema.field_ids}:
            schemas = [*others, *schemas]
        found: dict[int, NestedField] = {}
        for schema in schemas:
            for column in prune_columns(schema, set(ids), select_full_types=False).fields:
                found[column.field_id] = united(found.get(column.field_id, column), column)
        made = Schema(*map(named_by_id, found.values()))
        if lost := sorted(set(ids) - made.field_ids):
            raise Stopped(
                f"no schema of the table has column {lost[0]}, which an equality delete names",
                "rewrite the table's files without equality deletes; then begin anew",
            )
        return made


class _Kept:
    """What was read, as far as `KEPT_BYTES` go, and what was asked for last however much that is. What is oldest makes room."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def all(self, wanted: Mapping[Any, Callable[[], Any]]) -> list[Any]:
        """Return what is wanted, all of it at once."""
        found = {key: self._values.pop(key) if key in self._values else read() for key, read in wanted.items()}
        self._values |= found
        over = sum(value.nbytes for value in self._values.values()) - KEPT_BYTES
        for key in list(self._values)[: -len(found) or None]:
            if over > 0:
                over -= self._values.pop(key).nbytes
        return list(found.values())


@dataclass(frozen=True)
class Files:
    """Reads files of one table."""

    io: FileIO
    layout: Layout
    _kept: _Kept = field(default_factory=_Kept, init=False, repr=False, compare=False)

    def rows(
        self, file: DataEntry, schema: Schema, wanted: Mask | None = None, *, strict: bool = False
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches, each with the position of the first row that it was made of.

        With `wanted` they have only those rows, and row groups without one are not read; in files of this machine no pages either.
        A column that was replaced since the file was written is not there, or an error if `strict`.
        """
        with self._opened(file.path) as parquet:
            projection = self._projection(
                parquet, schema, self._known(file, schema), frozenset() if strict else self.layout.replaced
            )
            if wanted is not None and (path := _local(file.path)) and projection.skips(parquet):
                windows = list(_windows(np.flatnonzero(wanted), _ends(parquet)))
                # Each of them costs a little, however few pages it has.
                if len(windows) <= WINDOWS + 2 * len(wanted) // WINDOW_ROWS:
                    yield from projection.some(path, parquet.schema_arrow, windows, wanted)
                    return
            start = 0
            for group in range(parquet.num_row_groups):
                end = start + parquet.metadata.row_group(group).num_rows
                if wanted is None or wanted[start:end].any():
                    yield from projection.batches(parquet, group, start, wanted)
                start = end

    def dead(self, file: DataEntry, deletes: Iterable[DeleteEntry]) -> Mask:
        """Return which rows of a file deletes make dead."""
        dead = np.zeros(file.records, bool)
        by_columns: dict[tuple[int, ...], list[DeleteEntry]] = {}
        for delete in deletes:
            match delete.kind:
                case DeleteKind.VECTOR:
                    dead[self._vector(delete)] = True
                case DeleteKind.POSITION:
                    dead[self._positions(delete, file.path)] = True
                case DeleteKind.EQUALITY:
                    by_columns.setdefault(tuple(sorted(delete.equality_ids)), []).append(delete)
        for ids, together in by_columns.items():
            self._bury(dead, file, ids, together)
        return dead

    def moved(self, change: FileChange) -> Iterator[tuple[int, Mask | None]]:
        """Say which rows of a file `LEFT`, and which `CAME`; None: all of them."""
        if change.before is None or change.after is None:
            side, deletes = (CAME, change.after) if change.before is None else (LEFT, change.before)
            yield side, ~self.dead(change.file, deletes) if deletes else None
            return
        shared = {d.key for d in change.before} & {d.key for d in change.after}
        lost, new = (self.dead(change.file, [d for d in side if d.key not in shared]) for side in (change.before, change.after))
        if not lost.any() and not new.any():
            return
        # What deletes on both sides say cannot differ: rows that they make dead were dead, and stay so.
        always = self.dead(change.file, [d for d in change.after if d.key in shared])
        if (left := new & ~lost & ~always).any():
            yield LEFT, left
        if (came := lost & ~new & ~always).any():
            yield CAME, came

    # ── deletes ────────────────────────────────────────────────────────────────────────────
    def _vector(self, delete: DeleteEntry) -> Any:
        return vectors.decode(vectors.blob(self.io, delete.path, delete.offset, delete.length), delete.path)

    def _positions(self, delete: DeleteEntry, path: str) -> Positions:
        (grouped,) = self._kept.all({delete.key: partial(self._by_path, delete)})
        of_file: Positions = grouped.of(path)
        return of_file

    def _by_path(self, delete: DeleteEntry) -> _ByPath:
        with self._opened(delete.path) as parquet:
            found = parquet.read(columns=["file_path", "pos"])
        paths = found["file_path"].combine_chunks().dictionary_encode()
        order, starts = groups(paths.indices.to_numpy().astype(np.int64), len(paths.dictionary))
        return _ByPath(dict(zip(paths.dictionary.to_pylist(), pairwise(starts), strict=True)), found["pos"].to_numpy()[order])

    def _bury(self, dead: Mask, file: DataEntry, ids: Sequence[int], deletes: Sequence[DeleteEntry]) -> None:
        """Mark the rows whose values in these columns some delete names."""
        # A struct that is null is none of nulls.
        schema = self.layout.columns(ids, map(self._schema, sorted(deletes, key=lambda d: d.sequence)))
        named = self._named(schema, deletes)
        # The keys are prepared anew for each piece: let it be large beside them.
        for start, piece in _pieces(self.rows(file, schema, strict=True), 2 * named.num_rows):
            dead[start : start + piece.num_rows] |= is_in(piece, named)

    def _named(self, schema: Schema, deletes: Sequence[DeleteEntry]) -> pa.Table:
        """Read the rows that deletes name."""
        shape = str(schema)
        return pa.concat_tables(self._kept.all({(shape, d.key): partial(self._whole, d, schema) for d in deletes}))

    def _whole(self, delete: DeleteEntry, schema: Schema) -> pa.Table:
        with self._opened(delete.path) as parquet:
            projection = self._projection(parquet, schema, {})
            batches = [b for group in range(parquet.num_row_groups) for _, b in projection.batches(parquet, group, 0, None)]
        return pa.Table.from_batches(batches, projection.arrow)

    def _schema(self, delete: DeleteEntry) -> Schema:
        with self._opened(delete.path) as parquet:
            return self._written(parquet)

    # ── files ──────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def _opened(self, path: str) -> Iterator[pq.ParquetFile]:
        with self.io.new_input(path).open() as stream:
            # In nanoseconds, years that are far away would be others.
            yield pq.ParquetFile(stream, pre_buffer=True, coerce_int96_timestamp_unit="us")

    def _projection(
        self, parquet: pq.ParquetFile, schema: Schema, known: Mapping[int, Any], replaced: Collection[int] = ()
    ) -> _Projection:
        written = agreeing(self._written(parquet).fields, schema, replaced)
        chosen = [f for f in written if Schema(f).field_ids & schema.field_ids]
        return _Projection(schema, Schema(*chosen), known, downcast=self.layout.format_version < 3)

    def _written(self, parquet: pq.ParquetFile) -> Schema:
        mapping = NameMapping.model_validate_json(self.layout.name_mapping) if self.layout.name_mapping else None
        version: Any = self.layout.format_version
        return pyarrow_to_schema(parquet.schema_arrow, mapping, downcast_ns_timestamp_to_us=version < 3, format_version=version)

    def _known(self, file: DataEntry, schema: Schema) -> Mapping[int, Any]:
        """Return the values that a migrated file has only in its partition."""
        places = self.layout.identities.get(file.spec_id, {})
        return {i: file.partition[at] for i, at in places.items() if i in schema.field_ids and file.partition[at] is not None}


@dataclass(frozen=True)
class _ByPath:
    """Positions of dead rows, and which of them are of which file."""

    places: Mapping[str, tuple[int, int]]
    positions: Positions

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes

    def of(self, path: str) -> Positions:
        begin, end = self.places.get(path, (0, 0))
        return self.positions[begin:end]


@dataclass(frozen=True)
class _Projection:
    """From a file's columns to a schema's: found by id, renamed, widened, filled in where the file has none."""

    schema: Schema
    written: Schema
    known: Mapping[int, Any]
    downcast: bool

    @cached_property
    def arrow(self) -> pa.Schema:
        return schema_to_pyarrow(self.schema, include_field_ids=False)

    def batches(
        self, parquet: pq.ParquetFile, group: int, start: int, wanted: Mask | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read a row group that starts at a position of the file."""
        columns = [f.name for f in self.written.fields]
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
            if wanted is None:
                yield start, self.projected(batch)
            elif (here := wanted[start : start + batch.num_rows]).any():
                yield start, self.projected(batch.filter(pa.array(here)))
            start += batch.num_rows

    def skips(self, parquet: pq.ParquetFile) -> bool:
        """Say whether polars reads what a file holds, and reads it as pyarrow does."""
        if not self.written.fields or not all(any(same(kind) for same in _PLAIN) for kind in parquet.schema_arrow.types):
            return False
        groups = (parquet.metadata.row_group(i) for i in range(parquet.num_row_groups))
        return all(_readable(group.column(i)) for group in groups for i in range(group.num_columns))

    def some(
        self, path: str, file: pa.Schema, windows: Iterable[tuple[int, int]], wanted: Mask
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read some rows: unlike pyarrow, polars passes over pages that hold none of them."""
        kinds = pa.schema([file.field(f.name) for f in self.written.fields])
        frame = pl.scan_parquet(path, glob=False).select(by_name(*kinds.names))
        for start, end in windows:
            read = frame.slice(start, end - start).collect().filter(pl.Series(wanted[start:end]))
            for batch in read.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(kinds).combine_chunks().to_batches():
                yield start, self.projected(batch)

    def projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        visitor = Projector(
            self.written,
            self.downcast,
            projected_missing_fields=dict(self.known),
            allow_timestamp_tz_mismatch=True,
        )
        made: Any = visit_with_partner(self.schema, batch, visitor, ArrowAccessor(self.written))
        # A column that the file has keeps its kind of string or list, one that is filled in has another: rows must be alike.
        return pa.RecordBatch.from_struct_array(made).cast(self.arrow)


def _ends(parquet: pq.ParquetFile) -> Positions:
    """Say where the row groups of a file end."""
    return np.cumsum([parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)])


def _windows(places: Positions, ends: Positions) -> Iterator[tuple[int, int]]:
    """Return where to read rows at some places: from one to the next in its row group if that is not far, and not too many at once."""
    groups = np.searchsorted(ends, places, "right")
    while len(places):
        apart = (np.diff(places) > PAGE_ROWS) | (places[1:] - places[0] >= WINDOW_ROWS) | (np.diff(groups) > 0)
        count = int(np.argmax(apart)) + 1 if apart.any() else len(places)
        yield int(places[0]), int(places[count - 1]) + 1
        places, groups = places[count:], groups[count:]


def _readable(column: pq.ColumnChunkMetaData) -> bool:
    """Say whether polars reads a column: of INT96 it loses years that are far away, and some encodings it does not know."""
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return not {"DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"} & set(column.encodings)
    return bool(column.physical_type != "INT96")


def _local(path: str) -> str | None:
    """Return the path of a file of this machine."""
    scheme, _, local = PyArrowFileIO.parse_location(path)
    return local if scheme == "file" else None


def project(rows: pa.Table, written: Schema, schema: Schema) -> pa.Table:
    """Give rows of one schema the names and types of another, column by column as their ids say."""
    if written == schema:
        return rows
    same = Schema(*agreeing(written.fields, schema, schema.field_ids))
    projection = _Projection(optional(schema), same, {}, downcast=False)
    return pa.Table.from_batches([projection.projected(batch) for batch in rows.to_batches()], projection.arrow)


def optional(schema: Schema) -> Schema:
    """Let every column be absent: the past may not have had it."""
    return Schema(*(f.model_copy(update={"required": False}) for f in schema.fields), schema_id=schema.schema_id)


def _pieces(batches: Iterable[tuple[int, pa.RecordBatch]], rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Put batches that follow one another together, to so many rows at least."""
    held: list[pa.RecordBatch] = []
    begin = count = 0
    for start, batch in batches:
        begin = begin if held else start
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield begin, pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield begin, pa.Table.from_batches(held)


def is_in(rows: pa.Table, named: pa.Table) -> Mask:
    """Say which rows are among the named ones; null equals null."""
    if named.num_rows == 0:
        return np.zeros(rows.num_rows, bool)
    if named.num_columns == 1 and _looked_up(named.column(0).type):
        values, keys = (_series(column) for column in (rows[named.column_names[0]].cast(named.column(0).type), named.column(0)))
        alone: Mask = values.is_in(keys.implode(), nulls_equal=True).to_numpy()
        return alone
    columns = [pa.chunked_array([*named[c].chunks, *rows[c].cast(named[c].type).chunks]) for c in named.column_names]
    codes, count = encode(columns)
    known = np.zeros(count, bool)
    known[codes[: named.num_rows]] = True
    found: Mask = known[codes[named.num_rows :]]
    return found


def _series(column: pa.ChunkedArray) -> pl.Series:
    whole = plain(column)
    return pl.Series(whole.cast(pa.binary()) if pa.types.is_fixed_size_binary(whole.type) else whole)


def _looked_up(kind: pa.DataType) -> bool:
    """Say whether values are looked up the way that equal keys are meant: floats and nested values are compared by their codes."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return not (pa.types.is_floating(storage) or pa.types.is_nested(storage))
