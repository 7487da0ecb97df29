"""`write: {publish: settled}`: killed or overtaken when an epoch's vectors are written, before and after they are committed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from icefront.proof.harness import KILLED, released
from tests.process.matrix import SEEDS, Watched
from tests.process.test_matrix_zombies import overtake_and_wake

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=SEEDS)
def project(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Watched:
    """A table with rows that the next epochs update and delete; the checker bears no equality delete in it."""
    project = Watched(tmp_path_factory.mktemp("settled"), seed=request.param, settled=True)
    project.run()
    project.check_caught_up()
    return project


def uncommitted(project: Watched) -> set[Path]:
    """The files of vectors that no snapshot refers to."""
    return set(project.catalog.glob("warehouse/**/*.puffin")) - project.committed()


def test_a_run_that_is_killed_around_the_commit_of_a_settled_epoch_is_made_up_for(project: Watched) -> None:
    for failpoint, committed in (("publish.before-commit", False), ("publish.after", True)):
        project.feed.advance(20)
        frontier, before = project.mark().frontier, uncommitted(project)
        project.run(f"{failpoint}=kill@{project.passing(failpoint)}", code=KILLED)
        project.check()
        assert (project.mark().frontier > frontier, uncommitted(project) == before) == (committed, committed)
    found, run = project.mark().frontier, project.run()
    assert (run.epochs(), released(run.stderr)) == ([], [str(found)]), (
        "what was published and not released is released, and no more"
    )
    project.check_caught_up()


def test_a_writer_that_is_overtaken_with_the_vectors_of_a_settled_epoch_in_its_hands_is_refused(project: Watched) -> None:
    overtake_and_wake(project, ["publish.before-commit"], nullcontext)
    assert uncommitted(project), "it had written nothing yet"
    project.run()
    project.check_caught_up()
