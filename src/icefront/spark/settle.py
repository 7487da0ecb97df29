"""The settle job: unsettled files in, new deletes out.

unsettled files ─▶ read their key columns, probe the deletes' keys ─▶ positions of dead rows ─┬─ format 3: vectors
                                                                                             └─ format 2: position deletes
"""

from __future__ import annotations

import io
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.table.locations import load_location_provider

from icefront.iceberg import settling
from icefront.iceberg.settling import NewDelete, Unsettled
from icefront.kernels.datafiles import Files, Layout
from icefront.kernels.vectors import Positions, puffin
from icefront.spark.session import living, ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_BYTES = 256 * 1024 * 1024
"""What one task looks through: of a file only the key columns are read."""
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


@dataclass(frozen=True)
class Work:
    """What workers need. Plain values: cheap to pickle."""

    layout: Layout
    io_properties: Mapping[str, str]
    location: str
    properties: Mapping[str, str]

    @cached_property
    def files(self) -> Files:
        return Files(load_file_io(dict(self.io_properties), self.location), self.layout)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "files"}

    def dead(self, unsettled: Unsettled) -> Positions:
        """Return the rows that a new delete of a file has to name; none when no equality delete names a row that lives."""
        known = self.files.dead(unsettled.file, unsettled.others)
        named = self.files.dead(unsettled.file, unsettled.equality)
        return settling.dead(named, known, self.layout.format_version)

    def write(self, found: Sequence[tuple[Unsettled, Positions]]) -> Iterator[NewDelete]:
        if self.layout.format_version > 2:
            content, placed = puffin((unsettled.file.path, positions) for unsettled, positions in found)
            path = self._put("puffin", content)
            for (unsettled, _), at in zip(found, placed, strict=True):
                yield NewDelete(unsettled, path, len(content), at.count, at.offset, at.length)
            return
        for unsettled, positions in found:
            content = _position_deletes(unsettled.file.path, positions)
            yield NewDelete(unsettled, self._put("parquet", content), len(content), len(positions))

    def _put(self, suffix: str, content: bytes) -> str:
        """Write a file under a name that nobody had or will have."""
        places = load_location_provider(self.location, dict(self.properties))
        path = places.new_data_location(f"settled-{uuid.uuid4()}-deletes.{suffix}")
        with self.files.io.new_output(path).create() as stream:
            stream.write(content)
        return path


def _position_deletes(path: str, positions: Positions) -> bytes:
    rows = pa.table([pa.array([path], pa.string()).take(pa.array(np.zeros(len(positions), np.int64))), positions], _POSITIONS)
    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd", store_schema=False)
    return content.getvalue()


def find_dead(spark: SparkSession, work: Work, files: Sequence[Unsettled]) -> list[NewDelete]:
    """Find the dead rows of files and write them down; nothing becomes visible by it."""
    ship_package(spark)
    tasks = _packed(files, spark.sparkContext.defaultParallelism)
    told = spark.sparkContext.parallelize([pickle.dumps(task) for task in tasks], len(tasks)).mapPartitions(_Stage(work))
    with living(spark):
        return [pickle.loads(new) for new in told.collect()]  # noqa: S301 — written by our own workers


def _packed(files: Sequence[Unsettled], parallelism: int) -> list[list[Unsettled]]:
    """Pack neighbours into tasks by bytes: they share deletes."""
    limit = min(PARTITION_BYTES, -(-sum(unsettled.bytes for unsettled in files) // max(1, parallelism)))
    tasks: list[list[Unsettled]] = []
    room = 0
    for unsettled in files:
        if not tasks or unsettled.bytes > room:
            tasks.append([])
            room = limit
        room -= unsettled.bytes
        tasks[-1].append(unsettled)
    return tasks


@dataclass(frozen=True)
class _Stage:
    """Settle each file of a task."""

    work: Work

    def __call__(self, tasks: Iterator[bytes]) -> Iterator[bytes]:
        for task in tasks:
            files: list[Unsettled] = pickle.loads(task)  # noqa: S301 — written by our own driver
            dead = [(unsettled, self.work.dead(unsettled)) for unsettled in files]
            if found := [(unsettled, positions) for unsettled, positions in dead if len(positions)]:
                yield from (pickle.dumps(new) for new in self.work.write(found))
