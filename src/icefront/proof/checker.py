"""The checker: what must hold of a pipeline's table after every fault, found out without the writer's code.

    feed ──── oracle ──────▶ rows at a frontier ─┐
    table ─── Spark ───────▶ rows at a snapshot ─┤
    metadata  PyIceberg ───▶ snapshots and files ├─▶ violations
    notes ─── SQLite ──────▶ staged files ───────┤
    logs ──── of the runs ─▶ released frontiers ─┘

It looks as often as it is asked to and remembers what it saw: every published snapshot is compared once, and a file that was
staged or committed has to stay as it was for as long as anything refers to it. What is wrong is a value, not an exception; what
cannot be looked at hides nothing of what else there is.

Rows whose first key is at least `FOREIGN` belong to a foreign writer, who names them in the summary of its snapshots: the feed
never says such keys, and none of these rows may be lost or changed either. They have a key and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icefront.proof.logs import early_releases
from icefront.proof.oracle import Difference, Key, Row, compare
from icefront.proof.trouble import ONE, is_local, trouble_of

At = tuple[int, int]
FOREIGN = 10**15
FOREIGN_ROWS = "foreign.rows"
"""The summary entry in which a foreign writer names the keys that it appends, separated by commas."""
FOREIGN_REMOVED = "foreign.removed"
"""The same for those keys of its own that it deletes again."""
_SHOWN = 3


class Kind(StrEnum):
    """What may be wrong."""

    ROWS = "rows"  # a snapshot differs from the feed at its frontier
    FOREIGN = "foreign-rows"  # a foreign writer's rows were lost, doubled or changed
    ADDED_TWICE = "added-twice"  # one file is added by two snapshots, or twice by one
    REMOVED = "removed"  # a staged or committed file is gone, or the table itself
    CHANGED = "changed"  # a staged or committed file was written again
    BACK = "frontier-back"  # a frontier, or the branch itself, went back
    GAP = "gap"  # an epoch does not begin where the one before it ended
    EPOCH_TWICE = "epoch-twice"  # two snapshots publish the same epoch
    CLAIM = "claim"  # a claim changed something
    WRITER = "writer"  # a writer that does not own the table published an epoch or changed the table
    MARK = "mark"  # the mark is not what the branch says
    UNSETTLED = "unsettled"  # a table whose epochs are published settled got an equality delete
    RELEASED = "released"  # the source was released above the frontier
    UNREADABLE = "unreadable"  # the table cannot be read any more


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be: where, what had to be there, and what is."""

    kind: str
    where: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}, found {self.found}"

    def to_dict(self) -> dict[str, str]:
        return {"kind": str(self.kind), "where": self.where, "expected": self.expected, "found": self.found}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: one target of one pipeline, and how to see its sides."""

    pipeline: str
    keys: tuple[str, ...]
    load: Callable[[], Table | None]
    read: Callable[[int], Iterable[Row]]
    """Rows of one snapshot, by an engine that applies equality deletes."""
    expected: Callable[[str], Mapping[Key, Row]]
    """Rows at a printed frontier, from the feed."""
    state: Path
    settled: bool = False
    """Whether its epochs are published settled: then no snapshot may add an equality delete."""


# ── what was seen ──────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Sight:
    """A file as it was when first seen; `written` is its time of writing, where the storage has one that tells."""

    size: int
    sha256: str
    written: int = 0

    def __str__(self) -> str:
        return f"{self.size} bytes, sha256 {self.sha256[:12]}…, written at {self.written}"


@dataclass(frozen=True, slots=True)
class _Passed:
    """Where the branch stands after one of its snapshots."""

    frontier: At = (0, 0)
    foreign: frozenset[int] = frozenset()
    owner: str = ""
    """The writer of the last claim; nobody where that was before the first look."""
    writer: str = ""
    """Who was the last to claim, change or publish; nobody where that was before the first look."""
    epoch: str = ""
    """The last epoch's id; before the first one, what claims say."""


