"""`icefront prove` itself: it holds for three minutes, strikes with every kind, ends cleanly, and can go red."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random, randrange
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.catalog import load_catalog

from icefront.cli.proving import Screen
from icefront.proof.checker import Violation
from icefront.proof.failpoints import OF_A_RUN, OF_UPKEEP
from icefront.proof.faults import FIRST
from icefront.proof.harness import PROGRAM, wait_until
from icefront.proof.prove import Prove, kinds
from icefront.proof.proxy import RANDOM_FAULTS
from icefront.proof.scene import Broken, Cut, Scene
from icefront.proof.sessions import processes
from tests import sabotage
from tests.servers.rest import RestCatalog

pytestmark = [pytest.mark.process, pytest.mark.timeout(1500)]

SABOTAGED = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(sabotage.ROOT)!r})
from icefront.cli.proving import Screen, exit_code
from icefront.proof import prove
from tests.process.forked import forked
folder, minutes, seed, life, *program = sys.argv[1:]
prove.LIVES = {{life: prove.LIVES[life]}} if life else prove.LIVES
report = prove.Prove(Path(folder), Screen(quiet=True), minutes=int(minutes), seed=int(seed), program=program, begin=forked)()
print(json.dumps(report.to_dict()))
sys.exit(exit_code(report))
"""


FORKING = f"""
import sys
from functools import partial
sys.path.insert(0, {str(sabotage.ROOT)!r})
from icefront.cli import main, proving
from tests.process.forked import forked
proving.Prove = partial(proving.Prove, begin=forked)
sys.argv[0:1] = ["icefront"]
main()
"""
"""The command itself, but for how its runs begin: they need not import anything."""


