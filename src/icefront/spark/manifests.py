"""Very many manifests, read by Spark's workers: the driver gets columns back, in one piece per manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from icefront.iceberg.live import Entries, Ids, Read, Ref, entries, missing
from icefront.spark.job import run
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
        told: list[Entries | _Gone] = run(refs.mapPartitions(_Reading(io_properties, location, ids)), "read manifests")
        if gone := next((manifest for manifest in told if isinstance(manifest, _Gone)), None):
            raise missing(gone.path)
        return [found for found in told if isinstance(found, Entries)]

    return read


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Gone:
    """A manifest that is not there. Told as a value: in Spark's own error nobody finds which one it is."""

    path: str


@dataclass(frozen=True, slots=True)
class _Reading:
    io_properties: Mapping[str, str]
    location: str
    ids: Ids

    def __call__(self, manifests: Iterable[Ref]) -> Iterator[Entries | _Gone]:
        io = load_file_io(dict(self.io_properties), self.location)
        for manifest in manifests:
            try:
                yield entries(io, manifest, self.ids)
            except FileNotFoundError:
                yield _Gone(manifest.path)
