"""`icefront changes` as a user types it, on the project that `icefront init` makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icefront.proof.harness import PROGRAM, Driver
from tests.conftest import lean
from tests.process.forked import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def icefront(folder: Path, *arguments: str) -> Driver:
    # Far from Greenwich: a command's times are UTC wherever it runs.
    with Driver([*PROGRAM, *arguments], folder, {**lean(), "TZ": "America/New_York"}, forked) as driver:
        driver.wait(300)
    return driver


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
