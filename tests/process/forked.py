"""`icefront …` as a process of its own, forked from one that has imported all of it: two fifths of what a short run costs is imports.

    us ─▶ a server that has imported Icefront and PySpark, and done nothing else
           └─ fork ─▶ icefront … in a session of its own ─▶ its JVM ─▶ `lent` in the place of Python: its streams go to ─┐
                      └─ fork ─▶ waits; becomes the parent of Spark's workers ◀─────────────────────────────────────────┘

What is forked is killed, paused and woken like any process, and has a JVM and workers of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from shlex import quote

from pyspark import daemon

from icefront.proof import failpoints
from icefront.proof.harness import PROGRAM, Process, executed
from icefront.spark.daemon import keep_caches
from tests.process import lent


def forked(command: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> Process:
    """Begin a process the way that `executed` does. Another program, or one that finds other modules, imports for itself."""
    if environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
        match tuple(command[:3]):
            case (sys.executable, "-c", code):
                return Forked(code, ["-c", *command[3:]], folder, dict(environment), out, err)
            case program if program == PROGRAM:
                main = "from icefront import cli; cli.main()"
                return Forked(main, ["icefront", *command[3:]], folder, dict(environment), out, err)
    return executed(command, folder, environment, out, err)


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


def _enter(code: str, argv: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    """Be that process from now on."""
    os.setsid()
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    _wear(environment)
    sys.argv = [*argv]
    with tempfile.TemporaryDirectory(prefix="lent-") as place:
        _lend(Path(place))
        try:
            exec(code, {"__name__": "__main__"})  # as Python does with `-c`
        finally:
            # As every Python does at its end; what is forked here ends without.
            threading._shutdown()  # type: ignore[attr-defined]  # a name of Python's own
            atexit._run_exitfuncs()


def _wear(environment: Mapping[str, str]) -> None:
    """Have this environment, its time zone and its failpoints. What libraries read when they are loaded is the server's."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    failpoints.arm()


# ── the parent of Spark's workers ──────────────────────────────────────────────────────────
def _lend(place: Path) -> None:
    """Fork a process that becomes the parent of Spark's workers when its JVM asks for one; it ends with us if that never asks."""
    python, address = place / "python", place / "socket"
    python.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -SE {quote(lent.__file__)} "$@"\n')
    python.chmod(0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(theirs)
        try:
            _wait(listening, ours)
        except Exception:  # noqa: BLE001 — told, as every Python does that ends so
            traceback.print_exc()
            os._exit(1)
        finally:
            os._exit(0)
    listening.close()
    os.close(ours)
    os.environ |= {"PYSPARK_PYTHON": str(python), lent.ADDRESS: str(address), lent.PYTHON: sys.executable}


def _wait(listening: socket.socket, driver: int) -> None:
    """Serve the first JVM that asks, for as long as it lives; nobody, when the driver ends before."""
    ready, _, _ = select.select([listening.fileno(), driver], [], [])
    if driver in ready:
        return
    line, _ = listening.accept()
    listening.close()  # who comes later must find nobody: there is one of us
    text, streams, _, _ = socket.recv_fds(line, 1 << 20, 3)
    while not text.endswith(b"\n"):
        if not (more := line.recv(1 << 20)):
            return
        text += more
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    _wear(json.loads(text))
    keep_caches()
    daemon.manager()
