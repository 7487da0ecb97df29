"""A driver's JVM and its Python workers are killed: Spark tries again, or the run stops cleanly and the next one succeeds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.process.matrix import Strike, Watched

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
UNREACHABLE = 3
STOPPED = 5


def test_the_jvm_is_killed_and_the_run_stops_cleanly(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The run that is struck at the second place is the one that recovers from the first."""
    project = Watched(tmp_path)
    for failpoint in ("write.before", "publish.before-commit"):
        project.feed.advance(20)
        with subtests.test(failpoint), project.start(f"{failpoint}=pause@2") as driver:
            jvm = driver.wait_until_stopped().jvm()
            assert jvm is not None
            os.kill(jvm, signal.SIGKILL)
            driver.wake()
            driver.expect(UNREACHABLE)
            assert "JVM" in driver.stderr
            assert "unexpected" not in driver.stderr
        project.check()
    project.run()
    project.check_caught_up()


def test_a_python_worker_is_killed_and_spark_tries_again(tmp_path: Path) -> None:
    project = Watched(tmp_path, spark={"spark.master": "local[1,3]"})
    strike = Strike("hang", tmp_path)
    with project.start(environment=strike.environment) as driver:
        assert strike.worker() in driver.workers()
        lost = set(project.files())
        os.kill(strike.worker(), signal.SIGKILL)
        driver.expect(0)
    project.check_caught_up()
    assert lost
    assert not lost & project.committed(), "what the lost attempt wrote was published"


def test_a_python_worker_is_killed_and_without_another_attempt_the_run_stops_cleanly(tmp_path: Path) -> None:
    project = Watched(tmp_path)
    strike = Strike("hang", tmp_path)
    with project.start(environment=strike.environment) as driver:
        os.kill(strike.worker(), signal.SIGKILL)
        driver.expect(STOPPED)
        assert "Spark could not write the epoch" in driver.stderr
    project.check()
    project.run()
    project.check_caught_up()


def test_a_failed_attempt_is_tried_again_and_only_the_second_is_published(tmp_path: Path) -> None:
    project = Watched(tmp_path, spark={"spark.master": "local[1,3]"})
    strike = Strike("raise", tmp_path)
    project.run(environment=strike.environment)
    assert strike.worker()
    project.check_caught_up()
    assert set(project.files()) > project.committed()
