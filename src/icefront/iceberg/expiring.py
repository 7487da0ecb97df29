"""What Iceberg's own actions find to be deleted. Nothing is deleted by them: whoever asks may know of files that must stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from icefront.core.marks import Mark
from icefront.iceberg.java import JavaObject, JavaTable, call
from icefront.iceberg.summary import EPOCH_ID, mark_property

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTED = StructType([StructField("file_path", StringType()), StructField("last_modified", TimestampType())])
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)


class Expiring:
    """Finds files that a table does not need any more, and deletes files."""

    def __init__(self, spark: SparkSession, table: JavaTable) -> None:
        self._spark = spark
        self._table = table
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._iceberg = self._jvm.org.apache.iceberg
        self._actions = self._iceberg.spark.actions.SparkActions.get(table.gateway.session)

    def snapshots(self) -> set[int]:
        snapshots = self._table.metadata().snapshots()
        return {snapshots.get(place).snapshotId() for place in range(snapshots.size())}

    def expire(self, older_than: datetime, at_least: int) -> list[tuple[str, str]]:
        """Take snapshots out of the table; return the files that only they had, each with its kind."""
        left = max(at_least, self._down_to_held_marks())
        action = self._actions.expireSnapshots(self._table.table).expireOlderThan(_milliseconds(older_than)).retainLast(left)
        found = call(lambda: DataFrame(action.expireFiles().toDF(), self._spark).select("path", "type").collect())
        return [(row["path"], row["type"]) for row in found]

    def _down_to_held_marks(self) -> int:
        """Count the snapshots from the current one down to those that marks remember and tags hold; 0: there are none.

        If what is between expired, such a snapshot would still be there, but not on the branch: that is what a rollback looks like.
        """
        metadata = self._table.metadata()
        properties = self._table.properties()
        marks = {Mark.from_json(text).epoch_id for name, text in properties.items() if name.startswith(mark_property(""))}
        refs = metadata.refs()
        tags = [refs.get(name).snapshotId() for name in self._table.gateway.read(refs.keySet()) if name != "main"]
        found = {tag for tag in tags if _epoch(metadata.snapshot(tag)) in marks}
        count = number = 0
        snapshot = metadata.currentSnapshot() if found else None
        while snapshot is not None and found:
            number += 1
            if snapshot.snapshotId() in found:
                found.remove(snapshot.snapshotId())
                count = number
            parent = snapshot.parentId()
            snapshot = None if parent is None else metadata.snapshot(parent)
        return count

    def orphans(self, older_than: datetime, among: Collection[str] | None = None) -> list[str]:
        """Name files below the table's location that nothing in its metadata knows; `among` some, or all that are old enough."""
        self._table.refresh()
        action = self._actions.deleteOrphanFiles(self._table.table).deleteWith(self._jvm.java.util.stream.Stream.builder())
        action = action.olderThan(_milliseconds(older_than))
        if among is not None:
            listed = self._spark.createDataFrame([(path, _LONG_AGO) for path in among], _LISTED)
            action = action.location(None).compareToFileList(listed._jdf)  # noqa: SLF001
        elif self._lists_prefixes():
            action = action.usePrefixListing(True)
        found: list[str] = self._table.gateway.read(call(action.execute).orphanFileLocations())
        return found

    def _lists_prefixes(self) -> bool:
        """Say whether the table's own FileIO lists files. Spark's file systems may not know the store, nor have its credentials."""
        io: JavaObject = self._table.table.io()
        kind = io.getClass().getClassLoader().loadClass("org.apache.iceberg.io.SupportsPrefixOperations")
        return bool(kind.isInstance(io))

    def delete(self, paths: Collection[str]) -> None:
        """Delete files, as many at once as the store can. One that cannot be deleted is an orphan, and tried again as such."""
        if paths:
            listed = self._table.gateway.read_list(paths)
            call(lambda: self._iceberg.CatalogUtil.deleteFiles(self._table.table.io(), listed, "unneeded", True))


def without(paths: Collection[str], kept: Collection[str]) -> Iterator[str]:
    """Leave files out by where they are, however that is spelled: file:/x, file:///x and /x are one, so are s3:// and s3a://."""
    places = {_place(path) for path in kept}
    return (path for path in paths if _place(path) not in places)


def _place(path: str) -> str:
    split = urlsplit(path, allow_fragments=False)
    return split.path + (f"?{split.query}" if split.query else "") if split.scheme else path


def _epoch(snapshot: JavaObject) -> UUID | None:
    text = snapshot.summary().get(EPOCH_ID)
    return UUID(text) if text else None


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
