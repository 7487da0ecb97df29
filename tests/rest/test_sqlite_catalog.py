"""The embedded catalog by its own means: its database locked, its driver killed or paused in mid-commit, its disk full."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefront.api import Pipeline
from icefront.core.errors import ConnectionFailed
from icefront.core.protocol import Published
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import FENCED, KILLED, PROGRAM, Driver
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
from tests.rest import full_disk
from tests.rest.embedded import FIRST, SECOND, Embedded
from tests.sinks.test_iceberg_sink import claim

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT = Path(__file__).parent.parent.parent
PATHS = list(filter(None, [os.environ.get("PYTHONPATH")]))


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the database's write lock; of a new database, which keeps no log of its own yet, also the lock against readers."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


# ── locked ─────────────────────────────────────────────────────────────────────────────────
def test_a_publish_waits_for_a_database_that_is_locked_for_a_moment(spark: Any, tmp_path: Path) -> None:
    catalog = Embedded(spark, tmp_path)
    sink, mark, staged = catalog.begin()
    before = catalog.metadata_files()
    with ThreadPoolExecutor(1) as publisher:
        with locked(catalog.database):
            outcome = publisher.submit(sink.publish, staged, mark)
            wait_until(lambda: catalog.metadata_files() > before)
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


# ── killed and paused in mid-commit ────────────────────────────────────────────────────────
class Project:
    """A pipeline with one epoch published, and a real process that is stopped by a failpoint before it publishes the second."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self.folder = folder
        self.catalog = Embedded(spark, folder / "lake")
        self.lake = Lake(spark, folder, folder / "lake")
        self.table = f"{self.catalog.name}.t.orders"
        self.feed = Feed(folder / "feed", tables=[ORDERS], seed=seed, deletes=0.3)
        self.feed.scan(20)
        known = {"catalogs": {self.catalog.name: {"type": "sqlite", "path": "lake"}}, "spark": {"master": "local[1]"}}
        (folder / "icefront.yaml").write_text(json.dumps(known))
        settings = {"pipeline": "orders", "source": {"changefeed": {"path": "feed/"}}, **orders(self.table)}
        (folder / "orders.yaml").write_text(json.dumps(settings))
        self.run()
        self.feed.advance(20)

    def run(self) -> None:
        Pipeline(load_pipeline(self.folder / "orders.yaml")).run(self.lake.spark, until="caught-up")

    @contextmanager
    def start(self) -> Iterator[Driver]:
        """A run that pauses itself before its commit."""
        command = [*PROGRAM, "run", "orders.yaml", "--until", "caught-up"]
        with Driver(command, self.folder, {**lean(), ENVIRONMENT: "publish.before=pause@1"}, forked) as driver:
            yield driver.wait_until_stopped()

    def let_it_commit(self, driver: Driver) -> None:
        """Wake a run; returns when its metadata file is written, and it waits for the catalog's database."""
        before = self.catalog.metadata_files()
        driver.wake()
        wait_until(lambda: self.catalog.metadata_files() > before)

    def check(self) -> None:
        assert self.lake.check_every_snapshot(self.table, "orders") == 2
        rows, schema = engines.read(self.catalog.folder, self.table)
        expected = replay(self.folder / "feed", "orders", ["id"], str(self.feed.resolved[-1].next()))
        assert not compare(expected, rows, schema, ["id"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_killed_in_mid_commit_leaves_a_table_that_its_successor_goes_on_with(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    project = Project(spark, tmp_path, seed)
    with project.start() as driver:
        with locked(project.catalog.database):
            project.let_it_commit(driver)
            os.killpg(driver.pid, signal.SIGKILL)  # with its JVM
            driver.expect(KILLED)
        project.run()
    project.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_paused_in_mid_commit_is_overtaken_and_refused_when_it_wakes(spark: Any, tmp_path: Path, seed: int) -> None:
    project = Project(spark, tmp_path, seed)
    with project.start() as driver:
        with locked(project.catalog.database):
            project.let_it_commit(driver)
            os.killpg(driver.pid, signal.SIGSTOP)  # with its JVM
            driver.wait_until_stopped()
        project.run()
        project.check()
        os.killpg(driver.pid, signal.SIGCONT)
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
