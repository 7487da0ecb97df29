"""Other programs in the same table: writers that never rest, maintenance, rollback and replacement, right before our commits."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, cycle
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from sqlalchemy.exc import OperationalError

from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.proof.checker import FOREIGN, FOREIGN_REMOVED, FOREIGN_ROWS, Kind, files_of, staged_notes
from icefront.proof.faults import is_conflict
from icefront.proof.harness import KILLED, STOPPED, Driver, wait_until
from tests.process.matrix import SEEDS, Watched

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(600)]


# ── attempts ───────────────────────────────────────────────────────────────────────────────
AT_EACH_COMMIT = f"publish.before-commit=pause@{'+'.join(map(str, range(1, 200)))}"
"""Stops a run whenever it has put a commit together and is about to send it."""


def attempts(project: Watched, driver: Driver) -> Iterator[tuple[int, int]]:
    """Go with a run from commit to commit: tells its epoch and which attempt at that it is, both from 1; then it is woken."""
    frontiers: Counter[Timestamp] = Counter()
    while driver.stops():
        frontier = project.mark().frontier
        frontiers[frontier] += 1
        yield len(frontiers), frontiers[frontier]
        driver.wake()


def asked(driver: Driver) -> Sequence[int]:
    """How often the catalog was asked for each epoch."""
    return [epoch["attempts"] for epoch in driver.epochs()]


# ── writers ────────────────────────────────────────────────────────────────────────────────
def append(table: Table, keys: Sequence[int], **summary: str) -> None:
    """Append rows that have nothing but a key."""
    schema, nothing = table.schema().as_arrow(), [None] * len(keys)
    rows = pa.table({f.name: pa.array(keys if f.name == "id" else nothing, f.type) for f in schema}, schema=schema)
    table.append(rows, snapshot_properties=summary)


def appending(project: Watched) -> Callable[[], bool]:
    """A foreign writer's work: one row that the feed never says, with a key that was not tried before."""
    keys = count(FOREIGN)

    def append_one() -> bool:
        table, key = project.load(), next(keys)
        assert table is not None
        try:
            append(table, [key], **{FOREIGN_ROWS: str(key)})
        except (CommitFailedException, OperationalError):
            return False  # ours came first
        return True

    return append_one


class Others:
    """Another program, which does its work again and again from another thread until we leave, except while it is held.

    The work says whether it committed something.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self.commits = 0
        self._work = work
        self._over, self._free, self._working = threading.Event(), threading.Event(), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "others")

    def __enter__(self) -> Self:
        self._life = self._thread.submit(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.shutdown()
        self._life.result()

    def _live(self) -> None:
        while not self._over.wait(0.01):
            with self._working:
                if self._free.is_set():
                    self.commits += self._work()

    def hold(self) -> None:
        """Let no commit of it come from here on."""
        self._free.clear()
        with self._working:
            pass  # what was under way is over

    def let_go(self) -> None:
        self._free.set()

    def wait_for(self, more: int) -> None:
        """Wait for so many more commits of it."""
        enough = self.commits + more
        wait_until(lambda: self.commits >= enough or self._life.done(), what="no commit of others landed")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_foreign_writer_that_commits_all_the_time_makes_half_of_our_commits_conflict_and_loses_nothing(
    tmp_path: Path, lake_folder: Path, table: str, spark: Any, seed: int
) -> None:
    """It commits before the first attempt at every second epoch for sure, and goes on until we have lost once more.

    Then it is held until we are through: how many attempts an epoch takes must not be a matter of luck on a slow machine.
    """
    # PyIceberg writes format 2 only.
    format_2 = {"format_version": 2}
    project = Watched(tmp_path, seed=seed, catalog=lake_folder, table=table, sink=format_2, session=spark)
    for _ in range(6):
        project.feed.advance(20)
    with project.start(AT_EACH_COMMIT) as driver, Others(appending(project)) as others:
        for epoch, attempt in attempts(project, driver):
            if epoch == 1:
                continue  # written without deletes, for a table that is empty
            if attempt > 1:
                others.hold()
            else:
                others.let_go()
                if epoch % 2 == 0:
                    others.wait_for(1)
        driver.expect(0)
    assert len(asked(driver)) == 8
    assert min(asked(driver)[1::2]) >= 2, "a commit of ours that had to conflict did not"
    project.check_caught_up()


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_others_add_to_a_new_table_while_its_first_epoch_is_staged_are_hidden_by_it(
    tmp_path: Path, lake_folder: Path, table: str, spark: Any, seed: int
) -> None:
    """Its files came without deletes, for a table that was empty: they are not published, but written again with deletes."""
    format_2 = {"format_version": 2}
    project = Watched(tmp_path, seed=seed, catalog=lake_folder, table=table, sink=format_2, session=spark)
    project.run("stage.after=kill", code=KILLED)
    (note,) = staged_notes(project.state) or ()
    loaded = project.load()
    assert loaded is not None
    append(loaded, [key for (key,) in project.checker.subject.expected(note["upper"])])
    with pytest.raises(AssertionError, match=f"{Kind.ROWS}: snapshot .* at {ORIGIN}: expected 0 rows .* extra"):
        project.check()
    assert [epoch["recovered"] for epoch in project.run().epochs()] == [False, False]
    project.check_caught_up()


# ── maintenance ────────────────────────────────────────────────────────────────────────────
@pytest.fixture(params=SEEDS)
def project(tmp_path: Path, lake_folder: Path, table: str, spark: Any, request: pytest.FixtureRequest) -> Watched:
    """A project on the catalog of the test run's own session; its commits wait for others as long as a slow machine takes."""
    patient = {"commit": {"patience": "10m"}}
    return Watched(tmp_path, seed=request.param, catalog=lake_folder, table=table, settings=patient, session=spark)


