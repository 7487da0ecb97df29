"""The state store: staged notes, bindings, and the history of runs, epochs and upkeep, in one SQLite file.

    stage ──▶ note ──published──▶ history
                └────drop───────▶ gone

The targets are the truth. Losing this file loses no data and doubles none: staged epochs are then written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

import structlog

from icefront.core.epochs import Epoch
from icefront.core.errors import StagedMismatch, Stopped
from icefront.core.files import Staged
from icefront.core.marks import Position, canonical
from icefront.core.timestamps import Timestamp
from icefront.state.database import BUSY_SECONDS, Copy, Database, Migration
from icefront.state.records import Binding, CycleRecord, EpochRecord, RunRecord

log = structlog.get_logger(__name__)

T = TypeVar("T")

RECOVERED = "recovered"
"""A timing of this name is no phase: it says that the epoch was staged by an earlier run."""
KEEP_EPOCHS = 10_000
KEEP_RUNS = 1_000
KEEP_CYCLES = 200
"""Of each kind and target."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        """CREATE TABLE notes (
            pipeline TEXT NOT NULL, target TEXT NOT NULL, epoch_id TEXT NOT NULL,
            lower TEXT NOT NULL, upper TEXT NOT NULL, settings TEXT NOT NULL, staged_at REAL NOT NULL,
            note TEXT NOT NULL, sha256 TEXT NOT NULL,
            PRIMARY KEY (pipeline, target, epoch_id)) WITHOUT ROWID""",
        """CREATE TABLE epochs (
            pipeline TEXT NOT NULL, target TEXT NOT NULL, epoch_id TEXT NOT NULL,
            lower TEXT NOT NULL, upper TEXT NOT NULL, snapshot INTEGER NOT NULL, published_at REAL NOT NULL,
            files INTEGER NOT NULL, bytes INTEGER NOT NULL, counts TEXT NOT NULL, timings TEXT NOT NULL, recovered INTEGER NOT NULL,
            PRIMARY KEY (pipeline, target, upper, epoch_id)) WITHOUT ROWID""",
        """CREATE TABLE runs (
            run TEXT PRIMARY KEY, pipeline TEXT NOT NULL, writer TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
            started REAL NOT NULL, ended REAL, outcome TEXT, reason TEXT NOT NULL DEFAULT '', epochs INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX runs_by_pipeline ON runs (pipeline, started)",
        """CREATE TABLE bindings (
            source TEXT NOT NULL, timestamp TEXT NOT NULL, position TEXT NOT NULL, sealed INTEGER NOT NULL,
            PRIMARY KEY (source, timestamp)) WITHOUT ROWID""",
    ),
    (
        "CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
        """CREATE TABLE cycles (
            cycle INTEGER PRIMARY KEY, pipeline TEXT NOT NULL, target TEXT NOT NULL, kind TEXT NOT NULL, started REAL NOT NULL,
            ended REAL, outcome TEXT, why TEXT NOT NULL, facts TEXT NOT NULL DEFAULT '{}')""",
        "CREATE INDEX cycles_by_target ON cycles (target, kind, started)",
    ),
)

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)
"""What reading a record raises whose page was overwritten behind SQLite's back."""
_DELETE_NOTE = "DELETE FROM notes WHERE pipeline = ? AND target = ? AND CAST(epoch_id AS BLOB) = CAST(? AS BLOB)"
"""By the bytes: a name that is damaged reads as another text than it is."""


