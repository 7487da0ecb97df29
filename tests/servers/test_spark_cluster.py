from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tests.servers.spark_cluster import SparkCluster

pytestmark = pytest.mark.process

# In a process of its own: one Python process has one Spark context, and the shared local session is there already.
JOB = textwrap.dedent("""
    import json, os, sys, time
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    sizes = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.driver.memory": "512m"}
    spark = SparkSession.builder.master(sys.argv[1]).config(map={**local, **sizes}).getOrCreate()
    total = spark.range(0, 1000, 1, 4).selectExpr("sum(id)").first()[0]
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + 120
    while len(tracker.getExecutorInfos()) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    hosts = sorted(info.host() for info in tracker.getExecutorInfos())
    print(json.dumps({"total": total, "hosts": hosts}))
    spark.stop()
""")


@pytest.mark.long  # jobs of the matrix run on it in every test run
@pytest.mark.timeout(400)
def test_a_job_runs_on_both_workers(spark_cluster: SparkCluster):
    done = subprocess.run(
        [sys.executable, "-c", JOB, spark_cluster.url], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["total"] == sum(range(1000))
    # The driver counts as an executor too.
    assert answer["hosts"] == ["127.0.0.1", "127.0.0.1", "127.0.0.2"]
