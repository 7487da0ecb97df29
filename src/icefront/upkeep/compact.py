"""Compact: small files become large ones, and files with many dead rows lose them, by Iceberg's own planner and writers.

    plan groups of files ─▶ rewrite some, in Spark ─▶ commit them ─▶ the next ones, until nothing is left or the bound is reached
            ▲                                             │
            └──────── another commit came between ────────┘

New files have the sequence number of the snapshot that was planned, so publishes commute with it. A settle of the same files does not:
Iceberg's validation refuses whoever commits second. Groups are small and commit one by one, so that nothing loses for ever.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import structlog

from icefront.core.errors import ConfigError, FilesGone
from icefront.iceberg import described, settling
from icefront.iceberg.live import DeleteEntry, DeleteKind, readable
from icefront.iceberg.summary import UPKEEP
from icefront.iceberg.view import View
from icefront.proof.failpoints import failpoint
from icefront.upkeep.health import small
from icefront.upkeep.settle import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefront.iceberg.java import JavaTable
    from icefront.iceberg.rewriting import Group, Rewriter

log = structlog.get_logger()
GROUP_BYTES = 16 * 1024**3
"""What is sorted together. The larger, the narrower are the keys of each new file."""
COMMIT_BYTES = 1024**3
"""Small groups share a commit up to this size; a larger group is one by itself."""
AT_ONCE = 5
"""So many groups are rewritten at the same time, as Iceberg's own action does."""
SECOND_CHANCES = 3
"""How many groups more than were planned at first may be tried, where others came between."""
_ENTRIES = {UPKEEP: "compact"}
_TOLD = ("deleted-data-files", "added-data-files", "deleted-records", "added-records")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    table: str
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0
    """Read and written anew, also what was in vain."""
    dead_rows: int = 0
    """Rows that were deleted before, and are not in the files any more."""
    failed_groups: int = 0
    """Groups of files that were rewritten in vain, since others changed the same files meanwhile."""
    left: int = 0
    """Files that are still worth rewriting."""
    snapshots: tuple[int, ...] = ()
    seconds: float = 0.0


def compact(
    spark: SparkSession,
    table: str,
    *,
    sort: Literal["auto", "off"] | Sequence[str] = "auto",
    max_bytes: int | None = None,
    dead: float = 0.3,
    min_files: int = 5,
    everything: bool = False,
    group_bytes: int = GROUP_BYTES,
    applies: bool = True,
) -> Compacted:
    """Rewrite small files, at least `min_files` of a partition, and files of whose rows the part `dead` is deleted; or `everything`.

    Rows are sorted by the table's own order or else, where they become several files, by its key (`auto`); by some columns; or not at
    all (`off`). At most about `max_bytes` are rewritten, the smallest files first, and `group_bytes` at once. Equality deletes that are
    not settled are applied to what is rewritten; unless it `applies` them, they are left to hold for it, which is much faster, and
    files that are as young as they are stay.
    """
    from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import
    from icefront.iceberg.rewriting import Rewriter, Worth  # noqa: PLC0415

    begun = time.perf_counter()
    _check(max_bytes, dead, min_files)
    view = View.of(spark, table)
    live = Gateway.of(spark).load(table)
    assert live is not None
    least = small(view.metadata)
    worth = Worth(least, min_files, dead, everything, min(group_bytes, max_bytes or group_bytes))
    columns = order(view, sort)
    # By key, so that each file has a narrow range of them: one alone has them all. What a task reads must not become a small file again.
    rewriter = Rewriter(spark, live, worth, columns, between=sort == "auto" and bool(columns), least=2 * least, applies=applies)
    work = _Work(spark, rewriter, max_bytes, min(COMMIT_BYTES, group_bytes), everything=everything)
    work.run()
    if work.snapshots and (landed := _drop_dangling(spark, table, live)) is not None:
        work.snapshots.append(landed)
    return Compacted(
        table,
        files_before=work.told["deleted-data-files"],
        files_after=work.told["added-data-files"],
        bytes=work.spent,
        dead_rows=work.told["deleted-records"] - work.told["added-records"],
        failed_groups=work.failed,
        left=sum(group.files for group in (*work.waiting, *work.lost)),
        snapshots=tuple(work.snapshots),
        seconds=time.perf_counter() - begun,
    )


