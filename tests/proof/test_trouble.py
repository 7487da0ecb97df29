"""What is not the table's ends a proof without a verdict: a full disk, a catalog that is away, a machine on which it cannot be done."""

from __future__ import annotations

import errno
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table
from typer.testing import Result

from icefront.cli import proving
from icefront.cli.proving import exit_code
from icefront.core.errors import ConfigError, ConnectionFailed
from icefront.proof import failpoints, trouble
from icefront.proof.checker import Kind, Violation
from icefront.proof.harness import spark_home
from icefront.proof.prove import INSISTING, Prove
from icefront.proof.report import Report
from icefront.proof.scene import Broken, Lake
from tests.cli.projects import icefront
from tests.servers.rest import RestCatalog

NOBODY = "http://127.0.0.1:9"
FULL = OSError(errno.ENOSPC, "No space left on device")
GAP = Violation(Kind.GAP, "snapshot 1", "an epoch", "none")
EXIT = Violation("exit", "run 1 of scene-1", "an end with 0", "1")


class Played:
    """A scene in which nothing happens but what `play` does; it knows how it was named, and whether it was dropped."""

    named: list[str]
    dropped: list[str]

    def __init__(self, folder: Path, name: str, _rng: Random, lake: Lake, *_: Any) -> None:
        self.folder, self.name, self.lake = folder, name, lake
        self.checker = SimpleNamespace(violations=[], check=list)
        folder.mkdir()
        Played.named.append(name)

    def drop(self) -> None:
        Played.dropped.append(self.name)

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


Proves = Callable[..., Report]


@pytest.fixture
def proves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proves:
    """Prove it with scenes that end the way that is given."""
    Played.named, Played.dropped = [], []
    monkeypatch.setattr("icefront.proof.prove.Scene", Played)
    monkeypatch.setattr(Prove, "_add", lambda *_: None)

    def prove(end: BaseException | None = None, log: str = "", **given: Any) -> Report:
        def play(prove: Prove, scene: Any) -> None:
            prove.report.epochs += 7
            said = scene.folder / "driver-1" / "stderr"
            said.parent.mkdir()
            said.write_text(log)
            if end is not None:
                raise end

        monkeypatch.setattr(Prove, "_play", play)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        with proving.Screen(quiet=True) as screen:
            return Prove(folder, screen, minutes=0.0001, seed=1, **given)()

    return prove


# ── while it runs ──────────────────────────────────────────────────────────────────────────
def test_a_scene_that_ends_in_an_error_is_a_violation_with_its_folder(proves: Proves, tmp_path: Path) -> None:
    """A metadata file that is gone, and whoever looks at the table fails."""
    done = proves(FileNotFoundError("00003.metadata.json"))
    assert [str(found) for found in done.violations] == [
        "unreadable: scene-1: expected a scene that can be played on, found FileNotFoundError: 00003.metadata.json"
    ]
    assert exit_code(done) == 7
    (told,) = tmp_path.glob("*/scene-1/error.txt")
    assert "FileNotFoundError" in told.read_text()


@pytest.mark.parametrize(
    ("end", "log", "said"),
    [
        (FULL, "", "a disk is full: [Errno 28] No space left on device"),
        (OSError(errno.EMFILE, "Too many open files"), "", "this machine is out of open files: OSError: [Errno 24]"),
        (BlockingIOError(errno.EAGAIN, "fork"), "", "this machine is out of processes or memory: BlockingIOError"),
        (MemoryError(), "", "this machine is out of memory: MemoryError"),
        (requests.ReadTimeout("silence"), "", "the catalog does not answer any more: ReadTimeout: silence"),
        (requests.ConnectionError("refused"), "", "the catalog does not answer any more: ConnectionError: refused"),
        (Broken(EXIT), "error: a disk is full: No space left on device", "a disk is full: error: a disk is full"),
    ],
)
def test_what_is_not_the_table_s_ends_it_with_the_report_so_far(proves: Proves, end: Exception, log: str, said: str) -> None:
    done = proves(end, log)
    assert (exit_code(done), done.violations, done.epochs) == (3, [], 7)
    assert str(done.error).startswith(said)
    assert str(done.to_dict()["error"]).startswith(said)


@pytest.mark.parametrize("end", [FULL, ConnectionFailed("the catalog is away", "start it"), KeyboardInterrupt()])
def test_what_was_seen_in_the_table_before_is_a_violation_whatever_ends_it(
    proves: Proves, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: BaseException
) -> None:
    seen = SimpleNamespace(violations=[GAP, EXIT], check=list)
    made = Played.__init__

    def with_violations(scene: Played, *given: Any) -> None:
        made(scene, *given)
        scene.checker = seen

    monkeypatch.setattr(Played, "__init__", with_violations)
    done = proves(end)
    assert (exit_code(done), done.violations, done.doubtful, Played.dropped) == (7, [GAP], [EXIT], [])
    assert list(tmp_path.glob("*/scene-1"))


