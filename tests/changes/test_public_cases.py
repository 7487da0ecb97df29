"""The cases that Iceberg's own changelog tests name, rebuilt from what they are about: each with the changes that must come out.

Those of merge-on-read are named in pull request 10935, the others in the tests of `create_changelog_view`, of its iterators and of
the changelog table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions

from icefront.changelog import changes
from icefront.core.errors import Overcompacted
from icefront.proof.changelog import verify
from tests.changes.opinion import agrees, counted, view
from tests.changes.oracle import OUTPUT, check, snapshots
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create

pytestmark = pytest.mark.spark

Told = list[tuple[Any, ...]]


def told(found: Sequence[Any], columns: str = "id v") -> Told:
    """Changes as (ordinal, kind, values…), in order."""
    rows = [row if isinstance(row, dict) else row.asDict(recursive=True) for row in found]
    picked = [(row["_change_ordinal"], row["_change_type"], *(row[c] for c in columns.split())) for row in rows]
    return sorted(picked, key=repr)


def rows(**values: Any) -> list[dict[str, Any]]:
    """Rows by value: `rows(a=1)` is the row with the id 1 and the value a."""
    return [{"id": key, "v": value, "n": 1} for value, key in values.items()]


# ── merge-on-read (pull request 10935) ─────────────────────────────────────────────────────
@pytest.fixture
def stream(spark: Any, table: str) -> Streaming:
    create(spark, table, version=2)
    return Streaming(spark, table)


def test_position_deletes(spark: Any, table: str, stream: Streaming) -> None:
    first = stream.commit(rows(a=1, b=2, c=3))
    second = stream.commit(rows(d=4, e=5))
    stream.commit(positions=[(first, 0), (second, 1)])
    stream.commit(positions=[(first, 2)])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[1], points[3])) == [
        (0, "DELETE", 1, "a"),
        (0, "DELETE", 5, "e"),
        (1, "DELETE", 3, "c"),
    ]
    assert told(check(spark, table, points[0], points[2], net=True)) == [(0, "DELETE", 1, "a"), (0, "INSERT", 4, "d")]


def test_equality_deletes(spark: Any, table: str, stream: Streaming) -> None:
    stream.commit(rows(a=1, b=2, c=3))
    stream.commit(rows(d=1))
    stream.commit(deletes=[{"id": 1}, {"id": 7}])
    stream.commit(deletes=[{"v": "c"}], keys=["v"])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[1], points[3])) == [
        (0, "DELETE", 1, "a"),
        (0, "DELETE", 1, "d"),
        (1, "DELETE", 3, "c"),
    ]


def test_a_mix_of_position_and_equality_deletes(spark: Any, table: str, stream: Streaming) -> None:
    """In one commit and over several; what both name dies once."""
    path = stream.commit(rows(a=1, b=2, c=3, d=4))
    stream.commit(deletes=[{"id": 1}, {"id": 2}], positions=[(path, 1), (path, 2)])
    stream.commit(deletes=[{"id": 3}, {"id": 4}])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[2])) == [
        (0, "DELETE", 1, "a"),
        (0, "DELETE", 2, "b"),
        (0, "DELETE", 3, "c"),
        (1, "DELETE", 4, "d"),
    ]


def test_adding_and_deleting_in_the_same_commit(spark: Any, table: str, stream: Streaming) -> None:
    """Equality deletes spare what their commit adds; position deletes do not, and what they take back never was."""
    stream.commit(rows(a=1, b=2))
    stream.commit(rows(c=1, d=3, e=3), deletes=[{"id": 1}, {"id": 3}], positions=[("", 1)])
    points = snapshots(spark, table)
    assert told(check(spark, table, *points)) == [(0, "DELETE", 1, "a"), (0, "INSERT", 1, "c"), (0, "INSERT", 3, "e")]
    assert told(check(spark, table, *points, keys=["id"])) == [
        (0, "INSERT", 3, "e"),
        (0, "UPDATE_AFTER", 1, "c"),
        (0, "UPDATE_BEFORE", 1, "a"),
    ]


def test_a_repeated_equality_delete(spark: Any, table: str, stream: Streaming) -> None:
    """The second names a row that is dead, and one that came in between."""
    stream.commit(rows(a=1, b=2))
    stream.commit(deletes=[{"id": 1}])
    stream.commit(rows(c=2))
    stream.commit(deletes=[{"id": 1}, {"id": 2}])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[3])) == [
        (0, "DELETE", 1, "a"),
        (1, "INSERT", 2, "c"),
        (2, "DELETE", 2, "b"),
        (2, "DELETE", 2, "c"),
    ]
    assert told(check(spark, table, points[0], points[3], net=True)) == [(0, "DELETE", 1, "a"), (0, "DELETE", 2, "b")]


# ── the procedure ──────────────────────────────────────────────────────────────────────────
@pytest.fixture
def written(spark: Any, table: str) -> list[int]:
    """Three snapshots: an insert, another, and an overwrite of everything that keeps one row."""
    create(spark, table, mode="copy-on-write", version=2)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b', 1)")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (2, 'b', 1), (-2, 'b', 2)")
    return snapshots(spark, table)


OVERWRITTEN: Told = [(0, "DELETE", 1, "a"), (0, "INSERT", -2, "b")]


def test_a_range_of_snapshots(spark: Any, table: str, written: list[int]) -> None:
    assert told(check(spark, table, written[0], written[1])) == [(0, "INSERT", 2, "b")]
    assert told(check(spark, table, written[1], written[2])) == OVERWRITTEN
    everything = [(0, "INSERT", 1, "a"), (1, "INSERT", 2, "b"), (2, "DELETE", 1, "a"), (2, "INSERT", -2, "b")]
    assert told(check(spark, table, None, written[2])) == everything
    agrees(spark, table, written[0], written[2])


def test_a_range_of_times(spark: Any, table: str, written: list[int]) -> None:
    """A time means what was current then, so a range of times is one of snapshots."""
    at = [r[0].astimezone(UTC) for r in spark.sql(f"SELECT made_current_at FROM {table}.history ORDER BY 1").collect()]
    assert told(changes(spark, table, at[0], at[1]).collect()) == [(0, "INSERT", 2, "b")]
    assert told(changes(spark, table, at[1].isoformat()).collect()) == OVERWRITTEN
    assert changes(spark, table, datetime.now(UTC)).collect() == []
    with pytest.raises(Overcompacted, match="had no snapshot at"):
        changes(spark, table, at[0] - timedelta(days=1))
    with pytest.raises(Overcompacted, match="had no snapshot at"):
        changes(spark, table, to_snapshot=at[0] - timedelta(days=1))


def test_only_a_start(spark: Any, table: str, written: list[int]) -> None:
    assert told(changes(spark, table, written[1]).collect()) == OVERWRITTEN
    assert changes(spark, table, written[2]).collect() == []


def test_an_update_by_identifier_columns(spark: Any, table: str, written: list[int]) -> None:
    spark.sql(f"INSERT OVERWRITE {table} VALUES (2, 'z', 1), (3, 'c', 1)")
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, written[2], last, keys=["id"])) == [
        (0, "DELETE", -2, "b"),
        (0, "INSERT", 3, "c"),
        (0, "UPDATE_AFTER", 2, "z"),
        (0, "UPDATE_BEFORE", 2, "b"),
    ]
    agrees(spark, table, written[2], last, keys=["id"])
    # By the value as well it is another row.
    assert {kind for _, kind, *_ in told(check(spark, table, written[2], last, keys=["id", "v"]))} == {"DELETE", "INSERT"}


def test_a_column_with_an_odd_name_as_identifier(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write", columns="`the id.x` bigint, `value-ü` string")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"UPDATE {table} SET `value-ü` = 'z' WHERE `the id.x` = 2")
    found = [row.asDict() for row in changes(spark, table, snapshots(spark, table)[0], keys=["the id.x"]).collect()]
    assert sorted((row["_change_type"], row["the id.x"], row["value-ü"]) for row in found) == [
        ("UPDATE_AFTER", 2, "z"),
        ("UPDATE_BEFORE", 2, "b"),
    ]


def test_an_update_of_a_partitioned_table_that_moves_a_row(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write", partitioned="n")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 2)")
    spark.sql(f"UPDATE {table} SET n = 2 WHERE id = 1")
    points = snapshots(spark, table)
    assert told(check(spark, table, *points, keys=["id"]), "id n") == [(0, "UPDATE_AFTER", 1, 2), (0, "UPDATE_BEFORE", 1, 1)]
    agrees(spark, table, *points, keys=["id"])


def test_carried_over_rows_are_left_out(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1)")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'd', 1)")
    points = snapshots(spark, table)
    assert told(check(spark, table, *points)) == [(0, "DELETE", 3, "c"), (0, "INSERT", 3, "d")]
    agrees(spark, table, *points)


def test_carried_over_rows_with_duplicates(spark: Any, table: str) -> None:
    """Two of three come back: one left. And one more than there were: one came."""
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'a', 1), (1, 'a', 1), (2, 'b', 1), (3, NULL, 1)")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1, 'a', 1), (1, 'a', 1), (2, 'b', 1), (2, 'b', 1), (3, NULL, 1)")
    points = snapshots(spark, table)
    assert told(check(spark, table, *points)) == [(0, "DELETE", 1, "a"), (0, "INSERT", 2, "b")]
    agrees(spark, table, *points)


def test_real_updates_are_not_taken_for_carried_over(spark: Any, table: str) -> None:
    """A row that leaves in one snapshot and comes back the same in another did both."""
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1)")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[2])) == [(0, "DELETE", 1, "a"), (1, "INSERT", 1, "a")]
    assert check(spark, table, points[0], points[2], net=True) == []
    agrees(spark, table, points[0], points[2])
    agrees(spark, table, points[0], points[2], net=True)


def test_net_changes(spark: Any, table: str, written: list[int]) -> None:
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd', 1), (4, 'd', 1)")
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (3, 'c', 1), (2, 'b', 1)")
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, written[0], last, net=True)) == [
        (0, "DELETE", 1, "a"),
        (0, "INSERT", 2, "b"),
        (0, "INSERT", 3, "c"),
    ]
    assert told(check(spark, table, None, last, net=True)) == [(0, "INSERT", 2, "b"), (0, "INSERT", 3, "c")]


def test_net_changes_with_updates(spark: Any, table: str) -> None:
    """Of several updates of a row the first image and the last."""
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1)")
    for value in ("x", "y", "z"):
        spark.sql(f"UPDATE {table} SET v = '{value}' WHERE id = 1")
    spark.sql(f"UPDATE {table} SET v = 'q' WHERE id = 2")
    spark.sql(f"UPDATE {table} SET v = 'b' WHERE id = 2")
    points = snapshots(spark, table)
    found = check(spark, table, points[0], points[-1], net=True, keys=["id"])
    assert told(found) == [(0, "UPDATE_AFTER", 1, "z"), (0, "UPDATE_BEFORE", 1, "a")]
    assert {row["_commit_snapshot_id"] for row in found} == {points[-1]}


def test_no_changes_at_all(spark: Any, table: str, written: list[int]) -> None:
    assert changes(spark, table, written[1], written[1]).collect() == []
    assert changes(spark, table, written[1], written[1], net=True).collect() == []


# ── the iterators: what meets in one snapshot ──────────────────────────────────────────────
ITERATED = {
    "a row deleted and put back": ([(1, "a", "x")], [(1, "a", "x")], []),
    "an update": ([(1, "a", "x")], [(1, "b", "x")], [("UPDATE_AFTER", 1, "b"), ("UPDATE_BEFORE", 1, "a")]),
    "an insert and a delete of different rows": ([(1, "a", "x")], [(2, "b", "x")], [("DELETE", 1, "a"), ("INSERT", 2, "b")]),
    "an update between carried-over rows": (
        [(1, "a", "x"), (2, "b", "x"), (3, "c", "x")],
        [(1, "a", "x"), (2, "z", "x"), (3, "c", "x")],
        [("UPDATE_AFTER", 2, "z"), ("UPDATE_BEFORE", 2, "b")],
    ),
    "duplicates in between": (
        [(1, "a", "x"), (1, "a", "x"), (1, "b", "x"), (2, "c", "x")],
        [(1, "a", "x"), (1, "b", "x"), (1, "b", "x"), (2, "c", "x")],
        [("UPDATE_AFTER", 1, "b"), ("UPDATE_BEFORE", 1, "a")],
    ),
    "more left than came": (
        [(1, "a", "x"), (1, "b", "x"), (1, "c", "x")],
        [(1, "d", "x")],
        [("DELETE", 1, "b"), ("DELETE", 1, "c"), ("UPDATE_AFTER", 1, "d"), ("UPDATE_BEFORE", 1, "a")],
    ),
    "identifiers that are null": (
        [(None, "a", "x"), (1, "b", "x")],
        [(None, "z", "x"), (1, "b", "x")],
        [("UPDATE_AFTER", None, "z"), ("UPDATE_BEFORE", None, "a")],
    ),
    "values that become null": ([(1, "a", "x")], [(1, None, "x")], [("UPDATE_AFTER", 1, None), ("UPDATE_BEFORE", 1, "a")]),
    "rows of nulls": ([(None, None, None)] * 2, [(None, None, None)], [("DELETE", None, None)]),
    "only deletes": ([(1, "a", "x"), (2, "b", "x")], [], [("DELETE", 1, "a"), ("DELETE", 2, "b")]),
}


@pytest.mark.parametrize(("before", "after", "expected"), ITERATED.values(), ids=ITERATED)
def test_rows_that_meet(spark: Any, table: str, before: Told, after: Told, expected: Told) -> None:
    """Overwritten by hand, so that every row of both sides is in it."""
    create(spark, table, mode="copy-on-write", columns="id bigint, v string, x string")
    for values in (before, after):
        spark.createDataFrame(values, "id bigint, v string, x string").coalesce(1).createOrReplaceTempView("given")
        spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM given")
    found = check(spark, table, *snapshots(spark, table), keys=["id"])
    assert [row[1:] for row in told(found)] == sorted(expected, key=repr)


# ── the changelog table ────────────────────────────────────────────────────────────────────
@pytest.fixture
def partitioned(spark: Any, table: str) -> list[int]:
    create(spark, table, mode="copy-on-write", partitioned="v")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'b', 1)")
    return snapshots(spark, table)


def test_appends_alone(spark: Any, table: str, partitioned: list[int]) -> None:
    spark.sql(f"INSERT INTO {table} VALUES (4, 'c', 1), (1, 'a', 1)")
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, partitioned[0], last)) == [(0, "INSERT", 1, "a"), (0, "INSERT", 4, "c")]
    agrees(spark, table, partitioned[0], last)


def test_a_dynamic_overwrite_replaces_the_partitions_it_writes_to(spark: Any, table: str, partitioned: list[int]) -> None:
    given = spark.createDataFrame([(2, "b", 1), (9, "b", 1)], "id bigint, v string, n int")
    given.writeTo(table).overwritePartitions()
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, partitioned[0], last)) == [(0, "DELETE", 3, "b"), (0, "INSERT", 9, "b")]
    agrees(spark, table, partitioned[0], last)


def test_a_static_overwrite_replaces_what_its_condition_names(spark: Any, table: str, partitioned: list[int]) -> None:
    given = spark.createDataFrame([(7, "a", 1)], "id bigint, v string, n int")
    given.writeTo(table).overwrite(functions.expr("v IN ('a', 'b')"))
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, partitioned[0], last)) == [
        (0, "DELETE", 1, "a"),
        (0, "DELETE", 2, "b"),
        (0, "DELETE", 3, "b"),
        (0, "INSERT", 7, "a"),
    ]


def test_deleted_partitions_leave_by_metadata_alone(spark: Any, table: str, partitioned: list[int]) -> None:
    spark.sql(f"DELETE FROM {table} WHERE v = 'b'")
    last = snapshots(spark, table)[-1]
    assert told(check(spark, table, partitioned[0], last)) == [(0, "DELETE", 2, "b"), (0, "DELETE", 3, "b")]
    agrees(spark, table, partitioned[0], last)


def test_compaction_keeps_its_ordinal_and_says_nothing(spark: Any, table: str, partitioned: list[int]) -> None:
    spark.sql(f"INSERT INTO {table} VALUES (4, 'b', 1)")
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    spark.sql(f"INSERT INTO {table} VALUES (5, 'b', 1)")
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[3])) == [(0, "INSERT", 4, "b"), (2, "INSERT", 5, "b")]


def test_the_columns_that_tell_of_the_commit(spark: Any, table: str, partitioned: list[int]) -> None:
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    frame = changes(spark, table)
    assert frame.columns == ["id", "v", "n", *OUTPUT]
    commits = spark.sql(f"SELECT snapshot_id, committed_at FROM {table}.snapshots ORDER BY committed_at").collect()
    stamps = {(r["_change_ordinal"], r["_commit_snapshot_id"], r["_commit_timestamp"]) for r in frame.collect()}
    assert stamps == {(i, row[0], row[1]) for i, row in enumerate(commits)}
    # As in any DataFrame, some columns may be asked for and rows chosen by them.
    gone = frame.where("_change_type = 'DELETE' AND _change_ordinal = 1").select("_commit_snapshot_id", "id").collect()
    assert [tuple(row) for row in gone] == [(commits[1][0], 2)]


def test_a_table_made_again_under_other_columns(spark: Any, table: str, partitioned: list[int]) -> None:
    """`CREATE OR REPLACE` keeps the history: the new table's columns are others, with nothing in old rows."""
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 8L AS id, 'new' AS w")
    last = snapshots(spark, table)[-1]
    found = changes(spark, table, partitioned[0], last)
    assert found.columns[:2] == ["id", "w"]
    assert told(found.collect(), "id w") == [
        (0, "DELETE", 1, None),
        (0, "DELETE", 2, None),
        (0, "DELETE", 3, None),
        (0, "INSERT", 8, "new"),
    ]


