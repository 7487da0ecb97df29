"""Where `create_changelog_view` tells something else, and why it is wrong there: ours is held against plain time travel.

When one of these fails, Iceberg has mended it: take it out here and in docs/changes.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from icefront.changelog import changes
from tests.changes.opinion import view
from tests.changes.oracle import check, snapshots
from tests.changes.test_changes import create

pytestmark = pytest.mark.spark

ZERO, MINUS, NAN = "double('0.0')", "double('-0.0')", "double('NaN')"
BOTH = [("DELETE", 1), ("INSERT", 1)]
VALUES = {
    "binary is compared by where it lies in memory": ("binary", ["X'00'"], ["X'00'"], [], BOTH),
    "also within a list": ("array<binary>", ["array(X'00')"], ["array(X'00')"], [], BOTH),
    "NaN in a list is not itself": ("array<double>", [f"array({NAN})"], [f"array({NAN})"], [], BOTH),
    "zeros that differ by their sign get between one another": ("double", [ZERO, MINUS], [MINUS, ZERO], [], BOTH),
    "in a list they are the same, and the change is missed": ("array<double>", [f"array({ZERO})"], [f"array({MINUS})"], BOTH, []),
}


@pytest.mark.parametrize(("kind", "before", "after", "right", "wrong"), VALUES.values(), ids=VALUES)
def test_values_that_it_compares_wrongly(
    spark: Any, table: str, kind: str, before: list[str], after: list[str], right: Any, wrong: Any
) -> None:
    create(spark, table, mode="copy-on-write", columns=f"id bigint, c {kind}")
    spark.sql(f"INSERT INTO {table} VALUES {', '.join(f'(1, {value})' for value in before)}")
    spark.sql(f"INSERT OVERWRITE {table} VALUES {', '.join(f'(1, {value})' for value in after)}")
    points = snapshots(spark, table)
    ours, theirs = check(spark, table, *points), view(spark, table, *points)
    assert [sorted((row["_change_type"], row["id"]) for row in found) for found in (ours, theirs)] == [right, wrong]


def test_a_column_that_was_dropped_since(spark: Any, table: str) -> None:
    """It reads every snapshot in the columns that the table has now: what happened in another is not told."""
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"UPDATE {table} SET v = 'b'")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    points = snapshots(spark, table)
    ours = changes(spark, table, *points)
    assert sorted((row["_change_type"], row["v"]) for row in ours.collect()) == [("DELETE", "a"), ("INSERT", "b")]
    assert view(spark, table, *points) == []


REFUSED = {
    "a map": ("m map<string, int>", {}, "unorderable columns"),
    "two rows with one key": ("v string", {"keys": ["id"]}, "multiple rows with the same identifier"),
    "net updates": ("v string", {"keys": ["id"], "net": True}, "Not support net changes with update images"),
}


@pytest.mark.parametrize(("column", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_it_refuses(spark: Any, table: str, column: str, options: dict[str, Any], message: str) -> None:
    create(spark, table, mode="copy-on-write", columns=f"id bigint, {column}")
    value = "map('k', {0})" if column.startswith("m") else "'v{0}'"
    for first, second in ((1, 2), (3, 4)):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (1, {value.format(first)}), (1, {value.format(second)})")
    points = snapshots(spark, table)
    found = check(spark, table, *points, **options)
    images = {"UPDATE_BEFORE", "UPDATE_AFTER"} if options else {"DELETE", "INSERT"}
    assert {row["_change_type"] for row in found} == images
    assert len(found) == 4
    with pytest.raises(Exception, match=message):
        view(spark, table, *points, **options)


def test_a_rollback(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b', 1)")
    first, second = snapshots(spark, table)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 1)")
    third = snapshots(spark, table)[-1]
    found = check(spark, table, second, third)
    assert sorted((row["_change_type"], row["id"]) for row in found) == [("DELETE", 2), ("INSERT", 3)]
    with pytest.raises(Exception, match="is not a parent ancestor of end snapshot"):
        view(spark, table, second, third)
