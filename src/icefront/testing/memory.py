"""Ports in memory, as far as the protocol needs them, with failure switches.

    MemoryTable   snapshots, sequence numbers, deletes by key and by position, tags, one mark; commits under the fence
    Storage       files by path, written once
    Notes         staged notes; can be lost, or restored from an older copy
    Feed          a changefeed: files in any order, resolved timestamps, retention

A row is `(key, value)`; a change is `(rank, target, key, value or None)`, where `rank` is a
timestamp as one number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from icefront.core import protocol
from icefront.core.epochs import Cut, Epoch
from icefront.core.errors import IcefrontError
from icefront.core.files import FileKind, Staged
from icefront.core.marks import Mark, Position
from icefront.core.protocol import Ancestor, Claim, Head, Landed, Load, NotLanded, Publication, Refusal, Send
from icefront.core.timestamps import ORIGIN, Timestamp

Row = tuple[int, int]
Change = tuple[int, int, int, int | None]
Fence = Callable[[Head, Claim | Publication], Mark]
T = TypeVar("T")


class PathReused(AssertionError):
    """A path was written a second time."""


class Unreadable(AssertionError):
    """A visible file is missing or is not what was committed."""


def rank(timestamp: Timestamp) -> int:
    """Return a timestamp of the small worlds used here as one number, in the same order."""
    return timestamp.wall << 8 | timestamp.logical


@lru_cache(maxsize=4096)
def at(number: int) -> Timestamp:
    """Return the timestamp of a rank."""
    return Timestamp(number >> 8, number & 255)


@lru_cache(maxsize=4096)
def position(low: int, reached: int) -> Position:
    """Return the position: files before `low` hold nothing at or after the rank `reached`."""
    return Position.of({"low": low, "reached": reached})


@lru_cache(maxsize=4096)
def coordinates(place: Position) -> tuple[int, int]:
    """Return a position's `low` and `reached`; the start is (0, 0)."""
    value = json.loads(place.text)
    return value.get("low", 0), value.get("reached", 0)


class Storage:
    """Files by path. They never change: a second write is refused, as an object store can do."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[Row, ...]] = {}
        self.written: dict[str, int] = {}

    def write(self, path: str, rows: Iterable[Row]) -> None:
        if path in self.written:
            raise PathReused(f"{path} was written twice")
        self.written[path] = len(self.written)
        self.files[path] = tuple(rows)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.files.pop(path, None)


@dataclass(frozen=True, slots=True)
class Positional:
    """Rows of one data file, deleted by position: its only vector, or one of several position-delete files."""

    file: str
    sequence: int
    vector: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a table: its files, data and equality deletes with their sequence numbers; and what it added and removed.

    `upkeep` is the name that a commit of upkeep gave itself.
    """

    id: int
    parent: int | None
    sequence: int
    data: Mapping[str, int]
    deletes: Mapping[str, int]
    positional: Mapping[str, Positional]
    seen: Ancestor
    operation: str
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    epoch: Epoch | None = None
    upkeep: str | None = None

    @property
    def files(self) -> Iterable[str]:
        return (*self.data, *self.deletes, *self.positional)


