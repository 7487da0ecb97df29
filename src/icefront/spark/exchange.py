"""What the driver hands to workers, and workers to one another: blobs under numbers, the latter by Spark's shuffle.

Spark carries the numbers; rows, and whatever else there is to say, are Arrow or pickles that it does not look into.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from icefront.kernels.changelog import Diff, Path, hashes
from icefront.kernels.codes import groups
from icefront.kernels.net import from_blob, to_blob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOBS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("bucket", IntegerType()),
        StructField("ordinal", IntegerType()),
        StructField("side", IntegerType()),
        StructField("payload", BinaryType()),
    ]
)
_ARROW = pa.schema(
    [("partition", pa.int32()), ("bucket", pa.int32()), ("ordinal", pa.int32()), ("side", pa.int32()), ("payload", pa.binary())]
)


_WORK = StructType([StructField("task", IntegerType()), StructField("work", BinaryType())])
_WORK_ARROW = pa.schema([("task", pa.int32()), ("work", pa.binary())])


def handed_out(session: SparkSession, tasks: Sequence[object]) -> DataFrame:
    """Make a frame that gives each task its own work and nobody else's: all of it may be a hundred thousand files."""
    rows = [pa.record_batch([pa.array([i], pa.int32()), pa.array([pickle.dumps(t)])], _WORK_ARROW) for i, t in enumerate(tasks)]
    # PySpark makes a partition of each batch, if it does not take them for a small table of the driver's.
    return session.createDataFrame(pa.Table.from_batches(rows), _WORK)


def work(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
    """Return what was handed out to a worker, with the task's number."""
    for batch in batches:
        for row in batch.to_pylist():
            yield row["task"], pickle.loads(row["work"])  # noqa: S301 — written by our own driver


def blob(partition: int, bucket: int, ordinal: int, side: int, payload: bytes) -> pa.RecordBatch:
    told = (partition, bucket, ordinal, side, payload)
    return pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(told, _ARROW, strict=True)], schema=_ARROW)


@dataclass(frozen=True)
class Spread:
    """Over how many buckets each step is spread, by its ordinal; and over how many partitions all of them."""

    buckets: Mapping[int, int]
    width: int

    def partition(self, ordinal: int, bucket: int) -> int:
        return (ordinal + bucket) % self.width

    def blobs(self, ordinal: int, side: int, rows: pa.Table, columns: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        """Send rows to where their likes are: those with equal values in some columns, or without any in all of them."""
        count = self.buckets[ordinal]
        places = (hashes(rows, columns) % np.uint64(count)).astype(np.int64)
        order, starts = groups(places, count)
        rows = rows.take(pa.array(order)) if count > 1 else rows
        for bucket in range(count):
            part = rows.slice(starts[bucket], starts[bucket + 1] - starts[bucket])
            if part.num_rows:
                yield blob(self.partition(ordinal, bucket), bucket, ordinal, side, to_blob(part))


def spread(sizes: Mapping[int, int], limit: int, least: int) -> Spread:
    """Spread steps so that no bucket has more than `limit` of their size; a single step over at least so many."""
    buckets = {ordinal: max(1, -(-size // limit)) for ordinal, size in sizes.items()}
    width = max(min(sum(buckets.values()), 4096), least)
    return Spread({i: max(n, width if len(sizes) == 1 else 1) for i, n in buckets.items()}, width)


def met(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Diff]]:
    """Put together what was sent to a partition: the rows of each step's buckets that left, and those that came."""
    held: dict[tuple[int, int], tuple[list[pa.Table], list[pa.Table]]] = defaultdict(lambda: ([], []))
    for batch in batches:
        for row in batch.to_pylist():
            held[row["ordinal"], row["bucket"]][row["side"]].append(from_blob(row["payload"]))
    for (ordinal, _), (left, came) in sorted(held.items(), key=lambda item: item[0]):
        empty = (left or came)[0].slice(0, 0)
        yield ordinal, Diff(*(pa.concat_tables(side) if side else empty for side in (left, came)))
