"""Several processes on one file, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from icefront.state import StateStore
from tests.state.staging import TARGET, staged

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process

STAGE_FOR_EVER = """
import sys
from icefront.state import StateStore
from tests.state.staging import staged
notes = StateStore(sys.argv[1])
for number in range(1_000_000):
    notes.stage(staged(number))
    print(number, flush=True)
"""
DIE_IN_MID_TRANSACTION = """
import os, signal, sys
from icefront.state import StateStore
from tests.state.staging import staged
notes = StateStore(sys.argv[1])
notes.stage(staged(1))
def half(connection):
    connection.execute("DELETE FROM notes")
    connection.execute("INSERT INTO runs (run, pipeline, writer, host, pid, started) VALUES ('r', 'orders', '', '', 1, 1)")
    os.kill(os.getpid(), signal.SIGKILL)
notes._database.write(half)
"""
STAGE_MANY = """
import sys
from icefront.state import StateStore
from tests.state.staging import staged
with StateStore(sys.argv[1]) as notes:
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + 40):
        notes.stage(staged(number))
        if number % 2:
            notes.published(staged(number), number, {"publish": 0.1})
"""
# Paused in the middle of one step, and inside the lock that guards opening; each says so when it goes on.
PAUSED_IN_A_STEP = """
import os, signal, sys
from icefront.state import StateStore
from tests.state.staging import staged
notes = StateStore(sys.argv[1])
notes.stage(staged(1))
def pause(connection):
    connection.execute("DELETE FROM notes")
    os.kill(os.getpid(), signal.SIGSTOP)
notes._database.write(pause)
print("woken", flush=True)
notes.stage(staged(7))
notes.close()
"""
PAUSED_IN_OPENING = """
import os, signal, sys
from icefront.state import StateStore, database
from tests.state.staging import staged
def pause(self):
    os.kill(os.getpid(), signal.SIGSTOP)
    database.Database._connect = connect
    return connect(self)
connect, database.Database._connect = database.Database._connect, pause
with StateStore(sys.argv[1]) as notes:
    print("woken", flush=True)
    notes.stage(staged(7))
"""
# Opens the file, is paused holding no lock of SQLite's, and then closes it: by then it may have been moved aside.
PAUSED_BEFORE_CLOSING = """
import os, signal, sys
from icefront.state import StateStore
from tests.state.staging import staged
with StateStore(sys.argv[1]) as notes:
    notes.stage(staged(1))
    os.kill(os.getpid(), signal.SIGSTOP)
print("woken", flush=True)
"""
STAGE_ONE = """
import sys
from icefront.state import StateStore
from tests.state.staging import staged
with StateStore(sys.argv[1], busy_seconds=0.5) as notes:
    notes.stage(staged(int(sys.argv[2])))
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_process_killed_in_mid_transaction_leaves_the_file_as_before(tmp_path):
    path = tmp_path / "state.db"
    process = start(DIE_IN_MID_TRANSACTION, path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(1)]
        assert notes.runs("orders") == []
    assert list(tmp_path.glob("*corrupt*")) == []


@pytest.mark.parametrize("notes_before", [1, 7, 23])
def test_every_note_that_was_confirmed_survives_kill_9(tmp_path, notes_before):
    path = tmp_path / "state.db"
    process = start(STAGE_FOR_EVER, path)
    assert process.stdout is not None
    confirmed = -1
    for line in process.stdout:
        confirmed = int(line)
        if confirmed >= notes_before:
            time.sleep(0.003)
            break
    process.kill()
    rest = process.stdout.read()  # not `communicate`: it leaves out what was read ahead
    process.wait(60)
    confirmed = max([confirmed, *(int(line) for line in rest.split())])
    with StateStore(path) as notes:
        found = notes.staged("orders", TARGET)
    # One more may be there: noted, and killed before it could say so.
    assert found[: confirmed + 1] == [staged(number) for number in range(confirmed + 1)]
    assert len(found) in {confirmed + 1, confirmed + 2}
    assert list(tmp_path.glob("*corrupt*")) == []