class MemoryTable:
    """A table with Iceberg's rules: an equality delete hides rows of strictly lower sequence numbers.

    A vector is the only delete by position that counts for its file; without one all position deletes of the file do.
    `fail`, `lose_answers` and `repeat` make so many of the next commits fail before they are
    applied, be applied without an answer, or be applied and then requested a second time;
    `meanwhile` is done once, between the next commit's sending and its arrival.
    """

    def __init__(
        self, name: str = "orders", storage: Storage | None = None, *, fail: int = 0, lose_answers: int = 0, repeat: int = 0
    ) -> None:
        self.name = name
        self.format = 3
        self.storage = storage or Storage()
        self.fail = fail
        self.lose_answers = lose_answers
        self.repeat = repeat
        self.snapshots: dict[int, Snapshot] = {}
        self.current: int | None = None
        self.mark: Mark | None = None
        self.tags: dict[str, int] = {}
        self.sequence = 0
        self.schema_id = 0
        self.meanwhile: Callable[[], object] | None = None
        self._ids = 0
        self._head: Head | None = None

    # ── what a writer sees ─────────────────────────────────────────────────────────────────
    def head(self) -> Head:
        """Show the mark and the current branch, newest first."""
        if self._head is None:
            chain = list(self.chain())
            whole = not chain or chain[-1].parent is None
            elsewhere: frozenset[UUID] = frozenset()
            if len(chain) < len(self.snapshots):
                on = {s.id for s in chain}
                elsewhere = frozenset(s.seen.epoch_id for s in self.snapshots.values() if s.seen.epoch_id and s.id not in on)
            self._head = Head(self.mark, tuple([s.seen for s in chain]), whole, elsewhere)
        return self._head

    def chain(self) -> Generator[Snapshot]:
        """Walk the current branch as far as snapshots have not expired."""
        snapshot = self.snapshots.get(self.current) if self.current is not None else None
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshots.get(snapshot.parent) if snapshot.parent is not None else None

    def send(self, intent: Claim | Publication) -> Landed | NotLanded:
        """Apply under the fence and answer, as far as the failure switches let it."""
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        if self.fail:
            self.fail -= 1
            return NotLanded("failed before it was applied")
        try:
            landed = Landed(self.apply(intent))
            if self.repeat:
                self.repeat -= 1
                landed = Landed(self.apply(intent))
        except (Refusal, IcefrontError) as refusal:
            return NotLanded(str(refusal))
        if self.lose_answers:
            self.lose_answers -= 1
            return NotLanded("the answer was lost")
        return landed

    def apply(self, intent: Claim | Publication, fence: Fence = protocol.fence) -> int:
        """Apply an intent on the current state in one atomic step; the fence may raise."""
        mark = fence(self.head(), intent)
        match intent:
            case Claim():
                snapshot = self.commit(mark=mark, claims=True)
            case Publication(staged=staged):
                data = [f.path for f in staged.files if f.kind is FileKind.DATA]
                deletes = [f.path for f in staged.files if f.kind is not FileKind.DATA]
                snapshot = self.commit(data, deletes, mark=mark, epoch=staged.epoch)
        return snapshot.id

    # ── what anybody may do ────────────────────────────────────────────────────────────────
    def commit(
        self,
        data: Collection[str] = (),
        deletes: Collection[str] = (),
        *,
        positional: Mapping[str, str] = MappingProxyType({}),
        removed: Collection[str] = (),
        written_at: int | None = None,
        operation: str | None = None,
        upkeep: str | None = None,
        mark: Mark | None = None,
        epoch: Epoch | None = None,
        claims: bool = False,
        rootless: bool = False,
    ) -> Snapshot:
        """Add a snapshot on the current one, or on none if `rootless`.

        `positional` are deletes by position with the data file of each; `written_at` is the sequence number that new data gets.
        """
        parent = None if rootless or self.current is None else self.snapshots[self.current]
        self.sequence += 1
        self._ids += 1
        seen = Ancestor(self._ids, adds_files=bool(data))
        if mark is not None and (claims or epoch is not None):
            seen = Ancestor(self._ids, mark.pipeline, mark.epoch_id, mark.frontier, mark.writer, bool(data), claims)
        kept, hidden, by_position = (dict(parent.data), dict(parent.deletes), dict(parent.positional)) if parent else ({}, {}, {})
        gone = set(removed)
        if gone:
            gone |= dropped(parent, gone, self.sequence - 1) if parent else set()
            for files in (kept, hidden, by_position):
                for path in gone & files.keys():
                    del files[path]
        kept.update(dict.fromkeys(data, self.sequence if written_at is None else written_at))
        hidden.update(dict.fromkeys(deletes, self.sequence))
        by_position |= {path: Positional(file, self.sequence, self.format > 2) for path, file in positional.items()}
        snapshot = Snapshot(
            id=self._ids,
            parent=parent.id if parent else None,
            sequence=self.sequence,
            data=kept,
            deletes=hidden,
            positional=by_position,
            seen=seen,
            operation=operation or _operation(adds=bool(data), deletes=bool(deletes or positional), removes=bool(gone)),
            added=frozenset((*data, *deletes, *positional)),
            removed=frozenset(gone),
            epoch=epoch,
            upkeep=upkeep,
        )
        self.snapshots[snapshot.id] = snapshot
        self.current = snapshot.id
        if mark is not None:
            self.mark = mark
        self._head = None
        return snapshot

    def append(self, path: str, rows: Iterable[Row], mark: Mark | None = None) -> Snapshot:
        """Append rows the way a foreign writer does, or another pipeline that keeps its own `mark`."""
        self.storage.write(path, rows)
        ours = self.mark
        snapshot = self.commit([path], mark=mark, claims=mark is not None)
        self.mark = ours
        return snapshot

    def expire(self, keep: int, tags: Collection[int] | None = None) -> set[str]:
        """Forget all but the newest `keep` snapshots of the current branch and what tags hold; return files that only they held."""
        held = set(self.tags.values() if tags is None else tags)
        held |= {s.id for _, s in zip(range(max(keep, 1)), self.chain(), strict=False)}
        gone = {path for s in self.snapshots.values() if s.id not in held for path in s.files}
        self.snapshots = {i: s for i, s in self.snapshots.items() if i in held}
        self._head = None
        return gone - {path for s in self.snapshots.values() for path in s.files}

    def roll_to(self, snapshot: int | None) -> None:
        """Move `main`. Properties, and so the mark, do not move with it."""
        self.current = snapshot
        self._head = None

    def replace(self, path: str | None = None, rows: Iterable[Row] = ()) -> None:
        """CREATE OR REPLACE: the branch starts again, uuid, properties and old snapshots stay."""
        self.current = None
        self._head = None
        if path is not None:
            self.storage.write(path, rows)
            self.commit([path], rootless=True)

    def live(self, snapshot: Snapshot, paths: Iterable[str] | None = None, *, equality: bool = True) -> list[Row]:
        """Return the rows of a snapshot that no delete hides, or none by position; of some of its files only, if named."""
        files = self.storage.files
        hidden: dict[int, int] = {}
        try:
            for path, sequence in snapshot.deletes.items() if equality else ():
                for key, _ in files[path]:
                    if hidden.get(key, 0) < sequence:
                        hidden[key] = sequence
            chosen = snapshot.data if paths is None else {p: snapshot.data[p] for p in paths}
            rows = [row for path, s in chosen.items() for row in files[path] if hidden.get(row[0], 0) <= s]
            if not snapshot.positional:
                return rows
            dead = self._by_position(snapshot)
            return [
                row
                for path, s in chosen.items()
                for at, row in enumerate(files[path])
                if hidden.get(row[0], 0) <= s and at not in dead.get(path, ())
            ]
        except KeyError as missing:
            raise Unreadable(f"snapshot {snapshot.id} of {self.name} needs {missing}, which is gone") from missing

    def _by_position(self, snapshot: Snapshot) -> dict[str, set[int]]:
        """Return the positions of each data file that are deleted."""
        vectors = {d.file for d in snapshot.positional.values() if d.vector}
        dead: dict[str, set[int]] = {}
        for path, delete in snapshot.positional.items():
            if delete.vector or delete.file not in vectors:
                dead.setdefault(delete.file, set()).update(at for at, _ in self.storage.files[path])
        return dead

    def rows(self) -> list[Row]:
        """Return what a reader of the table sees."""
        return sorted(self.live(self.snapshots[self.current])) if self.current is not None else []


