"""Changes → Parquet files of an Iceberg table, with all that a manifest entry needs.

    netted changes ─┬─ upserts ─ by partition ─▶ data files
                    └─ keys of all changes ────▶ equality-delete files (unpartitioned spec: they hold for every partition)

Rows are gathered per partition until they make a row group; a file is closed when it reaches the target size. No path is written
twice: pipeline, epoch and split make the prefix, attempt and a counter the rest. Files are described from the footer in memory, never
read again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, OutputStream, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

from icefront.core.errors import ConfigError, Stopped
from icefront.core.files import ClosedFile, FileKind
from icefront.core.ports import LOGICAL, OP, WALL
from icefront.core.timestamps import Timestamp
from icefront.kernels.codes import plain
from icefront.kernels.metrics import Plan, measure, plan
from icefront.kernels.net import check_keys
from icefront.kernels.partitions import Partition, Partitioner

MIB = 1024 * 1024
MAX_OPEN = 100
MAX_GATHERED = 256 * MIB
SAMPLE = 32 * 1024
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}


@dataclass(frozen=True)
class TableLayout:
    """What a worker must know of a table to write files for it. Plain values: cheap to pickle.

    `deletes_spec_id` is the id of an unpartitioned spec of the table. Files are not sorted, so none claims a sort order.
    """

    table: str
    location: str
    pipeline: str
    schema_json: str
    spec_json: str
    deletes_spec_id: int
    key_ids: tuple[int, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    io_properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, table: str, metadata: TableMetadata, pipeline: str, keys: Iterable[str], io_properties: Mapping[str, str]
    ) -> TableLayout:
        """Describe a table as its metadata has it now; raises ConfigError for what cannot be written."""
        schema, names = metadata.schema(), tuple(keys)
        if names:
            check_keys(schema, names)
        whole = [s.spec_id for s in metadata.specs().values() if s.is_unpartitioned()]
        layout = cls(
            table=table,
            location=metadata.location,
            pipeline=pipeline,
            schema_json=schema.model_dump_json(),
            spec_json=metadata.spec().model_dump_json(),
            deletes_spec_id=whole[0] if whole else -1,
            key_ids=tuple(schema.find_field(name).field_id for name in names),
            properties=dict(metadata.properties),
            io_properties=dict(io_properties),
        )
        layout.check()
        return layout

    def check(self) -> None:
        """Refuse table properties that ask for what is not written here."""
        check_format(self.table, self.properties)
        plan(self.schema, self.properties)

    @cached_property
    def schema(self) -> Schema:
        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.schema.find_field(i).name for i in self.key_ids)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in {"schema", "spec", "keys"}}


def check_format(table: str, properties: Mapping[str, str]) -> None:
    """Refuse file formats other than Parquet."""
    for name in ("write.format.default", "write.delete.format.default"):
        if properties.get(name, "parquet").lower() != "parquet":
            raise ConfigError(
                f"{table}: {name} is {properties[name]}, only parquet is written",
                f"take it out of `properties`; of a table that exists: ALTER TABLE {table} SET TBLPROPERTIES ('{name}'='parquet')",
            )


@dataclass(frozen=True)
class _Format:
    """How Parquet files of one kind are to be, from the table's properties; those for deletes fall back on those for data."""

    target: int
    group_bytes: int
    group_rows: int
    options: Mapping[str, Any]

    @classmethod
    def of(cls, properties: Mapping[str, str], kind: FileKind) -> _Format:
        deletes = kind is FileKind.EQUALITY_DELETES

        def option(name: str, default: str) -> str:
            general = properties.get(f"write.parquet.{name}", default)
            return properties.get(f"write.delete.parquet.{name}", general) if deletes else general

        def number(name: str, default: int) -> int:
            return int(option(name, str(default)))

        size = ("write.delete.target-file-size-bytes", 64 * MIB) if deletes else ("write.target-file-size-bytes", 512 * MIB)
        target = int(properties.get(size[0], size[1]))
        codec, level = option("compression-codec", "zstd").lower(), option("compression-level", "")
        return cls(
            target=target,
            group_bytes=min(number("row-group-size-bytes", 128 * MIB), target),
            group_rows=number("row-group-limit", 1024 * 1024),
            options={
                "compression": _CODECS.get(codec, codec),
                "compression_level": int(level) if level and codec in {"zstd", "gzip", "brotli"} else None,
                "data_page_size": number("page-size-bytes", MIB),
                "max_rows_per_page": number("page-row-limit", 20000),
                "dictionary_pagesize_limit": number("dict-size-bytes", 2 * MIB),
                "store_decimal_as_integer": True,
                "store_schema": False,
            },
        )


