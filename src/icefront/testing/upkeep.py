"""Upkeep of a simulated table: settle, compact and expire, each a generator of steps with anything in between.

    settle    plan ─▶ find dead rows ─▶ commit ─▶ (the next part) ─▶ …      a conflict: plan anew
    compact   plan ─▶ rewrite ─▶ commit                                      a conflict: give up
    expire    drop snapshots ─▶ delete what only they held ─▶ delete orphans

What a settle decides is decided by `iceberg.settling`, and what a compaction leaves by `iceberg.compacting`, as on real tables. `Upkeep` is the bundle of decisions: a mutant has one replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from icefront.core.protocol import Landed, NotLanded
from icefront.iceberg import compacting, settling
from icefront.iceberg.live import DeleteEntry, DeleteKind, Listing
from icefront.iceberg.settling import Debt, NewDelete, Unsettled
from icefront.iceberg.statediff import Facts
from icefront.kernels.datafiles import Mask
from icefront.kernels.vectors import Positions
from icefront.testing.commits import Rewrite, RowDelta
from icefront.testing.memory import MemoryTable, Snapshot, Unreadable

_FACTS = Facts(frozenset({0}), {})
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Do:
    """A step that happens or does not."""

    label: str
    do: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.label}:"


@dataclass(frozen=True, slots=True)
class Swap:
    """A commit: the catalog replaces the snapshot that it was built on, or refuses; its answer may be lost."""

    change: RowDelta | Rewrite

    def __str__(self) -> str:
        return str(self.change)


Job = Generator[Do | Swap, Any, bool]
"""One piece of upkeep; in the end it says whether it got through."""


class Refused(NotLanded):
    """Others touched the same files."""


# ── decisions ──────────────────────────────────────────────────────────────────────────────
def planned_from(planned: int, landed: Sequence[int]) -> int:
    """Choose the snapshot from which a part of a settle is validated: the one that all parts were planned at."""
    del landed
    return planned


def equality_leaves(number: int, parts: int) -> bool:
    """Say whether the equality deletes leave with this part: only with the last one."""
    return number == parts


def by_row_delta(change: RowDelta) -> RowDelta:
    """Commit a settle with all validations: its files are there, what it takes out is there, no other vector came."""
    return change


def by_rewrite(change: Rewrite) -> Rewrite:
    """Commit a compaction with the sequence number that it was planned at: what was deleted since is deleted in it, too."""
    return change


def orphans(unknown: Iterable[str], staged: Collection[str], old: Callable[[str], bool]) -> list[str]:
    """Choose the files to delete among those that no snapshot knows: old ones, and none that is staged."""
    return [path for path in unknown if path not in staged and old(path)]


def held(tags: Collection[int]) -> Collection[int]:
    """Choose the snapshots that outlive their time: all that tags hold."""
    return tags


def kept(table: MemoryTable, keep: int) -> int:
    """Choose how many snapshots of the branch stay: at least down to that of the mark, if a tag holds it.

    It would outlive those between, and a snapshot of the mark that is there but not on the branch was rolled back.
    """
    for number, snapshot in enumerate(table.chain(), 1):
        if table.mark is not None and snapshot.seen.epoch_id == table.mark.epoch_id and snapshot.id in table.tags.values():
            return max(keep, number)
    return keep


def dead(unsettled: Unsettled, named: Mask, known: Mask, version: int) -> Positions:
    """Choose the rows that a new delete of a file names."""
    return settling.dead(named, known, for_all=unsettled.stands_for_all(version))


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What upkeep does. The defaults are right."""

    debt: Callable[[Iterable[Listing], Sequence[DeleteEntry], Facts], Debt] = settling.debt
    parts: Callable[[Sequence[Unsettled], int], Iterator[Sequence[Unsettled]]] = settling.parts
    dead: Callable[[Unsettled, Mask, Mask, int], Positions] = dead
    replaced: Callable[[Sequence[NewDelete]], list[DeleteEntry]] = settling.replaced
    start: Callable[[int, Sequence[int]], int] = planned_from
    equality_leaves: Callable[[int, int], bool] = equality_leaves
    row_delta: Callable[[RowDelta], RowDelta] = by_row_delta
    rewrite: Callable[[Rewrite], Rewrite] = by_rewrite
    written_as_of: Callable[[Iterable[int], int], int] = compacting.written_as_of
    comes: Callable[[int, int], bool] = compacting.comes
    orphans: Callable[[Iterable[str], Collection[str], Callable[[str], bool]], list[str]] = orphans
    held: Callable[[Collection[int]], Collection[int]] = held
    kept: Callable[[MemoryTable, int], int] = kept


