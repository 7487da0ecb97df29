"""SIGSTOP at each failpoint, a successor that publishes, SIGCONT: the woken writer is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from icefront.proof.failpoints import OF_A_RUN
from icefront.proof.harness import FENCED
from tests.process.matrix import AFTER_ITS_COMMIT, Watched
from tests.servers.rest import RestCatalog

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TAKES_OVER = ("table.before", "table.after", "claim.before", "claim.before-commit")
"""Paused there, a run has claimed nothing yet: woken, it is the last to claim, and goes on from what it finds."""
GROUPS = {
    "before it writes": ("claim.after", "write.before", "schema.before", "schema.after", "write.after"),
    "before it plans": ("partitioning.before", "partitioning.after", "observe.before", "observe.after"),
    "before its commit": ("stage.before", "stage.after", "publish.before", "publish.before-commit"),
    "after its commit": AFTER_ITS_COMMIT,
    "around an empty epoch": ("heartbeat.before", "heartbeat.before-commit", "heartbeat.after"),
}
"""At most five at a time: each has a JVM of its own. The first of them makes the table."""


def overtake_and_wake(project: Watched, failpoints: Sequence[str], tell: Callable[[str], AbstractContextManager[object]]) -> None:
    """Each zombie is overtaken by the next one, all of them by a run that publishes everything; then they wake up.

    They find new changes, which they would publish if they could. `tell` names the zombie that is looked at.
    """
    with ExitStack() as stack:
        zombies = {}
        for failpoint in failpoints:
            project.provoke(failpoint)
            pause = f"{failpoint}=pause@{project.passing(failpoint)}"
            zombies[failpoint] = stack.enter_context(project.start(pause)).wait_until_stopped()
        if "partitioning.before" in zombies:
            project.provoke("partitioning.before")  # otherwise its successor would make the change, and leave nothing to refuse
        project.feed.advance(20)
        project.run()
        project.check_caught_up()
        project.feed.advance(20)
        for failpoint, zombie in zombies.items():
            with tell(failpoint):
                before = project.metadata()
                zombie.wake()
                zombie.expect(0 if failpoint in TAKES_OVER else FENCED)
                project.check()
                if failpoint not in TAKES_OVER:
                    assert "is owned by writer" in zombie.stderr
                    assert project.metadata() == before, "a refused writer changed the table"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One table for all zombies, and a last run that finds whatever they have left behind."""
    project = Watched(tmp_path_factory.mktemp("zombies"))
    yield project
    project.run()
    project.check_caught_up()


def test_every_failpoint_has_its_zombie() -> None:
    assert sorted([*TAKES_OVER, *(name for group in GROUPS.values() for name in group)]) == sorted(OF_A_RUN)


@pytest.mark.parametrize("group", list(GROUPS))
def test_a_writer_that_is_paused_overtaken_and_woken_is_refused(project: Watched, group: str, subtests: pytest.Subtests) -> None:
    overtake_and_wake(project, GROUPS[group], subtests.test)


def test_a_writer_that_is_paused_before_its_claim_takes_over_and_goes_on_from_what_it_finds(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    project = Watched(tmp_path)
    overtake_and_wake(project, TAKES_OVER, subtests.test)
    project.check_caught_up()


@pytest.mark.long
@pytest.mark.parametrize("group", ["before it writes", "before it plans", "before its commit"])
def test_on_a_rest_catalog_it_is_refused_too(
    rest_catalog: RestCatalog, tmp_path: Path, group: str, subtests: pytest.Subtests
) -> None:
    project = Watched(tmp_path, rest=rest_catalog.uri, table=f"lake.t.zombies_{group}".replace(" ", "_"))
    overtake_and_wake(project, GROUPS[group], subtests.test)
    project.run()
    project.check_caught_up()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_of_them_alone(tmp_path: Path, seed: int, subtests: pytest.Subtests) -> None:
    project = Watched(tmp_path, seed=seed)
    project.run()
    for failpoint in OF_A_RUN:
        struck = Watched(tmp_path / failpoint, seed=seed) if failpoint.startswith("table.") else project
        overtake_and_wake(struck, [failpoint], subtests.test)
    project.run()
    project.check_caught_up()
