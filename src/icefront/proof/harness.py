"""Real `icefront run` processes on a project of their own, to be killed, paused, woken and overtaken.

Project ──start──▶ Driver ─┬─ JVM ── Python workers        all in one session, which ends with us:
                           └─ what it says: events, stderr  a watchdog kills it when our end of its pipe closes
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from icefront.core.errors import ConfigError, ConnectionFailed, FencedOut, Stopped
from icefront.proof import sessions
from icefront.proof.failpoints import ENVIRONMENT
from icefront.proof.logs import events
from icefront.proof.sessions import kill_session, processes, processor_time, stands_still, watch
from icefront.spark import jars
from icefront.spark.java import require_java
from icefront.testing.feeds import ORDERS, Feed, FeedTable

KILLED = -signal.SIGKILL
FENCED = FencedOut.exit_code
STOPPED = Stopped.exit_code
UNREACHABLE = ConnectionFailed.exit_code
PATIENCE = 240.0
"""Seconds after which a process that should have done something by now is taken to hang."""
PROGRAM = (sys.executable, "-m", "icefront")
_POLL = 0.05
_TASK = 0.005
"""How often to look at something that lasts as long as a task."""
# Epochs of a handful of rows: to compile code for them takes longer than to do without.
SMALL = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# One compiler and one collector: such a process lives for seconds, on a machine that runs several.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xlog:disable"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_UNUSED_PARTS = re.compile(
    r"algebra|breeze|cats-kernel|spire|spark-(connect|graphx|hive|kubernetes|mllib|pipelines|yarn)"
    r"|datanucleus|derby|hive-(?!storage-api)|kubernetes|vertx"
)
"""Machine learning, graphs, Hive, Connect, and the clusters of others."""
_MAKING = "making-"
_MADE_HERE = re.compile(rf"classes-[0-9a-f]{{12}}\.jsa|spark-[0-9a-f]{{12}}|{_MAKING}.*")
_UNUSED = 30 * 86400.0
"""Seconds after which what no process has asked for is removed."""
_ONLY_HERE = {"spark.jars": "", "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"}


class Unexpected(AssertionError):
    """A process did not do what it should have; carries the end of what it said."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE, what: str = "it did not happen") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Unexpected(f"{what} within {seconds:.0f} s")
        time.sleep(_POLL)


# ── processes ──────────────────────────────────────────────────────────────────────────────
class Process(Protocol):
    """A process in a session of its own: `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


Begin = Callable[[Sequence[str], Path, Mapping[str, str], Path, Path], Process]
"""Starts a command in a folder and an environment; its output goes to two files."""
TELLING = {"ICEFRONT_DEBUG": "1"}
"""Has a run tell in its log what was not foreseen: otherwise it leaves a file of its own for that, which nobody would remove."""


def executed(command: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> Process:
    """Begin a process by executing its program."""
    with out.open("wb") as told, err.open("wb") as said:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=said, start_new_session=True
        )


class Driver:
    """One `icefront run`. Leaving its context kills it and all that it started."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], begin: Begin = executed) -> None:
        self._said = Path(tempfile.mkdtemp(prefix="driver-", dir=folder))
        self._out.touch()
        self._err.touch()
        self._process = begin(command, folder, environment, self._out, self._err)
        try:
            self._watchdog = watch(self.pid)
        except BaseException:  # Ctrl-C, too: nobody else knows of it yet
            self._process.kill()
            kill_session(self.pid)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _out(self) -> Path:
        return self._said / "stdout"

    @property
    def _err(self) -> Path:
        return self._said / "stderr"

    # ── what it does ───────────────────────────────────────────────────────────────────────
    @property
    def code(self) -> int | None:
        """The exit code; None while it lives. Negative: the signal that ended it."""
        return self._process.poll()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.fail(f"it did not end within {timeout:.0f} s")

    def expect(self, code: int, timeout: float = PATIENCE) -> Self:
        """Wait for its end with this exit code."""
        if (found := self.wait(timeout)) != code:
            self.fail(f"it ended with {found} instead of {code}")
        return self

    def wait_until_stopped(self, timeout: float = PATIENCE) -> Self:
        """Wait until it stands still, paused by a failpoint or by us."""
        if not self.stops(timeout):
            self.fail(f"it was not paused: exit {self.code}")
        return self

    def stops(self, timeout: float = PATIENCE) -> bool:
        """Wait until it stands still; False when it ends instead."""
        deadline = time.monotonic() + timeout
        while not self.is_stopped:
            if self.code is not None:
                return False
            if time.monotonic() > deadline:
                self.fail("it was not paused: it still runs")
            time.sleep(_POLL)
        return True

    @property
    def is_stopped(self) -> bool:
        """Whether all its threads stand still. The system wakes them in the call of `wake`: this is never a stop from before."""
        return stands_still(self.pid)

    def pause(self) -> None:
        """Freeze the driver alone, as its own failpoints do: its JVM and workers go on."""
        self._process.send_signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the driver alone, as a supervisor would: its JVM notices and ends by itself."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill whatever is left of it; itself first, lest it has not come to its session yet."""
        self._process.kill()
        kill_session(self.pid)
        self._process.wait()
        self._watchdog.kill()
        self._watchdog.communicate()

    # ── what belongs to it ─────────────────────────────────────────────────────────────────
    def jvm(self) -> int | None:
        """The process id of its JVM; None when there is none, not yet or no more."""
        return next((p.pid for p in self._session() if p.name == "java"), None)

    def workers(self) -> Sequence[int]:
        """The process ids of its Python workers, without the daemon that forks them: a child of the JVM, or of a driver that lent it one."""
        session, jvm = list(self._session()), self.jvm()
        daemons = {p.pid for p in session if p.parent in {jvm, self.pid} and p.name not in {"java", "bash"}}
        return [p.pid for p in session if p.parent in daemons]

    def worker_times(self) -> Mapping[int, int]:
        """How long each of its Python workers has used the processor: one that waits for a task uses none."""
        return {pid: processor_time(pid) for pid in self.workers()}

    def busy_worker(self, before: Mapping[int, int], timeout: float = 60.0) -> int | None:
        """Wait for a worker that is in the middle of a task: it has used the processor since. None when the driver ends first."""
        deadline = time.monotonic() + timeout
        while self.code is None and time.monotonic() < deadline:
            if busy := [pid for pid, used in self.worker_times().items() if used > before.get(pid, 0)]:
                return busy[0]
            time.sleep(_TASK)
        return None

    def _session(self) -> Iterator[sessions.Process]:
        return (p for p in processes() if p.session == self.pid and p.pid != self.pid and p.lives)

    # ── what it said ───────────────────────────────────────────────────────────────────────
    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    def events(self) -> Sequence[Mapping[str, Any]]:
        """What it has printed so far, one event per line."""
        complete = self._out.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in complete.splitlines()]

    def epochs(self) -> Sequence[Mapping[str, Any]]:
        """The epochs that it has published so far."""
        return [event for event in self.events() if event["event"] == "epoch"]

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def fail(self, what: str) -> NoReturn:
        """Say what it did not do, with the end of what it said."""
        raise Unexpected(f"{what}; the end of its stderr:\n{self.stderr[-3000:]}")