# ── settle ─────────────────────────────────────────────────────────────────────────────────
def settle(table: MemoryTable, rules: Upkeep, name: str, limit: int) -> Job:
    """Settle all equality deletes that the table has; `limit` is how many files make one commit."""
    for number in range(1, _ROUNDS + 1):
        planned, owed = yield Do(f"plan the settle of {table.name}", partial(_plan, table, rules))
        if not owed.equality:
            return True
        if (yield from _round(table, rules, f"{name}-{number}", planned, list(rules.parts(owed.files, limit)), owed)):
            return True
    return False


def _round(
    table: MemoryTable, rules: Upkeep, name: str, planned: Snapshot, parts: Sequence[Sequence[Unsettled]], owed: Debt
) -> Job:
    landed: list[int] = []
    for number, part in enumerate(parts, 1):
        new: list[NewDelete] = yield Do("find dead rows", partial(_find_dead, table, rules, f"{name}-{number}", part))
        removed = [*rules.replaced(new), *(owed.equality if rules.equality_leaves(number, len(parts)) else ())]
        if not new and not removed:
            continue
        added = {delete.path: delete.of.file.path for delete in new}
        change = RowDelta(
            name=f"{name}-{number}",
            planned=planned.id,
            start=rules.start(planned.id, landed),
            added=added,
            removed=[delete.path for delete in removed],
            files=added.values(),
            after=tuple(landed),
        )
        snapshot = yield from _commit(table, rules.row_delta(change))
        if snapshot is None:
            return False
        landed.append(snapshot)
    return True


def _plan(table: MemoryTable, rules: Upkeep) -> tuple[Snapshot | None, Debt]:
    if table.current is None:
        return None, Debt()
    now = table.snapshots[table.current]
    return now, rules.debt([_listing(now, table)], _entries(now), _FACTS) if now.deletes else Debt()


def _listing(now: Snapshot, table: MemoryTable) -> Listing:
    count = len(now.data)
    return Listing(
        spec_id=0,
        paths=list(now.data),
        formats=["parquet"] * count,
        partitions=[()] * count,
        sequences=list(now.data.values()),
        records=[len(table.storage.files.get(path, ())) for path in now.data],
        sizes=[1] * count,
        first_row_ids=[None] * count,
    )


def _entries(now: Snapshot) -> list[DeleteEntry]:
    entries = [DeleteEntry(DeleteKind.EQUALITY, path, None, 0, "parquet", 0, (), s) for path, s in now.deletes.items()]
    for path, delete in now.positional.items():
        kind, offset = (DeleteKind.VECTOR, 0) if delete.vector else (DeleteKind.POSITION, None)
        entries.append(DeleteEntry(kind, path, offset, 0, "parquet", 0, (), delete.sequence, delete.file))
    return entries


