"""Upkeep by itself, on real tables: behind a run, in quiet hours, when it fails, when the run ends, and in a process of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from icefront.iceberg.live import Manifests
from icefront.iceberg.view import View
from icefront.state.records import CycleRecord
from icefront.status import TargetStatus, status
from icefront.status.look import entries as said
from icefront.testing.feeds import ORDERS, Feed
from icefront.upkeep import hands
from icefront.upkeep.health import Meter
from icefront.upkeep.need import Health, Kind, Outcome, State
from icefront.upkeep.settle import Settled, settle
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.lakes import Lake, orders

pytestmark = pytest.mark.spark

OFTEN = {"settle": {"files": 2, "every": "1ms"}, "compact": "off", "expire": "off"}
PATIENCE = 60


@pytest.fixture
def feed(lake: Lake) -> Feed:
    feed = Feed(lake.feed, tables=[ORDERS], seed=5, deletes=0.3)
    feed.scan(20)
    for _ in range(3):
        feed.advance(10)
    return feed


def of(found: TargetStatus, kind: Kind) -> Any:
    assert found.upkeep is not None
    return next(v for v in found.upkeep.verdicts if v.kind is kind)


def test_a_run_settles_by_itself_while_it_goes_on_publishing(lake: Lake, table: str, feed: Feed) -> None:
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN))
    done: list[CycleRecord] = []
    settled, published, stop = threading.Event(), threading.Event(), threading.Event()

    def hear(cycle: CycleRecord) -> None:
        done.append(cycle)
        published.clear()
        settled.set()

    thread = threading.Thread(
        target=lambda: pipeline.run(lake.spark, on_cycle=hear, on_epoch=lambda _: published.set(), stop=stop), daemon=True
    )
    thread.start()
    try:
        assert settled.wait(PATIENCE)
        feed.advance(10)
        assert published.wait(PATIENCE), "epochs go on after a settle"
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done[0].outcome == Outcome.DONE
    assert done[0].facts["equality_files"] >= 2
    lake.check_every_snapshot(table, "orders")
    (found,) = status(pipeline)
    told = found.to_dict()["upkeep"]
    assert (told["by"], told["last"][0]["kind"], told["last"][0]["outcome"]) == ("run", "settle", "done")
    assert told["unsettled_files"] < 6, "less than without"
    assert of(found, Kind.COMPACT).state is State.OFF


def test_a_run_until_caught_up_does_what_is_due_before_it_ends(lake: Lake, table: str, feed: Feed) -> None:
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN))
    result = lake.run(pipeline)
    assert result.epochs == len(feed.resolved)
    (found,) = status(pipeline)
    assert found.upkeep is not None
    assert found.upkeep.health is not None
    assert found.upkeep.health.equality_files < 2
    lake.check_every_snapshot(table, "orders")


def test_quiet_hours_hold_it_back_and_status_says_so(lake: Lake, table: str, feed: Feed) -> None:
    now = datetime.now(UTC)
    quiet = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=2):%H:%M}"
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN | {"quiet_hours": [quiet]}))
    lake.run(pipeline)
    (found,) = status(pipeline)
    held = of(found, Kind.SETTLE)
    assert held.state is State.HELD
    assert "quiet hours until" in held.why
    assert found.upkeep is not None
    assert found.upkeep.last == ()


def test_upkeep_that_fails_stops_no_run(lake: Lake, table: str, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Settled:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(hands, "settle", fails)
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN))
    assert lake.run(pipeline).epochs == len(feed.resolved)
    (found,) = status(pipeline)
    assert found.upkeep is not None
    last = found.upkeep.last[0]
    assert (last.kind, last.outcome, last.facts) == ("settle", "failed", {"error": "RuntimeError: no such luck"})


def _endless(_: Iterator[int]) -> Iterator[int]:
    time.sleep(3600)
    yield 0


def test_the_end_of_a_run_cancels_the_cycle_at_work_in_its_own_pool(
    lake: Lake, table: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    pools: list[str | None] = []

    def endless(spark: Any, _table: str) -> Settled:
        pools.append(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        stop.set()
        spark.sparkContext.parallelize([0], 1).mapPartitions(_endless).collect()
        raise AssertionError("it never ends by itself")

    monkeypatch.setattr(hands, "settle", endless)
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN))
    assert pipeline.run(lake.spark, stop=stop).epochs
    assert pools == [hands.POOL]
    assert lake.spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None
    (found,) = status(pipeline)
    assert found.upkeep is not None
    assert [(cycle.kind, cycle.outcome) for cycle in found.upkeep.last] == [("settle", Outcome.CANCELLED)]


def test_a_process_of_its_own_does_what_a_run_leaves_to_it(lake: Lake, table: str, feed: Feed) -> None:
    pipeline = lake.pipeline(**orders(table, upkeep=OFTEN | {"by": "other", "compact": {"files": 2}}))
    lake.run(pipeline)
    (found,) = status(pipeline)
    assert of(found, Kind.SETTLE).state is State.DUE
    assert found.upkeep is not None
    assert found.upkeep.last == ()
    done: list[CycleRecord] = []
    pipeline.upkeep(lake.spark, once=True, on_cycle=done.append)
    assert [(cycle.kind, cycle.outcome) for cycle in done] == [("settle", Outcome.DONE), ("compact", Outcome.DONE)]
    (found,) = status(pipeline)
    assert found.upkeep is not None
    assert found.upkeep.health is not None
    assert (found.upkeep.health.equality_files, found.upkeep.health.small_files) == (0, 1)
    json.dumps(found.to_dict())
    lake.check_every_snapshot(table, "orders")


def test_snapshots_that_are_too_many_go_and_the_mark_stays(lake: Lake, table: str, feed: Feed) -> None:
    expire = {"at_least": 1, "at_most": 2, "every": "1ms", "orphans": "off"}
    pipeline = lake.pipeline(**orders(table, upkeep={"settle": "off", "compact": "off", "expire": expire}))
    lake.run(pipeline)
    given_up = time.monotonic() + PATIENCE
    while (snapshots := lake.spark.sql(f"SELECT * FROM {table}.snapshots").count()) > 2 and time.monotonic() < given_up:
        pipeline.upkeep(lake.spark, once=True)  # a cycle that has just been rests before the next
        lake.spark.sql(f"REFRESH TABLE {table}")
    assert snapshots <= 2
    (found,) = status(pipeline)
    assert found.upkeep is not None
    assert {cycle.kind: cycle.outcome for cycle in found.upkeep.last} == {"expire": "done"}
    feed.advance(10)
    assert lake.run(pipeline).epochs == 1, "it goes on from the mark"
    lake.check_every_snapshot(table, "orders")


# ── measuring ──────────────────────────────────────────────────────────────────────────────
def test_a_table_is_measured_from_metadata_and_what_is_known_is_not_read_again(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), 1 FROM range(0, 3000, 1, 1)")
    for n in range(3):
        spark.sql(f"INSERT INTO {table} VALUES ({10_000 + n}, 'w', 2)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.target-file-size-bytes'='24576')")
    read: list[str] = []
    entries = Manifests.entries

    def watched(self: Manifests, refs: Any, *rest: Any) -> Any:
        read.extend(ref.path for ref in refs)
        return entries(self, refs, *rest)

    monkeypatch.setattr(Manifests, "entries", watched)
    healthy = Meter(few=20).measure(View.of(spark, table))
    assert read == []
    assert (healthy.data_files, healthy.rows, healthy.equality_files) == (4, 3003, 0)
    writer = Streaming(spark, table)
    writer.commit([{"id": 1, "v": "x", "n": 1}], [{"id": 1}, {"id": 2}])
    writer.commit([], [{"id": 10_000}])
    meter = Meter()
    unsettled = meter.measure(View.of(spark, table))
    assert len(read) == len(set(read)) > 0
    assert (unsettled.equality_files, unsettled.equality_rows, unsettled.small_files) == (2, 3, 4)
    snapshots = [s for s in View.of(spark, table).metadata.snapshots if "added-equality-deletes" in said(s)]
    assert unsettled.oldest_equality == datetime.fromtimestamp(min(s.timestamp_ms for s in snapshots) / 1000, UTC)
    sizes = [row[0] for row in spark.sql(f"SELECT file_size_in_bytes FROM {table}.delete_files ORDER BY record_count").collect()]
    assert unsettled.delete_reads == 5 * sizes[0] + 4 * sizes[1], "a delete is for files that are older than it"
    assert unsettled.amplification > 1
    read.clear()
    spark.sql(f"INSERT INTO {table} VALUES (20000, 'w', 2)")
    assert meter.measure(View.of(spark, table)).small_files == 5
    assert len(read) == 1, "only the new manifest"
    settle(spark, table)
    after = meter.measure(View.of(spark, table))
    assert (after.equality_files, after.oldest_equality, after.delete_reads, after.dead_rows) == (0, None, 0, 3)
    assert after.snapshots == len(after.loose) + 1


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_mostly_dead_rows_are_found_among_many_that_are_not(spark: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    writer = Streaming(spark, table)
    paths = [writer.commit([{"id": i, "v": f"v{i}", "n": 0} for i in range(start, start + 10)]) for start in range(0, 100, 10)]
    for dead in ([0, 1, 2], [10, 11], [12, 20]):
        writer.commit([], [{"id": i} for i in dead])
        settle(spark, table)
    view = View.of(spark, table)
    sizes = [Path(urlsplit(path).path).stat().st_size for path in paths]
    found = Meter(dead=0.3).measure(view)
    assert (found.dead_rows, found.dead_files, found.dead_bytes) == (7, 2, sizes[0] + sizes[1])
    assert Meter(dead=0.31).measure(view).dead_files == 0
    assert Meter().measure(view).dead_files == 0
    assert Meter(few=99, dead=0.3).measure(view).dead_files == 0, "nobody notices so few bytes"


def test_an_empty_table_is_fine(spark: Any, table: str) -> None:
    create(spark, table)
    assert Meter().measure(View.of(spark, table)) == Health()