def test_processes_that_start_at_once_share_one_new_file(tmp_path):
    path = tmp_path / "state.db"
    processes = [start(STAGE_MANY, path, first) for first in (0, 1000, 2000)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with StateStore(path) as notes:
        assert len(notes.staged("orders", TARGET)) == 60
        assert len(notes.epochs("orders", limit=1000)) == 60
    assert list(tmp_path.glob("*corrupt*")) == []


def test_processes_that_find_one_corrupt_file_move_it_aside_once(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"garbage" * 1000)
    processes = [start(STAGE_MANY, path, first) for first in (0, 1000, 2000)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with StateStore(path) as notes:
        assert len(notes.staged("orders", TARGET)) == 60
    assert [p.name for p in tmp_path.glob("*corrupt*")] == ["state.db.corrupt-1"]


# ── a paused process never stops its successor ─────────────────────────────────────────────
@contextmanager
def paused(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a program and wait until it has stopped itself; it is gone afterwards."""
    process = start(program, *arguments)
    try:
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate()


def wake(process: subprocess.Popen[str]) -> None:
    """Let a paused process go on to its end."""
    process.send_signal(signal.SIGCONT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "woken" in said


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(p.name for p in folder.glob(pattern))


def test_a_process_paused_in_a_step_does_not_stop_its_successor(tmp_path):
    path = tmp_path / "state.db"
    with paused(PAUSED_IN_A_STEP, path) as zombie:
        with StateStore(path, busy_seconds=0.3) as notes, capture_logs() as logs:
            assert notes.staged("orders", TARGET) == []
            notes.stage(staged(2))
            wake(zombie)
            assert notes.staged("orders", TARGET) == [staged(2), staged(7)]
        assert logs == []
    assert names(tmp_path, "*locked-?") == ["state.db.locked-1"]
    assert names(tmp_path, "*corrupt*") == []
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(2), staged(7)]
    with StateStore(tmp_path / "state.db.locked-1") as old:
        assert old.staged("orders", TARGET) == []


def test_a_successor_that_is_killed_while_the_zombie_sleeps_loses_nothing_that_it_noted(tmp_path):
    path = tmp_path / "state.db"
    with paused(PAUSED_IN_A_STEP, path) as zombie:
        with paused(PAUSED_BEFORE_CLOSING.replace("sys.argv[1]", "sys.argv[1], busy_seconds=0.3"), path) as successor:
            wake(zombie)
            successor.kill()
            successor.wait()
        with StateStore(path) as notes:
            assert notes.staged("orders", TARGET) == [staged(1), staged(7)]
    assert names(tmp_path, "*corrupt*") == []


def test_a_process_paused_in_opening_does_not_stop_its_successor(tmp_path):
    path = tmp_path / "state.db"
    with paused(PAUSED_IN_OPENING, path) as zombie:
        for number in (2, 3):
            with StateStore(path, busy_seconds=0.2) as notes:
                notes.stage(staged(number))
        wake(zombie)
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(2), staged(3), staged(7)]
    assert names(tmp_path, "state.db*") == ["state.db", "state.db.lock"]


def test_a_zombie_that_closes_a_file_that_was_moved_aside_leaves_the_new_one_alone(tmp_path):
    path = tmp_path / "state.db"
    with paused(PAUSED_BEFORE_CLOSING, path) as first, paused(PAUSED_IN_A_STEP, path) as second:
        with StateStore(path, busy_seconds=0.2) as notes:
            notes.stage(staged(2))
            wake(first)
            wake(second)
            notes.stage(staged(3))
            assert notes.staged("orders", TARGET) == [staged(2), staged(3), staged(7)]
        with StateStore(path) as notes:
            assert notes.staged("orders", TARGET) == [staged(2), staged(3), staged(7)]


@pytest.mark.parametrize("program", [PAUSED_IN_A_STEP, PAUSED_IN_OPENING])
def test_successors_that_come_at_once_share_one_new_file(tmp_path, program):
    path = tmp_path / "state.db"
    numbers = [2, 3, 4, 5]
    with paused(program, path) as zombie:
        successors = [start(STAGE_ONE, path, number) for number in numbers]
        for successor in successors:
            _, errors = successor.communicate(timeout=60)
            assert successor.returncode == 0, errors
        wake(zombie)
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(number) for number in (*numbers, 7)]
    assert len(names(tmp_path, "*locked-?")) <= 1
