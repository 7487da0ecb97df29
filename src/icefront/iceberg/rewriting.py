"""Iceberg's own way to rewrite data files, taken apart: its planner makes groups of files, its runner rewrites one of them.

Its action does both for all groups at once. It can be bounded by a number of files only, and it cleans up after a commit that it
believes refused, also when that had landed and only the answer was lost: the table could not be read any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from icefront.core.errors import Stopped
from icefront.iceberg.java import JavaObject, JavaTable, Upkept, call, said

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RUNNERS = "org.apache.iceberg.spark.actions."
FEW = 4
"""So many files may be smaller: that many are never worth a compaction by themselves."""
SEVERAL = 4
"""From so many files on it is worth ordering rows so that each has its own range: of two files every other row is in either."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Files of one partition that become fewer, or lose their dead rows, in one go."""

    planned: JavaObject
    files: int
    bytes: int
    becomes: int
    """Files, about."""


class Rewriter:
    """Rewrites groups of one table's files; `columns` order their rows, without any they stay as they are.

    `between`: what becomes a few files is not ordered, since that would be for nothing but which file a row is in. A group that would
    become fewer files than there are cores becomes more of them: a few, or as many as have `least` bytes before dead rows are gone.
    Its files are divided evenly, unless there is more to read of deletes than of rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: JavaTable,
        options: Mapping[str, str],
        columns: Sequence[str] | None,
        *,
        between: bool,
        least: int,
    ) -> None:
        self._gateway = table.gateway
        self._table = table
        self._options = self._gateway.string_map(options)
        self._jvm: Any = spark._jvm  # noqa: SLF001 — PySpark has no other way to Java's classes
        self._iceberg = self._jvm.org.apache.iceberg
        self._lists = self._iceberg.relocated.com.google.common.collect.Lists
        # As Iceberg's action has it: adaptive execution would change the partitioning of what is written.
        session = self._gateway.session.cloneSession()
        session.conf().set("spark.sql.adaptive.enabled", "false")
        self._packing = self._private("SparkBinPackFileRewriteRunner", [session, table.table])
        self._sorting = (
            None if columns is None else self._private("SparkSortFileRewriteRunner", [session, table.table, self._order(columns)])
        )
        self._largest_first = self._by_bytes().reversed()
        self._between = between
        self._least = least
        self._cores = int(spark.sparkContext.defaultParallelism)
        self._planned_at: JavaObject = None

    def _order(self, columns: Sequence[str]) -> JavaObject:
        """Make a sort order; of no columns it is the table's own."""
        if not columns:
            return self._table.table.sortOrder()
        order = self._iceberg.SortOrder.builderFor(self._table.table.schema())
        for column in columns:
            order = order.asc(column)
        return order.build()

    def _private(self, name: str, arguments: Sequence[JavaObject]) -> JavaObject:
        """Make a runner of a class that Iceberg has for itself: its action makes it the same way."""
        kind = self._table.table.getClass().getClassLoader().loadClass(_RUNNERS + name)
        constructor = next(c for c in kind.getDeclaredConstructors() if c.getParameterCount() == len(arguments))
        constructor.setAccessible(True)
        given = self._gateway.spark.sparkContext._gateway.new_array(self._jvm.java.lang.Object, len(arguments))  # noqa: SLF001 — it makes Java's arrays
        for place, argument in enumerate(arguments):
            given[place] = argument
        made = constructor.newInstance(given)
        made.init(self._gateway.string_map({}))
        return made

    def _by_bytes(self) -> JavaObject:
        """Make a comparator of files with their deletes. They may be thousands: they are compared where they are."""
        invoke, loader = self._jvm.java.lang.invoke, self._table.table.getClass().getClassLoader()
        task, function = (
            loader.loadClass("org.apache.iceberg.FileScanTask"),
            loader.loadClass("java.util.function.ToLongFunction"),
        )
        long = invoke.MethodType.methodType(self._jvm.java.lang.Long.TYPE)
        size = invoke.MethodHandles.publicLookup().findVirtual(task, "sizeBytes", long)
        return self._jvm.java.util.Comparator.comparingLong(invoke.MethodHandleProxies.asInterfaceInstance(function, size))

    def plan(self) -> list[Group]:
        """Find what is worth rewriting in the table as it is now."""
        self._table.refresh()
        self._planned_at = self._table.table.currentSnapshot()
        if self._planned_at is None:
            return []
        planner = self._iceberg.actions.BinPackRewriteFilePlanner(self._table.table)
        planner.init(self._options)
        groups = call(lambda: self._lists.newArrayList(planner.plan().groups()))
        return [self._spread(groups.get(place)) for place in range(groups.size())]

    def _spread(self, group: JavaObject) -> Group:
        """Let several tasks rewrite a group: one takes its time, and the others would wait."""
        size, files = group.inputFilesSizeInBytes(), group.expectedOutputFiles()
        # Tasks are filled by what they read, each file with all deletes that are on it.
        weight = self._iceberg.BaseCombinedScanTask(group.fileScanTasks()).sizeBytes()
        tasks = min(self._cores, max(size // self._least, min(FEW, FEW * size // self._least)))
        if tasks >= files and weight < 2 * size:
            # Iceberg fills tasks up one after the other, and leaves the last one what remains. Files do not divide evenly: without room
            # for some of them, or if large ones came last, one more task would be needed.
            even = weight // tasks
            split, files = even + min(even // 10, 2 * weight // group.inputFileNum()), tasks
            ordered = self._lists.newArrayList(group.fileScanTasks())
            self._jvm.java.util.Collections.sort(ordered, self._largest_first)
            group = self._iceberg.actions.RewriteFileGroup(
                group.info(), ordered, group.outputSpecId(), group.maxOutputFileSize(), split, files
            )
        return Group(group, group.inputFileNum(), size, files)

    def others_committed(self, ours: Collection[int]) -> bool:
        """Say whether there is a snapshot since the planned one that is not among ours."""
        self._table.refresh()
        planned, snapshot = self._planned_at.snapshotId(), self._table.table.currentSnapshot()
        while snapshot is not None and (number := snapshot.snapshotId()) != planned:
            if number not in ours:
                return True
            parent = snapshot.parentId()
            snapshot = None if parent is None else self._table.table.snapshot(parent)
        return snapshot is None

    def write(self, group: Group) -> None:
        """Write a group's live rows into new files; nothing is committed yet."""
        unsorted = self._between and group.becomes < SEVERAL
        runner = self._packing if unsorted or self._sorting is None else self._sorting
        # Spark looks catalogs up through the thread's own session, and a new thread has none.
        self._gateway.sessions.setActiveSession(self._gateway.session)
        try:
            group.planned.setOutputFiles(runner.rewrite(group.planned))
        except (Py4JJavaError, CapturedException) as error:
            raise Stopped(
                f"files of {self._table.name} could not be rewritten: {said(error)}",
                "what was committed before is kept; look into Spark's log, then compact again",
            ) from error

    def commit(self, groups: Iterable[Group], entries: Mapping[str, str], *, patience: float) -> Upkept:
        """Put the new files of groups in the place of the old ones.

        They take the sequence number of the snapshot that was planned: what was deleted since then is deleted in them too.
        """
        together = [group.planned for group in groups]
        at, number = self._planned_at.snapshotId(), self._planned_at.sequenceNumber()

        def change(table: JavaObject) -> JavaObject:
            update = table.newRewrite().validateFromSnapshot(at)
            gone, vectors, new = self._sets()
            for group in together:
                gone.addAll(group.rewrittenFiles())
                vectors.addAll(group.danglingDVs())
                new.addAll(group.addedFiles())
            return update.rewriteFiles(gone, vectors, new, self._sets()[1]).dataSequenceNumber(number)

        def harms(made: JavaObject, told: Mapping[str, str]) -> bool:
            return int(told.get("removed-equality-delete-files", 0)) > 0 and self._drops(made, number)

        return self._table.commit_upkeep(change, entries, patience=patience, harms=harms)

    def _drops(self, made: JavaObject, number: int) -> bool:
        """Say whether a snapshot drops equality deletes that were published since the planned one.

        With a rewrite Iceberg drops deletes that are older than all other data, and does not count the new files, which have that old
        number: if others rewrote or dropped the data that came with such a delete, rows would be back.
        """
        removed = self._lists.newArrayList(made.removedDeleteFiles(self._table.table.io()))
        found = (removed.get(place) for place in range(removed.size()))
        return any(file.content().name() == "EQUALITY_DELETES" and file.dataSequenceNumber() > number for file in found)

    def _sets(self) -> tuple[JavaObject, JavaObject, JavaObject]:
        data, deletes = self._iceberg.util.DataFileSet, self._iceberg.util.DeleteFileSet
        return data.create(), deletes.create(), data.create()

    def discard(self, groups: Iterable[Group]) -> None:
        """Delete what was written for groups that were surely not committed."""
        manager = self._iceberg.actions.RewriteDataFilesCommitManager(self._table.table)
        for group in groups:
            manager.abortFileGroup(group.planned)
