"""A replica is its source, at every snapshot: both read by plain time travel."""

from __future__ import annotations

from datetime import time
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType

from icefront.core.errors import SchemaRefused
from icefront.settings import Catalog
from tests.lakes import Lake
from tests.replica.replicas import COPY_ON_WRITE, MERGE_ON_READ, Replica

pytestmark = pytest.mark.spark

KINDS_OF_TABLES = {
    "format 1, copy-on-write": pytest.param(COPY_ON_WRITE, 1, "", marks=pytest.mark.long),
    "format 2, position deletes in partitions": (MERGE_ON_READ, 2, "n"),
    "format 3, deletion vectors": (MERGE_ON_READ, 3, ""),
    "format 3, copy-on-write in partitions": pytest.param(COPY_ON_WRITE, 3, "n", marks=pytest.mark.long),
}


@pytest.fixture
def replica(lake: Lake, table: str) -> Replica:
    return Replica(lake, table)


@pytest.mark.parametrize(("mode", "version", "partitioned"), KINDS_OF_TABLES.values(), ids=KINDS_OF_TABLES)
def test_inserts_updates_deletes_and_merges(replica: Replica, mode: str, version: int, partitioned: str) -> None:
    replica.create(mode=mode, version=version, partitioned=partitioned)
    replica.sql("INSERT INTO T SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(40)")
    assert replica.follow().epochs == 1
    replica.sql("INSERT INTO T VALUES (100, 'x', 0), (101, NULL, NULL)")
    replica.sql("UPDATE T SET v = 'changed', n = n + 1 WHERE id IN (3, 4, 5)")
    replica.sql("DELETE FROM T WHERE id % 7 = 0")
    replica.sql(
        "MERGE INTO T t USING (SELECT id, 'merged' v, 1 n FROM range(35, 45)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 36 THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    assert replica.follow().epochs == 4
    replica.sql("DELETE FROM T WHERE id = 100")
    replica.sql("INSERT INTO T VALUES (100, 'again', 2)")
    assert replica.follow().epochs == 2
    assert replica.check_caught_up() == 7
    assert replica.follow().epochs == 0


# ── commits that change no rows, or go back ────────────────────────────────────────────────
def test_compaction_says_nothing(replica: Replica) -> None:
    replica.create(version=2)
    for number in range(3):
        replica.sql(f"INSERT INTO T SELECT id, 'v', 1 FROM range({10 * number}, {10 * number + 10})")
    replica.sql("DELETE FROM T WHERE id = 3")
    replica.follow()
    replica.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    replica.call("rewrite_manifests")
    result = replica.follow()
    assert [event.counts["upserts"] for event in result.published] == [0, 0]
    replica.sql("UPDATE T SET v = 'after' WHERE id = 5")
    assert [event.counts["upserts"] for event in replica.follow().published] == [1]
    replica.check_caught_up()


def test_a_rollback_is_compensated_and_time_goes_on(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    replica.sql("UPDATE T SET v = 'changed' WHERE id = 1")
    replica.sql("DELETE FROM T WHERE id = 2")
    replica.follow()
    first, second, _ = replica.history()
    replica.call("rollback_to_snapshot", first)
    replica.follow()
    replica.call("set_current_snapshot", second)
    replica.follow()
    replica.sql("INSERT INTO T VALUES (9, 'z', 9)")
    replica.follow()
    frontiers = [at["frontier"] for _, at in replica.epochs()]
    assert frontiers == ["3.0000000001", "3.0000000002", "3.0000000003", "4.0000000001"]
    assert replica.check_caught_up() == 4


def test_a_rollback_over_a_widened_column(replica: Replica) -> None:
    replica.create(mode=COPY_ON_WRITE)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.follow()
    (first,) = replica.history()
    replica.sql("ALTER TABLE T ALTER COLUMN n TYPE bigint")
    replica.sql("UPDATE T SET n = 5000000000 WHERE id = 1")
    replica.follow()
    replica.call("rollback_to_snapshot", first)
    replica.follow()
    assert replica.check_caught_up() == 3


def test_only_main_counts(replica: Replica) -> None:
    """Staged snapshots and other branches are nobody's state; published or moved to main, they are."""
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    replica.sql("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
    replica.spark.conf.set("spark.wap.id", "audit")
    try:
        replica.sql("INSERT INTO T VALUES (2, 'staged', 2)")
    finally:
        replica.spark.conf.unset("spark.wap.id")
    replica.sql("ALTER TABLE T CREATE BRANCH work")
    replica.spark.sql(f"INSERT INTO {replica.source}.branch_work VALUES (3, 'branched', 3)")
    assert replica.follow().epochs == 0
    replica.call("publish_changes", "'audit'")
    assert replica.follow().epochs == 1
    replica.sql("DELETE FROM T WHERE id = 1")
    assert replica.follow().epochs == 1
    replica.call("set_current_snapshot", replica.refs()["work"])
    assert replica.follow().epochs == 1
    assert replica.check_caught_up() == 4


def test_a_branch_that_main_goes_on_to_is_told_snapshot_by_snapshot(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.follow()
    replica.sql("ALTER TABLE T CREATE BRANCH work")
    replica.spark.sql(f"INSERT INTO {replica.source}.branch_work VALUES (3, 'c', 3)")
    replica.spark.sql(f"DELETE FROM {replica.source}.branch_work WHERE id = 1")
    assert replica.follow().epochs == 0
    replica.call("fast_forward", "'main'", "'work'")
    assert replica.follow().epochs == 2
    assert replica.check_caught_up() == 3


def test_a_table_replaced_by_an_empty_one(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.follow()
    replica.sql("CREATE OR REPLACE TABLE T (id bigint NOT NULL, v string, n int) USING iceberg")
    replica.follow(keys=["id"])
    assert replica.rows(replica.target, replica.epochs()[-1][0]).total() == 0
    replica.sql("INSERT INTO T VALUES (7, 'new', 7)")
    replica.follow(keys=["id"])
    assert replica.check_caught_up() == 3


def test_a_replica_of_a_replica(replica: Replica) -> None:
    """What Icefront itself writes, with equality deletes and claims, is a table like any other."""
    replica.create()
    second = Replica(replica.lake, replica.target)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    replica.follow()
    second.follow()
    replica.sql("UPDATE T SET v = 'changed' WHERE id < 3")
    replica.sql("DELETE FROM T WHERE id = 2")
    replica.follow()
    second.follow()
    assert second.check_caught_up() == 4
    last = second.epochs()[-1][0]
    assert replica.rows(second.target, last) == replica.rows(replica.source, replica.refs()["main"])


# ── schemas ────────────────────────────────────────────────────────────────────────────────
def test_columns_are_added_renamed_widened_and_dropped(replica: Replica) -> None:
    replica.create(columns="id bigint NOT NULL, v string, n int, d decimal(4,2), gone string")
    replica.sql("INSERT INTO T VALUES (1, 'a', 1, 1.25, 'x'), (2, 'b', 2, 2.50, 'y')")
    replica.follow()
    replica.sql("ALTER TABLE T ADD COLUMN more array<struct<a: int, b: string>>")
    replica.sql("ALTER TABLE T RENAME COLUMN v TO title")
    replica.sql("ALTER TABLE T ALTER COLUMN n TYPE bigint")
    replica.sql("ALTER TABLE T ALTER COLUMN d TYPE decimal(10,2)")
    replica.sql("INSERT INTO T VALUES (3, 'c', 5000000000, 12345678.25, 'z', array(named_struct('a', 1, 'b', 'q')))")
    replica.follow()
    replica.check_caught_up()
    assert [f.name for f in replica.lake.schema(replica.target).fields] == ["id", "title", "n", "d", "gone", "more"]
    replica.sql("ALTER TABLE T RENAME COLUMN title TO name")
    replica.sql("ALTER TABLE T RENAME COLUMN n TO title")
    replica.sql("UPDATE T SET title = 7 WHERE id = 1")
    with pytest.raises(SchemaRefused, match="column title is another one than before"):
        replica.follow()


def test_declared_columns_have_their_declared_types_also_when_they_come_later(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    replica.sql("ALTER TABLE T ADD COLUMN more int")
    replica.sql("INSERT INTO T VALUES (2, 'b', 2, 3)")
    with pytest.raises(SchemaRefused, match=r"column v of .* is string, and `columns` declares v as long"):
        replica.follow(columns={"v": "bigint"})
    replica.follow(columns={"more": "bigint", "n": "bigint"})
    replica.check_caught_up()
    types = {f.name: str(f.field_type) for f in replica.lake.schema(replica.target).fields}
    assert types == {"id": "long", "v": "string", "n": "long", "more": "long"}


def test_a_dropped_column_stays_and_may_not_come_back_as_another(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    replica.sql("ALTER TABLE T DROP COLUMN n")
    replica.sql("INSERT INTO T VALUES (2, 'b')")
    replica.follow()
    assert {row["n"] for row in replica.lake.rows(replica.target)} == {1, None}
    replica.sql("ALTER TABLE T ADD COLUMN n int")
    replica.sql("INSERT INTO T VALUES (3, 'c', 3)")
    with pytest.raises(SchemaRefused, match="column n is new, and another one was called so before"):
        replica.follow()


@pytest.mark.parametrize("mode", [COPY_ON_WRITE, MERGE_ON_READ])
@pytest.mark.parametrize("has", [True, False], ids=["a column that it has", "a column that it never had"])
def test_main_goes_back_over_a_dropped_column(replica: Replica, mode: str, *, has: bool) -> None:
    """The schema without the column is the first one again, with its number."""
    replica.create(mode=mode, columns="id bigint NOT NULL, v string")
    replica.sql("ALTER TABLE T ADD COLUMN n int")
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    (first,) = replica.history()
    if has:
        replica.follow()
    replica.sql("ALTER TABLE T DROP COLUMN n")
    replica.sql("UPDATE T SET v = 'changed' WHERE id = 2")
    replica.follow()
    replica.call("rollback_to_snapshot", first)
    if has:
        replica.follow()
        assert {row["id"]: row["n"] for row in replica.lake.rows(replica.target)} == {1: 1, 2: 2, 3: 3}
        return
    with pytest.raises(SchemaRefused, match="column n is back with what it held before it was dropped"):
        replica.follow()


def test_partitioning_and_format_of_the_source_may_change(replica: Replica) -> None:
    replica.create(version=1, mode=COPY_ON_WRITE)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.sql("INSERT INTO T VALUES (3, 'c', 3)")
    replica.follow()
    replica.sql("ALTER TABLE T ADD PARTITION FIELD bucket(4, id)")
    replica.sql("INSERT INTO T VALUES (4, 'd', 4)")
    replica.follow()
    replica.sql("ALTER TABLE T SET TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    replica.sql("DELETE FROM T WHERE id IN (1, 4)")
    replica.sql("ALTER TABLE T SET TBLPROPERTIES ('format-version'='3')")
    replica.sql("DELETE FROM T WHERE id = 2")
    replica.follow()
    assert [at["frontier"] for _, at in replica.epochs()] == ["0.0000000001", "0.0000000002", "1.0000000001", "2.0000000001"]
    assert replica.check_caught_up() == 4


def test_values_of_types_that_spark_does_not_have(replica: Replica) -> None:
    properties = Catalog(type="sqlite", path=replica.lake.catalog).pyiceberg_properties("lake")
    catalog = load_catalog("lake", **properties)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "u", UUIDType(), required=False),
        NestedField(3, "t", TimeType(), required=False),
        NestedField(4, "f", FixedType(3), required=False),
        identifier_field_ids=[1],
    )
    source = catalog.create_table(replica.source.removeprefix("lake."), schema)
    arrow = source.schema().as_arrow()
    columns = [[1, 2], [UUID(int=7).bytes, None], [time(23, 59, 59, 999999), None], [b"abc", None]]
    rows = pa.table([pa.array(values, kind) for values, kind in zip(columns, arrow.types, strict=True)], schema=arrow)
    source.append(rows)
    replica.follow()
    found = catalog.load_table(replica.target.removeprefix("lake.")).scan().to_arrow().sort_by("id")
    assert found.to_pylist() == rows.to_pylist()


def test_values_pass_exactly(replica: Replica) -> None:
    replica.create(
        columns="id bigint NOT NULL, f float, d double, t timestamp, z timestamp_ntz, y date, b binary, m map<string, int>, "
        "s struct<x: int, l: array<string>>, x decimal(38,10), u boolean"
    )
    replica.sql(
        "INSERT INTO T VALUES (1, CAST('NaN' AS float), -0.0D, TIMESTAMP '2026-01-31 12:00:00.123456', "
        "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999', DATE '0001-01-01', X'00FF', map('a', 1, 'b', NULL), "
        "named_struct('x', NULL, 'l', array('p', NULL)), 1234567890123456789012345678.0123456789, true), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    replica.follow()
    replica.sql("UPDATE T SET u = false WHERE id = 1")
    replica.follow()
    assert replica.check_caught_up() == 2