def _check(max_bytes: int | None, dead: float, min_files: int) -> None:
    if max_bytes is not None and max_bytes < 1:
        raise ConfigError(f"max_bytes is {max_bytes}", "give a positive number of bytes, or None for no bound")
    if not 0 < dead <= 1:
        raise ConfigError(f"dead is {dead}", "give the part of a file's rows: more than 0, at most 1")
    if min_files < 1:
        raise ConfigError(f"min_files is {min_files}", "give a positive number of files")


def order(view: View, sort: Literal["auto", "off"] | Sequence[str]) -> Sequence[str] | None:
    """Choose the columns to sort by; an empty sequence is the table's own order, None is no order."""
    metadata = view.metadata
    if sort == "off":
        return None
    if sort == "auto":
        return () if metadata.sort_order().fields else _keys(view) or None
    columns = [sort] if isinstance(sort, str) else list(sort)
    known = metadata.schema().column_names
    if unknown := [column for column in columns if column not in known]:
        raise ConfigError(f"{view.table} has no column {unknown[0]}", f"sort by auto, off, or some of {', '.join(known)}")
    return columns


def _keys(view: View) -> Sequence[str]:
    """Name what tells rows apart: the identifier fields, or else what equality deletes go by."""
    schema = view.metadata.schema()
    if ids := schema.identifier_field_ids:
        return [schema.find_column_name(i) or "" for i in ids]
    sets = Counter(delete.equality_ids for delete in _deletes(view) if delete.kind is DeleteKind.EQUALITY)
    named = [schema.find_column_name(i) for i in max(sets, key=lambda ids: sets[ids], default=())]
    return [name for name in named if name is not None]


def _deletes(view: View) -> list[DeleteEntry]:
    manifests = view.manifests()
    with readable(view.table):
        refs = [ref for ref in manifests.of(view.metadata.current_snapshot()).values() if not ref.has_data]
        return [delete for entries in manifests.entries(refs) for delete in entries.deletes]