@contextmanager
def proving(folder: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start it with a folder of its own for temporary files, and see that nothing of it is left running."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        assert not left_running(folder)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with a short path: sockets are made in it. It stays when its test goes red."""
    red = request.session.testsfailed
    folder = Path(tempfile.mkdtemp(prefix="i-"))
    yield folder
    if request.session.testsfailed == red:
        shutil.rmtree(folder)


def left_running(folder: Path) -> list[int]:
    """Name the processes that still work in the folder, a moment after their end was ordered."""
    deadline = time.monotonic() + 20
    while (found := [p.pid for p in processes() if p.lives and works_in(p.pid, folder)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def prove(*arguments: str, by: Sequence[str] = PROGRAM) -> Sequence[str]:
    return [*by, "prove", "--json", *arguments]


def ended(process: subprocess.Popen[str]) -> tuple[int, Mapping[str, Any], str]:
    out, err = process.communicate(timeout=1400)
    return process.returncode, json.loads(out), err


def survives(folder: Path, kinds: set[str], *arguments: str) -> Mapping[str, Any]:
    """Three minutes of random faults are survived, every kind was struck, and nothing is left."""
    with proving(folder, prove("--minutes", "3", *arguments, by=[sys.executable, "-c", FORKING])) as process:
        code, report, err = ended(process)
    assert code == 0, json.dumps(
        [report["command"], report["found_during"], report["violations"], report["not_struck_enough"], err[-5000:]], indent=1
    )
    assert report["violations"] == report["not_struck_enough"] == []
    assert report["faults"].keys() == kinds
    assert all(report["faults"].values())
    assert sum(report["lives_cut_short"].values()) <= 2, report["lives_cut_short"]
    assert report["snapshots_checked"] >= report["epochs"] > 20  # settles are looked at too
    assert [engine.partition(" ")[0] for engine in report["engines"]] == ["Spark", "DataFusion"]
    assert not list(folder.glob("icefront-prove-*"))
    return report


def test_three_minutes_of_random_faults_before_and_behind_a_rest_catalog_are_survived(
    rest_catalog: RestCatalog, folder: Path
) -> None:
    """Of all kinds but the one that locks an embedded catalog: those of the proxy in front of this one come on top of the others.

    With this seed the first table has equality deletes, and can be settled: with one that has none, all kinds would take two tables.
    """
    report = survives(folder, set(kinds(rest=True)), "--seed", "9", "--catalog", "rest", "--uri", rest_catalog.uri)
    assert report["namespaces_left"] == []
    left = load_catalog("near", **rest_catalog.properties).list_namespaces()
    assert not [name for (name, *_) in left if name.startswith("prove_")]


@pytest.mark.long
def test_three_minutes_of_random_faults_with_the_embedded_catalog_are_survived(folder: Path) -> None:
    survives(folder, set(kinds(rest=False)), "--seed", str(randrange(10**6)) if "ICEFRONT_SEARCH" in os.environ else "21")


def test_a_few_seconds_of_it_as_people_start_it_are_survived(folder: Path) -> None:
    """Nothing stands between: its runs are executed, its catalog is the embedded one. Its time allows few lives."""
    with proving(folder, [*PROGRAM, "prove", "--minutes", "0.1", "--seed", "5"]) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, (out, err)
    assert " 0 violations" in out
    assert re.search(r"^engines: Spark \S+, DataFusion \S+$", out, re.MULTILINE)
    said = r"^No violation was found in \d+ s, but some kinds of faults were never struck\. To repeat: icefront prove --minutes 0.1 --seed 5$"
    assert re.search(said, out, re.MULTILINE)
    assert "not struck here: requests to a REST catalog" in out
    assert not list(folder.glob("icefront-prove-*"))


def sabotaged(folder: Path, switch: str, *, seed: int, life: str = "") -> Sequence[Mapping[str, str]]:
    """Let a broken protocol go red, by any kind of life or by one; returns what was found."""
    command = [sys.executable, "-c", SABOTAGED, str(folder / "prove"), "1", str(seed), life, *sabotage.program(switch)]
    with proving(folder, command) as process:
        code, report, err = ended(process)
    assert code == 7, (report, err[-5000:])
    assert (folder / "prove" / "scene-1" / "orders.yaml").exists()
    violations: Sequence[Mapping[str, str]] = report["violations"]
    return violations


def test_a_broken_protocol_makes_it_red_and_its_folder_is_kept(folder: Path) -> None:
    violations = sabotaged(folder, "squash-two-epochs", seed=4)
    assert {violation["kind"] for violation in violations} == {"rows"}
    assert any("repeated" in violation["found"] for violation in violations)


@pytest.mark.long
@pytest.mark.parametrize(
    ("switch", "seed", "life", "seen"),
    [
        ("fence-off", 48, "zombie", r"^(gap|epoch-twice|rows): "),
        ("writer-unchecked", 48, "zombie", r"^writer: |^exit: .*: expected an end with 4, found [05];"),
        ("release-before-publish", 5, "killed-before-commit", "^released: "),
    ],
)
def test_what_else_is_broken_makes_it_red_where_a_life_shows_it(
    folder: Path, switch: str, seed: int, life: str, seen: str
) -> None:
    violations = sabotaged(folder, switch, seed=seed, life=life)
    assert any(re.search(seen, str(Violation(**violation))) for violation in violations), violations


def test_ctrl_c_ends_it_with_the_report_and_leaves_nothing_behind(folder: Path) -> None:
    with proving(folder, prove("--minutes", "3", "--seed", "5")) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if FIRST.name in line)  # one life is over
        wait_until(lambda: any(works_in(p.pid, folder) and p.name == "java" for p in processes()), what="no other life began")
        os.kill(process.pid, signal.SIGINT)
        code, report, _ = ended(process)
    assert (code, report["interrupted"], report["violations"]) == (130, True, [])
    assert report["faults"][FIRST.name] == 1
    assert not list(folder.glob("icefront-prove-*"))


def test_killed_it_leaves_no_run_of_its_own_behind(folder: Path) -> None:
    with proving(folder, prove("--minutes", "3", "--seed", "5")) as process:
        wait_until(lambda: any(works_in(p.pid, folder) and p.name == "java" for p in processes()), what="no life began")
        process.kill()
        process.wait()
        assert not left_running(folder)


class CutShort:
    """A scene whose last run does not reach the catalog, so many times."""

    folder = Path("scene-1")

    def __init__(self, times: int) -> None:
        self.left = times
        self.abandoned = 0

    def catch_up(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise Cut("run 7 of scene-1 could not reach the catalog")

    def abandon(self) -> None:
        self.abandoned += 1


def test_a_last_run_that_does_not_reach_the_catalog_is_repeated_and_in_the_end_told(tmp_path: Path) -> None:
    prove = Prove(tmp_path, Screen(quiet=True), minutes=1, seed=1)
    once, always = CutShort(1), CutShort(99)
    prove._catch_up(cast("Scene", once))
    assert (once.left, once.abandoned) == (-1, 1)
    with pytest.raises(Broken, match=r"behind: scene-1: .* could not reach the catalog"):
        prove._catch_up(cast("Scene", always))
    assert always.abandoned == 3


def test_requests_that_were_dealt_and_did_not_come_are_dealt_again_before_any_other(tmp_path: Path) -> None:
    prove = Prove(tmp_path, Screen(quiet=True), minutes=3, seed=1, uri="http://127.0.0.1:1")
    armed: list[str] = []
    proxy = SimpleNamespace(arm=lambda name, **_: armed.append(name))
    scene = cast("Scene", SimpleNamespace(rng=Random(1), lake=SimpleNamespace(proxy=proxy)))
    for _ in range(len(RANDOM_FAULTS) // 3):
        prove._arm(scene)
    assert len(set(armed)) == len(armed), "while all are missing, each has its turn"
    prove.report.struck.update(set(RANDOM_FAULTS) - {"lost", "truncated"})
    for _ in range(2):
        armed.clear()
        prove._arm(scene)
        assert {*armed[:2]} == {"lost", "truncated"}
        assert armed[2] in RANDOM_FAULTS
    prove.report.struck.update(["lost", "truncated"])
    armed.clear()
    for _ in range(len(RANDOM_FAULTS) // 3):
        prove._arm(scene)
    assert len(set(armed)) > 3, "then all of them have their turns again"


def test_every_failpoint_is_one_at_which_some_life_ends() -> None:
    from icefront.proof import faults  # noqa: PLC0415 — beside what is compared with it

    places = {*faults.BEFORE_COMMIT, *faults.AFTER_COMMIT, *faults.IN_CLAIM, *faults.IN_CREATION, *faults.IN_ALTERATION}
    assert OF_A_RUN.keys() - places == {"observe.before"}
    assert places <= OF_A_RUN.keys()
    expiry = {place for place in OF_UPKEEP if place.startswith("expire.")}  # which others do
    assert OF_UPKEEP.keys() - expiry == set(faults.IN_UPKEEP)