@dataclass(frozen=True)
class _Shape:
    """All files of one kind that a task writes have this in common."""

    kind: FileKind
    schema: Schema
    spec_id: int
    partitioner: Partitioner
    format: _Format
    plan: Plan
    arrow: pa.Schema
    equality_ids: tuple[int, ...] = ()

    @classmethod
    def data(cls, layout: TableLayout) -> _Shape:
        return cls._of(FileKind.DATA, layout, layout.schema, layout.spec)

    @classmethod
    def deletes(cls, layout: TableLayout, *, scoped: bool) -> _Shape:
        spec = layout.spec if scoped else PartitionSpec(spec_id=layout.deletes_spec_id)
        if spec.spec_id < 0:
            raise ConfigError(
                f"{layout.table} has no unpartitioned spec, which global equality deletes need", "let Icefront prepare the table"
            )
        schema = layout.schema.select(*layout.keys)
        shape = cls._of(FileKind.EQUALITY_DELETES, layout, schema, spec, layout.key_ids)
        strangers = Partitioner(layout.schema, spec).source_columns() - set(layout.keys)
        if strangers:
            raise ConfigError(
                f"partition-scoped deletes of {layout.table} need every partition column to be a key: {', '.join(sorted(strangers))}",
                "use global deletes, or partition by key columns only",
            )
        return shape

    @classmethod
    def _of(cls, kind: FileKind, layout: TableLayout, schema: Schema, spec: PartitionSpec, ids: tuple[int, ...] = ()) -> _Shape:
        return cls(
            kind=kind,
            schema=schema,
            spec_id=spec.spec_id,
            partitioner=Partitioner(schema, spec),
            format=_Format.of(layout.properties, kind),
            plan=plan(schema, layout.properties),
            arrow=schema_to_pyarrow(schema, include_field_ids=True),
            equality_ids=ids,
        )

    def rows(self, changes: pa.Table) -> pa.Table:
        """Take this kind's columns; copies nothing where the types already agree."""
        chosen = changes.select(self.arrow.names)
        if chosen.schema.types == self.arrow.types:
            return pa.table(chosen.columns, schema=self.arrow)
        return chosen.cast(self.arrow)


@dataclass(frozen=True)
class IcebergEpochWriter:
    """Writes an epoch's netted changes as files of an Iceberg table; runs in workers.

    `fresh`: the table is empty, so nothing has to be deleted. `scoped`: equality deletes belong to partitions; only for tables whose
    partition columns are keys and that have one spec. `append`: every change is a row.
    """

    layout: TableLayout
    epoch_id: str
    fresh: bool = False
    scoped: bool = False
    append: bool = False

    def write(self, changes: Iterable[pa.Table], split: int, attempt: str) -> Iterator[ClosedFile]:
        """Write all tables' changes, each key at most once among them, and yield files as they are closed."""
        task = _Task(self.layout, self.epoch_id, split, attempt)
        shapes = [_Shape.data(self.layout)]
        if not (self.fresh or self.append):
            shapes.append(_Shape.deletes(self.layout, scoped=self.scoped))
        with_files = [_Files(shape, task) for shape in shapes]
        try:
            for table in changes:
                for files in with_files:
                    yield from files.add(self._rows(table, files.shape))
            for files in with_files:
                yield from files.finish()
            data, *deletes = with_files
            if deletes and not data.partitions:
                yield from self._anchor(deletes[0], task)
        finally:
            for files in with_files:
                files.abandon()

    def _anchor(self, deletes: _Files, task: _Task) -> Iterator[ClosedFile]:
        """Write a data file without rows beside deletes that come alone.

        A compaction that was planned before and rewrites all older files drops deletes that are older than all other data
        (Iceberg 1.12): the rows would be back in its new files. This one is as old as they are, and keeps them.
        """
        for partition in deletes.partitions[:1]:
            shape = replace(_Shape.data(self.layout), spec_id=deletes.shape.spec_id)
            beside = _Growing(shape, partition, task)
            beside.open(shape.arrow.empty_table())
            yield from beside.close()

    def _rows(self, changes: pa.Table, shape: _Shape) -> pa.Table:
        if shape.kind is FileKind.EQUALITY_DELETES:
            return shape.rows(changes)
        upserts = pc.greater(changes[OP], 0)
        if pc.all(upserts).as_py() in {True, None}:
            return shape.rows(changes)
        if self.append:
            raise _delete_in_append(self.layout, changes.filter(pc.invert(upserts)).slice(0, 1).to_pylist()[0])
        return shape.rows(changes.filter(upserts))


