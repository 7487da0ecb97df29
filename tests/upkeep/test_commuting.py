"""What upkeep and publishes did to one another, case by case, before it was put right; the random ones are in test_random_upkeep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from icefront.apply import apply_changes
from icefront.iceberg import java
from icefront.upkeep.expire import expire
from icefront.upkeep.settle import settle
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.upkeep.test_settle import Between

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("gone", ["expired", "rolled back"])
def test_a_settle_whose_snapshot_is_gone_plans_anew(spark: Any, table: str, gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg does not call that a conflict: it is an illegal argument there."""
    create(spark, table)
    writer = Streaming(spark, table)
    writer.commit([{"id": i, "v": "v", "n": 0} for i in range(5)])
    writer.commit([], [{"id": 1}])
    before = spark.sql(f"SELECT max_by(snapshot_id, committed_at) FROM {table}.snapshots").first()[0]
    writer.commit([], [{"id": 2}])

    def meanwhile() -> None:
        if gone == "expired":
            writer.commit([], [{"id": 3}])
            expire(spark, table, keep=timedelta(), orphans_after=None)
        else:
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {before})")

    Between(monkeypatch, meanwhile)
    assert settle(spark, table).rounds == 2
    spark.sql(f"REFRESH TABLE {table}")
    assert sorted(row[0] for row in spark.table(table).collect()) == ([0, 4] if gone == "expired" else [0, 2, 3, 4])


def test_expiry_below_a_readers_tag_does_not_look_like_a_rollback(spark: Any, table: str) -> None:
    """The tag's snapshot would stay and those above it would not: the mark's epoch is there, but not on the branch."""

    def publish(batch: int) -> None:
        frame = spark.createDataFrame([(1, f"v{batch}"), (2, "w")], "id bigint, v string")
        apply_changes(frame, table, keys=["id"], query="q", batch=batch)

    publish(0)
    publish(1)
    spark.sql(f"ALTER TABLE {table} CREATE TAG reader")
    for _ in range(3):
        spark.sql(f"INSERT INTO {table} VALUES (9, 'of others')")
    assert expire(spark, table, keep=timedelta(), orphans_after=None).snapshots > 0
    publish(2)
    spark.sql(f"ALTER TABLE {table} DROP TAG reader")
    expire(spark, table, keep=timedelta(), orphans_after=None)
    assert spark.sql(f"SELECT count(*) FROM {table}.snapshots").first()[0] == 1
    publish(3)
    assert spark.table(table).filter("id < 9").count() == 2


def test_a_commit_that_hangs_keeps_no_other_of_its_process_waiting_for_long(spark: Any, table: str) -> None:
    """Publishes and upkeep take turns, so that neither has to begin anew; but nothing depends on that."""
    create(spark, table)
    writer = Streaming(spark, table)
    writer.commit([{"id": i, "v": "v", "n": 0} for i in range(5)])
    writer.commit([], [{"id": 1}])
    with java._turns[writer.table.uuid]:
        assert settle(spark, table).dead_rows == 1
        frame = spark.createDataFrame([(2, "w", 1)], "id bigint, v string, n int")
        apply_changes(frame, table, keys=["id"], query="q", batch=0, adopt=True)
    spark.sql(f"REFRESH TABLE {table}")
    assert sorted((row[0], row[1]) for row in spark.table(table).collect()) == [(0, "v"), (2, "w"), (3, "v"), (4, "v")]
