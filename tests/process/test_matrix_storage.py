"""What a run keeps its things in fails it: a full disk, a state store that is lost, damaged or old, a clock that goes back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from icefront.proof.harness import KILLED
from tests.process.matrix import HOOKED, Watched

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(600)]
STOPPED = 5
UNREACHABLE = 3
MIB = 1024 * 1024


# ── disk ───────────────────────────────────────────────────────────────────────────────────
@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of four megabytes, of its own."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no room at all, for a while."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    try:
        yield
    finally:
        filler.unlink()


def test_a_full_disk_stops_the_run_and_with_room_again_the_next_one_goes_on(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with small_disk(tmp_path / ".icefront"):
        project = Watched(tmp_path)
        project.run()
        for failpoint in ("write.before", "stage.before", "publish.before-commit", "note.before"):
            with subtests.test(failpoint=failpoint):
                project.feed.advance(20)
                with project.start(f"{failpoint}=pause") as driver:
                    driver.wait_until_stopped()
                    with filled(project.catalog):
                        driver.wake()
                        assert driver.wait() in {UNREACHABLE, STOPPED}, driver.stderr
                    assert "unexpected" not in driver.stderr
                    assert "full" in driver.stderr or "No space left" in driver.stderr
                project.check()
        project.run()
        project.check_caught_up()


# ── state ──────────────────────────────────────────────────────────────────────────────────
def test_a_state_store_that_is_lost_damaged_or_old_costs_nothing_but_work(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each run leaves a staged epoch behind; what is done to its note must not matter to the next one."""
    project = Watched(tmp_path)

    def delete() -> None:
        for path in files():
            path.unlink()

    def damage() -> None:
        for path in files():
            path.write_bytes(b"\x00garbage" * (path.stat().st_size // 8))

    def restore() -> None:
        delete()
        for path in (tmp_path / "older").iterdir():
            shutil.copy(path, project.state.parent)

    def files() -> list[Path]:
        return list(project.state.parent.glob("state.db*"))

    project.run("stage.after=kill", code=KILLED)
    (tmp_path / "older").mkdir()
    for path in files():
        shutil.copy(path, tmp_path / "older")
    for spoil in (delete, damage, restore):
        with subtests.test(spoil.__name__):
            spoil()
            project.feed.advance(20)
            project.run("stage.after=kill@2", code=KILLED)
            project.check()
    project.run()
    project.check_caught_up()


# ── time ───────────────────────────────────────────────────────────────────────────────────
def test_a_clock_that_goes_back_an_hour_changes_nothing(tmp_path: Path) -> None:
    project = Watched(tmp_path)
    project.run("stage.after=kill@2", code=KILLED)
    project.feed.advance(20)
    project.run(environment={**HOOKED, "MATRIX_CLOCK": "-3600"})
    project.check_caught_up()
    project.feed.advance(20)
    project.run()
    project.check_caught_up()
