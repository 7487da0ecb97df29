"""Upkeep's commits on a table in memory, with the validations that Iceberg makes, and no others.

    RowDelta   a settle: deletes come and go                      BaseRowDelta.validate
    Rewrite    a compaction: one data file in the place of some   BaseRewriteFiles.validate

What is validated is looked up in the history since a snapshot; a history that cannot be told refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from icefront.testing.memory import MemoryTable, Snapshot, dropped


class Conflict(Exception):
    """Iceberg's ValidationException: another commit touched the same files."""


@dataclass(frozen=True, slots=True)
class RowDelta:
    """New deletes by position (path → data file) come, other deletes go; as `JavaTable.commit_deletes` has it.

    `files` must still be there, `start` is the snapshot that is validated from; with `deleted_files` what goes must be there, too.
    `after` are the parts before it: what they did must not have been rolled back.
    """

    name: str
    planned: int
    start: int | None
    added: Mapping[str, str] = field(default_factory=dict)
    removed: Collection[str] = ()
    files: Collection[str] = ()
    deleted_files: bool = True
    operation: str | None = None
    after: Collection[int] = ()

    def apply(self, table: MemoryTable) -> Snapshot:
        now = _current(table, self.start)
        if not self._follows(table):
            raise Conflict("the part before it is not an ancestor")
        history = _history(table, self.start)
        looked_at = {"overwrite", "replace", "delete"} if self.deleted_files else {"overwrite", "replace"}
        if any(file in snapshot.removed for snapshot in history if snapshot.operation in looked_at for file in self.files):
            raise Conflict("missing data files")
        if self.deleted_files and not {*self.removed} <= {*now.deletes, *now.positional}:
            raise Conflict("missing required files to delete")
        if table.format > 2 and _positioned(history, {"overwrite", "delete", "replace"}) & set(self.added.values()):
            raise Conflict("found a vector that was added concurrently")
        return table.commit(positional=self.added, removed=self.removed, operation=self.operation, upkeep=self.name)

    def touched(self, table: MemoryTable) -> bool:
        """Say whether others really touched the same files since it was planned: nothing else may refuse it."""
        now, planned = _both(table, self.planned)
        if now is None or planned is None:
            return True
        return (
            any(file not in now.data for file in self.added.values())
            or any(path not in now.deletes and path not in now.positional for path in self.removed)
            or (table.format > 2 and bool(_newly_positioned(now, planned) & set(self.added.values())))
            or not self._follows(table)
        )

    def _follows(self, table: MemoryTable) -> bool:
        return set(self.after) <= {snapshot.id for snapshot in table.chain()}

    def __str__(self) -> str:
        return f"settle {self.name}: {len(self.added)} deletes in, {len(self.removed)} out:"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The file `path` takes the place of `sources`, written as of the sequence number `written_at`; None: as of the commit.

    Iceberg drops deletes with it that are older than all other data, and does not count the new file. With `looks` it is given up
    rather than lose a delete that was published since it was planned: ours do that, others' do not.
    """

    name: str
    planned: int
    sources: Collection[str]
    path: str
    written_at: int | None
    looks: bool = True
    left: Collection[str] = ()
    """Equality deletes that were not applied: they must still be there."""

    def apply(self, table: MemoryTable) -> Snapshot:
        now = _current(table, None)
        history = _history(table, self.planned)
        # With a sequence number of its own, Iceberg takes new equality deletes to apply to the new files as well.
        if _positioned(history, {"overwrite", "delete"}) & set(self.sources):
            raise Conflict("found a new position delete for a replaced file")
        if self.written_at is None and any(s.deletes.keys() & s.added for s in history if s.operation in {"overwrite", "delete"}):
            raise Conflict("found a new delete for a replaced file")
        if any(source not in now.data for source in self.sources):
            raise Conflict("missing required files to delete")
        if self.looks and self._loses(table, now):
            raise Conflict("would drop deletes that were published since")
        return table.commit([self.path], removed=self.sources, written_at=self.written_at, operation="replace", upkeep=self.name)

    def touched(self, table: MemoryTable) -> bool:
        """Say whether others really touched the same files since it was planned: nothing else may refuse it."""
        now, planned = _both(table, self.planned)
        if now is None or planned is None:
            return True
        return (
            any(source not in now.data for source in self.sources)
            or bool(_newly_positioned(now, planned) & set(self.sources))
            or self._loses(table, now)
        )

    def leaves(self, table: MemoryTable) -> bool:
        """Say whether deletes of before it was planned hold for the new file."""
        planned = table.snapshots.get(self.planned)
        return planned is not None and self.written_at is not None and self.written_at < planned.sequence

    def _loses(self, table: MemoryTable, now: Snapshot) -> bool:
        """Say whether a delete would go that the new file needs. Only what others did to the data of that delete brings it about."""
        gone = dropped(now, set(self.sources), table.sequence)
        if not now.deletes.keys() - gone >= set(self.left):
            return True
        return self.written_at is not None and any(now.deletes[path] > self.written_at for path in gone & now.deletes.keys())

    def __str__(self) -> str:
        return f"compact {self.name}: {len(self.sources)} files into {self.path}:"


def _current(table: MemoryTable, start: int | None) -> Snapshot:
    if table.current is None or (start is not None and all(s.id != start for s in table.chain())):
        raise Conflict("the snapshot is not an ancestor")
    return table.snapshots[table.current]


def _history(table: MemoryTable, start: int | None) -> list[Snapshot]:
    """Return the snapshots since `start`, or all there ever were."""
    found: list[Snapshot] = []
    for snapshot in table.chain():
        if snapshot.id == start:
            return found
        found.append(snapshot)
    if found and found[-1].parent != start:
        raise Conflict("cannot determine the history")
    return found


def _positioned(history: Collection[Snapshot], operations: Collection[str]) -> set[str]:
    """Return the data files that got deletes by position."""
    return {s.positional[path].file for s in history if s.operation in operations for path in s.added & s.positional.keys()}


def _newly_positioned(now: Snapshot, planned: Snapshot) -> set[str]:
    return {delete.file for path, delete in now.positional.items() if path not in planned.positional}


def _both(table: MemoryTable, planned: int) -> tuple[Snapshot | None, Snapshot | None]:
    """Return the current snapshot, and the planned one if it is among its ancestors."""
    now = None if table.current is None else table.snapshots[table.current]
    return now, next((s for s in table.chain() if s.id == planned), None)
