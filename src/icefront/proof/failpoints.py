"""Failpoints: named places before and after each durable step, where a test may strike.

Off by default and then free: one look at an empty mapping. Armed through the environment, e.g.
``ICEFRONT_FAILPOINTS="publish.before-commit=kill@2"``: at the second passing the process dies
(``pause@2+4``: at the second it is frozen, and once more at the fourth).

    kill    SIGKILL to this process        pause   SIGSTOP to this process
    raise   an exception                   delay:S sleep S seconds

Whoever comes to the first of them in an armed process is told so in its log: nobody should be hurt unawares.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import structlog

from icefront.core.errors import ConfigError

log = structlog.get_logger(__name__)
ENVIRONMENT = "ICEFRONT_FAILPOINTS"
OF_A_RUN: Mapping[str, str] = {
    "observe.before": "S0: the source is about to be asked what is resolved, also once more where it did not answer",
    "observe.after": "S0: the source said what is resolved",
    "table.before": "a new table is about to be created",
    "table.after": "the table exists, without a mark",
    "claim.before": "the mark was read, the claim is not built yet",
    "claim.before-commit": "the claim is about to be committed",
    "claim.after": "the claim was committed",
    "partitioning.before": "a change of partitioning is about to be committed",
    "partitioning.after": "the partitioning was changed",
    "write.before": "S1: no file of the epoch is written yet",
    "write.after": "S1: every split has reported its files",
    "schema.before": "a change of schema is about to be committed",
    "schema.after": "the schema was changed, nothing is written under it yet",
    "stage.before": "S2: the epoch is not noted yet",
    "stage.after": "S2: the epoch is noted",
    "publish.before": "S3: the commit is not built yet",
    "publish.before-commit": "S3: row delta, summary and mark are about to be committed",
    "publish.after": "S3: the epoch was committed",
    "heartbeat.before": "S3 of an epoch without changes: the commit is not built yet",
    "heartbeat.before-commit": "S3 of an epoch without changes: about to be committed",
    "heartbeat.after": "S3 of an epoch without changes: committed",
    "note.before": "S4: the publication is not noted yet",
    "note.after": "S4: the publication is noted",
    "release.before": "S5: the source is not released yet",
    "release.after": "S5: the source was released",
}
OF_UPKEEP: Mapping[str, str] = {
    "settle.before": "a settle is planned, nothing of it is written",
    "settle.before-commit": "new deletes are written, and are about to be committed",
    "settle.after": "the settle was committed",
    "compact.before": "a compaction is planned, nothing of the next groups is written",
    "compact.before-commit": "new files are written, and are about to be committed",
    "compact.after": "groups of a compaction were committed",
    "expire.before": "no snapshot is gone yet",
    "expire.before-delete": "snapshots are gone, the files that only they had are still there",
    "expire.after": "files that nobody needs were deleted",
}
FAILPOINTS = {**OF_A_RUN, **OF_UPKEEP}
ACTIONS = ("kill", "pause", "raise", "delay:S")


class FailpointError(Exception):
    """Raised by a failpoint armed with `raise`, and by one that nobody knows."""


@dataclass(slots=True)
class _Armed:
    action: str
    passings: frozenset[int]
    passed: Iterator[int] = field(default_factory=lambda: count(1))
    """Counts passings; several threads may pass in one moment."""


def parse(text: str) -> dict[str, _Armed]:
    """Read `name=action@passings,…`; raises ConfigError on a name or an action that does not exist."""
    return dict(_parse_one(part) for part in filter(None, text.split(",")))


def _parse_one(part: str) -> tuple[str, _Armed]:
    name, _, what = (piece.strip() for piece in part.partition("="))
    action, _, passings = what.partition("@")
    if name not in FAILPOINTS:
        raise ConfigError(f'{ENVIRONMENT}: there is no failpoint "{name}"', f"known are {', '.join(FAILPOINTS)}")
    numbers = (passings or "1").split("+")
    if not _is_action(action) or not all(number.isdecimal() for number in numbers):
        raise ConfigError(
            f'{ENVIRONMENT}: {name} is armed with "{what}"', f"write one of {', '.join(ACTIONS)}, with @N if not at once"
        )
    return name, _Armed(action, frozenset(map(int, numbers)))


def _is_action(action: str) -> bool:
    kind, _, seconds = action.partition(":")
    return seconds.replace(".", "", 1).isdecimal() if kind == "delay" else action in ACTIONS


_armed: dict[str, _Armed] = {}
_wrong: ConfigError | None = None
"""What is wrong with what the environment names: then nothing is armed, and nobody passes."""
_passed = count()
"""Counts passings of any of them; of several threads one is the first."""


def arm() -> None:
    """Arm what the environment names, and nothing else. What is wrong with it is told by `check`, and where one is passed."""
    global _armed, _wrong, _passed
    (_armed, _wrong), _passed = _read(os.environ.get(ENVIRONMENT, "")), count()


def _read(text: str) -> tuple[dict[str, _Armed], ConfigError | None]:
    try:
        return parse(text), None
    except ConfigError as error:
        return {}, error  # an import is no place to raise it: nobody would report it as an error of ours


arm()


def check() -> None:
    """Raise ConfigError when the environment names what cannot be armed."""
    if _wrong is not None:
        raise _wrong


def armed() -> Mapping[str, str]:
    """Name what is armed, with its action."""
    return {name: one.action for name, one in _armed.items()}


def failpoint(name: str) -> None:
    """Pass a named place; does nothing unless a test armed it. Raises ConfigError when one was to be armed that cannot be."""
    if not _armed:
        check()
        return
    if name not in FAILPOINTS:
        raise FailpointError(f"{name} is no failpoint that could be armed")
    if next(_passed) == 0:
        log.warning("failpoints are armed: this process will be hurt", **armed())
    one = _armed.get(name)
    if one is not None and next(one.passed) in one.passings:
        _strike(name, one.action)


def _strike(name: str, action: str) -> None:
    match action.partition(":"):
        case "kill", _, _:
            os.kill(os.getpid(), signal.SIGKILL)
        case "pause", _, _:
            # To this very thread: sent to the process, another one might take it, and this one go on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "delay", _, seconds:
            time.sleep(float(seconds))
        case _:
            raise FailpointError(name)
