"""Real processes: killed at each durable step and resumed; paused, overtaken, woken. The table is right each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icefront.proof.oracle import compare, replay
from icefront.testing.feeds import ORDERS, Feed
from tests import engines
from tests.lakes import orders

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
TABLE = "lake.t.orders"
KILLED = -signal.SIGKILL


class Project:
    """A folder with a feed and a pipeline, run by real processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.feed = Feed(folder / "feed", tables=[ORDERS], seed=21, deletes=0.3)
        self.feed.scan(40)
        self.feed.advance(60)
        self.feed.advance(60)
        settings = {"pipeline": "orders", "source": {"changefeed": {"path": "feed/"}}, **orders(TABLE)}
        (folder / "orders.yaml").write_text(json.dumps(settings))
        small = {"spark": {"master": "local[1]", "conf": {"spark.driver.memory": "512m"}}}
        (folder / "icefront.yaml").write_text(json.dumps(small))

    @contextmanager
    def start(self, failpoints: str = "") -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "icefront", "run", "orders.yaml", "--until", "caught-up", "--json"],
            cwd=self.folder,
            env={**os.environ, "ICEFRONT_FAILPOINTS": failpoints},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # The whole session: a killed driver's JVM ends by itself, a paused one's does not.
            with_suppress(lambda: os.killpg(process.pid, signal.SIGKILL))
            process.wait()

    def run(self, failpoints: str = "", code: int = 0) -> str:
        with self.start(failpoints) as process:
            out, err = process.communicate(timeout=300)
        assert process.returncode == code, (process.returncode, out, err[-3000:])
        return out

    def check(self) -> None:
        rows, schema = engines.read(self.folder / ".icefront", TABLE)
        expected = replay(self.folder / "feed", "orders", ["id"], str(self.feed.resolved[-1].next()))
        assert not compare(expected, rows, schema, ["id"])


def with_suppress(action: Callable[[], None]) -> None:
    try:
        action()
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    "failpoint",
    ["write.after=kill@2", "stage.after=kill@2", "publish.before-commit=kill@2", "publish.after=kill@2"],
)
def test_a_run_that_is_killed_is_resumed_and_nothing_is_lost_or_doubled(project: Project, failpoint: str) -> None:
    project.run(failpoint, code=KILLED)
    project.run()
    project.check()


def test_a_chain_of_staged_epochs_is_published_in_order_without_writing_again(project: Project) -> None:
    project.run("publish.before=delay:120@1,stage.after=kill@3", code=KILLED)
    files = {path: path.stat().st_mtime_ns for path in project.folder.glob(".icefront/warehouse/**/data/*.parquet")}
    events = [json.loads(line) for line in project.run().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch"]
    assert [event["recovered"] for event in epochs] == [True, True, True]
    assert {path: path.stat().st_mtime_ns for path in project.folder.glob(".icefront/warehouse/**/data/*.parquet")} == files
    project.check()


def test_a_paused_writer_is_overtaken_woken_and_refused(project: Project) -> None:
    with project.start("publish.before-commit=pause@2") as zombie:
        wait_until(lambda: is_stopped(zombie.pid))
        project.run()
        project.check()
        os.kill(zombie.pid, signal.SIGCONT)
        out, err = zombie.communicate(timeout=120)
        assert zombie.returncode == 4, (out, err[-3000:])
        assert "is owned by writer" in err
    project.check()
