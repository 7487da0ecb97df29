"""The state store: notes survive, history is kept, and losing it loses nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from icefront.core.errors import ConfigError, ConnectionFailed, NewerFormat, Stopped
from icefront.core.files import NOTE_FORMAT
from icefront.core.marks import Position
from icefront.core.timestamps import Timestamp
from icefront.state import StateStore, store
from tests.state.staging import TARGET, staged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.db"


def sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def clock() -> float:
    return next(_SECONDS)


_SECONDS = (1_700_000_000.0 + n for n in count())


# ── notes ──────────────────────────────────────────────────────────────────────────────────
def test_a_note_is_there_after_reopening(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(1)]


def test_notes_come_back_in_the_order_of_the_timeline(path):
    with StateStore(path) as notes:
        for number in (100, 9, 10):
            notes.stage(staged(number))
        assert [note.epoch.lower.wall // 10**9 for note in notes.staged("orders", TARGET)] == [9, 10, 100]


def test_notes_are_kept_apart_by_pipeline_and_target(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        notes.stage(staged(1, pipeline="other"))
        notes.stage(staged(1, target="lake.shop.items"))
        assert notes.staged("orders", TARGET) == [staged(1)]
        assert notes.staged("nobody", TARGET) == []


def test_staging_an_epoch_again_replaces_its_note(path):
    with StateStore(path) as notes:
        notes.stage(staged(1, files=1))
        notes.stage(staged(1, files=3))
        assert notes.staged("orders", TARGET) == [staged(1, files=3)]


def test_a_published_epoch_moves_from_the_notes_into_the_history(path):
    with StateStore(path, clock=lambda: 1_700_000_000.25) as notes:
        notes.stage(staged(1))
        notes.published(staged(1), 4711, {"write": 0.5, "stage": 0.0104, "publish": 0.12})
        assert notes.staged("orders", TARGET) == []
        (record,) = notes.epochs("orders", TARGET)
    assert (record.epoch, record.epoch_id, record.snapshot) == (staged(1).epoch, staged(1).epoch_id, 4711)
    assert (record.files, record.bytes, record.counts) == (2, 2000, {"upserts": 20, "deletes": 1})
    assert record.timings == {"write": 500, "stage": 10, "publish": 120}
    assert record.published_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert not record.recovered


def test_publishing_twice_is_one_row(path):
    with StateStore(path) as notes:
        notes.published(staged(1), 4711, {})
        notes.published(staged(1), 4711, {"recovered": 1.0})
        (record,) = notes.epochs("orders")
    assert record.timings == {}


def test_a_recovered_epoch_is_told_apart(path):
    with StateStore(path) as notes:
        notes.published(staged(1), 1, {"recovered": 1.0, "publish": 0.1})
        (record,) = notes.epochs("orders")
    assert record.recovered
    assert record.timings == {"publish": 100}


def test_dropped_notes_are_gone(path):
    with StateStore(path) as notes:
        for number in (1, 2, 3):
            notes.stage(staged(number))
        notes.drop("orders", TARGET, [str(staged(1).epoch_id), staged(3).epoch_id])
        notes.drop("orders", TARGET, [])
        assert notes.staged("orders", TARGET) == [staged(2)]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE notes SET note = replace(note, 'attempt', 'atempt')",
        "UPDATE notes SET note = substr(note, 1, 100)",
        "UPDATE notes SET note = '[]'",
        "UPDATE notes SET note = x'ff'",
        "UPDATE notes SET note = CAST(x'7bff' AS TEXT)",
        "UPDATE notes SET note = CAST(CAST(substr(note, 1, 100) AS BLOB) || x'c0ff' || CAST(substr(note, 103) AS BLOB) AS TEXT)",
        "UPDATE notes SET sha256 = ''",
        "UPDATE notes SET epoch_id = CAST(x'c0ff41' AS TEXT)",
    ],
)
def test_a_damaged_note_is_dropped_with_a_warning_and_the_others_stay(path, damage):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        notes.stage(staged(2))
    sql(path, f"{damage} WHERE epoch_id = '{staged(1).epoch_id}'")
    with StateStore(path) as notes, capture_logs() as logs:
        assert notes.staged("orders", TARGET) == [staged(2)]
        assert notes.staged("orders", TARGET) == [staged(2)]
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert logs[0]["event"] == "a staged note is damaged; dropping it"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE epochs SET counts = CAST(x'7bff' AS TEXT) WHERE snapshot = 1",
        "UPDATE epochs SET published_at = 1e300 WHERE snapshot = 1",
        "UPDATE runs SET started = 'x' WHERE run = 'r1'",
        "UPDATE cycles SET facts = '{' WHERE why = '1'",
    ],
)
def test_a_damaged_line_of_history_is_passed_over_with_a_warning(path, damage):
    with StateStore(path) as notes:
        for number in (1, 2):
            notes.published(staged(number), number, {})
            notes.run_started("orders", f"r{number}")
            notes.cycle_ended(notes.cycle_started("orders", TARGET, "settle", f"{number}"), "done", {})
    sql(path, damage)
    with StateStore(path) as notes, capture_logs() as logs:
        epochs, runs = [str(r.snapshot) for r in notes.epochs("orders")], [r.run for r in notes.runs("orders")]
        cycles = [c.why for c in notes.cycles(TARGET)]
    assert sorted(map(len, (epochs, runs, cycles))) == [1, 2, 2]
    assert (epochs[0], runs[0], cycles[0]) == ("2", "r2", "2")
    assert [entry["event"] for entry in logs] == ["a line of history is damaged; passing over it"]


def test_a_note_moved_to_another_epoch_is_dropped(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    sql(path, f"UPDATE notes SET epoch_id = '{staged(2).epoch_id}'")
    with StateStore(path) as notes, capture_logs() as logs:
        assert notes.staged("orders", TARGET) == []
    assert logs[0]["error"] == "it is about another epoch"


def test_a_note_of_a_newer_icefront_stops(path, monkeypatch):
    with StateStore(path) as notes:
        note = staged(1).to_json().replace(f'"format":{NOTE_FORMAT}', f'"format":{NOTE_FORMAT + 1}')
        notes.stage(staged(1))
    sql(path, f"UPDATE notes SET note = '{note}', sha256 = '{store._sha256(note)}'")
    with (
        StateStore(path) as notes,
        pytest.raises(NewerFormat, match=f"format {NOTE_FORMAT + 1}, this Icefront reads up to {NOTE_FORMAT}"),
    ):
        notes.staged("orders", TARGET)


# ── history ────────────────────────────────────────────────────────────────────────────────
def test_epochs_are_listed_newest_first_up_to_a_limit(path):
    with StateStore(path) as notes:
        for number in (1, 2, 10):
            notes.published(staged(number), number, {})
            notes.published(staged(number, target="lake.shop.items"), number, {})
        assert [r.snapshot for r in notes.epochs("orders", TARGET)] == [10, 2, 1]
        assert [r.snapshot for r in notes.epochs("orders", limit=3)] == [10, 10, 2]


def test_a_run_is_remembered_with_its_outcome(path):
    with StateStore(path, clock=clock) as notes:
        notes.run_started("orders", "r1", "r1#1")
        notes.run_ended("r1", "fenced", "claimed by r2#2", epochs=3)
        notes.run_started("orders", "r2")
        running, ended = notes.runs("orders")
    assert (running.run, running.ended, running.outcome) == ("r2", None, None)
    assert (ended.run, ended.writer, ended.outcome, ended.reason, ended.epochs) == ("r1", "r1#1", "fenced", "claimed by r2#2", 3)
    assert ended.ended is not None
    assert ended.ended > ended.started


def test_old_history_goes_and_notes_stay(path):
    with StateStore(path, clock=clock) as notes:
        notes.stage(staged(0))
        for number in range(10):
            notes.published(staged(number, target="lake.a.b"), number, {})
            notes.published(staged(number + 100), number, {})
            notes.run_started("orders", f"r{number}")
        notes.prune(keep_epochs=3, keep_runs=2)
        assert [r.snapshot for r in notes.epochs("orders", TARGET)] == [9, 8, 7]
        assert [r.snapshot for r in notes.epochs("orders", "lake.a.b")] == [9, 8, 7]
        assert [r.run for r in notes.runs("orders")] == ["r9", "r8"]
        assert notes.staged("orders", TARGET) == [staged(0)]


def test_forgetting_a_pipeline_leaves_the_others(path):
    with StateStore(path) as notes:
        for pipeline in ("orders", "other"):
            notes.stage(staged(1, pipeline=pipeline))
            notes.published(staged(2, pipeline=pipeline), 2, {})
            notes.run_started(pipeline, pipeline)
        notes.forget("orders")
        assert (notes.staged("orders", TARGET), notes.epochs("orders"), notes.runs("orders")) == ([], [], [])
        assert len(notes.staged("other", TARGET)) == len(notes.epochs("other")) == len(notes.runs("other")) == 1


# ── bindings ───────────────────────────────────────────────────────────────────────────────
def test_a_sealed_binding_never_changes(path):
    with StateStore(path) as notes:
        notes.bind("shop", Timestamp(5), Position('{"0":7}'))
        notes.bind("shop", Timestamp(5), Position('{"0":7}'))
        with pytest.raises(Stopped, match=r'sealed at \{"0":7\}, now it would be \{"0":8\}'):
            notes.bind("shop", Timestamp(5), Position('{"0":8}'))
        notes.bind("shop", Timestamp(5), Position('{"0":7}'), sealed=False)
        assert [(b.timestamp, b.position.text, b.sealed) for b in notes.bindings("shop")] == [(Timestamp(5), '{"0":7}', True)]


def test_an_open_binding_may_move_until_it_is_sealed(path):
    with StateStore(path) as notes:
        notes.bind("shop", Timestamp(5), Position("1"), sealed=False)
        notes.bind("shop", Timestamp(5), Position("2"), sealed=True)
        (binding,) = notes.bindings("shop")
    assert (binding.position.text, binding.sealed) == ("2", True)


def test_compaction_keeps_the_last_sealed_binding_at_the_frontier(path):
    with StateStore(path) as notes:
        for wall in (1, 2, 3, 9, 10):
            notes.bind("shop", Timestamp(wall), Position(str(wall)))
            notes.bind("other", Timestamp(wall), Position(str(wall)))
        notes.compact("shop", Timestamp(9, 5))
        assert [b.timestamp.wall for b in notes.bindings("shop")] == [9, 10]
        assert len(notes.bindings("other")) == 5
        notes.compact("nobody", Timestamp(9))


# ── the file ───────────────────────────────────────────────────────────────────────────────
def test_notes_are_flushed_to_disk_and_readers_wait_for_no_writer(path):
    with StateStore(path) as notes:
        connection = notes._database._connection
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        assert notes.staged("orders", TARGET) == []
        blocker.close()


# ── only looking ───────────────────────────────────────────────────────────────────────────
def contents(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for the memory that processes share for their locks."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.endswith("-shm")}


def test_looking_makes_no_file(path):
    with StateStore(path, only_look=True) as notes:
        assert (notes.staged("orders", TARGET), notes.runs("orders"), notes.epochs("orders")) == ([], [], [])
    assert not path.parent.exists()


def test_looking_changes_nothing_and_sees_what_was_noted(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        for _ in range(2):
            before = contents(path.parent)
            with StateStore(path, only_look=True) as looking:
                assert looking.staged("orders", TARGET) == [staged(1)]
            assert contents(path.parent) == before
            sql(path, "UPDATE notes SET settings = 'other'")
    before = contents(path.parent)
    assert sorted(before) == ["state.db", "state.db.lock"]
    with StateStore(path, only_look=True) as looking:
        assert looking.staged("orders", TARGET) == [staged(1)]
    assert contents(path.parent) == before


def test_looking_waits_for_no_writer(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        blocker.execute("DELETE FROM notes")
        with StateStore(path, only_look=True, busy_seconds=0.1) as looking:
            assert looking.staged("orders", TARGET) == [staged(1)]
        blocker.close()


def test_looking_leaves_a_damaged_note_where_it_is(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    sql(path, "UPDATE notes SET sha256 = ''")
    before = contents(path.parent)
    with StateStore(path, only_look=True) as looking:
        assert looking.staged("orders", TARGET) == []
    assert contents(path.parent) == before


def test_looking_at_an_older_file_does_not_migrate_it(path, monkeypatch):
    with StateStore(path) as notes:
        notes.run_started("orders", "r1")
    before = contents(path.parent)
    monkeypatch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",)))
    with StateStore(path, only_look=True) as looking:
        assert [run.run for run in looking.runs("orders")] == ["r1"]
    assert contents(path.parent) == before


@pytest.mark.parametrize("garbage", [b"not a database, by far not one" * 200, b"SQLite format 3\0" + b"\xff" * 8000])
def test_looking_at_a_corrupt_file_says_so_and_leaves_it_there(path, garbage):
    path.parent.mkdir()
    path.write_bytes(garbage)
    with pytest.raises(ConnectionFailed, match=r"the state file .*state.db is corrupt") as caught:
        StateStore(path, only_look=True)
    assert "the next run" in caught.value.next_step
    assert contents(path.parent) == {"state.db": garbage}


def test_looking_at_a_locked_file_says_so_and_leaves_it_there(path):
    StateStore(path).close()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("PRAGMA locking_mode=EXCLUSIVE")
    blocker.execute("BEGIN IMMEDIATE")
    before = contents(path.parent)
    with pytest.raises(ConnectionFailed, match=r"stayed locked for 0.1 s"):
        StateStore(path, only_look=True, busy_seconds=0.1)
    assert contents(path.parent) == before
    blocker.close()


def test_looking_at_a_file_of_a_newer_icefront_or_another_program_is_refused(path):
    StateStore(path).close()
    sql(path, "UPDATE format SET version = 99")
    with pytest.raises(NewerFormat, match="has format 99"):
        StateStore(path, only_look=True)
    sql(path, "DROP TABLE format")
    with pytest.raises(ConfigError, match="is a database of another program"):
        StateStore(path, only_look=True)


# ── upkeep ─────────────────────────────────────────────────────────────────────────────────
def test_a_lease_has_one_holder_until_it_runs_out_or_is_returned(path):
    now = [100.0]
    with StateStore(path, clock=lambda: now[0]) as one, StateStore(path, clock=lambda: now[0]) as other:
        assert one.take_lease("t", "a", 60)
        assert not other.take_lease("t", "b", 60)
        assert other.take_lease("another", "b", 60)
        now[0] = 150.0
        assert one.take_lease("t", "a", 60), "renewed"
        now[0] = 209.0
        assert not other.take_lease("t", "b", 60)
        now[0] = 210.0
        assert other.take_lease("t", "b", 60), "it has run out"
        one.return_lease("t", "a")
        assert not one.take_lease("t", "a", 60), "nobody returns what another has taken"
        other.return_lease("t", "b")
        assert one.take_lease("t", "a", 60)


def test_cycles_are_told_newest_first_so_many_of_each_kind(path, monkeypatch):
    monkeypatch.setattr(store, "KEEP_CYCLES", 3)
    with StateStore(path) as notes:
        first = notes.cycle_started("orders", TARGET, "orphans", "never done")
        notes.cycle_ended(first, "done", {"files": 2})
        for number in range(5):
            notes.cycle_ended(notes.cycle_started("orders", TARGET, "settle", str(number)), "nothing", {})
        notes.cycle_started("orders", "lake.other", "settle", "another target")
        found = notes.cycles(TARGET, limit=2)
        assert [(c.kind, c.why, c.outcome) for c in found] == [
            ("settle", "4", "nothing"),
            ("settle", "3", "nothing"),
            ("orphans", "never done", "done"),
        ]
        assert found[-1].facts == {"files": 2}
        assert len([c for c in notes.cycles(TARGET, limit=99) if c.kind == "settle"]) == 3
        (running,) = notes.cycles("lake.other")
        assert (running.ended, running.outcome, running.seconds) == (None, None, None)
        notes.forget("orders")
        assert notes.cycles(TARGET) == []


def test_the_files_of_staged_epochs_are_named_whoever_staged_them(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        notes.stage(staged(2, pipeline="second"))
        notes.stage(staged(3, target="lake.other"))
        every = (staged(1), staged(2, pipeline="second"), staged(3, target="lake.other"))
        assert notes.staged_paths() == {file.path for note in every for file in note.files}


def test_a_file_from_before_upkeep_is_migrated(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", store.MIGRATIONS[:1])
        with StateStore(path) as notes:
            notes.stage(staged(1))
    with StateStore(path, only_look=True) as looking:
        assert looking.cycles(TARGET) == []
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(1)]
        assert notes.take_lease("t", "a", 1)


# ── formats ────────────────────────────────────────────────────────────────────────────────
def test_a_file_of_a_newer_icefront_stops_and_is_left_alone(path):
    StateStore(path).close()
    sql(path, "UPDATE format SET version = 99")
    with pytest.raises(NewerFormat, match=f"has format 99, this Icefront reads up to {len(store.MIGRATIONS)}"):
        StateStore(path)
    assert sorted(p.name for p in path.parent.glob("*corrupt*")) == []


def test_an_older_file_is_migrated_and_keeps_its_notes(path, monkeypatch):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    monkeypatch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",)))
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(1)]
        assert "colour" in {row["name"] for row in notes._database._connection.execute("PRAGMA table_info(runs)")}
        assert notes._database._connection.execute("SELECT version FROM format").fetchone()[0] == len(store.MIGRATIONS)


def test_a_migration_that_fails_changes_nothing(path, monkeypatch):
    StateStore(path).close()
    broken = ("ALTER TABLE runs ADD COLUMN colour TEXT", "ALTER TABLE absent ADD COLUMN x")
    with monkeypatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, broken))
        with pytest.raises(ConnectionFailed, match="no such table: absent"):
            StateStore(path)
    with StateStore(path) as notes:
        assert "colour" not in {row["name"] for row in notes._database._connection.execute("PRAGMA table_info(runs)")}


def test_a_database_of_another_program_is_refused(path):
    path.parent.mkdir()
    sql(path, "CREATE TABLE iceberg_tables (x)")
    with pytest.raises(ConfigError, match="is a database of another program: it has the tables iceberg_tables"):
        StateStore(path)


@pytest.mark.parametrize("garbage", [b"not a database, by far not one" * 200, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_corrupt_file_is_moved_aside_and_a_new_one_begun(path, garbage):
    path.parent.mkdir()
    for attempt in (1, 2):
        path.write_bytes(garbage)
        with capture_logs() as logs, StateStore(path) as notes:
            notes.stage(staged(1))
            assert notes.staged("orders", TARGET) == [staged(1)]
        assert logs[0]["event"] == "the state file is corrupt; beginning a new one, nothing is lost"
        assert logs[0]["moved_to"] == f"{path}.corrupt-{attempt}"
        assert Path(f"{path}.corrupt-{attempt}").read_bytes() == garbage


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE format SET version = 'x'",
        "UPDATE format SET version = x'ff'",
        "UPDATE format SET version = 0",
        "DELETE FROM format",
    ],
)
def test_a_file_whose_format_is_damaged_is_moved_aside(path, damage):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    sql(path, damage)
    with pytest.raises(ConnectionFailed, match=r"the state file .*state.db is corrupt: its format is "):
        StateStore(path, only_look=True)
    with capture_logs() as logs, StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == []
    assert logs[0]["moved_to"] == f"{path}.corrupt-1"


def test_a_file_with_a_damaged_page_is_moved_aside(path):
    with StateStore(path) as notes:
        for number in range(200):
            notes.stage(staged(number))
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(data)
    with capture_logs() as logs, StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == []
    assert logs[0]["log_level"] == "warning"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_page_is_overwritten_the_run_and_the_next_one_go_on(path, seed):
    """As another program, or a disk, would do it: behind SQLite's back, under a run or between two."""
    rng = Random(seed)

    def work(number: int) -> None:
        steps: list[Callable[[], object]] = [
            lambda: notes.staged("orders", TARGET),
            lambda: notes.stage(staged(number, files=40)),
            lambda: notes.published(staged(number - 5, files=40), number, {}),
            lambda: notes.drop("orders", TARGET, [staged(number - 4).epoch_id]),
            lambda: (notes.epochs("orders"), notes.runs("orders"), notes.cycles(TARGET), notes.staged_paths()),
            lambda: notes.run_started("orders", f"r{number}"),
            lambda: notes.run_ended(f"r{number}", "drained"),
            lambda: notes.cycle_ended(notes.cycle_started("orders", TARGET, "settle", "due"), "done", {}),
            lambda: notes.take_lease("t", "a", 60),
            lambda: notes.return_lease("t", "a"),
        ]
        for step in rng.sample(steps, len(steps)):
            step()

    notes = StateStore(path)
    notes._database._connection.execute("PRAGMA cache_size = 1")
    for number in range(10, 16):
        work(number)
    notes._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if seed % 2:
        notes.close()
    page = 4096 * rng.randrange(path.stat().st_size // 4096)
    with path.open("r+b") as file:
        file.seek(page)
        file.write(rng.randbytes(4096))
    if seed % 2:
        notes = StateStore(path)
    for number in (20, 30):
        work(number)
    notes.stage(staged(50))
    assert staged(50) in notes.staged("orders", TARGET)
    notes.close()


def test_a_file_that_turns_corrupt_while_running_is_replaced_and_work_goes_on(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        notes._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other = sqlite3.connect(path)  # as long as it is open, the log stays
        other.execute("SELECT * FROM runs").fetchall()
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        notes._database._connection.close()
        notes._database._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with capture_logs() as logs:
            notes.stage(staged(2))
        assert notes.staged("orders", TARGET) == [staged(2)]
    other.close()
    assert [entry["event"] for entry in logs] == ["the state file is corrupt; beginning a new one, nothing is lost"]


def test_a_deleted_file_loses_its_notes_and_nothing_else(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
    for part in path.parent.iterdir():
        part.unlink()
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == []
        notes.stage(staged(1))


def test_a_file_deleted_while_running_is_begun_again(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        path.unlink()
        notes.stage(staged(2))
        assert notes.staged("orders", TARGET) == [staged(2)]
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(2)]


def test_a_log_left_behind_by_a_deleted_file_is_not_replayed(path):
    first = StateStore(path)
    first.stage(staged(1))
    assert Path(f"{path}-wal").stat().st_size > 0
    path.unlink()
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == []
        notes.stage(staged(2))
        first.close()
        assert notes.staged("orders", TARGET) == [staged(2)]
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(2)]


def test_a_full_disk_is_a_failed_connection_and_changes_nothing(path):
    with StateStore(path) as notes:
        notes.stage(staged(1))
        connection = notes._database._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ConnectionFailed, match=r"the disk that holds the state file .* is full") as caught:
            notes.stage(staged(2, files=500))
        assert caught.value.next_step
        assert notes.staged("orders", TARGET) == [staged(1)]


def test_a_file_that_may_not_be_written_is_a_configuration_error(path):
    with StateStore(path) as notes:
        notes._database._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(ConfigError, match=r"cannot be written: attempt to write a readonly database") as caught:
            notes.stage(staged(1))
    assert "icefront.yaml" in caught.value.next_step


def test_a_path_that_cannot_be_a_file_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"Not a directory|File exists"):
        StateStore(tmp_path / "file" / "state.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="unable to open database file"):
        StateStore(tmp_path / "folder")


def test_a_file_that_is_locked_for_a_moment_is_waited_for(path):
    with StateStore(path) as notes:
        blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        blocker.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, lambda: blocker.execute("ROLLBACK"))
        timer.start()
        notes.stage(staged(1))
        timer.join()
        blocker.close()
    assert list(path.parent.glob("*locked*")) == []


