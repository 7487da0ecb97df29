"""When a proof is one: what was struck too seldom, what a violation means for the exit code, and the run that is documented."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from icefront.cli import proving
from icefront.cli.proving import exit_code
from icefront.core.errors import ConnectionFailed
from icefront.proof.checker import Violation
from icefront.proof.faults import AFTER_COMMIT, BEFORE_COMMIT, FIRST, LIVES, Fault
from icefront.proof.prove import Prove, _came, kinds
from icefront.proof.proxy import Request, Strike
from icefront.proof.report import Report, needed
from icefront.proof.scene import TABLES, Cut, Scene

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "prove.md"


def report(minutes: float, **struck: int) -> Report:
    return Report(7, minutes, "sqlite", {"zombie": "", "raised": ""}, struck=Counter(struck))


@pytest.mark.parametrize(("minutes", "times"), [(1, 0), (2.9, 0), (3, 1), (19, 1), (20, 2), (60, 6)])
def test_every_kind_has_to_be_struck_once_for_every_ten_minutes(minutes: float, times: int) -> None:
    assert needed(minutes) == times


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        (None, ""),
        ("http://127.0.0.1:8181", " --catalog rest --uri http://127.0.0.1:8181"),
        ("http://h/?a=1&b=2", " --catalog rest --uri 'http://h/?a=1&b=2'"),
    ],
)
def test_the_command_that_repeats_it_names_the_catalog(uri: str | None, where: str) -> None:
    again = replace(report(2.5), uri=uri).to_dict()["command"]
    assert again == f"icefront prove --minutes 2.5 --seed 7{where}"


class Told:
    """`proof.report.Display`: what is told of each life, and of the blows in it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def moved(self, report: Report) -> None: ...

    def lived(self, report: Report, what: str) -> None:
        self.lines.append(f"{what} in scene {report.scenes}")


def rehearsed(folder: Path, seed: int) -> str:
    """What a proof does whose runs are all cut short at once: each life and its blows, how its run is armed, what the feed says."""
    told = Told()

    def start(_scene: Scene, armed: dict[str, str], *_: str) -> None:
        told.lines.append(str(armed))
        raise Cut("a rehearsal")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icefront.proof.harness.quick_jvm", dict)
        patch.setattr(Scene, "start", start)
        Prove(folder, told, minutes=3, seed=seed)()
    files = sorted((folder / "scene-1" / "feed").rglob("*.*"))
    feed = hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files))
    return "\n".join([*told.lines, f"{len(files)} files, {feed.hexdigest()}"])


def test_a_seed_does_the_same_every_time_and_another_one_does_otherwise(tmp_path: Path) -> None:
    """In another process too, where sets and dictionaries of names may have another order."""
    code = (
        "import sys; from pathlib import Path; from tests.proof.test_report import rehearsed;"
        "print(rehearsed(Path(sys.argv[1]), 7))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there")],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert told == rehearsed(tmp_path / "here", 7) != rehearsed(tmp_path / "otherwise", 8)
    assert all(f"\n{life} was cut short" in f"\n{told}" for life in (FIRST.name, *LIVES))
    assert "feed-restart" in told


def test_over_a_proof_each_place_of_a_life_has_its_turn_before_one_comes_again(tmp_path: Path) -> None:
    made = Prove(tmp_path, Told(), minutes=3, seed=7)

    def dealt(life: str, places: tuple[str, ...], *, possible: int | None = None) -> list[str | None]:
        return [made._deal(life, places, lambda place: place in places[:possible]) for _ in places]

    assert sorted(filter(None, dealt("killed-before-commit", BEFORE_COMMIT))) == sorted(BEFORE_COMMIT)
    assert sorted(filter(None, dealt("raised", (*BEFORE_COMMIT, *AFTER_COMMIT)))) == sorted((*BEFORE_COMMIT, *AFTER_COMMIT))
    # What cannot be struck now keeps its turn.
    assert set(dealt("killed-after-commit", AFTER_COMMIT, possible=2)) == set(AFTER_COMMIT[:2])
    assert set(dealt("killed-after-commit", AFTER_COMMIT)) >= set(AFTER_COMMIT[2:])


