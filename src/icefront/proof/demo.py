"""The demo: real processes that die and freeze in the worst moments, and the proof that nothing came of it.

    run 1 ── killed between "files staged" and "commit"
    run 2 ── publishes exactly those files, goes on, is frozen right before a commit
    run 3 ── takes over and finishes          run 2 wakes up ── refused, exit code 4
    then: every snapshot == the source at that snapshot's frontier

Every claim is checked where it is made: what is not so ends the demo. Processes are ended by their id, whatever happens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import urlsplit

from pyiceberg.table import Table

from icefront.api import Pipeline
from icefront.core.errors import ConfigError, FencedOut, IcefrontError
from icefront.core.files import Staged
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.verify import points, verify
from icefront.state.store import StateStore
from icefront.status import Look
from icefront.status.look import ancestors, read_mark
from icefront.status.targets import human_time
from icefront.testing.feeds import SHOP, Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FENCED = FencedOut.exit_code
PATIENCE = 240.0
"""Seconds after which a process that should have done something by now is taken to hang."""
STEPS = 5
ROWS, PERIODS, CHANGES = 300, 8, 250

PROJECT = """\
catalogs:
  lake: {type: sqlite, path: .icefront}
state: .icefront/state.db
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 2, spark.driver.memory: 1g}}
"""
PIPELINE = """\
pipeline: shop
source:
  changefeed: {path: feed/}
tables:
  customers:
    keys: [id]
    columns: {id: bigint, created_at: timestamptz}
    sink: {iceberg: {table: lake.shop.customers}}
  orders:
    keys: [id]
    columns: {id: bigint, customer_id: bigint, amount: "decimal(12,2)", created_at: timestamptz}
    sink: {iceberg: {table: lake.shop.orders, partition_by: ["month(created_at)"]}}
epochs: {every: resolved}
upkeep: off
"""


class NotSo(IcefrontError):
    """The demo claimed something that is not so."""


class Display(Protocol):
    """Where the demo is shown."""

    def step(self, number: int, title: str) -> None:
        """Begin one of the steps."""
        ...

    def doing(self, what: str) -> None:
        """Say what is going on at the moment."""
        ...

    def seen(self, what: str) -> None:
        """Say what was checked and found to be so."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What was shown, and by what."""

    what: str
    evidence: str