def _operation(*, adds: bool, deletes: bool, removes: bool) -> str:
    """Name a commit's operation as Iceberg's row delta and append do."""
    if deletes and not adds:
        return "delete"
    return "overwrite" if deletes or removes else "append"


def dropped(parent: Snapshot, removed: Collection[str], newest: int) -> set[str]:
    """Return the deletes that Iceberg drops by itself where a commit removes data files.

    Those are the vectors of removed files, and all deletes that are older than the oldest data file that stays. Files that
    come with the same commit do not count, even if they are written as older ones.
    """
    if not any(path in parent.data for path in removed):
        return set()
    oldest = min((s for path, s in parent.data.items() if path not in removed), default=newest)
    dropped = {path for path, d in parent.positional.items() if d.sequence < oldest or (d.vector and d.file in removed)}
    return dropped | {path for path, sequence in parent.deletes.items() if sequence < oldest}


def drive(conversation: Generator[protocol.Request, protocol.Answer, T], table: MemoryTable) -> T:
    """Hold one of the protocol's conversations with a table."""
    answer: protocol.Answer | None = None
    while True:
        try:
            request = next(conversation) if answer is None else conversation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match request:
            case Load():
                answer = table.head()
            case Send(intent=intent):
                answer = table.send(intent)


class Notes:
    """Staged notes: durable, but nobody may depend on them."""

    def __init__(self) -> None:
        self.staged: dict[tuple[str, UUID], Staged] = {}
        self.copy: dict[tuple[str, UUID], Staged] = {}

    def put(self, note: Staged) -> None:
        self.staged[note.target, note.epoch_id] = note

    def published(self, note: Staged) -> None:
        self.staged.pop((note.target, note.epoch_id), None)

    def every(self) -> list[Staged]:
        return list(self.staged.values())

    def back_up(self) -> None:
        self.copy = dict(self.staged)

    def restore(self) -> None:
        self.staged = dict(self.copy)

    def lose(self) -> None:
        self.staged = {}


