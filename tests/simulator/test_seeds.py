"""The gate: the protocol's own code through 20,000 seeds of failures."""

from __future__ import annotations

import pytest

from icefront.testing.simulator import FAULTS, Simulation, main, sweep

SEEDS = 20_000


def test_the_protocol_keeps_every_promise_through_20_000_seeds() -> None:
    counts = sweep(0, SEEDS, processes=2)
    # The storm must have blown: a simulator in which nothing goes wrong proves nothing.
    for fault in FAULTS:
        assert counts[fault.name] > SEEDS / 10, fault.name
    for happened in (
        "zombie wakes",
        "fenced",
        "late commits that landed",
        "epochs recovered from notes",
        "settles",
        "settles refused",
        "compactions",
        "compactions refused",
        "compactions that left deletes",
        "expires done",
        "reads by tag",
        "foreign deletes",
        "rollbacks",
        "replacements",
        "releases",
        "loads",
        "twins",
        "notes lost",
        "notes restored from an older copy",
        "orphans cleaned",
    ):
        assert counts[happened] > SEEDS / 50, happened
    assert counts["ended: complete"] > SEEDS
    assert counts["epochs"] > 3 * SEEDS


@pytest.mark.parametrize("seed", [0, 7, 4711])
def test_a_seed_tells_the_same_story_every_time(seed: int) -> None:
    first, again = Simulation(seed), Simulation(seed)
    assert first.run() == again.run()
    assert first.trace() == again.trace()
    assert first.trace()


def test_the_command_line_tells_one_seed_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "over nobody: snapshot 1" in told
    assert "1 seeds in" in told


def test_the_command_line_adds_up_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "100", "--seeds", "20"]) == 0
    assert "20 seeds in" in capsys.readouterr().out


def test_a_violation_names_its_seed_and_tells_how_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Simulation, "check", lambda self, _: (_ for _ in ()).throw(self.violation("the sky fell")))
    assert main(["--first", "1", "--seeds", "1"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("seed 1: the sky fell\n")
    assert "over nobody: snapshot 1" in told