# ── the demo ───────────────────────────────────────────────────────────────────────────────
class Demo:
    """One demo in one folder."""

    def __init__(self, folder: Path, display: Display, seed: int = 7) -> None:
        self.folder = folder
        self._show = display
        self._seed = seed
        self._claims: list[Claim] = []

    def __call__(self) -> Sequence[Claim]:
        """Run it. Raises NotSo when a claim does not hold."""
        self._show.step(1, "a shop and its changefeed")
        feed = self._make()
        pipeline = Pipeline.load(self.folder / "shop.yaml")
        with Children(self.folder) as children, self._session(pipeline, children) as (spark, first):
            staged = self._crash(pipeline, first)
            zombie = self._resume(pipeline, children, staged)
            self._overtake(pipeline, spark, feed)
            self._wake(pipeline, zombie)
            self._prove(pipeline, spark)
        return self._claims

    @contextmanager
    def _session(self, pipeline: Pipeline, children: Children) -> Iterator[tuple[SparkSession, Child]]:
        """Start run 1, and meanwhile the session that this process needs later."""
        self._show.step(2, "a run that is killed in mid-epoch")
        self._show.doing("run 1 is at work; it will kill itself right before its fourth commit")
        first = children.run("publish.before-commit=kill@4", self._told("run 1"))
        spark = pipeline.session()
        try:
            yield spark, first
        finally:
            spark.stop()

    def _make(self) -> Feed:
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(f"{self.folder} is not empty", "name a new folder: `icefront demo --dir …`")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "icefront.yaml").write_text(PROJECT, encoding="utf-8")
        (self.folder / "shop.yaml").write_text(PIPELINE, encoding="utf-8")
        feed = Feed(self.folder / "feed", tables=SHOP, seed=self._seed)
        feed.scan(ROWS)
        for _ in range(PERIODS):
            feed.advance(CHANGES)
        self._show.seen(
            f"{len(feed.said):,} changes of {len(SHOP)} tables, {len(feed.resolved)} resolved timestamps, repeats included"
        )
        return feed

    # ── killed, and resumed ────────────────────────────────────────────────────────────────
    def _crash(self, pipeline: Pipeline, child: Child) -> Sequence[Staged]:
        code = child.wait()
        _so(code == -signal.SIGKILL, f"run 1 was killed (exit {code})", child)
        frontiers = _frontiers(pipeline)
        # A note may outlive its epoch's publication by a moment: what is past the frontier is not visible.
        staged = [note for note in _staged(pipeline) if note.epoch.upper > frontiers.get(note.target, ORIGIN)]
        _so(bool(staged), "run 1 left staged epochs behind", child)
        missing = [path for note in staged for path in _local_files(note) if not path.exists()]
        _so(not missing, "all staged files are there", child)
        files = sum(len(note.files) for note in staged)
        self._seen(
            "killed (SIGKILL) between staging and commit",
            f"{files} staged files, not visible in any snapshot",
        )
        return staged

    def _resume(self, pipeline: Pipeline, children: Children, staged: Sequence[Staged]) -> Child:
        self._show.step(3, "the next run resumes; then it is frozen before a commit")
        before = {path: path.stat().st_mtime_ns for note in staged for path in _local_files(note)}
        self._show.doing("run 2 publishes what run 1 had staged")
        child = children.run(f"publish.before-commit=pause@{len(staged) + 3}", self._told("run 2"))
        child.wait_until_stopped()
        child.wait_for(
            lambda events: sum(event["recovered"] for event in events) >= len(staged), "run 2 published the staged epochs"
        )
        by_bounds = {(e["target"], e["lower"], e["upper"]): e for e in child.events if e["recovered"]}
        tables = _tables(pipeline)
        for note in staged:
            event = by_bounds.get((note.target, str(note.epoch.lower), str(note.epoch.upper)))
            _so(event is not None, f"epoch {note.epoch} of {note.target} was published as staged", child)
            assert event is not None
            published = _added_files(tables[note.target], event["snapshot_id"])
            _so(
                published == {file.path for file in note.files},
                f"snapshot {event['snapshot_id']} holds exactly the staged files",
                child,
            )
        _so(all(path.stat().st_mtime_ns == time for path, time in before.items()), "no staged file was written again", child)
        self._seen("resumed without rewriting", f"{len(before)} staged files published as they were")
        self._show.seen(
            f"run 2 (pid {child.pid}) is frozen (SIGSTOP) right before a commit, as a long pause of its machine would do"
        )
        return child

    # ── frozen, overtaken, woken ───────────────────────────────────────────────────────────
    def _overtake(self, pipeline: Pipeline, spark: SparkSession, feed: Feed) -> None:
        self._show.step(4, "a successor takes over; then the zombie wakes up")
        self._show.doing("run 3 claims both tables and finishes the work")
        result = pipeline.run(
            spark,
            until="caught-up",
            on_epoch=lambda event: self._show.doing(f"run 3: {event.target} to {human_time(event.epoch.upper)}"),
        )
        end = feed.resolved[-1].next()
        _so(_frontiers(pipeline) == dict.fromkeys(result.frontiers, end), "run 3 is at the feed's last resolved timestamp")
        self._show.seen(f"run 3 published {result.epochs} epochs and is caught up")

    def _wake(self, pipeline: Pipeline, zombie: Child) -> None:
        before = {name: table.metadata.current_snapshot_id for name, table in _tables(pipeline).items()}
        self._show.doing("waking run 2, which still believes that it owns the tables")
        zombie.wake()
        code = zombie.wait()
        _so(code == FENCED, f"the zombie was refused (exit {code}, expected {FENCED})", zombie)
        tables = _tables(pipeline)
        _so(
            {name: table.metadata.current_snapshot_id for name, table in tables.items()} == before,
            "the zombie published nothing",
            zombie,
        )
        lost = [path for table in tables.values() for path in _visible_files(table) if not Path(urlsplit(path).path).exists()]
        _so(not lost, "the zombie deleted nothing", zombie)
        self._seen(f"the zombie was refused: exit code {code}", "no snapshot added, no file touched")

    # ── proven ─────────────────────────────────────────────────────────────────────────────
    def _prove(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._show.step(STEPS, "table == source, at every snapshot")
        chosen = points(pipeline, every_snapshot=True)
        rows = 0
        for number, comparison in enumerate(verify(pipeline, spark, chosen), 1):
            _so(
                comparison.equal,
                f"{comparison.target} equals the source at snapshot {comparison.snapshot}: {comparison.difference.counts}",
            )
            rows += comparison.rows
            self._show.doing(f"{number} of {len(chosen)} snapshots are equal to the source replayed to their frontier")
        _so(bool(rows), "there was something to compare")
        self._seen(
            f"{len(chosen)} of {len(chosen)} snapshots equal the source",
            f"{rows:,} rows compared by time travel, with a reader of its own",
        )

    def _seen(self, what: str, evidence: str) -> None:
        self._claims.append(Claim(what, evidence))
        self._show.seen(f"{what}: {evidence}")

    def _told(self, name: str) -> Callable[[Mapping[str, Any]], None]:
        def tell(event: Mapping[str, Any]) -> None:
            how = " (staged by run 1)" if event["recovered"] else ""
            self._show.doing(f"{name}: {event['target']} to {event['upper_time']}{how}")

        return tell


def _so(holds: bool, claim: str, child: Child | None = None) -> None:  # noqa: FBT001 — reads as "so: …"
    if not holds:
        raise NotSo(
            f"the demo's claim does not hold: {claim}",
            f"{child.said()}" if child else "run it again with --dir and look into that folder",
        )


# ── what the tables hold ───────────────────────────────────────────────────────────────────
def _staged(pipeline: Pipeline) -> Sequence[Staged]:
    settings = pipeline.settings
    with StateStore(settings.project.state) as store:
        return [note for target in pipeline.targets() for note in store.staged(settings.pipeline, target.name)]


def _local_files(note: Staged) -> Sequence[Path]:
    return [Path(urlsplit(file.path).path) for file in note.files]


def _tables(pipeline: Pipeline) -> dict[str, Table]:
    look = Look(pipeline)
    found = {target.name: look.table(target) for target in look.targets}
    return {name: table for name, table in found.items() if table is not None}


def _frontiers(pipeline: Pipeline) -> dict[str, Timestamp]:
    marks = {name: read_mark(table.metadata, pipeline.settings.pipeline) for name, table in _tables(pipeline).items()}
    return {name: mark.frontier for name, mark in marks.items() if mark is not None}


def _added_files(table: Table, snapshot_id: int) -> set[str]:
    """Name the files that one snapshot brought, data and deletes."""
    snapshot = next(s for s in ancestors(table.metadata) if s.snapshot_id == snapshot_id)
    manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot_id]
    return {entry.data_file.file_path for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)}


