"""What the harness keeps on a machine, and that it sees every stop of a process once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from icefront.proof import harness


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the harness keeps, in a folder that others use too."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("icefront.spark.jars.cache_folder", lambda: cache / "jars")
    for part in ("jars", "bin", "python"):
        (tmp_path / "pyspark" / part).mkdir(parents=True)
    for name in ("spark-sql_2.13", "spark-mllib_2.13", "hive-exec", "hive-storage-api", "kubernetes-client"):
        (tmp_path / "pyspark" / "jars" / f"{name}-1.0.jar").touch()
    monkeypatch.setattr(harness, "_pyspark", lambda: tmp_path / "pyspark")
    monkeypatch.setattr(harness, "spark_home", harness.spark_home.__wrapped__)
    monkeypatch.setattr(harness, "_class_path", str)
    monkeypatch.setattr(harness, "_train", lambda _folder, archive: archive.write_text("trained"))
    return cache


def test_classes_are_made_once_and_what_nobody_has_asked_for_in_a_month_goes(cache: Path) -> None:
    made, home = harness.class_archive.__wrapped__(), harness.spark_home()
    assert made.read_text() == "trained"
    made.write_text("as it was")
    names = {"others": 29, "forgotten": 31}
    for number, (name, days) in enumerate(names.items()):
        for path in (cache / f"classes-{number:012x}.jsa", cache / f"spark-{number:012x}", cache / f"spark-{name}"):
            path.mkdir() if path.name.startswith("spark") else path.touch()
            os.utime(path, times=(time.time(), time.time() - days * 86400))
    for path in (made, home):
        os.utime(path, (0, 0))
    assert harness.class_archive.__wrapped__() == made
    assert made.read_text() == "as it was", "they were made again"
    left = {path.name for path in cache.iterdir() if path.suffix != ".lock"}
    assert left == {
        made.name,
        home.name,  # both are asked for now
        "classes-000000000000.jsa",
        "spark-000000000000",
        "spark-others",  # not ours to remove, however old
        "spark-forgotten",
    }


def test_the_spark_of_runs_has_what_pyspark_has_but_for_unused_parts(cache: Path) -> None:
    home = harness.spark_home()
    assert home == harness.spark_home()
    assert [path.name for path in cache.iterdir()] == [home.name]
    assert {path.name for path in (home / "jars").iterdir()} == {"spark-sql_2.13-1.0.jar", "hive-storage-api-1.0.jar"}
    links = [home / "bin", home / "python", *(home / "jars").iterdir()]
    assert all(path.resolve().is_relative_to(cache.parent / "pyspark") for path in links)


@pytest.mark.usefixtures("cache")
def test_where_the_environment_names_a_spark_it_is_that_one_and_classes_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = harness._archive()
    theirs = tmp_path / "theirs"
    for part in ("bin", "jars"):
        (theirs / part).mkdir(parents=True)
    (theirs / "bin" / "spark-submit").touch()
    monkeypatch.setenv("SPARK_HOME", str(theirs))
    assert harness.spark_home() == theirs
    assert harness._archive() != usual


STOPS = """
import signal, sys, threading

def work():
    with open("work", "ab", buffering=0) as file:
        while True:
            file.write(b".")

threading.Thread(target=work, daemon=True).start()
for number in range(int(sys.argv[1])):
    print(number, flush=True)
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
"""


@pytest.mark.process
def test_a_process_that_stops_again_as_soon_as_it_is_woken_is_seen_at_every_stop(tmp_path: Path) -> None:
    """Once woken, it is never taken for one that still stands where it stood before; and no thread of it works on."""
    times, work = 300, tmp_path / "work"
    work.touch()
    with harness.Driver([sys.executable, "-S", "-c", STOPS, str(times)], tmp_path, os.environ) as driver:
        for number in range(times):
            while not driver.is_stopped:
                assert driver.code is None
            assert driver.stdout.split()[-1] == str(number)
            assert len({work.stat().st_size for _ in range(20)}) == 1
            driver.wake()
        driver.expect(0)
