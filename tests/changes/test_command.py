"""`icefront changes` and `icefront settle` as a user types them, on the project that `icefront init` makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LEAN

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def icefront(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "icefront", *arguments], {**os.environ, **LEAN}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_changes_of_the_sample_pipeline(tmp_path: Path) -> None:
    assert icefront(tmp_path, "init", ".").returncode == 0
    assert icefront(tmp_path, "run", "orders.yaml", "--until", "caught-up").returncode == 0
    table = "lake.shop.orders"

    shown = icefront(tmp_path, "changes", table, "--limit", "3", "--verify", "--keys", "id", "--json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (len(told["changes"]), told["more"], told["differences"]) == (3, True, [])
    assert told["changes"][0]["_change_type"] == "INSERT"
    assert {"id", "_change_ordinal", "_commit_snapshot_id", "_commit_timestamp"} <= told["changes"][0].keys()

    last = told["changes"][-1]["_commit_snapshot_id"]
    until = icefront(tmp_path, "changes", table, "--to", str(last), "--limit", "3", "--keys", "id", "--json")
    assert until.returncode == 0, until.stderr
    assert json.loads(until.stdout)["changes"] == told["changes"]
    after = icefront(tmp_path, "changes", table, "--from", "main", "--to", "2100-01-01T00:00:00", "--json")
    assert json.loads(after.stdout) == {"changes": [], "more": False}, after.stderr

    printed = icefront(tmp_path, "changes", table, "--net", "--limit", "2")
    assert printed.returncode == 0, printed.stderr
    header, *rows = printed.stdout.splitlines()
    assert "_change_type" in header.split("\t")
    assert [row.split("\t")[header.split("\t").index("_change_type")] for row in rows[:2]] == ["INSERT", "INSERT"]
    assert rows[2].startswith("… and more")

    unknown = icefront(tmp_path, "changes", table, "--from", "yesterday")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert '"yesterday" is no snapshot of lake.shop.orders' in unknown.stderr
    gone = icefront(tmp_path, "changes", table, "--from", "17")
    assert gone.returncode == 5
    assert "snapshot 17 of lake.shop.orders is not there" in gone.stderr
