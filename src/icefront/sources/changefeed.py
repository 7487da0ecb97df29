"""CockroachDB changefeed files as a source: a directory or object-store prefix with data and RESOLVED files.

The feed has a timeline of its own. A resolved timestamp R promises that no unseen change at or
before R will come; an epoch therefore ends at R's successor. Everything else that the file names
suggest is used to read less, never to prove completeness: file-name order has had bugs, feeds
restart and repeat themselves, and a file may hold changes far beyond the next R.

The position at a frontier is

    {"resolved": R, "from": T, "since": M, "waiting": W}

where T is the least name timestamp of a file that may still hold changes beyond R, and M the time
(as the store tells it, in milliseconds) at which R's file was written. A file matters after that
position if its name is T or later, or it was written at M or later, or it turned up while this
process was watching. The second and third only ever add files: reading a file again is harmless,
since its changes are chosen by their own timestamps.

W names, by digests, the files named R or earlier that hold changes beyond R (see `changefeed_waiting`);
it is left out when there is none. Reading goes on from a position only while all of them are there.

One thing is taken from the feed's contract without proof: a new file's name is at most a day older
than what was resolved before it. A feed starts again from its last checkpoint, seconds earlier.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from icefront.core.epochs import Cut, Epoch
from icefront.core.errors import ConnectionFailed, Overcompacted, Stopped
from icefront.core.marks import Identity, Position
from icefront.core.ports import Observation, Report, Split
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.formats import changefeed as messages
from icefront.formats.changefeed import Envelope
from icefront.sources.changefeed_catalogue import Catalogue, FeedFile, by_name
from icefront.sources.changefeed_reader import ChangefeedReader, first_lines, guess_keys
from icefront.sources.changefeed_splits import plan
from icefront.sources.changefeed_store import Store, open_store
from icefront.sources.changefeed_waiting import NONE, Waiting

CLOCK_MARGIN = 60_000
"""Milliseconds by which a file's time may lie before its appearance: S3 dates an upload by its beginning."""

GUESS_ROWS = 1000

_RESTORE = "restore what is gone: clean up only files whose changes are all published; or load into a new table"
_IS_IT_THERE = "is the folder mounted, and is it the feed's? otherwise restore its files, or load into a new table"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Place:
    """A position of this source, read."""

    resolved: Timestamp | None = None
    low: Timestamp = ORIGIN
    since: int = 0
    waiting: Waiting = NONE

    @classmethod
    def of(cls, position: Position) -> Place:
        value = position.value()
        if not value:
            return cls()
        try:
            waiting = Waiting.read(value.get("waiting"))
            return cls(Timestamp.parse(value["resolved"]), Timestamp.parse(value["from"]), int(value["since"]), waiting)
        except (KeyError, TypeError, ValueError) as error:
            raise Stopped(
                f"{position.text[:200]} is not a position in a changefeed",
                "the target was written from another kind of source: give the pipeline another name, or load into a new table",
            ) from error

    @property
    def frontier(self) -> Timestamp:
        return self.resolved.next() if self.resolved else ORIGIN

    def position(self) -> Position:
        waiting = {"waiting": self.waiting.json()} if self.waiting.count else {}
        return Position.of({"resolved": str(self.resolved), "from": str(self.low), "since": self.since, **waiting})


