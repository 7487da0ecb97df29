"""How well a table reads, from metadata alone: the newest snapshot's summary first, manifests only where it leaves a question.

summary ─▶ nothing unsettled, few files? ─▶ done
                  └─ no ─▶ manifests, each read once however often a table is measured
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefront.iceberg.live import DeleteKind, Entries, Ref
from icefront.iceberg.view import View
from icefront.upkeep.need import NOTICEABLE, Health, Policy

TARGET_SIZE = "write.target-file-size-bytes"
DEFAULT_TARGET_SIZE = 512 * 1024**2
SMALL = 8
"""A file is small below that part of the target size. Iceberg's own rewrite says three quarters, and rewrites the last file each time."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What one manifest tells: of data files in columns, of deletes all that is asked."""

    sequences: Any = None
    """Of its data files, sorted."""
    small: Mapping[Any, int] = field(default_factory=dict)
    """Small files by partition."""
    equality: Sequence[tuple[int, int, int]] = ()
    """Sequence number, rows and bytes of each equality delete."""
    files: pl.DataFrame | None = None
    """Its data files: hash of the path, rows, bytes."""
    dead: pl.DataFrame | None = None
    """Dead rows by hash of the path of their data file."""


class Meter:
    """Measures one table, again and again."""

    def __init__(self, few: int = 0, dead: float | None = None) -> None:
        """Tables of fewer data files than `few` have few small ones: their manifests are not read for that.

        `dead`: the part of its rows from which on a file counts as dead; None: nobody asks.
        """
        self._few = few
        self._dead = dead
        self._told: dict[tuple[Ref, int], _Told] = {}

    def measure(self, view: View) -> Health:
        metadata = view.metadata
        current = metadata.current_snapshot()
        if current is None:
            return Health(snapshots=len(metadata.snapshots))
        said = _summary(current)
        told = self._ask(view, current, said)
        equality = [delete for each in told for delete in each.equality]
        # Without manifests read, every file may be a small one.
        small = _worst(told) if told else int(said.get("total-data-files", "0"))
        dead_files, dead_bytes = _mostly_dead(told, self._dead) if self._dead is not None else (0, 0)
        return Health(
            snapshot=current.snapshot_id,
            rows=int(said.get("total-records", "0")),
            bytes=int(said.get("total-files-size", "0")),
            data_files=int(said.get("total-data-files", "0")),
            equality_files=len(equality),
            equality_rows=sum(rows for _, rows, _ in equality),
            oldest_equality=_published(metadata, min(sequence for sequence, _, _ in equality)) if equality else None,
            delete_reads=_delete_reads(told, equality),
            small_files=small,
            dead_rows=int(said.get("total-position-deletes", "0")),
            dead_files=dead_files,
            dead_bytes=dead_bytes,
            snapshots=len(metadata.snapshots),
            loose=_loose(metadata),
            may_delete=metadata.properties.get("gc.enabled", "true").lower() != "false",
            policy=Policy.of(metadata.properties),
        )

    def _ask(self, view: View, current: Snapshot, said: Mapping[str, str]) -> list[_Told]:
        """Ask the manifests that leave something to ask; what they told before is remembered."""
        # A summary may leave counts out.
        unsettled = said.get("total-equality-deletes") != "0"
        dead = self._dead is not None and said.get("total-position-deletes") != "0"
        few = int(said.get("total-data-files", self._few)) < self._few
        if few and not unsettled and not (dead and int(said.get("total-files-size", NOTICEABLE)) >= NOTICEABLE):
            return []
        limit = small(view.metadata)
        manifests = view.manifests()
        refs = [ref for ref in manifests.of(current).values() if ref.has_data or unsettled or dead]
        missing = [ref for ref in refs if (ref, limit) not in self._told]
        found = {(ref, limit): _told(entries, limit) for ref, entries in zip(missing, manifests.entries(missing), strict=True)}
        self._told = {(ref, limit): found.get((ref, limit)) or self._told[ref, limit] for ref in refs}
        return list(self._told.values())


def small(metadata: TableMetadata) -> int:
    """Return the size below which a file of a table is small."""
    return max(1, int(metadata.properties.get(TARGET_SIZE, DEFAULT_TARGET_SIZE)) // SMALL)


def _told(entries: Entries, limit: int) -> _Told:
    if entries.data is None:
        equality = [(d.sequence, d.records, d.length) for d in entries.deletes if d.kind is DeleteKind.EQUALITY]
        named = [(d.referenced, d.records) for d in entries.deletes if d.kind is not DeleteKind.EQUALITY and d.referenced]
        dead = pl.DataFrame(named, {"file": pl.String, "dead": pl.Int64}, orient="row")
        return _Told(equality=equality, dead=dead.with_columns(pl.col("file").hash()))
    data = entries.data
    small = Counter(
        (data.spec_id, partition) for partition, size in zip(data.partitions, data.sizes, strict=True) if size < limit
    )
    # Of hundred thousands of paths only hashes are kept.
    columns = {"file": data.paths, "rows": data.records, "bytes": data.sizes}
    files = pl.DataFrame(columns, {"file": pl.String, "rows": pl.Int64, "bytes": pl.Int64}).with_columns(pl.col("file").hash())
    return _Told(np.sort(np.asarray(data.sequences, np.int64)), small, files=files)


def _worst(told: Sequence[_Told]) -> int:
    total: Counter[Any] = Counter()
    for each in told:
        total.update(each.small)
    return max(total.values(), default=0)


def _mostly_dead(told: Sequence[_Told], part: float) -> tuple[int, int]:
    """Count data files of whose rows at least a part is dead, and their bytes, as Iceberg's planner does: by deletes of one file only."""
    files = [each.files for each in told if each.files is not None]
    dead = [each.dead for each in told if each.dead is not None]
    if not files or not dead:
        return 0, 0
    named = pl.concat(dead).group_by("file").agg(pl.col("dead").sum())
    found = pl.concat(files).join(named, on="file").filter(pl.col("dead") / pl.col("rows") >= part)
    return len(found), int(found["bytes"].sum())


def _delete_reads(told: Sequence[_Told], equality: Sequence[tuple[int, int, int]]) -> int:
    """Add up what data files load of equality deletes: a delete is for files that are older than it."""
    older = [each.sequences for each in told if each.sequences is not None]
    sequences = np.array([sequence for sequence, _, _ in equality], np.int64)
    files = sum((np.searchsorted(each, sequences, side="left") for each in older), np.zeros(len(equality), np.int64))
    return int((files * np.array([size for _, _, size in equality], np.int64)).sum())


def _published(metadata: TableMetadata, sequence: int) -> datetime | None:
    """Say when a sequence number was given; of an expired snapshot, since when at the latest."""
    since = [s.timestamp_ms for s in metadata.snapshots if (s.sequence_number or 0) >= sequence]
    return _moment(min(since)) if since else None


def _loose(metadata: TableMetadata) -> tuple[datetime, ...]:
    named = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    return tuple(_moment(ms) for ms in sorted(s.timestamp_ms for s in metadata.snapshots if s.snapshot_id not in named))


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
