"""Several processes on one file, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    rest, _ = process.communicate(timeout=60)
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
