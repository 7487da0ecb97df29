"""`icefront changes` and `icefront settle` as a user types them, on the project that `icefront init` makes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icefront.proof.harness import PROGRAM, Driver
from icefront.settings import load_project
from tests.conftest import lean
from tests.process.forked import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def icefront(folder: Path, *arguments: str) -> Driver:
    # Far from Greenwich: a command's times are UTC wherever it runs.
    with Driver([*PROGRAM, *arguments], folder, {**lean(), "TZ": "America/New_York"}, forked) as driver:
        driver.wait(300)
    return driver


def lose_a_column(folder: Path) -> str:
    """Make a table with a branch from before a column was dropped and a tag from after: on the way back `--verify` finds its values."""
    catalog = load_catalog("lake", **load_project(folder).catalogs["lake"].pyiceberg_properties("lake"))
    table = catalog.create_table("shop.notes", pa.schema([("id", pa.int64()), ("note", pa.string())]))
    table.append(pa.table({"id": [1, 2], "note": ["a", "b"]}))
    table.manage_snapshots().create_branch(_current(table), "before").commit()
    with table.update_schema() as change:
        change.delete_column("note")
    table.append(pa.table({"id": [3]}))
    table.manage_snapshots().create_tag(_current(table), "after").commit()
    return "lake.shop.notes"


def _current(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def test_changes_of_the_sample_pipeline(tmp_path: Path) -> None:
    assert icefront(tmp_path, "init", ".").code == 0
    assert icefront(tmp_path, "run", "orders.yaml", "--until", "caught-up").code == 0
    table = "lake.shop.orders"

    shown = icefront(tmp_path, "changes", table, "--limit", "3", "--verify", "--keys", "id", "--json")
    assert shown.code == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (len(told["changes"]), told["more"], told["differences"]) == (3, True, [])
    assert told["changes"][0]["_change_type"] == "INSERT"
    assert {"id", "_change_ordinal", "_commit_snapshot_id", "_commit_timestamp"} <= told["changes"][0].keys()

    last = told["changes"][-1]["_commit_timestamp"]
    until = icefront(tmp_path, "changes", table, "--to", last, "--limit", "3", "--keys", "id", "--json")
    assert until.code == 0, until.stderr
    assert json.loads(until.stdout)["changes"] == told["changes"]
    back = icefront(tmp_path, "changes", lose_a_column(tmp_path), "--from", "after", "--to", "before", "--verify", "--json")
    assert back.code == 7, back.stderr
    found = json.loads(back.stdout)
    assert [(row["_change_type"], row["id"]) for row in found["changes"]] == [("DELETE", 3)]
    assert len(found["differences"]) == 4, "both rows, without and with what they held"

    printed = icefront(tmp_path, "changes", table, "--net", "--limit", "2", "--to", "2100-01-01T00:00:00")
    assert printed.code == 0, printed.stderr
    header, *rows = printed.stdout.splitlines()
    assert "_change_type" in header.split("\t")
    assert [row.split("\t")[header.split("\t").index("_change_type")] for row in rows[:2]] == ["INSERT", "INSERT"]
    assert rows[2].startswith("… and more")

    unknown = icefront(tmp_path, "changes", table, "--from", "yesterday")
    assert (unknown.code, unknown.stdout) == (2, "")
    assert '"yesterday" is no snapshot of lake.shop.orders' in unknown.stderr
    gone = icefront(tmp_path, "changes", table, "--from", "17")
    assert gone.code == 5
    assert "snapshot 17 of lake.shop.orders is not there" in gone.stderr
