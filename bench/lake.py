"""A project in a temporary folder, and a pipeline that stays running between measurements.

Start-up (the session, the claim) is no part of an epoch's time. A run is therefore kept alive; it looks at its source when it is
rung for instead of every so many seconds, so that polling neither delays us nor disturbs whoever is measured meanwhile.
"""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from icefront.api import EpochPublished, Pipeline
from icefront.testing.feeds import ORDERS_COLUMNS

PATIENCE = 1800.0


class Lake:
    """A temporary project: an embedded catalog `lake`, feeds in folders of their own, one session."""

    def __init__(self, folder: Path, conf: Mapping[str, str]) -> None:
        self.folder = folder
        # JSON is YAML too.
        project = {"catalogs": {"lake": {"type": "sqlite", "path": "lake"}}, "state": "state.db", "spark": {"conf": dict(conf)}}
        folder.joinpath("icefront.yaml").write_text(json.dumps(project))

    @classmethod
    @contextmanager
    def open(cls, conf: Mapping[str, str] | None = None) -> Iterator[Lake]:
        """Make a project and its session; both are gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="icefront-bench-"))
        lake = cls(folder, conf or {})
        try:
            lake.spark = lake.pipeline("session", "session").session()
            # Spark finds a catalog's settings only in the thread that made the session; once loaded, it is there for all.
            lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
            try:
                yield lake
            finally:
                lake.spark.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    spark: Any

    def feed(self, name: str) -> Path:
        return self.folder / "feeds" / name

    def pipeline(self, name: str, feed: str) -> Pipeline:
        """A pipeline of the six-column orders table, everything declared, everything else as it comes."""
        path = self.folder / f"{name}.yaml"
        settings = {
            "pipeline": name,
            "source": {"changefeed": {"path": str(self.feed(feed))}},
            "keys": ["id"],
            "columns": {column: kind.replace("long", "bigint") for column, kind in ORDERS_COLUMNS.items()},
            "sink": {"iceberg": {"table": self.table(name)}},
            "epochs": {"every": "resolved"},
            "upkeep": "off",
        }
        path.write_text(json.dumps(settings))
        return Pipeline.load(path)

    @staticmethod
    def table(name: str) -> str:
        return f"lake.bench.{name}"


class Bell(threading.Event):
    """A run's stop event whose waiting ends when it is rung, not after a time."""

    def __init__(self) -> None:
        super().__init__()
        self._rung = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self._rung.acquire()
        return self.is_set()

    def ring(self) -> None:
        self._rung.release()

    def set(self) -> None:
        super().set()
        self.ring()


class Live:
    """A pipeline that runs in a thread of its own."""

    def __init__(self, pipeline: Pipeline, spark: Any) -> None:
        self._bell = Bell()
        self._events: queue.SimpleQueue[EpochPublished | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(pipeline, spark), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bell.set()
        self._thread.join(PATIENCE)

    def _run(self, pipeline: Pipeline, spark: Any) -> None:
        try:
            pipeline.run(spark, on_epoch=self._events.put, stop=self._bell)
        except BaseException as error:  # noqa: BLE001 — told to whoever waits for the next epoch
            self._events.put(error)

    def epoch(self) -> EpochPublished:
        """Let the run look at its source now; return when the next epoch is visible and noted."""
        self._bell.ring()
        event = self._events.get(timeout=PATIENCE)
        if isinstance(event, BaseException):
            raise event
        return event
