"""The changes job: file changes in, named row changes out.

A step that only adds rows, or only removes some, takes one stage. Where rows leave and come they have to meet: workers exchange Arrow
blobs by key (or by whole row), then cancel what was carried over and pair what was updated.

    file changes ─▶ read ─┬───────────────────────────────────────────────────▶ rows
                          └─ blobs by key ══shuffle══▶ cancel ─▶ pair images ─▶ rows

Where row lineage tells what was carried over, only the rest is read: see `lineage`. Files that are not Parquet are read by Iceberg
itself: see `staged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from icefront.iceberg import history
from icefront.iceberg.lineage import rewrites
from icefront.iceberg.statediff import FileChange, meets
from icefront.kernels.casts import recast
from icefront.kernels.changelog import CHANGE_TYPE, Diff, Path, cancel, changes, rest
from icefront.kernels.datafiles import BATCH_ROWS, LEFT, Files, Layout, project
from icefront.spark import exchange, lineage
from icefront.spark.exchange import BLOBS, Spread, handed_out, met, work
from icefront.spark.session import for_jobs, ship_package
from icefront.spark.staged import Staged, scans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_BYTES, TASK_BYTES = 64 * 1024 * 1024, 4 * 1024 * 1024
"""What a task reads at most, and what is worth a task of its own."""
ORDINAL, SNAPSHOT, TIMESTAMP = "_change_ordinal", "_commit_snapshot_id", "_commit_timestamp"
OUTPUT = (
    StructField(CHANGE_TYPE, StringType(), nullable=False),
    StructField(ORDINAL, IntegerType(), nullable=False),
    StructField(SNAPSHOT, LongType(), nullable=False),
    StructField(TIMESTAMP, TimestampType(), nullable=False),
)


@dataclass(frozen=True)
class Moment:
    """What workers must know of a step: which snapshot it is, the schema that its rows are compared in, and that of the state before."""

    snapshot: int
    timestamp_ms: int
    schema_id: int
    schema_before: int


@dataclass(frozen=True)
class Plan:
    """All that workers need. Plain values: cheap to pickle."""

    table: str
    layout: Layout
    io_properties: Mapping[str, str]
    location: str
    moments: Mapping[int, Moment]
    keys: tuple[int, ...]
    """What tells rows apart, by field id: names may be others in each step."""
    schema_id: int
    output: StructType
    by_row_id: bool = False
    """Whether row ids tell rows apart; in steps without lineage nothing does then."""
    lineage: frozenset[int] = frozenset()
    """The ordinals of steps in which all rows have ids."""
    apart: frozenset[int] = frozenset()
    """Those of steps in which no row that left is equal to one that came, and which nothing has to tell apart."""

    @cached_property
    def files(self) -> Files:
        return Files(load_file_io(dict(self.io_properties), self.location), self.layout)

    @cached_property
    def arrow(self) -> pa.Schema:
        return to_arrow_schema(self.output)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in {"files", "arrow"}}

    def meets(self, ordinal: int, found: Sequence[FileChange]) -> bool:
        """Say whether rows of a step, or of some of its files, have to meet: they may be on both sides, and some of them equal or paired."""
        return ordinal not in self.apart and meets(found)

    def schema(self, ordinal: int) -> Schema:
        return self.layout.schema(self.moments[ordinal].schema_id)

    def key_paths(self, ordinal: int) -> Sequence[Path]:
        """Say where a step's rows have the keys; with one that the step does not know nothing tells them apart."""
        fields = self.schema(ordinal).fields
        paths = [path for key in self.keys if (path := history.path(fields, key))]
        return paths if len(paths) == len(self.keys) else ()

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
        yield from recast(shown, self.arrow).to_batches(max_chunksize=64 * 1024)