@dataclass(slots=True)
class Checker:
    """Looks at one target; `violations` holds what it found so far, each once."""

    subject: Subject
    violations: list[Violation] = field(default_factory=list)
    snapshots: int = 0
    rows: int = 0
    epochs: set[str] = field(default_factory=set)
    frontier: At = (0, 0)
    blind: int = 0
    """How often the notes were gone or could not be read: of files that were staged since the look before nobody knew then."""
    _passed: dict[int, _Passed] = field(default_factory=dict)
    _head: int | None = None
    _added: dict[str, int] = field(default_factory=dict)
    _sights: dict[str, Sight] = field(default_factory=dict)
    _noted: dict[str, _Noted] = field(default_factory=dict)
    _had_notes: bool = False
    _forgiven: set[str] = field(default_factory=set)
    _manifests: dict[str, Sequence[_Entry]] = field(default_factory=dict)
    _troubles: list[Exception] = field(default_factory=list)
    """What kept the present look from something, and is not the table's."""

    def check(self, released: Iterable[str] = (), logs: Iterable[str] = ()) -> Sequence[Violation]:
        """Look at everything that is new, and at all files; return what was not known before.

        `released` are printed frontiers that runs have released before this was called; `logs` what each run has said so far, all of it.
        Raises what kept it from a part of the look and is not the table's; what the other parts saw is in `violations` by then.
        """
        before = len(self.violations)
        self._troubles.clear()
        self._read_notes()
        for violation in chain(self._guarded(_early(logs), "the logs of the runs"), self._found(released)):
            if violation not in self.violations:
                self.violations.append(violation)
        if self._troubles:
            raise self._troubles[0]
        return self.violations[before:]

    @property
    def frontier_text(self) -> str:
        return _print(self.frontier)

    def committed(self, path: str) -> bool:
        """Say whether some snapshot has added this file."""
        return path in self._added

    def forgive(self, paths: Iterable[str]) -> None:
        """Take note that somebody else removes these files on purpose; no snapshot may add them any more."""
        self._forgiven |= set(paths)

    def _found(self, released: Iterable[str]) -> Iterator[Violation]:
        try:
            table = self.subject.load()
        except FileNotFoundError as error:
            yield Violation(Kind.REMOVED, "the table", "the metadata file that its catalog names", str(error))
            return
        except Exception as error:  # noqa: BLE001 — whatever keeps it from being loaded is what is to be told
            yield from self._failed(error)
            return
        if table is not None:
            yield from self._branch(table)
            yield from self._files(table)
            yield from self._guarded(self._log(table))
        elif self._head is not None:
            yield Violation(Kind.REMOVED, "the table", f"one with snapshot {self._head}", "no table")
        yield from self._guarded(self._released(released), "the logs of the runs")

    def _guarded(self, look: Iterator[Violation], what: str = "") -> Iterator[Violation]:
        """Look at one thing by itself: that it cannot be looked at is one more thing to tell, and hides nothing of the others."""
        try:
            yield from look
        except Exception as error:  # noqa: BLE001 — as above
            yield from self._failed(error, what)

    def _failed(self, error: Exception, what: str = "") -> Iterator[Violation]:
        """Tell what a look that failed says about the table; what is not the table's is kept until the others are done."""
        if trouble_of(error) is not None:
            self._troubles.append(error)
        else:
            yield _no_look(error, what or f"the table at snapshot {self._head}")

    # ── notes ──────────────────────────────────────────────────────────────────────────────
    def _read_notes(self) -> None:
        """Learn which files are staged. No run removes one of them: what was noted once is remembered when the notes are gone."""
        there, notes = self.subject.state.exists(), staged_notes(self.subject.state)
        self._had_notes |= there
        self.blind += notes is None or (self._had_notes and not there)
        for note in notes or ():
            self._noted |= {path: _Noted(size, _at(note["upper"])) for path, size in files_of([note]).items()}

    def _staged(self) -> dict[str, int]:
        """Name what is staged with its size; what the frontier has passed is committed, or was written again and is nobody's."""
        self._noted = {path: noted for path, noted in self._noted.items() if noted.upper > self.frontier}
        return {path: noted.size for path, noted in self._noted.items()}

    # ── snapshots ──────────────────────────────────────────────────────────────────────────
    def _branch(self, table: Table) -> Iterator[Violation]:
        """Walk what the branch has got since the last look, oldest first."""
        new, onto = self._new(table.metadata)
        if onto != self._head:
            yield Violation(Kind.BACK, "the branch", f"snapshot {self._head} as an ancestor", f"it goes on from snapshot {onto}")
        self._head = onto
        for snapshot in new:
            at = self._passed.get(snapshot.parent_snapshot_id or 0, _Passed())
            self._head, self._passed[snapshot.snapshot_id] = snapshot.snapshot_id, at
            yield from self._guarded(self._added_by(table.io, snapshot))
            yield from self._guarded(self._step(table, snapshot, at))
        self.frontier = self._passed.get(self._head or 0, _Passed()).frontier
        yield from self._guarded(self._mark(table.metadata))

    def _new(self, metadata: TableMetadata) -> tuple[Sequence[Snapshot], int | None]:
        """Return the snapshots that were not seen yet, and the one that they go on from."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        new: list[Snapshot] = []
        at = metadata.current_snapshot_id
        while at is not None and at not in self._passed and at in by_id:
            new.append(by_id[at])
            at = by_id[at].parent_snapshot_id
        return new[::-1], at

    def _step(self, table: Table, snapshot: Snapshot, before: _Passed) -> Iterator[Violation]:
        """Check one snapshot against the one before it, and its rows against the feed."""
        said = dict(snapshot.summary.additional_properties) if snapshot.summary else {}
        where = f"snapshot {snapshot.snapshot_id}"
        appended, removed = (
            frozenset(map(int, filter(None, said.get(name, "").split(",")))) for name in (FOREIGN_ROWS, FOREIGN_REMOVED)
        )
        if said.get("icefront.pipeline") != self.subject.pipeline or "icefront.upkeep" in said:
            passed = replace(before, foreign=(before.foreign | appended) - removed)
            self._passed[snapshot.snapshot_id] = passed
            if "icefront.upkeep" in said or not _names_what_it_appends(snapshot, appended):
                # Upkeep, ours or another's, must change no row of ours, and another program's append must add none. The foreign
                # writer appends all the time: its snapshots, where each row is one whose key it names, are not read for themselves.
                # Should it have lied about a key, the next snapshot that is read lacks that one.
                yield from self._rows_at(table, snapshot, _print(passed.frontier), passed.foreign)
            return
        frontier, writer = _at(said["icefront.frontier"]), said["icefront.writer"]
        epoch, changes = said["icefront.epoch-id"], "icefront.change" in said
        claims = "icefront.claim" in said and not changes
        owns = writer == before.owner or not before.owner
        takes = claims and (owns or _generation(writer) > _generation(before.owner))
        self._passed[snapshot.snapshot_id] = replace(
            before,
            frontier=frontier,
            owner=writer if takes else before.owner,
            writer=writer,
            epoch=before.epoch or epoch if "icefront.claim" in said else epoch,
        )
        if not (owns or takes):
            expected = f"the owner {before.owner}" + (", or one of a later generation" if claims else "")
            yield Violation(Kind.WRITER, where, expected, writer)
        if frontier < before.frontier:
            yield Violation(Kind.BACK, where, f"a frontier of at least {_print(before.frontier)}", _print(frontier))
        if "icefront.claim" in said:
            yield from _claim(where, said, frontier, before)
            yield from self._guarded(self._same_files(table, snapshot))
            if changes:
                # Under another schema or partitioning, and the same rows.
                yield from self._rows_at(table, snapshot, said["icefront.frontier"], before.foreign)
            return
        lower = _at(said["icefront.lower"])
        if lower != before.frontier:
            yield Violation(Kind.GAP, where, f"an epoch from {_print(before.frontier)}", f"from {_print(lower)}")
        if epoch in self.epochs:
            yield Violation(Kind.EPOCH_TWICE, where, "an epoch that no other snapshot has", epoch)
        self.epochs.add(epoch)
        yield from self._rows_at(table, snapshot, said["icefront.frontier"], before.foreign)

    def _mark(self, metadata: TableMetadata) -> Iterator[Violation]:
        mark = json.loads(metadata.properties.get(f"icefront.mark.{self.subject.pipeline}", "{}"))
        where, passed = f"snapshot {self._head}", self._passed.get(self._head or 0, _Passed())
        marked = _at(mark.get("frontier", _print((0, 0))))
        if marked != self.frontier:
            yield Violation(Kind.MARK, where, f"a mark at {_print(self.frontier)}", _print(marked))
        for what, said in (("writer", passed.writer), ("epoch", passed.epoch)):
            if said and mark.get(what) != said:
                yield Violation(Kind.MARK, where, f"a mark of {what} {said}", str(mark.get(what)))

    def _released(self, released: Iterable[str]) -> Iterator[Violation]:
        for frontier in released:
            if _at(frontier) > self.frontier:
                yield Violation(Kind.RELEASED, "the source", f"at most {_print(self.frontier)}", frontier)

    # ── rows ───────────────────────────────────────────────────────────────────────────────
    def _rows_at(self, table: Table, snapshot: Snapshot, frontier: str, foreign: frozenset[int]) -> Iterator[Violation]:
        where = f"snapshot {snapshot.snapshot_id} at {frontier}"
        yield from self._compare(table, snapshot, frontier, foreign, self.subject.read(snapshot.snapshot_id), where)
        self.snapshots += 1

    def _compare(
        self, table: Table, snapshot: Snapshot, frontier: str, foreign: frozenset[int], rows: Iterable[Row], where: str
    ) -> Iterator[Violation]:
        schema_id = snapshot.schema_id if snapshot.schema_id is not None else table.metadata.current_schema_id
        schema = table.schemas()[schema_id]
        key = self.subject.keys[0]
        read = list(rows)
        theirs = [row for row in read if row[key] >= FOREIGN]
        ours = [row for row in read if row[key] < FOREIGN]
        self.rows += len(read)
        if (found := sorted(row[key] for row in theirs)) != sorted(foreign):
            yield Violation(Kind.FOREIGN, where, _few(sorted(foreign)), _few(found))
        if changed := [row for row in theirs if any(row[name] is not None for name in row.keys() - {*self.subject.keys})]:
            yield Violation(Kind.FOREIGN, where, "keys and nothing else", f"{len(changed)} rows such as {changed[0]}"[:400])
        expected = self.subject.expected(frontier)
        if difference := compare(expected, ours, schema, self.subject.keys, _SHOWN):
            yield Violation(Kind.ROWS, where, f"{len(expected)} rows as the feed says", f"{len(ours)} rows, {_told(difference)}")

    def check_with(self, engine: str, read: Callable[[Table], Iterable[Row]]) -> Sequence[Violation]:
        """Compare the table as it is now, read by another engine."""
        before = len(self.violations)
        table = self.subject.load()
        snapshot = table.current_snapshot() if table else None
        if table is None or snapshot is None or snapshot.snapshot_id not in self._passed:
            self.violations.append(Violation(Kind.UNREADABLE, f"the table by {engine}", "a snapshot that was looked at", "none"))
            return self.violations[before:]
        passed = self._passed[snapshot.snapshot_id]
        where = f"snapshot {snapshot.snapshot_id} by {engine}"
        try:
            found = list(self._compare(table, snapshot, _print(passed.frontier), passed.foreign, read(table), where))
        except Exception as error:
            if trouble_of(error) is not None:
                raise
            found = [_no_look(error, where)]
        self.violations += found
        return self.violations[before:]

    # ── files ──────────────────────────────────────────────────────────────────────────────
    def _added_by(self, io: FileIO, snapshot: Snapshot) -> Iterator[Violation]:
        """Check that no file that this snapshot brings came with another one, or comes twice."""
        seen: set[str] = set()
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in self._entries(io, manifest):
                if entry.status != ManifestEntryStatus.ADDED:
                    continue
                self._forgiven.discard(entry.path)
                first = self._added.setdefault(entry.path, snapshot.snapshot_id)
                again_here = entry.path in seen and not entry.path.endswith(".puffin")  # in which several vectors may be
                if first != snapshot.snapshot_id or again_here:
                    again = f"once more by snapshot {snapshot.snapshot_id}"
                    yield Violation(Kind.ADDED_TWICE, entry.path, f"once, by snapshot {first}", again)
                seen.add(entry.path)
                if self.subject.settled and entry.equality:
                    added = f"one, added by snapshot {snapshot.snapshot_id}"
                    yield Violation(Kind.UNSETTLED, entry.path, "no equality delete", added)

    def _same_files(self, table: Table, snapshot: Snapshot) -> Iterator[Violation]:
        """Check that a snapshot refers to the files that its parent refers to, whatever it says of itself."""
        parent = table.snapshot_by_id(snapshot.parent_snapshot_id or 0)
        if parent is None:
            return  # there was none, or it has expired
        before, now = (Counter(self._live(table.io, one)) for one in (parent, snapshot))
        where = f"snapshot {snapshot.snapshot_id}"
        for path in sorted((before - now).keys() | (now - before).keys()):
            yield Violation(Kind.CLAIM, where, f"{path} {before[path]} times, as before the claim", f"{now[path]} times")

    def _live(self, io: FileIO, snapshot: Snapshot) -> Iterator[str]:
        """Name the files that a snapshot refers to."""
        for manifest in snapshot.manifests(io):
            yield from (entry.path for entry in self._entries(io, manifest) if entry.status != ManifestEntryStatus.DELETED)

    def _committed(self, table: Table, files: dict[str, int]) -> Iterator[Violation]:
        """Add what the snapshots that there are refer to, with the sizes that they remember, as far as that can be read."""
        for snapshot in table.metadata.snapshots:
            files[snapshot.manifest_list] = -1
            yield from self._guarded(self._listed(table.io, snapshot, files))

    def _listed(self, io: FileIO, snapshot: Snapshot, files: dict[str, int]) -> Iterator[Violation]:
        for manifest in snapshot.manifests(io):
            files[manifest.manifest_path] = manifest.manifest_length
            try:
                entries = self._entries(io, manifest)
            except Exception as error:  # noqa: BLE001 — as above
                yield from self._failed(error)
            else:
                files |= {entry.path: entry.size for entry in entries if entry.status != ManifestEntryStatus.DELETED}

    def _log(self, table: Table) -> Iterator[Violation]:
        """Check that the metadata files are there which the table's log names; a commit since the look may have deleted the oldest."""
        named = [entry.metadata_file for entry in table.metadata.metadata_log]
        gone = [path for path in named if not table.io.new_input(path).exists()]
        if gone and (now := self.subject.load()) is not None:
            still = {entry.metadata_file for entry in now.metadata.metadata_log}
            yield from (Violation(Kind.REMOVED, path, "what the table's log names", "no file") for path in gone if path in still)

    def _entries(self, io: FileIO, manifest: ManifestFile) -> Sequence[_Entry]:
        if manifest.manifest_path not in self._manifests:
            read = manifest.fetch_manifest_entry(io, discard_deleted=False)
            self._manifests[manifest.manifest_path] = [
                _Entry(
                    e.status,
                    e.data_file.file_path,
                    e.data_file.file_size_in_bytes,
                    e.data_file.content == DataFileContent.EQUALITY_DELETES,
                )
                for e in read
            ]
        return self._manifests[manifest.manifest_path]

    def _files(self, table: Table) -> Iterator[Violation]:
        """Check that every file is as it was when it was first seen; what nothing refers to any more is forgotten."""
        files = self._staged()
        yield from self._committed(table, files)
        self._sights = {path: sight for path, sight in self._sights.items() if path in files}
        for path, size in files.items():
            if path not in self._forgiven:
                yield from self._guarded(self._file(table.io, path, size))

    def _file(self, io: FileIO, path: str, size: int) -> Iterator[Violation]:
        now = look_at(io, path)
        known = self._sights.setdefault(path, now) if now else self._sights.get(path)
        if now is None:
            yield Violation(Kind.REMOVED, path, str(known or f"{size} bytes"), "no file")
        elif now != known:
            yield Violation(Kind.CHANGED, path, str(known), str(now))
        elif size not in {-1, now.size}:
            yield Violation(Kind.CHANGED, path, f"{size} bytes, as was noted", str(now))


