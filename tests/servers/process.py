"""One server process: started in its own group, tied to the test run, its log kept, stopped, killed or paused by its own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.servers import tether

_GRACE = 10.0
_POLL = 0.03


class DidNotStart(AssertionError):
    """A server ended or kept silent before it was ready; carries the end of its log."""


class Server:
    """The common life of all servers. A subclass says how to `start` and leaves the rest to this class."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        """Ask the server to end, and insist if it does not. A paused one could not hear the question."""
        if self.running:
            self.resume()
            self._signal(signal.SIGTERM)
            try:
                self._reap(_GRACE)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a power cut would: no handler runs, nothing is flushed."""
        self._signal(signal.SIGKILL)
        self._reap(None)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers. Returns when it stands still; the signal alone promises no moment."""
        self._signal(signal.SIGSTOP)
        with suppress(psutil.NoSuchProcess):
            while self.running and psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(_POLL)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def log_tail(self, characters: int = 4000) -> str:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")[-characters:]
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Stop, and give back what was kept for the next start."""
        self.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _launch(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        assert not self.running, f"{self.name} is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        tether.hold(self.pid)

    def _wait_until(self, ready: Callable[[], bool], within: float) -> None:
        deadline = time.monotonic() + within
        while not ready():
            if not self.running:
                raise DidNotStart(f"{self.name} ended before it was ready; the end of {self.log}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise DidNotStart(f"{self.name} was not ready within {within:.0f} s; the end of {self.log}:\n{self.log_tail()}")
            time.sleep(_POLL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group: children that the server started belong to it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _reap(self, timeout: float | None) -> None:
        assert self._process is not None
        self._process.wait(timeout)
        # Children may outlive their server by a moment; they go with it.
        self._signal(signal.SIGKILL)
        tether.release(self.pid)


def reserve_port() -> socket.socket:
    """A free port that stays ours until the socket is closed, also while the server is down.

    The socket is bound but never listens, so no connection reaches it; only a server that sets SO_REUSEPORT can bind beside it.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("0.0.0.0", 0))
    return holder