def test_a_file_that_stays_locked_while_running_is_left_behind_and_work_goes_on(path):
    with StateStore(path, busy_seconds=0.1) as notes:
        notes.stage(staged(1))
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with capture_logs() as logs:
            notes.stage(staged(2))
        assert notes.staged("orders", TARGET) == [staged(2)]
        blocker.execute("DELETE FROM notes")
        blocker.execute("COMMIT")
        blocker.close()
        assert notes.staged("orders", TARGET) == [staged(2)]
    (said,) = logs
    assert said["event"].startswith("the state file stayed locked for 0.1 s, as by a paused process; beginning a new one")
    assert said["moved_to"] == f"{path}.locked-1"
    with StateStore(path) as notes:
        assert notes.staged("orders", TARGET) == [staged(2)]


def test_a_log_that_was_deleted_by_its_name_is_written_again(path):
    """As a process does that was paused while it closed the file of this name before."""
    with StateStore(path) as notes:
        notes.stage(staged(1))
        Path(f"{path}-wal").unlink()
        Path(f"{path}-shm").unlink()
        notes.stage(staged(2))
        with StateStore(path) as others:
            others.stage(staged(3))
        assert notes.staged("orders", TARGET) == [staged(1), staged(2), staged(3)]


def test_threads_share_one_store(path):
    with StateStore(path) as notes:

        def stage_some(first: int) -> None:
            for number in range(first, first + 20):
                notes.stage(staged(number))

        threads = [threading.Thread(target=stage_some, args=(first,)) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(notes.staged("orders", TARGET)) == 80


def test_an_error_inside_a_step_leaves_nothing_of_it(path):
    with StateStore(path) as notes:

        def half(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO runs (run, pipeline, writer, host, pid, started) VALUES ('r', 'orders', '', '', 1, 1)"
            )
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            notes._database.write(half)
        assert notes.runs("orders") == []
        notes.run_started("orders", "r")
