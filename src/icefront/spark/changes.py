"""The changes job: file changes in, named row changes out.

A step that only adds rows, or only removes some, takes one stage. Where rows leave and come they have to meet: workers exchange Arrow
blobs by key (or by whole row), then cancel what was carried over and pair what was updated.

    file changes ─▶ read ─┬───────────────────────────────────────────────────▶ rows
                          └─ blobs by key ══shuffle══▶ cancel ─▶ pair images ─▶ rows
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from icefront.iceberg.statediff import FileChange
from icefront.kernels.changelog import CHANGE_TYPE, Diff, cancel, changes, hashes
from icefront.kernels.codes import groups
from icefront.kernels.datafiles import LEFT, Files, Layout, project
from icefront.kernels.net import from_blob, to_blob
from icefront.spark.session import for_jobs, ship_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 64 * 1024 * 1024
ORDINAL, SNAPSHOT, TIMESTAMP = "_change_ordinal", "_commit_snapshot_id", "_commit_timestamp"
OUTPUT = (
    StructField(CHANGE_TYPE, StringType(), nullable=False),
    StructField(ORDINAL, IntegerType(), nullable=False),
    StructField(SNAPSHOT, LongType(), nullable=False),
    StructField(TIMESTAMP, TimestampType(), nullable=False),
)
_BLOBS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("bucket", IntegerType()),
        StructField("ordinal", IntegerType()),
        StructField("side", IntegerType()),
        StructField("payload", BinaryType()),
    ]
)
_BLOBS_ARROW = pa.schema(
    [("partition", pa.int32()), ("bucket", pa.int32()), ("ordinal", pa.int32()), ("side", pa.int32()), ("payload", pa.binary())]
)


@dataclass(frozen=True)
class Moment:
    """What workers must know of a step: which snapshot it is, and the schema that its rows are compared in."""

    snapshot: int
    timestamp_ms: int
    schema_id: int


@dataclass(frozen=True)
class Plan:
    """All that workers need. Plain values: cheap to pickle."""

    layout: Layout
    io_properties: Mapping[str, str]
    location: str
    moments: Mapping[int, Moment]
    keys: tuple[str, ...]
    schema_id: int
    output: StructType

    @cached_property
    def files(self) -> Files:
        return Files(load_file_io(dict(self.io_properties), self.location), self.layout)

    @cached_property
    def arrow(self) -> pa.Schema:
        return to_arrow_schema(self.output)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in {"files", "arrow"}}

    def schema(self, ordinal: int) -> Schema:
        return self.layout.schema(self.moments[ordinal].schema_id)

    def finished(self, rows: pa.Table, ordinal: int) -> Iterator[pa.RecordBatch]:
        """Give rows of a step the names and types of the result."""
        moment = self.moments[ordinal]
        kinds = rows[CHANGE_TYPE]
        shown = project(rows.drop_columns([CHANGE_TYPE]), self.schema(ordinal), self.layout.schema(self.schema_id))
        told = {
            CHANGE_TYPE: kinds,
            ORDINAL: pa.repeat(pa.scalar(ordinal, pa.int32()), rows.num_rows),
            SNAPSHOT: pa.repeat(pa.scalar(moment.snapshot, pa.int64()), rows.num_rows),
            TIMESTAMP: pa.repeat(
                pa.scalar(datetime.fromtimestamp(moment.timestamp_ms / 1000, UTC), pa.timestamp("us", "UTC")), rows.num_rows
            ),
        }
        for name, column in told.items():
            shown = shown.append_column(name, column)
        yield from as_spark(shown, self.arrow).to_batches(max_chunksize=64 * 1024)


def read_changes(spark: SparkSession, plan: Plan, steps: Mapping[int, Sequence[FileChange]]) -> DataFrame:
    """Return the row changes of all steps. Nothing is read before somebody looks at them."""
    ship_package(spark)
    meeting = {i: found for i, found in steps.items() if any(c.may_lose for c in found) and any(c.may_gain for c in found)}
    apart = {i: found for i, found in steps.items() if i not in meeting}
    session = for_jobs(spark)
    results = []
    if items := _packed(apart):
        results.append(session.range(0, len(items), 1, len(items)).mapInArrow(_Apart(plan, items), plan.output))
    if items := _packed(meeting):
        buckets = {i: max(1, -(-sum(c.bytes for c in found) // PARTITION_BYTES)) for i, found in meeting.items()}
        width = max(min(sum(buckets.values()), 4096), min(spark.sparkContext.defaultParallelism, len(items)))
        buckets = {i: max(n, width if len(meeting) == 1 else 1) for i, n in buckets.items()}
        blobs = session.range(0, len(items), 1, len(items)).mapInArrow(_Scatter(plan, items, buckets, width), _BLOBS)
        results.append(blobs.repartitionById(width, "partition").mapInArrow(_Gather(plan), plan.output))
    if not results:
        return session.createDataFrame([], plan.output)
    return results[0] if len(results) == 1 else results[0].union(results[1])


Item = tuple[int, Sequence[FileChange]]


def _packed(steps: Mapping[int, Sequence[FileChange]]) -> list[list[Item]]:
    """Pack file changes into tasks by the bytes that they make us read, keeping those of one step together."""
    tasks: list[list[Item]] = []
    room = 0
    for ordinal, found in steps.items():
        for change in found:
            size = change.bytes
            if not tasks or size > room:
                tasks.append([])
                room = PARTITION_BYTES
            room -= size
            if tasks[-1] and tasks[-1][-1][0] == ordinal:
                tasks[-1][-1] = (ordinal, [*tasks[-1][-1][1], change])
            else:
                tasks[-1].append((ordinal, [change]))
    return tasks


def as_spark(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give columns the types that Spark has for them: a uuid is its text."""
    columns = [
        pa.array([str(value) for value in column.to_pylist()], pa.string(), mask=column.is_null().to_numpy(zero_copy_only=False))
        if isinstance(column.type, pa.UuidType)
        else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names).cast(schema)


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class _Apart:
    """Read steps whose rows only come, or only leave."""

    plan: Plan
    items: Sequence[Sequence[Item]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for ordinal, found in self.items[number]:
                    for side, rows in _sides(self.plan, ordinal, found):
                        empty = rows.slice(0, 0)
                        yield from self.plan.finished(changes(Diff(*((rows, empty) if side == LEFT else (empty, rows)))), ordinal)


@dataclass(frozen=True)
class _Scatter:
    """Read steps in which rows leave and come, and send them to where their likes are."""

    plan: Plan
    items: Sequence[Sequence[Item]]
    buckets: Mapping[int, int]
    width: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for ordinal, found in self.items[number]:
                    for side, rows in _sides(self.plan, ordinal, found):
                        yield from self._blobs(ordinal, side, rows)

    def _blobs(self, ordinal: int, side: int, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        count = self.buckets[ordinal]
        places = (hashes(rows, self.plan.keys or None) % np.uint64(count)).astype(np.int64)
        order, starts = groups(places, count)
        rows = rows.take(pa.array(order)) if count > 1 else rows
        for bucket in range(count):
            part = rows.slice(starts[bucket], starts[bucket + 1] - starts[bucket])
            if part.num_rows:
                told = ((ordinal + bucket) % self.width, bucket, ordinal, side, to_blob(part))
                columns = [pa.array([v], f.type) for v, f in zip(told, _BLOBS_ARROW, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=_BLOBS_ARROW)


@dataclass(frozen=True)
class _Gather:
    """Cancel what was carried over, pair what was updated."""

    plan: Plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: dict[tuple[int, int], tuple[list[pa.Table], list[pa.Table]]] = defaultdict(lambda: ([], []))
        for batch in batches:
            for row in batch.to_pylist():
                held[row["ordinal"], row["bucket"]][row["side"]].append(from_blob(row["payload"]))
        for (ordinal, _), (left, came) in sorted(held.items()):
            either = (left or came)[0].slice(0, 0)
            diff = Diff(*(pa.concat_tables(side) if side else either for side in (left, came)))
            found = changes(cancel(diff), self.plan.keys)
            if found.num_rows:
                yield from self.plan.finished(found, ordinal)


def _sides(plan: Plan, ordinal: int, found: Sequence[FileChange]) -> Iterator[tuple[int, pa.Table]]:
    """Read the rows that left files and those that came into them."""
    schema = plan.schema(ordinal)
    for change in found:
        for side, wanted in plan.files.moved(change):
            for _, batch in plan.files.rows(change.file, schema, wanted):
                yield side, pa.Table.from_batches([batch])
