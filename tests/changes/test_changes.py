"""Row changes of real tables, whatever wrote them, against plain time travel."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from icefront.changelog import changes
from icefront.core.errors import ConfigError, Overcompacted
from icefront.iceberg.history import Step
from icefront.proof.changelog import verify
from icefront.testing.feeds import ORDERS, Feed
from icefront.upkeep.settle import settle
from tests.changes.oracle import check, check_all, snapshots
from tests.changes.streaming import Streaming
from tests.lakes import orders

pytestmark = pytest.mark.spark

MODES = {
    "copy-on-write": {
        "write.delete.mode": "copy-on-write",
        "write.update.mode": "copy-on-write",
        "write.merge.mode": "copy-on-write",
    },
    "merge-on-read": {
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
    },
}


def create(
    spark: Any,
    table: str,
    *,
    mode: str = "merge-on-read",
    version: int = 3,
    partitioned: str = "",
    columns: str = "id bigint, v string, n int",
    **more: str,
) -> None:
    properties = {"format-version": str(version), **MODES[mode], **more}
    told = ", ".join(f"'{k}'='{v}'" for k, v in properties.items())
    by = f" PARTITIONED BY ({partitioned})" if partitioned else ""
    spark.sql(f"CREATE TABLE {table} ({columns}) USING iceberg{by} TBLPROPERTIES ({told})")


def kinds(found: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(row["_change_type"] for row in found))


KINDS_OF_TABLES = {
    "version 1": pytest.param("copy-on-write", 1, "", marks=pytest.mark.long),
    "position deletes in partitions": ("merge-on-read", 2, "n"),
    "deletion vectors": ("merge-on-read", 3, ""),
    "copy-on-write in partitions": ("copy-on-write", 3, "n"),
}


@pytest.mark.parametrize(("mode", "version", "partitioned"), KINDS_OF_TABLES.values(), ids=KINDS_OF_TABLES)
def test_inserts_updates_deletes_and_merges(spark: Any, table: str, mode: str, version: int, partitioned: str) -> None:
    create(spark, table, mode=mode, version=version, partitioned=partitioned)
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(30)")
    spark.sql(f"INSERT INTO {table} VALUES (100, 'x', 0), (100, 'x', 0), (NULL, NULL, NULL)")
    spark.sql(f"UPDATE {table} SET v = 'changed' WHERE id IN (3, 4, 5)")
    spark.sql(f"DELETE FROM {table} WHERE id % 7 = 0")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id, 'merged' v, 1 n FROM range(25, 35)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 26 THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    points = snapshots(spark, table)
    assert len(points) == 5
    updated = check(spark, table, points[1], points[2], keys=["id"])
    assert kinds(updated) == {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3}
    deleted = check(spark, table, points[2], points[3], keys=["id"])
    assert kinds(deleted) == {"DELETE": 5}
    merged = check(spark, table, points[3], points[4], keys=["id"])
    assert kinds(merged) == {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3, "DELETE": 1, "INSERT": 6}
    assert {row["_commit_snapshot_id"] for row in merged} == {points[4]}
    check_all(spark, table)


# ── deletes of every kind ──────────────────────────────────────────────────────────────────
def rows(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"id": key, "v": value, "n": 1} for key, value in pairs]


def told(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["_change_type"], row["id"], row["v"]) for row in found)


def test_equality_deletes_and_new_rows_of_one_commit(spark: Any, table: str) -> None:
    """An equality delete does not touch rows of its own commit."""
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    stream.commit(rows((1, "a"), (2, "b"), (3, "c")))
    stream.commit(rows((1, "z"), (4, "d")), deletes=[{"id": 1}, {"id": 3}, {"id": 9}])
    first, second = snapshots(spark, table)
    found = check(spark, table, first, second, keys=["id"])
    assert told(found) == [("DELETE", 3, "c"), ("INSERT", 4, "d"), ("UPDATE_AFTER", 1, "z"), ("UPDATE_BEFORE", 1, "a")]
    check_all(spark, table)


def test_a_repeated_equality_delete_deletes_nothing_again(spark: Any, table: str) -> None:
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    stream.commit(rows((1, "a"), (2, "b")))
    stream.commit(deletes=[{"id": 1}])
    stream.commit(deletes=[{"id": 1}])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[1])) == [("DELETE", 1, "a")]
    assert check(spark, table, points[1], points[2]) == []
    check_all(spark, table)


def test_position_deletes_of_the_same_commit_hide_its_own_rows(spark: Any, table: str) -> None:
    """What a writer inserts and takes back within one commit was never there."""
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    stream.commit(rows((1, "a"), (2, "b")))
    stream.commit(rows((5, "e"), (5, "f")), deletes=[{"id": 5}, {"id": 2}], positions=[("", 0)])
    first, second = snapshots(spark, table)
    assert told(check(spark, table, first, second)) == [("DELETE", 2, "b"), ("INSERT", 5, "f")]
    check_all(spark, table)


def test_mixed_deletes_on_one_row_count_once(spark: Any, table: str) -> None:
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    path = stream.commit(rows((1, "a"), (2, "b"), (3, "c")))
    stream.commit(deletes=[{"id": 1}], positions=[(path, 0), (path, 1)])
    stream.commit(positions=[(path, 0)])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[1])) == [("DELETE", 1, "a"), ("DELETE", 2, "b")]
    assert check(spark, table, points[1], points[2]) == []
    check_all(spark, table)


def test_equality_deletes_of_a_partition_leave_others_alone(spark: Any, table: str) -> None:
    create(spark, table, version=2, partitioned="n")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'b', 2), (2, 'c', 1)")
    Streaming(spark, table).commit(deletes=[{"id": 1}], partition={"1000": 1})
    first, second = snapshots(spark, table)
    assert told(check(spark, table, first, second)) == [("DELETE", 1, "a")]


def test_equality_deletes_by_null_and_by_several_columns(spark: Any, table: str) -> None:
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    stream.commit(rows((1, None), (1, "a"), (None, "a"), (None, None)))
    stream.commit(deletes=[{"id": 1, "v": None}, {"id": None, "v": "a"}], keys=["id", "v"])
    first, second = snapshots(spark, table)
    assert {(row["id"], row["v"]) for row in check(spark, table, first, second)} == {(1, None), (None, "a")}


@pytest.mark.parametrize(("named", "dead"), [({"k": None}, 3), (None, 2), ({"k": 4}, 4)])
def test_equality_deletes_by_members_of_structs_are_as_iceberg_reads_them(spark: Any, table: str, named: Any, dead: int) -> None:
    """A struct that is null is not one whose members are; and after a settle every reader sees what Iceberg saw."""
    create(spark, table, version=2, columns="id int, s struct<k: int>")
    structs = {1: "named_struct('k', 1)", 2: "NULL", 3: "named_struct('k', NULL)", 4: "named_struct('k', 4)"}
    spark.sql(f"INSERT INTO {table} VALUES {', '.join(f'({i}, {value})' for i, value in structs.items())}")
    Streaming(spark, table).commit(deletes=[{"s": named}], keys=["s.k"])
    first, second = snapshots(spark, table)
    assert [row["id"] for row in check(spark, table, first, second)] == [dead]
    settle(spark, table)
    spark.sql(f"REFRESH TABLE {table}")
    assert sorted(row["id"] for row in spark.table(table).collect()) == [i for i in structs if i != dead]


def test_a_delete_that_is_removed_brings_rows_back(spark: Any, table: str) -> None:
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    stream.commit(rows((1, "a"), (2, "b")))
    stream.commit(deletes=[{"id": 1}])
    first, second = snapshots(spark, table)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    assert told(check(spark, table, second, first)) == [("INSERT", 1, "a")]


def test_what_icefront_itself_writes(spark: Any, table: str, lake: Any) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=5, deletes=0.3)
    feed.scan(40)
    for _ in range(3):
        feed.advance(40)
    lake.run(lake.pipeline(**orders(table)))
    assert len(snapshots(spark, table)) >= 4
    check_all(spark, table)


# ── commits that change no row ─────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("mode", "version"), [("copy-on-write", 2), pytest.param("merge-on-read", 2, marks=pytest.mark.long), ("merge-on-read", 3)]
)
def test_compaction_is_silent_and_would_be_empty_anyway(
    spark: Any, table: str, mode: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, mode=mode, version=version)
    for i in range(3):
        spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), {i} FROM range({i * 10}, {i * 10 + 10})")
    spark.sql(f"DELETE FROM {table} WHERE id % 5 = 0")
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.rewrite_manifests('{table}')")
    points = snapshots(spark, table)
    for begin, end in pairwise(points[3:]):
        assert check(spark, table, begin, end) == []
    check_all(spark, table)
    monkeypatch.setattr(Step, "is_silent", False)
    for begin, end in pairwise(points[3:]):
        assert check(spark, table, begin, end) == []


def test_a_rollback_is_compensated(spark: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1)")
    spark.sql(f"UPDATE {table} SET v = 'z' WHERE id = 1")
    first, second = snapshots(spark, table)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 1)")
    third = snapshots(spark, table)[-1]
    assert told(check(spark, table, second, third, keys=["id"])) == [
        ("INSERT", 3, "c"),
        ("UPDATE_AFTER", 1, "a"),
        ("UPDATE_BEFORE", 1, "z"),
    ]


def test_other_branches_and_staged_snapshots_are_not_in_it(spark: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH side")
    spark.sql(f"INSERT INTO {table}.branch_side VALUES (7, 'side', 1)")
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b', 1)")
    spark.sql(f"ALTER TABLE {table} CREATE TAG june")
    seen = [row.asDict() for row in changes(spark, table, to_snapshot="june").collect()]
    assert told(seen) == [("INSERT", 1, "a"), ("INSERT", 2, "b")]
    across = [row.asDict() for row in changes(spark, table, "main", "side").collect()]
    assert told(across) == [("DELETE", 2, "b"), ("INSERT", 7, "side")]


# ── schemas and partitionings that change ──────────────────────────────────────────────────
@pytest.mark.parametrize(("mode", "version"), [("copy-on-write", 2), ("merge-on-read", 3)])
def test_schemas_that_change(spark: Any, table: str, mode: str, version: int) -> None:
    create(spark, table, mode=mode, version=version, columns="id bigint, v string, n int, s struct<a: int, b: array<float>>")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1, named_struct('a', 1, 'b', array(float(0.5)))), (2, 'b', 2, NULL)")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN extra decimal(10,2)")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN s.a TYPE bigint")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 3, named_struct('a', 3, 'b', array()), 1.50)")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO renamed")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra FIRST")
    spark.sql(f"UPDATE {table} SET renamed = 'z' WHERE id = 1")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN n")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    points = snapshots(spark, table)
    updated = [row.asDict() for row in changes(spark, table, points[1], points[2], keys=["id"]).collect()]
    assert kinds(updated) == {"UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}
    assert {(row["renamed"], row["n"], row["extra"]) for row in updated} == {("a", 1, None), ("z", 1, None)}
    for begin, end in pairwise(points):
        assert verify(spark, table, begin, end, changes(spark, table, begin, end), 5) == []
    everything = changes(spark, table)
    assert "n" not in everything.columns
    assert everything.count() == 6


def test_partitionings_that_change(spark: Any, table: str) -> None:
    create(spark, table, version=2, partitioned="n")
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(30)")
    spark.sql(f"ALTER TABLE {table} REPLACE PARTITION FIELD n WITH bucket(2, id)")
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(30, 60)")
    spark.sql(f"UPDATE {table} SET v = 'z' WHERE id % 4 = 0")
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD bucket(2, id)")
    spark.sql(f"DELETE FROM {table} WHERE id % 6 = 0")
    check_all(spark, table)


# ── values and shapes ──────────────────────────────────────────────────────────────────────
def test_values_of_every_type_survive(spark: Any, table: str) -> None:
    columns = (
        "id bigint, b boolean, f float, d double, p decimal(38,10), s string, x binary, da date, t timestamp, nt timestamp_ntz, "
        "l array<double>, m map<string, array<int>>, st struct<a: double, b: struct<c: string>>"
    )
    create(spark, table, mode="copy-on-write", columns=columns)
    spark.sql(
        f"INSERT INTO {table} VALUES "
        "(1, true, float('NaN'), double('-0.0'), 1.5, '', X'00ff', DATE'0001-01-01', TIMESTAMP'2026-01-01 00:00:00.123456', "
        "TIMESTAMP_NTZ'1960-01-01 00:00:00.000001', array(double('NaN'), NULL), map('a', array(1, NULL)), named_struct('a', double('-0.0'), 'b', NULL)), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), "
        "(3, false, 0.0, 0.0, -1.5, 'ü', X'', DATE'9999-12-31', TIMESTAMP'1900-01-01 00:00:00', TIMESTAMP_NTZ'2026-01-01 00:00:00', array(), map(), named_struct('a', NULL, 'b', named_struct('c', 'x')))"
    )
    spark.sql(f"UPDATE {table} SET s = 'changed' WHERE id = 3")
    spark.sql(f"UPDATE {table} SET d = 0.0 WHERE id = 1")
    first, second, third = snapshots(spark, table)
    assert kinds(check(spark, table, first, second, keys=["id"])) == {"UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}
    assert kinds(check(spark, table, second, third, keys=["id"])) == {"UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}
    assert verify(spark, table, None, third, changes(spark, table, None, third), 5) == []


def test_duplicate_rows_are_counted(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'a', 1), (1, 'a', 1), (2, 'b', 1)")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1, 'a', 1), (2, 'b', 1), (2, 'b', 1)")
    first, second = snapshots(spark, table)
    assert told(check(spark, table, first, second)) == [("DELETE", 1, "a"), ("DELETE", 1, "a"), ("INSERT", 2, "b")]
    assert told(check(spark, table, first, second, keys=["id"])) == [("DELETE", 1, "a"), ("DELETE", 1, "a"), ("INSERT", 2, "b")]


def test_tables_without_snapshots_or_rows(spark: Any, table: str) -> None:
    create(spark, table)
    assert changes(spark, table).collect() == []
    spark.sql(f"INSERT INTO {table} SELECT 1, 'a', 1 WHERE false")
    assert changes(spark, table).collect() == []
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"DELETE FROM {table}")
    check_all(spark, table)


def test_identifier_fields_are_the_default_for_keys(spark: Any, table: str) -> None:
    create(spark, table, columns="id bigint NOT NULL, v string, n int")
    spark.sql(f"ALTER TABLE {table} SET IDENTIFIER FIELDS id")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"UPDATE {table} SET v = 'b'")
    first, second = snapshots(spark, table)
    assert kinds(check(spark, table, first, second)) == {"UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}
    assert kinds(check(spark, table, first, second, keys=[])) == {"DELETE": 1, "INSERT": 1}


# ── frames ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("mode", MODES)
def test_changes_are_a_frame_of_the_caller_s_session(spark: Any, table: str, mode: str) -> None:
    """Views of it are found, and the session's settings hold for it, whatever our jobs are planned with."""
    create(spark, table, mode=mode)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1)")
    spark.sql(f"UPDATE {table} SET v = 'c' WHERE id = 1")
    user = spark.newSession()
    user.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    found = changes(user, table, keys=["id"])
    found.createOrReplaceTempView("told")
    sums = user.sql("SELECT _change_type, count(*) FROM told GROUP BY 1").collect()
    assert dict(map(tuple, sums)) == {"INSERT": 2, "UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}
    shown = user.sql("SELECT DISTINCT CAST(_commit_timestamp AS string) FROM told").collect()
    assert sorted(shown) == sorted(user.sql(f"SELECT CAST(committed_at AS string) FROM {table}.snapshots").collect())
    assert changes(user, table, snapshots(spark, table)[-1]).sparkSession is user


# ── errors ─────────────────────────────────────────────────────────────────────────────────
def test_what_cannot_be_read_is_named(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        changes(spark, "lake.t.nowhere")
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    with pytest.raises(ConfigError, match="has no column nothing"):
        changes(spark, table, keys=["nothing"])
    with pytest.raises(Overcompacted, match="snapshot 5 of"):
        changes(spark, table, 5)