def _find_dead(table: MemoryTable, rules: Upkeep, name: str, part: Sequence[Unsettled]) -> list[NewDelete]:
    """Read files and their deletes, and write new ones, as the workers do."""
    found: list[NewDelete] = []
    for unsettled in part:
        rows = _read(table, unsettled.file.path)
        keys = {key for delete in unsettled.equality for key, _ in _read(table, delete.path)}
        places = {at for delete in unsettled.others for at, _ in _read(table, delete.path)}
        named = np.fromiter((key in keys for key, _ in rows), bool, len(rows))
        known = np.fromiter((at in places for at in range(len(rows))), bool, len(rows))
        rows_dead = rules.dead(unsettled, named, known, table.format)
        if len(rows_dead):
            path = f"{table.name}/{name}-{len(found)}"
            table.storage.write(path, [(int(at), 0) for at in rows_dead])
            found.append(NewDelete(unsettled, path, 1, len(rows_dead), 0 if table.format > 2 else None))
    return found


def _read(table: MemoryTable, path: str) -> Sequence[tuple[int, int]]:
    try:
        return table.storage.files[path]
    except KeyError as gone:
        raise Unreadable(f"{path} has been deleted since it was planned") from gone


# ── compact ────────────────────────────────────────────────────────────────────────────────
def compact(
    table: MemoryTable,
    rules: Upkeep,
    name: str,
    choose: Callable[[Snapshot], Collection[str]],
    *,
    looks: bool = True,
    applies: bool = True,
) -> Job:
    """Put the live rows of some files into one, as Iceberg's `rewrite_data_files` does.

    Ours `looks` which deletes would go with it. One that does not apply equality deletes leaves them to hold for the new file, too.
    """
    planned, sources = yield Do(f"plan the compaction of {table.name}", lambda: _chosen(table, choose))
    if not sources:
        return True
    left: Collection[str] = () if applies else planned.deletes
    number = rules.written_as_of([planned.deletes[path] for path in left], planned.sequence)
    sources = [source for source in sources if rules.comes(planned.data[source], number)]
    if not sources:
        return True
    path = f"{table.name}/{name}"
    yield Do("rewrite", lambda: table.storage.write(path, table.live(planned, sources, equality=applies)))
    change = rules.rewrite(Rewrite(name, planned.id, sources, path, number, looks, left))
    return (yield from _commit(table, change)) is not None


def _chosen(table: MemoryTable, choose: Callable[[Snapshot], Collection[str]]) -> tuple[Snapshot | None, Collection[str]]:
    now = None if table.current is None else table.snapshots[table.current]
    return now, choose(now) if now else ()


def _commit(table: MemoryTable, change: RowDelta | Rewrite) -> Generator[Do | Swap, Any, int | None]:
    """Commit, and look what came of it where nobody says; None when it was refused."""
    while True:
        match (yield Swap(change)):
            case Landed(snapshot=snapshot):
                return snapshot
            case Refused():
                return None
            case NotLanded():
                found: int | None = yield Do("look for it", lambda: _find(table, change.name))
                if found is not None:
                    return found


def _find(table: MemoryTable, name: str) -> int | None:
    return next((s.id for s in table.snapshots.values() if s.upkeep == name), None)


# ── expire ─────────────────────────────────────────────────────────────────────────────────
def expire(
    table: MemoryTable, rules: Upkeep, keep: int, staged: Callable[[], Collection[str]], age: Callable[[], Callable[[str], bool]]
) -> Job:
    """Drop all but the newest snapshots, then files: those that only they held, and orphans of some `age`."""
    unneeded: set[str] = yield Do(
        f"expire {table.name}, keeping {keep}", lambda: table.expire(rules.kept(table, keep), rules.held(table.tags.values()))
    )
    yield Do("delete what only they held", lambda: table.storage.delete(unneeded - set(staged())))
    unknown, old = yield Do("list files", lambda: (_unknown(table), age()))
    found = rules.orphans(unknown, staged(), old)
    # What was published meanwhile is neither staged any more nor known to what was seen.
    yield Do("delete orphans", lambda: table.storage.delete(set(found) & _unknown(table)))
    return True


def _unknown(table: MemoryTable) -> set[str]:
    known = {path for snapshot in table.snapshots.values() for path in snapshot.files}
    return {path for path in table.storage.files if path.startswith(f"{table.name}/")} - known
