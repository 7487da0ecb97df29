"""Other programs in the same table: writers that never rest, maintenance, rollback and replacement, right before our commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from icefront.proof.checker import FOREIGN, FOREIGN_ROWS
from icefront.proof.harness import Driver, wait_until
from tests.process.matrix import Watched

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(600)]
STOPPED = 5


# ── writers ────────────────────────────────────────────────────────────────────────────────
def append(table: Table, key: int) -> None:
    """Append a row that the feed never says, and name it in the summary."""
    schema = table.schema().as_arrow()
    rows = pa.table({f.name: pa.array([key if f.name == "id" else None], f.type) for f in schema}, schema=schema)
    table.append(rows, snapshot_properties={FOREIGN_ROWS: str(key)})


@contextmanager
def appending(project: Watched) -> Iterator[list[int]]:
    """Append one row after the other from another thread, until we leave."""
    keys: list[int] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.05):
            table = project.load()
            assert table is not None
            try:
                append(table, FOREIGN + len(keys))
            except (CommitFailedException, OperationalError):
                continue  # ours came first
            keys.append(FOREIGN + len(keys))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield keys
    finally:
        stop.set()
        thread.join()


def wait_for_another(keys: Sequence[int]) -> None:
    so_far = len(keys)
    wait_until(lambda: len(keys) > so_far, what="no foreign commit landed")


def test_a_foreign_writer_that_commits_all_the_time_makes_half_of_our_commits_conflict_and_loses_nothing(tmp_path: Path) -> None:
    # PyIceberg writes format 2 only.
    project = Watched(tmp_path, sink={"format_version": 2})
    for _ in range(6):
        project.feed.advance(20)
    with project.start("publish.before-commit=pause@2+4+6+8") as driver:
        driver.wait_until_stopped()
        with appending(project) as keys:
            for _ in range(4):
                driver.wait_until_stopped()
                wait_for_another(keys)
                driver.wake()
            driver.expect(0)
        assert len(driver.epochs()) == 8
    project.check_caught_up()


# ── maintenance ────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def project(tmp_path: Path, lake_folder: Path, table: str) -> Watched:
    """A project on the catalog of the test run's own session."""
    return Watched(tmp_path, catalog=lake_folder, table=table)


def maintenance(spark: Any, table: str) -> dict[str, Callable[[], object]]:
    """What others do to a table, each by a statement of its own."""
    name = table.removeprefix("lake.")

    def call(procedure: str, arguments: str = "") -> Callable[[], object]:
        return lambda: spark.sql(f"CALL lake.system.{procedure}(table => '{name}'{arguments})").collect()

    rewrite = call("rewrite_data_files", ", options => map('rewrite-all', 'true')")

    def rewrite_into_another_spec() -> None:
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")
        rewrite()

    return {
        "rewrite_data_files": rewrite,
        "rewrite_data_files into a new partition spec": rewrite_into_another_spec,
        "rewrite_manifests": call("rewrite_manifests"),
        "expire_snapshots": call("expire_snapshots", ", older_than => current_timestamp(), retain_last => 1"),
        "remove_orphan_files": call("remove_orphan_files"),
        "insert": lambda: spark.sql(f"INSERT INTO {table} (id) VALUES ({FOREIGN})"),
        "delete": lambda: spark.sql(f"DELETE FROM {table} WHERE id = {FOREIGN}"),
    }


def test_maintenance_by_others_right_before_each_of_our_commits(project: Watched, spark: Any) -> None:
    others = maintenance(spark, project.table)
    for _ in others:
        project.feed.advance(20)
    passings = "+".join(str(number + 2) for number in range(len(others)))  # there is something to maintain by then
    with project.start(f"publish.before-commit=pause@{passings}") as driver:
        for come_between in others.values():
            driver.wait_until_stopped()
            project.check()
            spark.catalog.refreshTable(project.table)
            come_between()
            driver.wake()
        driver.expect(0)
    project.check_caught_up()


def test_maintenance_by_others_all_the_time(project: Watched, spark: Any) -> None:
    """Here it is their commits that meet ours in the middle: they may fail, ours may not."""
    for _ in range(9):
        project.feed.advance(20)
    others = maintenance(spark, project.table)
    done = 0
    with project.start("publish.before-commit=pause@2") as driver:
        driver.wait_until_stopped()
        driver.wake()
        while driver.code is None:
            for name in ("rewrite_data_files", "rewrite_manifests", "remove_orphan_files"):
                spark.catalog.refreshTable(project.table)
                with suppress(Py4JJavaError):
                    others[name]()
                    done += 1
        driver.expect(0)
    assert done
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
    assert "rolled back or replaced" in driver.stderr
    assert "rolled back or replaced" in project.run(code=STOPPED).stderr
    assert spark.table(project.table).count() == 3


def test_a_table_that_is_dropped_and_recreated_stops_the_run(project: Watched, spark: Any) -> None:
    with about_to_commit(project) as driver:
        spark.sql(f"DROP TABLE {project.table}")
        spark.sql(f"CREATE TABLE {project.table} (id BIGINT) USING iceberg")
    assert "dropped and recreated" in driver.stderr
    assert snapshots(spark, project.table) == []


def test_a_table_that_is_dropped_stops_the_run_and_the_next_one_loads_it_anew(project: Watched, spark: Any) -> None:
    with about_to_commit(project) as driver:
        spark.sql(f"DROP TABLE {project.table}")
    assert "is gone" in driver.stderr
    project.run()
    project.check_caught_up()