def test_runs_that_fail_on_a_disk_without_room_say_nothing_about_the_table(
    proves: Proves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    assert exit_code(proves(Broken(EXIT))) == 3


def test_runs_that_fail_where_the_system_kills_for_memory_say_nothing_about_the_table(
    proves: Proves, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trouble.killed_for_memory()
    monkeypatch.setattr(trouble, "killed_for_memory", lambda: before + 2)
    done = proves(Broken(EXIT))
    assert (exit_code(done), done.violations) == (3, [])
    assert "the system has killed 2 processes" in str(done.error)


REMOVED = Violation(Kind.REMOVED, "snap-1.avro", "9 bytes", "no file")
UNREAD = Violation(Kind.UNREADABLE, "the table", "a table that can be read", "ValueError")


def killed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    before = trouble.killed_for_memory()
    monkeypatch.setattr(trouble, "killed_for_memory", lambda: before + 1)


def will_see(monkeypatch: pytest.MonkeyPatch, *seen: Violation, error: Exception | None = None) -> None:
    """Let the look at the end of a scene see this."""
    made = Played.__init__

    def with_violations(scene: Played, *given: Any) -> None:
        made(scene, *given)
        checker = scene.checker

        def check() -> None:
            checker.violations += [violation for violation in seen if violation not in checker.violations]
            if error is not None:
                raise error

        checker.check = check

    monkeypatch.setattr(Played, "__init__", with_violations)


@pytest.mark.parametrize("error", [None, FULL])
def test_a_file_that_is_gone_is_a_violation_though_the_system_has_killed_for_memory(
    proves: Proves, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Also where it is seen only when the scene has ended for what cannot be read any more."""
    killed_meanwhile(monkeypatch)
    will_see(monkeypatch, REMOVED, error=error)
    done = proves(Broken(UNREAD))
    assert exit_code(done) == 7
    assert REMOVED in done.violations
    assert (UNREAD in done.doubtful) == (error is not None), (
        "told as a violation beside the other, unless something else ended the look"
    )
    assert {*done.violations, *done.doubtful} == {UNREAD, REMOVED}


@pytest.mark.parametrize("end", [Broken(UNREAD), KeyboardInterrupt()])
def test_what_was_seen_and_is_excused_is_in_the_report_and_its_folder_stays(
    proves: Proves, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], end: BaseException
) -> None:
    killed_meanwhile(monkeypatch)
    will_see(monkeypatch, UNREAD)
    if isinstance(end, KeyboardInterrupt):
        made = Played.__init__

        def looked(scene: Played, *given: Any) -> None:
            made(scene, *given)
            scene.checker.check()

        monkeypatch.setattr(Played, "__init__", looked)
    done = proves(end)
    assert (done.violations, done.doubtful, Played.dropped) == ([], [UNREAD], [])
    assert exit_code(done) in {3, 130}
    assert list(tmp_path.glob("*/scene-1"))
    (tmp_path / "folder").mkdir()
    proving._clean_up(done, tmp_path / "folder", keep=False)
    assert (tmp_path / "folder").exists()
    assert f"everything is in {tmp_path / 'folder'}" in capsys.readouterr().err


def test_a_session_of_our_own_that_lost_its_jvm_says_nothing_about_the_table(
    proves: Proves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take the report with it: stopping such a session fails."""
    ended = SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(poll=lambda: 137)))

    def stop() -> None:
        raise ConnectionRefusedError

    def begin(lake: Lake) -> None:
        lake.__dict__["spark"] = SimpleNamespace(sparkContext=ended, stop=stop)

    made = Played.__init__

    def with_session(scene: Played, *given: Any) -> None:
        made(scene, *given)
        begin(scene.lake)

    monkeypatch.setattr(Played, "__init__", with_session)
    done = proves(ConnectionResetError("by the JVM"))
    assert (exit_code(done), done.violations, done.epochs) == (3, [], 7)
    assert "the JVM that reads the tables has ended with 137" in str(done.error)


def test_runs_that_fail_while_the_catalog_is_away_say_nothing_about_the_table(proves: Proves) -> None:
    assert exit_code(proves(Broken(EXIT))) == 7, "an embedded catalog is never away"
    done = proves(Broken(EXIT), uri=NOBODY)
    assert (exit_code(done), done.violations) == (3, [])
    assert NOBODY in str(done.error)


@pytest.mark.parametrize("log", ["", "No space left on device"])
def test_what_was_seen_in_the_table_itself_is_a_violation_in_all_circumstances(proves: Proves, log: str) -> None:
    assert proves(Broken(GAP), log, uri=NOBODY).violations == [GAP]


class Unheard(proving.Screen):
    """A display whose reader has gone."""

    gone = errno.EPIPE

    def lived(self, *_: Any) -> None:
        raise OSError(self.gone, "nobody reads")


@pytest.mark.parametrize("gone", [errno.EPIPE, errno.EIO], ids=["a pipe", "a terminal"])
def test_when_nobody_reads_on_it_ends_as_by_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int) -> None:
    monkeypatch.setattr(Unheard, "gone", gone)
    Played.named, Played.dropped = [], []
    monkeypatch.setattr("icefront.proof.prove.Scene", Played)
    monkeypatch.setattr(Prove, "_add", lambda *_: None)
    monkeypatch.setattr(Prove, "_play", lambda prove, _: prove._tell("a life"))
    done = Prove(tmp_path, Unheard(quiet=True), minutes=1, seed=1)()
    assert (exit_code(done), done.interrupted, done.violations) == (130, True, [])
    assert Played.dropped == Played.named


