"""What a run keeps its things in fails it: a full disk, a state store that is lost, damaged or old, a clock that goes back."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table

from icefront.proof.harness import KILLED, STOPPED, Driver
from tests.process import full_disk
from tests.process.matrix import HOOKED, SEEDS, Watched

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ROOT = Path(__file__).parent.parent.parent
PATHS = list(filter(None, [os.environ.get("PYTHONPATH")]))


# ── disk ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_stops_the_run_and_with_room_again_the_next_one_goes_on(tmp_path: Path, seed: int) -> None:
    if reason := full_disk.why_not(tmp_path / "tried"):
        pytest.skip(f"no small disk can be mounted here, neither by this user nor in a user namespace: {reason}")
    command = [*full_disk.namespace(), sys.executable, "-m", full_disk.__name__, str(tmp_path / "project"), str(seed)]
    # In a session of its own, like every run: what it starts ends with it, and it with us.
    with Driver(command, tmp_path, {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *PATHS])}) as driver:
        driver.expect(0, timeout=500)
        assert [line.partition(":")[0] for line in driver.stdout.splitlines()] == list(full_disk.PLACES)


# ── state ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("seed", SEEDS)
def test_a_state_store_that_is_lost_damaged_or_old_costs_nothing_but_work(
    tmp_path: Path, seed: int, subtests: pytest.Subtests
) -> None:
    """Each run leaves a staged epoch behind; what is done to its note must not matter to the next one.

    The older copy has a note of an epoch that was published since.
    """
    project = Watched(tmp_path, seed=seed)
    aside = project.state.with_name("state.db.corrupt-1")

    def delete() -> None:
        for path in state_files(project):
            path.unlink()

    def damage() -> None:
        for path in state_files(project):
            path.write_bytes(b"\x00garbage" * (path.stat().st_size // 8))

    def restore() -> None:
        delete()  # with what was put aside
        for path in (tmp_path / "older").iterdir():
            shutil.copy(path, project.state.parent)
        assert project.noted() == [old]
        assert project.mark().frontier >= old.epoch.upper

    project.run("stage.after=kill", code=KILLED)
    (old,) = project.noted()
    (tmp_path / "older").mkdir()
    for path in state_files(project):
        shutil.copy(path, tmp_path / "older")
    project.run()
    project.feed.advance(20)
    project.run("stage.after=kill", code=KILLED)
    known = {delete: 1, damage: 1, restore: 2}
    for spoil in (delete, damage, restore):
        with subtests.test(spoil.__name__):
            spoil()
            project.feed.advance(20)
            project.run("stage.after=kill@2", code=KILLED)
            project.check()
            assert runs(project) == known[spoil], "the run went on with another state file"
            assert aside.exists() == (spoil is damage)
    project.run()
    project.check_caught_up()
    table = project.load()
    assert table is not None
    assert added(table, {file.path for file in old.files}) == {file.path: 1 for file in old.files}


def state_files(project: Watched) -> Sequence[Path]:
    return list(project.state.parent.glob("state.db*"))


def runs(project: Watched) -> int:
    """How many runs the state file knows of."""
    with closing(sqlite3.connect(project.state)) as notes:
        (count,) = notes.execute("SELECT count(*) FROM runs").fetchone()
    return int(count)


def added(table: Table, paths: Collection[str]) -> Mapping[str, int]:
    """How many snapshots added these files."""
    added_by = [(manifest, s) for s in table.metadata.snapshots for manifest in s.manifests(table.io)]
    own = [manifest for manifest, snapshot in added_by if manifest.added_snapshot_id == snapshot.snapshot_id]
    entries = [entry for manifest in own for entry in manifest.fetch_manifest_entry(table.io)]
    found = (entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.ADDED)
    return Counter(path for path in found if path in paths)


# ── time ───────────────────────────────────────────────────────────────────────────────────
def commit_ahead(project: Watched, seconds: int) -> None:
    """Let the table's last commit be one that a machine made whose clock is ahead of ours."""
    table = project.load()
    assert table is not None
    before = Path(urlsplit(table.metadata_location).path)
    metadata = json.loads(before.read_text())
    for entry in (metadata["snapshots"][-1], metadata["snapshot-log"][-1]):
        entry["timestamp-ms"] += 1000 * seconds
    metadata["last-updated-ms"] += 1000 * seconds
    ahead = before.with_name(f"ahead-{seconds}-{before.name}")
    ahead.write_text(json.dumps(metadata))
    point_at(project, ahead)


def point_at(project: Watched, metadata: Path) -> None:
    with closing(sqlite3.connect(project.catalog / "catalog.db")) as catalog, catalog:
        (changed,) = {catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [metadata.as_uri()]).rowcount}
    assert changed == 1


AT_ONCE = {"settle": {"files": 1}, "compact": "off", "expire": {"keep": "1ms", "at_least": 1, "every": "1ms"}}
"""Upkeep that has always something to do, if its clock does not say otherwise."""


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_are_behind_change_nothing_or_stop_the_run_by_name(tmp_path: Path, seed: int) -> None:
    """Iceberg takes no commit that is more than a minute older than the last one, by the JVM's clock; ours decides nothing.

    The last run's own clock is an hour behind, and goes back by another one between two of its epochs; its upkeep goes by that too.
    """
    project = Watched(tmp_path, seed=seed)
    with project.start("publish.before-commit=pause@2") as driver:
        driver.wait_until_stopped()
        in_time = Path(urlsplit(project.metadata()).path)
        commit_ahead(project, 3600)
        ahead = project.metadata()
        driver.wake()
        said = driver.expect(STOPPED).stderr
    times = r"the last commit to lake\.t\.orders is of \S+ \S+, the clock here says \S+ \S+: 0:5\d:\d\d behind\n +→ set the clock"
    assert re.search(times, said)
    assert "attempts" not in said
    assert project.metadata() == ahead, "a run that was stopped changed the table"
    point_at(project, in_time)
    commit_ahead(project, 30)
    project.feed.advance(20)
    project.configure(upkeep=AT_ONCE)
    back = tmp_path / "back"
    behind = {**HOOKED, "MATRIX_CLOCK": "-3600", "MATRIX_CLOCK_AGAIN": str(back)}
    with project.start("publish.before=pause@2", environment=behind) as driver:
        driver.wait_until_stopped()
        back.touch()
        driver.wake()
        driver.expect(0)
    project.check_caught_up()
    with closing(sqlite3.connect(project.state)) as notes:
        (before, _), *_, (started, ended) = notes.execute("SELECT started, ended FROM runs ORDER BY rowid")
        done = {kind for (kind,) in notes.execute("SELECT kind FROM cycles WHERE outcome = 'done'")}
    assert started < before - 3000, "the driver's clock was not behind"
    assert ended < started - 3000, "the driver's clock did not go back while it ran"
    assert done == {"settle"}, "to a clock that is behind, no snapshot is old"
