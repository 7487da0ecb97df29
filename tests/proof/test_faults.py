"""When a fault has struck: what another program meets in the table, what it did there, and which runs were refused."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from icefront.proof import faults
from icefront.proof.harness import FENCED, UNREACHABLE, Process, executed, wait_until
from icefront.proof.proxy import FaultProxy, Request, Strike
from icefront.proof.scene import Broken, Cut, Lake, Scene, commit_of
from icefront.proof.sessions import kill_session

ICEBERG = "org.apache.iceberg.exceptions"


class Raised(Exception):
    """What py4j makes of a Java exception and its cause."""

    def __init__(self, name: str, cause: Raised | None = None) -> None:
        super().__init__(name)
        self.java_exception: Any = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getName=lambda: name), getCause=lambda: cause and cause.java_exception
        )


def scene(*answers: Raised) -> Any:
    """A scene whose session fails with these, one after the other, and then succeeds."""
    left = list(answers)

    def sql(_statement: str) -> Any:
        if left:
            raise left.pop(0)
        return SimpleNamespace(collect=list)

    spark = SimpleNamespace(catalog=SimpleNamespace(refreshTable=lambda _: None), sql=sql)
    lake, checker = SimpleNamespace(spark=spark), SimpleNamespace(frontier=(1, 0))
    return SimpleNamespace(checker=checker, lake=lake, table="t", left=left, rivals=[])


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait, but note for how long one would have."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.mark.parametrize("name", ["CommitFailedException", "ValidationException"])
def test_a_conflict_is_tried_again_later_each_time(name: str, waits: list[float]) -> None:
    conflict = Raised(f"{ICEBERG}.{name}")
    assert faults._by_another_program(scene(conflict, Raised("java.lang.RuntimeException", conflict)), "CALL …") == []
    assert waits == [0.1, 0.2]


def test_what_is_no_conflict_is_told_at_once() -> None:
    met = scene(Raised(f"{ICEBERG}.NotFoundException"), Raised(f"{ICEBERG}.CommitFailedException"))
    with pytest.raises(Broken, match=r"attempt 1: Raised: .*NotFoundException"):
        faults._by_another_program(met, "CALL …")
    assert len(met.left) == 1


def test_a_rival_that_comes_first_every_time_leaves_the_blow_undone() -> None:
    met = scene(*[Raised(f"{ICEBERG}.CommitFailedException")] * 9)
    met.rivals.append("a run")
    assert faults._by_another_program(met, "CALL …") is None


def test_conflicts_without_end_are_told_with_the_last_of_them() -> None:
    with pytest.raises(Broken, match=r"attempt 6: Raised: .*CommitFailedException"):
        faults._by_another_program(scene(*[Raised(f"{ICEBERG}.CommitFailedException")] * 9), "CALL …")


# ── what others did ────────────────────────────────────────────────────────────────────────
class Untouched:
    """A lake whose session nobody may ask for."""

    @property
    def spark(self) -> Any:
        raise AssertionError("a session was started")


@pytest.mark.parametrize("blow", ["foreign-append", "compaction", "respec", "manifests", "settle", "orphans"])
def test_a_table_without_rows_is_left_alone_and_no_session_is_started_for_it(blow: str) -> None:
    empty: Any = SimpleNamespace(
        checker=SimpleNamespace(frontier=(0, 0)),
        lake=Untouched(),
        table="lake.t.orders",
        rivals=[],
        settled=False,
        load=lambda: None,
    )
    assert not faults.BLOWS[blow].strike(empty)


def answering(answer: Callable[[str], Any], table: Any) -> Any:
    """A scene with this table, whose session answers statements."""
    made = scene()
    made.lake.spark.sql = lambda statement: SimpleNamespace(collect=lambda: answer(statement))
    made.rng, made.load, made.table = Random(1), lambda: table, "lake.t.orders"
    return made


@pytest.mark.parametrize("removes", [True, False])
def test_orphans_count_when_the_one_that_was_planted_is_gone(tmp_path: Path, *, removes: bool) -> None:
    (tmp_path / "data").mkdir()
    planted: list[Path] = []

    def remove(_statement: str) -> Sequence[Any]:
        planted.extend(tmp_path.glob("data/*"))
        for path in planted if removes else ():
            path.unlink()
        return []

    table = SimpleNamespace(location=tmp_path.as_uri)
    assert faults.BLOWS["orphans"].strike(answering(remove, table)) is removes
    assert len(planted) == 1


@pytest.mark.parametrize("rewritten", [3, 0])
def test_a_rewrite_into_another_spec_counts_when_files_were_rewritten_and_makes_that_spec_where_there_is_none(
    rewritten: int,
) -> None:
    statements: list[str] = []
    specs = {0: "unpartitioned"}

    def execute(statement: str) -> Sequence[Any]:
        statements.append(statement)
        if "ADD PARTITION FIELD" in statement:
            specs[1] = "by bucket"
        return [(rewritten,)]

    table = SimpleNamespace(specs=lambda: specs, metadata=SimpleNamespace(default_spec_id=0))
    for _ in range(2):
        assert faults.BLOWS["respec"].strike(answering(execute, table)) is (rewritten > 0)
    assert [words[0:2] if (words := s.split())[0] == "CALL" else words[3] for s in statements] == [
        "ADD",
        "DROP",
        ["CALL", "lake.system.rewrite_data_files(table"],
        ["CALL", "lake.system.rewrite_data_files(table"],
    ]
    assert all("'output-spec-id', '1'" in s for s in statements[2:])


def test_a_rollback_goes_to_a_snapshot_of_the_branch_that_ends_below_its_frontier() -> None:
    def snapshot(number: int, parent: int | None, frontier: str | None) -> Any:
        summary = SimpleNamespace(additional_properties={"icefront.frontier": frontier} if frontier else {})
        return SimpleNamespace(snapshot_id=number, parent_snapshot_id=parent, summary=summary)

    snapshots = [
        snapshot(1, None, "0.0000000000"),
        snapshot(2, 1, "10.0000000000"),
        snapshot(3, 2, None),  # somebody else's
        snapshot(4, 3, "20.0000000000"),
        snapshot(5, 4, "20.0000000000"),  # a claim
        snapshot(9, 2, "15.0000000000"),  # of another branch
    ]
    table: Any = SimpleNamespace(metadata=SimpleNamespace(snapshots=snapshots, current_snapshot_id=5))
    assert faults._older_snapshots(table) == [2, 1]


def acting(folder: Path, wakes: Callable[[], object]) -> Any:
    """A scene whose run stands right before a commit, does this when it is woken, and ends as it must."""
    run = SimpleNamespace(wake=wakes, stderr="stopped: the table was rolled back")
    made = answering(lambda _: [], None)
    made.lake.folder, made.lake.proxy = folder, None
    made.passing, made.begin, made.launch = lambda _: 1, lambda *_, **_options: run, lambda _: run
    made.follow = made.stands = lambda *_, **_options: True
    made.sees = lambda _run, what, _named: bool(what())
    made.check = lambda: None
    made.drain = made.expect = lambda *_: None
    made.named = lambda _: "run 1"
    made.keeping = lambda _: nullcontext()
    return made


@pytest.mark.parametrize("begins", [True, False])
def test_a_locked_catalog_counts_when_a_commit_was_begun_and_waited_for_it(tmp_path: Path, *, begins: bool) -> None:
    database = tmp_path / "catalog.db"
    sqlite3.connect(database).close()

    def is_locked() -> bool:
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    old, new = (tmp_path / f"{number}.metadata.json" for number in (1, 2))
    made = acting(tmp_path, new.touch if begins else lambda: None)
    made.metadata = lambda: str(new if new.exists() and not is_locked() else old)
    assert faults.LIVES["catalog-locked"].strike(made) is begins


def rolled_back(changed: str, ends: Callable[..., None]) -> tuple[Any, list[str]]:
    """A table of two epochs on which a run stands, and what is called on it; after the rollback its metadata is in these files."""
    called: list[str] = []
    log = [SimpleNamespace(snapshot_id=number) for number in (1, 2, 1)]
    summaries = [SimpleNamespace(additional_properties={"icefront.frontier": f"{n}0.0000000000"}) for n in (1, 2)]
    snapshots = [
        SimpleNamespace(snapshot_id=n, parent_snapshot_id=n - 1, summary=summary) for n, summary in enumerate(summaries, 1)
    ]
    made = acting(Path(), lambda: None)
    made.load = lambda: SimpleNamespace(metadata=SimpleNamespace(snapshots=snapshots, current_snapshot_id=2, snapshot_log=log))
    files = iter(("a", changed))
    made.metadata = lambda: next(files)

    def call(statement: str) -> Any:
        called.append(statement)
        return SimpleNamespace(collect=list)

    made.lake.spark.sql = call
    made.expect = ends
    return made, called


def test_a_table_that_was_rolled_back_is_set_forward_again_also_when_a_run_was_cut_short() -> None:
    def cut(*_: Any) -> None:
        raise Cut("the catalog was not to be reached")

    back, forward = (f"CALL lake.system.set_current_snapshot(table => 't.orders', snapshot_id => {n})" for n in (1, 2))
    made, called = rolled_back("a", lambda *_: None)
    assert faults.LIVES["rolled-back"].strike(made)
    assert called == [back, forward]
    made, called = rolled_back("a", cut)
    with pytest.raises(Cut):
        faults.LIVES["rolled-back"].strike(made)
    assert called == [back, forward]


def test_a_run_that_stops_for_another_reason_than_the_rollback_is_told() -> None:
    made, _ = rolled_back("a", lambda *_: None)
    made.launch = lambda _: SimpleNamespace(stderr="stopped: the commit is uncertain")
    with pytest.raises(Broken, match="expected a table that was rolled back, found another reason"):
        faults.LIVES["rolled-back"].strike(made)


def test_a_run_that_changes_a_table_that_was_rolled_back_is_told() -> None:
    made, called = rolled_back("b", lambda *_: None)
    with pytest.raises(Broken, match="expected the metadata a, found b"):
        faults.LIVES["rolled-back"].strike(made)
    assert len(called) == 1, "the table must stay as it was found"


# ── runs that are refused ──────────────────────────────────────────────────────────────────
class Ended:
    """A run that has ended, or one that goes on and publishes."""

    pid = 0
    stderr = ""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def wake(self) -> None: ...

    def wait(self) -> int:
        assert self.code is not None
        return self.code

    def epochs(self) -> Sequence[str]:
        return ["an epoch"]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene in which no process was started, and no table is."""
    monkeypatch.setattr("icefront.proof.harness.quick_jvm", dict)
    return Scene(tmp_path / "scene-1", "prove_1", Random(1), Lake(tmp_path / "lake"))


