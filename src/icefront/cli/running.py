"""`icefront run` and `icefront upkeep`: pipelines in threads of one process around one Spark session, one line per epoch or cycle.

The main thread only waits, so that it can take signals: the first one drains, the second ends the process at once.
Spark is started in another thread, since PySpark would put a handler of its own in the place of ours.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import typer
from rich.console import Console
from rich.status import Status

from icefront.api import Pipeline
from icefront.cli import show
from icefront.cli.errors import INTERRUPTED, tell, tell_error, tell_unexpected
from icefront.cli.sessions import start_session
from icefront.core.errors import UNEXPECTED, ConfigError, FencedOut, IcefrontError, Stopped
from icefront.pipeline import EpochPublished, Result
from icefront.status import cycle_dict
from icefront.status.targets import human_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefront.api import CycleRecord

T = TypeVar("T")


def run(files: Sequence[Path], *, until: Literal["caught-up"] | None, seconds: float | None, adopt: bool, as_json: bool) -> None:
    def one(pipeline: Pipeline, spark: SparkSession, printer: _Printer, stop: threading.Event) -> None:
        name = pipeline.settings.pipeline
        result = pipeline.run(
            spark,
            until=until,
            seconds=seconds,
            adopt=adopt,
            on_epoch=lambda event: printer.epoch(name, event),
            on_cycle=lambda done: printer.cycle(name, done),
            stop=stop,
        )
        printer.end(name, result, drained=stop.is_set())

    _all_in_one_session(files, one, as_json=as_json)


def upkeep(files: Sequence[Path], *, once: bool, as_json: bool) -> None:
    def one(pipeline: Pipeline, spark: SparkSession, printer: _Printer, stop: threading.Event) -> None:
        name = pipeline.settings.pipeline
        heard: list[CycleRecord] = []

        def hear(done: CycleRecord) -> None:
            printer.cycle(name, done)
            heard.append(done)

        if not pipeline.settings.upkeep.terms.on:
            tell(f"{name}: upkeep is off")
            return
        pipeline.upkeep(spark, once=once, on_cycle=hear, stop=stop)
        if once and not heard:
            tell(f"{name}: nothing is due; `icefront status` says why")
        if failed := [done for done in heard if done.outcome == "failed"] if once else []:
            raise Stopped(f"{name}: {len(failed)} of {len(heard)} cycles failed", "see above; they are tried again later")

    _all_in_one_session(files, one, as_json=as_json)


One = Callable[[Pipeline, "SparkSession", "_Printer", threading.Event], None]
"""What is done with one pipeline, in a thread of its own."""


def _all_in_one_session(files: Sequence[Path], one: One, *, as_json: bool) -> None:
    pipelines = [Pipeline.load(path) for path in files]
    _check_together(files, pipelines)
    stop = threading.Event()
    printer = _Printer(as_json=as_json)
    with _draining(stop), printer:
        spark = _patiently(lambda: start_session(pipelines[0], quiet=as_json))
        try:
            errors = _run_all(pipelines, lambda pipeline: one(pipeline, spark, printer, stop), stop)
        finally:
            with suppress(ConnectionError):  # a JVM that has ended needs no stopping
                _patiently(spark.stop)
    if errors:
        # Fenced comes first: a supervisor must see that code, and not restart.
        error = min(errors, key=lambda error: not isinstance(error, FencedOut))
        raise typer.Exit(error.exit_code if isinstance(error, IcefrontError) else UNEXPECTED)


def _check_together(files: Sequence[Path], pipelines: Sequence[Pipeline]) -> None:
    """Several pipelines share one session, so they must agree about it; and no pipeline may run twice."""
    first = pipelines[0].settings
    names: dict[str, Path] = {}
    for path, pipeline in zip(files, pipelines, strict=True):
        name = pipeline.settings.pipeline
        if name in names:
            raise ConfigError(
                f"{names[name]} and {path} are both pipeline {name}", "run each pipeline once: the second would fence the first"
            )
        names[name] = path
        if pipeline.settings.project.spark_conf() != first.project.spark_conf():
            raise ConfigError(
                f"{files[0]} and {path} belong to projects with other catalogs or Spark settings", "run them separately"
            )


def _patiently(action: Callable[[], T]) -> T:
    """Run something outside the main thread, which goes on taking signals."""
    found: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 — raised again in the main thread
            errors.append(error)

    _join([_started(work, "main")])
    if errors:
        raise errors[0]
    return found[0]


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)


def _run_all(pipelines: Sequence[Pipeline], work: Callable[[Pipeline], None], stop: threading.Event) -> Sequence[BaseException]:
    """Run every pipeline to its end. One that fails says so at once; the others go on."""
    errors: list[BaseException] = []

    def one(pipeline: Pipeline) -> None:
        try:
            work(pipeline)
        except IcefrontError as error:
            errors.append(error)
            tell_error(error)
        except Exception as error:  # noqa: BLE001 — told here; the exit code says the rest
            errors.append(error)
            tell_unexpected(error)

    if not stop.is_set():
        _join([_started(lambda p=pipeline: one(p), pipeline.settings.pipeline) for pipeline in pipelines])  # type: ignore[misc]
    return errors


# ── signals ────────────────────────────────────────────────────────────────────────────────
@contextmanager
def _draining(stop: threading.Event) -> Iterator[None]:
    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            # Nothing is lost by it: what is staged is published by the next run. The JVM ends with its stdin.
            os._exit(INTERRUPTED)
        stop.set()
        tell(f"{signal.Signals(number).name}: finishing what is in flight; once more stops at once")

    if threading.current_thread() is not threading.main_thread():
        yield  # only a program's main thread takes signals
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── printing ───────────────────────────────────────────────────────────────────────────────
@dataclass
class _Printer:
    """One line per epoch on stdout; on a screen also one that moves: how much, how fast, up to when."""

    as_json: bool
    begun: float = field(default_factory=time.monotonic)
    changes: int = 0
    epochs: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def epoch(self, pipeline: str, event: EpochPublished) -> None:
        with self._lock:
            self.epochs += 1
            self.changes += event.counts.get("inside", 0)
            if self.as_json:
                show.print_json({"event": "epoch", "pipeline": pipeline, **epoch_dict(event)})
                return
            self._line(epoch_line(event))
            self._moving(f"{pipeline} at {show.when(event.epoch.upper)}")

    def cycle(self, pipeline: str, done: CycleRecord) -> None:
        with self._lock:
            if self.as_json:
                show.print_json({"event": "upkeep", "pipeline": pipeline, "target": done.target, **cycle_dict(done)})
            else:
                self._line(f"{done.target}  {show.cycle(done)}")

    def end(self, pipeline: str, result: Result, *, drained: bool) -> None:
        with self._lock:
            if self.as_json:
                frontiers = {target: str(frontier) for target, frontier in result.frontiers.items()}
                show.print_json(
                    {"event": "end", "pipeline": pipeline, "epochs": result.epochs, "drained": drained, "frontiers": frontiers}
                )
                return
            how = "drained" if drained else "done"
            epochs = f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}"
            self._line(f"{pipeline}: {how}: {epochs} published, frontier {human_time(result.frontier) or 'not moved yet'}")

    def _line(self, text: str) -> None:
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            show.say(text)

    def _moving(self, place: str) -> None:
        if not show.interactive():
            return
        if self._status is None:
            self._status = Console().status("")
            self._status.start()
        rate = self.changes / max(time.monotonic() - self.begun, 0.001)
        self._status.update(f"{place} · {self.epochs} epochs · {self.changes:,} changes · {rate:,.0f}/s")


def epoch_dict(event: EpochPublished) -> dict[str, object]:
    return {
        "target": event.target,
        "lower": str(event.epoch.lower),
        "upper": str(event.epoch.upper),
        "upper_time": human_time(event.epoch.upper),
        "snapshot_id": event.snapshot,
        "changes": dict(event.counts),
        "files": event.files,
        "bytes": event.bytes,
        "seconds": {phase: round(value, 3) for phase, value in event.timings.items()},
        "recovered": event.recovered,
        "attempts": event.attempts,
    }


def epoch_line(event: EpochPublished) -> str:
    parts = [
        event.target,
        f"to {show.when(event.epoch.upper)}",
        show.changes(event.counts),
        f"{event.files} file{'' if event.files == 1 else 's'} {show.size(event.bytes)}",
        show.phases(event.timings),
        f"snapshot {event.snapshot}",
    ]
    return "  ".join(parts) + ("  (staged by an earlier run)" if event.recovered else "")
