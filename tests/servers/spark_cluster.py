"""A real Spark standalone cluster from the PySpark wheel: one master, two workers, each a process on a loopback address of its own."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from icefront.spark.java import require_java
from tests.servers.process import Server

_READY_WITHIN = 90.0
_MASTER_HOST = "127.0.0.1"
_WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")


class _Daemon(Server):
    """A master or a worker, started through `bin/spark-class` (the wheel has no sbin scripts). Ready = its log says so."""

    def __init__(self, name: str, folder: Path, host: str, arguments: list[str], ready: str) -> None:
        super().__init__(name, folder)
        self._host = host
        self._arguments = arguments
        self._ready = re.compile(ready)
        self.found = ""

    def begin(self) -> Self:
        """Start without waiting, so that several can come up side by side."""
        home = spark_home()
        environment = {
            "JAVA_HOME": str(require_java().home),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_LOCAL_IP": self._host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._launch([home / "bin" / "spark-class", *self._arguments], environment)
        return self

    def await_ready(self) -> Self:
        self._wait_until(self._says_so, _READY_WITHIN)
        return self

    def start(self) -> Self:
        return self.begin().await_ready()

    def _says_so(self) -> bool:
        said = self._ready.search(self.log_tail(1_000_000))
        self.found = said.group(1) if said else ""
        return said is not None


class SparkCluster:
    """`with SparkCluster(folder) as cluster:` … `cluster.url` is the master for a session; `cluster.workers[0].kill()` a lost machine."""

    def __init__(self, folder: Path, cores: int = 1, memory: str = "700m") -> None:
        self.folder = folder.absolute()
        self.url = ""
        self.workers: list[Server] = []
        self._cores = cores
        self._memory = memory
        self._all = ExitStack()

    def start(self) -> Self:
        started = time.monotonic()
        with ExitStack() as undo:
            # Port 0: Spark chooses and says so in its log, so there is no race to lose.
            where = ["--host", _MASTER_HOST, "--port", "0", "--webui-port", "0"]
            arguments = ["org.apache.spark.deploy.master.Master", *where]
            ready = r"Starting Spark master at (spark://\S+)"
            master = undo.enter_context(_Daemon("spark-master", self.folder / "master", _MASTER_HOST, arguments, ready))
            self.url = master.found
            workers = [self._worker(number, host) for number, host in enumerate(_WORKER_HOSTS)]
            for worker in workers:
                undo.callback(worker.stop)
                worker.begin()
            for worker in workers:
                worker.await_ready()
            self.workers = list(workers)
            self._all = undo.pop_all()
        self.up_after = time.monotonic() - started
        return self

    def stop(self) -> None:
        self._all.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def log_tail(self) -> str:
        return "\n".join(f"{worker.name}:\n{worker.log_tail()}" for worker in self.workers)

    def _worker(self, number: int, host: str) -> _Daemon:
        folder = self.folder / f"worker-{number}"
        size = ["--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(folder / "work")]
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0", "--webui-port", "0", *size, self.url]
        return _Daemon(f"spark-worker-{number}", folder, host, arguments, r"(Successfully registered with master)")


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