def maintenance(spark: Any, table: str) -> dict[str, Callable[[], object]]:
    """What others do to a table, each by a statement of its own."""

    def call(procedure: str, arguments: str = "") -> Callable[[], Sequence[Any]]:
        return lambda: procedures(spark, table, procedure, arguments)

    rewrite = call("rewrite_data_files", ", options => map('rewrite-all', 'true')")

    def rewrite_into_another_spec() -> None:
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")
        ((rewritten, *_),) = rewrite()
        assert rewritten > 0

    def change(statement: str, **named: str) -> Callable[[], object]:
        """A change of rows, whose snapshot names the keys that come and go."""

        def execute() -> None:
            with settings(spark, {f"spark.sql.iceberg.snapshot-property.{name}": keys for name, keys in named.items()}):
                spark.sql(statement)

        return execute

    keys = range(FOREIGN, FOREIGN + 8)  # several in a file, or a delete would drop the file and name nothing
    return {
        "rewrite_manifests": call("rewrite_manifests"),
        "rewrite_data_files": rewrite,
        "rewrite_data_files into a new partition spec": rewrite_into_another_spec,
        "expire_snapshots": call("expire_snapshots", ", older_than => current_timestamp(), retain_last => 1"),
        "insert": change(
            f"INSERT INTO {table} (id) VALUES {', '.join(f'({key})' for key in keys)}", **{FOREIGN_ROWS: ",".join(map(str, keys))}
        ),
        "delete": change(f"DELETE FROM {table} WHERE id = {keys[0]}", **{FOREIGN_REMOVED: str(keys[0])}),
    }


def procedures(spark: Any, table: str, procedure: str, arguments: str = "") -> Sequence[Any]:
    catalog, _, name = table.partition(".")
    spark.catalog.refreshTable(table)
    found: Sequence[Any] = spark.sql(f"CALL {catalog}.system.{procedure}(table => '{name}'{arguments})").collect()
    return found


@contextmanager
def settings(spark: Any, values: Mapping[str, str]) -> Iterator[None]:
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            spark.conf.unset(key)


def test_maintenance_by_others_right_before_each_of_our_commits(project: Watched, spark: Any) -> None:
    """One of them before each epoch, when its commit is put together and not yet sent: it conflicts, and is put together anew."""
    others = maintenance(spark, project.table)
    left = list(others.items())
    for _ in range(1 + len(others)):
        project.feed.advance(20)
    with project.start(AT_EACH_COMMIT) as driver:
        for epoch, attempt in attempts(project, driver):
            if epoch > 2 and attempt == 1 and left:  # there is something to maintain by then
                project.check()
                before = project.metadata()
                name, come_between = left.pop(0)
                spark.catalog.refreshTable(project.table)
                come_between()
                assert project.metadata() != before, f"{name} changed nothing"
        driver.expect(0)
    assert not left
    conflicts = dict(zip(others, asked(driver)[2:], strict=False))
    assert min(conflicts.values()) >= 2, f"commits of ours that had to conflict did not: {conflicts}"
    project.check_caught_up()


DAYS_AGO = time.time() - 4 * 86_400


def look_old(path: Path) -> None:
    os.utime(path, (DAYS_AGO, DAYS_AGO))


def remove_orphans(spark: Any, table: str) -> set[Path]:
    """Remove what is older than three days and no snapshot knows; tells what that was."""
    three_days_ago = f"TIMESTAMP '{datetime.fromtimestamp(DAYS_AGO + 86_400, UTC):%F %T}'"
    removed = procedures(spark, table, "remove_orphan_files", f", older_than => {three_days_ago}")
    return {Path(urlsplit(row[0]).path) for row in removed}


def test_staged_files_that_were_removed_as_orphans_are_written_again(project: Watched, spark: Any) -> None:
    """Everything is made to look days old: what is committed must stay, what is merely staged may go."""
    project.run()
    project.feed.advance(20)
    project.run("stage.after=kill", code=KILLED)
    table = project.load()
    assert table is not None
    for path in Path(urlsplit(table.location()).path).rglob("*"):
        look_old(path)
    project.check()
    staged = set(files_of(staged_notes(project.state) or ()))
    assert staged
    assert {Path(urlsplit(file).path) for file in staged} <= remove_orphans(spark, project.table)
    project.checker.forgive(staged)
    project.check()
    run = project.run()
    assert "staged files are gone, or do not fit the table any more; writing the epoch again" in run.stderr
    assert [epoch["recovered"] for epoch in run.epochs()] == [False]
    project.check_caught_up()