def released(log: str) -> Sequence[str]:
    """Return what a run said that it released."""
    return [said["frontier"] for said in events(log, "released")]


# ── projects ───────────────────────────────────────────────────────────────────────────────
class Project:
    """A folder with a feed of orders, `orders.yaml` and `icefront.yaml`, driven by real `icefront run` processes.

    The feed is empty at first: `project.feed.scan()`, then `advance()`. `settings` go into the pipeline file, `spark` into the
    session (`spark.master` too), and `catalog` is the project's catalog `lake`: the embedded one if none is given.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        catalog: Mapping[str, object] | None = None,
        spark: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        sink: Mapping[str, object] | None = None,
        program: Sequence[str] = PROGRAM,
        table: str = "lake.t.orders",
        feed_table: FeedTable = ORDERS,
        begin: Begin = executed,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.table = table
        self.program = program
        self.begin = begin
        self.feed = Feed(folder / "feed", tables=[feed_table], seed=seed, deletes=0.3)
        self._settings = settings or {}
        own = spark or {}
        conf = {**SMALL, **(_alone() if _JAVA_OPTIONS in own else quick_jvm()), **own}
        master = conf.pop("spark.master", "local[1]")
        if not master.startswith("local["):
            for name in ("spark.home", *_ONLY_HERE):  # executors have JVMs of their own
                conf.pop(name, None)
        project: dict[str, object] = {"spark": {"master": master, "conf": conf}}
        if catalog is not None:
            project["catalogs"] = {"lake": dict(catalog)}
        (folder / "icefront.yaml").write_text(json.dumps(project), encoding="utf-8")
        self.configure(sink)

    def configure(self, sink: Mapping[str, object] | None = None, **settings: object) -> None:
        """Write the pipeline file, with these settings for the sink, and others that win over the project's own."""
        pipeline = {
            "pipeline": "orders",
            "source": {"changefeed": {"path": "feed/"}},
            "keys": ["id"],
            "columns": {"id": "bigint", "amount": "decimal(12,2)", "created_at": "timestamptz"},
            "sink": {"iceberg": {"table": self.table, **(sink or {})}},
            "epochs": {"every": "resolved"},
            "upkeep": "off",
            **self._settings,
            **settings,
        }
        self.file.write_text(json.dumps(pipeline), encoding="utf-8")

    @property
    def file(self) -> Path:
        return self.folder / "orders.yaml"

    def start(
        self,
        failpoints: str = "",
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
    ) -> Driver:
        """Start `icefront run orders.yaml --until caught-up --json` with failpoints armed."""
        command = [*(program or self.program), "run", self.file.name, "--until", "caught-up", "--json", *arguments]
        return Driver(command, self.folder, {**os.environ, **TELLING, ENVIRONMENT: failpoints, **(environment or {})}, self.begin)

    def run(
        self,
        failpoints: str = "",
        *arguments: str,
        code: int = 0,
        timeout: float = PATIENCE,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
    ) -> Driver:
        """Start, wait for the end, and check the exit code."""
        with self.start(failpoints, *arguments, environment=environment, program=program) as driver:
            return driver.expect(code, timeout)