def _delete_in_append(layout: TableLayout, change: Mapping[str, Any]) -> Stopped:
    key = ", ".join(f"{k}={change[k]!r}" for k in layout.keys) or "unknown"
    return Stopped(
        f"{layout.table}: a delete ({key}) at {Timestamp(change[WALL], change[LOGICAL])}, but the mode is append",
        "use mode: upsert with keys, or keep deletes out of the source",
    )


class _Task:
    """One attempt at one split: where its files go and what they are called."""

    def __init__(self, layout: TableLayout, epoch_id: str, split: int, attempt: str) -> None:
        self.layout, self.epoch_id, self.split, self.attempt = layout, epoch_id, split, attempt
        self.io: FileIO = load_file_io(dict(layout.io_properties), layout.location)
        self._places: LocationProvider = load_location_provider(layout.location, dict(layout.properties))
        self._numbers = itertools.count()

    def new_path(self, kind: FileKind, partition: Partition) -> str:
        suffix = "-deletes" if kind is FileKind.EQUALITY_DELETES else ""
        name = f"{quote(self.layout.pipeline, safe='')}-{self.epoch_id}-{self.split:05d}-{self.attempt}-{next(self._numbers):05d}{suffix}.parquet"
        return self._places.new_data_location(name, cast("PartitionKey", partition) if partition.path else None)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Say whether a dictionary is worth it. Of values that hardly repeat it costs time and makes files larger."""
    if pa.types.is_nested(column.type):
        return True
    sample = plain(column.slice(0, SAMPLE))
    return 2 * int(pc.count_distinct(sample, mode="all").as_py()) <= len(sample)


class _Files:
    """The growing files of one kind, one per partition."""

    def __init__(self, shape: _Shape, task: _Task) -> None:
        self.shape = shape
        self._task = task
        self._growing: OrderedDict[tuple[Any, ...], _Growing] = OrderedDict()  # least recently used first
        self._gathered = 0
        self.partitions: list[Partition] = []
        """Those that got rows."""

    def add(self, rows: pa.Table) -> Iterator[ClosedFile]:
        for partition, part in self.shape.partitioner.split(rows):
            if not part.num_rows:
                continue
            file = self._growing.get(partition.values)
            if file is None:
                self.partitions.append(partition)
                file = self._growing[partition.values] = _Growing(self.shape, partition, self._task)
            self._growing.move_to_end(partition.values)
            self._gathered -= file.gathered
            yield from file.add(part)
            self._gathered += file.gathered
            yield from self._relieve()

    def _relieve(self) -> Iterator[ClosedFile]:
        """Keep memory bounded: write the largest gatherings out, close files that have not been used for longest."""
        while self._gathered > MAX_GATHERED:
            largest = max(self._growing.values(), key=lambda file: file.gathered)
            self._gathered -= largest.gathered
            largest.flush()
        opened = [file for file in self._growing.values() if file.is_open]
        for file in opened[: max(0, len(opened) - MAX_OPEN)]:
            self._gathered -= file.gathered
            yield from file.close()

    def finish(self) -> Iterator[ClosedFile]:
        for file in self._growing.values():
            yield from file.close()

    def abandon(self) -> None:
        """After a failure: let go of streams. What they wrote is an orphan that nobody reported."""
        for file in self._growing.values():
            file.abandon()


class _Growing:
    """The file that one partition's rows go into, until it is full; then the next."""

    def __init__(self, shape: _Shape, partition: Partition, task: _Task) -> None:
        self._shape, self._partition, self._task = shape, partition, task
        self._tables: list[pa.Table] = []
        self._rows = 0
        self.gathered = 0
        self._path = ""
        self._stream: OutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._nans: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def add(self, rows: pa.Table) -> Iterator[ClosedFile]:
        limit = self._shape.format
        step = max(1, min(limit.group_rows, limit.group_bytes * rows.num_rows // max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            self._tables.append(piece)
            self._rows += piece.num_rows
            self.gathered += piece.nbytes
            if self.gathered >= limit.group_bytes or self._rows >= limit.group_rows:
                self.flush()
                if self._stream is not None and self._stream.tell() >= limit.target:
                    yield from self.close()

    def flush(self) -> None:
        """Write what is gathered as a row group."""
        if not self._rows:
            return
        group = pa.concat_tables(self._tables)
        writer = self._writer or self.open(group)
        writer.write_table(group, row_group_size=self._shape.format.group_rows)
        self._count_nans(group)
        self._tables, self._rows, self.gathered = [], 0, 0

    def open(self, first: pa.Table) -> pq.ParquetWriter:
        self._path = self._task.new_path(self._shape.kind, self._partition)
        self._stream = self._task.io.new_output(self._path).create(overwrite=False)
        repeating = [path for path in self._shape.plan if path not in first.column_names or _repeats(first[path])]
        self._writer = pq.ParquetWriter(
            cast("Any", self._stream), self._shape.arrow, use_dictionary=repeating, **self._shape.format.options
        )
        return self._writer

    def _count_nans(self, group: pa.Table) -> None:
        for name, column in zip(group.column_names, group.columns, strict=True):
            if (
                pa.types.is_floating(column.type)
                and name in self._shape.plan
                and self._shape.plan[name].mode.type.value != "none"
            ):
                at = self._shape.plan[name].field_id
                self._nans[at] = self._nans.get(at, 0) + (pc.sum(pc.is_nan(column)).as_py() or 0)

    def close(self) -> Iterator[ClosedFile]:
        self.flush()
        if self._writer is None or self._stream is None:
            return
        if self._shape.equality_ids:
            ids = ",".join(map(str, self._shape.equality_ids))
            self._writer.add_key_value_metadata({"delete-type": "equality", "delete-field-ids": ids})
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        footer = self._writer.writer.metadata
        metrics = measure(footer, self._shape.plan)
        yield ClosedFile(
            kind=self._shape.kind,
            table=self._task.layout.table,
            epoch_id=self._task.epoch_id,
            split=self._task.split,
            attempt=self._task.attempt,
            path=self._path,
            size=size,
            records=footer.num_rows,
            schema_id=self._task.layout.schema.schema_id,
            spec_id=self._shape.spec_id,
            partition=dict(self._partition.json),
            nan_value_counts=self._nans,
            equality_ids=self._shape.equality_ids,
            column_sizes=metrics.column_sizes,
            value_counts=metrics.value_counts,
            null_value_counts=metrics.null_value_counts,
            lower_bounds=metrics.lower_bounds,
            upper_bounds=metrics.upper_bounds,
            split_offsets=metrics.split_offsets,
        )
        self._writer, self._stream, self._nans = None, None, {}

    def abandon(self) -> None:
        """Let go after a failure, quietly: what failed is already being raised."""
        if self._writer is not None and self._stream is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer.is_open = False  # else it closes itself again, later and loudly
            with contextlib.suppress(Exception):
                self._stream.close()
        self._writer = self._stream = None
