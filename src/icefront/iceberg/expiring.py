"""What Iceberg's own actions find to be deleted. Nothing is deleted by them: whoever asks may know of files that must stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
_FOLDERS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
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
        before = min([_milliseconds(older_than), *self._held_marks()])
        action = self._actions.expireSnapshots(self._table.table).expireOlderThan(before).retainLast(at_least)
        found = call(lambda: DataFrame(action.expireFiles().toDF(), self._spark).select("path", "type").collect())
        return [(row["path"], row["type"]) for row in found]

    def _held_marks(self) -> Iterator[int]:
        """Return the times of snapshots that have to stay: from the current one down to those that marks remember and tags hold.

        If what is between expired, such a snapshot would still be there, but not on the branch: that is what a rollback looks like.
        What others commit meanwhile is younger: times do not move as numbers of snapshots would.
        """
        metadata = self._table.metadata()
        properties = self._table.properties()
        marks = {Mark.from_json(text).epoch_id for name, text in properties.items() if name.startswith(mark_property(""))}
        refs = metadata.refs()
        tags = [refs.get(name).snapshotId() for name in self._table.gateway.read(refs.keySet()) if name != "main"]
        held = {tag for tag in tags if _epoch(metadata.snapshot(tag)) in marks}
        between: list[int] = []
        snapshot = metadata.currentSnapshot() if held else None
        while snapshot is not None and held:
            between.append(snapshot.timestampMillis())
            if snapshot.snapshotId() in held:
                held.remove(snapshot.snapshotId())
                yield from between
                between.clear()
            parent = snapshot.parentId()
            snapshot = None if parent is None else metadata.snapshot(parent)

    def orphans(self, older_than: datetime) -> list[str]:
        """Name files in the table's own folders that are old enough and that nothing in its metadata knows."""
        action = self._unknown().olderThan(_milliseconds(older_than)).usePrefixListing(self._lists_prefixes())
        own = folders(self._table.table.location(), self._table.properties())
        return list(below(self._found(action), own))

    def unknown(self, paths: Collection[str]) -> list[str]:
        """Name those of some files that nothing in the table's metadata knows, as of now."""
        if not paths:
            return []
        listed = self._spark.createDataFrame([(path, _LONG_AGO) for path in paths], _LISTED)
        return self._found(self._unknown().location(None).compareToFileList(listed._jdf))  # noqa: SLF001

    def _unknown(self) -> JavaObject:
        self._table.refresh()
        return self._actions.deleteOrphanFiles(self._table.table).deleteWith(self._jvm.java.util.stream.Stream.builder())

    def _found(self, action: JavaObject) -> list[str]:
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


def folders(location: str, properties: Mapping[str, str]) -> list[str]:
    """Name the folders below a table's location that it writes to. What else is there may be another's: a stream's checkpoint, say."""
    said = [properties[name] for name in _FOLDERS if name in properties]
    return [f"{location.rstrip('/')}/{own}" for own in ("data", "metadata")] + list(below(said, [location]))


def below(paths: Collection[str], folders: Collection[str]) -> Iterator[str]:
    """Keep what is in one of some folders, or is one of them, however that is spelled."""
    places = tuple(f"{_place(folder).rstrip('/')}/" for folder in folders)
    return (path for path in paths if f"{_place(path).rstrip('/')}/".startswith(places))


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
