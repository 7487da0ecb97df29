"""Very many manifests, read by Spark's workers: the driver gets columns back, in one piece per manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from icefront.iceberg.live import Entries, Ids, Read, Ref, entries
from icefront.spark.session import ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES, TASK_MANIFESTS = 16 << 20, 64
"""What one task reads at most; starting it costs as much as reading some megabytes."""


def read_in_spark(spark: SparkSession, io_properties: Mapping[str, str], location: str) -> Read:
    """Make a way of reading manifests for the driver to use when there are very many."""

    def read(manifests: Sequence[Ref], ids: Ids) -> Sequence[Entries]:
        ship_package(spark)
        tasks = max(-(-sum(m.bytes for m in manifests) // TASK_BYTES), -(-len(manifests) // TASK_MANIFESTS))
        refs = spark.sparkContext.parallelize(manifests, tasks)
        return list(refs.mapPartitions(_Reading(io_properties, location, ids)).collect())

    return read


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Reading:
    io_properties: Mapping[str, str]
    location: str
    ids: Ids

    def __call__(self, manifests: Iterable[Ref]) -> Iterator[Entries]:
        io = load_file_io(dict(self.io_properties), self.location)
        return (entries(io, manifest, self.ids) for manifest in manifests)
