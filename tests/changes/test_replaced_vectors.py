"""Snapshots of format 3 that only delete rows, again and again from the same files: nothing is exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from icefront.iceberg.statediff import FileChange
from icefront.spark import changes as job
from icefront.spark.changes import Plan
from tests.changes.oracle import check, snapshots
from tests.changes.test_changes import create

pytestmark = pytest.mark.spark


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Of each call and step, whether its rows meet."""
    found: list[list[bool]] = []
    read = job.read_changes

    def watched(spark: Any, plan: Plan, steps: Mapping[int, Sequence[FileChange]]) -> Any:
        found.append([plan.meets(i, changes) for i, changes in steps.items()])
        return read(spark, plan, steps)

    monkeypatch.setattr(job, "read_changes", watched)
    return found


@pytest.fixture
def worn(spark: Any, table: str) -> str:
    """A table of two files, each with a vector that was replaced twice."""
    create(spark, table, columns="id bigint, v string")
    for start in (0, 30):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v' FROM range({start}, {start + 30})")
    for row in (3, 4, 5):
        spark.sql(f"DELETE FROM {table} WHERE id IN ({row}, {row + 30})")
    return table


def kinds(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["_change_type"] for row in found)


@pytest.mark.parametrize("keys", [[], ["id"], ["_row_id"]], ids=str)
def test_rows_that_only_leave_need_not_meet(spark: Any, worn: str, met: list[list[bool]], keys: list[str]) -> None:
    _, loaded, first, _, last = snapshots(spark, worn)
    assert kinds(check(spark, worn, loaded, last, keys=keys)) == {"DELETE": 6}
    assert kinds(check(spark, worn, first, last, keys=keys, net=True)) == {"DELETE": 4}
    assert met == [[False] * 3, [False]]


@pytest.mark.parametrize("keys", [[], ["id"], ["_row_id"]], ids=str)
def test_rows_that_a_rollback_brings_back_need_not_either(spark: Any, worn: str, met: list[list[bool]], keys: list[str]) -> None:
    *_, first, _, last = snapshots(spark, worn)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{worn}', {first})")
    assert kinds(check(spark, worn, last, first, keys=keys)) == {"INSERT": 4}
    assert met == [[False]]


def test_rows_of_two_branches_do(spark: Any, worn: str, met: list[list[bool]]) -> None:
    """Each deleted what the other has."""
    spark.sql(f"ALTER TABLE {worn} CREATE BRANCH side")
    spark.sql(f"DELETE FROM {worn} WHERE id = 7")
    spark.sql(f"DELETE FROM {worn}.branch_side WHERE id = 8")
    ends = [spark.sql(f"SELECT snapshot_id FROM {worn}.refs WHERE name = '{ref}'").first()[0] for ref in ("main", "side")]
    found = check(spark, worn, *ends, keys=[])
    assert sorted((row["_change_type"], row["id"]) for row in found) == [("DELETE", 8), ("INSERT", 7)]
    assert met == [[True]]
