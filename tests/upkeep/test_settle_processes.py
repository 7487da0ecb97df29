"""`icefront settle` as a real process: killed at each of its failpoints, and paused while a pipeline publishes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icefront.proof.checker import by_datafusion
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import KILLED, Driver, Project
from icefront.proof.oracle import replay
from icefront.testing.feeds import ORDERS

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def settle(project: Project, failpoints: str = "") -> Driver:
    command = [*project.program, "settle", project.table, "--json"]
    return Driver(command, project.folder, {**os.environ, ENVIRONMENT: failpoints})


def load(project: Project) -> Table:
    return load_catalog("lake", type="sql", uri=f"sqlite:///{project.folder}/.icefront/catalog.db").load_table("t.orders")


def equality_deletes(project: Project) -> int:
    snapshot = load(project).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties["total-equality-deletes"])


def expected(project: Project) -> dict[Any, Any]:
    end = str(project.feed.resolved[-1].next())
    return dict(replay(project.folder / "feed", ORDERS.name, ORDERS.keys, end))


def check(project: Project) -> None:
    """The table is what the feed says, by an engine that shares no code with us."""
    rows = list(by_datafusion(load(project)))
    assert sorted(row["id"] for row in rows) == sorted(key[0] for key in expected(project))
    amounts = {key[0]: row["amount"] for key, row in expected(project).items()}
    assert {row["id"]: row["amount"] for row in rows} == amounts


def test_a_settle_that_is_killed_or_paused_leaves_a_right_table(tmp_path: Path) -> None:
    project = Project(tmp_path, seed=5)
    project.feed.scan(30)
    for _ in range(3):
        project.feed.advance(20)
    project.run()
    owed = equality_deletes(project)
    assert owed > 0
    for place in ("settle.before", "settle.before-commit"):
        settle(project, f"{place}=kill").expect(KILLED)
        check(project)
        assert equality_deletes(project) == owed, place

    with settle(project, "settle.before-commit=pause") as paused:
        paused.wait_until_stopped()
        project.feed.advance(20)
        project.run()  # publishes meanwhile
        check(project)
        later = equality_deletes(project) - owed
        assert later > 0
        paused.wake()
        paused.expect(0)
        assert json.loads(paused.stdout)["rounds"] == 1, "they commute"
    check(project)
    assert equality_deletes(project) == later

    settle(project, "settle.after=kill").expect(-signal.SIGKILL)
    check(project)
    assert equality_deletes(project) == 0
    assert load(project).scan().to_arrow().num_rows == len(expected(project)), "PyIceberg, which knows no equality deletes"
    with settle(project) as idle:
        idle.expect(0)
        assert json.loads(idle.stdout)["snapshots"] == []
