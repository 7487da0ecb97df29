"""Real processes that follow a table and are killed: the replica goes on where it was, and is its source in the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pytest

from icefront.proof.harness import KILLED, PROGRAM, Driver, Project
from tests.lakes import Lake
from tests.process.forked import forked
from tests.replica.replicas import Replica

pytestmark = [pytest.mark.spark, pytest.mark.process]

KILLS = (
    "table.after=kill",
    "stage.after=kill@2",
    "publish.before-commit=kill@2",
    "publish.after=kill@2",
    "release.before=kill@2",
)


@pytest.mark.parametrize("kills", [KILLS[3:4], pytest.param(KILLS, marks=pytest.mark.long)], ids=["one", "all"])
def test_a_load_in_batches_that_is_killed_goes_on_after_the_last_one(lake: Lake, table: str, kills: Sequence[str]) -> None:
    replica = Replica(lake, table).create(version=2)
    for number in range(8):
        replica.sql(f"INSERT INTO T SELECT id, concat('v', id), 1 FROM range({10 * number}, {10 * number + 10}, 1, 1)")
    replica.sql("DELETE FROM T WHERE id % 10 = 0")
    project = Project(lake.folder / "project", seed=1, catalog={"type": "sqlite", "path": str(lake.catalog)}, begin=forked)
    settings = {
        "pipeline": "replica",
        "source": {"iceberg": {"table": replica.source, "batch": "1kB"}},
        "sink": {"iceberg": {"table": replica.target}},
    }
    project.file.write_text(json.dumps(settings), encoding="utf-8")
    reached = 0
    for kill in kills:
        project.run(kill, code=KILLED)
        loaded = [at.get("loaded") for _, at in replica.epochs()]
        # Each batch once and in order; how many of those in flight were published before the kill is up to the machine.
        assert loaded == [*range(1, len(loaded) + 1)]
        assert reached <= len(loaded) < 8
        reached = len(loaded)
    assert reached
    replica.sql("UPDATE T SET v = 'changed' WHERE id = 5")
    project.run("publish.after=kill@2", code=KILLED)
    project.run()
    assert [at.get("loaded") for _, at in replica.epochs()] == [*range(1, 8), None, None]
    assert replica.check_caught_up() == 2
    with Driver([*PROGRAM, "verify", project.file.name, "--json"], project.folder, os.environ, forked) as verify:
        (compared,) = json.loads(verify.expect(0).stdout)
    assert (compared["equal"], compared["rows"]) == (True, 72)
