"""The embedded catalog by its own means: its database locked, its driver killed or paused in mid-commit, its disk full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefront.api import Pipeline
from icefront.core.errors import ConnectionFailed
from icefront.core.ports import Wish
from icefront.core.protocol import Published
from icefront.iceberg.java import JavaTable, java_class
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import FENCED, KILLED, PROGRAM, Driver, wait_until
from icefront.proof.oracle import compare, replay
from icefront.proof.sessions import look
from icefront.settings import load_pipeline
from icefront.testing.feeds import ORDERS, Feed
from tests import engines
from tests.conftest import lean
from tests.lakes import Lake, orders
from tests.process.forked import forked
from tests.process.full_disk import namespace, why_not
from tests.process.matrix import SEEDS
from tests.process.mid_commit import freeze, holding, locked, metadata_files, thaw, waiting
from tests.rest import full_disk
from tests.rest.embedded import FIRST, SECOND, Embedded
from tests.sinks.test_iceberg_sink import claim, count, stage

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT = Path(__file__).parent.parent.parent
PATHS = list(filter(None, [os.environ.get("PYTHONPATH")]))


# ── locked ─────────────────────────────────────────────────────────────────────────────────
def test_a_publish_waits_for_a_database_that_is_locked_for_a_moment(spark: Any, tmp_path: Path) -> None:
    catalog = Embedded(spark, tmp_path)
    sink, mark, staged = catalog.begin()
    before = metadata_files(tmp_path)
    with ThreadPoolExecutor(1) as publisher:
        with locked(catalog.database):
            outcome = publisher.submit(sink.publish, staged, mark)
            wait_until(lambda: metadata_files(tmp_path) > before)
            time.sleep(0.5)
            assert not outcome.done()
        published = outcome.result(60)
    assert isinstance(published, Published)
    assert published.attempts == 1
    catalog.check(FIRST, SECOND)


def test_a_database_that_stays_locked_is_a_connection_that_failed(spark: Any, tmp_path: Path) -> None:
    catalog = Embedded(spark, tmp_path, hasty=True)
    sink, mark, staged = catalog.begin(retries=1)
    with locked(catalog.database):
        with pytest.raises(ConnectionFailed, match="SQLITE_BUSY") as publishing:
            sink.publish(staged, mark)
        assert "another program holds the catalog's database" in publishing.value.next_step
        with pytest.raises(ConnectionFailed, match="SQLITE_BUSY"):
            claim(catalog.sink(retries=0))
    assert isinstance(sink.publish(staged, mark), Published)
    catalog.check(FIRST, SECOND)


def test_a_database_that_cannot_be_read_either_is_a_connection_that_failed(spark: Any, tmp_path: Path) -> None:
    catalog = Embedded(spark, tmp_path, hasty=True)
    with locked(catalog.database), pytest.raises(ConnectionFailed, match="SQLITE_BUSY") as opening:
        catalog.sink()
    assert "another program holds the catalog's database" in opening.value.next_step
    catalog.begin()
    catalog.check(FIRST)


def test_a_paused_program_that_holds_the_lock_is_named_as_such_and_waited_out(spark: Any, tmp_path: Path) -> None:
    catalog = Embedded(spark, tmp_path, hasty=True)
    sink, mark, staged = catalog.begin(retries=0)
    script = (
        "import os, signal, sqlite3, sys\n"
        "holder = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "holder.execute('BEGIN IMMEDIATE')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "holder.execute('ROLLBACK')\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(catalog.database)]) as zombie:
        try:
            wait_until(lambda: (found := look(zombie.pid)) is not None and found.state == "T")
            with pytest.raises(ConnectionFailed, match="SQLITE_BUSY") as busy:
                sink.publish(staged, mark)
            assert "wake it if it is paused" in busy.value.next_step
            zombie.send_signal(signal.SIGCONT)
            assert zombie.wait(60) == 0
        finally:
            zombie.kill()
    assert isinstance(sink.publish(staged, mark), Published)
    catalog.check(FIRST, SECOND)


# ── lost answers ───────────────────────────────────────────────────────────────────────────
# FAIL ends a statement with an error and keeps what it has done so far: Iceberg gets an exception of the driver.
RAISES = "AFTER UPDATE ON iceberg_tables {once} SELECT RAISE(FAIL, 'the answer is lost'); END"
# The driver says that no row was changed, as it does of a statement that Iceberg repeats by itself when its connection was lost.
CONFLICTS = """BEFORE UPDATE ON iceberg_tables {once}
    UPDATE iceberg_tables SET metadata_location = NEW.metadata_location, previous_metadata_location = OLD.metadata_location
        WHERE catalog_name = OLD.catalog_name AND table_namespace = OLD.table_namespace AND table_name = OLD.table_name;
    SELECT RAISE(IGNORE); END"""
ONCE = "WHEN (SELECT armed FROM answers) > 0 BEGIN UPDATE answers SET armed = armed - 1;"


class Answers:
    """Loses answers of a catalog's database, by its own means: the next commit is applied, and Iceberg is told otherwise."""

    def __init__(self, database: Path, trigger: str) -> None:
        self.database = database
        self._do(
            "CREATE TABLE answers (armed)", "INSERT INTO answers VALUES (0)", f"CREATE TRIGGER lost {trigger.format(once=ONCE)}"
        )

    def _do(self, *statements: str) -> list[tuple[int]]:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as writing:
            return [row for statement in statements for row in writing.execute(statement)]

    @contextmanager
    def lost(self) -> Iterator[None]:
        """Lose the answer to one commit, which must come."""
        self._do("UPDATE answers SET armed = 1")
        yield
        assert self._do("SELECT armed FROM answers") == [(0,)], "nothing was committed"


