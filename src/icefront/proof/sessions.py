"""Process sessions: list them, kill them, and let them die with who started them, however that one ends.

    us ──pipe──▶ watchdog: end of file = we are gone = kill the session

A process of its own and not PR_SET_PDEATHSIG: that one fires when the *thread* that started the child ends, and does not reach
grandchildren. Run as a plain script, it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the system's process list."""

    pid: int
    parent: int
    session: int
    state: str
    name: str

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"


def processes() -> Iterator[Process]:
    """List what runs on this machine."""
    return filter(None, (look(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")))


def look(pid: int) -> Process | None:
    """Look at one process; None when there is none of this id."""
    return _read(Path(f"/proc/{pid}/stat"), pid)


def stands_still(pid: int) -> bool:
    """Say whether every thread of a process is stopped: one may still finish what it asked of the system when the first is."""
    try:
        threads = [_read(folder / "stat", pid) for folder in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return all(thread is not None and thread.state == "T" for thread in threads)


def _read(file: Path, pid: int) -> Process | None:
    try:
        head, _, rest = file.read_text().rpartition(")")
    except OSError:
        return None
    state, parent, _, session, *_ = rest.split()
    return Process(pid, int(parent), int(session), state, head.partition("(")[2])


def processor_time(pid: int) -> int:
    """Return how long a process has used a processor, in the system's ticks; 0 when there is none of this id."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(rest[11]) + int(rest[12])


def kill_session(leader: int) -> None:
    """Kill all that a session leader started, itself too: also what is frozen, or has left its group."""
    while found := [p for p in processes() if p.session == leader and p.lives]:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.01)


def watch(leader: int) -> subprocess.Popen[bytes]:
    """Start a watchdog that kills the session when we are gone."""
    command = [sys.executable, "-S", "-E", __file__, str(leader)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


if __name__ == "__main__":
    sys.stdin.read()
    kill_session(int(sys.argv[1]))
