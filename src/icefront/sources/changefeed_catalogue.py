"""What this process knows of a changefeed's files, learned by listing and from readers' reports.

    look ─▶ names ─▶ data files (by table)        ─▶ may this file hold rows of an epoch?
                └──▶ resolved timestamps: seen ─▶ look once more ─▶ confirmed

A resolved timestamp counts only once a listing has begun after its file was seen: whatever it
covers was written before it, but a listing that is under way may have passed by already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

import msgspec
import structlog

from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.sources.changefeed_names import DataName, ResolvedName, day_of, is_day, is_resolved, parse_name
from icefront.sources.changefeed_store import Entry, Stat, Store, unreachable

COMPRESSION = 8  # a compressed file is taken to hold so many times its bytes
ROOT = ""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FeedFile:
    """A data file as listed. `late`: it appeared where this process had already looked."""

    path: str
    timestamp: Timestamp
    table: str
    schema_id: int
    codec: str
    size: int
    mtime: int
    late: bool

    @property
    def text_bytes(self) -> int:
        """Estimate the size without compression."""
        return self.size * COMPRESSION if self.codec else self.size


@dataclass(slots=True)
class Work:
    """How much listing was done: what makes a poll cheap or dear."""

    folders: int = 0
    parsed: int = 0


@dataclass(slots=True)
class Catalogue:
    """The files of one feed. Files never change once listed; a name seen is not looked at again.

    `version` grows with whatever is learned or forgotten: as long as it stays, so does every answer.
    """

    store: Store
    work: Work = field(default_factory=Work)
    version: int = 0
    shows_resolved: bool = False  # the last listing showed a RESOLVED file, new or not
    _names: dict[str, set[str]] = field(default_factory=dict)
    _files: dict[str, dict[str, FeedFile]] = field(default_factory=dict)
    _tables: dict[str, Timestamp] = field(default_factory=dict)
    _ends: dict[str, Timestamp] = field(default_factory=dict)
    _seen: dict[Timestamp, int] = field(default_factory=dict)  # resolved timestamps, and when their files were written
    _fresh: set[Timestamp] = field(default_factory=set)  # of these: not confirmed yet
    _in_order: list[Timestamp] | None = None  # the same again; None when it has to be sorted anew
    _covered: str | None = None
    _named: str | None = None  # like `_covered`, but for the tables' names, which are not forgotten
    _warned: bool = False

    # ── listing ────────────────────────────────────────────────────────────────────────────
    def look(self, since: Timestamp) -> None:
        """Look for new files named `since` or later, and up to a day earlier.

        Where this process has looked before, only folders from a day before the newest resolved
        timestamp on are listed: a feed names new files after what it has resolved, and restarts
        from there.
        """
        covered, newest, first_day = self._covered, self.newest_seen(), horizon(since)
        if covered is not None and covered <= first_day and newest is not None:
            first_day = max(first_day, horizon(newest))
        before = known = self._known(ROOT)
        if covered is not None and first_day < covered:
            # Going back in time: files in the root may have been forgotten, so their names are read again.
            known = self._names[ROOT] = set()
        folders: list[str] = []
        shows_resolved = False
        self.work.folders += 1
        for entry in self.store.top():
            shows_resolved = shows_resolved or is_resolved(entry.name)
            if entry.name in known:
                continue
            if is_day(entry.name) and entry.is_folder:
                if entry.name >= first_day:
                    folders.append(entry.name)
            else:
                self._note(ROOT, entry, late=covered is not None and entry.name not in before)
        for folder in sorted(folders):
            self.work.folders += 1
            known = self._known(folder)
            for entry in self.store.walk(folder):
                shows_resolved = shows_resolved or is_resolved(entry.name)
                if entry.name not in known:
                    self._note(folder, entry, late=covered is not None and folder >= covered)
        self.shows_resolved = shows_resolved
        self._covered = first_day if covered is None else min(covered, first_day)
        self._named = first_day if self._named is None else min(self._named, first_day)
        self._check_newest(newest)

    def cover(self, since: Timestamp) -> None:
        """List unless all folders that a position `since` needs have been listed before."""
        if self._covered is None or self._covered > horizon(since):
            self.look(since)

    def _known(self, folder: str) -> set[str]:
        return self._names.setdefault(folder, set())

    def _note(self, folder: str, entry: Entry, *, late: bool) -> None:
        self.work.parsed += 1
        name = entry.name.rsplit("/", 1)[-1]
        what = parse_name(name)
        if what is None:
            if is_day(name) or name.isdigit():
                entry.stat()  # a folder's name, and no folder: a link that leads nowhere stops
            self._warn(folder, name)
        else:
            stat = entry.stat()
            if stat is None or not stat.size:
                return  # vanished, or not written yet: it will be looked at again
            self._add(f"{folder}/{entry.name}" if folder else entry.name, what, stat, late=late)
        self._known(folder).add(entry.name)

    def _add(self, path: str, what: DataName | ResolvedName, stat: Stat, *, late: bool) -> None:
        self.version += 1
        match what:
            case DataName(timestamp=timestamp, topic=topic, schema_id=schema_id, codec=codec):
                file = FeedFile(path, timestamp, topic, schema_id, codec, stat.size, stat.mtime, late)
                self._files.setdefault(topic, {}).setdefault(path, file)
                self._tables[topic] = max(timestamp, self._tables.get(topic, timestamp))
            case ResolvedName(timestamp=timestamp):
                self._see(timestamp, stat.mtime)

    def _warn(self, folder: str, name: str) -> None:
        if not self._warned and name[:1] not in "._" and name.endswith((".ndjson", ".ndjson.gz", ".ndjson.zst")):
            self._warned = True
            _log.warning("not a changefeed file: ignored, and others like it", folder=self.store.where(folder), name=name)

    # ── resolved timestamps ────────────────────────────────────────────────────────────────
    def _see(self, resolved: Timestamp, mtime: int) -> None:
        if resolved not in self._seen:
            self._seen[resolved] = mtime
            self._fresh.add(resolved)
            self._in_order = None

    def _unsee(self, resolved: Timestamp) -> None:
        self.version += 1
        del self._seen[resolved]
        self._fresh.discard(resolved)
        self._in_order = None

    def _resolved(self) -> list[Timestamp]:
        if self._in_order is None:
            self._in_order = sorted(self._seen, key=lambda r: (r.wall, r.logical))
        return self._in_order

    def unconfirmed(self) -> frozenset[Timestamp]:
        return frozenset(self._fresh)

    def confirm(self, seen: frozenset[Timestamp]) -> None:
        """Accept what was seen before the last listing began."""
        self.version += 1
        self._fresh -= seen

    def newest_seen(self) -> Timestamp | None:
        return self._resolved()[-1] if self._seen else None

    def oldest_seen(self) -> Timestamp | None:
        return self._resolved()[0] if self._seen else None

    def confirmed_after(self, timestamp: Timestamp | None) -> list[Timestamp]:
        resolved = self._resolved()
        first = 0 if timestamp is None else bisect_right(resolved, timestamp)
        return [r for r in resolved[first:] if r not in self._fresh]

    def written(self, resolved: Timestamp) -> int | None:
        """Return when the file of a resolved timestamp was written, in the store's milliseconds."""
        return self._seen.get(resolved)

    def _check_newest(self, before: Timestamp | None) -> None:
        """Compare the newest RESOLVED file's contents with its name, once.

        A resolved timestamp is a promise about everything before it, so of two the lesser is safe.
        """
        newest = self.newest_seen()
        if newest is None or newest == before:
            return
        path = self._resolved_path(newest)
        if path is None:
            return
        inside = self._resolved_inside(path)
        if inside is None:
            self._forget_resolved(newest, path)
        elif inside < newest:
            _log.warning("a RESOLVED file holds another timestamp than its name", file=self.store.where(path), inside=str(inside))
            mtime = self._seen[newest]
            self._unsee(newest)
            self._see(inside, mtime)

    def _resolved_path(self, resolved: Timestamp) -> str | None:
        name = f"{resolved.name()}.RESOLVED"
        day = day_of(resolved)
        for folder, found in ((day, name), (ROOT, name), (day, f"{resolved.name()[8:10]}/{name}")):
            if found in self._names.get(folder, ()):
                return f"{folder}/{found}" if folder else found
        return None

    def _resolved_inside(self, path: str) -> Timestamp | None:
        file = self.store.open(path)
        try:
            text = bytes(file.read(4096))
        except OSError as error:
            raise unreachable(self.store.where(path), error) from error
        finally:
            file.close()
        try:
            return Timestamp.parse(msgspec.json.decode(text)["resolved"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _forget_resolved(self, resolved: Timestamp, path: str) -> None:
        _log.warning("a RESOLVED file does not hold a timestamp: ignored until it does", file=self.store.where(path))
        self._look_again(path)
        self._unsee(resolved)

    def _look_again(self, path: str) -> None:
        folder, slash, name = path.partition("/")
        if slash:
            self._known(folder).discard(name)
        else:
            self._known(ROOT).discard(path)

    # ── data files ─────────────────────────────────────────────────────────────────────────
    def tables(self, since: Timestamp) -> Mapping[str, Timestamp]:
        """Look for new files, and name all tables that ever had one, with the greatest name timestamp of each.

        Files are forgotten, tables are not: the past is listed only once, however often somebody asks for all that there are.
        """
        newest = self.newest_seen()
        is_known = self._named is not None and self._named <= horizon(since)
        self.look(newest if is_known and newest is not None else since)
        return self._tables

    def files(self, table: str) -> Iterator[FeedFile]:
        return iter(self._files.get(table, {}).values())

    def end(self, file: FeedFile) -> Timestamp | None:
        """Return the greatest change timestamp in a file, if it has been read in this process."""
        return self._ends.get(file.path)

    def learn(self, path: str, table: str, end: Timestamp, size: int | None) -> None:
        """Remember what reading a file showed. `size` is set where the bytes read are the file's own."""
        file = self._files.get(table, {}).get(path)
        if file is None:
            return
        self.version += 1
        if size is not None and size > file.size:
            # It has grown since it was listed, so it may grow again: nobody knows its end.
            self._files[table][path] = replace(file, size=size, late=True)
            self._ends.pop(path, None)
        else:
            self._ends[path] = end

    def forget(self, resolved: Timestamp, frontier: Timestamp, low: Timestamp) -> None:
        """Drop what is not needed any more: files read to their end before `frontier`, and everything named long before `low`."""
        self.version += 1
        first_day = horizon(low)
        first = Timestamp.parse_name(first_day.replace("-", "").ljust(33, "0")) if first_day else ORIGIN
        for files in self._files.values():
            for path, file in list(files.items()):
                end = self._ends.get(path)
                if (end is not None and end < frontier) or file.timestamp < first:
                    del files[path]
                    self._ends.pop(path, None)
        for folder in [f for f in self._names if f != ROOT and f < first_day]:
            del self._names[folder]
        for old in [r for r in self._seen if r < resolved]:
            self._unsee(old)
        if self._covered is not None:
            self._covered = max(self._covered, first_day)


def horizon(timestamp: Timestamp) -> str:
    """Name the first folder to list for files named `timestamp` or later: a day of margin, as file names have had bugs."""
    if timestamp == ORIGIN:
        return ""
    day = date.fromisoformat(day_of(timestamp))
    return (day - timedelta(days=1)).isoformat() if day > date(1970, 1, 1) else ""


def by_name(files: Iterator[FeedFile]) -> Sequence[FeedFile]:
    """Sort files as they are to be read: the same list always gives the same splits."""
    return sorted(files, key=lambda f: (f.timestamp.wall, f.timestamp.logical, f.path))
