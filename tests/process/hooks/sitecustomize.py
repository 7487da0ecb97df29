"""Loaded by every Python that finds this folder on its path: strikes in a worker, or sets the clock back.

MATRIX_STRIKE=raise|hang     the first attempt to write files fails, or hangs, when its files are complete
MATRIX_STRIKE=late           the first attempt outlives its driver, and when it is woken writes all its files once more
MATRIX_STRIKE=twice|unlike   every attempt reports its files twice; or one of them with another size
MATRIX_MARK=FILE             made by the first attempt, with its process id: whoever finds it made is not the first
MATRIX_WAKE=FILE             wakes that one, when it is there
MATRIX_CLOCK=SECONDS         what the clock is wrong by
MATRIX_CLOCK_AGAIN=FILE      and by as much again from when this file is there
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path


def strike_in_writes(action: str, mark: Path, wake: Path) -> None:
    from icefront.kernels.parquet import IcebergEpochWriter  # noqa: PLC0415 — only where it is to be struck

    write = IcebergEpochWriter.write

    def struck(self, changes, split, attempt):
        changes = list(changes)
        written = list(write(self, changes, split, attempt))
        first = written and is_first(mark)
        match action:
            case "raise" if first:
                raise RuntimeError("struck by the failure matrix")
            case "hang" if first:
                time.sleep(600)
            case "late" if first:
                # As on another machine: there nobody tells it that its driver is gone.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                while not wake.exists():
                    time.sleep(0.05)
                written += write(self, changes, split, f"{attempt}-late")
            case "twice":
                written *= 2
            case "unlike" if written:
                written.append(replace(written[0], size=written[0].size + 1))
        return iter(written)

    IcebergEpochWriter.write = struck  # type: ignore[method-assign]


def is_first(mark: Path) -> bool:
    try:
        with mark.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def set_clock(seconds: float, again: Path) -> None:
    now, now_ns = time.time, time.time_ns

    def wrong_by() -> float:
        return 2 * seconds if again.is_file() else seconds

    time.time = lambda: now() + wrong_by()
    time.time_ns = lambda: now_ns() + int(wrong_by() * 1e9)

    class Wrong(datetime):
        """It asks the system for the time by itself, and not `time.time`."""

        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=wrong_by())

    # Only there: libraries written in C rely on what the class is made of.
    for reader in ("status.upkeep", "upkeep.expire", "upkeep.hands", "upkeep.keeper"):
        import_module(f"icefront.{reader}").datetime = Wrong  # type: ignore[attr-defined]


def reuse_paths() -> None:
    from pyiceberg.io.pyarrow import PyArrowFile  # noqa: PLC0415

    from icefront.spark import job  # noqa: PLC0415

    create = PyArrowFile.create
    job.attempt_id = lambda: "always-the-same"
    PyArrowFile.create = lambda self, **_: create(self, overwrite=True)  # type: ignore[method-assign]


if "MATRIX_REUSE" in os.environ:
    reuse_paths()
if "MATRIX_STRIKE" in os.environ:
    strike_in_writes(os.environ["MATRIX_STRIKE"], Path(os.environ["MATRIX_MARK"]), Path(os.environ["MATRIX_WAKE"]))
if "MATRIX_CLOCK" in os.environ:
    set_clock(float(os.environ["MATRIX_CLOCK"]), Path(os.environ.get("MATRIX_CLOCK_AGAIN", "")))
