"""Several drivers at once: the last to claim publishes, all others are refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from icefront.proof.harness import FENCED
from tests.process.matrix import SEEDS, Watched

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def start_at_once(project: Watched, drivers: int) -> None:
    """They create the table and claim it in a race; all stand still until each of them has claimed."""
    with ExitStack() as stack:
        started = [stack.enter_context(project.start("claim.after=pause")) for _ in range(drivers)]
        for driver in started:
            driver.wait_until_stopped()
        owner = project.owner()
        for driver in started:
            driver.wake()
        codes = [driver.wait() for driver in started]
        said = "\n".join(driver.stderr[-500:] for driver in started)
        assert sorted(codes) == [0, *[FENCED] * (drivers - 1)], f"they ended with {sorted(codes)}:\n{said}"
        refused = [driver for driver, code in zip(started, codes, strict=True) if code == FENCED]
        assert all(f"is owned by writer {owner}" in driver.stderr for driver in refused)
    assert project.owner() == owner
    project.check_caught_up()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("drivers", [2, 5])
def test_of_several_drivers_started_at_once_the_last_to_claim_publishes(tmp_path: Path, drivers: int, seed: int) -> None:
    start_at_once(Watched(tmp_path, seed=seed), drivers)


def take_over(project: Watched) -> None:
    """Each has something in its hands when the next one claims the table: only the last of them may publish it."""
    project.feed.advance(20)
    with ExitStack() as stack:
        first = stack.enter_context(project.start("publish.before-commit=pause@2")).wait_until_stopped()
        second = stack.enter_context(project.start("publish.before-commit=pause@1")).wait_until_stopped()
        owner = project.owner()
        first.wake()
        first.expect(FENCED)
        assert f"is owned by writer {owner}" in first.stderr
        second.wake()
        second.expect(0)
    assert project.owner() == owner
    assert (len(first.epochs()), len(second.epochs())) == (1, 2)
    project.check_caught_up()


@pytest.mark.parametrize("seed", SEEDS)
def test_drivers_that_come_one_after_the_other_take_over_while_the_first_still_works(tmp_path: Path, seed: int) -> None:
    project = Watched(tmp_path, seed=seed)
    take_over(project)
