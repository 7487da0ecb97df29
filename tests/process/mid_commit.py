"""Drivers in the middle of a commit to the embedded catalog, by SQLite's own means: one waits for the database, one holds it.

driver ─ JVM ─ writes its metadata ─▶ waits for the lock ─▶ changes the table's row ─▶ commits
                                      └── waiting ──┘       └─────── holding ───────┘
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from icefront.proof.harness import Driver, wait_until
from icefront.proof.sessions import look

_BALLAST = 8_000_000
"""Bytes that do not fit into a connection's cache: what is changed goes to the log before it is committed."""
_STEPS = 3_000_000
"""Takes SQLite a second or a few."""
_SLOW = f"""
    CREATE TABLE ballast (bytes);
    CREATE VIEW steps AS
        WITH RECURSIVE step (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM step LIMIT {_STEPS})
        SELECT count(*) AS done FROM step;
    CREATE TRIGGER slowly AFTER UPDATE ON iceberg_tables BEGIN
        INSERT INTO ballast VALUES (zeroblob({_BALLAST}));
        INSERT INTO ballast SELECT done FROM steps;
    END;
"""
_QUICK = "DROP TRIGGER slowly; DROP VIEW steps; DROP TABLE ballast;"


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the database's write lock; of a new database, which keeps no log of its own yet, also the lock against readers."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


def is_locked(database: Path) -> bool:
    with closing(sqlite3.connect(database, isolation_level=None, timeout=0)) as asking:
        try:
            asking.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        asking.execute("ROLLBACK")
        return False


@contextmanager
def waiting(driver: Driver, catalog: Path) -> Iterator[None]:
    """Wake a driver while the catalog's database is locked: its metadata is written, and not yet in place."""
    before = metadata_files(catalog)
    with locked(catalog / "catalog.db"):
        driver.wake()
        wait_until(lambda: metadata_files(catalog) > before, what="the JVM did not begin to commit")
        yield


@contextmanager
def holding(driver: Driver, catalog: Path) -> Iterator[None]:
    """Wake a driver, and freeze it in the very transaction that puts its metadata in place: its row is changed, and not committed.

    Killed or woken, it has to come to an end before this does.
    """
    database, log = catalog / "catalog.db", catalog / "catalog.db-wal"
    _execute(database, _SLOW)
    driver.wake()
    wait_until(lambda: is_locked(database) and log.stat().st_size > _BALLAST / 2, what="the JVM did not begin to commit")
    freeze(driver)
    assert is_locked(database), "it had committed before it was frozen"
    yield
    _execute(database, _QUICK)


def freeze(driver: Driver) -> None:
    """Pause a driver and its JVM, which is what commits."""
    jvm = driver.jvm()
    assert jvm is not None
    os.killpg(driver.pid, signal.SIGSTOP)
    wait_until(lambda: is_frozen(driver.pid) and is_frozen(jvm), what="it was not paused")


def thaw(driver: Driver) -> None:
    os.killpg(driver.pid, signal.SIGCONT)


def metadata_files(catalog: Path) -> int:
    return len(list(catalog.glob("warehouse/**/*.metadata.json")))


def is_frozen(pid: int) -> bool:
    """Each of its threads: any of them may be the one that commits."""
    threads = [look(int(folder.name)) for folder in Path(f"/proc/{pid}/task").iterdir()]
    return all(thread is None or thread.state == "T" for thread in threads)


def _execute(database: Path, script: str) -> None:
    with closing(sqlite3.connect(database, timeout=60)) as changing:
        changing.executescript(script)
