"""The settle job: unsettled files in, new deletes out.

unsettled files ─▶ read their key columns, probe the deletes' keys ─▶ positions of dead rows ─┬─ format 3: vectors
                                                                                             └─ format 2: position deletes
"""

from __future__ import annotations

import io
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.table.locations import load_location_provider

from icefront.core.errors import FilesGone, Stopped
from icefront.iceberg import described, settling
from icefront.iceberg.described import DeleteChange
from icefront.iceberg.settling import NewDelete, Unsettled
from icefront.iceberg.view import View
from icefront.kernels.datafiles import Files, Layout
from icefront.kernels.vectors import Positions, puffin
from icefront.spark.job import run
from icefront.spark.session import living, ship_package

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

    from icefront.core.files import ClosedFile
    from icefront.iceberg.java import JavaObject, JavaTable
    from icefront.iceberg.live import DeleteEntry, Manifests

PARTITION_BYTES = 256 * 1024 * 1024
"""What one task looks through: of a file only the key columns are read."""
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


@dataclass(frozen=True, slots=True)
class _Written:
    """A new delete as workers tell of it: the data file by its path, since a file may have thousands of deletes."""

    file: str
    path: str
    size: int
    count: int
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class _Gone:
    """A file that is not there. Told as a value: Spark would try again, and bury which one it is in a Java trace."""

    path: str


@dataclass(frozen=True)
class Work:
    """What workers need. Plain values: cheap to pickle."""

    layout: Layout
    io_properties: Mapping[str, str]
    location: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, view: View) -> Work:
        return cls(view.layout, view.io_properties, view.metadata.location, view.metadata.properties)

    @cached_property
    def files(self) -> Files:
        return Files(load_file_io(dict(self.io_properties), self.location), self.layout)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "files"}

    def dead(self, unsettled: Unsettled) -> Positions:
        """Return the rows that a new delete of a file has to name; none when no equality delete names a row that lives."""
        known = self.files.dead(unsettled.file, unsettled.others)
        named = self.files.dead(unsettled.file, unsettled.equality)
        return settling.dead(named, known, for_all=unsettled.stands_for_all(self.layout.format_version))

    def gone(self, files: Sequence[Unsettled]) -> str | None:
        """Name a file that is to be read and is not there."""
        paths = dict.fromkeys(path for u in files for path in (u.file.path, *(delete.path for delete in u.deletes)))
        return next((path for path in paths if not self.files.io.new_input(path).exists()), None)

    def write(self, found: Mapping[str, Positions]) -> Iterator[_Written]:
        """Write dead rows of data files down, given by path."""
        if self.layout.format_version > 2:
            content, placed = puffin(found.items())
            path = self._put("puffin", content)
            for at in placed:
                yield _Written(at.referenced, path, len(content), at.count, at.offset, at.length)
            return
        for file, positions in found.items():
            content = _position_deletes(file, positions)
            yield _Written(file, self._put("parquet", content), len(content), len(positions))

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


def find_dead(spark: SparkSession, work: Work, table: str, files: Sequence[Unsettled]) -> list[NewDelete]:
    """Find the dead rows of a table's files and write them down; nothing becomes visible by it."""
    ship_package(spark)
    total = sum(unsettled.file.size for unsettled in files)
    limit = min(PARTITION_BYTES, -(-total // max(1, spark.sparkContext.defaultParallelism)))
    tasks = [pickle.dumps(task) for task in settling.parts(files, limit)]
    rdd: RDD[_Written | _Gone] = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(_Stage(work))
    with living(spark):
        told: list[_Written | _Gone] = run(rdd, "look for deleted rows")
    if gone := [file.path for file in told if isinstance(file, _Gone)]:
        raise FilesGone.of(table, gone)
    by_path = {unsettled.file.path: unsettled for unsettled in files}
    written = (new for new in told if isinstance(new, _Written))
    return [NewDelete(by_path[new.file], new.path, new.size, new.count, new.offset, new.length) for new in written]


class Settler:
    """Settles epochs on their way: finds what their equality deletes name in the very table that they are published onto.

    What was found for a file holds for as long as its deletes are the same: where somebody else's commit came first, the next
    attempt looks at what that changed, and no more.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._manifests: Manifests | None = None

    def settling(
        self, table: JavaTable, files: Sequence[ClosedFile], io_properties: Mapping[str, str]
    ) -> Callable[[JavaObject], DeleteChange]:
        """Return what says, of some metadata, which deletes come and go in the place of an epoch's equality deletes."""
        found: dict[Any, NewDelete | None] = {}

        def deletes(metadata: JavaObject) -> DeleteChange:
            view = View.at(table, metadata, io_properties)
            self._manifests = view.manifests(self._manifests)
            unpublished = [settling.pending(file, int(metadata.lastSequenceNumber()) + 1) for file in files]
            owed = settling.owed(view, self._manifests, unpublished, settling.MOST_KEYS)
            settling.check_formats(view.table, owed)

            def place(unsettled: Unsettled) -> Any:
                return view.metadata.format_version, unsettled.file.path, *(delete.key for delete in unsettled.deletes)

            missing = [unsettled for unsettled in owed.files if place(unsettled) not in found]
            written = {place(new.of): new for new in self._find_dead(view, missing, unpublished)}
            found.update({place(unsettled): written.get(place(unsettled)) for unsettled in missing})
            new = [replace(was, of=unsettled) for unsettled in owed.files if (was := found[place(unsettled)]) is not None]
            ours = {delete.key for delete in unpublished}
            known = [delete for delete in owed.equality if delete.key not in ours]
            return described.exchange(view.metadata, new, [*settling.replaced(new), *known])

        return deletes

    def _find_dead(self, view: View, files: Sequence[Unsettled], unpublished: Sequence[DeleteEntry]) -> Sequence[NewDelete]:
        try:
            return find_dead(self._spark, Work.of(view), view.table, files) if files else ()
        except FilesGone as error:
            if staged := error.paths.intersection(delete.path for delete in unpublished):
                raise Stopped(
                    f"a file that was staged for {view.table} is not there: {min(staged)}",
                    "start the pipeline again: the epoch is written anew",
                ) from error
            raise


@dataclass(frozen=True)
class _Stage:
    """Settle each file of a task."""

    work: Work

    def __call__(self, tasks: Iterator[bytes]) -> Iterator[_Written | _Gone]:
        for task in tasks:
            files: list[Unsettled] = pickle.loads(task)  # noqa: S301 — written by our own driver
            try:
                dead = {unsettled.file.path: self.work.dead(unsettled) for unsettled in files}
            except OSError:
                # Stores say it in several ways.
                if (path := self.work.gone(files)) is None:
                    raise
                yield _Gone(path)
                return
            if found := {path: positions for path, positions in dead.items() if len(positions)}:
                yield from self.work.write(found)
