"""What `icefront changes` shows: in an order that every run has, and proven for the snapshots that it shows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import icefront
from icefront.cli import changing, show
from icefront.core.errors import ConfigError
from icefront.proof.changelog import Difference, verify
from tests.changes.oracle import snapshots
from tests.changes.test_changes import create


def look(spark: Any, table: str, begin: str | None = None, end: str | None = None, **options: Any) -> tuple[Any, ...]:
    told: dict[str, Any] = {"net": False, "keys": None, "proof": False, "limit": 100, **options}
    return changing._look(spark, table, begin, end, **told)


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_change_ordinal"], row["_change_type"], row["id"], row["v"]) for row in rows]


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_images_are_side_by_side_and_few_rows_are_the_first_ones(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="id bigint, v string, `a.``b` int, m map<string, int>")
    spark.sql(f"INSERT INTO {table} SELECT id, 'a', 1, map('x', 1) FROM range(6)")
    spark.sql(f"UPDATE {table} SET v = 'b' WHERE id > 2")
    spark.sql(f"DELETE FROM {table} WHERE id IN (1, 5)")
    first = str(snapshots(spark, table)[0])
    images = [(0, kind, key, v) for key in (3, 4, 5) for kind, v in (("UPDATE_BEFORE", "a"), ("UPDATE_AFTER", "b"))]
    deletes = [(1, "DELETE", 1, "a"), (1, "DELETE", 5, "b")]
    rows, more, differences = look(spark, table, first, keys=["id"], proof=True)
    assert (told(rows), more, differences) == ([*images, *deletes], False, [])
    for limit in (1, 3, 7):
        rows, more, _ = look(spark, table, first, keys=["id"], limit=limit)
        assert (told(rows), more) == ([*images, *deletes][:limit], True)
    apart = look(spark, table, first)[0]
    assert [row[1] for row in told(apart)[:6]] == ["DELETE"] * 3 + ["INSERT"] * 3
    by_id = told(look(spark, table, first, keys=["_row_id"])[0])
    assert sorted(by_id) == sorted([*images, *deletes])
    assert all(by_id[at][2] == by_id[at + 1][2] for at in (0, 2, 4)), "beside one another"


@pytest.mark.spark
def test_a_commit_between_changes_and_proof_makes_no_difference(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the newest snapshot nor of a branch."""
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH b")

    def late(*arguments: Any) -> Any:
        spark.sql(f"INSERT INTO {table} VALUES (2, 'b', 1)")
        spark.sql(f"INSERT INTO {table}.branch_b VALUES (3, 'c', 1)")
        return verify(*arguments)

    monkeypatch.setattr(changing, "verify", late)
    assert look(spark, table, proof=True)[2] == []
    assert look(spark, table, end="b", proof=True)[2] == []


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process far from Greenwich."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.spark
@pytest.mark.usefixtures("elsewhere")
def test_values_are_json_and_times_are_utc_wherever_it_runs(spark: Any, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    columns = "id bigint, at timestamp, wall timestamp_ntz, days map<date, int>, parts map<binary, struct<x: double>>, v string"
    create(spark, table, columns=columns)
    spark.sql(
        f"INSERT INTO {table} SELECT 1, timestamp'2026-01-31T12:00:00Z', timestamp_ntz'2026-01-31T12:00:00', "
        "map(date'2026-01-31', 1), map(X'00FF', named_struct('x', double('NaN'))), 'a\tb'"
    )
    spark.sql(f"INSERT INTO {table} SELECT 2, null, null, map(), null, null")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = look(spark, table)[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    show.print_json(rows)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["at"], first["wall"]) == ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00")
    assert first["days"] == [{"key": "2026-01-31", "value": 1}]
    assert first["parts"] == [{"key": "AP8=", "value": {"x": "NaN"}}]
    assert (second["at"], second["days"]) == (None, [])
    shown = [datetime.fromisoformat(row["_commit_timestamp"]) for row in (first, second)]
    assert shown[0] <= shown[1] <= datetime.now(UTC)
    assert datetime.now(UTC) - shown[0] < timedelta(minutes=5)
    assert [row["id"] for row in look(spark, table, first["_commit_timestamp"])[0]] == [2], "a time that was shown can be given"
    changing._print(rows, (), more=False, proof=False)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[1].split("\t")[:2] == ["1", "2026-01-31T12:00:00Z"]
    assert first["_commit_timestamp"] in printed[1].split("\t")


@pytest.mark.parametrize("as_json", [True, False])
def test_differences_are_shown_and_end_with_their_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    monkeypatch.setattr(changing, "load_project", lambda _: None)
    monkeypatch.setattr(changing, "start_project", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(changing, "_look", lambda *_, **__: ([{"id": 1}], False, [Difference("one row", -2)]))
    with pytest.raises(typer.Exit) as ended:
        changing.changes("t", None, None, net=False, keys=None, proof=True, limit=5, as_json=as_json)
    assert ended.value.exit_code == 7
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["differences"] == [{"row": "one row", "times": -2}]
    else:
        assert "different: 2 × not often enough: one row" in printed


@pytest.mark.spark
def test_a_metadata_table_is_none_to_work_on(spark: Any, table: str) -> None:
    create(spark, table)
    for work in (icefront.changes, icefront.settle, icefront.compact, icefront.expire):
        with pytest.raises(ConfigError, match=f"{table}.snapshots is a metadata table") as refused:
            work(spark, f"{table}.snapshots")
        assert refused.value.next_step == f"name the table itself: {table}"
