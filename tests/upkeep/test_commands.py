"""`icefront compact` and `icefront expire` as a user types them, killed on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import KILLED, Driver
from tests.process.matrix import Watched

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def icefront(project: Watched, *arguments: str, failpoints: str = "") -> Driver:
    with Driver([*project.program, *arguments], project.folder, {**os.environ, ENVIRONMENT: failpoints}, project.begin) as driver:
        driver.wait(300)
    return driver


def test_a_table_is_compacted_and_expired_by_hand(tmp_path: Path) -> None:
    project = Watched(tmp_path)
    project.feed.advance(20)
    project.run()

    killed = icefront(project, "compact", project.table, "--all", failpoints="compact.before-commit=kill")
    assert killed.code == KILLED
    compacted = icefront(project, "compact", project.table, "--all", "--sort", "id", "--max-bytes", "1GiB")
    assert compacted.code == 0, compacted.stderr
    assert "files became 1" in compacted.stdout
    project.check_caught_up()

    killed = icefront(project, "expire", project.table, "--keep", "1ms", failpoints="expire.before-delete=kill")
    assert killed.code == KILLED
    expired = icefront(project, "expire", project.table, "--keep", "1ms", "--at-least", "2", "--orphans", "off", "--json")
    assert expired.code == 0, expired.stderr
    assert json.loads(expired.stdout)["snapshots"] == 0, "the one that was killed took them out"
    project.check_caught_up()
