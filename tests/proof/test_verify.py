"""Verifying by Spark: equal tables are found equal, and every kind of difference is found."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest

from icefront.core.errors import ConfigError
from icefront.core.timestamps import ORIGIN
from icefront.proof import oracle
from icefront.proof import verify as verifying
from icefront.proof.verify import Comparison, points, verify
from icefront.testing.feeds import BEGIN, ORDERS, SECOND, Feed, FeedWriter
from tests.lakes import Lake, orders

pytestmark = pytest.mark.spark


def compared(lake: Lake, pipeline, **options) -> list[Comparison]:
    return list(verify(pipeline, lake.spark, points(pipeline, **options)))


@pytest.fixture
def feed(lake):
    feed = Feed(lake.feed, tables=(ORDERS,), seed=11)
    feed.scan(30)
    feed.advance(40)
    feed.advance(40)
    return feed


def test_every_snapshot_equals_the_source_at_its_own_frontier(lake, feed, table):
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    found = compared(lake, pipeline, every_snapshot=True)
    assert [comparison.equal for comparison in found] == [True] * 4  # a claim and three epochs
    assert [comparison.frontier for comparison in found] == [ORIGIN, *(resolved.next() for resolved in feed.resolved)]
    assert found[-1].rows == found[-1].expected == len(feed.state("orders", feed.resolved[-1].next()))


def test_all_snapshots_of_a_table_are_compared_by_one_reading_of_the_feed(lake, feed, table, monkeypatch):
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    opened: list[str] = []

    def noted(*of: Any) -> Iterator[tuple[str, Any]]:
        for name, file in oracle.local_files(*of):
            opened.append(name)
            yield name, file

    monkeypatch.setattr(verifying, "local_files", noted)
    chosen = points(pipeline, every_snapshot=True)
    # In whatever order: a table whose frontiers went back is compared all the same.
    found = list(verify(pipeline, lake.spark, reversed(chosen)))
    assert [comparison.equal for comparison in found] == [True] * len(chosen)
    assert len(opened) == len(set(opened)) > len(chosen) - 1


def test_many_small_files_are_read_in_one_job_and_several_splits_one_after_the_other(lake, feed, table, monkeypatch):
    for _ in range(6):
        feed.advance(20)
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    (point,) = points(pipeline)
    usual = lake.spark.table(table).rdd.getNumPartitions()
    assert verifying._frame(lake.spark, point).rdd.getNumPartitions() == 1 < usual
    monkeypatch.setattr(verifying, "_FEW_JOBS", "WITH ('split-size' = '5000', 'file-open-cost' = '4000')")
    assert verifying._frame(lake.spark, point).rdd.getNumPartitions() > usual
    (found,) = compared(lake, pipeline)
    assert found.equal
    assert found.rows == found.expected > 30


def test_the_current_snapshot_is_compared_at_the_mark_s_frontier_while_the_feed_is_ahead(lake, feed, table):
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    feed.advance(40)
    (found,) = compared(lake, pipeline)
    assert found.equal


def test_rows_that_someone_else_changed_are_found_and_shown(lake, feed, table):
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    first, second, *_ = sorted(key[0] for key in feed.state("orders", feed.resolved[-1].next()))
    lake.spark.sql(f"DELETE FROM {table} WHERE id = {first}")
    lake.spark.sql(f"UPDATE {table} SET status = 'lost' WHERE id = {second}")
    lake.spark.table(table).where(f"id = {second}").selectExpr("1000000L AS id", "* EXCEPT (id)").writeTo(table).append()
    (found,) = compared(lake, pipeline)
    assert not found.equal
    assert {kind: n for kind, n in found.difference.counts.items() if n} == {"missing": 1, "extra": 1, "differing": 1}
    assert [row["id"] for row in found.difference.missing] == [first]
    (extra,) = found.difference.extra
    assert extra["id"] == 1000000
    assert extra["created_at"].tzinfo is UTC, "an instant says its zone"
    (value,) = found.difference.differing
    assert (value.key, value.column, value.actual) == ((second,), "status", "lost")


def test_a_new_change_below_the_frontier_is_counted_and_its_row_found_missing(lake, table):
    """The feed breaks its promise: what it had resolved was not all. A run cannot tell such a change from a repetition."""
    feed = Feed(lake.feed, tables=(ORDERS,), seed=11, repeats=0.0, beyond=0.0)
    feed.scan(30)
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    resolved, seen = feed.resolved[-1], len(feed.said)
    late = replace(feed.said[0], key=(10**6,), row={**(feed.said[0].row or {}), "id": 10**6})
    feed.advance(40)
    FeedWriter(lake.feed).data(
        resolved, "00000000000000aa-9-9-00000000", "orders", 1, late.line().encode(), resolved.wall + SECOND
    )
    (event,) = lake.run(pipeline).published
    assert event.counts["below"] == seen + 1  # a new run reads again what is not a day old
    (found,) = compared(lake, pipeline)
    assert {kind: n for kind, n in found.difference.counts.items() if n} == {"missing": 1}
    assert [row["id"] for row in found.difference.missing] == [10**6]


def test_a_table_that_does_not_exist_yet_has_nothing_to_compare(lake, feed, table):
    (found,) = compared(lake, lake.pipeline(**orders(table)))
    assert found.equal
    assert found.nothing_published


def test_a_key_that_is_declared_in_another_order_than_the_feed_s_is_the_same_key(lake, table):
    """Deletes name rows by values alone, in the feed's order."""
    feed = lake.feed / "2026-04-02"
    feed.mkdir(parents=True)
    at = BEGIN.next()
    lines = [f'{{"after": {{"a": {a}, "b": {b}}}, "key": [{b}, {a}], "updated": "{at}"}}' for a, b in ((1, 2), (2, 1), (7, 8))]
    delete = f'{{"after": null, "key": [2, 1], "updated": "{at.next()}"}}'
    (feed / f"{BEGIN.name()}-56087568dba1e6b8-1-72-00000000-t-1.ndjson").write_text("\n".join([*lines, delete]))
    (feed / f"{at.next().name()}.RESOLVED").write_text(f'{{"resolved": "{at.next()}"}}')
    pipeline = lake.pipeline(keys=["a", "b"], sink={"iceberg": {"table": table}})
    (point,) = points(pipeline)
    assert point.keys == ("b", "a")
    lake.run(pipeline)
    assert sorted(row["a"] for row in lake.rows(table)) == [2, 7]
    (found,) = compared(lake, pipeline)
    assert found.equal