@pytest.mark.parametrize("mode", ["immediate", "settled"])
@pytest.mark.parametrize("trigger", [RAISES, CONFLICTS], ids=["an exception", "a conflict"])
def test_a_lost_answer_does_not_publish_twice(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trigger: str, mode: str
) -> None:
    catalog = Embedded(spark, tmp_path)
    sink = catalog.sink(publish=mode)
    swap = JavaTable._swap
    raised: list[str] = []

    def noted(table: JavaTable, transaction: Any) -> None:
        try:
            swap(table, transaction)
        except Exception as error:
            raised.append(java_class(error))
            raise

    monkeypatch.setattr(JavaTable, "_swap", noted)
    answers = Answers(catalog.database, trigger)
    with answers.lost():
        mark = claim(sink)
    for upper, changes in ((10, FIRST), (20, {1: "c"}), (30, {})):
        staged = stage(sink, mark, upper, changes)
        with answers.lost():
            outcome = sink.publish(staged, mark)
        assert isinstance(outcome, Published)
        assert outcome.attempts == 1, "it was sent again"
        mark = outcome.mark
    with answers.lost():
        assert sink.prepare([Wish("extra", "long", "f:1")]).column_names == ["id", "v", "extra"]
    said = (
        "org.apache.iceberg.jdbc.UncheckedSQLException"
        if trigger is RAISES
        else "org.apache.iceberg.exceptions.CommitFailedException"
    )
    assert raised == [said] * 5
    assert (mark.writer.generation, count(spark, catalog.table)) == (1, 5)
    catalog.check(FIRST, SECOND, SECOND)


