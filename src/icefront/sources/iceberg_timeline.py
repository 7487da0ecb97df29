"""A table's snapshots as a timeline: from metadata and a position to the stages that come next.

    the first state, file by file ─▶ batch ─▶ batch ─▶ … ─▶ then one stage for each snapshot of main, in order

A stage's changes have one timestamp, and the stage ends at its successor:

    (sequence number of the snapshot, 0)        when that is ahead of the frontier
    (the table's last sequence number, 0)       when it is not: main was moved back, or to another branch
    the frontier itself, logical + 1            when that is not ahead either: several batches or moves at one number

So timestamps grow whatever is done to the table, and are found again from the position alone. Format 1 numbers nothing: there wall
stays 0 and logical counts the stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefront.core.errors import Overcompacted, SourceChanged, Stopped
from icefront.core.marks import Position
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import history

INITIAL, LATEST = "initial", "latest"
Start = str | int | datetime
"""Where a reader begins: `initial`, `latest`, after the snapshot with this id, or after the one that was current at a time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position of this source, read: all changes before `frontier` are told.

    They lead to `snapshot` (None: to the empty table) in the schema with the id `schema`. While that is being loaded, `loaded` counts
    its files so far.
    """

    table: str
    frontier: Timestamp
    snapshot: int | None
    schema: int
    loaded: int | None = None

    @classmethod
    def of(cls, position: Position) -> Place | None:
        """Read a position; None of a source that has not been read."""
        value = position.value()
        if not value:
            return None
        try:
            frontier = Timestamp.parse(value["frontier"])
            return cls(value["table"], frontier, value["snapshot"], value["schema"], value.get("loaded"))
        except (KeyError, TypeError, ValueError) as error:
            raise Stopped(
                f"{position.text[:200]} is not a position in an Iceberg table",
                "the target was written from another kind of source: give the pipeline another name, or load into a new table",
            ) from error

    def position(self) -> Position:
        value = {"table": self.table, "frontier": str(self.frontier), "snapshot": self.snapshot, "schema": self.schema}
        return Position.of(value if self.loaded is None else value | {"loaded": self.loaded})


@dataclass(frozen=True, slots=True)
class Stage:
    """What is told at one timestamp: from one state of the table to the next, or some files of the first state.

    `before` is None where nothing was told yet; `files` is the range of the snapshot's files that this stage loads.
    """

    at: Timestamp
    before: Place | None
    after: Place
    parent: Snapshot | None
    snapshot: Snapshot | None
    files: range | None = None

    @property
    def is_back(self) -> bool:
        """Say whether it leads to a state that is older than the one before."""
        if self.parent is None or self.snapshot is None:
            return False
        now, then = ((s.sequence_number or 0, s.timestamp_ms) for s in (self.snapshot, self.parent))
        return now < then


@dataclass(frozen=True)
class Timeline:
    """What comes next in a table, as its metadata has it now.

    Where `sizes` are asked for, they are the bytes of the files of the state that is being loaded, in their settled order; a batch
    has at most `batch_bytes` of them, or one file.
    """

    name: str
    metadata: TableMetadata
    batch_bytes: int

    @property
    def uuid(self) -> str:
        return str(self.metadata.table_uuid)

    def base(self, start: Start) -> Snapshot | None:
        """Choose the state that a new reader begins with; None: the empty table."""
        return history.find(self.name, self.metadata, None if start in {INITIAL, LATEST} else start)

    def state(self, place: Place) -> Snapshot | None:
        """Return the state that a reader has reached; it must be there still."""
        if place.table != self.uuid:
            raise SourceChanged(
                f"the target was written from table {place.table}, {self.name} is table {self.uuid}",
                "it was dropped and made anew: restore it, or load into a new table",
            )
        if place.snapshot is None:
            return None
        found = self.metadata.snapshot_by_id(place.snapshot)
        if found is None:
            oldest = min(self.metadata.snapshots, key=lambda s: s.timestamp_ms, default=None)
            there = f"the oldest that is left is {oldest.snapshot_id}" if oldest else "it has none left"
            raise Overcompacted(
                f"the target has {self.name} up to snapshot {place.snapshot}, which has expired: {there}",
                "what changed between the two is gone: load into a new table",
            )
        return found

    def begin(self, start: Start, sizes: Sequence[int]) -> Iterator[Stage]:
        """Return the first stages of a new reader: the whole state in batches, or only the place where it begins."""
        base = self.base(start)
        if start == INITIAL and base is not None:
            yield from self._load(replace(self._place(ORIGIN, base), frontier=ORIGIN, loaded=0), base, sizes)
            return
        at = self._next(ORIGIN, base)
        yield Stage(at, None, self._place(at, base), base, base)

    def follow(self, place: Place, sizes: Sequence[int]) -> Iterator[Stage]:
        """Return all stages after a place, as far as the table goes now."""
        state = self.state(place)
        if place.loaded is not None:
            for stage in self._load(place, state, sizes):
                yield stage
                place = stage.after
        current = self.metadata.current_snapshot()
        if current is None and state is not None:
            # The table was replaced by one without rows.
            at = self._next(place.frontier, None)
            yield Stage(at, place, self._place(at, None), state, None)
            return
        for step in history.steps(self.metadata, state, current, net=False):
            at = self._next(place.frontier, step.snapshot)
            after = self._place(at, step.snapshot)
            yield Stage(at, place, after, step.parent, step.snapshot)
            place = after

    def _load(self, place: Place, state: Snapshot | None, sizes: Sequence[int]) -> Iterator[Stage]:
        for files in batches(sizes, place.loaded or 0, self.batch_bytes):
            first = place.frontier == ORIGIN
            at = self._next(ORIGIN, state) if first else place.frontier
            after = replace(place, frontier=at.next(), loaded=files.stop if files.stop < len(sizes) else None)
            yield Stage(at, None if first else place, after, None, state, files)
            place = after

    def _place(self, at: Timestamp, snapshot: Snapshot | None) -> Place:
        number = snapshot.snapshot_id if snapshot else None
        return Place(self.uuid, at.next(), number, history.schema_of(self.metadata, snapshot).schema_id)

    def _next(self, frontier: Timestamp, snapshot: Snapshot | None) -> Timestamp:
        number = (snapshot.sequence_number or 0) if snapshot else 0
        if number > frontier.wall:
            return Timestamp(number)
        return max(Timestamp(getattr(self.metadata, "last_sequence_number", 0)), frontier) if frontier != ORIGIN else ORIGIN


def batches(sizes: Sequence[int], begin: int, limit: int) -> Iterator[range]:
    """Cut files from `begin` on into batches of at most `limit` bytes, or one file; without any files there is one empty batch."""
    total = 0
    for at in range(begin, len(sizes)):
        if at > begin and total + sizes[at] > limit:
            yield range(begin, at)
            begin, total = at, 0
        total += sizes[at]
    if begin < len(sizes) or not sizes:
        yield range(begin, len(sizes))
