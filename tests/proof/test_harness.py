"""What the harness keeps on a machine, and that it sees every stop of a process once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from icefront.proof import harness


def test_classes_are_made_once_and_those_that_nobody_has_asked_for_in_a_month_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others, forgotten = (tmp_path / f"classes-{name}.jsa" for name in ("ours", "others", "forgotten"))
    made: list[Path] = []

    def train(_folder: Path, archive: Path) -> None:
        made.append(archive)
        archive.touch()

    monkeypatch.setattr(harness, "_archive", lambda: ours)
    monkeypatch.setattr(harness, "_train", train)
    for path, days in ((others, 29), (forgotten, 31)):
        path.touch()
        os.utime(path, times=(time.time(), time.time() - days * 86400))
    for _ in range(2):
        assert harness.class_archive.__wrapped__() == ours
    assert len(made) == 1
    assert {*tmp_path.glob("*.jsa")} == {ours, others}
    os.utime(ours, (0, 0))
    harness.class_archive.__wrapped__()
    assert ours.exists(), "it is asked for now"


def test_the_spark_of_runs_has_what_pyspark_has_but_for_unused_parts_and_goes_when_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "pyspark"
    for name in ("spark-sql_2.13", "spark-mllib_2.13", "hive-exec", "hive-storage-api", "kubernetes-client"):
        jar = theirs / "jars" / f"{name}-1.0.jar"
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.touch()
    for part in ("bin", "python"):
        (theirs / part).mkdir()
    monkeypatch.setattr(harness, "_pyspark", lambda: theirs)
    monkeypatch.setattr("icefront.spark.jars.cache_folder", lambda: tmp_path / "cache" / "jars")
    home = harness.spark_home.__wrapped__()
    assert home == harness.spark_home.__wrapped__()
    assert [path.name for path in home.parent.iterdir()] == [home.name]
    assert {path.name for path in (home / "jars").iterdir()} == {"spark-sql_2.13-1.0.jar", "hive-storage-api-1.0.jar"}
    assert all(path.resolve().is_relative_to(theirs) for path in [home / "bin", home / "python", *(home / "jars").iterdir()])

    def goes_on() -> bool:
        harness.class_archive.__wrapped__()
        return home.exists()

    monkeypatch.setattr(harness, "_archive", lambda: home.parent / "classes-ours.jsa")
    monkeypatch.setattr(harness, "_train", lambda _folder, archive: archive.touch())
    assert goes_on()
    theirs.rename(tmp_path / "gone")
    assert not goes_on()


STOPS = """
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
for number in range(int(sys.argv[1])):
    print(number, flush=True)
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
"""


@pytest.mark.process
def test_a_process_that_stops_again_as_soon_as_it_is_woken_is_seen_at_every_stop(tmp_path: Path) -> None:
    """Once woken, it is never taken for one that still stands where it stood before."""
    times = 300
    with harness.Driver([sys.executable, "-S", "-c", STOPS, str(times)], tmp_path, os.environ) as driver:
        for number in range(times):
            while not driver.is_stopped:
                assert driver.code is None
            assert driver.stdout.split()[-1] == str(number)
            driver.wake()
        driver.expect(0)
