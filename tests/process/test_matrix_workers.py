"""A driver, its JVM and its Python workers are killed apart: Spark tries again, or the run stops cleanly and the next one succeeds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from icefront.proof.failpoints import OF_A_RUN
from icefront.proof.harness import STOPPED, UNREACHABLE, Driver, wait_until
from icefront.proof.sessions import look
from tests.process.matrix import SEEDS, Strike, Watched, ready_for
from tests.process.mid_commit import is_frozen, waiting

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def kill_at_once(driver: Driver) -> None:
    kill_jvm(driver)
    driver.wake()


def test_a_driver_killed_in_the_middle_of_a_job_leaves_orphans_and_a_worker_that_writes_on_beside_its_successor(
    tmp_path: Path,
) -> None:
    """It dies before S2. Its worker has written all files, and writes them once more when a successor has an epoch in its hands."""
    project = Watched(tmp_path)
    strike = Strike("late", tmp_path)
    with project.start(environment=strike.environment) as driver:
        worker = strike.worker()
        lost = set(project.files())
        driver.kill()
        assert not project.noted()
        with project.start("stage.after=pause") as successor:
            successor.wait_until_stopped()
            before = set(project.files())
            strike.wake()
            wait_until(lambda: look(worker) is None, what="the worker did not end")
            late = set(project.files()) - before
            successor.wake()
            successor.expect(0)
    project.check_caught_up()
    assert len(late) == len(lost) > 0
    assert set(project.files()) - project.committed() == lost | late


def serving(jvm: int) -> int:
    """How many of its threads serve the driver: py4j's, which have no names of their own, but for the one that accepts connections.

    Each ends when its connection is closed and nothing is left to do for it.
    """
    threads = [look(int(task.name)) for task in Path(f"/proc/{jvm}/task").iterdir()]
    return sum(thread is not None and thread.name.startswith("Thread-") for thread in threads) - 1


def kill_jvm(driver: Driver) -> None:
    jvm = driver.jvm()
    assert jvm is not None
    os.kill(jvm, signal.SIGKILL)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_jvm_is_killed_and_the_run_stops_cleanly(tmp_path: Path, seed: int, subtests: pytest.Subtests) -> None:
    """In the middle of a job, before a commit, and while the driver waits for a commit; each run recovers from the one before it."""
    project = Watched(tmp_path, seed=seed)
    strike = Strike("hang", tmp_path)
    with subtests.test("in the middle of a job"), project.start(environment=strike.environment) as driver:
        assert strike.worker() in driver.workers()
        lost = set(project.files())
        kill_jvm(driver)
        expect_the_reason(driver)
    project.check()
    for place in ("before a commit", "in mid-commit"):
        project.feed.advance(20)
        pause = f"publish.before-commit=pause@{project.passing('publish.before-commit')}"
        with subtests.test(place), project.start(pause) as driver:
            driver.wait_until_stopped()
            if place == "before a commit":
                kill_at_once(driver)
            else:
                with waiting(driver, project.catalog):
                    kill_jvm(driver)
                    wait_until(lambda: driver.jvm() is None, what="the JVM did not end")
            expect_the_reason(driver)
        project.check()
    project.run()
    project.check_caught_up()
    assert lost
    assert not lost & project.committed(), "what was written for the lost JVM was published"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_jvm_that_outlives_its_driver_in_mid_commit_changes_nothing_that_its_successor_made(tmp_path: Path, seed: int) -> None:
    """It is paused in the commit, its driver killed and overtaken; woken, it finishes what it was doing, and ends by itself."""
    project = Watched(tmp_path, seed=seed)
    project.feed.advance(20)
    with project.start("publish.before-commit=pause@2") as driver:
        driver.wait_until_stopped()
        with waiting(driver, project.catalog):
            jvm = driver.jvm()
            assert jvm is not None
            os.kill(jvm, signal.SIGSTOP)
            wait_until(lambda: is_frozen(jvm), what="the JVM was not paused")
            driver.kill()
        project.feed.advance(20)
        project.run()
        project.check_caught_up()
        before = project.metadata()
        assert serving(jvm) > 0
        # As long as somebody could still write to it, it does not know that its driver is gone.
        with Path(f"/proc/{jvm}/fd/0").open("wb"):
            os.kill(jvm, signal.SIGCONT)
            wait_until(lambda: serving(jvm) == 0, what="the JVM did not come to an end with its commit")
        wait_until(lambda: driver.jvm() is None, what="the JVM did not end")
    assert project.metadata() == before
    project.check_caught_up()


def expect_the_reason(driver: Driver) -> None:
    driver.expect(UNREACHABLE)
    assert "JVM" in driver.stderr
    assert "unexpected" not in driver.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One table whose every run loses its JVM; the last one has to make up for all of them."""
    project = Watched(tmp_path_factory.mktemp("jvm"))
    yield project
    project.run()
    project.check_caught_up()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", OF_A_RUN)
def test_the_jvm_is_killed_at_each_failpoint(project: Watched, failpoint: str, tmp_path: Path) -> None:
    with ready_for(failpoint, project, tmp_path) as struck:
        struck.feed.advance(20)  # there is something left to do without it
        with struck.start(f"{failpoint}=pause@{struck.passing(failpoint)}") as driver:
            kill_at_once(driver.wait_until_stopped())
            expect_the_reason(driver)
        struck.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_python_worker_is_killed_and_spark_tries_again(tmp_path: Path, seed: int) -> None:
    project = Watched(tmp_path, seed=seed, spark={"spark.master": "local[1,3]"})
    strike = Strike("hang", tmp_path)
    with project.start(environment=strike.environment) as driver:
        assert strike.worker() in driver.workers()
        lost = set(project.files())
        os.kill(strike.worker(), signal.SIGKILL)
        driver.expect(0)
    project.check_caught_up()
    assert lost
    assert not lost & project.committed(), "what the lost attempt wrote was published"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_python_worker_is_killed_and_without_another_attempt_the_run_stops_cleanly(tmp_path: Path, seed: int) -> None:
    project = Watched(tmp_path, seed=seed)
    strike = Strike("hang", tmp_path)
    with project.start(environment=strike.environment) as driver:
        os.kill(strike.worker(), signal.SIGKILL)
        driver.expect(STOPPED)
        assert "Spark could not write the epoch" in driver.stderr
    project.check()
    project.run()
    project.check_caught_up()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_attempt_is_tried_again_and_only_the_second_is_published(tmp_path: Path, seed: int) -> None:
    project = Watched(tmp_path, seed=seed, spark={"spark.master": "local[1,3]"})
    strike = Strike("raise", tmp_path)
    project.run(environment=strike.environment)
    assert strike.worker()
    project.check_caught_up()
    assert set(project.files()) > project.committed()