def _visible_files(table: Table) -> set[str]:
    snapshot = table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return {entry.data_file.file_path for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)}


# ── processes ──────────────────────────────────────────────────────────────────────────────
@dataclass
class Child:
    """One `icefront run` in a process of its own; what it published arrives as events."""

    process: subprocess.Popen[str]
    log: Path
    tell: Callable[[Mapping[str, Any]], None]
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "epoch":
                self.events.append(event)
                self.tell(event)

    def wait(self) -> int:
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise NotSo(f"process {self.pid} did not end within {PATIENCE:.0f} s", self.said()) from None
        self._reader.join(10)
        return code

    def wait_until_stopped(self) -> None:
        """Wait until the process is frozen; one that ends instead was not."""

        def stopped() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and not os.WIFSTOPPED(status):
                self.process.returncode = os.waitstatus_to_exitcode(status)
                raise NotSo(f"process {self.pid} ended (exit {self.process.returncode}) instead of stopping", self.said())
            return bool(pid)

        self._until(stopped, "was not frozen")

    def wait_for(self, holds: Callable[[Sequence[Mapping[str, Any]]], bool], what: str) -> None:
        self._until(lambda: holds(self.events), f"has not shown that {what}")

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise NotSo(f"process {self.pid} {otherwise} within {PATIENCE:.0f} s", self.said())
            time.sleep(0.05)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """Quote the end of what the process said on stderr."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:] if self.log.exists() else []
        return f"{self.log} ends with: {' ⏎ '.join(lines)}" if lines else f"{self.log} is empty"

    def end(self) -> None:
        """Kill the process and what it started, frozen or not."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


class Children:
    """The processes of one demo; leaving ends those that still live."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def run(self, failpoints: str, tell: Callable[[Mapping[str, Any]], None]) -> Child:
        """Start `icefront run` with a failpoint armed, in a process group of its own."""
        log = self._folder / f"run-{len(self._children) + 1}.log"
        command = [sys.executable, "-m", "icefront", "run", "shop.yaml", "--until", "caught-up", "--json"]
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | {ENVIRONMENT: failpoints},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        child = Child(process, log, tell)
        self._children.append(child)
        return child
