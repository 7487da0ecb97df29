"""Claims about every server, shown with the smallest one: a shell that sleeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.servers.process import DidNotStart, Server

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]


class Sleeper(Server):
    """A shell with a child of its own, as Spark's workers have."""

    def __init__(self, folder: Path, script: str = "sleep 600 & echo up; wait") -> None:
        super().__init__("sleeper", folder)
        self.script = script

    def start(self) -> Self:
        self._launch(["/bin/sh", "-c", self.script], {})
        self._wait_until(lambda: "up" in self.log_tail(), within=60)
        return self


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_the_end_of_a_server_is_the_end_of_its_children(tmp_path, ending):
    server = Sleeper(tmp_path).start()
    [child] = psutil.Process(server.pid).children()
    getattr(server, ending)()
    assert not server.running
    assert gone_within(child.pid, 10)


def test_a_paused_server_can_be_stopped(tmp_path):
    with Sleeper(tmp_path) as server:
        server.pause()
        assert psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
    assert not server.running


def test_a_server_that_ends_at_once_shows_its_log(tmp_path):
    with pytest.raises(DidNotStart, match="no such option"):
        Sleeper(tmp_path, "echo no such option; exit 3").start()


def test_no_server_outlives_a_test_run_that_was_killed(tmp_path):
    run = textwrap.dedent(f"""
        import pathlib, time
        from tests.servers.test_process import Sleeper
        print(Sleeper(pathlib.Path({str(tmp_path)!r})).start().pid, flush=True)
        time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", run], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    [child] = psutil.Process(server).children()
    assert alive(server)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone_within(server, 10)
    assert gone_within(child.pid, 10)
