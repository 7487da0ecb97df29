"""A SQLite file that several processes share, that survives being killed, and that may be lost.

Opening it checks it, migrates it, or moves it aside when it is corrupt and begins a new one: the targets are
the truth, this file only makes restarts cheaper and the past visible.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import structlog

from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError, NewerFormat

log = structlog.get_logger(__name__)

BUSY_SECONDS = 10.0
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

T = TypeVar("T")
Migration = Sequence[str]
"""Statements that bring the file from one format to the next."""


class Database:
    """One connection, shared by the threads of this process."""

    def __init__(self, path: Path, migrations: Sequence[Migration]) -> None:
        self.path = path
        self._migrations = migrations
        self._lock = threading.RLock()
        self._connection, self._inode = self._open()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` as one durable step: all of it is on disk afterwards, or nothing."""
        return self._do("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` on one state of the file; waits for no writer."""
        return self._do("BEGIN", work)

    def _do(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            self._reopen_if_replaced()
            try:
                return self._once(begin, work)
            except sqlite3.DatabaseError as error:
                if _code(error) not in _CORRUPT:
                    raise _explained(self.path, error) from error
            # Found corrupt while running: opening it again moves it aside, and the work goes into a new file.
            self._reopen()
            try:
                return self._once(begin, work)
            except sqlite3.Error as error:
                raise _explained(self.path, error) from error

    def _once(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        self._connection.execute(begin)
        try:
            result = work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return result

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                # The connection is beyond use; opening the file again undoes what was not committed.
                self._reopen()

    def _reopen_if_replaced(self) -> None:
        """Follow the name: someone may have deleted the file, or moved a corrupt one aside."""
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            log.warning("the state file was replaced; opening it again", path=str(self.path))
            self._reopen()

    def _reopen(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error as error:
            log.warning("closing the state file failed", path=str(self.path), error=str(error))
        self._connection, self._inode = self._open()

    def _open(self) -> tuple[sqlite3.Connection, int]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                connection = self._checked()
                return connection, self.path.stat().st_ino
        except OSError as error:
            fact = f"the state file {self.path} cannot be used: {error.strerror}"
            if error.errno in _DISK_TROUBLE:
                raise ConnectionFailed(fact, "free some space or check the disk, then run again: nothing is lost") from error
            raise ConfigError(fact, "name a file in a folder that this user may write, with `state` in icefront.yaml") from error

    def _checked(self) -> sqlite3.Connection:
        """Open, check and migrate; a corrupt file is moved aside and a new one begun."""
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if _code(error) not in _CORRUPT:
                raise _explained(self.path, error) from error
            aside = _move_aside(self.path)
            log.warning(
                "the state file is corrupt; beginning a new one, nothing is lost",
                path=str(self.path),
                moved_to=str(aside),
                error=str(error),
            )
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode=WAL")
            # A note must survive power loss before its epoch is published.
            connection.execute("PRAGMA synchronous=FULL")
            _check(connection)
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version, newest = self._version(connection), len(self._migrations)
            for migration in self._migrations[version:]:
                for statement in migration:
                    connection.execute(statement)
            if version < newest:
                connection.execute("DELETE FROM format")
                connection.execute("INSERT INTO format VALUES (?)", (newest,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the file's format; refuse what is not ours and what is newer than we are."""
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "format" not in tables:
            raise ConfigError(
                f"{self.path} is a database of another program: it has the tables {', '.join(sorted(tables))}",
                "name another file with `state` in icefront.yaml",
            )
        connection.execute("CREATE TABLE IF NOT EXISTS format (version INTEGER NOT NULL)")
        version: int = connection.execute("SELECT max(version) FROM format").fetchone()[0] or 0
        if version > len(self._migrations):
            raise NewerFormat(
                f"the state file {self.path} has format {version}, this Icefront reads up to {len(self._migrations)}",
                "upgrade Icefront on this machine, or name another file with `state` in icefront.yaml",
            )
        return version


def _check(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        error = sqlite3.DatabaseError(found)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time create, migrate or replace the file."""
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _move_aside(path: Path) -> Path:
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.corrupt-{n}")).exists())
    # The log first: left beside a new file, its pages would be replayed into that one.
    for suffix in ("-wal", "-shm", ""):
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(f"{aside}{suffix}")
    return aside


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; the extended one carries it in its low byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _explained(path: Path, error: sqlite3.Error) -> IcefrontError:
    code = _code(error)
    if code in _REFUSED:
        step = "name a file that this user may write, with `state` in icefront.yaml"
        return ConfigError(f"the state file {path} cannot be written: {error}", step)
    if code == sqlite3.SQLITE_FULL:
        return ConnectionFailed(
            f"the disk that holds the state file {path} is full", "free some space, then run again: nothing is lost"
        )
    if code in _BUSY:
        fact = f"the state file {path} stayed locked by another process for {BUSY_SECONDS:.0f} s"
        return ConnectionFailed(fact, "look for a program that holds it open in a transaction, then run again")
    if code in _CORRUPT:
        return ConnectionFailed(f"the state file {path} is corrupt again after a new one was begun", "check the disk it is on")
    return ConnectionFailed(f"the state file {path} failed: {error}", "check the disk, then run again: nothing is lost")
