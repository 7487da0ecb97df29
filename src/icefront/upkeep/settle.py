"""Settle: equality deletes become deletion vectors (format 3) or position deletes (format 2), in place.

    plan at a snapshot ─▶ find dead rows, in Spark ─▶ commit: new deletes in, those they replace and the equality deletes out
            ▲                                            │
            └────────── another commit touched the same files ──┘

Publishes and settles commute: what is published meanwhile has higher sequence numbers than all that is settled. A compaction or another
delete of the same files does not: Iceberg's validation refuses the commit, and it is planned anew.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from icefront.core.errors import CommitUncertain, ConfigError, FilesGone
from icefront.iceberg import described, settling
from icefront.iceberg.live import DeleteEntry
from icefront.iceberg.settling import Debt, NewDelete
from icefront.iceberg.view import View
from icefront.proof.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefront.iceberg.java import JavaTable

log = structlog.get_logger()
ROUNDS = 10
"""How often a settle is planned anew because others touched the same files."""
COMMIT_BYTES = 16 * 1024**3
"""What one commit settles: a larger table takes several, each of which leaves it right."""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle did."""

    table: str
    equality_files: int = 0
    files_looked_at: int = 0
    files_with_dead_rows: int = 0
    dead_rows: int = 0
    snapshots: tuple[int, ...] = ()
    rounds: int = 0
    seconds: float = 0.0


def settle(spark: SparkSession, table: str) -> Settled:
    """Settle all equality deletes that `table` has now, the oldest first."""
    begun = time.perf_counter()
    done = Settled(table)
    refused = 0
    gone: frozenset[str] = frozenset()
    while True:
        view, why = View.of(spark, table), "others changed the same files"
        try:
            if not (owed := debt(view)).equality:
                break
            done = replace(done, rounds=done.rounds + 1)
            landed = _round(spark, view, owed)
        except FilesGone as error:
            # Others may have rewritten them since the plan, and have expired what knew them. A later plan does not name them then.
            if error.paths & gone or View.of(spark, table).metadata.current_snapshot_id == view.metadata.current_snapshot_id:
                raise
            gone |= error.paths
            landed, why = None, error.fact
        if landed is None:
            refused += 1
            log.info("planning the settle anew", table=table, round=done.rounds, why=why)
            if refused == ROUNDS:
                raise CommitUncertain(
                    f"{table} could not be settled in {ROUNDS} rounds: others kept rewriting the same files",
                    "settle again when no compaction runs; nothing was lost",
                )
            continue
        done, refused = _added(done, owed, *landed), 0
        if not owed.left:
            break
    return replace(done, seconds=time.perf_counter() - begun)


def debt(view: View) -> Debt:
    """Find what a table owes its readers."""
    return settling.owed(view, view.manifests(), most=settling.MOST_KEYS)


def _round(spark: SparkSession, view: View, owed: Debt) -> tuple[list[NewDelete], list[int]] | None:
    """Settle what is owed; None when another commit came between."""
    from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import
    from icefront.spark.settle import Work, find_dead  # noqa: PLC0415

    settling.check_formats(view.table, owed)
    metadata = view.metadata
    live = Gateway.of(spark).load(view.table)
    if live is None:
        raise ConfigError(f"table {view.table} does not exist", "write catalog.namespace.table, of a catalog of this session")
    work = Work.of(view)
    assert metadata.current_snapshot_id is not None
    written: list[NewDelete] = []
    snapshots: list[int] = []
    parts = list(settling.parts(owed.files, COMMIT_BYTES))
    for number, part in enumerate(parts, 1):
        failpoint("settle.before")
        new = find_dead(spark, work, view.table, part) if part else []
        last = number == len(parts)
        removed = [*settling.replaced(new), *(owed.equality if last else ())]
        if new or removed:
            change = _Change(metadata.current_snapshot_id, new, removed, tuple(snapshots))
            landed = _commit(live, view, change)
            if landed is None:
                return None
            snapshots.append(landed)
        written += new
    return written, snapshots


# ── the commit ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Change:
    """Deletes that come and deletes that go, planned at a snapshot."""

    planned_at: int
    new: Sequence[NewDelete]
    removed: Sequence[DeleteEntry]
    after: Sequence[int] = ()
    """The commits before it: without them rows that the equality deletes hide would be back."""


def _commit(live: JavaTable, view: View, change: _Change) -> int | None:
    """Commit a change; None when another one touched the same files."""
    ident = uuid.uuid4().hex
    deletes = described.exchange(view.metadata, change.new, change.removed)
    failpoint("settle.before-commit")
    landed = live.commit_deletes(
        deletes,
        {new.of.file.path for new in change.new},
        change.planned_at,
        {"icefront.upkeep": "settle", "icefront.upkeep.id": ident},
        patience=PATIENCE,
        after=change.after,
    )
    if landed is not None:
        failpoint("settle.after")
    return landed


def _added(done: Settled, owed: Debt, new: Sequence[NewDelete], snapshots: Sequence[int]) -> Settled:
    return replace(
        done,
        equality_files=done.equality_files + len(owed.equality),
        files_looked_at=done.files_looked_at + len(owed.files),
        files_with_dead_rows=done.files_with_dead_rows + len(new),
        dead_rows=done.dead_rows + sum(delete.count for delete in new),
        snapshots=(*done.snapshots, *snapshots),
    )