def test_ctrl_c_while_runs_are_ended_is_heeded_when_that_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more pressed, it would leave runs behind, or half of a folder."""
    proof = Prove(tmp_path, proving.Screen(quiet=True), minutes=1, seed=1)
    Played.named, Played.dropped = [], []
    monkeypatch.setattr("icefront.proof.prove.Scene", Played)
    monkeypatch.setattr(Prove, "_add", lambda *_: None)
    monkeypatch.setattr(Prove, "_play", lambda prove, _: prove._heed())
    monkeypatch.setattr(Played, "__exit__", lambda *_: proof.interrupt())
    done = proof()
    assert done.interrupted
    assert done.scenes == 2, "the second one begins, and heeds what came in the end of the first"
    assert Played.dropped == Played.named


def test_who_insists_ends_it_whatever_is_done_at_that_moment(tmp_path: Path) -> None:
    proof = Prove(tmp_path, proving.Screen(quiet=True), minutes=1, seed=1)
    proof._leave()
    for _ in range(INSISTING - 1):
        proof.interrupt()
    with pytest.raises(KeyboardInterrupt):
        proof.interrupt()


# ── what is left in a catalog of the user's ────────────────────────────────────────────────
def test_a_seed_is_repeated_in_a_namespace_of_another_name(proves: Proves) -> None:
    """What a proof left, or another one does at the same time, is not in its way."""
    for _ in range(2):
        proves()
    one, other = Played.named
    assert one != other
    assert one.startswith("prove_")


@pytest.mark.parametrize(
    ("end", "keep", "said"),
    [(None, False, ""), (None, True, "is left"), (Broken(GAP), False, "is left"), (FULL, False, "may be left")],
)
def test_a_namespace_that_stays_is_told(
    proves: Proves, end: Exception | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, keep: bool
) -> None:
    done = proves(end, uri=NOBODY, keep=keep)
    (name,) = Played.named
    assert Played.dropped == ([] if said else [name])
    assert done.to_dict()["namespaces_left"] == ([name] if said else [])
    (tmp_path / "folder").mkdir()
    proving._clean_up(done, tmp_path / "folder", keep=keep)
    told = capsys.readouterr().err
    assert (f"namespace {name} {said} in {NOBODY}" in told) == bool(said)
    assert (tmp_path / "folder").exists() == ("everything is in" in told) == (keep or bool(done.violations))


# ── before it begins ───────────────────────────────────────────────────────────────────────
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=trouble.ROOM - 1))


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "MEMORY", 10**15)


def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nonexistent")
    spark_home.cache_clear()


def hurt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("settle.before=kill"))


def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not path.is_relative_to("/proc") and exists(path))


@pytest.mark.parametrize(
    ("without", "arguments", "code", "said"),
    [
        (None, ["--minutes", "inf"], 2, "inf minutes have no end"),
        (None, ["--minutes", "nan"], 2, "greater than or equal to 0.1"),
        (None, ["--catalog", "rest"], 2, "a REST catalog has an address"),
        (None, ["--catalog", "rest", "--uri", NOBODY], 3, f"the catalog at {NOBODY} cannot be used: ConnectionError"),
        (no_java, [], 2, "/nonexistent"),
        (no_room, [], 3, "1,000 MB left, and a proof needs 1,000 MB"),
        (no_memory, [], 3, "GB are free, and a proof needs 1,000,000.0 GB"),
        (no_spark, [], 2, "SPARK_HOME is /nonexistent, and there is no bin/spark-submit in it"),
        (hurt, [], 2, "ICEFRONT_FAILPOINTS arms settle.before in this shell: that would hurt prove itself"),
        (no_processes, [], 2, "this system has no /proc"),
    ],
)
def test_what_cannot_be_proved_here_is_refused_before_anything_is_made(
    without: Callable[[pytest.MonkeyPatch], None] | None,
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(*_: object) -> Report:
        raise AssertionError("it began")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(proving, "class_archive", begin)
    monkeypatch.setattr(Prove, "__call__", begin)
    monkeypatch.setattr(trouble, "MEMORY", 0)  # others run beside
    if without is not None:
        without(monkeypatch)
    refused = icefront("prove", *arguments)
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_catalog_that_takes_connections_and_keeps_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "ANSWER", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=f"the catalog at {uri} cannot be used: ReadTimeout"):
            trouble.reach(uri)


class Catalog(InMemoryCatalog):
    """A catalog in memory, whose new tables may be said to lie elsewhere."""

    elsewhere: str | None = None
    data: Mapping[str, str] = {}

    def create_table(self, *given: Any, **how: Any) -> Table:
        table = super().create_table(*given, **{**how, "properties": dict(self.data)})
        if self.elsewhere is not None:
            table.metadata_location = self.elsewhere
        return table


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The one that is found at any address."""
    catalog = Catalog("tried", warehouse=f"file://{tmp_path / 'warehouse'}")
    monkeypatch.setattr(trouble, "load", lambda *_, **__: catalog)
    return catalog


