"""The oracle: multiset(from) - deletes + inserts == multiset(to), both states read by plain time travel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from icefront.changelog import changes

LEAVING, COMING = {"DELETE", "UPDATE_BEFORE"}, {"INSERT", "UPDATE_AFTER"}
OUTPUT = ("_change_type", "_change_ordinal", "_commit_snapshot_id", "_commit_timestamp")


def spelled(value: Any) -> Any:
    """A value as something that can be counted: floats by how they are printed, so that -0.0 is not 0.0 and NaN is itself."""
    match value:
        case float():
            return repr(value)
        case dict():
            return frozenset((spelled(k), spelled(v)) for k, v in value.items())
        case list() | tuple():
            return tuple(map(spelled, value))
        case bytearray():
            return bytes(value)
    return value


def state(spark: Any, table: str, snapshot: int | None, columns: Sequence[str]) -> Counter[Any]:
    """All rows of a snapshot; none of no snapshot."""
    rows = [] if snapshot is None else _read(spark, table, snapshot)[1]
    return Counter(tuple(spelled(row[c]) if c in row else None for c in columns) for row in rows)


@lru_cache(maxsize=32)
def _read(spark: Any, table: str, snapshot: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows; of one snapshot they do not change, so they are read once for all ranges that begin or end there."""
    frame = spark.read.option("versionAsOf", snapshot).table(table)
    return frame.columns, [row.asDict(recursive=True) for row in frame.collect()]


def told(spark: Any, table: str, begin: int | None, end: int, **options: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in changes(spark, table, begin, end, **options).collect()]


def snapshots(spark: Any, table: str) -> list[int]:
    return [r[0] for r in spark.sql(f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at").collect()]


def check(spark: Any, table: str, begin: int | None, end: int, **options: Any) -> list[dict[str, Any]]:
    """The oracle for one pair of snapshots; returns the changes."""
    found = told(spark, table, begin, end, **options)
    columns, _ = _read(spark, table, end)
    rows = [(row["_change_type"], tuple(spelled(row[c]) for c in columns)) for row in found]
    after = state(spark, table, begin, columns)
    after.subtract(row for kind, row in rows if kind in LEAVING)
    after.update(row for kind, row in rows if kind in COMING)
    wanted = state(spark, table, end, columns)
    after.subtract(wanted)
    assert not any(after.values()), f"{begin} → {end}: too many {+after}, missing {-after}"
    return found


def check_all(spark: Any, table: str) -> None:
    """Every step by itself, and some longer ones, each also as net changes."""
    ends = snapshots(spark, table)
    begins: list[int | None] = [None, *ends]
    for i, end in enumerate(ends):
        check(spark, table, begins[i], end)
        check(spark, table, begins[i // 2], end, net=True)
    check(spark, table, None, ends[-1])
