"""What is wrong with this machine or with a server, and not with a table: it ends a proof without a verdict."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from requests import ConnectionError as NoConnection
from requests import Session, Timeout
from requests.adapters import HTTPAdapter

from icefront.core.errors import ConfigError, ConnectionFailed

ROOM = 10**9
"""Bytes that a proof needs to begin; most of them are the logs and tables of its largest scene, and what Spark spills."""
MEMORY = 4 * 10**9
"""Bytes of memory that must be free to begin: five runs at once, beside the session that reads."""
_FULL = 64 * 10**6
"""With less than this left on a disk, a process that failed has failed for that."""
ANSWER = 30.0
"""Seconds after which a catalog that keeps silent is given up."""
_SPENT = {
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.EAGAIN: "processes or memory",
    errno.ENOMEM: "memory",
}
ONE = pa.table({"id": [1]})
"""The rows of a small table that something is tried on."""
_FULL_DISK = ("No space left on device", "disk is full", "SQLITE_FULL", "Disk quota exceeded")


def trouble_of(error: BaseException) -> ConnectionFailed | None:
    """Say what an error tells about the machine or the way to the catalog; None when it may be the table's."""
    for cause in _chain(error):
        if (isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}) or _says_full(str(cause)):
            return _no_room(str(cause))
        if isinstance(cause, OSError) and cause.errno in _SPENT:
            return _spent(_SPENT[cause.errno], _short(cause))
        if isinstance(cause, MemoryError):
            return _spent("memory", _short(cause))
        if isinstance(cause, NoConnection | Timeout):
            return ConnectionFailed(
                f"the catalog does not answer any more: {_short(cause)}", "look into its log, then begin again"
            )
    return None


class _Adapter(HTTPAdapter):
    """Waits for answers, but not for ever."""

    def send(self, *given: Any, **how: Any) -> Any:
        return super().send(*given, **{**how, "timeout": ANSWER})


class _Rest(RestCatalog):
    """A REST catalog whose silence ends in an error: PyIceberg's own would wait for it without end."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())
        return session


def load(name: str, **properties: str) -> Catalog:
    """Load a catalog of any type."""
    return _Rest(name, **properties) if properties.get("type") == "rest" else load_catalog(name, **properties)


def reach(uri: str) -> None:
    """Ask a REST catalog for its namespaces; raises ConnectionFailed when it does not answer, or not to us."""
    try:
        load("prove", type="rest", uri=uri).list_namespaces()
    except Exception as error:
        fact = f"the catalog at {uri} cannot be used: {_short(error)}"
        raise ConnectionFailed(fact, "start it, or name another one; it must need no token and no warehouse") from error


def try_out(uri: str) -> None:
    """Make a small table in a REST catalog and remove it again: its files have to lie here, for that is where they are planted and lost.

    Raises ConfigError when they lie elsewhere, and ConnectionFailed when the catalog does not let us try.
    """
    name = f"prove_{uuid4().hex[:12]}"
    try:
        elsewhere = _elsewhere(load("prove", type="rest", uri=uri), name)
    except Exception as error:
        fact = f"no table could be made, written and removed in namespace {name} of the catalog at {uri}: {_short(error)}"
        raise ConnectionFailed(
            fact,
            "see what its log says, and whether its warehouse is a folder that is yours to write to; or name another catalog",
        ) from error
    if elsewhere:
        raise ConfigError(
            f"a table's files have to lie in a folder of this machine, and the catalog at {uri} has them at {elsewhere}",
            "name a catalog whose warehouse is a folder of this machine, under the same path there as here",
        )


def _elsewhere(catalog: Catalog, name: str) -> str:
    """Say where a new table's files lie; nothing when they lie here. What is made for that is removed, however it ends."""
    with ExitStack() as stack:
        stack.callback(_unless_gone, catalog.drop_namespace, name)
        catalog.create_namespace(name)
        stack.callback(_unless_gone, catalog.purge_table, f"{name}.one")
        table = catalog.create_table(f"{name}.one", ONE.schema)
        # Before anything is written: a storage that is not here may keep us waiting.
        for place in (table.metadata_location, table.location_provider().new_data_location("one.parquet")):
            if not is_local(place):
                return place
        if not Path(urlsplit(table.metadata_location).path).is_file():
            return f"{table.metadata_location}, where there is no file here"
        table.append(ONE)
        files = [table.metadata_location, *(task.file.file_path for task in table.scan().plan_files())]
        return next((f"{file}, where there is no file here" for file in files if not Path(urlsplit(file).path).is_file()), "")


def _unless_gone(drop: Callable[[str], None], name: str) -> None:
    with suppress(NoSuchTableError, NoSuchNamespaceError):
        drop(name)


def is_local(path: str) -> bool:
    """Whether a path is one of this machine's file system, there or not."""
    return urlsplit(path).scheme in {"", "file"}


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


def killed_for_memory() -> int:
    """Count the processes that this system has killed so far for want of memory; 0 where it does not tell."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))


def check_memory() -> None:
    """Raise ConnectionFailed when this machine has no memory for a proof."""
    told = Path("/proc/meminfo").read_text()
    free = 1024 * int(next(line.split()[1] for line in told.splitlines() if line.startswith("MemAvailable:")))
    if free < MEMORY:
        raise _spent("memory", f"{free / 10**9:,.1f} GB are free, and a proof needs {MEMORY / 10**9:,.1f} GB")


def look_around(scene: Path, uri: str | None, killed_before: int) -> None:
    """Raise ConnectionFailed when something here explains why runs on a scene failed: no room on the disk, no memory, or no catalog."""
    for log in scene.glob("driver-*/stderr"):
        if full := [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if _says_full(line)]:
            raise _no_room(full[-1])
    check_room(scene, _FULL)
    if (killed := killed_for_memory() - killed_before) > 0:
        raise _spent("memory", f"the system has killed {killed} processes for want of it since the proof began")
    if uri is not None:
        reach(uri)


def _no_room(what: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"a disk is full: {' '.join(what.split())[:300]}", "make room, or set TMPDIR to a folder on another disk"
    )


def _spent(what: str, told: str) -> ConnectionFailed:
    return ConnectionFailed(f"this machine is out of {what}: {told}", "end other programs, or raise its limits, then begin again")


def _says_full(text: str) -> bool:
    return any(sign in text for sign in _FULL_DISK)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Walk from an error to what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