@dataclass(frozen=True, slots=True)
class _Noted:
    """A file of a staged epoch, whose changes end at `upper`."""

    size: int
    upper: At


@dataclass(frozen=True, slots=True)
class _Entry:
    status: ManifestEntryStatus
    path: str
    size: int
    equality: bool


def _names_what_it_appends(snapshot: Snapshot, named: frozenset[int]) -> bool:
    """Whether this is the foreign writer's: it only appends, as many rows as it names keys."""
    said = snapshot.summary
    if said is None or said.operation is not Operation.APPEND:
        return False
    return FOREIGN_ROWS in said.additional_properties and int(said.additional_properties.get("added-records", 0)) == len(named)


def _generation(writer: str) -> int:
    """Each writer that takes a table over is of a later generation than its owner; it ends the writer's name."""
    return int(writer.rpartition("#")[2])


def _early(logs: Iterable[str]) -> Iterator[Violation]:
    """Whenever the looks are: a run may have released too early and published before the next of them."""
    for log in logs:
        for released, reached in early_releases(log):
            yield Violation(Kind.RELEASED, "the source, by its run's log", f"at most {_print(reached)} by then", released)


def _claim(where: str, said: Mapping[str, str], frontier: At, before: _Passed) -> Iterator[Violation]:
    if frontier > before.frontier:
        yield Violation(Kind.CLAIM, where, f"the frontier {_print(before.frontier)}", _print(frontier))
    if changed := {name: value for name, value in said.items() if name.startswith(("added-", "deleted-", "removed-"))}:
        yield Violation(Kind.CLAIM, where, "nothing added or removed", str(changed))


