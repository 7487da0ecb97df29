"""What comes in: a schema that changes between two files of one epoch, a closed file that is reported twice."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from icefront.core.errors import StagedMismatch
from icefront.core.files import ClosedFile, FileKind
from icefront.core.ports import Report
from icefront.proof.checker import staged_notes
from icefront.proof.harness import KILLED, PATIENCE, STOPPED
from icefront.spark.job import _collect
from tests.process.matrix import SEEDS, Strike, Watched


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_schema_that_changes_between_two_files_of_one_epoch(tmp_path: Path, seed: int) -> None:
    """Killed between the change of the schema and the data, too: the next run finds the column there."""
    project = Watched(tmp_path, seed=seed)
    project.run()
    for code in (KILLED, 0):
        project.feed.advance(20, resolve=False)
        project.feed.alter("orders")
        project.feed.advance(20)
        epochs = project.run("schema.after=kill" if code else "", code=code).epochs()
        project.check()
    assert len(epochs) == 2
    project.check_caught_up()
    table = project.load()
    assert table is not None
    assert {"extra_0", "extra_1"} <= set(table.schema().column_names)


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_closed_file_that_a_worker_reports_twice_is_staged_and_published_once(tmp_path: Path, seed: int) -> None:
    """Every file of the first run; the second one publishes what is staged, and then meets a report that contradicts another."""
    project = Watched(tmp_path, seed=seed)
    twice = Strike("twice", tmp_path)
    project.run(f"publish.before=delay:{PATIENCE:.0f},stage.after=kill@2", code=KILLED, environment=twice.environment)
    assert twice.worker(), "it struck"
    noted = [file for note in staged_notes(project.state) or () for file in note["files"]]
    assert len(noted) == len(set(noted)) == len(project.files()) > 2
    frontier = project.feed.resolved[-1].next()
    project.feed.advance(20)
    run = project.run(code=STOPPED, environment=Strike("unlike", tmp_path).environment)
    assert "was reported twice" in run.stderr
    assert [epoch["recovered"] for epoch in run.epochs()] == [True, True]
    project.check()
    assert project.mark().frontier == frontier


FILE = ClosedFile(FileKind.DATA, "lake.t.orders", "e", 0, "a", "file:///t/1.parquet", 100, 10, 0, 0)


def reported(*files: ClosedFile) -> list[tuple[str, bytes]]:
    told = [("file", file) for file in files]
    return [(kind, pickle.dumps(value)) for kind, value in (*told, ("report", Report(0, {})))]


def test_a_closed_file_that_is_reported_twice_counts_once() -> None:
    assert _collect(reported(FILE, FILE), 1).files == (FILE,)


@pytest.mark.parametrize("otherwise", [{"size": 101}, {"records": 11}, {"attempt": "b"}, {"spec_id": 1}])
def test_a_closed_file_that_is_reported_twice_unlike_stops(otherwise: dict[str, object]) -> None:
    with pytest.raises(StagedMismatch, match="was reported twice"):
        _collect(reported(FILE, replace(FILE, **otherwise)), 1)  # type: ignore[arg-type]
