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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pyiceberg.schema import Schema

from icefront.core.errors import CommitUncertain, ConfigError, Stopped
from icefront.iceberg import settling
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.settling import Debt, NewDelete
from icefront.iceberg.view import View
from icefront.kernels.partitions import to_json
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
    """Settle all equality deletes that `table` has now."""
    begun = time.perf_counter()
    for number in range(1, ROUNDS + 1):
        view = View.of(spark, table)
        owed = debt(view)
        if not owed.equality:
            return Settled(table, rounds=number - 1, seconds=time.perf_counter() - begun)
        done = _round(spark, view, owed)
        if done is not None:
            return _told(table, owed, *done, number, time.perf_counter() - begun)
        log.info("others changed the same files; planning the settle anew", table=table, round=number)
    raise CommitUncertain(
        f"{table} could not be settled in {ROUNDS} rounds: others kept rewriting the same files",
        "settle again when no compaction runs; nothing was lost",
    )


def debt(view: View) -> Debt:
    """Find what a table owes its readers."""
    snapshot = view.metadata.current_snapshot()
    manifests = view.manifests()
    refs = manifests.of(snapshot).values()
    deletes = [delete for e in manifests.entries([ref for ref in refs if not ref.has_data]) for delete in e.deletes]
    if not any(delete.kind is DeleteKind.EQUALITY for delete in deletes):
        return Debt()
    ids = frozenset(i for delete in deletes for i in delete.equality_ids)
    found = manifests.entries([ref for ref in refs if ref.has_data], ids)
    return settling.debt((e.data for e in found if e.data is not None), deletes, view.facts)


def _round(spark: SparkSession, view: View, owed: Debt) -> tuple[list[NewDelete], list[int]] | None:
    """Settle what is owed; None when another commit came between."""
    from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import
    from icefront.spark.settle import Work, find_dead  # noqa: PLC0415

    _check_formats(view, owed)
    metadata = view.metadata
    live = Gateway(spark).load(view.table)
    if live is None:
        raise ConfigError(f"table {view.table} does not exist", "write catalog.namespace.table, of a catalog of this session")
    work = Work(view.layout, view.io_properties, metadata.location, metadata.properties)
    assert metadata.current_snapshot_id is not None
    written: list[NewDelete] = []
    snapshots: list[int] = []
    parts = list(settling.parts(owed, COMMIT_BYTES))
    for number, part in enumerate(parts, 1):
        failpoint("settle.before")
        new = find_dead(spark, work, part) if part else []
        last = number == len(parts)
        removed = [*settling.replaced(new), *(owed.equality if last else ())]
        if new or removed:
            change = _Change(metadata.current_snapshot_id, new, removed)
            landed = _commit(live, view, change)
            if landed is None:
                return None
            snapshots.append(landed)
        written += new
    return written, snapshots


def _check_formats(view: View, owed: Debt) -> None:
    files: list[DataEntry | DeleteEntry] = [unsettled.file for unsettled in owed.files]
    files += [d for u in owed.files for d in u.deletes if d.kind is not DeleteKind.VECTOR]
    for file in files:
        if file.format != "parquet":
            raise Stopped(
                f"{file.path} of {view.table} has the format {file.format}, and only Parquet can be settled",
                "rewrite the table's files as Parquet: CALL system.rewrite_data_files",
            )


# ── the commit ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Change:
    """Deletes that come and deletes that go, planned at a snapshot."""

    planned_at: int
    new: Sequence[NewDelete]
    removed: Sequence[DeleteEntry]


def _commit(live: JavaTable, view: View, change: _Change) -> int | None:
    """Commit a change; None when another one touched the same files."""
    ident = uuid.uuid4().hex
    added = [_described(view, new) for new in change.new]
    removed = [described(view, old) for old in change.removed]
    failpoint("settle.before-commit")
    landed = live.commit_deletes(
        added,
        removed,
        {new.of.file.path for new in change.new},
        change.planned_at,
        {"icefront.upkeep": "settle", "icefront.upkeep.id": ident},
        patience=PATIENCE,
    )
    if landed is not None:
        failpoint("settle.after")
    return landed


def _described(view: View, new: NewDelete) -> dict[str, Any]:
    """Describe a new delete the way Iceberg's ContentFileParser reads it."""
    file = new.of.file
    described: dict[str, Any] = {
        "spec-id": file.spec_id,
        "content": "POSITION_DELETES",
        "file-path": new.path,
        "file-format": "PUFFIN" if new.offset is not None else "PARQUET",
        "partition": _partition(view, file),
        "file-size-in-bytes": new.size,
        "record-count": new.count,
        "referenced-data-file": file.path,
    }
    if new.offset is not None:
        described |= {"content-offset": new.offset, "content-size-in-bytes": new.length}
    return described


def described(view: View, old: DeleteEntry) -> dict[str, Any]:
    """Describe a delete of the table the way Iceberg's ContentFileParser reads it."""
    told: dict[str, Any] = {
        "spec-id": old.spec_id,
        "content": "EQUALITY_DELETES" if old.kind is DeleteKind.EQUALITY else "POSITION_DELETES",
        "file-path": old.path,
        "file-format": old.format.upper(),
        "partition": _partition(view, old),
        "file-size-in-bytes": old.length,
        "record-count": old.records,
    }
    if old.equality_ids:
        told["equality-ids"] = list(old.equality_ids)
    if old.kind is DeleteKind.VECTOR:
        told |= {
            "referenced-data-file": old.referenced,
            "content-offset": old.offset,
            "content-size-in-bytes": old.length,
        }
    return told


def _partition(view: View, file: DataEntry | DeleteEntry) -> Mapping[str, Any]:
    """Write a partition as JSON, by field id."""
    metadata = view.metadata
    spec = next(s for s in metadata.partition_specs if s.spec_id == file.spec_id)
    known = {f.field_id: f for schema in metadata.schemas for f in schema.fields}
    kinds = spec.partition_type(Schema(*known.values())).fields
    return {str(f.field_id): to_json(f.field_type, v) for f, v in zip(kinds, file.partition, strict=True)}


def _told(table: str, owed: Debt, new: Sequence[NewDelete], snapshots: Sequence[int], rounds: int, seconds: float) -> Settled:
    return Settled(
        table=table,
        equality_files=len(owed.equality),
        files_looked_at=len(owed.files),
        files_with_dead_rows=len(new),
        dead_rows=sum(delete.count for delete in new),
        snapshots=tuple(snapshots),
        rounds=rounds,
        seconds=seconds,
    )
