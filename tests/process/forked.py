"""`icefront …` as a process of its own, forked from one that has imported all of it: a fifth of what a short run costs is imports.

    us ─▶ a server that has imported Icefront and PySpark, and done nothing else ─ fork ─▶ icefront … in a session of its own

What is forked is killed, paused and woken like any process, and starts a JVM and workers of its own.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

from icefront import cli
from icefront.proof import failpoints
from icefront.proof.harness import PROGRAM, Process, executed


def forked(command: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> Process:
    """Begin a process the way that `executed` does. Another program, or one that finds other modules, imports for itself."""
    program, arguments = tuple(command[: len(PROGRAM)]), command[len(PROGRAM) :]
    if program != PROGRAM or environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
        return executed(command, folder, environment, out, err)
    return Forked(arguments, folder, dict(environment), out, err)


class Forked:
    """A process, as far as `subprocess.Popen` is asked for one by a driver."""

    def __init__(self, *what: object) -> None:
        self._process = _server().Process(target=_enter, args=what, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("icefront", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.imported"])
    return context


def _enter(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    """Be that process from now on."""
    os.setsid()
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    failpoints.arm()
    sys.argv = ["icefront", *arguments]
    try:
        cli.main()
    finally:
        # As every Python does at its end; what is forked here ends without.
        threading._shutdown()  # type: ignore[attr-defined]  # a name of Python's own
        atexit._run_exitfuncs()