def test_keys_that_are_not_the_feed_s_are_refused_as_a_run_does(lake, feed, table):
    with pytest.raises(ConfigError, match=r"keys are status, the key of orders in the feed is id"):
        points(lake.pipeline(keys=["status"], sink={"iceberg": {"table": table}}))


def test_a_table_that_is_appended_to_holds_every_change(lake, table):
    feed = Feed(lake.feed, tables=(ORDERS,), seed=12, deletes=0.0, repeats=0.3)
    feed.scan(30)
    feed.advance(40)
    settings = {**orders(table), "mode": "append"}
    pipeline = lake.pipeline(**settings)
    lake.run(pipeline)
    feed.advance(40)
    feed.restart()
    lake.run(pipeline)
    found = compared(lake, pipeline, every_snapshot=True)
    assert [comparison.equal for comparison in found] == [True] * len(found), [c.difference for c in found]
    assert found[-1].rows >= found[-1].expected > 90
    lake.spark.sql(f"DELETE FROM {table} WHERE id = (SELECT min(id) FROM {table})")
    lake.spark.table(table).limit(1).selectExpr("1000000L AS id", "* EXCEPT (id)").writeTo(table).append()
    for _ in range(3):
        lake.spark.table(table).where("id = 1000000").writeTo(table).append()
    (now,) = compared(lake, pipeline)
    assert now.difference.counts["missing"] >= 1
    assert now.difference.counts["extra"] == 8


def test_an_order_of_its_own_cannot_be_verified(lake, feed, table):
    with pytest.raises(ConfigError, match="greatest amount"):
        points(lake.pipeline(**orders(table, sequence_by="amount")))
