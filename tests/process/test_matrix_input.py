"""What comes in: a schema that changes between two files of one epoch, a closed file that is reported twice."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from icefront.core.errors import StagedMismatch
from icefront.core.files import ClosedFile, FileKind
from icefront.core.ports import Report
from icefront.proof.harness import KILLED
from icefront.spark.job import _collect
from tests.process.matrix import Watched


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_schema_that_changes_between_two_files_of_one_epoch(tmp_path: Path) -> None:
    """Killed between the change of the schema and the data, too: the next run finds the column there."""
    project = Watched(tmp_path)
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
