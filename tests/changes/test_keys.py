"""Keys: what tells rows apart is a column, whatever it is called and wherever it is in each snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from icefront.changelog import changes
from icefront.core.errors import ConfigError
from tests.changes.oracle import snapshots
from tests.changes.test_changes import MODES, create

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("mode", MODES)]


def told(spark: Any, table: str, begin: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """Ordinal and kind of each change, then the row."""
    found = changes(spark, table, begin, **options).collect()
    return sorted((row["_change_ordinal"], row["_change_type"], *row[:-4]) for row in found)


def test_a_renamed_key_pairs_before_and_after(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="id bigint NOT NULL, v string")
    spark.sql(f"ALTER TABLE {table} SET IDENTIFIER FIELDS id")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"UPDATE {table} SET v = 'c' WHERE id = 1")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN id TO pk")
    spark.sql(f"UPDATE {table} SET v = 'd' WHERE pk = 2")
    images = [
        (0, "UPDATE_AFTER", 1, "c"),
        (0, "UPDATE_BEFORE", 1, "a"),
        (1, "UPDATE_AFTER", 2, "d"),
        (1, "UPDATE_BEFORE", 2, "b"),
    ]
    first = snapshots(spark, table)[0]
    assert told(spark, table, first) == images
    assert told(spark, table, first, keys=["pk"]) == images
    assert told(spark, table, first, keys="pk") == images, "one name is one key"


def test_columns_that_swap_their_names_stay_the_keys_that_they_are(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="a bigint, b bigint")
    spark.sql(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
    spark.sql(f"UPDATE {table} SET b = 11 WHERE a = 1")
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    spark.sql(f"INSERT INTO {table} VALUES (5, 5)")
    first = snapshots(spark, table)[0]
    insert = (1, "INSERT", 5, 5)
    assert told(spark, table, first, keys=["b"]) == [(0, "UPDATE_AFTER", 1, 11), (0, "UPDATE_BEFORE", 1, 10), insert]
    assert told(spark, table, first, keys=["a"]) == [(0, "DELETE", 1, 10), (0, "INSERT", 1, 11), insert]


def test_before_a_key_was_added_nothing_is_paired(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="id bigint, v string")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    spark.sql(f"UPDATE {table} SET v = 'b'")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN k string")
    spark.sql(f"UPDATE {table} SET k = 'k'")
    spark.sql(f"UPDATE {table} SET v = 'c'")
    assert told(spark, table, snapshots(spark, table)[0], keys=["k"]) == [
        (0, "DELETE", 1, "a", None),
        (0, "INSERT", 1, "b", None),
        (1, "DELETE", 1, "b", None),
        (1, "INSERT", 1, "b", "k"),
        (2, "UPDATE_AFTER", 1, "c", "k"),
        (2, "UPDATE_BEFORE", 1, "b", "k"),
    ]


def test_members_of_structs_are_keys(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="s struct<id: bigint NOT NULL, x: int> NOT NULL, v string, l array<int>")
    spark.sql(f"ALTER TABLE {table} SET IDENTIFIER FIELDS s.id")
    spark.sql(f"INSERT INTO {table} SELECT named_struct('id', id, 'x', 0), 'a', array(1) FROM range(3)")
    spark.sql(f"UPDATE {table} SET s.x = 1, v = 'b' WHERE s.id = 1")
    images = [(0, "UPDATE_AFTER", (1, 1), "b", [1]), (0, "UPDATE_BEFORE", (1, 0), "a", [1])]
    first = snapshots(spark, table)[0]
    assert told(spark, table, first) == images
    assert told(spark, table, first, keys=["s.id"]) == images
    with pytest.raises(ConfigError, match=r"l\.element of .* is in a list or map"):
        changes(spark, table, keys=["l.element"])