REPLACED = {
    "of another type": ("int", "1", "'x'", "x"),
    "that is a struct now": ("string", "'x'", "named_struct('a', 1)", {"a": 1}),
    "that was a struct": ("struct<a: int>", "named_struct('a', 1)", "5", 5),
    "with a member of another type": (
        "struct<a: int, b: int>",
        "named_struct('a', 1, 'b', 2)",
        "named_struct('a', 'x', 'b', 3)",
        {"a": "x", "b": 3},
    ),
    "with elements of another type": ("array<int>", "array(1)", "array('x')", ["x"]),
    "with values of another type": ("map<string, int>", "map('k', 1)", "map('k', 'x')", {"k": "x"}),
}


@pytest.mark.parametrize("form", ["parquet", *(pytest.param(form, marks=pytest.mark.long) for form in ("orc", "avro"))])
@pytest.mark.parametrize(("old", "was", "now", "value"), REPLACED.values(), ids=REPLACED)
def test_a_table_made_again_with_a_column(spark: Any, table: str, old: str, was: str, now: str, value: Any, form: str) -> None:
    """`CREATE OR REPLACE` gives a column the id that another one of its name had: old rows have nothing in it."""
    properties = f"'format-version'='3', 'write.format.default'='{form}'"
    spark.sql(f"CREATE TABLE {table} (id bigint, v {old}) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {table} SELECT 1L, {was}")
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg TBLPROPERTIES ({properties}) AS SELECT 2L AS id, {now} AS v")
    spark.sql(f"INSERT INTO {table} SELECT 3L, {now}")
    first, _, last = snapshots(spark, table)
    before = {"a": None, "b": 2} if "b: int" in old else None
    expected = [(0, "DELETE", 1, before), (0, "INSERT", 2, value), (0, "INSERT", 3, value)]
    assert told(changes(spark, table, first, last).collect()) == expected
    (made,) = changes(spark, table, to_snapshot=first).collect()
    assert made["v"] == spark.sql(f"SELECT {was} AS v").collect()[0]["v"], "the past has what was there"
    for net in (False, True):
        assert not verify(spark, table, first, last, changes(spark, table, first, last, net=net), 9)


