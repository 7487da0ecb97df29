"""Upkeep in real processes, killed and paused at its failpoints: `icefront settle`, and a run that does it by itself."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import FENCED, KILLED, Driver
from tests.process.matrix import Watched

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def settle(project: Watched, failpoints: str = "") -> Driver:
    command = [*project.program, "settle", project.table, "--json"]
    return Driver(command, project.folder, {**os.environ, ENVIRONMENT: failpoints}, project.begin)


def kill_at(failpoint: str, project: Watched) -> None:
    with settle(project, f"{failpoint}=kill") as driver:
        assert "failpoints are armed" in driver.expect(KILLED).stderr
    project.check_caught_up()


def equality_deletes(project: Watched) -> int:
    table = project.load()
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties["total-equality-deletes"])


def rows(project: Watched) -> tuple[int, int]:
    """How many PyIceberg reads, which knows no equality deletes, and how many our own engine does."""
    table = project.load()
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return table.scan().to_arrow().num_rows, len(list(project.read(snapshot.snapshot_id)))


def test_a_settle_that_is_killed_or_paused_leaves_a_right_table(tmp_path: Path) -> None:
    project = Watched(tmp_path)
    for _ in range(2):
        project.feed.advance(20)
    project.run()
    owed = equality_deletes(project)
    assert owed > 0
    for place in ("settle.before", "settle.before-commit"):
        kill_at(place, project)
        assert equality_deletes(project) == owed, place

    with settle(project, "settle.before-commit=pause") as paused:
        paused.wait_until_stopped()
        project.feed.advance(20)
        project.run()  # publishes meanwhile
        project.check_caught_up()
        later = equality_deletes(project) - owed
        assert later > 0
        paused.wake()
        paused.expect(0)
        assert json.loads(paused.stdout)["rounds"] == 1, "they commute"
    project.check_caught_up()
    assert equality_deletes(project) == later

    kill_at("settle.after", project)
    assert equality_deletes(project) == 0
    by_pyiceberg, by_datafusion = rows(project)
    assert by_pyiceberg == by_datafusion


AT_ONCE = {"settle": {"files": 1, "every": "1ms"}, "compact": {"files": 2, "every": "1ms"}, "expire": "off"}


def give_back(project: Watched) -> None:
    """End the lease of a run that cannot: for a minute it would spare its successors the same work.

    And let all cycles be long ago, settles longest: so nothing rests, and what is settled is not left to a compaction.
    """
    with closing(sqlite3.connect(project.state)) as state:
        state.execute("DELETE FROM leases")
        ago = "iif(kind = 'settle', 7200, 3600)"
        state.execute(f"UPDATE cycles SET started = started - {ago}, ended = ended - {ago}")
        state.commit()


def cycles(project: Watched) -> dict[int, str]:
    """The kinds of the cycles that were done, by number."""
    with closing(sqlite3.connect(project.state)) as state:
        return dict(state.execute("SELECT cycle, kind FROM cycles WHERE outcome = 'done'"))


def run_on(project: Watched, failpoints: str) -> Driver:
    """A run that does not end by itself: whatever its upkeep does, it comes to the next epoch, and is refused if it was overtaken."""
    command = [*project.program, "run", project.file.name, "--json"]
    return Driver(command, project.folder, {**os.environ, ENVIRONMENT: failpoints}, project.begin)


TWO = ["settle.before-commit", "compact.before-commit"]
EVERY_PLACE = pytest.param(["settle.after", "compact.before", "compact.after"], marks=pytest.mark.long)


@pytest.mark.parametrize("places", [TWO, EVERY_PLACE], ids=["two", "every other"])
def test_a_run_that_is_killed_or_paused_in_its_own_upkeep_leaves_a_right_table(tmp_path: Path, places: list[str]) -> None:
    project = Watched(tmp_path, settings={"upkeep": AT_ONCE})
    for place in places:
        project.feed.advance(20)
        with project.start(f"{place}=kill") as driver:
            driver.expect(KILLED)
        project.check()
        give_back(project)

    project.feed.advance(20)
    with run_on(project, "compact.before-commit=pause") as paused:
        paused.wait_until_stopped()
        give_back(project)
        before, written = cycles(project), set(project.files()) - project.committed()
        assert written, "nothing is in its hands"
        project.feed.advance(20)
        project.run()  # publishes meanwhile, and compacts the same files
        project.check_caught_up()
        done = {kind for cycle, kind in cycles(project).items() if cycle not in before}
        assert done == {"settle", "compact"}, "the successor"
        paused.wake()
        paused.expect(FENCED)
    project.check_caught_up()
    # What it finds when it plans anew it may do: upkeep has no owner.
    assert not written & project.committed(), "it committed what it had made of files that its successor has rewritten"

    give_back(project)
    before = cycles(project)
    project.feed.advance(20)
    assert project.run().epochs()
    project.check_caught_up()
    done = {kind for cycle, kind in cycles(project).items() if cycle not in before}
    assert done == {"settle", "compact"}, "the next run"
