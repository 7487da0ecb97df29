"""A real Spark cluster whose executors have a Python without Icefront: the package reaches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from icefront.proof.harness import SMALL
from icefront.proof.oracle import compare, replay
from icefront.testing.feeds import ORDERS, Feed
from tests import engines
from tests.lakes import orders
from tests.servers.spark_cluster import SparkCluster

pytestmark = pytest.mark.process

RUN = "import sys, icefront; print(icefront.Pipeline.load(sys.argv[1]).run(until='caught-up').epochs)"


def python_without_icefront(folder: Path) -> Path:
    """Make a Python that has every installed package but ours: nested .pth files, like ours, are not followed."""
    venv.create(folder, with_pip=False, symlinks=True)
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(purelib, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    missing = subprocess.run(
        [python, "-c", "import pyarrow, pyspark, polars; import icefront"], capture_output=True, text=True, check=False
    )
    assert "No module named 'icefront'" in missing.stderr
    return python


@pytest.mark.timeout(600)
def test_executors_without_icefront_write_the_epochs(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", tables=[ORDERS], seed=11, deletes=0.3)
    feed.scan(60)
    feed.advance(200)
    python = python_without_icefront(tmp_path / "venv")
    conf = {f"spark.{which}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for which in ("driver", "executor")}
    conf |= {f"spark.driver.{address}": "127.0.0.1" for address in ("host", "bindAddress")}
    project = {"spark": {"master": spark_cluster.url, "conf": {**SMALL, **conf, "spark.executor.memory": "512m"}}}
    (tmp_path / "icefront.yaml").write_text(json.dumps(project))
    settings = {"pipeline": "orders", "source": {"changefeed": {"path": "feed/"}}, **orders("lake.t.orders")}
    (tmp_path / "orders.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path / "orders.yaml"],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "2"
    rows, schema = engines.read(tmp_path / ".icefront", "lake.t.orders")
    expected = replay(tmp_path / "feed", "orders", ["id"], str(feed.resolved[-1].next()))
    assert not compare(expected, rows, schema, ["id"])
