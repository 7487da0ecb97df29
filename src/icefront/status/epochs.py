"""The epochs of a pipeline: what the targets' snapshots say, with the times that the state store noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog
from pyiceberg.table.snapshots import Snapshot

from icefront.api import Pipeline
from icefront.core.epochs import Epoch
from icefront.core.timestamps import Timestamp
from icefront.iceberg import summary
from icefront.state.records import EpochRecord
from icefront.status.history import read_history
from icefront.status.look import Look, ancestors, entries
from icefront.status.targets import human_time

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One published epoch of one target. `expired` says that only the state store remembers its snapshot."""

    target: str
    epoch: Epoch
    epoch_id: str
    snapshot: int
    published_at: datetime
    changes: Mapping[str, int] = field(default_factory=dict)
    data_files: int | None = None
    delete_files: int | None = None
    files: int = 0
    bytes: int = 0
    writer: str | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    recovered: bool = False
    expired: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "lower": str(self.epoch.lower),
            "upper": str(self.epoch.upper),
            "upper_time": human_time(self.epoch.upper),
            "epoch_id": self.epoch_id,
            "snapshot_id": self.snapshot,
            "published_at": self.published_at.isoformat(),
            "changes": dict(self.changes),
            "data_files": self.data_files,
            "delete_files": self.delete_files,
            "files": self.files,
            "bytes": self.bytes,
            "writer": self.writer,
            "seconds": dict(self.timings),
            "recovered": self.recovered,
            "expired": self.expired,
        }


def epochs(pipeline: Pipeline, limit: int = 20) -> Sequence[EpochRow]:
    """Return the last `limit` epochs of each target, oldest first."""
    look = Look(pipeline)
    targets = look.targets
    history = read_history(look.settings, [target.name for target in targets], limit)
    if history.trouble:
        log.warning("only what the tables say is known", reason=history.trouble)
    noted = history.epochs
    rows: list[EpochRow] = []
    for target in targets:
        table = look.table(target)
        shown = _from_snapshots(look.settings.pipeline, target.name, list(ancestors(table.metadata)), noted) if table else []
        known = {row.epoch_id for row in shown}
        past = [_from_record(r) for (name, _), r in noted.items() if name == target.name and str(r.epoch_id) not in known]
        rows += sorted([*past, *shown], key=lambda row: row.epoch.upper)[-limit:]
    return rows


def _from_snapshots(
    pipeline: str, target: str, branch: Sequence[Snapshot], noted: Mapping[tuple[str, UUID], EpochRecord]
) -> list[EpochRow]:
    rows = []
    for snapshot in branch:
        said = entries(snapshot)
        if said.get(summary.PIPELINE) == pipeline and summary.LOWER in said:
            record = noted.get((target, UUID(said[summary.EPOCH_ID])))
            rows.append(_from_snapshot(target, snapshot, said, record))
    return rows


def _from_snapshot(target: str, snapshot: Snapshot, said: Mapping[str, str], record: EpochRecord | None) -> EpochRow:
    data, deletes = (int(said.get(name, 0)) for name in ("added-data-files", "added-delete-files"))
    return EpochRow(
        target=target,
        epoch=Epoch(Timestamp.parse(said[summary.LOWER]), Timestamp.parse(said[summary.FRONTIER])),
        epoch_id=said[summary.EPOCH_ID],
        snapshot=snapshot.snapshot_id,
        published_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        changes=changes_by_kind(said),
        data_files=data,
        delete_files=deletes,
        files=data + deletes,
        bytes=int(said.get("added-files-size", 0)),
        writer=said.get(summary.WRITER),
        timings={phase: milliseconds / 1000 for phase, milliseconds in record.timings.items()} if record else {},
        recovered=record.recovered if record else False,
    )


def changes_by_kind(said: Mapping[str, str]) -> dict[str, int]:
    """Count an epoch's changes: what reading counted, and the upserts and deletes that netting left.

    Every netted change has an equality delete and every upsert a row; the very first epoch writes no deletes.
    """
    counted = {key.removeprefix(summary.COUNT): int(value) for key, value in said.items() if key.startswith(summary.COUNT)}
    upserts = int(said.get("added-records", 0))
    deletes = max(0, int(said.get("added-equality-deletes", 0)) - upserts)
    return {"upserts": upserts, "deletes": deletes} | counted


def _from_record(record: EpochRecord) -> EpochRow:
    return EpochRow(
        target=record.target,
        epoch=record.epoch,
        epoch_id=str(record.epoch_id),
        snapshot=record.snapshot,
        published_at=record.published_at,
        changes=dict(record.counts),
        files=record.files,
        bytes=record.bytes,
        timings={phase: milliseconds / 1000 for phase, milliseconds in record.timings.items()},
        recovered=record.recovered,
        expired=True,
    )
