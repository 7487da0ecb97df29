"""One project under fault: its growing feed, the runs that live on it, and the checker that watches the table.

    begin ──▶ run ─ stop ─ strike, check, wake ─ stop ─ … ─▶ its end, as expected
                      └─ "old" runs, paused or overtaken, are woken: they must be refused

A run stops where a failpoint pauses it, by a count of passings and not by the clock, so that a seed repeats what happens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, cycle
from pathlib import Path
from random import Random
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icefront.api import Pipeline
from icefront.core.errors import ConnectionFailed
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.proof.checker import Checker, Kind, Subject, Violation, staged_notes
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import FENCED, PROGRAM, TELLING, Begin, Driver, Project, Unexpected, executed, released, wait_until
from icefront.proof.oracle import Row, replay
from icefront.proof.proxy import FaultProxy, Request, Strike
from icefront.proof.sessions import processes
from icefront.proof.trouble import load
from icefront.testing.feeds import FeedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "lake"
EVERY_EPOCH = (
    "observe.after",
    "write.after",
    "stage.before",
    "stage.after",
    "publish.before",
    "publish.before-commit",
    "publish.after",
    "note.before",
    "note.after",
    "release.before",
)
"""Where a run may be paused at any time: it comes to each of them when there is something to publish."""
_SETTLED = {"claim.after": "pause@1", "observe.before": "pause@1"}
"""Every run stops here first: right after its claim, and when it has recovered what was staged."""
ONCE = ("claim", "table", "schema", "partitioning", "heartbeat", "release")
"""Steps that a run may take only once; it takes the others for each of at least `PERIODS` epochs."""
PERIODS = 4
RETRIES = 5
"""So many strikes at one and the same commit every run must survive (`commit.retries`)."""
_OFTEN = {"settle": {"files": 3, "every": "1s"}, "compact": {"files": 6, "every": "5s"}, "expire": "off"}
TABLES: Sequence[tuple[object, str]] = (("off", "immediate"), (_OFTEN, "settled"), (_OFTEN, "immediate"), ("off", "settled"))
"""Of half of the tables the runs do the upkeep too, as often as they can; expiry comes as a blow. Every second one never gets an
equality delete."""
PARTITIONINGS: tuple[list[str], ...] = (["bucket(2, id)"], ["month(created_at)"], [])
_BASE = {"customer_id": "small", "amount": "amount", "status": "status", "note": "text", "created_at": "timestamptz"}
ORDERS = FeedTable("orders", ("id",), tuple(_BASE | {f"extra_{n}": "status" for n in range(version)} for version in range(12)))
"""Orders whose schema can change eleven times."""


class Deal(Protocol):
    """Strikes at the next of some places of a life, so that each has its turn."""

    def __call__(self, life: str, places: Sequence[str], strike: Callable[[str], bool], /) -> str | None:
        """Return where it struck; None when it could nowhere."""
        ...


def _first(_life: str, places: Sequence[str], strike: Callable[[str], bool]) -> str | None:
    return next((place for place in places if strike(place)), None)


class Broken(Exception):
    """A run did not do what it must; carries the violation."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class Cut(Exception):
    """A run ended before its turn, in a way that is allowed: the catalog was not to be reached."""


@dataclass
class Lake:
    """The catalog that runs write to, as this process sees it; through a proxy they see it with faults."""

    folder: Path
    uri: str | None = None
    proxy: FaultProxy | None = None

    def settings(self, uri: str | None) -> Mapping[str, object]:
        return {"type": "rest", "uri": uri} if uri else {"type": "sqlite", "path": str(self.folder)}

    @cached_property
    def pipeline(self) -> Pipeline:
        """A pipeline that never runs: its project knows the catalog without the proxy."""
        # For every data file that has deletes Iceberg waits a hundredth of a second: several tasks wait at once.
        project = Project(self.folder / "session", seed=0, catalog=self.settings(self.uri), spark={"spark.master": "local[4]"})
        pipeline = Pipeline.load(project.file)
        pipeline.settings.project.catalogs[NAME].create_folder()
        return pipeline

    @cached_property
    def catalog(self) -> Catalog:
        return load(NAME, **self.pipeline.settings.project.catalogs[NAME].pyiceberg_properties(NAME))

    @cached_property
    def spark(self) -> SparkSession:
        """Start the session of this process, once: it reads every snapshot and is kept warm."""
        heeded = signal.getsignal(signal.SIGINT)
        session = self.pipeline.session()
        signal.signal(signal.SIGINT, heeded)  # PySpark puts its own in that place
        return session

    def warm_up(self) -> None:
        """Have a session from here on: starting one takes seconds."""
        _ = self.spark

    def look(self) -> None:
        """Raise ConnectionFailed when the session of this process has lost its JVM: then nothing can be read any more."""
        if "spark" not in self.__dict__:
            return
        code = self.spark.sparkContext._gateway.proc.poll()  # noqa: SLF001 — PySpark has no other name for it
        if code is not None:
            raise ConnectionFailed(
                f"the JVM that reads the tables has ended with {code}",
                "it may have been for want of memory: give it more, then begin again",
            )

    def close(self) -> None:
        if "spark" in self.__dict__:
            with suppress(ConnectionError):  # a JVM that has ended needs no stopping
                self.spark.stop()


