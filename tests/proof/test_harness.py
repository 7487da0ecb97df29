"""What the harness keeps on a machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from icefront.proof import harness


def test_classes_are_made_once_and_those_that_nobody_has_asked_for_in_a_month_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others, forgotten = (tmp_path / f"classes-{name}.jsa" for name in ("ours", "others", "forgotten"))
    made: list[Path] = []

    def train(_folder: Path, archive: Path) -> None:
        made.append(archive)
        archive.touch()

    monkeypatch.setattr(harness, "_archive", lambda: ours)
    monkeypatch.setattr(harness, "_train", train)
    for path, days in ((others, 29), (forgotten, 31)):
        path.touch()
        os.utime(path, times=(time.time(), time.time() - days * 86400))
    for _ in range(2):
        assert harness.class_archive.__wrapped__() == ours
    assert len(made) == 1
    assert {*tmp_path.glob("*.jsa")} == {ours, others}
    os.utime(ours, (0, 0))
    harness.class_archive.__wrapped__()
    assert ours.exists(), "it is asked for now"