def read_changes(spark: SparkSession, plan: Plan, steps: Mapping[int, Sequence[FileChange]]) -> DataFrame:
    """Return the row changes of all steps. Nothing is read before somebody looks at them."""
    ship_package(spark)
    meeting = {i: found for i, found in steps.items() if plan.meets(i, found)}
    apart = {i: found for i, found in steps.items() if i not in meeting}
    session = for_jobs(spark)
    results = [frame.mapInArrow(_Apart(plan, rows), plan.output) for frame, rows in _reading(spark, plan, apart)]
    traced = {i: found for i, found in meeting.items() if i in plan.lineage and (plan.by_row_id or rewrites(found))}
    by_values = {i: found for i, found in meeting.items() if i not in traced}
    if reading := _reading(spark, plan, by_values):
        spread = _spread(spark, by_values, _packed(by_values, _width(spark)))
        blobs = reduce(DataFrame.union, (frame.mapInArrow(_Scatter(plan, rows, spread), BLOBS) for frame, rows in reading))
        results.append(blobs.repartitionById(spread.width, "partition").mapInArrow(_Gather(plan), plan.output))
    if items := _packed(traced, _width(spark)):
        spread = _spread(spark, traced, items)
        blobs = lineage.residue(session, plan, traced, items, spread)
        if plan.by_row_id:
            results.append(lineage.paired(blobs, plan, spread))
        else:
            results.append(blobs.repartitionById(spread.width, "partition").mapInArrow(_Gather(plan), plan.output))
    if not results:
        return spark.createDataFrame([], plan.output)
    return _handed_over(reduce(DataFrame.union, results), spark)


def _handed_over(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Give a frame to the caller's session, planned in our way: its views and settings are the caller's."""
    made = frame._jdf  # noqa: SLF001 — PySpark has no other way from one session to another
    own = spark._jsparkSession  # noqa: SLF001
    return DataFrame(own.internalCreateDataFrame(made.queryExecution().toRdd(), made.schema(), False), spark)


Item = tuple[int, list[FileChange]]
Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[int, int, pa.Table]]]
"""Makes rows, with the ordinal of their step and their side, of what a frame hands to a worker."""


def _reading(spark: SparkSession, plan: Plan, steps: Mapping[int, Sequence[FileChange]]) -> list[tuple[DataFrame, Rows]]:
    """Return what is to be read of some steps, and how: in our way, and in Iceberg's where the files want that."""
    schemas = {ordinal: (plan.moments[ordinal].schema_before, plan.moments[ordinal].schema_id) for ordinal in steps}
    found: list[tuple[DataFrame, Rows]] = [
        (frame, Staged(plan.layout, schema_id)) for schema_id, frame in scans(spark, plan.table, plan.layout, steps, schemas)
    ]
    if items := _packed(steps, _width(spark)):
        found.append((handed_out(for_jobs(spark), items), _Own(plan)))
    return found


def _spread(spark: SparkSession, steps: Mapping[int, Sequence[FileChange]], items: Sequence[Sequence[Item]]) -> Spread:
    sizes = {ordinal: sum(change.bytes for change in found) for ordinal, found in steps.items()}
    return exchange.spread(sizes, PARTITION_BYTES, min(_width(spark), len(items)))


def _width(spark: SparkSession) -> int:
    return int(spark.sparkContext.defaultParallelism)


def _packed(steps: Mapping[int, Sequence[FileChange]], parallelism: int) -> list[list[Item]]:
    """Pack what we read ourselves into tasks by its bytes, keeping file changes of one step together."""
    own = {ordinal: [c for c in found if not c.is_foreign] for ordinal, found in steps.items()}
    share = sum(change.bytes for found in own.values() for change in found) // max(1, parallelism)
    limit = min(max(share, TASK_BYTES), PARTITION_BYTES)
    tasks: list[list[Item]] = []
    room = 0
    for ordinal, found in own.items():
        for part in _parts(found):
            size = sum(change.bytes for change in part)
            if not tasks or size > room + limit // 8:
                tasks.append([])
                room = limit
            room -= size
            if not tasks[-1] or tasks[-1][-1][0] != ordinal:
                tasks[-1].append((ordinal, []))
            tasks[-1][-1][1].extend(part)
    return tasks


def _parts(found: Sequence[FileChange]) -> list[list[FileChange]]:
    """Split a step. Of one that rewrote files, what it read and what it wrote should be read together."""
    rewritten: dict[int, list[FileChange]] = {}
    others: list[list[FileChange]] = []
    for change in sorted(found, key=_place):
        if change.before is None or change.after is None:
            rewritten.setdefault(change.kin, []).append(change)
        else:
            others.append([change])
    return [*others, *(part for kin in rewritten.values() for part in _cut(kin))]


def _cut(kin: Sequence[FileChange]) -> list[list[FileChange]]:
    """Keep files that belong together together, as long as a task can hold them.

    If it cannot: rewriting mostly keeps partitions and the order of rows, so where a tenth of the old files ends, a tenth of the new
    ones does.
    """
    old, new = [c for c in kin if c.before is not None], [c for c in kin if c.before is None]
    if not (old and new):
        return [[change] for change in kin]
    parts: list[list[FileChange]] = []
    reach, room = 0.0, 0
    for start, end, change in sorted((*_spans(old), *_spans(new)), key=lambda span: span[:2]):
        if not parts or start + (end - start) / 10 > reach or change.bytes > room:
            parts.append([])
            room = 2 * PARTITION_BYTES  # of either side as much as one has elsewhere
        parts[-1].append(change)
        reach = max(reach, end)
        room -= change.bytes
    return parts


def _spans(files: Sequence[FileChange]) -> Iterator[tuple[float, float, FileChange]]:
    """Say where files begin and end if all of them are put one after the other, as shares of the whole."""
    total, passed = max(1, sum(change.bytes for change in files)), 0
    for change in files:
        yield passed / total, (passed + change.bytes) / total, change
        passed += change.bytes


def _place(change: FileChange) -> tuple[int, str, str]:
    return change.file.spec_id, repr(change.file.partition), change.file.path


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class _Own:
    """Read file changes in our own way, in Arrow."""

    plan: Plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.Table]]:
        for _, items in work(batches):
            for ordinal, found in items:
                for side, rows in _sides(self.plan, ordinal, found):
                    yield ordinal, side, rows


