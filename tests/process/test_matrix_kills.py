"""SIGKILL at each failpoint. Each run is killed at one, and is at the same time the one that recovers from the kill before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from icefront.core.errors import UNEXPECTED
from icefront.core.files import Staged
from icefront.proof.failpoints import OF_A_RUN
from icefront.proof.harness import KILLED, PATIENCE
from tests.process.matrix import EFFECTS, SEEDS, Watched, ready_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One table for all kills, which does not exist at first; the last run, which nobody kills, has to make up for all of them."""
    # With such a short log each commit deletes a metadata file, and may be killed before it does.
    project = Watched(tmp_path_factory.mktemp("kills"), sink={"properties": {"write.metadata.previous-versions-max": "2"}})
    yield project
    project.run()
    project.check_caught_up()


def effects(step: str, project: Watched) -> set[object]:
    return set(EFFECTS[step](project)) if step in EFFECTS else set()


def ids(epochs: Iterable[Staged]) -> set[UUID]:
    return {staged.epoch_id for staged in epochs}


@pytest.mark.parametrize("failpoint", OF_A_RUN)
def test_killed_at_each_failpoint_nothing_wrong_is_visible_and_the_next_run_goes_on(
    project: Watched, failpoint: str, tmp_path: Path
) -> None:
    """It is struck with an epoch of its own, and what the failpoint says of its step is so: done once more, or not yet."""
    step = failpoint.partition(".")[0]
    with ready_for(failpoint, project, tmp_path) as struck:
        passing, found, before = struck.passing(failpoint), ids(struck.staged()), effects(step, struck)
        struck.run(f"{failpoint}=kill@{passing}", code=KILLED)
        struck.check()
        if step in EFFECTS:
            assert len(effects(step, struck) - before) == (passing if failpoint.endswith(".after") else passing - 1)
        if step in {"publish", "heartbeat", "note", "release"}:
            assert not found & ids(struck.noted()), "it was struck before it had published what it found staged"


@pytest.mark.parametrize(
    "failpoint", ["write.after", *(pytest.param(name, marks=pytest.mark.long) for name in OF_A_RUN if name != "write.after")]
)
def test_an_exception_that_nobody_foresaw_ends_the_run_and_the_next_one_goes_on(
    project: Watched, failpoint: str, tmp_path: Path
) -> None:
    with ready_for(failpoint, project, tmp_path) as struck:
        run = struck.run(f"{failpoint}=raise@{struck.passing(failpoint)}", code=UNEXPECTED)
        assert "unexpected FailpointError" in run.stderr
        struck.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_of_staged_epochs_is_published_in_order_without_writing_again(tmp_path: Path, seed: int) -> None:
    project = Watched(tmp_path, seed=seed)
    project.feed.advance(20)
    project.run(f"publish.before=delay:{PATIENCE:.0f}@1,stage.after=kill@3", code=KILLED)
    files = project.files()
    assert [epoch["recovered"] for epoch in project.run().epochs()] == [True, True, True]
    assert project.files() == files
    project.check_caught_up()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("passing", [1, 2])
def test_killed_at_each_failpoint_and_recovered_at_once(tmp_path: Path, seed: int, passing: int) -> None:
    project = Watched(tmp_path, seed=seed)
    project.run()
    for failpoint in OF_A_RUN:
        step = failpoint.partition(".")[0]
        if passing > 1 and step in {"table", "claim", "partitioning", "schema"}:
            continue  # no run comes there so often
        struck = Watched(tmp_path / failpoint, seed=seed) if step == "table" else project
        for _ in range(passing):
            struck.provoke(failpoint)
        struck.run(f"{failpoint}=kill@{passing}", code=KILLED)
        struck.check()
        struck.run()
        struck.check_caught_up()
