"""What is wrong with this machine or with a server, and not with a table: it ends a proof without a verdict."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from pyiceberg.catalog import load_catalog
from requests import ConnectionError as NoConnection
from requests import Timeout

from icefront.core.errors import ConfigError, ConnectionFailed

ROOM = 10**9
"""Bytes that a proof needs to begin; most of them are the logs and tables of its largest scene, and what Spark spills."""
_FULL = 64 * 10**6
"""With less than this left on a disk, a process that failed has failed for that."""
_FULL_DISK = ("No space left on device", "disk is full", "SQLITE_FULL", "Disk quota exceeded")


def trouble_of(error: BaseException) -> ConnectionFailed | None:
    """Say what an error tells about the machine or the way to the catalog; None when it may be the table's."""
    for cause in _chain(error):
        if (isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}) or _says_full(str(cause)):
            return _no_room(str(cause))
        if isinstance(cause, NoConnection | Timeout):
            return ConnectionFailed(
                f"the catalog does not answer any more: {_short(cause)}", "look into its log, then begin again"
            )
    return None


def reach(uri: str) -> None:
    """Ask a REST catalog for its namespaces; raises ConnectionFailed when it does not answer, or not to us."""
    try:
        load_catalog("prove", type="rest", uri=uri).list_namespaces()
    except Exception as error:
        fact = f"the catalog at {uri} cannot be used: {_short(error)}"
        raise ConnectionFailed(fact, "start it, or name another one; it must need no token and no warehouse") from error


def check_room(folder: Path, wanted: int = ROOM) -> None:
    """Raise ConnectionFailed when a folder's disk has no room for a proof."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise _no_room(f"{folder} has {free / 10**6:,.0f} MB left, and a proof needs {wanted / 10**6:,.0f} MB")


def check_system() -> None:
    """Raise ConfigError on a system that does not list its processes where we look for those that are to be killed."""
    if not Path("/proc/self/stat").exists():
        raise ConfigError(
            "this system has no /proc, where the processes of a run are found", "prove it on Linux, or in a container"
        )


def look_around(scene: Path, uri: str | None) -> None:
    """Raise ConnectionFailed when something here explains why runs on a scene failed: no room on the disk, or no catalog."""
    for log in scene.glob("driver-*/stderr"):
        if full := [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if _says_full(line)]:
            raise _no_room(full[-1])
    check_room(scene, _FULL)
    if uri is not None:
        reach(uri)


def _no_room(what: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"a disk is full: {' '.join(what.split())[:300]}", "make room, or set TMPDIR to a folder on another disk"
    )


def _says_full(text: str) -> bool:
    return any(sign in text for sign in _FULL_DISK)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