def test_a_catalog_whose_tables_lie_here_is_taken_and_nothing_is_left_in_it(catalog: Catalog) -> None:
    trouble.try_out(NOBODY)
    assert catalog.list_namespaces() == []


@pytest.mark.parametrize(
    ("elsewhere", "data", "said"),
    [
        ("s3://bucket/one/metadata/0.json", {}, "has them at s3://bucket/one/metadata/0.json"),
        ("file:///nowhere/0.json", {}, "has them at file:///nowhere/0.json, where there is no file here"),
        (None, {"write.data.path": "s3://bucket/data"}, "has them at s3://bucket/data/one.parquet"),
    ],
)
def test_a_catalog_whose_tables_lie_elsewhere_is_refused_and_nothing_is_left_in_it(
    catalog: Catalog, elsewhere: str | None, data: dict[str, str], said: str
) -> None:
    catalog.elsewhere, catalog.data = elsewhere, data
    with pytest.raises(ConfigError) as refused:
        trouble.try_out(NOBODY)
    assert said in refused.value.fact
    assert NOBODY in refused.value.fact
    assert catalog.list_namespaces() == []


def test_a_catalog_that_does_not_let_us_write_a_table_is_refused_and_nothing_is_left_in_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Table, "append", refuse)
    with pytest.raises(ConnectionFailed, match=rf"namespace prove_\w+ of the catalog at {NOBODY}: PermissionError"):
        trouble.try_out(NOBODY)
    assert catalog.list_namespaces() == []


def test_a_rest_catalog_with_a_warehouse_in_a_folder_is_taken_and_nothing_is_left_in_it(rest_catalog: RestCatalog) -> None:
    before = load_catalog("near", **rest_catalog.properties).list_namespaces()
    trouble.try_out(rest_catalog.uri)
    assert load_catalog("near", **rest_catalog.properties).list_namespaces() == before


# ── how it ends ────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Prove], Report]], Result]:
    """Let a proof end in a way, and tell how the command does."""

    def prove(end: Callable[[Prove], Report]) -> Result:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the test run stay
        monkeypatch.setattr(proving, "has_class_archive", lambda: False)
        monkeypatch.setattr(proving, "class_archive", lambda: None)
        monkeypatch.setattr(trouble, "MEMORY", 0)
        monkeypatch.setattr(Prove, "__call__", end)
        return icefront("prove", "--seed", "1")

    return prove


def test_an_error_that_nobody_foresaw_says_where_everything_is(ends: Callable[..., Result], tmp_path: Path) -> None:
    def fail(proof: Prove) -> Report:
        proof.report.left.append("prove_1")
        raise ZeroDivisionError

    ended = ends(fail)
    (folder,) = tmp_path.glob("icefront-prove-*")
    assert (ended.exit_code, f"everything is in {folder}" in ended.stderr) == (1, True)
    assert "namespace prove_1 is left" in ended.stderr


def test_a_catalog_that_goes_away_leaves_the_report_and_no_folder(ends: Callable[..., Result], tmp_path: Path) -> None:
    def lose(prove: Prove) -> Report:
        return replace(prove.report, struck=Counter(zombie=3), error=ConnectionFailed("it is away", "bring it back"))

    ended = ends(lose)
    assert "zombie\t3" in ended.stdout
    assert "It ended after 0 s because of this machine or the catalog, not because of a table." in ended.stdout
    assert (ended.exit_code, "error: it is away\n  → bring it back" in ended.stderr) == (3, True)
    assert not list(tmp_path.iterdir())


def test_the_first_time_on_a_machine_says_what_it_prepares_and_keeps(ends: Callable[..., Result]) -> None:
    said = "preparing Spark's classes, once on this machine: half a minute, and 150 MB in the cache …"
    assert said in ends(lambda prove: prove.report).stderr