# ── a JVM that starts fast ─────────────────────────────────────────────────────────────────
@cache
def _class_path() -> str:
    """Return Iceberg's jars as the JVM's own: it archives no classes that Spark loads for it, and those are a tenth of a run."""
    return os.pathsep.join(map(str, [*jars.ensure(), *jars.ensure("proof")]))


def _alone() -> dict[str, str]:
    """Return Spark's settings for a JVM that does all work itself: it hands no jars to executors.

    Hadoop starts a `chmod` for every file that it writes to a local disk, eight in each commit: a quarter of the processor time of
    programs that do little else. This file system of its kind asks Java for the same, and is Hadoop's own otherwise.
    """
    return {"spark.driver.extraClassPath": _class_path(), "spark.home": str(spark_home()), **_ONLY_HERE}


@cache
def spark_home() -> Path:
    """Return the Spark of the environment; if it names none, one whose jars are links to PySpark's, but for parts that no run of ours uses.

    Wherever it finds Spark's machine learning, every session registers its functions: a quarter of what a JVM does in a short run.
    """
    if home := os.environ.get("SPARK_HOME"):
        if not Path(home, "bin", "spark-submit").exists():
            raise ConfigError(
                f"SPARK_HOME is {home}, and there is no bin/spark-submit in it",
                "name a Spark's folder, or unset it: PySpark has its own",
            )
        return Path(home)
    theirs = _pyspark()
    used = [jar for jar in sorted((theirs / "jars").glob("*.jar")) if not _UNUSED_PARTS.match(jar.name)]
    ours = _cache() / f"spark-{_digest(*map(str, used))}"
    if not ours.exists():
        ours.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ours.parent, prefix=_MAKING) as folder:
            made = Path(folder, "spark")
            (made / "jars").mkdir(parents=True)
            for part in (theirs / "bin", theirs / "python"):
                (made / part.name).symlink_to(part)
            for jar in used:
                (made / "jars" / jar.name).symlink_to(jar)
            try:
                made.rename(ours)
            except OSError:
                if not ours.exists():  # otherwise another process was faster
                    raise
    return ours


def _pyspark() -> Path:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return Path(spark.origin).parent


def quick_jvm() -> dict[str, str]:
    """Return the same for a JVM that starts fast, too."""
    return {**_alone(), _JAVA_OPTIONS: f"{_JAVA} -XX:SharedArchiveFile={class_archive()}"}


def has_class_archive() -> bool:
    """Say whether `class_archive` was made on this machine already."""
    return _archive().exists()


@cache
def class_archive() -> Path:
    """Return Spark's and Iceberg's classes as the JVM keeps them in memory, made once on a machine: starting is much faster with them.

    The JVM itself checks that they are those of its jars, at the same place and of the same time, and goes without them if not.
    """
    archive = _archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one makes them, the others wait
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=_MAKING) as folder:
                _train(Path(folder), made := Path(folder, "classes.jsa"))
                made.replace(archive)
    _remove_unused(archive, spark_home())
    return archive


def _remove_unused(*used: Path) -> None:
    """Remove what was made for an environment that is gone, or is another by now."""
    for path in used:
        if path.parent == _cache():
            os.utime(path)
    made = [path for path in _cache().glob("*") if _MADE_HERE.fullmatch(path.name)]
    for other in made:
        with suppress(FileNotFoundError):  # another process has removed it, too
            if other.stat().st_mtime < time.time() - _UNUSED:
                shutil.rmtree(other) if other.is_dir() else other.unlink()


def _archive() -> Path:
    """Name it by all that it is made of."""
    jars_of = (spark_home() / "bin").resolve().parent / "jars"
    name = _digest(
        require_java().version, version("pyspark"), str(jars_of.stat().st_mtime_ns), str(spark_home()), _class_path(), _JAVA
    )
    return _cache() / f"classes-{name}.jsa"


def _cache() -> Path:
    return jars.cache_folder().parent


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _train(folder: Path, archive: Path) -> None:
    """Run a small pipeline whose JVM writes down at its end what it has loaded."""
    project = Project(folder, seed=1, spark={_JAVA_OPTIONS: f"{_JAVA} -XX:ArchiveClassesAtExit={archive}"})
    project.feed.scan(20)
    project.feed.advance(20)
    with project.start() as driver:
        driver.expect(0)
        wait_until(lambda: driver.jvm() is None, what="the JVM did not write its classes")