def _one_at_a_time(method: Callable[Concatenate[Changefeed, P], R]) -> Callable[Concatenate[Changefeed, P], R]:
    """Let one thread in: a pipeline's targets share the source, and so what it knows of the files."""

    @wraps(method)
    def locked(self: Changefeed, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Changefeed:
    """The files of one changefeed."""

    def __init__(
        self,
        location: str,
        *,
        storage: Mapping[str, str] | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        name: str | None = None,
        envelope: Envelope = "wrapped",
        split_bytes: int = 64 << 20,
        parallelism: int = 1,
        clock_margin: int = CLOCK_MARGIN,
        store: Store | None = None,
    ) -> None:
        """Look at the changefeed that writes to `location`; nothing is read yet.

        `keys` names tables' key columns where they cannot be found out. `name` is what marks
        remember this feed by; without it the location serves, and a moved feed is another one.
        Epochs are cut into about `parallelism` splits or more, each of at most `split_bytes` of text.
        """
        self.store = store or open_store(location, storage or {})
        self.catalogue = Catalogue(self.store)
        self.lock = RLock()
        self._name = name or self.store.where()
        self._keys: dict[str, Sequence[str] | None] = {table: tuple(columns) for table, columns in (keys or {}).items()}
        self._envelope = envelope
        self._split_bytes = split_bytes
        self._parallelism = parallelism
        self._margin = clock_margin
        self._bytes_per_change = 150.0
        self._lows: dict[str, Timestamp] = {}
        self._planned: set[Epoch] = set()
        self._released = ORIGIN
        # The last observation: a poll that finds nothing new weighs no file again, however many there are.
        self._question: tuple[Position, tuple[str, ...], int] | None = None
        self._answer = Observation((), ORIGIN)

    # ── who and what ───────────────────────────────────────────────────────────────────────
    def identity(self) -> Identity:
        return Identity.of({"changefeed": self._name})

    @_one_at_a_time
    def tables(self, after: Position) -> Sequence[str]:
        """Name the topics that have files with changes after `after`, as far as can be told without reading them."""
        place = Place.of(after)
        known = self.catalogue.tables(place.low)
        return sorted(t for t in known if known[t] >= place.low or self._holding(t, place.frontier, None, place))

    @_one_at_a_time
    def keys(self, table: str) -> Sequence[str] | None:
        """Name the key columns: as set, or found by matching key values with column values in the first rows."""
        if table not in self._keys:
            found = guess_keys(self._first_lines(table))
            if found is None:
                return None
            self._keys[table] = tuple(found)
        return self._keys[table]

    def reader(
        self, table: str, keys: Sequence[str], ignored: Collection[str] = (), renames: Mapping[str, str] = {}
    ) -> ChangefeedReader:
        return ChangefeedReader(self.store, table, tuple(keys), self._envelope, ignored=frozenset(ignored), renames=dict(renames))

    @_one_at_a_time
    def sample(self, table: str) -> Collection[str]:
        """Name the columns that the table's first rows have: cheap, and only a hint."""
        return messages.columns(self._first_lines(table), self._envelope)

    def _first_lines(self, table: str) -> list[bytes]:
        if not any(True for _ in self.catalogue.files(table)):
            self.catalogue.cover(ORIGIN)
        return first_lines(self.store, by_name(self.catalogue.files(table)), GUESS_ROWS)

    # ── observing ──────────────────────────────────────────────────────────────────────────
    @_one_at_a_time
    def observe(self, after: Position, tables: Sequence[str]) -> Observation:
        """Return a cut for each resolved timestamp after `after`.

        A RESOLVED file that is seen for the first time is believed after one more listing: only
        then have all files that were written before it been seen.
        """
        place = Place.of(after)
        self.catalogue.look(place.low)
        if place.resolved is not None and self.catalogue.newest_seen() is None:
            self.catalogue.look(ORIGIN)
        fresh = self.catalogue.unconfirmed()
        if fresh:
            self.catalogue.look(place.low)
            self.catalogue.confirm(fresh)
        self._check_not_behind(place)
        self._check_resolved(place)
        question = after, tuple(tables), self.catalogue.version
        if question != self._question:
            self._check_waiting(tables, place)
            frontiers = [r.next() for r in self.catalogue.confirmed_after(place.resolved)]
            self._answer = Observation(self._cuts(frontiers, place, tables), self._earliest(place))
            self._question = question
        return self._answer

    def _check_not_behind(self, place: Place) -> None:
        newest = self.catalogue.newest_seen()
        if newest is not None and place.resolved is not None and newest < place.resolved:
            raise Stopped(
                f"the newest resolved timestamp in {self.store.where()} is {newest}, the target has changes up to {place.resolved}",
                "the feed was recreated or restored from an older copy: bring the newer files back, or load into a new table",
            )

    def _check_resolved(self, place: Place) -> None:
        """Whoever has taken changes saw a RESOLVED file: a feed that shows none has lost them, or is not there.

        Where this process has seen one, the feed may be away for a moment, and is asked again.
        """
        if place.resolved is None or self.catalogue.shows_resolved:
            return
        fact = f"the target has changes up to {place.resolved}, and {self.store.where()} shows no RESOLVED file"
        newest = self.catalogue.newest_seen()
        if newest is not None:
            raise ConnectionFailed(f"{fact} any more; it did up to {newest}", _IS_IT_THERE)
        raise Overcompacted(fact, _IS_IT_THERE)

    def _earliest(self, place: Place) -> Timestamp:
        """Return the least frontier that can be continued from.

        Whoever has nothing yet may always begin. Whoever is at R needs a resolved timestamp no
        later than R to be there still; otherwise files between the two may have been cleaned away.
        """
        oldest = self.catalogue.oldest_seen()
        return oldest.next() if oldest is not None and place.resolved is not None else ORIGIN

    def _cuts(self, frontiers: Sequence[Timestamp], place: Place, tables: Sequence[str]) -> tuple[Cut, ...]:
        if not frontiers:
            return ()
        sizes, changes = [0] * len(frontiers), [False] * len(frontiers)
        places = [_pair(f) for f in frontiers]
        for table in tables:
            for file in self._holding(table, place.frontier, frontiers[-1], place):
                index = bisect_right(places, _pair(self._counted_at(file, place)))
                if index < len(frontiers):
                    sizes[index] += max(1, round(file.text_bytes / self._bytes_per_change))
            for begins in self._schema_changes(table, place.frontier):
                index = bisect_right(places, _pair(begins)) - 1
                if index >= 0:
                    changes[index] = True
        return tuple(Cut(f, size, change) for f, size, change in zip(frontiers, sizes, changes, strict=True))

    def _counted_at(self, file: FeedFile, place: Place) -> Timestamp:
        """Say where a file's changes are counted: by its name, or where its last change is known to lie."""
        end = self.catalogue.end(file)
        return file.timestamp if end is None else max(end, place.frontier)

    def _schema_changes(self, table: str, lower: Timestamp) -> Iterable[Timestamp]:
        """Name the timestamps at or after `lower` from which a higher schema id is in use."""
        files = list(self.catalogue.files(table))
        if len({file.schema_id for file in files}) < 2:
            return
        known: int | None = None
        for file in sorted(files, key=lambda f: (*_pair(f.timestamp), f.schema_id)):
            if known is not None and file.schema_id > known and file.timestamp >= lower:
                yield file.timestamp
            known = file.schema_id if known is None else max(known, file.schema_id)

    # ── reading ────────────────────────────────────────────────────────────────────────────
    @_one_at_a_time
    def splits(self, table: str, epoch: Epoch, start: Position) -> Sequence[Split]:
        place = Place.of(start)
        self.catalogue.cover(place.low)
        self._check_waiting([table], place)
        self._check_lowest(table, place)
        self._lows[table] = place.low
        self._planned.add(epoch)
        files = by_name(iter(self._holding(table, epoch.lower, epoch.upper, place)))
        return plan(table, files, self._split_bytes, self._parallelism)

    def _check_waiting(self, tables: Sequence[str], place: Place) -> None:
        """Stop unless all files are there that held changes after the position; it belongs to one of the tables."""
        missing = self._missing(tables, place)
        if missing:
            of = f" of {tables[0]}" if len(tables) == 1 and tables[0] else ""
            raise Overcompacted(
                f"{missing} of {place.waiting.count} files{of} that held changes after {place.resolved}"
                f" (named {place.low.name()} or later) {'is' if missing == 1 else 'are'} gone from {self.store.where()}",
                _RESTORE,
            )

    def _missing(self, tables: Sequence[str], place: Place) -> int:
        if not place.waiting.count:
            return 0
        low, end = _pair(place.low), _pair(place.frontier)
        files = (file for table in tables for file in self.catalogue.files(table))
        return place.waiting.missing([file for file in files if low <= _pair(file.timestamp) < end])

    def _check_lowest(self, table: str, place: Place) -> None:
        """A position below its own resolved timestamp says that a file of that name had changes left: it must still be there.

        Positions of before there were waiting files say no more than this.
        """
        if place.resolved is None or place.low >= place.resolved or place.waiting.count:
            return
        if not any(file.timestamp == place.low for file in self.catalogue.files(table)):
            raise Overcompacted(
                f"a file of {table} named {place.low.name()} held changes after {place.resolved}, and is gone from {self.store.where()}",
                _RESTORE,
            )

    def _holding(self, table: str, lower: Timestamp, upper: Timestamp | None, place: Place) -> list[FeedFile]:
        """Choose the files that may hold changes in [lower, upper) for whoever is at `place`."""
        return [
            file
            for file in self.catalogue.files(table)
            if (upper is None or file.timestamp < upper)
            and not self._ends_before(file, lower)
            and (file.late or file.timestamp >= place.low or file.mtime >= place.since - self._margin)
        ]

    def _ends_before(self, file: FeedFile, lower: Timestamp) -> bool:
        end = self.catalogue.end(file)
        return end is not None and end < lower

    @_one_at_a_time
    def reached(self, epoch: Epoch, start: Position, reports: Sequence[Report]) -> Position:
        """Return the position at the epoch's end, for the table that the reports are about.

        Without reports nothing was there to be read, provided that splits were planned: then no
        file named before the end matters any more.
        """
        place = Place.of(start)
        resolved = epoch.upper.prev()
        tables = self._learn(reports)
        low, waiting = min(resolved, place.low), place.waiting
        if tables or epoch in self._planned:
            held = [f for t in tables for f in self._holding(t, epoch.upper, epoch.upper, place)]
            low, waiting = min([resolved, *(f.timestamp for f in held)]), Waiting.among(held)
        for table in tables:
            # An old name may turn up late, so the position can step back to it, below where reading began.
            self._lows[table] = min(low, self._lows.get(table, low))
        since = self.catalogue.written(resolved)
        return Place(resolved, low, place.since if since is None else since, waiting).position()

    def _learn(self, reports: Sequence[Report]) -> set[str]:
        """Take in what readers saw of each file; parts of one file come in several reports."""
        tables: set[str] = set()
        files: dict[str, _Seen] = {}
        for report in reports:
            if report.seen and not report.wishes:
                table = str(report.seen["table"])
                tables.add(table)
                parts: Mapping[str, Mapping[str, Any]] = report.seen["files"]  # type: ignore[assignment]
                for path, part in parts.items():
                    files[path] = _Seen.of(table, part).merged(files.get(path))
        for path, seen in files.items():
            self.catalogue.learn(path, seen.table, seen.end, seen.size if seen.plain else None)
        self._learn_size(sum(s.rows for s in files.values()), sum(s.size for s in files.values()))
        return tables

    def _learn_size(self, rows: int, size: int) -> None:
        if rows:
            weight = min(0.5, rows / 100_000)
            self._bytes_per_change += weight * (size / rows - self._bytes_per_change)

    # ── releasing ──────────────────────────────────────────────────────────────────────────
    @_one_at_a_time
    def release(self, position: Position) -> None:
        """Forget what no target needs; the feed's files are left alone.

        The position is that of the slowest target. Another table's files may matter from an
        earlier name on, so names are forgotten below the least that any table was read from.
        """
        place = Place.of(position)
        if place.resolved is None or place.frontier <= self._released:
            return
        self._released = place.frontier
        self._planned = {epoch for epoch in self._planned if epoch.upper > place.frontier}
        self.catalogue.forget(place.resolved, place.frontier, min([place.low, *self._lows.values()]))


def _pair(timestamp: Timestamp) -> tuple[int, int]:
    """Return what orders as the timestamp does, but compares faster: there may be very many files."""
    return timestamp.wall, timestamp.logical


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all parts of a file showed together."""

    table: str
    end: Timestamp
    rows: int
    size: int
    plain: bool

    @classmethod
    def of(cls, table: str, part: Mapping[str, Any]) -> _Seen:
        end = Timestamp.parse(part["max"]) if part["max"] else ORIGIN
        return cls(table, end, part["rows"], part["bytes"], part["plain"])

    def merged(self, other: _Seen | None) -> _Seen:
        if other is None:
            return self
        return _Seen(self.table, max(self.end, other.end), self.rows + other.rows, self.size + other.size, self.plain)