def test_what_a_killed_jvm_leaves_behind_lies_in_the_scene_whatever_else_it_is_told(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=b")

    def begin(_command: Sequence[str], *rest: Any) -> Process:
        return executed([sys.executable, "-c", "import os; print(os.environ['SPARK_SUBMIT_OPTS'])"], *rest)

    stage.by = begin
    with stage.launch({}) as run:
        run.expect(0)
        assert run.stdout == f"-Da=b -Djava.io.tmpdir={stage.folder}\n"


def played(stage: Scene, *codes: int | None) -> Any:
    """Let runs begin that end so, or go on."""
    runs: list[Any] = [Ended(code) for code in codes]
    stage._drivers.extend(runs)
    return runs


def test_of_several_runs_at_once_one_must_go_on_and_all_others_be_refused(stage: Scene) -> None:
    refused, goes_on, too = runs = played(stage, FENCED, None, FENCED)
    assert faults._the_one_that_goes_on(stage, runs) is goes_on
    with pytest.raises(Broken, match="expected one that goes on, found all were refused"):
        faults._the_one_that_goes_on(stage, [refused, too])
    with pytest.raises(Broken, match="expected an end with 4, found 0"):
        faults._the_one_that_goes_on(stage, [*played(stage, 0), goes_on])


def test_one_that_is_refused_a_moment_later_did_not_go_on(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, later = runs = played(stage, FENCED, None)

    def end() -> Sequence[str]:
        later.code = FENCED
        return []

    monkeypatch.setattr(later, "epochs", end)
    with pytest.raises(Broken, match="all were refused"):
        faults._the_one_that_goes_on(stage, runs)
    assert refused.code == FENCED


def commit(epoch: str, writer: str = "mine#1", **more: str) -> Request:
    summary = {"icefront.writer": writer, "icefront.epoch-id": epoch, **{f"icefront.{name}": text for name, text in more.items()}}
    updates = [{"action": "add-snapshot", "snapshot": {"summary": summary}}, {"action": "set-snapshot-ref"}]
    return Request("POST", "/v1/namespaces/n/tables/t", {}, json.dumps({"updates": updates}).encode())


def test_a_claim_is_known_by_its_writer_and_upkeep_ends_no_run() -> None:
    assert commit_of(commit("a", claim="true")) == commit_of(commit("b", "mine#2", claim="true"))
    assert commit_of(commit("a", claim="true")) != commit_of(commit("a", "other#1", claim="true"))
    assert len({commit_of(commit("a")), commit_of(commit("b")), commit_of(commit("b", claim="true", change="schema"))}) == 3
    assert commit_of(commit("a", upkeep="settle")) == commit_of(Request("POST", "/", {}, b"")) == ""


def test_what_ends_no_run_excuses_none_however_often_it_is_struck(stage: Scene) -> None:
    proxy = stage.lake.proxy = FaultProxy("http://127.0.0.1:9")
    stage.by = lambda _command, *rest: executed(["sh", "-c", f"exit {UNREACHABLE}"], *rest)
    with stage.launch({}) as run:
        proxy.strikes += [Strike("500-before", commit("a", upkeep="settle"))] * 9
        with pytest.raises(Broken, match="expected an end with 4, found 3"):
            stage.expect(run, FENCED)


@pytest.mark.parametrize(("struck", "others", "allowed"), [(0, 0, False), (5, 9, False), (6, 0, True)])
def test_a_run_that_lost_the_catalog_is_cut_short_only_where_one_commit_was_struck_more_often_than_it_must_survive(
    stage: Scene, *, struck: int, others: int, allowed: bool
) -> None:
    """What was struck before it began does not count, nor what struck other commits."""
    proxy = stage.lake.proxy = FaultProxy("http://127.0.0.1:9")
    stage.by = lambda _command, *rest: executed(["sh", "-c", f"exit {UNREACHABLE}"], *rest)
    strikes = [Strike("500-before", commit("a"))] * struck
    proxy.strikes += [Strike("500-before", commit("a"))] * 3
    with stage.launch({}) as run:
        proxy.strikes += strikes + [Strike("500-before", commit(f"b{number}")) for number in range(others)]
        with pytest.raises(Cut if allowed else Broken, match=r"could not reach the catalog|expected an end with 4, found 3"):
            stage.expect(run, FENCED)
        stage.expect(run, UNREACHABLE)


@pytest.mark.parametrize("at_work", [True, False])
def test_a_jvm_is_killed_while_it_is_at_work_and_otherwise_its_run_goes_on_to_its_end(
    stage: Scene, tmp_path: Path, *, at_work: bool
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nsleep 600\n")
    java.chmod(0o755)
    waits = f"trap 'kill $!; exit 0' TERM; {java} 600 & wait $!; exit {UNREACHABLE}"
    stage.by = lambda _command, *rest: executed(["sh", "-c", waits], *rest)
    with stage.launch({}) as run:
        wait_until(run.jvm)
        assert faults._loses_its_jvm(stage, run, at_work=at_work) is at_work
        assert run.code == (UNREACHABLE if at_work else 0)


def test_a_killed_run_whose_jvm_lives_on_may_still_commit_what_is_staged(stage: Scene, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nsleep 600\n")
    java.chmod(0o755)

    def begin(_command: Sequence[str], *rest: Any) -> Process:
        return executed(["sh", "-c", f"{java} 600 & exit 0"], *rest)

    stage.by = begin
    with stage.launch({}) as run:
        run.expect(0)
        wait_until(run.jvm)
        assert not stage.deserted
        kill_session(run.pid)
        assert stage.deserted


@pytest.mark.parametrize("deserted", [True, False])
def test_before_a_staged_file_is_lost_no_run_lives_and_late_commits_arrive(stage: Scene, *, deserted: bool) -> None:
    called: list[str] = []
    met: Any = SimpleNamespace(
        lake=SimpleNamespace(proxy=SimpleNamespace(release=lambda: called.append("release"))),
        check=lambda: called.append("check"),
        state=stage.state,
        lives=not deserted,
        deserted=deserted,
    )
    assert not faults.BLOWS["staged-lost"].strike(met)
    assert called == (["release", "check"] if deserted else [])


def test_a_life_in_creation_is_not_played_once_there_is_a_table(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes again when it was cut short, and a run that finds a table passes none of its failpoints."""
    monkeypatch.setattr(Scene, "load", lambda _: "a table")
    assert not faults.FIRST.strike(stage)


def test_a_zombie_counts_when_it_is_refused_and_not_before(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[str] = []
    stage.struck = struck.append
    zombie, other = played(stage, FENCED, FENCED)
    stage.leave(zombie, "zombie")
    stage.leave(other)
    stage._overtake(stage.old)
    assert stage.old == [zombie, other]
    assert not struck
    monkeypatch.setattr(stage, "owner", lambda: "its successor")
    stage._overtake(list(stage.old))
    assert not stage.old
    assert struck == ["zombie"]
    assert faults.LIVES["zombie"].later
