"""A forked command is the same command: its output, its exit code, its environment, its end by a signal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from icefront.core.errors import ConfigError
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.harness import PROGRAM, Begin, Driver, Project, executed, wait_until
from icefront.proof.sessions import look
from icefront.version import __version__
from tests.process import lent
from tests.process.forked import Forked, forked

pytestmark = pytest.mark.process


@pytest.mark.parametrize("begin", [executed, forked])
@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--version"], 0, f"icefront {__version__}\n", ""),
        (["check", "nowhere.yaml"], 2, "", "nowhere.yaml"),
        (["init", "shop"], 0, "shop", ""),
    ],
)
def test_what_it_says_and_how_it_ends(tmp_path: Path, begin: Begin, arguments: list[str], code: int, out: str, err: str) -> None:
    with Driver([*PROGRAM, *arguments], tmp_path, os.environ, begin) as driver:
        assert driver.wait() == code
        assert out in driver.stdout
        assert err in driver.stderr
        assert isinstance(driver._process, Forked) == (begin is forked)


def test_failpoints_are_those_of_its_own_environment(tmp_path: Path) -> None:
    with Driver([*PROGRAM, "init", "shop"], tmp_path, {**os.environ, ENVIRONMENT: "nowhere=kill"}, forked) as driver:
        assert driver.wait() == ConfigError.exit_code
        assert "there is no failpoint" in driver.stderr


def test_it_has_a_session_of_its_own_and_ends_by_signals(tmp_path: Path) -> None:
    with Driver([*PROGRAM, "--version"], tmp_path, os.environ, forked) as first:
        first.wait()
    with Driver([*PROGRAM, "demo"], tmp_path, os.environ, forked) as driver:
        wait_until(lambda: (found := look(driver.pid)) is not None and found.session == driver.pid)
        driver.pause()
        assert driver.is_stopped
        driver.kill()
        assert driver.code == -signal.SIGKILL


def test_another_program_or_other_modules_are_executed(tmp_path: Path) -> None:
    for command, environment in (
        ([PROGRAM[0], "-m", "this"], os.environ),
        ([*PROGRAM, "--version"], {**os.environ, "PYTHONPATH": str(tmp_path)}),
    ):
        with Driver(command, tmp_path, environment, forked) as driver:
            assert driver.wait() == 0
            assert not isinstance(driver._process, Forked)


@pytest.mark.parametrize("begin", [executed, forked])
def test_a_program_of_one_line(tmp_path: Path, begin: Begin) -> None:
    code = "import sys; print(__name__, sys.argv); sys.exit(3)"
    with Driver([PROGRAM[0], "-c", code, "a", "-b"], tmp_path, os.environ, begin) as driver:
        assert driver.wait() == 3
        assert driver.stdout == "__main__ ['-c', 'a', '-b']\n"
        assert isinstance(driver._process, Forked) == (begin is forked)


@pytest.mark.parametrize(("begin", "parent"), [(executed, "java"), (forked, "icefront")])
def test_who_started_the_parent_of_its_workers(tmp_path: Path, begin: Begin, parent: str) -> None:
    project = Project(tmp_path, seed=1, begin=begin)
    project.feed.scan(20)
    with project.start("write.after=pause") as driver:
        driver.wait_until_stopped()
        (worker,) = driver.workers()
        waits = look(worker)  # for its next task
        assert waits is not None
        daemon = look(waits.parent)
        assert daemon is not None
        assert daemon.parent == {"java": driver.jvm(), "icefront": driver.pid}[parent]
        driver.wake()
        driver.expect(0)
        wait_until(lambda: look(daemon.pid) is None, what="it outlived its run")


@pytest.mark.parametrize("lends", [{}, {lent.ADDRESS: "nowhere"}, {lent.ADDRESS: "lender", "MATRIX_REUSE": "1"}])
def test_where_none_is_lent_there_is_a_python_of_its_own(lends: dict[str, str], tmp_path: Path) -> None:
    """As on an executor, when the driver is gone or has lent its one already, and when workers are struck."""
    lender = socket.socket(socket.AF_UNIX)
    with chdir(tmp_path), lender:
        lender.bind("lender")
        lender.listen()
        command = [sys.executable, "-SE", lent.__file__, "-c", "import pyspark; print(pyspark.__name__)"]
        done = subprocess.run(
            command,
            env={**os.environ, **lends, lent.PYTHON: sys.executable},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout == "pyspark\n"