@dataclass(frozen=True)
class _Apart:
    """Read steps whose rows only come, or only leave."""

    plan: Plan
    rows: Rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ordinal, side, rows in self.rows(batches):
            empty = rows.slice(0, 0)
            yield from self.plan.finished(changes(Diff(*((rows, empty) if side == LEFT else (empty, rows)))), ordinal)


@dataclass(frozen=True)
class _Scatter:
    """Read steps in which rows leave and come, and send them to where their likes are."""

    plan: Plan
    rows: Rows
    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ordinal, side, rows in _pooled(self.rows(batches)):
            yield from self.spread.blobs(ordinal, side, rows, self.plan.key_paths(ordinal))


def _pooled(found: Iterator[tuple[int, int, pa.Table]]) -> Iterator[tuple[int, int, pa.Table]]:
    """Put rows of one step and side that come one after the other together: a few of them are not worth a blob."""
    for (ordinal, side), together in groupby(found, key=lambda rows: rows[:2]):
        held: list[pa.Table] = []
        for _, _, rows in together:
            held.append(rows)
            if sum(table.num_rows for table in held) >= BATCH_ROWS:
                yield ordinal, side, pa.concat_tables(held)
                held = []
        if held:
            yield ordinal, side, pa.concat_tables(held)


@dataclass(frozen=True)
class _Gather:
    """Cancel what was carried over, pair what was updated."""

    plan: Plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ordinal, diff in met(batches):
            found = changes(cancel(diff), self.plan.key_paths(ordinal))
            if found.num_rows:
                yield from self.plan.finished(found, ordinal)


def _sides(plan: Plan, ordinal: int, found: Sequence[FileChange]) -> Iterator[tuple[int, pa.Table]]:
    """Read the rows that left files and those that came into them. What was carried over from one to another need not travel."""
    schema = plan.schema(ordinal)
    rows = (
        (side, pa.Table.from_batches([batch]))
        for change in found
        for side, wanted in plan.files.moved(change)
        for _, batch in plan.files.rows(change.file, schema, wanted)
    )
    return rest(rows) if plan.meets(ordinal, found) else rows
