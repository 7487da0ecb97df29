"""A real cluster whose executors are lost and whose tasks are retried and speculated: only the winning attempt's files are published."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from icefront.proof.sessions import processes
from tests.process.matrix import SEEDS, Strike, Watched
from tests.servers.spark_cluster import SparkCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


class OnCluster(Watched):
    """A project whose executors are struck once, and whose epochs are written by several tasks."""

    def __init__(self, folder: Path, cluster: SparkCluster, action: str, seed: int, **spark: str) -> None:
        folder.mkdir(exist_ok=True)
        self.strike = Strike(action, folder)
        conf = {
            "spark.master": cluster.url,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **{f"spark.executorEnv.{name}": value for name, value in self.strike.environment.items()},
            **spark,
        }
        super().__init__(folder, seed=seed, spark=conf, settings={"write": {"distribution": "hash"}})

    def check_struck(self) -> None:
        """One attempt wrote files that nobody ever heard of."""
        self.check_caught_up()
        assert set(self.files()) > self.committed()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_that_fails_is_retried(spark_cluster: SparkCluster, tmp_path: Path, seed: int) -> None:
    project = OnCluster(tmp_path, spark_cluster, "raise", seed)
    project.run()
    project.check_struck()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_task_is_speculated_and_only_the_winner_is_published(
    spark_cluster: SparkCluster, tmp_path: Path, seed: int
) -> None:
    speculation = {"interval": "100ms", "multiplier": "1", "quantile": "0.1", "minTaskRuntime": "100ms"}
    conf = {f"spark.speculation.{name}": value for name, value in speculation.items()}
    project = OnCluster(
        tmp_path,
        spark_cluster,
        "hang",
        seed,
        **{"spark.speculation": "true", "spark.speculation.task.duration.threshold": "1s"},
        **conf,
    )
    project.run()
    project.check_struck()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_executor_that_is_lost_is_replaced(spark_cluster: SparkCluster, tmp_path: Path, seed: int) -> None:
    project = OnCluster(tmp_path, spark_cluster, "hang", seed)
    with project.start() as driver:
        worker = project.strike.worker()
        parents = {p.pid: p.parent for p in processes()}
        executor = parents[parents[worker]]
        os.kill(executor, signal.SIGKILL)
        driver.expect(0)
    project.check_struck()