@pytest.mark.parametrize(
    ("fault", "answers", "counts"),
    [
        ("503-before", [], True),
        ("lost", [], False),
        ("lost", [409], False),
        ("lost", [200], True),
        ("twice-second", [409, 409], False),
        ("twice-second", [200, 409], True),
        ("late-before-look", [], False),
        ("late-before-look", [409], False),
        ("late-before-look", [200], True),
        ("late-before-next", [200], True),
        ("late-after-next", [], False),
        ("late-after-next", [200], False),
        ("late-after-next", [409], True),
    ],
)
def test_a_struck_commit_counts_when_the_catalog_did_with_it_what_the_fault_says(
    fault: str, answers: list[int], *, counts: bool
) -> None:
    assert _came(Strike(fault, Request("POST", "/v1/namespaces/n/tables/t", {}, b""), answers)) is counts


def test_a_proof_before_a_rest_catalog_locks_no_database() -> None:
    assert kinds(rest=False).keys() - kinds(rest=True).keys() == {"catalog-locked"}


def test_tables_of_a_proof_take_turns_in_how_they_are_published_and_kept() -> None:
    published = [publish for _, publish in TABLES]
    assert all(one != other for one, other in pairwise([*published, published[0]]))
    assert len({repr(table) for table in TABLES}) == 4


def test_a_kind_that_was_not_struck_fails_the_proof() -> None:
    assert report(3, zombie=1).missing == ["raised"]
    assert exit_code(report(3, zombie=1)) == 1
    assert exit_code(report(3, zombie=1, raised=1)) == 0
    assert report(60, zombie=6, raised=5).missing == ["raised"]


def test_a_violation_counts_for_more_than_what_was_not_struck() -> None:
    found = report(3, zombie=1)
    found.violations.append(Violation("gap", "snapshot 1", "an epoch", "none"))
    assert exit_code(found) == 7


def test_the_run_of_60_minutes_in_the_documentation_struck_with_every_kind_that_there_is() -> None:
    printed = DOCUMENT.read_text(encoding="utf-8").partition("## A run of 60 minutes")[2]
    told = re.findall(r"^([a-z0-9-]+)\t(\d+)\t(.+)$", printed, re.MULTILINE)
    command = r"^All of it held in \d+ s\. To repeat: icefront prove --minutes 60 --seed \d+( --catalog rest --uri \S+)?$"
    held = re.search(command, printed, re.MULTILINE)
    assert held
    assert {kind for kind, _, _ in told} == set(kinds(rest=bool(held[1])))
    assert min(int(times) for _, times, _ in told) >= needed(60)
    assert ", 0 violations\n" in printed


