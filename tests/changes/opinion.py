"""A second opinion: Iceberg's own `create_changelog_view`, where it works.

It refuses snapshots with delete files and ranges that are no line of ancestors. What it tells wrongly is in
`test_second_opinion.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from icefront.changelog import changes
from tests.changes.oracle import spelled

KIND, SNAPSHOT = "_change_type", "_commit_snapshot_id"


def can_tell(spark: Any, table: str, begin: int | None, current: int) -> bool:
    """Whether it reads the last step: to the current snapshot from its parent, without any manifest of deletes, even one of the gone."""
    parent = spark.sql(f"SELECT parent_id FROM {table}.snapshots WHERE snapshot_id = {current}").first()[0]
    deletes = spark.sql(f"SELECT count(*) FROM {table}.manifests WHERE content = 1").first()[0]
    return bool(begin is not None and parent == begin and not deletes)


def view(spark: Any, table: str, begin: int | None, end: int, *, keys: list[str] | None = None, net: bool = False) -> list[Any]:
    """The rows of the changelog view of a range."""
    start = "" if begin is None else f"'start-snapshot-id', '{begin}', "
    more = f", identifier_columns => array({', '.join(map(repr, keys))})" if keys else ""
    (name,) = spark.sql(
        f"CALL lake.system.create_changelog_view(table => '{table.removeprefix('lake.')}', changelog_view => 'opinion', "
        f"options => map({start}'end-snapshot-id', '{end}'), net_changes => {str(net).lower()}{more})"
    ).first()
    return list(spark.table(name).collect())


def counted(rows: list[Any], columns: list[str]) -> Counter[Any]:
    """Changes as a multiset: the row, what happened to it and where."""
    told = [row.asDict(recursive=True) for row in rows]
    return Counter(tuple(spelled(row[c]) for c in (*columns, KIND, SNAPSHOT)) for row in told)


def agrees(spark: Any, table: str, begin: int | None, end: int, *, keys: list[str] | None = None, net: bool = False) -> None:
    """Both tell the same changes."""
    ours = changes(spark, table, begin, end, keys=keys or [], net=net)
    columns = ours.columns[: ours.columns.index(KIND)]
    mine, theirs = counted(ours.collect(), columns), counted(view(spark, table, begin, end, keys=keys, net=net), columns)
    assert mine == theirs, f"{begin} → {end}: only we {mine - theirs}, only they {theirs - mine}"
