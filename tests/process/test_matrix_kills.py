"""SIGKILL at each failpoint. Each run is killed at one, and is at the same time the one that recovers from the kill before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icefront.proof.failpoints import OF_A_RUN
from icefront.proof.harness import KILLED, PATIENCE
from tests.process.matrix import Watched, ready_for

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
UNEXPECTED = 1


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One table for all kills, which does not exist at first; the last run, which nobody kills, has to make up for all of them."""
    # With such a short log each commit deletes a metadata file, and may be killed before it does.
    project = Watched(tmp_path_factory.mktemp("kills"), sink={"properties": {"write.metadata.previous-versions-max": "2"}})
    yield project
    project.run()
    project.check_caught_up()


@pytest.mark.parametrize("failpoint", OF_A_RUN)
def test_killed_at_each_failpoint_nothing_wrong_is_visible_and_the_next_run_goes_on(
    project: Watched, failpoint: str, tmp_path: Path
) -> None:
    with ready_for(failpoint, project, tmp_path) as struck:
        # With its first release a run releases what it finds published.
        passing = 2 if failpoint.startswith("release.") else 1
        struck.run(f"{failpoint}=kill@{passing}", code=KILLED)
        struck.check()


@pytest.mark.parametrize(
    "failpoint", ["write.after", *(pytest.param(name, marks=pytest.mark.long) for name in OF_A_RUN if name != "write.after")]
)
def test_an_exception_that_nobody_foresaw_ends_the_run_and_the_next_one_goes_on(
    project: Watched, failpoint: str, tmp_path: Path
) -> None:
    with ready_for(failpoint, project, tmp_path) as struck:
        assert "unexpected FailpointError" in struck.run(f"{failpoint}=raise", code=UNEXPECTED).stderr
        struck.check()


def test_a_chain_of_staged_epochs_is_published_in_order_without_writing_again(tmp_path: Path) -> None:
    project = Watched(tmp_path)
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
