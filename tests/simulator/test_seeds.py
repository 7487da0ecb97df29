"""The gate: the protocol's own code through 20,000 seeds of failures."""

from __future__ import annotations

import pytest

from icefront.testing.simulator import FAULTS, Simulation, sweep

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
        "compactions",
        "expiries",
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
