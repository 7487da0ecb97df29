"""Runs on a disk that gets full: `python -m tests.process.full_disk FOLDER SEED`, in a mount namespace of its own.

There a file system of four megabytes can be mounted, by any user where user namespaces are allowed; nobody else sees it, and it
goes away with this process, however that ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from icefront.proof.harness import STOPPED, UNREACHABLE
from tests.process.matrix import Watched

PLACES = {"write.before": STOPPED, "stage.before": UNREACHABLE, "publish.before-commit": UNREACHABLE, "note.before": UNREACHABLE}
"""Where a run stands while its disk gets full, and how it ends: a job that fails for it in Spark's workers stops the run."""
MIB = 1024 * 1024
FULL = re.compile(r"^error: .*(?:No space left on device|\bdisk\b.* is full)", re.MULTILINE)
"""How a run ends that says so; its log is full of other words."""


def namespace() -> Sequence[str]:
    """The command that runs another one where it may mount."""
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def why_not(folder: Path) -> str:
    """Say why no small disk can be had on this machine; nothing when one can."""
    folder.mkdir()
    try:
        done = subprocess.run([*namespace(), *mount(folder)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def mount(folder: Path) -> Sequence[str]:
    """The command that mounts a small disk there."""
    return ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]


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


def main(folder: Path, seed: int) -> None:
    """Fill the disk while a run stands at each of the places; each run goes on from where the one before it was stopped."""
    project = Watched(folder, seed=seed)
    project.catalog.mkdir(exist_ok=True)
    subprocess.run(mount(project.catalog), check=True)
    for place, ends in PLACES.items():
        project.feed.advance(20)
        with project.start(f"{place}=pause") as driver:
            driver.wait_until_stopped()
            with filled(project.catalog):
                driver.wake()
                code = driver.wait()
        assert code == ends, f"{place}: it ended with {code}:\n{driver.stderr}"
        assert "unexpected" not in driver.stderr, f"{place}:\n{driver.stderr}"
        assert FULL.search(driver.stderr), f"{place}:\n{driver.stderr}"
        project.check()
        print(f"{place}: exit {code}", flush=True)  # noqa: T201 — read by the test
    project.run()
    project.check_caught_up()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
