"""A SQLite file that several processes share, that survives being killed, and that may be lost.

Opening it checks it and migrates it. A file that is corrupt, or that a paused process keeps locked, is moved aside
and a new one begun: the targets are the truth, this file only makes restarts cheaper and the past visible.

Whoever is left behind with a file that was moved aside goes on in it, and notices before its next step: SQLite holds its
files open, and a step begins by comparing them with those of this name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

import structlog

from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError, NewerFormat

log = structlog.get_logger(__name__)

BUSY_SECONDS = 10.0
POLL_SECONDS = 0.05
_ATTEMPTS = 5
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
# A process that is paused while it moves the end of the log leaves readers no lock to wait for: they see this protocol error.
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})

T = TypeVar("T")
Migration = Sequence[str]
"""Statements that bring the file from one format to the next."""
Inodes = tuple[int, int]
"""Of the file and of its log."""


class Database:
    """One connection, shared by the threads of this process."""

    def __init__(self, path: Path, migrations: Sequence[Migration], busy_seconds: float = BUSY_SECONDS) -> None:
        """Open the file. Who keeps it locked for longer than `busy_seconds` is taken for paused, and left behind."""
        self.path = path
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._connection, self._inodes = self._open()

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
                if _code(error) not in _CORRUPT | _BUSY:
                    raise self._explained(error) from error
            # Opening it again moves it aside if it still is corrupt or locked, and the work goes into a new file.
            self._reopen()
            try:
                return self._once(begin, work)
            except sqlite3.Error as error:
                raise self._explained(error) from error

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
        """Follow the name: someone may have deleted the file, or moved it aside.

        The log counts too: a process that is paused while it closes a file that is then moved aside deletes, when it
        wakes, the log of the new one. Closing brings what is in ours into the file.
        """
        if _inodes(self.path) != self._inodes:
            log.warning("the state file was replaced; opening it again", path=str(self.path))
            self._reopen()

    def _reopen(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error as error:
            log.warning("closing the state file failed", path=str(self.path), error=str(error))
        self._connection, self._inodes = self._open()

    def _open(self) -> tuple[sqlite3.Connection, Inodes]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Who is inside may wait for a lock of SQLite's, and is not paused then: hence twice as long.
            with _alone(Path(f"{self.path}.lock"), 2 * self._busy_seconds):
                return self._checked()
        except OSError as error:
            fact = f"the state file {self.path} cannot be used: {error.strerror}"
            if error.errno in _DISK_TROUBLE:
                raise ConnectionFailed(fact, "free some space or check the disk, then run again: nothing is lost") from error
            raise ConfigError(fact, "name a file in a folder that this user may write, with `state` in icefront.yaml") from error

    def _checked(self) -> tuple[sqlite3.Connection, Inodes]:
        """Open, check and migrate; a file that is corrupt or stays locked is moved aside and a new one begun."""
        reason = sqlite3.DatabaseError("it is replaced again and again")
        for _ in range(_ATTEMPTS):
            before = _inode(self.path)
            try:
                connection = self._connect()
            except sqlite3.DatabaseError as error:
                if _code(error) not in _CORRUPT | _BUSY:
                    raise self._explained(error) from error
                reason = error
                self._replace(before, error)
                continue
            inodes = _inodes(self.path)
            if inodes and inodes[0] == before:
                return connection, inodes
            # Just made, or replaced meanwhile: only of a file that was there before and after do we know that it is ours.
            connection.close()
        raise self._explained(reason) from reason

    def _replace(self, found: int | None, error: sqlite3.Error) -> None:
        """Move the file aside, unless another one of this name has been begun since it was found unusable."""
        if found is None or _inode(self.path) != found:
            return
        if _code(error) in _CORRUPT:
            aside = _move_aside(self.path, "corrupt")
            what = "the state file is corrupt; beginning a new one, nothing is lost"
        else:
            aside = _move_aside(self.path, "locked")
            what = (
                f"the state file stayed locked for {self._busy_seconds:g} s, as by a paused process; "
                "beginning a new one: staged epochs are written again, nothing is lost"
            )
        log.warning(what, path=str(self.path), moved_to=str(aside), error=str(error))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            _read_by_name(connection)
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
        """Return the file's format, 0 of a new one; refuse what is not ours and what is newer than we are."""
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "format" not in tables:
            raise ConfigError(
                f"{self.path} is a database of another program: it has the tables {', '.join(sorted(tables))}",
                "name another file with `state` in icefront.yaml",
            )
        if not tables:
            connection.execute("CREATE TABLE format (version INTEGER NOT NULL)")
            return 0
        version = connection.execute("SELECT max(version) FROM format").fetchone()[0]
        if not isinstance(version, int) or version < 1:
            raise _corrupt(f"its format is {version!r}")
        if version > len(self._migrations):
            raise NewerFormat(
                f"the state file {self.path} has format {version}, this Icefront reads up to {len(self._migrations)}",
                "upgrade Icefront on this machine, or name another file with `state` in icefront.yaml",
            )
        return version

    def _explained(self, error: sqlite3.Error) -> IcefrontError:
        code, path = _code(error), self.path
        if code in _REFUSED:
            step = "name a file that this user may write, with `state` in icefront.yaml"
            return ConfigError(f"the state file {path} cannot be written: {error}", step)
        if code == sqlite3.SQLITE_FULL:
            return ConnectionFailed(
                f"the disk that holds the state file {path} is full", "free some space, then run again: nothing is lost"
            )
        if code in _BUSY:
            fact = f"the state file {path} stayed locked for {self._busy_seconds:g} s, also after a new one was begun"
            return ConnectionFailed(fact, "look for a program that holds it open in a transaction, then run again")
        if code in _CORRUPT:
            return ConnectionFailed(
                f"the state file {path} is corrupt again after a new one was begun", "check the disk it is on"
            )
        return ConnectionFailed(f"the state file {path} failed: {error}", "check the disk, then run again: nothing is lost")


