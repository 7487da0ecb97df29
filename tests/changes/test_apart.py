"""Steps whose rows need not meet: by the ranges of a column, no row that left can be equal to one that came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from icefront.iceberg import kinship
from icefront.iceberg.view import View, _types
from icefront.spark import changes as job
from icefront.spark.changes import Plan
from tests.changes.oracle import check, snapshots
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create

pytestmark = pytest.mark.spark


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What is planned, of however little."""
    found: list[Plan] = []
    read = job.read_changes

    def watched(spark: Any, plan: Plan, steps: Any) -> Any:
        found.append(plan)
        return read(spark, plan, steps)

    monkeypatch.setattr(job, "read_changes", watched)
    monkeypatch.setattr(kinship, "LITTLE", 0)
    return found


def filled(spark: Any, table: str, *, version: int = 3, **options: Any) -> None:
    """Two files of rows that were changed at times from 0 to 59, one of them without a time."""
    create(spark, table, version=version, columns="id bigint, v string, n int", **options)
    for start in (0, 30):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id AS int) FROM range({start}, {start + 30})")
    spark.sql(f"INSERT INTO {table} VALUES (100, 'v', NULL)")


def last(spark: Any, table: str, keys: Sequence[str] = ()) -> Counter[str]:
    """The changes of the last snapshot, checked."""
    *_, before, after = snapshots(spark, table)
    return Counter(row["_change_type"] for row in check(spark, table, before, after, keys=keys))


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_an_update_set_a_time_on_need_not_meet(spark: Any, table: str, plans: list[Plan], version: int) -> None:
    filled(spark, table, version=version)
    spark.sql(f"UPDATE {table} SET n = 60 WHERE id IN (3, 4, 33)")
    assert last(spark, table) == {"DELETE": 3, "INSERT": 3}
    assert plans.pop().apart == {0}
    assert last(spark, table, keys=["id"]) == {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3}
    assert plans.pop().apart == frozenset(), "images of an update have to meet"


ANY = {
    "the ranges overlap, and a row stays what it was": ("UPDATE {} SET n = 31 WHERE id IN (3, 31)", {"DELETE": 1, "INSERT": 1}),
    "nulls are on both sides": (
        "UPDATE {} SET n = CASE WHEN id = 3 THEN 60 END WHERE id IN (3, 100)",
        {"DELETE": 1, "INSERT": 1},
    ),
    "rows only leave": ("DELETE FROM {} WHERE id = 3", {"DELETE": 1}),
}


@pytest.mark.parametrize(("statement", "expected"), ANY.values(), ids=ANY)
def test_they_meet_where_one_may_be_equal_to_another(
    spark: Any, table: str, plans: list[Plan], statement: str, expected: dict[str, int]
) -> None:
    filled(spark, table)
    spark.sql(statement.format(table))
    assert last(spark, table) == expected
    assert plans.pop().apart == frozenset()


def test_rewritten_files_hold_rows_of_both_times(spark: Any, table: str, plans: list[Plan]) -> None:
    filled(spark, table, mode="copy-on-write")
    spark.sql(f"UPDATE {table} SET n = 60 WHERE id < 30")
    assert last(spark, table) == {"DELETE": 30, "INSERT": 30}
    assert plans.pop().apart == frozenset()


def test_a_vector_that_is_replaced_may_give_rows_back(spark: Any, table: str, plans: list[Plan]) -> None:
    filled(spark, table)
    for row in (3, 4):
        spark.sql(f"UPDATE {table} SET n = 60 + {row} WHERE id = {row}")
        assert last(spark, table) == {"DELETE": 1, "INSERT": 1}
    assert plans.pop().apart == frozenset()


def test_a_column_that_was_dropped_tells_no_rows_apart(spark: Any, table: str, plans: list[Plan]) -> None:
    filled(spark, table)
    begin = snapshots(spark, table)[-1]
    spark.sql(f"UPDATE {table} SET n = 60 WHERE id = 3")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN n")
    spark.sql(f"INSERT INTO {table} VALUES (200, 'v')")
    found = check(spark, table, begin, snapshots(spark, table)[-1], keys=[], net=True)
    assert [row["id"] for row in found] == [200], "without it, row 3 is what it was"
    assert plans.pop().apart == frozenset()


def test_a_column_of_another_type_that_took_its_place_tells_no_rows_apart(spark: Any, table: str, plans: list[Plan]) -> None:
    """Replacing a table keeps the ids of columns by name: as text, bounds of numbers would lie apart that do not."""
    create(spark, table, columns="id bigint, n int")
    spark.sql(f"INSERT INTO {table} VALUES (1, 1), (1, 256), (1, 2)")
    spark.sql(f"UPDATE {table} SET n = 2 WHERE n IN (2, 256)")
    *_, before, after = snapshots(spark, table)
    schema = View.of(spark, table).metadata.schema()
    replaced = Schema(schema.fields[0], NestedField(schema.fields[1].field_id, "n", StringType()), schema_id=7)
    assert _types([schema]) == {1: LongType(), 2: IntegerType()}
    assert _types([schema, replaced]) == {1: LongType()}
    found = check(spark, table, before, after, keys=[])
    assert Counter(row["_change_type"] for row in found) == {"DELETE": 1, "INSERT": 1}
    assert plans.pop().apart == frozenset()


def test_a_column_that_was_widened_still_does(spark: Any, table: str, plans: list[Plan]) -> None:
    filled(spark, table)
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"UPDATE {table} SET n = 60 WHERE id = 3")
    assert last(spark, table) == {"DELETE": 1, "INSERT": 1}
    assert plans.pop().apart == {0}


def test_equality_deletes_meet_their_successors(spark: Any, table: str, plans: list[Plan]) -> None:
    filled(spark, table)
    Streaming(spark, table).commit([{"id": 3, "v": "v", "n": 60}], [{"id": 3}])
    assert last(spark, table) == {"DELETE": 1, "INSERT": 1}
    assert plans.pop().apart == frozenset()
