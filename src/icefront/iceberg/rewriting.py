"""Iceberg's own way to rewrite data files, taken apart: its planner makes groups of files, its runner rewrites one of them.

Its action does both for all groups at once. It can be bounded by a number of files only, and it cleans up after a commit that it
believes refused, also when that had landed and only the answer was lost: the table could not be read any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JJavaError
from pyiceberg.table.snapshots import Snapshot
from pyspark.errors.exceptions.captured import CapturedException

from icefront.core.errors import Stopped
from icefront.iceberg import compacting, described
from icefront.iceberg.compacting import Terms
from icefront.iceberg.java import JavaObject, JavaTable, Upkept, call, said
from icefront.iceberg.live import DeleteEntry, DeleteKind, Manifests, readable
from icefront.iceberg.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()
_RUNNERS = "org.apache.iceberg.spark.actions."
FEW = 4
"""So many files may be smaller: that many are never worth a compaction by themselves."""
SEVERAL = 4
"""From so many files on it is worth ordering rows so that each has its own range: of two files every other row is in either."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What is worth rewriting: so many files of a partition that are `small`, files with so large a part of `dead` rows; or everything."""

    small: int
    files: int
    dead: float
    everything: bool
    group_bytes: int
    """At most so much in one group."""

    @property
    def options(self) -> Mapping[str, str]:
        """As Iceberg's planner knows them."""
        return {
            "delete-ratio-threshold": str(self.dead),
            "min-input-files": str(self.files),
            "min-file-size-bytes": str(self.small),
            "rewrite-all": str(self.everything).lower(),
            "max-file-group-size-bytes": str(self.group_bytes),
        }


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

    Equality deletes are applied to the rows, or else left to hold for the new files, too: then files that are too young for that are not
    rewritten. Where one cannot be left, all are applied.

    `between`: what becomes a few files is not ordered, since that would be for nothing but which file a row is in. A group that would
    become fewer files than there are cores becomes more of them: a few, or as many as have `least` bytes before dead rows are gone.
    Its files are divided evenly, unless there is more to read of deletes than of rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: JavaTable,
        worth: Worth,
        columns: Sequence[str] | None,
        *,
        between: bool,
        least: int,
        applies: bool = True,
    ) -> None:
        self._gateway = table.gateway
        self._table = table
        self._worth = worth
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
        self._applies = applies
        self._planned_at: JavaObject = None
        self._terms: Terms | None = None

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
        made = constructor.newInstance(self._array(self._jvm.java.lang.Object, arguments))
        made.init(self._gateway.string_map({}))
        return made

    def _array(self, kind: JavaObject, values: Sequence[JavaObject]) -> JavaObject:
        made = self._gateway.spark.sparkContext._gateway.new_array(kind, len(values))  # noqa: SLF001 — it makes Java's arrays
        for place, value in enumerate(values):
            made[place] = value
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
        metadata = self._table.metadata()
        self._planned_at = metadata.currentSnapshot()
        if self._planned_at is None:
            return []
        # Of this very snapshot: another thread that publishes may look at the table, and so move it, in any moment.
        planner = self._iceberg.actions.BinPackRewriteFilePlanner(
            self._table.table, self._gateway.expressions.alwaysTrue(), self._planned_at.snapshotId(), False
        )
        planner.init(self._gateway.string_map(self._worth.options))
        groups = _every(call(lambda: self._lists.newArrayList(planner.plan().groups())))
        view = View.at(self._table, metadata)
        self._terms, left = self._decided(view)
        if left:
            deletes = self._iceberg.util.DeleteFileSet.create()
            for delete in self._table.parse(described.exchange(view.metadata, (), left).removed):
                deletes.add(delete)
            groups = [new for group in groups if (new := self._unapplied(group, deletes)) is not None]
        return [self._spread(group) for group in groups]

    def _decided(self, view: View) -> tuple[Terms, Sequence[DeleteEntry]]:
        """Choose how the planned snapshot is rewritten, and which of its equality deletes are left."""
        metadata, manifests = view.metadata, view.manifests()
        snapshot = metadata.current_snapshot()
        with readable(view.table):
            specs = {ref.spec_id for ref in manifests.of(snapshot).values() if ref.has_data}
            equality = [] if self._applies else _equality(manifests, snapshot)
        applying = Terms(
            int(self._planned_at.sequenceNumber()),
            columns=frozenset(metadata.schema().field_ids),
            moves=specs != {metadata.default_spec_id},
        )
        if not equality:
            return applying, ()
        number = compacting.written_as_of((delete.sequence for delete in equality), applying.number)
        leaving = replace(applying, number=number, left=frozenset(delete.key for delete in equality))
        can = leaving.harm(equality, equality, view.facts.unpartitioned) is None
        return (leaving, equality) if can else (applying, ())

    def _unapplied(self, group: JavaObject, deletes: JavaObject) -> JavaObject | None:
        """Let a group be read without some deletes, and without files that are too young for that; None if it is not worth it then."""
        assert self._terms is not None
        number = self._terms.number
        tasks = _every(group.fileScanTasks())
        old = [task for task in tasks if compacting.comes(int(task.file().dataSequenceNumber()), number)]
        if len(old) < len(tasks) and not self._is_worth_it(old):
            return None
        schema, specs = self._table.schema_json(), self._table.specs_json()
        all_rows = self._iceberg.expressions.ResidualEvaluator.unpartitioned(self._gateway.expressions.alwaysTrue())
        read = self._lists.newArrayList()
        for task in old:
            others = self._iceberg.util.DeleteFileSet.of(task.deletes())
            if others.removeAll(deletes):
                file, on = task.file(), self._array(self._iceberg.DeleteFile, _every(self._lists.newArrayList(others)))
                read.add(self._iceberg.BaseFileScanTask(file, on, schema, specs[file.specId()], all_rows))
            else:
                read.add(task)
        return self._iceberg.actions.RewriteFileGroup(
            group.info(),
            read,
            group.outputSpecId(),
            group.maxOutputFileSize(),
            group.inputSplitSize(),
            group.expectedOutputFiles(),
        )

    def _is_worth_it(self, tasks: Sequence[JavaObject]) -> bool:
        """Judge what is left of a group as Iceberg's planner does."""
        worth = self._worth
        if worth.everything or len(tasks) >= worth.files:
            return bool(tasks)
        scoped = self._iceberg.util.ContentFileUtil.isFileScoped
        dead = ((sum(d.recordCount() for d in _every(task.deletes()) if scoped(d)), task.file().recordCount()) for task in tasks)
        return any(rows >= worth.dead * max(1, of) for rows, of in dead)

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

        They take the sequence number of the snapshot that was planned: what was deleted since then is deleted in them too. Or one from
        before the deletes that were left.
        """
        together = [group.planned for group in groups]
        assert self._terms is not None
        at, terms = self._planned_at.snapshotId(), replace(self._terms, moves=self._terms.moves and any(map(_moves, together)))

        def change(table: JavaObject) -> JavaObject:
            update = table.newRewrite().validateFromSnapshot(at)
            gone, vectors, new = self._sets()
            for group in together:
                gone.addAll(group.rewrittenFiles())
                vectors.addAll(group.danglingDVs())
                new.addAll(group.addedFiles())
            return update.rewriteFiles(gone, vectors, new, self._sets()[1]).dataSequenceNumber(terms.number)

        return self._table.commit_upkeep(
            change, entries, patience=patience, harms=lambda made, onto: self._harms(made, onto, terms)
        )

    def _harms(self, made: JavaObject, onto: JavaObject, terms: Terms) -> bool:
        """Say whether a snapshot that is about to be committed onto some metadata does harm to equality deletes."""
        if not terms.left and onto.currentSnapshot().summary().get("total-equality-deletes") == "0":
            return False
        view = View.at(self._table, onto)
        manifests, now = view.manifests(), view.metadata.current_snapshot()
        assert now is not None
        then = now.model_copy(update={"manifest_list": made.manifestListLocation()})
        # What was dropped meanwhile may not be in the new files either, or be nothing but null there.
        terms = replace(terms, columns=terms.columns & frozenset(view.metadata.schema().field_ids))
        with readable(view.table):
            harm = terms.harm(_equality(manifests, now), _equality(manifests, then), view.facts.unpartitioned)
        if harm is not None:
            log.info("a compaction is given up", table=self._table.name, why=harm)
        return harm is not None

    def _sets(self) -> tuple[JavaObject, JavaObject, JavaObject]:
        data, deletes = self._iceberg.util.DataFileSet, self._iceberg.util.DeleteFileSet
        return data.create(), deletes.create(), data.create()

    def discard(self, groups: Iterable[Group]) -> None:
        """Delete what was written for groups that were surely not committed."""
        manager = self._iceberg.actions.RewriteDataFilesCommitManager(self._table.table)
        for group in groups:
            manager.abortFileGroup(group.planned)


def _moves(group: JavaObject) -> bool:
    """Say whether some of a group's files are of another partitioning than the new ones."""
    return any(task.file().specId() != group.outputSpecId() for task in _every(group.fileScanTasks()))


def _equality(manifests: Manifests, snapshot: Snapshot | None) -> list[DeleteEntry]:
    refs = [ref for ref in manifests.of(snapshot).values() if not ref.has_data]
    return [d for found in manifests.entries(refs) for d in found.deletes if d.kind is DeleteKind.EQUALITY]


def _every(values: JavaObject) -> list[JavaObject]:
    """Return what is in a Java list."""
    return [values.get(place) for place in range(values.size())]
