"""Kill the servers of a test run when the run is gone, however it went: even SIGKILL closes a pipe.

    test run ──pipe──▶ tether: remembers process groups; end of file = the run has died = kill them all

A process of its own and not PR_SET_PDEATHSIG, because that fires when the *thread* that started the server ends, does not reach
grandchildren (Spark's executors), and exists on Linux only.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None


def hold(group: int) -> None:
    """From now on this process group dies with us."""
    _tell(f"+{group}")


def release(group: int) -> None:
    """The group is gone already; its number may soon be somebody else's."""
    _tell(f"-{group}")


def _tell(line: str) -> None:
    global _process  # noqa: PLW0603  one tether per run is the point
    with _lock:
        if _process is None or _process.poll() is not None:
            # A session of its own: Ctrl-C in the terminal must not take the tether before the servers.
            _process = subprocess.Popen(
                [sys.executable, "-S", __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(_process.__exit__, None, None, None)
        assert _process.stdin is not None
        _process.stdin.write(line + "\n")
        _process.stdin.flush()


def main() -> None:
    held: set[int] = set()
    for line in sys.stdin:
        (held.add if line[0] == "+" else held.discard)(int(line[1:]))
    for group in held:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