@dataclass(slots=True)
class Feed:
    """A changefeed: what it will deliver is a script of files and resolved timestamps.

    Rows come at least once, in any order within files, also before their time and again later;
    after the resolved timestamp R no unseen row at or before R comes.
    """

    history: Sequence[Change]
    script: Sequence[tuple[Change, ...] | int]
    schema_changes: frozenset[int] = frozenset()
    sizes: dict[int, int] = field(default_factory=dict)
    files: list[tuple[Change, ...]] = field(default_factory=list)
    resolved: list[int] = field(default_factory=list)
    delivered: int = 0
    low: int = 0
    released: int = 0

    @property
    def ended(self) -> bool:
        return self.delivered == len(self.script)

    @property
    def end(self) -> int:
        """The greatest resolved timestamp so far."""
        return max(self.resolved, default=0)

    @property
    def earliest(self) -> Timestamp:
        return at(self.released) if self.released else ORIGIN

    def deliver(self) -> None:
        match self.script[self.delivered]:
            case int() as resolved:
                self.resolved.append(resolved)
            case rows:
                self.files.append(rows)
        self.delivered += 1

    def cuts(self, after: int, frontier: Callable[[Timestamp], Timestamp]) -> tuple[Cut, ...]:
        """Return the cuts after the rank `after`; `frontier` says where a resolved timestamp puts one."""
        return tuple(
            [
                Cut(frontier(at(resolved)), self.sizes.get(resolved, 0), resolved in self.schema_changes)
                for resolved in self.resolved
                if resolved >= after
            ]
        )

    def schema_at(self, lower: int) -> int:
        """Return the schema version of changes from the rank `lower` on."""
        return sum(1 for resolved in self.schema_changes if resolved < lower)

    def read(self, low: int, listed: int) -> list[Change]:
        """Read the files from `low` on, as far as they were listed; released ones are gone without a word."""
        return [change for file in self.files[max(low, self.low) : listed] for change in file]

    def release(self, low: int, released: int) -> None:
        self.low = max(self.low, low)
        self.released = max(self.released, released)
