"""The epoch job: splits in, closed files out. Spark carries work items, Arrow carries rows.

One split, or splits whose keys never meet, take one stage:

    split ─▶ read ─▶ net ─▶ write ─▶ closed files

Otherwise workers net what they read and exchange Arrow blobs by key, never rows:

    split ─▶ read ─▶ net ─▶ blobs by key ══shuffle══▶ net ─▶ write ─▶ closed files

Rows of one file's record come back from the attempt of a task that Spark counts: a retried or
speculated attempt leaves only files that nobody has heard of.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from icefront.core.epochs import Epoch
from icefront.core.errors import IcefrontError, Stopped
from icefront.core.files import ClosedFile, deduplicate
from icefront.core.ports import EpochWriter, Reader, Report, Split
from icefront.kernels.net import from_blob, net, partition_by_key, to_blob
from icefront.spark.session import for_jobs, ship_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 64 * 1024 * 1024
# As types: Spark would ask the JVM to parse text, for every epoch.
_RESULT = StructType([StructField("kind", StringType()), StructField("payload", BinaryType())])
_BLOBS = StructType([StructField("bucket", IntegerType()), *_RESULT.fields])
_RESULT_ARROW = pa.schema([("kind", pa.string()), ("payload", pa.binary())])
_BLOBS_ARROW = pa.schema([("bucket", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())])
_FILE, _REPORT, _ERROR, _CHANGES = "file", "report", "error", "changes"


@dataclass(frozen=True, slots=True)
class Work:
    """What workers need to write one epoch of one target."""

    reader: Reader
    writer: EpochWriter
    epoch: Epoch
    schema: Schema
    keys: tuple[str, ...]
    sequence_by: str | None
    upsert: bool
    distribution: str = "auto"


@dataclass(frozen=True, slots=True)
class Written:
    """An epoch whose every split has reported."""

    files: tuple[ClosedFile, ...]
    reports: tuple[Report, ...]


def write_epoch(spark: SparkSession, work: Work, splits: Sequence[Split]) -> Written:
    """Write an epoch's files. It is complete or it raises; nothing becomes visible by it."""
    if not splits:
        return Written((), ())
    ship_package(spark)
    # Two changes of one key in one snapshot would both be visible: several tasks must exchange by key.
    alone = work.upsert and work.distribution == "none"
    exchange = work.upsert and not alone and (len(splits) > 1 or work.distribution == "hash")
    items = for_jobs(spark).range(0, 1 if alone else len(splits), 1, 1 if alone else len(splits))
    if exchange:
        buckets = max(2, -(-sum(s.bytes for s in splits) // PARTITION_BYTES))
        blobs = items.mapInArrow(_on_items([(split,) for split in splits], _BlobStage(work, buckets)), _BLOBS)
        rows = blobs.repartitionById(buckets, "bucket").mapInArrow(_MergeStage(work), _RESULT)
    else:
        stages = [tuple(splits)] if alone else [(split,) for split in splits]
        rows = items.mapInArrow(_on_items(stages, _WholeStage(work)), _RESULT)
    return _collect(_run(rows), len(splits))


def infer_columns(spark: SparkSession, reader: Reader, epoch: Epoch, splits: Sequence[Split]) -> tuple[Report, ...]:
    """Ask every split which columns a table made for it would have."""
    ship_package(spark)
    items = for_jobs(spark).range(0, len(splits), 1, max(1, len(splits)))
    rows = items.mapInArrow(_on_items([(split,) for split in splits], _InferStage(reader, epoch)), _RESULT)
    return _collect(_run(rows), len(splits)).reports


def _run(rows: DataFrame) -> list[Any]:
    """Run the job; what Spark itself could not do (a full disk, lost executors) is a named stop."""
    try:
        return list(rows.collect())
    except (PySparkException, Py4JJavaError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next(
            (line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[0] if lines else repr(error)
        )
        raise Stopped(
            f"Spark could not write the epoch: {reason[:300]}",
            "nothing of it is visible: see spark.log beside the state, then run again",
        ) from error


def _collect(rows: Iterable[Any], expected: int) -> Written:
    files: list[ClosedFile] = []
    reports: list[Report] = []
    errors: list[tuple[int, IcefrontError]] = []
    kinds: dict[str, list[Any]] = {_FILE: files, _REPORT: reports, _ERROR: errors}
    for row in rows:
        value = pickle.loads(bytes(row["payload"]))  # noqa: S301 — written by our own workers
        kinds[row["kind"]].append(value)
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
    if (found := {r.split for r in reports}) != set(range(expected)):
        raise RuntimeError(f"splits {sorted(set(range(expected)) - found)} did not report")
    return Written(deduplicate(files), tuple(sorted(reports, key=lambda r: r.split)))


# ── in workers ─────────────────────────────────────────────────────────────────────────────
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _on_items:  # noqa: N801 — reads as what it is: a stage on work items
    """Run a stage on each work item of a task: one split, as a rule."""

    items: Sequence[tuple[Split, ...]]
    stage: Callable[[tuple[Split, ...]], Iterator[Row]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = _BLOBS_ARROW if isinstance(self.stage, _BlobStage) else _RESULT_ARROW
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _batches(self._run(self.items[number]), schema)

    def _run(self, splits: tuple[Split, ...]) -> Iterator[Row]:
        first = splits[0].number
        prefix = (first,) if isinstance(self.stage, _BlobStage) else ()
        try:
            yield from self.stage(splits)
        except IcefrontError as error:
            # Told as a value: Spark would retry a bad row and bury its message in a Java trace.
            yield (*prefix, _ERROR, pickle.dumps((first, error)))


def _batches(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One batch per row: a row may be a blob of megabytes."""
    for row in rows:
        yield pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(row, schema, strict=True)], schema=schema)


def attempt_id() -> str:
    """Name this attempt of a task: no path is ever written twice, not even by a woken zombie."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True)
class _WholeStage:
    """Read, net and write what one task has."""

    work: Work

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Row]:
        reports: list[Report] = []
        tables = _tables(self.work, splits, reports)
        if self.work.upsert:
            held = list(tables)
            tables = iter([_net(self.work, held)] if held else [])
        written = list(self.work.writer.write(tables, splits[0].number, attempt_id()))
        if not any(report.wishes for report in reports):
            yield from ((_FILE, pickle.dumps(file)) for file in written)
        yield from ((_REPORT, pickle.dumps(report)) for report in reports)


@dataclass(frozen=True, slots=True)
class _BlobStage:
    """Read a split, net each piece, and hand it on as blobs by key."""

    work: Work
    buckets: int

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Row]:
        reports: list[Report] = []
        for table in _tables(self.work, splits, reports):
            for bucket, part in enumerate(partition_by_key(self._netted(table), self.work.keys, self.buckets)):
                if part.num_rows:
                    yield (bucket, _CHANGES, to_blob(part))
        yield from ((report.split, _REPORT, pickle.dumps(report)) for report in reports)

    def _netted(self, piece: pa.Table) -> pa.Table:
        """Send as little as possible. By a sequence of the user's nothing may be left out: a delete in another piece decides what counts."""
        return piece if self.work.sequence_by else _net(self.work, [piece])


@dataclass(frozen=True, slots=True)
class _MergeStage:
    """Net what all splits sent for these keys, and write it; reports and errors pass through."""

    work: Work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _batches(self._run(batches), _RESULT_ARROW)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        tables: list[pa.Table] = []
        bucket = -1
        incomplete = False
        for batch in batches:
            for number, kind, payload in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if kind == _CHANGES:
                    bucket = number
                    tables.append(from_blob(payload))
                else:
                    incomplete = incomplete or kind == _ERROR
                    yield (kind, payload)
        if tables and not incomplete:
            netted = _net(self.work, tables)
            tables.clear()
            yield from ((_FILE, pickle.dumps(f)) for f in self.work.writer.write([netted], bucket, attempt_id()))


@dataclass(frozen=True, slots=True)
class _InferStage:
    reader: Reader
    epoch: Epoch

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Row]:
        yield from ((_REPORT, pickle.dumps(self.reader.infer(split, self.epoch))) for split in splits)


def _tables(work: Work, splits: Sequence[Split], reports: list[Report]) -> Iterator[pa.Table]:
    """Read splits; their reports are put aside as they come."""
    for split in splits:
        for item in work.reader.read(split, work.epoch, work.schema):
            if isinstance(item, Report):
                reports.append(item)
            elif item.num_rows:
                yield item


def _net(work: Work, tables: list[pa.Table]) -> pa.Table:
    return net(pa.concat_tables(tables), work.keys, work.sequence_by)