def rewrites(project: Watched) -> int:
    """How many snapshots of the table only rewrite what was there."""
    table = project.load()
    assert table is not None
    return sum(s.summary is not None and s.summary.operation is Operation.REPLACE for s in table.metadata.snapshots)


def test_maintenance_by_others_all_the_time(project: Watched, spark: Any) -> None:
    """Here our commits meet theirs in the middle, too: theirs may fail, ours may not. Before every second one of ours two land.

    And orphans that look old are removed, for the first time for sure while an epoch is staged and about to be committed.
    """
    for _ in range(5):
        project.feed.advance(20)
    statements = maintenance(spark, project.table)
    orphans: list[Path] = []

    def leave_and_remove_an_orphan() -> None:
        """One such as an attempt leaves that was lost: a file of ours that no snapshot knows."""
        file = min(project.committed())
        orphans.append(file.with_name(f"lost-{len(orphans)}-{file.name}"))
        shutil.copyfile(file, orphans[-1])
        look_old(orphans[-1])
        there = set(filter(Path.exists, orphans))
        assert remove_orphans(spark, project.table) == there

    works = {
        "remove_orphan_files": leave_and_remove_an_orphan,
        **{name: statements[name] for name in ("rewrite_data_files", "rewrite_manifests")},
    }
    names, done = cycle(works), Counter[str]()

    def maintain() -> bool:
        before, name = rewrites(project), next(names)
        try:
            works[name]()
            done[name] += 1
        except Py4JJavaError as error:
            if not is_conflict(error):  # otherwise ours came first
                raise
        return rewrites(project) > before

    with project.start(AT_EACH_COMMIT) as driver, Others(maintain) as others:
        for epoch, attempt in attempts(project, driver):
            if epoch < 3:
                continue  # there is nothing to maintain yet
            if attempt > 2:
                others.hold()
            else:
                others.let_go()
                if epoch % 2 and attempt == 1:
                    others.wait_for(2)  # both kinds: what begins when we are woken may lose every time
                    assert orphans
                    project.check()  # what is staged is there, too
        driver.expect(0)
    assert min(asked(driver)[2::2]) >= 2, f"a commit of ours that had to conflict did not: {asked(driver)}"
    assert rewrites(project) >= others.commits >= 6
    assert done.keys() == works.keys()
    assert not any(orphan.exists() for orphan in orphans)
    project.check_caught_up()


# ── rollback and replacement ───────────────────────────────────────────────────────────────
@contextmanager
def about_to_commit(project: Watched) -> Iterator[Driver]:
    """A driver that has published one epoch and stands right before its second commit."""
    with project.start("publish.before-commit=pause@2") as driver:
        yield driver.wait_until_stopped()
        driver.wake()
        driver.expect(STOPPED)


def snapshots(spark: Any, table: str) -> list[int]:
    spark.catalog.refreshTable(table)
    return [row[0] for row in spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at").collect()]


def test_a_table_that_is_rolled_back_stops_the_run_and_the_next_one_until_it_is_set_forward(project: Watched, spark: Any) -> None:
    def set_current(snapshot: int) -> None:
        spark.sql(f"CALL lake.system.set_current_snapshot('{project.table.removeprefix('lake.')}', {snapshot})")

    with about_to_commit(project) as driver:
        first, *_, last = snapshots(spark, project.table)
        set_current(first)
    assert "rolled back" in driver.stderr
    assert "rolled back" in project.run(code=STOPPED).stderr
    set_current(last)
    project.run()
    project.check_caught_up()


def test_a_table_that_is_replaced_stops_the_run_and_the_next_one(project: Watched, spark: Any) -> None:
    with about_to_commit(project) as driver:
        spark.catalog.refreshTable(project.table)
        spark.sql(f"CREATE OR REPLACE TABLE {project.table} USING iceberg AS SELECT * FROM {project.table} LIMIT 3")
        replaced = project.metadata()
    assert "rolled back or replaced" in driver.stderr
    assert "rolled back or replaced" in project.run(code=STOPPED).stderr
    assert project.metadata() == replaced, "a run that was stopped changed the table"
    assert spark.table(project.table).count() == 3


def test_a_table_that_is_dropped_and_recreated_stops_the_run_and_the_next_one_loads_it_anew(project: Watched, spark: Any) -> None:
    with about_to_commit(project) as driver:
        spark.sql(f"DROP TABLE {project.table}")
        spark.sql(f"CREATE TABLE {project.table} (id BIGINT) USING iceberg")
    assert "dropped and recreated" in driver.stderr
    assert snapshots(spark, project.table) == []
    project.run()
    project.check_caught_up()


def test_a_table_that_is_dropped_stops_the_run_and_the_next_one_loads_it_anew(project: Watched, spark: Any) -> None:
    with about_to_commit(project) as driver:
        spark.sql(f"DROP TABLE {project.table}")
    assert "is gone" in driver.stderr
    project.run()
    project.check_caught_up()