# ── group by group ─────────────────────────────────────────────────────────────────────────
class _Work:
    """One compaction: what waits, what was done."""

    def __init__(
        self, spark: SparkSession, rewriter: Rewriter, max_bytes: int | None, commit_bytes: int, *, everything: bool
    ) -> None:
        self._spark = spark
        self._rewriter = rewriter
        self._max_bytes = max_bytes
        self._commit_bytes = commit_bytes
        self._everything = everything
        self.waiting = worst_first(rewriter.plan())
        if max_bytes is not None and self.waiting:
            # Whatever comes and goes among the worst, each group has its turn.
            self.waiting.insert(0, self.waiting.pop(random.randrange(len(self.waiting))))  # noqa: S311 — no secret
        self.lost: Sequence[Group] = ()
        """What others changed, and was not planned anew since then."""
        self.snapshots: list[int] = []
        self.told = Counter[str]()
        """What the snapshots say of files and records."""
        self.spent = 0
        self.failed = 0

    def run(self) -> None:
        chances = len(self.waiting) + SECOND_CHANCES
        while chances > 0 and (batch := next_batch(self.waiting, self._room(), self._commit_bytes, whatever=not self.spent)):
            chances -= len(batch)
            failpoint("compact.before")
            self._write(batch)
            lost = self._commit(batch)
            self.failed += len(lost)
            self.waiting = [group for group in self.waiting if group not in batch]
            self._look_again(lost)

    def _write(self, batch: Sequence[Group]) -> None:
        """Rewrite groups, some of them at once: of many partitions each may be too small for all cores."""
        from pyspark import inheritable_thread_target  # noqa: PLC0415 — Spark is an extra, and slow to import

        self.spent += sum(group.bytes for group in batch)
        threads = ThreadPoolExecutor(AT_ONCE)
        try:
            # Each with our scheduler pool and tags, in settings of its own.
            writing = [threads.submit(inheritable_thread_target(self._spark)(self._rewriter.write), group) for group in batch]
            for one in as_completed(writing):
                one.result()
        finally:
            # With an error those that have not begun need not begin.
            threads.shutdown(cancel_futures=True)

    def _room(self) -> int | None:
        return None if self._max_bytes is None else self._max_bytes - self.spent

    def _commit(self, batch: Sequence[Group]) -> Sequence[Group]:
        """Commit groups together, and each by itself if that is refused; return those that were."""
        failpoint("compact.before-commit")
        done = self._rewriter.commit(batch, _ENTRIES, patience=PATIENCE)
        if done.snapshot is not None:
            self.snapshots.append(done.snapshot)
            self.told.update({entry: int(done.summary.get(entry, 0)) for entry in _TOLD})
            failpoint("compact.after")
            return ()
        if len(batch) > 1 and not done.sent:
            return [group for one in batch for group in self._commit([one])]
        if not done.sent:
            self._rewriter.discard(batch)
        return batch

    def _look_again(self, lost: Sequence[Group]) -> None:
        """Plan anew where others committed: what they touched would be rewritten in vain. `everything` is planned once, or it has no end."""
        if self._everything:
            self.lost = [*self.lost, *lost]
        elif self._rewriter.others_committed(self.snapshots):
            self.waiting = worst_first(self._rewriter.plan())
            if lost:
                log.info("others changed the same files; planning the compaction anew", groups=len(lost))
                random.shuffle(self.waiting)  # what lost once may lose again: let the others have their turn


def worst_first(groups: Sequence[Group]) -> list[Group]:
    """Order groups by how small their files are."""
    return sorted(groups, key=lambda group: group.bytes / group.files)


def next_batch(
    groups: Sequence[Group], room: int | None, commit_bytes: int = COMMIT_BYTES, *, whatever: bool = False
) -> list[Group]:
    """Take the next groups that fit and make one commit; `whatever` its size the first one, lest it waits for ever."""
    batch: list[Group] = []
    size = 0
    for group in groups:
        if room is not None and size + group.bytes > room and (batch or not whatever):
            continue
        if batch and size + group.bytes > commit_bytes:
            break
        batch.append(group)
        size += group.bytes
    return batch


# ── deletes of nothing ─────────────────────────────────────────────────────────────────────
def _drop_dangling(spark: SparkSession, table: str, live: JavaTable) -> int | None:
    """Take deletes out that no file is left for; None if there are none, or another commit came between."""
    view = View.of(spark, table)
    try:
        found = _dangling(view)
    except FilesGone as error:
        if View.of(spark, table).metadata.current_snapshot_id == view.metadata.current_snapshot_id:
            raise
        log.info("deletes that no file is left for stay: others changed the table", table=table, why=error.fact)
        return None
    if not found:
        return None
    at = view.metadata.current_snapshot_id
    assert at is not None
    return live.commit_deletes(described.exchange(view.metadata, (), found), (), at, _ENTRIES, patience=PATIENCE)


def _dangling(view: View) -> Sequence[DeleteEntry]:
    deletes = _deletes(view)
    if not deletes:
        return ()
    ids = frozenset(i for delete in deletes for i in delete.equality_ids)
    manifests = view.manifests()
    with readable(view.table):
        refs = [ref for ref in manifests.of(view.metadata.current_snapshot()).values() if ref.has_data]
        return settling.dangling([e.data for e in manifests.entries(refs, ids) if e.data is not None], deletes, view.facts)