def _no_look(error: Exception, where: str) -> Violation:
    """Say that something cannot be looked at. Files that are gone are named one by one, by another look."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return Violation(Kind.UNREADABLE, where, "what can be read", said)


def look_at(io: FileIO, path: str) -> Sight | None:
    """Read a whole file; None when there is none."""
    file = io.new_input(path)
    try:
        with file.open() as stream:
            content = stream.read()
    except FileNotFoundError:
        return None
    written = Path(urlsplit(path).path).stat().st_mtime_ns if is_local(path) else 0
    return Sight(len(content), hashlib.sha256(content).hexdigest(), written)


def files_of(notes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Name the files of staged epochs with their sizes."""
    return {file["path"]: file["size"] for note in notes for file in map(json.loads, note["files"])}


def staged_notes(state: Path) -> Sequence[Mapping[str, Any]] | None:
    """Read the notes of staged epochs; None when the state file cannot be read."""
    if not state.exists():
        return ()
    # Without a log nobody has the file open; the plain read-only mode would leave a log behind.
    how = "mode=ro" if Path(f"{state}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{state.absolute().as_uri()}?{how}", uri=True, timeout=2.0)) as database:
            return [_note(text) for (text,) in database.execute("SELECT note FROM notes")]
    except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError):
        return None