# ── killed and paused in mid-commit ────────────────────────────────────────────────────────
class Project:
    """A pipeline with one epoch published, and a real process that is stopped by failpoints before it publishes the next ones."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self.folder = folder
        self.catalog = Embedded(spark, folder / "lake", hasty=True)
        self.lake = Lake(spark, folder, folder / "lake")
        self.table = f"{self.catalog.name}.t.orders"
        self.feed = Feed(folder / "feed", tables=[ORDERS], seed=seed, deletes=0.3)
        self.feed.scan(20)
        known = {"catalogs": {self.catalog.name: {"type": "sqlite", "path": "lake"}}, "spark": {"master": "local[1]"}}
        (folder / "icefront.yaml").write_text(json.dumps(known))
        settings = {
            "pipeline": "orders",
            "source": {"changefeed": {"path": "feed/"}},
            **orders(self.table, commit={"retries": 1}),
        }
        (folder / "orders.yaml").write_text(json.dumps(settings))
        self.run()
        self.feed.advance(20)

    def run(self) -> None:
        Pipeline(load_pipeline(self.folder / "orders.yaml")).run(self.lake.spark, until="caught-up")

    @contextmanager
    def start(self, commits: str) -> Iterator[Driver]:
        """A run that pauses itself before these commits, at the first of them."""
        command = [*PROGRAM, "run", "orders.yaml", "--until", "caught-up"]
        with Driver(command, self.folder, {**lean(), ENVIRONMENT: f"publish.before=pause@{commits}"}, forked) as driver:
            yield driver.wait_until_stopped()

    def check(self) -> None:
        assert self.lake.check_every_snapshot(self.table, "orders") == len(self.feed.resolved)
        rows, schema = engines.read(self.catalog.folder, self.table)
        expected = replay(self.folder / "feed", "orders", ["id"], str(self.feed.resolved[-1].next()))
        assert not compare(expected, rows, schema, ["id"])


def tables(database: Path) -> list[tuple[str, str]]:
    """What the catalog says of its tables, by SQLite alone."""
    with closing(sqlite3.connect(database)) as reading:
        assert reading.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return reading.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()


def as_left_behind(database: Path, folder: Path) -> Path:
    """Copy a database and its log, and nothing that those know of the log who have it open: whoever reads the copy has to recover."""
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", folder / f"copy.db{suffix}")
    return folder / "copy.db"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_killed_in_mid_commit_leaves_a_table_that_its_successor_goes_on_with(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    """Killed while it holds the database, with its change half written to the log."""
    project = Project(spark, tmp_path, seed)
    with project.start("1") as driver:
        before = tables(project.catalog.database)
        with holding(driver, project.catalog.folder):
            os.killpg(driver.pid, signal.SIGKILL)  # with its JVM
            driver.expect(KILLED)
            wait_until(lambda: driver.jvm() is None, what="the JVM did not end")
            assert tables(as_left_behind(project.catalog.database, tmp_path)) == before
        project.run()
    project.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_paused_in_mid_commit_is_waited_for_while_it_holds_the_database_and_overtaken_while_it_waits_for_it(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    """Where nobody could overtake it, it lands when it wakes; overtaken, it is refused."""
    project = Project(spark, tmp_path, seed)
    project.feed.advance(20)
    with project.start("1+2") as driver:
        before = tables(project.catalog.database)
        with holding(driver, project.catalog.folder):
            with pytest.raises(ConnectionFailed, match="SQLITE_BUSY") as successor:
                project.run()
            assert "wake it if it is paused" in successor.value.next_step
            assert tables(project.catalog.database) == before
            thaw(driver)
        assert tables(project.catalog.database) != before
        driver.wait_until_stopped()
        with waiting(driver, project.catalog.folder):
            freeze(driver)
        project.run()
        project.check()
        thaw(driver)
        assert "is owned by writer" in driver.expect(FENCED).stderr
    project.check()


# ── a full disk ────────────────────────────────────────────────────────────────────────────
def test_a_full_disk_stops_the_publish_and_nothing_else(tmp_path: Path) -> None:
    if reason := why_not(tmp_path / "tried"):
        pytest.skip(f"no small disk can be mounted here, neither by this user nor in a user namespace: {reason}")
    command = [*namespace(), sys.executable, "-m", full_disk.__name__, str(tmp_path / "disks")]
    with Driver(command, tmp_path, {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *PATHS])}) as driver:
        driver.expect(0)
        # Between them stands its log.
        assert [line for line in driver.stdout.splitlines() if line in full_disk.PLACES] == list(full_disk.PLACES)