class StateStore:
    """Durable notes. Safe for several threads and several processes on one file."""

    def __init__(
        self,
        path: Path | str,
        *,
        only_look: bool = False,
        clock: Callable[[], float] = time.time,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """Open the file; it is made when there is none. Who will `only_look` gets a copy, and leaves the file as it is."""
        self._database = (Copy if only_look else Database)(Path(path), MIGRATIONS, busy_seconds)
        self._clock = clock

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ── staged notes ───────────────────────────────────────────────────────────────────────
    def stage(self, staged: Staged) -> None:
        """Note an epoch's closed files; on disk when this returns. The same epoch staged again replaces its note."""
        note = staged.to_json()
        row = (
            *_name(staged),
            _sortable(staged.epoch.lower),
            _sortable(staged.epoch.upper),
            staged.settings,
            self._clock(),
            note,
            _sha256(note),
        )
        self._write("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def staged(self, pipeline: str, target: str) -> list[Staged]:
        """Return what is noted and neither published nor dropped, in the order of the timeline.

        A damaged note is dropped with a warning: its epoch is written again.
        """
        query = "SELECT *, CAST(epoch_id AS BLOB) AS name FROM notes WHERE pipeline = ? AND target = ? ORDER BY lower, upper"
        rows = self._read(query, (pipeline, target))
        notes: list[Staged] = []
        for row in rows:
            try:
                notes.append(_read_note(row))
            except (*_DAMAGED, StagedMismatch) as error:
                log.warning("a staged note is damaged; dropping it", target=target, epoch=row["epoch_id"], error=str(error))
                self._write(_DELETE_NOTE, (pipeline, target, row["name"]))
        return notes

    def published(self, staged: Staged, snapshot: int, timings: Mapping[str, float]) -> None:
        """Move a note into the history, in one step. `timings` are seconds by phase. Repeating it changes nothing."""
        record = (
            *_name(staged),
            _sortable(staged.epoch.lower),
            _sortable(staged.epoch.upper),
            snapshot,
            self._clock(),
            len(staged.files),
            sum(file.size for file in staged.files),
            canonical(dict(staged.counts)),
            canonical({phase: round(seconds * 1000) for phase, seconds in timings.items() if phase != RECOVERED}),
            RECOVERED in timings,
        )

        def move(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR IGNORE INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", record)
            connection.execute(_DELETE_NOTE, _name(staged))

        self._database.write(move)

    def drop(self, pipeline: str, target: str, epoch_ids: Iterable[str | UUID]) -> None:
        """Forget notes that will not be published."""
        rows = [(pipeline, target, str(epoch_id)) for epoch_id in epoch_ids]
        if rows:
            self._database.write(lambda connection: connection.executemany(_DELETE_NOTE, rows))

    # ── history ────────────────────────────────────────────────────────────────────────────
    def epochs(self, pipeline: str, target: str | None = None, limit: int = 20) -> list[EpochRecord]:
        """Return published epochs, the newest first."""
        rows = self._read(
            "SELECT * FROM epochs WHERE pipeline = ? AND (? IS NULL OR target = ?) ORDER BY upper DESC, published_at DESC, target LIMIT ?",
            (pipeline, target, target, limit),
        )
        return _history(rows, _epoch_record)

    def run_started(self, pipeline: str, run: str, writer: str = "") -> None:
        """Note that a run began; old history goes."""
        row = (run, pipeline, writer, socket.gethostname(), os.getpid(), self._clock())
        self._write("INSERT OR REPLACE INTO runs (run, pipeline, writer, host, pid, started) VALUES (?, ?, ?, ?, ?, ?)", row)
        self.prune()

    def run_ended(self, run: str, outcome: str, reason: str = "", epochs: int = 0) -> None:
        """Note how a run ended, e.g. `caught-up`, `drained`, `fenced`, `stopped`, and why."""
        row = (self._clock(), outcome, reason, epochs, run)
        self._write("UPDATE runs SET ended = ?, outcome = ?, reason = ?, epochs = ? WHERE run = ?", row)

    def runs(self, pipeline: str, limit: int = 20) -> list[RunRecord]:
        """Return runs, the newest first."""
        query = "SELECT * FROM runs WHERE pipeline = ? ORDER BY started DESC, rowid DESC LIMIT ?"
        return _history(self._read(query, (pipeline, limit)), _run_record)

    def prune(self, keep_epochs: int = KEEP_EPOCHS, keep_runs: int = KEEP_RUNS) -> None:
        """Keep so many epochs per target and so many runs per pipeline. Notes and bindings are never pruned."""

        def delete(connection: sqlite3.Connection) -> None:
            for pipeline, target in connection.execute("SELECT DISTINCT pipeline, target FROM epochs").fetchall():
                connection.execute(
                    "DELETE FROM epochs WHERE pipeline = ?1 AND target = ?2 AND upper <= "
                    "(SELECT upper FROM epochs WHERE pipeline = ?1 AND target = ?2 ORDER BY upper DESC LIMIT 1 OFFSET ?3)",
                    (pipeline, target, keep_epochs),
                )
            for (pipeline,) in connection.execute("SELECT DISTINCT pipeline FROM runs").fetchall():
                connection.execute(
                    "DELETE FROM runs WHERE pipeline = ?1 AND rowid IN "
                    "(SELECT rowid FROM runs WHERE pipeline = ?1 ORDER BY started DESC, rowid DESC LIMIT -1 OFFSET ?2)",
                    (pipeline, keep_runs),
                )

        self._database.write(delete)

    def forget(self, pipeline: str) -> None:
        """Remove everything about a pipeline. Its targets keep their marks."""

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM notes WHERE pipeline = ?", (pipeline,))
            connection.execute("DELETE FROM epochs WHERE pipeline = ?", (pipeline,))
            connection.execute("DELETE FROM runs WHERE pipeline = ?", (pipeline,))
            connection.execute("DELETE FROM cycles WHERE pipeline = ?", (pipeline,))

        self._database.write(delete)

    # ── upkeep ─────────────────────────────────────────────────────────────────────────────
    def staged_paths(self) -> set[str]:
        """Name all files that are staged, whoever staged them, under whatever name of their table: no upkeep may remove them."""
        rows = self._read("SELECT DISTINCT pipeline, target FROM notes", ())
        return {file.path for row in rows for note in self.staged(row["pipeline"], row["target"]) for file in note.files}

    def take_lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take a lease, or renew one's own; False while another holder's has not run out.

        It spares two programs the same work. Nothing is wrong when both do it: Iceberg refuses whoever commits second.
        """
        now = self._clock()

        def take(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                "INSERT INTO leases VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET holder = ?2, until = ?3 WHERE holder = ?2 OR until <= ?4",
                (name, holder, now + seconds, now),
            )
            return changed.rowcount > 0

        return self._database.write(take)

    def return_lease(self, name: str, holder: str) -> None:
        self._write("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

    def cycle_started(self, pipeline: str, target: str, kind: str, why: str) -> int:
        """Note that a cycle of upkeep began; old history of its kind goes."""
        row = (pipeline, target, kind, self._clock(), why)

        def put(connection: sqlite3.Connection) -> int:
            query = "INSERT INTO cycles (pipeline, target, kind, started, why) VALUES (?, ?, ?, ?, ?)"
            number = connection.execute(query, row).lastrowid
            connection.execute(
                "DELETE FROM cycles WHERE target = ?1 AND kind = ?2 AND cycle IN "
                "(SELECT cycle FROM cycles WHERE target = ?1 AND kind = ?2 ORDER BY cycle DESC LIMIT -1 OFFSET ?3)",
                (target, kind, KEEP_CYCLES),
            )
            assert number is not None
            return number

        return self._database.write(put)

    def cycle_ended(self, cycle: int, outcome: str, facts: Mapping[str, object]) -> None:
        row = (self._clock(), outcome, json.dumps(facts, default=str, ensure_ascii=False), cycle)
        self._write("UPDATE cycles SET ended = ?, outcome = ?, facts = ? WHERE cycle = ?", row)

    def cycles(self, target: str, limit: int = 10) -> list[CycleRecord]:
        """Return so many of a target's cycles of each kind, by whatever pipeline, the newest first."""
        numbered = "SELECT *, row_number() OVER (PARTITION BY kind ORDER BY cycle DESC) AS back FROM cycles WHERE target = ?"
        rows = self._read(f"SELECT * FROM ({numbered}) WHERE back <= ? ORDER BY cycle DESC", (target, limit))  # noqa: S608 — no values in it
        return _history(rows, _cycle_record)

    # ── bindings ───────────────────────────────────────────────────────────────────────────
    def bind(self, source: str, timestamp: Timestamp, position: Position, *, sealed: bool = True) -> None:
        """Bind a timestamp to a position; on disk when this returns. A sealed binding never changes."""
        name = (source, _sortable(timestamp))

        def put(connection: sqlite3.Connection) -> None:
            query = "SELECT position FROM bindings WHERE source = ? AND timestamp = ? AND sealed"
            known = connection.execute(query, name).fetchone()
            if known is not None and known["position"] != position.text:
                raise Stopped(
                    f"timestamp {timestamp} of {source} is sealed at {known['position']}, now it would be {position.text}",
                    "two programs bind this source: stop one of them",
                )
            connection.execute(
                "INSERT INTO bindings VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET position = excluded.position, "
                "sealed = max(sealed, excluded.sealed)",
                (*name, position.text, sealed),
            )

        self._database.write(put)

    def bindings(self, source: str) -> list[Binding]:
        """Return a source's bindings in the order of its timeline."""
        rows = self._read("SELECT * FROM bindings WHERE source = ? ORDER BY timestamp", (source,))
        return [
            Binding(source, Timestamp.parse(row["timestamp"]), Position(row["position"]), sealed=bool(row["sealed"]))
            for row in rows
        ]

    def compact(self, source: str, frontier: Timestamp) -> None:
        """Merge the bindings below `frontier` into the last sealed of them: every target is past the others."""
        self._write(
            "DELETE FROM bindings WHERE source = ?1 AND timestamp < "
            "(SELECT max(timestamp) FROM bindings WHERE source = ?1 AND sealed AND timestamp <= ?2)",
            (source, _sortable(frontier)),
        )

    # ── the file ───────────────────────────────────────────────────────────────────────────
    def _write(self, statement: str, row: Sequence[object]) -> None:
        self._database.write(lambda connection: connection.execute(statement, row))

    def _read(self, query: str, arguments: Sequence[object]) -> list[sqlite3.Row]:
        return self._database.read(lambda connection: connection.execute(query, arguments).fetchall())


def _read_note(row: sqlite3.Row) -> Staged:
    if _sha256(row["note"]) != row["sha256"]:
        raise ValueError("its hash differs from the one noted with it")
    staged = Staged.from_json(row["note"])
    if _name(staged) != (row["pipeline"], row["target"], row["epoch_id"]):
        raise ValueError("it is about another epoch")
    return staged


def _history(rows: Iterable[sqlite3.Row], record: Callable[[sqlite3.Row], T]) -> list[T]:
    """Read lines of history, but for damaged ones: upkeep then takes its turns as if those cycles had not been, and nothing else depends on them."""
    told: list[T] = []
    for row in rows:
        try:
            told.append(record(row))
        except _DAMAGED as error:
            log.warning("a line of history is damaged; passing over it", error=str(error))
    return told


def _epoch_record(row: sqlite3.Row) -> EpochRecord:
    return EpochRecord(
        pipeline=row["pipeline"],
        target=row["target"],
        epoch=Epoch(Timestamp.parse(row["lower"]), Timestamp.parse(row["upper"])),
        epoch_id=UUID(row["epoch_id"]),
        snapshot=row["snapshot"],
        published_at=_moment(row["published_at"]),
        files=row["files"],
        bytes=row["bytes"],
        counts=json.loads(row["counts"]),
        timings=json.loads(row["timings"]),
        recovered=bool(row["recovered"]),
    )


def _run_record(row: sqlite3.Row) -> RunRecord:
    return RunRecord(
        run=row["run"],
        pipeline=row["pipeline"],
        writer=row["writer"],
        host=row["host"],
        pid=row["pid"],
        started=_moment(row["started"]),
        ended=_moment(row["ended"]) if row["ended"] is not None else None,
        outcome=row["outcome"],
        reason=row["reason"],
        epochs=row["epochs"],
    )


def _cycle_record(row: sqlite3.Row) -> CycleRecord:
    return CycleRecord(
        pipeline=row["pipeline"],
        target=row["target"],
        kind=row["kind"],
        started=_moment(row["started"]),
        ended=_moment(row["ended"]) if row["ended"] is not None else None,
        outcome=row["outcome"],
        why=row["why"],
        facts=json.loads(row["facts"]),
    )


def _name(staged: Staged) -> tuple[str, str, str]:
    return staged.pipeline, staged.target, str(staged.epoch_id)


def _sortable(timestamp: Timestamp) -> str:
    """Print a timestamp so that text sorts as time does; `Timestamp.parse` reads it."""
    return f"{timestamp.wall:020d}.{timestamp.logical:010d}"


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
