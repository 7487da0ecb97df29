"""What a dead JVM looks like from Python, and what is said about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkValueError

from icefront.core.errors import ConnectionFailed, Stopped
from icefront.spark import session
from icefront.spark.session import living


@pytest.fixture
def dead() -> Any:
    """A session whose JVM has ended."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    process.wait()
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def mistaken() -> None:
    """Fail the way PySpark does when it asks a dead JVM for a schema."""
    lost = Py4JError("An error occurred while calling o1.schema")
    raise PySparkValueError(errorClass="CANNOT_PARSE_DATATYPE", messageParameters={"msg": str(lost)}) from lost


def stopped() -> None:
    """Fail the way a job does when Java has ended before its result is fetched."""
    raise Stopped("Spark could not write the epoch: CANNOT_OPEN_SOCKET", "run again") from ConnectionRefusedError()


def raising(error: Exception) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("act", [mistaken, stopped, raising(Py4JNetworkError("gone")), raising(ConnectionRefusedError())])
def test_a_jvm_that_ended_is_named_whatever_pyspark_makes_of_it(dead: Any, act: Any) -> None:
    with pytest.raises(ConnectionFailed, match=r"the JVM that Spark runs in has ended \(exit 9\)"), living(dead):
        act()


@pytest.mark.parametrize("error", [ValueError("a defect"), Stopped("a fact", "a step")])
def test_other_errors_stay_what_they_are(dead: Any, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), living(dead):
        raise error


STARTS = """
import json, sys
from pathlib import Path
from icefront.spark.session import start

conf = json.loads(sys.argv[1])
spark = start("secrets", "local[1]", conf)
process = spark.sparkContext._gateway.proc.pid
line = Path(f"/proc/{process}/cmdline").read_text() + Path(f"/proc/{process}/environ").read_text()
print(json.dumps({"seen": "TOPSECRET" in line, "kept": {key: spark.conf.get(key) for key in conf}}))
spark.stop()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_setting_is_on_the_jvm_s_command_line_and_all_arrive() -> None:
    conf = {
        "spark.sql.catalog.c.credential": "id:TOPSECRET123",
        "spark.sql.catalog.c.odd": "a=b: #c! \\d\te ü",
        "spark.sql.shuffle.partitions": "3",
    }
    command = [sys.executable, "-c", STARTS, json.dumps(conf)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert found == {"seen": False, "kept": conf}


STARTS_AT = """
import os, sys
from icefront.spark.session import start
try:
    start("home", sys.argv[1], {"spark.home": sys.argv[2]})
except Exception as error:
    print(f"{type(error).__name__}: {error}", os.environ.get("SPARK_HOME"))
"""


@pytest.mark.parametrize(("master", "asked"), [("local[1]", True), ("spark://127.0.0.1:1", False)])
def test_the_jvm_is_that_of_the_spark_at_home_unless_that_is_the_executors(tmp_path: Path, master: str, *, asked: bool) -> None:
    """What starts there ends at once, and leaves its traces."""
    homes = {name: tmp_path / name for name in ("configured", "usual")}
    for home in homes.values():
        program = home / "bin" / "spark-submit"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho "$SPARK_HOME" > {home}/asked\nexit 1\n')
        program.chmod(0o700)
    environment = {**os.environ, "SPARK_HOME": str(homes["usual"])}
    command = [sys.executable, "-c", STARTS_AT, master, str(homes["configured"])]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith("PySparkRuntimeError: [JAVA_GATEWAY_EXITED]")
    assert said.endswith(f" {homes['usual']}\n"), "it is in the environment only while a JVM starts"
    used, other = homes["configured" if asked else "usual"], homes["usual" if asked else "configured"]
    assert (used / "asked").read_text() == f"{used}\n"
    assert not (other / "asked").exists()


@pytest.mark.parametrize(
    ("own", "all_of_them"),
    [(None, "/ours/a.jar,/ours/b.jar"), ("driver.jar", "/ours/a.jar,/ours/b.jar,driver.jar"), ("", "")],
)
def test_a_projects_jars_come_beside_ours_and_not_in_their_place(
    monkeypatch: pytest.MonkeyPatch, own: str | None, all_of_them: str
) -> None:
    monkeypatch.setattr("icefront.spark.jars.ensure", lambda: [Path("/ours/a.jar"), Path("/ours/b.jar")])
    assert session._jars(own) == all_of_them


def test_a_home_that_is_none_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_AT, "local[1]", str(tmp_path)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.startswith(f"ConfigError: spark.home is {tmp_path}, and there is no bin/spark-submit in it")


def test_a_lost_answer_of_a_living_jvm_stays_what_it_is() -> None:
    elsewhere: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace()))
    with pytest.raises(Py4JNetworkError), living(elsewhere):
        raise Py4JNetworkError("gone")
