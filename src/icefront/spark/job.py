"""The epoch job: splits in, closed files out. Spark carries work items, Arrow carries rows.

One split, or splits whose keys never meet, take one stage:

    split ─▶ read ─▶ net ─▶ write ─▶ closed files

Otherwise workers net what they read and exchange Arrow blobs by key, never rows:

    split ─▶ read ─▶ net ─▶ blobs by key ══shuffle══▶ net ─▶ write ─▶ closed files

What Spark sees are a few work items and blobs, so nothing is to be gained from planning them as queries: they are plain RDDs, which
start a job in half the time.

Rows of one file's record come back from the attempt of a task that Spark counts: a retried or
speculated attempt leaves only files that nobody has heard of.
"""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException

from icefront.core.epochs import Epoch
from icefront.core.errors import IcefrontError, Stopped
from icefront.core.files import ClosedFile, deduplicate
from icefront.core.ports import EpochWriter, Reader, Report, Split
from icefront.kernels.net import from_blob, net, partition_by_key, to_blob
from icefront.spark.session import ship_package

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

PARTITION_BYTES = 64 * 1024 * 1024
_FILE, _REPORT, _ERROR, _CHANGES = "file", "report", "error", "changes"
Told = tuple[str, bytes]
"""What workers tell: of which kind it is, and the thing itself."""
Sent = tuple[int, Told]
"""The same on its way: the number of a split, or of the bucket that it is for."""
T = TypeVar("T")
Stage = Callable[[tuple[Split, ...]], Iterator[Sent]]


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
    total = sum(split.bytes for split in splits)
    # One split may be a compressed file of any size, more than a task should hold.
    several = len(splits) > 1 or total > PARTITION_BYTES or work.distribution == "hash"
    items = [tuple(splits)] if alone else [(split,) for split in splits]
    if work.upsert and several and not alone:
        buckets = max(2, -(-total // PARTITION_BYTES))
        blobs = _each(spark, items, _BlobStage(work, buckets))
        told = blobs.partitionBy(buckets, _as_it_is).mapPartitions(_MergeStage(work))
    else:
        told = _each(spark, items, _WholeStage(work)).values()
    return _collect(run(told, "write the epoch"), len(splits))


def infer_columns(spark: SparkSession, reader: Reader, epoch: Epoch, splits: Sequence[Split]) -> tuple[Report, ...]:
    """Ask every split which columns a table made for it would have."""
    ship_package(spark)
    told = _each(spark, [(split,) for split in splits], _InferStage(reader, epoch)).values()
    return _collect(run(told, "write the epoch"), len(splits)).reports


def _each(spark: SparkSession, items: Sequence[tuple[Split, ...]], stage: Stage) -> RDD[Sent]:
    """Run a stage on each item, in a task of its own."""
    return spark.sparkContext.parallelize(range(len(items)), max(1, len(items))).mapPartitions(_OnItems(items, stage))


def _as_it_is(bucket: int) -> int:
    return bucket


def run(told: RDD[T], what: str) -> list[T]:
    """Run a job; what Spark itself could not do (a full disk, lost executors) is a named stop."""
    try:
        return list(told.collect())
    except (PySparkException, Py4JJavaError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next(
            (line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[0] if lines else repr(error)
        )
        raise Stopped(
            f"Spark could not {what}: {reason[:300]}",
            "nothing of it is visible: see spark.log beside the state, then run again",
        ) from error


def _collect(told: Iterable[Told], expected: int) -> Written:
    files: list[ClosedFile] = []
    reports: list[Report] = []
    errors: list[tuple[int, IcefrontError]] = []
    kinds: dict[str, list[Any]] = {_FILE: files, _REPORT: reports, _ERROR: errors}
    for kind, payload in told:
        kinds[kind].append(pickle.loads(payload))  # noqa: S301 — written by our own workers
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
    if (found := {r.split for r in reports}) != set(range(expected)):
        raise RuntimeError(f"splits {sorted(set(range(expected)) - found)} did not report")
    return Written(deduplicate(files), tuple(sorted(reports, key=lambda r: r.split)))


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _OnItems:
    """Run a stage on each work item of a task: one split, as a rule."""

    items: Sequence[tuple[Split, ...]]
    stage: Stage

    def __call__(self, numbers: Iterable[int]) -> Iterator[Sent]:
        for splits in (self.items[number] for number in numbers):
            first = splits[0].number
            try:
                yield from self.stage(splits)
            except IcefrontError as error:
                # Told as a value: Spark would retry a bad row and bury its message in a Java trace.
                yield first, (_ERROR, pickle.dumps((first, error)))


def attempt_id() -> str:
    """Name this attempt of a task: no path is ever written twice, not even by a woken zombie."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True)
class _WholeStage:
    """Read, net and write what one task has."""

    work: Work

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Sent]:
        reports: list[Report] = []
        tables = _tables(self.work, splits, reports)
        if self.work.upsert:
            held = list(tables)
            tables = iter([_net(self.work, held)] if held else [])
        first = splits[0].number
        written = list(self.work.writer.write(tables, first, attempt_id()))
        if not any(report.wishes for report in reports):
            yield from ((first, (_FILE, pickle.dumps(file))) for file in written)
        yield from ((report.split, (_REPORT, pickle.dumps(report))) for report in reports)


@dataclass(frozen=True, slots=True)
class _BlobStage:
    """Read a split, net each piece, and hand it on as blobs by key."""

    work: Work
    buckets: int

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Sent]:
        reports: list[Report] = []
        for table in _tables(self.work, splits, reports):
            for bucket, part in enumerate(partition_by_key(self._netted(table), self.work.keys, self.buckets)):
                if part.num_rows:
                    yield bucket, (_CHANGES, to_blob(part))
        yield from ((report.split, (_REPORT, pickle.dumps(report))) for report in reports)

    def _netted(self, piece: pa.Table) -> pa.Table:
        """Send as little as possible. By a sequence of the user's nothing may be left out: a delete in another piece decides what counts."""
        return piece if self.work.sequence_by else _net(self.work, [piece])


@dataclass(frozen=True, slots=True)
class _MergeStage:
    """Net what all splits sent for these keys, and write it; reports and errors pass through."""

    work: Work

    def __call__(self, sent: Iterable[Sent]) -> Iterator[Told]:
        tables: list[pa.Table] = []
        bucket = -1
        incomplete = False
        for number, (kind, payload) in sent:
            if kind == _CHANGES:
                bucket = number
                tables.append(from_blob(payload))
            else:
                incomplete = incomplete or kind == _ERROR
                yield kind, payload
        if tables and not incomplete:
            netted = _net(self.work, tables)
            tables.clear()
            yield from ((_FILE, pickle.dumps(f)) for f in self.work.writer.write([netted], bucket, attempt_id()))


@dataclass(frozen=True, slots=True)
class _InferStage:
    reader: Reader
    epoch: Epoch

    def __call__(self, splits: tuple[Split, ...]) -> Iterator[Sent]:
        for split in splits:
            yield split.number, (_REPORT, pickle.dumps(self.reader.infer(split, self.epoch)))


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
