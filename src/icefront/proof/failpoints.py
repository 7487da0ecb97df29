"""Failpoints: named places before and after each durable step, where a test may strike.

Off by default and then free: one look at an empty mapping. Armed through the environment, e.g.
``ICEFRONT_FAILPOINTS="publish.before-commit=kill@2"``: at the second passing the process dies.

    kill    SIGKILL to this process        pause   SIGSTOP to this process
    raise   an exception                   delay:S sleep S seconds
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

ENVIRONMENT = "ICEFRONT_FAILPOINTS"


class FailpointError(Exception):
    """Raised by a failpoint armed with `raise`."""


@dataclass(slots=True)
class _Armed:
    action: str
    passing: int
    seen: int = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for part in filter(None, text.split(",")):
        name, _, what = part.partition("=")
        action, _, passing = what.partition("@")
        armed[name.strip()] = _Armed(action.strip(), int(passing or 1))
    return armed


_armed = _parse(os.environ.get(ENVIRONMENT, ""))


def failpoint(name: str) -> None:
    """Pass a named place; does nothing unless a test armed it."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    armed.seen += 1
    if armed.seen == armed.passing:
        _strike(name, armed.action)


def _strike(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "raise":
        raise FailpointError(name)
    elif action.startswith("delay:"):
        time.sleep(float(action.removeprefix("delay:")))
    else:
        raise ValueError(f"failpoint {name}: unknown action {action!r} (kill, pause, raise, delay:S)")