@dataclass
class Scene:
    """One project with all that lives on it. Leaving it ends every run."""

    folder: Path
    name: str
    rng: Random
    lake: Lake
    program: Sequence[str] = PROGRAM
    by: Begin = executed
    """Begins the processes of its runs."""
    number: int = 0
    """Which of `TABLES` it has: one after the other."""
    strike: Callable[[], None] = lambda: None
    """What is done at every stop; the prover deals faults here."""
    deal: Deal = _first
    struck: Callable[[str], None] = lambda _: None
    """Hears of a kind that only strikes when a run that was left to itself is refused."""
    places: Counter[str] = field(default_factory=Counter)
    """How often a run was killed, paused or hurt at each failpoint."""
    old: list[Driver] = field(default_factory=list)
    by_hand: set[int] = field(default_factory=set)
    """Snapshots of upkeep that no run did."""

    def __post_init__(self) -> None:
        seed, (upkeep, publish) = self.rng.getrandbits(32), TABLES[self.number % len(TABLES)]
        self.settled = publish == "settled"
        self.project = Project(
            self.folder,
            seed=seed,
            catalog=self.lake.settings(self.lake.proxy.uri if self.lake.proxy else None),
            # A task is tried four times: workers die too. Of a socket's path only a hundred letters count: seen from the project it is short.
            spark={"spark.master": "local[1,4]", "spark.python.unix.domain.socket.dir": "."},
            program=self.program,
            table=f"{NAME}.{self.name}.orders",
            feed_table=ORDERS,
            settings={"upkeep": upkeep, "write": {"publish": publish}},
            begin=self.by,
        )
        self.feed = self.project.feed
        self.feed.scan(self.rng.randint(10, 60))
        self.state = self.folder / ".icefront" / "state.db"
        self.foreign = count(1)
        self._drivers: list[Driver] = []
        self._owner = ""
        self._owing = False
        self._schema = 1
        self._partitionings = cycle(PARTITIONINGS)
        self._copies: list[Path] = []
        self._left_as: dict[Driver, str] = {}
        self._struck_before: dict[Driver, int] = {}
        self._upkeep: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers:
            driver.close()
        if self.lake.proxy is not None:
            self.lake.proxy.disarm()  # what is late finds the table gone, or makes one where there is to be none

    @contextmanager
    def choosing(self, rng: Random) -> Iterator[None]:
        """Make choices of another's for a while."""
        own, self.rng = self.rng, rng
        try:
            yield
        finally:
            self.rng = own

    # ── the table ──────────────────────────────────────────────────────────────────────────
    @property
    def table(self) -> str:
        return self.project.table

    @cached_property
    def checker(self) -> Checker:
        def expected(frontier: str) -> Mapping[tuple[Any, ...], Row]:
            return replay(self.folder / "feed", ORDERS.name, ORDERS.keys, frontier)

        return Checker(Subject("orders", ORDERS.keys, self.load, self._read, expected, self.state, self.settled))

    @property
    def _identifier(self) -> str:
        return self.table.partition(".")[2]

    def load(self) -> Table | None:
        try:
            return self.lake.catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def snapshots(self) -> frozenset[int]:
        """Name the snapshots that the table has now."""
        table = self.load()
        return frozenset(snapshot.snapshot_id for snapshot in table.metadata.snapshots) if table else frozenset()

    def metadata(self) -> str:
        """Name the table's metadata file: whatever changes the table changes this. Nothing when there is none."""
        table = self.load()
        return table.metadata_location if table else ""

    @property
    def upkeep_commits(self) -> int:
        """Count the commits of upkeep that runs did, as far as looks have seen."""
        return len(self._upkeep - self.by_hand)

    def _read(self, snapshot: int) -> Sequence[Row]:
        self.lake.spark.catalog.refreshTable(self.table)
        frame = self.lake.spark.sql(f"SELECT * FROM {self.table} VERSION AS OF {snapshot}")  # noqa: S608 — our own names
        return [row.asDict(recursive=True) for row in frame.collect()]

    def check(self) -> None:
        """Look at all that there is; raises Broken for the first thing that is wrong."""
        logs = self._logs()
        for violation in self.checker.check(_released(logs), logs):
            raise Broken(violation)
        if (table := self.load()) is not None:
            self._upkeep |= {snapshot.snapshot_id for snapshot in table.metadata.snapshots if "icefront.upkeep" in said(snapshot)}

    def _logs(self) -> Sequence[str]:
        """Return what each run has said so far: for a look it is read before the table is."""
        return [driver.stderr for driver in self._drivers]

    def lost_tasks(self) -> int:
        """Count the tasks that Spark lost with their workers, by the log of all runs."""
        log = self.folder / ".icefront" / "spark.log"
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return len(re.findall(r"Lost task .*Python worker exited unexpectedly", said))

    # ── the feed ───────────────────────────────────────────────────────────────────────────
    def alter(self) -> bool:
        """Add a column in the source; False when it has had them all."""
        before, self._schema = self._schema, self.feed.alter(ORDERS.name)
        self.feed.advance(30)
        return self._schema > before

    def grow(self, periods: int = PERIODS) -> None:
        """Let the feed say changes in so many more periods, and sometimes none in a few."""
        for _ in range(periods):
            self.feed.advance(self.rng.choice((10, 20, 40)))
        if self.rng.random() < 0.3:
            self.rest()

    def rest(self) -> None:
        """Let the feed say nothing new; what was ahead of its time is through after two periods."""
        for _ in range(3):
            self.feed.advance(0)

    def repartition(self) -> None:
        """Declare another partitioning: the next run changes the table's."""
        self.project.configure({"partition_by": next(self._partitionings)})

    @contextmanager
    def keeping(self, upkeep: object) -> Iterator[None]:
        """Let the runs that begin now do other upkeep than those of this table usually do."""
        usual = self.project.file.read_text(encoding="utf-8")
        self.project.file.write_text(json.dumps({**json.loads(usual), "upkeep": upkeep}), encoding="utf-8")
        try:
            yield
        finally:
            self.project.file.write_text(usual, encoding="utf-8")

    def end_leases(self) -> None:
        """End the leases of runs that were killed in their upkeep: for a minute each would spare the next run that work."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{self.state.as_uri()}?mode=rw", uri=True)) as state:
            state.execute("DELETE FROM leases")
            state.execute("DELETE FROM cycles")
            state.commit()

    # ── runs ───────────────────────────────────────────────────────────────────────────────
    def start(self, armed: Mapping[str, str], *arguments: str) -> Driver:
        """Start a run, and look at what the ones before it left while it gets going."""
        driver = self.launch(armed, *arguments)
        self.lake.warm_up()  # now, while the run gets going
        self.check()
        return driver

    def launch(self, armed: Mapping[str, str], *arguments: str) -> Driver:
        """Start a run, and look at nothing."""
        self._keep_copy()
        command = [*self.program, "--log", "json", "-v", "run", self.project.file.name, "--json", *arguments]
        environment = {
            **os.environ,
            **TELLING,
            ENVIRONMENT: ",".join(f"{place}={action}" for place, action in armed.items()),
            # JVMs that are killed leave libraries and blocks behind.
            "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={quote(str(self.folder))}".strip(),
        }
        before = len(self._strikes())
        driver = Driver(command, self.folder, environment, self.by)
        self._drivers.append(driver)
        self._struck_before[driver] = before
        return driver

    def _strikes(self) -> Sequence[Strike]:
        return self.lake.proxy.strikes if self.lake.proxy else ()

    def _most_struck(self, driver: Driver) -> int:
        """Count the strikes at that commit which was struck most often since a run began."""
        struck = Counter(commit_of(strike.request) for strike in self._strikes()[self._struck_before.get(driver, 0) :])
        return max((times for commit, times in struck.items() if commit), default=0)

    def begin(self, armed: Mapping[str, str], *arguments: str, stops: int = 2) -> Driver:
        """Start a run with work to do that stops after its claim, before its first look at the feed, and at a few places more."""
        self._owing = bool(self.rivals)  # they would take what comes now
        if not self._owing:
            self.grow()
        places = self.rng.sample([place for place in EVERY_EPOCH if place not in armed], stops)
        pauses = _SETTLED | {place: f"pause@{self.passing(place)}" for place in places}
        return self.start({**pauses, **armed}, *arguments)

    def passing(self, place: str) -> int:
        """Choose at which passing a failpoint strikes; there are that many for sure."""
        return 1 if place.partition(".")[0] in ONCE else self.rng.randint(1, PERIODS - 1)

    def follow(
        self, driver: Driver, stops: int, *, strike: bool = True, last: Callable[[], None] = lambda: None, leave: bool = False
    ) -> bool:
        """Go with a run from stop to stop and strike at each; say whether it lives after the last one.

        There, before it is woken, `last` is done; or it is left as it stands.
        """
        for remaining in reversed(range(len(_SETTLED) + stops)):
            if not self.stands(driver):
                return False
            self._overtake(self.old if remaining == 0 else self.rivals)
            if self._owing and not self.rivals:
                self._owing = False
                self.grow()
            if strike:
                self.strike()
            self.check()
            if remaining == 0:
                last()
            if remaining or not leave:
                driver.wake()
        return True

    def stands(self, driver: Driver) -> bool:
        """Wait until a run stops; False when it ends instead."""
        return self.sees(driver, lambda: driver.is_stopped, "a stop or an end")

    def sees(self, driver: Driver, what: Callable[[], object], named: str) -> bool:
        """Wait until a run has done something; False when it ends instead."""
        try:
            wait_until(lambda: what() or driver.code is not None)
        except Unexpected:
            raise Broken(Violation("stuck", self.named(driver), named, f"it goes on; {_end(driver)}")) from None
        return driver.code is None

    def drain(self, driver: Driver) -> None:
        """Ask a run to end, if it lives."""
        if driver.code is None:
            os.kill(driver.pid, signal.SIGTERM)

    def leave(self, driver: Driver, kind: str | None = None) -> None:
        """Leave a run that owns the table to itself, at work or paused: somebody will overtake it, and then this kind has struck."""
        self.old.append(driver)
        self._owner = self.owner()
        if kind is not None:
            self._left_as[driver] = kind

    @property
    def rivals(self) -> Sequence[Driver]:
        """Runs from before that are at work: they publish what there is, until somebody overtakes them."""
        return [driver for driver in self.old if driver.code is None and not driver.is_stopped]

    def _overtake(self, overtaken: Sequence[Driver]) -> None:
        """Wake whoever lost the table: at its next publish it must be refused."""
        if not overtaken or self.owner() == self._owner:
            return
        self.feed.advance(10)
        for driver in overtaken:
            driver.wake()
        for driver in list(overtaken):
            self.old.remove(driver)
            self._look_until_end(driver)
            self.expect(driver, FENCED)
            if kind := self._left_as.get(driver):
                self.struck(kind)

    def _look_until_end(self, driver: Driver) -> None:
        """Look at everything that happens to the table while an overtaken run may do harm: one that is not refused goes on for ever."""
        seen: set[str] = set()

        def ended() -> bool:
            table = self.load()
            if table is not None and table.metadata_location not in seen:
                seen.add(table.metadata_location)
                self.check()
            return driver.code is not None

        with suppress(Unexpected):
            wait_until(ended)
        self.check()

    def expect(self, driver: Driver, *codes: int) -> None:
        """Wait for a run's end, which must be one of these; raises Cut when it lost the catalog, and a commit was struck too often."""
        try:
            code = driver.wait()
        except Unexpected:
            raise Broken(
                Violation("stuck", self.named(driver), f"an end with {_codes(codes)}", f"none; {_end(driver)}")
            ) from None
        if code in codes:
            return
        if code == ConnectionFailed.exit_code and self._most_struck(driver) > RETRIES:
            raise Cut(f"{self.named(driver)} could not reach the catalog")
        raise Broken(Violation("exit", self.named(driver), f"an end with {_codes(codes)}", f"{code}; {_end(driver)}"))

    def catch_up(self) -> None:
        """Let a run without faults do the rest; raises Broken unless it gets to the end of the feed."""
        driver = self.begin({}, "--until", "caught-up", stops=0)
        self.follow(driver, 0)
        self.expect(driver, 0)
        self.check()
        end = self.feed.resolved[-1].next()
        if self.checker.frontier_text != str(end):
            raise Broken(Violation("behind", self.named(driver), f"the frontier {end}", self.checker.frontier_text))
        released = max(map(Timestamp.parse, _released(self._logs())), default=ORIGIN)
        if released != end:
            raise Broken(Violation(Kind.RELEASED, self.named(driver), f"a release up to {end}", str(released)))
        if self.old:
            raise Broken(Violation("stuck", self.named(self.old[0]), "one that is overtaken and woken", "it still stands"))

    def abandon(self) -> None:
        """End the runs that nobody waits for any more."""
        for driver in self._drivers:
            if driver.code is None and driver not in self.old:
                driver.close()

    def drop(self) -> None:
        """Remove the table: the catalog may not be ours alone, and its disk not without end."""
        table = self.load()
        if table is not None and self.lake.uri is not None:
            self.lake.catalog.purge_table(self._identifier)
        elif table is not None:
            self.lake.catalog.drop_table(self._identifier)
            shutil.rmtree(urlsplit(table.location()).path)
        with suppress(NoSuchNamespaceError):
            self.lake.catalog.drop_namespace(self.name)

    def named(self, driver: Driver) -> str:
        return f"run {self._drivers.index(driver) + 1} of {self.folder.name}"

    def owner(self) -> str:
        """Name the writer who owns the table; nobody when there is none."""
        table = self.load()
        text = table.properties.get("icefront.mark.orders") if table else None
        return str(json.loads(text)["writer"]) if text else ""

    @property
    def lives(self) -> bool:
        """Whether any run lives, at work or paused."""
        return any(driver.code is None for driver in self._drivers)

    @property
    def deserted(self) -> bool:
        """Whether no run lives, nor the JVM of one that was killed: what is staged is in nobody's hands."""
        if self.lives:
            return False
        runs = {driver.pid for driver in self._drivers}
        return not any(process.session in runs and process.name == "java" and process.lives for process in processes())

    # ── the state file ─────────────────────────────────────────────────────────────────────
    def staged_chain(self) -> int:
        """Count the staged epochs that the next run will publish: those that continue the frontier."""
        self.check()
        uppers = {note["lower"]: note["upper"] for note in staged_notes(self.state) or ()}
        at = self.checker.frontier_text
        for number in count():
            if at not in uppers:
                return number
            at = uppers.pop(at)
        raise AssertionError

    def _keep_copy(self) -> None:
        """Keep the state file as it is now: somebody may restore it later."""
        copy = self.folder / "copies" / f"{len(self._drivers)}.db"
        copy.parent.mkdir(exist_ok=True)
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{self.state.as_uri()}?mode=ro", uri=True)) as file:
            with closing(sqlite3.connect(copy)) as kept:
                file.backup(kept)
            self._copies.append(copy)

    def older_copy(self) -> Path | None:
        """Choose a copy that was made before the latest run."""
        return self.rng.choice(self._copies[:-1]) if len(self._copies) > 1 else None


