"""Iceberg's own REST catalog server: a JDBC catalog on SQLite behind HTTP, with a warehouse in a local folder.

`python -m tests.servers.rest` starts one for somebody who wants a catalog to try things on, in a temporary folder, until Ctrl-C; or for
one command, which is given its address in the place of `URI`: `python -m tests.servers.rest icefront prove --catalog rest --uri URI`.

It listens on all interfaces (it has no setting for that): a random port, and only while tests run. It also sets SO_REUSEPORT, so
two of them on one port do not fail: they share the connections, and clients see two catalogs by turns. A port that was merely free a
moment ago is therefore not good enough; ours is reserved. Its multi-table transaction endpoint loses changes under contention, so it
cannot prove anything about atomicity across tables.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from icefront.spark import jars
from icefront.spark.java import require_java
from tests.servers.process import Server, reserve_port

LOCK = Path(__file__).with_name("rest.lock")

_FLAGS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
_READY_WITHIN = 60.0


class RestCatalog(Server):
    """The server keeps its port and its tables over `kill` and `start`."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        super().__init__("rest-catalog", folder.absolute())
        self.warehouse = f"file://{self.folder / 'warehouse'}"
        self._more = dict(properties or {})
        self._reserved = reserve_port()

    @property
    def port(self) -> int:
        number: int = self._reserved.getsockname()[1]
        return number

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def properties(self) -> dict[str, str]:
        """What PyIceberg's `load_catalog` needs."""
        return {"type": "rest", "uri": self.uri, "warehouse": self.warehouse}

    def start(self) -> Self:
        database = f"jdbc:sqlite:{self.folder / 'catalog.db'}?journal_mode=WAL&busy_timeout=10000&transaction_mode=IMMEDIATE"
        properties = {"warehouse": self.warehouse, "uri": database, "clients": "1", **self._more, "rest.port": str(self.port)}
        environment = {_variable(key): value for key, value in properties.items()}
        command = [str(require_java().executable), *_FLAGS, "-cp", class_path(), "org.apache.iceberg.rest.RESTCatalogServer"]
        self._launch(command, environment)
        self._wait_until(self._answers, _READY_WITHIN)
        return self

    def close(self) -> None:
        super().close()
        self._reserved.close()

    def config(self) -> dict[str, Any]:
        """What the server answers to the first question of every client."""
        with urllib.request.urlopen(f"{self.uri}/v1/config", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _answers(self) -> bool:
        try:
            return "defaults" in self.config()
        except (OSError, ValueError):
            return False


def class_path() -> str:
    own = jars.ensure("rest", lock=LOCK)
    return ":".join(str(path) for path in [*own, *_hadoop()])


def _hadoop() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    return [
        jar for place in spec.submodule_search_locations or [] for jar in sorted(Path(place).glob("jars/hadoop-client-*.jar"))
    ]


def _variable(key: str) -> str:
    """The server takes catalog properties as environment variables: `io-impl` → `CATALOG_IO__IMPL`, `rest.port` → `CATALOG_REST_PORT`."""
    return "CATALOG_" + key.replace("-", "__").replace(".", "_").upper()


def main(*command: str) -> int:
    """Start a catalog and keep it until Ctrl-C, having printed its address; or for as long as a command takes, whose exit code this is.

    Its folder goes with it, unless the command ends with another code than 0: then somebody may want to look into it.
    """
    # Asked to be terminated we leave the way Ctrl-C does: with the server and its folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="icefront-rest-"))
    code = 0
    try:
        with RestCatalog(folder) as server:
            if command:
                code = _run([server.uri if word == "URI" else word for word in command])
            else:
                _keep(server)
    finally:
        if code:
            sys.stderr.write(f"the catalog's tables and its log stay in {folder}\n")
        else:
            shutil.rmtree(folder)
    return code


def _keep(server: RestCatalog) -> None:
    sys.stdout.write(f"{server.uri}\n")
    sys.stdout.flush()
    sys.stderr.write(f"its tables and its log are in {server.folder} until Ctrl-C\n")
    with suppress(KeyboardInterrupt):
        signal.pause()


def _run(command: Sequence[str]) -> int:
    """Run a command to its end. Ctrl-C and a closed terminal are the command's business, which has its own to do then; SIGTERM is passed on."""
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