def _note(text: str) -> Mapping[str, Any]:
    """Read a note; raises what comes when it is damaged."""
    note: Mapping[str, Any] = json.loads(text)
    _ = files_of([note]), _at(note["lower"]), _at(note["upper"])
    return note


def _at(printed: str) -> At:
    wall, _, logical = printed.partition(".")
    return int(wall), int(logical)


def _print(at: At) -> str:
    return f"{at[0]}.{at[1]:010d}"


def _few(keys: Sequence[int]) -> str:
    return f"{len(keys)} keys, the last {list(keys[-_SHOWN:])}" if keys else "none"


def _told(difference: Difference) -> str:
    """Say what differs, with a few examples of each kind."""
    parts = [f"{count} {kind}" for kind, count in difference.counts.items() if count]
    examples = [*difference.missing, *difference.extra, *difference.repeated, *difference.differing]
    if difference.absent:
        parts.append(f"no column {', '.join(sorted(difference.absent))}")
    return f"{', '.join(parts)}: {'; '.join(str(example)[:200] for example in examples[: 2 * _SHOWN])}"


# ── engines ────────────────────────────────────────────────────────────────────────────────
def by_datafusion(table: Table) -> Iterable[Row]:
    """Read a table's current rows by iceberg-rust, which shares no code with Spark or Icefront."""
    # Of a catalog's properties it wants texts alone.
    texts = {key: value for key, value in table.io.properties.items() if isinstance(value, str)}
    context: Any = import_module("datafusion").SessionContext()
    context.register_table("t", StaticTable.from_metadata(table.metadata_location, texts))
    found: Iterable[Row] = context.sql("SELECT * FROM t").to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with its version; or why it cannot be run here."""

    name: str = ""
    why_not: str = ""


def second_engine() -> Engine:
    """Try the second engine that reads equality deletes on a table of one row: one that is broken says nothing about other tables."""
    if find_spec("datafusion") is None:
        return Engine(why_not="datafusion is not installed")
    try:
        with TemporaryDirectory() as folder:
            catalog = InMemoryCatalog("tried", warehouse=f"file://{folder}")
            catalog.create_namespace("t")
            table = catalog.create_table("t.one", ONE.schema)
            table.append(ONE)
            found = list(by_datafusion(table))
            name = f"DataFusion {metadata.version('datafusion')}"
    except Exception as error:  # noqa: BLE001 — whatever hinders it is what is to be told
        return Engine(why_not=" ".join(f"datafusion cannot be used: {type(error).__name__}: {error}".split())[:300])
    return (
        Engine(name)
        if found == ONE.to_pylist()
        else Engine(why_not=f"datafusion reads {found} from a table with {ONE.to_pylist()}")
    )
