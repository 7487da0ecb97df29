"""Verifying by Spark: equal tables are found equal, and every kind of difference is found."""

import pytest

from icefront.core.errors import ConfigError
from icefront.core.timestamps import ORIGIN
from icefront.proof.verify import Comparison, points, verify
from icefront.testing.feeds import ORDERS, Feed
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
    assert [row["id"] for row in found.missing] == [first]
    assert [row["id"] for row in found.extra] == [1000000]
    (value,) = found.difference.differing
    assert (value.key, value.column, value.actual) == ((second,), "status", "lost")


def test_a_table_that_does_not_exist_yet_has_nothing_to_compare(lake, feed, table):
    (found,) = compared(lake, lake.pipeline(**orders(table)))
    assert found.equal
    assert found.nothing_published


def test_a_pipeline_that_appends_is_refused_with_a_reason(lake, feed, table):
    pipeline = lake.pipeline(sink={"iceberg": {"table": table}}, mode="append")
    with pytest.raises(ConfigError, match="mode append"):
        points(pipeline)