@pytest.mark.parametrize(
    ("minutes", "struck", "found", "said"),
    [
        (
            3,
            {"zombie": 1, "raised": 2},
            None,
            "every kind had to be struck once, and was\nAll of it held in 0 s. To repeat: icefront prove --minutes 3 --seed 7",
        ),
        (60, {"zombie": 1, "raised": 6}, None, "struck less than 6 times, give it more minutes: zombie\nNot enough was struck"),
        (3, {"zombie": 1}, None, "struck less than once, give it more minutes: raised"),
        (
            1,
            {"zombie": 1},
            None,
            "1 never were: raised\nNo violation was found in 0 s, but some kinds of faults were never struck. To repeat: ",
        ),
        (
            3,
            {"zombie": 1},
            Violation("gap", "snapshot 1", "an epoch", "none"),
            "VIOLATION  gap: snapshot 1: expected an epoch, found none\nfound during: \nIt does not hold",
        ),
    ],
)
def test_what_is_said_at_the_end(
    minutes: float, struck: dict[str, int], found: Violation | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = report(minutes, **struck)
    done.violations += [found] if found else []
    proving._summary(done)
    printed = capsys.readouterr().out
    assert said in printed
    assert "zombie\t1" in printed


@pytest.mark.parametrize("end", [{"interrupted": True}, {"error": ConnectionFailed("the catalog does not answer")}])
def test_what_ended_before_its_time_is_not_told_that_it_needs_more_minutes(
    end: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = replace(report(3, zombie=1), **end)
    proving._summary(ended)
    assert "more minutes" not in capsys.readouterr().out
    assert exit_code(ended) in {130, 3}


@pytest.mark.parametrize(
    ("end", "reason", "verdict"),
    [
        (
            {"error": ConnectionFailed("the catalog does not answer")},
            "the catalog does not answer",
            "It ended after 0 s because of this machine or the catalog, not because of a table. It is open whether the tables are right.",
        ),
        ({"interrupted": True}, "it was interrupted", "Interrupted after 0 s."),
    ],
)
def test_what_was_seen_and_has_another_reason_is_told_in_text_and_json(
    end: dict[str, Any], reason: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Violation("unreadable", "snapshot 1", "a table that can be read", "none")
    ended = replace(report(3), doubtful=[seen], during="zombie", **end)
    proving._summary(ended)
    printed = capsys.readouterr().out
    assert f"DOUBTFUL  {seen}" in printed
    assert f"what is doubtful is no violation, for it may have another reason than the table: {reason}" in printed
    assert f"found during: zombie\n{verdict}" in printed
    assert (ended.to_dict()["doubtful"], ended.to_dict()["found_during"]) == ([seen.to_dict()], "zombie")
    assert exit_code(ended) in {130, 3}


@pytest.mark.parametrize("uri", [None, "http://h"])
def test_the_summary_says_that_without_a_rest_catalog_no_requests_are_struck(
    uri: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    proving._summary(replace(report(3), uri=uri))
    left_out = "not struck here: requests to a REST catalog (--catalog rest --uri http://…)"
    assert (left_out in capsys.readouterr().out) == (uri is None)


def test_the_summary_says_why_no_second_engine_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    proving._summary(replace(report(3), engines=["Spark 4"], why_not="datafusion is not installed"))
    why = "(no second engine has read the tables: datafusion is not installed; "
    assert f'engines: Spark 4 {why}pip install "icefront[prove]")' in capsys.readouterr().out


def test_the_summary_says_what_was_cut_short_and_what_came_late(capsys: pytest.CaptureFixture[str]) -> None:
    done = replace(report(3), cut=Counter(zombie=2, drained=1), late=Counter({True: 3, False: 4}))
    proving._summary(done)
    printed = capsys.readouterr().out
    assert "7 requests came late to the catalog: 3 were applied then, the others refused" in printed
    assert "cut short, since a run lost the catalog after requests were struck: drained 1, zombie 2" in printed
    assert done.to_dict()["lives_cut_short"] == {"drained": 1, "zombie": 2}
    assert done.to_dict()["late_requests"] == {"applied": 3, "refused": 4}


def test_after_every_life_everything_is_looked_at_before_the_next_blow(tmp_path: Path) -> None:
    """What a killed run has staged is not known any more once the state file is gone."""
    done: list[str] = []
    scene: Any = SimpleNamespace(
        lake=SimpleNamespace(proxy=None),
        strike=lambda: done.append("blow"),
        check=lambda: done.append("look"),
        abandon=lambda: done.append("abandon"),
    )
    prove = Prove(tmp_path, Told(), minutes=3, seed=7)
    prove._count = lambda: None

    def life(_: object) -> bool:
        done.append("life")
        return True

    def cut(_: object) -> bool:
        raise Cut("the catalog was not to be reached")

    assert prove._live(scene, Fault("one", "", life))
    assert not prove._live(scene, Fault("other", "", cut))
    assert done == ["blow", "life", "look", "blow", "abandon", "look"]
    assert prove.report.cut == {"other": 1}


def test_what_is_no_terminal_gets_a_line_per_life(capsys: pytest.CaptureFixture[str]) -> None:
    with proving.Screen(quiet=False) as screen:
        screen.moved(report(3, zombie=1))
        screen.lived(report(3, zombie=1), "zombie")
    assert capsys.readouterr().out.strip().startswith("0 s  zombie  ·  0 epochs")


def test_an_ordinary_terminal_shows_every_kind_and_all_numbers(tmp_path: Path) -> None:
    """With a REST catalog, where there are most kinds, and long past its time."""
    shown_by = io.StringIO()
    terminal = Console(file=shown_by, force_terminal=True, width=80, height=24, color_system=None)
    shown = Prove(tmp_path, proving.Screen(quiet=True), minutes=60, seed=123_456, uri="http://h").report
    shown.struck = Counter(dict.fromkeys(shown.kinds, 77))
    shown.struck["zombie"] = 5
    shown.scenes, shown.during, shown.epochs, shown.rows = 12, "killed-before-commit", 1_954, 105_537
    with proving.Screen(quiet=True, console=terminal) as screen:
        screen._begun -= 3700
        screen.moved(shown)
        printed = shown_by.getvalue()
    for number in ("seed 123456", "61:40, overtime up to 360:00", "killed-before-commit", "1 kinds still needed"):
        assert number in printed
    assert "1,954 epochs, 0 snapshots checked, 105,537 rows compared, 0 violations" in printed
    assert "zombie 5/6" in printed
    assert [kind for kind in shown.kinds if f"{kind} 77/6" not in printed] == ["zombie"]


def test_the_time_that_is_left_is_shown_before_it_is_up() -> None:
    assert proving._time(report(3), 65) == "1:05 of 3:00"
    assert proving._time(report(3), 180) == "3:00, overtime up to 18:00"
