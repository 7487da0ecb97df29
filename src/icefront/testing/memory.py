"""Ports in memory, as far as the protocol needs them, with failure switches.

    MemoryTable   snapshots, sequence numbers, equality deletes, one mark; commits under the fence
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
        self.written: set[str] = set()

    def write(self, path: str, rows: Iterable[Row]) -> None:
        if path in self.written:
            raise PathReused(f"{path} was written twice")
        self.written.add(path)
        self.files[path] = tuple(rows)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.files.pop(path, None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a table: data and equality-delete files with their sequence numbers."""

    id: int
    parent: int | None
    sequence: int
    data: Mapping[str, int]
    deletes: Mapping[str, int]
    seen: Ancestor
    epoch: Epoch | None = None


class MemoryTable:
    """A table with Iceberg's rules: an equality delete hides rows of strictly lower sequence numbers.

    `fail`, `lose_answers` and `repeat` make so many of the next commits fail before they are
    applied, be applied without an answer, or be applied and then requested a second time;
    `meanwhile` is done once, between the next commit's sending and its arrival.
    """

    def __init__(
        self, name: str = "orders", storage: Storage | None = None, *, fail: int = 0, lose_answers: int = 0, repeat: int = 0
    ) -> None:
        self.name = name
        self.storage = storage or Storage()
        self.fail = fail
        self.lose_answers = lose_answers
        self.repeat = repeat
        self.snapshots: dict[int, Snapshot] = {}
        self.current: int | None = None
        self.mark: Mark | None = None
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
        mark: Mark | None = None,
        epoch: Epoch | None = None,
        claims: bool = False,
        base: Snapshot | None = None,
        rootless: bool = False,
    ) -> Snapshot:
        """Add a snapshot on the current one; `base` gives the files it starts from instead, `rootless` none."""
        parent = None if rootless or self.current is None else self.snapshots[self.current]
        start = base or parent
        self.sequence += 1
        self._ids += 1
        seen = Ancestor(self._ids, adds_files=bool(data) or base is not None)
        if mark is not None and (claims or epoch is not None):
            seen = Ancestor(self._ids, mark.pipeline, mark.epoch_id, mark.frontier, mark.writer, bool(data))
        kept, hidden = (dict(start.data), dict(start.deletes)) if start else ({}, {})
        kept.update(dict.fromkeys(data, self.sequence))
        hidden.update(dict.fromkeys(deletes, self.sequence))
        snapshot = Snapshot(self._ids, parent.id if parent else None, self.sequence, kept, hidden, seen, epoch)
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

    def rewrite(self, planned: Snapshot, sources: Collection[str], path: str) -> Snapshot | None:
        """Merge `sources`, as they read in `planned`, into one file; give up if the branch has left them.

        The merged file keeps the sequence number of `planned`: deletes that came since still hide
        its rows. Delete files that can hide nothing any more are dropped.
        """
        now = self.snapshots[self.current] if self.current is not None else None
        on_branch = any(snapshot.id == planned.id for snapshot in self.chain())
        if now is None or not on_branch or any(source not in now.data for source in sources):
            return None
        self.storage.write(path, self.live(planned, sources))
        data = {p: s for p, s in now.data.items() if p not in sources}
        data[path] = planned.sequence
        oldest = min(data.values())
        deletes = {p: s for p, s in now.deletes.items() if s > oldest}
        return self.commit(base=Snapshot(now.id, now.parent, now.sequence, data, deletes, now.seen))

    def expire(self, keep: int) -> None:
        """Forget all but the newest `keep` snapshots of the current branch, and files only they held."""
        kept = {s.id: s for _, s in zip(range(max(keep, 1)), self.chain(), strict=False)}
        gone = [s for s in self.snapshots.values() if s.id not in kept]
        held = {path for s in kept.values() for files in (s.data, s.deletes) for path in files}
        self.storage.delete({path for s in gone for files in (s.data, s.deletes) for path in files} - held)
        self.snapshots = kept
        self._head = None

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

    def live(self, snapshot: Snapshot, paths: Iterable[str] | None = None) -> list[Row]:
        """Return the rows of a snapshot that no delete hides; of some of its files only, if named."""
        files = self.storage.files
        hidden: dict[int, int] = {}
        try:
            for path, sequence in snapshot.deletes.items():
                for key, _ in files[path]:
                    if hidden.get(key, 0) < sequence:
                        hidden[key] = sequence
            chosen = snapshot.data if paths is None else {p: snapshot.data[p] for p in paths}
            return [row for path, s in chosen.items() for row in files[path] if hidden.get(row[0], 0) <= s]
        except KeyError as missing:
            raise Unreadable(f"snapshot {snapshot.id} of {self.name} needs {missing}, which is gone") from missing

    def rows(self) -> list[Row]:
        """Return what a reader of the table sees."""
        return sorted(self.live(self.snapshots[self.current])) if self.current is not None else []


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