def said(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the summary of a snapshot, without its operation."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def commit_of(request: Request) -> str:
    """Name the commit that a request sends, the same in all its repetitions; nothing of one that ends no run when it fails.

    Upkeep is such a one. A claim is known by its writer alone: how far it gets depends on others.
    """
    body = json.loads(request.body or b"{}")
    if any(requirement.get("type") == "assert-create" for requirement in body.get("requirements", ())):
        return "creation"
    snapshots = (update["snapshot"] for update in body.get("updates", ()) if "snapshot" in update)
    said: Mapping[str, str] = next((snapshot["summary"] for snapshot in snapshots), {})
    if "icefront.writer" not in said or "icefront.upkeep" in said:
        return ""
    writer, change = said["icefront.writer"].partition("#")[0], said.get("icefront.change", "")
    return f"{writer} claims" if "icefront.claim" in said and not change else f"{writer} {change} {said['icefront.epoch-id']}"


def _released(logs: Sequence[str]) -> Sequence[str]:
    return [frontier for log in logs for frontier in released(log)]


def _codes(codes: Sequence[int]) -> str:
    return " or ".join(str(code) for code in codes)


def _end(driver: Driver) -> str:
    lines = driver.stderr.splitlines()
    return f"its log ends with: {' ⏎ '.join(lines[-6:])[-1500:]}" if lines else "it said nothing"
