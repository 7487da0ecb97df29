"""The last look at the tables of the matrix can go red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icefront.api import Pipeline
from tests.process.by_spark import chosen, differences
from tests.process.matrix import CAUGHT_UP, Watched

pytestmark = [pytest.mark.process, pytest.mark.spark]


def test_a_row_that_the_feed_says_and_no_run_has_seen_is_missing_at_every_snapshot(spark: Any, tmp_path: Path) -> None:
    project = Watched(tmp_path)
    for _ in range(4):
        project.feed.advance(20)
    project.run()
    project.check_caught_up()
    assert not list(differences(spark, project))
    del CAUGHT_UP[project.folder]  # it is spoiled now
    file = min(tmp_path.glob("feed/**/*.ndjson"))
    line = json.loads(file.read_text().splitlines()[0])
    unseen = {**line, "key": [10**6], "after": {**line["after"], "id": 10**6}}
    file.write_text(file.read_text() + json.dumps(unseen) + "\n")
    snapshots = [point.snapshot for point in chosen(project, Pipeline.load(project.file))]
    assert len(snapshots) > 4, "more than readers"
    found = list(differences(spark, project))
    assert len(found) == len(snapshots)
    for snapshot, difference in zip(sorted(map(str, snapshots)), sorted(found), strict=True):
        assert difference.startswith(f"{tmp_path}, snapshot {snapshot}: ")
        assert "'missing': 1," in difference