class Copy(Database):
    """What the file holds at this moment, in memory. Looking creates, migrates, repairs and moves nothing."""

    def _open(self) -> tuple[sqlite3.Connection, Inodes]:
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _read_by_name(memory)
        try:
            if self.path.exists():
                self._copy_into(memory)
            _check(memory)
            self._migrate(memory)
        except sqlite3.Error as error:
            memory.close()
            raise self._explained(error) from error
        except BaseException:
            memory.close()
            raise
        return memory, (0, 0)

    def _copy_into(self, memory: sqlite3.Connection) -> None:
        # Without a log nobody has the file open; the plain read-only mode would leave a log behind.
        how = "mode=ro" if Path(f"{self.path}-wal").exists() else "immutable=1"
        uri = f"{self.path.absolute().as_uri()}?{how}"
        file = sqlite3.connect(uri, uri=True, timeout=self._busy_seconds, isolation_level=None)
        try:
            file.execute("BEGIN")
            # Copying waits for ever, this statement does not.
            file.execute("SELECT count(*) FROM sqlite_master").fetchone()
            file.backup(memory)
        finally:
            file.close()

    def _reopen_if_replaced(self) -> None:
        """Stay with what was copied."""

    def _explained(self, error: sqlite3.Error) -> IcefrontError:
        code = _code(error)
        if code in _CORRUPT:
            step = "nothing is lost: the next run moves it aside and begins a new one"
            return ConnectionFailed(f"the state file {self.path} is corrupt: {error}", step)
        if code in _BUSY:
            fact = f"the state file {self.path} stayed locked for {self._busy_seconds:g} s"
            return ConnectionFailed(fact, "look for a paused process; the next run moves the file aside and begins a new one")
        step = "name a file that this user may read, with `state` in icefront.yaml"
        return ConfigError(f"the state file {self.path} cannot be read: {error}", step)


def _read_by_name(connection: sqlite3.Connection) -> None:
    """Give out rows with their columns' names, and any text there is: that one is damaged only those can tell who know what it says."""
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda text: text.decode(errors="replace")


def _check(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _corrupt(found)


def _corrupt(found: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(found)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@contextmanager
def _alone(lock: Path, patience: float) -> Iterator[None]:
    """Let one process at a time create, migrate or replace the file.

    Whoever stays inside for longer than `patience` is paused: the next ones agree on a new lock file. Two inside, when it
    wakes, do no harm: SQLite lets one of them write, and only a file that was found unusable is moved.
    """
    handle = _taken(lock)
    since, held = time.monotonic(), _inode(lock)
    while handle is None:
        time.sleep(POLL_SECONDS)
        if _inode(lock) != held:
            since, held = time.monotonic(), _inode(lock)
        elif time.monotonic() - since > patience:
            log.warning("the lock of the state file was held too long, as by a paused process; going past it", lock=str(lock))
            lock.unlink(missing_ok=True)
        handle = _taken(lock)
    try:
        yield
    finally:
        os.close(handle)


def _taken(lock: Path) -> int | None:
    """Lock the file of this name; None while another process has it, or when it was replaced under our hands."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == _inode(lock):
            return handle
    os.close(handle)
    return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _inodes(path: Path) -> Inodes | None:
    file, log_ = _inode(path), _inode(Path(f"{path}-wal"))
    return None if file is None or log_ is None else (file, log_)


def _move_aside(path: Path, why: str) -> Path:
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.{why}-{n}")).exists())
    # The log first: left beside a new file, its pages would be replayed into that one. With it goes the memory that holds its
    # locks: whoever holds one keeps it, on files of another name.
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; the extended one carries it in its low byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
