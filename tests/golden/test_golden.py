"""Golden runs: at every snapshot the table equals the feed replayed to that snapshot's frontier."""

from __future__ import annotations

import pytest

from icefront.proof.oracle import compare, replay
from icefront.testing.feeds import CUSTOMERS, ORDERS, Feed
from tests import engines
from tests.lakes import Lake, orders, snapshots

pytestmark = pytest.mark.spark


def test_an_append_only_feed_arrives_whole(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=1, deletes=0.0, repeats=0.0, beyond=0.0)
    feed.scan(40)
    feed.advance(50)
    result = lake.run(lake.pipeline(**orders(table)))
    assert result.epochs == 2
    assert lake.check_every_snapshot(table, "orders") == 2


def test_updates_deletes_and_repetitions_leave_the_last_state_of_each_key(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=2, deletes=0.3, repeats=0.2, beyond=0.3)
    feed.scan(50)
    for _ in range(5):
        feed.advance(80)
    feed.restart()
    feed.lag()
    feed.advance(80)
    pipeline = lake.pipeline(**orders(table, iceberg={"partition_by": ["bucket(4, id)", "status"]}))
    lake.run(pipeline)
    assert lake.check_every_snapshot(table, "orders") == 7


def test_a_feed_that_goes_on_is_followed_over_restarts(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=3, beyond=0.3)
    feed.scan(20)
    pipeline = lake.pipeline(**orders(table))
    for _ in range(4):
        feed.advance(60)
        lake.run(pipeline)
    assert lake.run(pipeline).epochs == 0
    assert lake.check_every_snapshot(table, "orders") == 5


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_say_the_same(lake: Lake, table: str, codec: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=4, codec=codec)
    feed.scan(30)
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table)))
    assert lake.check_every_snapshot(table, "orders") == 2


def test_many_tables_in_one_feed_go_their_own_ways(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[CUSTOMERS, ORDERS], seed=5, nodes=5)
    feed.scan(30)
    for _ in range(3):
        feed.advance(90)
    entries = {
        name: {"keys": ["id"], "sink": {"iceberg": {"table": f"{table}_{name}"}}, "columns": {"created_at": "timestamptz"}}
        for name in ("customers", "orders")
    }
    entries["orders"]["columns"]["amount"] = "decimal(12,2)"  # type: ignore[index]
    lake.run(lake.pipeline(tables=entries, epochs={"every": "resolved"}))
    for name in ("customers", "orders"):
        assert lake.check_every_snapshot(f"{table}_{name}", name) == 4


def test_one_table_goes_to_two_targets_each_with_its_own_mark(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=6)
    feed.scan(20)
    feed.advance(40)
    settings = dict(orders(table))
    settings["sink"] = [{"iceberg": {"table": table}}, {"iceberg": {"table": f"{table}_b", "format_version": 2}}]
    lake.run(lake.pipeline(**settings))
    assert lake.check_every_snapshot(table, "orders") == 2
    assert lake.check_every_snapshot(f"{table}_b", "orders") == 2


def test_columns_that_appear_are_added_and_every_snapshot_still_agrees(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=7)
    feed.scan(20)
    feed.advance(40)
    feed.alter("orders")
    feed.advance(60)
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table)))
    assert "channel" in lake.schema(table).column_names
    schema = lake.schema(table)
    assert lake.check_every_snapshot(table, "orders") == 4, schema


def test_without_a_declaration_the_first_epoch_decides_the_columns(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[CUSTOMERS], seed=8)
    feed.scan(20)
    feed.advance(40)
    lake.run(lake.pipeline("customers", sink={"iceberg": {"table": table}}, epochs={"every": "resolved"}))
    types = {f.name: str(f.field_type) for f in lake.schema(table).fields}
    assert types == {"id": "long", "name": "string", "city": "string", "vip": "boolean", "created_at": "string"}
    assert lake.check_every_snapshot(table, "customers") == 2


def test_columns_that_others_add_to_the_table_do_not_stop_a_running_pipeline(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=13)
    feed.scan(20)
    feed.advance(30)
    added: list[str] = []

    def meanwhile(_: object) -> None:
        if not added:
            added.append("theirs")
            lake.spark.sql(f"ALTER TABLE {table} ADD COLUMN theirs STRING")

    feed.advance(30)
    feed.advance(30)
    feed.advance(30)
    pipeline = lake.pipeline(**orders(table, epochs={"every": "resolved", "in_flight": 1}))
    lake.run(pipeline, on_epoch=meanwhile)
    assert "theirs" in lake.schema(table).column_names
    assert lake.check_every_snapshot(table, "orders") == 5


def test_time_between_epochs_joins_resolved_timestamps(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=9, period=2.0)
    feed.scan(20)
    for _ in range(10):
        feed.advance(20)
    lake.run(lake.pipeline(**orders(table, epochs={"every": "1h"})))
    assert lake.check_every_snapshot(table, "orders") == 1


def test_large_epochs_are_exchanged_by_key_between_workers(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefront.spark.job.PARTITION_BYTES", 8_000)
    monkeypatch.setattr("icefront.api.SPLIT_BYTES", 4_000)
    feed = Feed(lake.feed, tables=[ORDERS], seed=10, deletes=0.3, repeats=0.3)
    feed.scan(100)
    for _ in range(2):
        feed.advance(300)
    lake.run(lake.pipeline(**orders(table)))
    assert lake.check_every_snapshot(table, "orders") == 3
    added = [s["summary"]["added-data-files"] for s in snapshots(lake.spark, table) if "icefront.lower" in s["summary"]]
    assert min(map(int, added)) > 2, "one task makes one file, and the least of exchanges two"


def test_a_second_engine_reads_the_same_final_table(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=12, deletes=0.3)
    feed.scan(40)
    for _ in range(3):
        feed.advance(60)
    lake.run(lake.pipeline(**orders(table, iceberg={"partition_by": ["bucket(4, id)"]})))
    rows, schema = engines.read(lake.catalog, table)
    assert not compare(replay(lake.feed, "orders", ["id"], lake.epochs(table)[-1][1]), rows, schema, ["id"])