def test_deletes_by_a_column_that_was_replaced_since_then(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id bigint, v int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    stream = Streaming(spark, table)
    stream.commit([{"id": 1, "v": 5}, {"id": 2, "v": 6}, {"id": 3, "v": None}])
    stream.commit(deletes=[{"v": 5}], keys=("v",))
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 2L AS id, 'x' AS v")
    first, second, last = snapshots(spark, table)
    assert told(check(spark, table, first, second)) == [(0, "DELETE", 1, 5)]
    assert told(changes(spark, table, first, last).collect()) == [
        (0, "DELETE", 1, None),
        (0, "DELETE", 2, None),
        (0, "DELETE", 3, None),
        (0, "INSERT", 2, "x"),
    ]
    assert not verify(spark, table, first, last, changes(spark, table, first, last), 9)


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_deletes_by_a_column_that_was_made_narrower_since_then(spark: Any, table: str, form: str) -> None:
    """Types of a column only widen, but for `CREATE OR REPLACE`."""
    properties = f"'format-version'='2', 'write.format.default'='{form}'"
    spark.sql(f"CREATE TABLE {table} (id bigint, v string) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (5000000000, 'b')")
    Streaming(spark, table).commit(deletes=[{"id": 1}])
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg TBLPROPERTIES ({properties}) AS SELECT 2 AS id, 'c' AS v")
    first, second, _ = snapshots(spark, table)
    assert [row["v"] for row in changes(spark, table, first, second).collect()] == ["a"]


@pytest.mark.parametrize("name", ["lake.t.of-{}", "lake.t.`of-{}`"])
def test_names_that_sql_wants_in_backquotes(spark: Any, table: str, name: str) -> None:
    name = name.format(table.rpartition(".")[2])
    plain = name.replace("`", "")
    spark.sql(f"CREATE TABLE lake.t.`{plain.rpartition('.')[2]}` USING iceberg AS SELECT 1L AS id")
    found = changes(spark, name)
    assert [row["id"] for row in found.collect()] == [1]
    assert verify(spark, name, None, None, found, 9) == []


def test_the_view_of_iceberg_refuses_delete_files(spark: Any, table: str, stream: Streaming) -> None:
    """Why this exists. When this fails, Iceberg has learnt it, and is to be a second opinion here too."""
    stream.commit(rows(a=1))
    stream.commit(deletes=[{"id": 1}])
    spark.sql(f"REFRESH TABLE {table}")
    with pytest.raises(Exception, match="Delete files are currently not supported in changelog scans"):
        counted(view(spark, table, *snapshots(spark, table)), ["id"])
