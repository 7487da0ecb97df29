"""`icefront demo`: the demo on a screen, or as plain lines in a log."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icefront.cli import show
from icefront.proof.demo import STEPS, Claim, Demo

QUIET = 5.0
"""In a log, seconds between two lines that only say what is going on."""


def demo(folder: Path | None, seed: int) -> None:
    place = folder or Path(tempfile.mkdtemp(prefix="icefront-demo-"))
    begun = time.monotonic()
    # Children are ended on the way out: ask to be terminated and we leave the way Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    with Screen() as screen:
        claims = Demo(place.absolute(), screen, seed)()
    _summary(claims, place, time.monotonic() - begun)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Screen:
    """`proof.demo.Display` on a terminal: facts stay, one moving line says what is going on."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._last = 0.0
        if sys.stdout.isatty():
            columns = (
                SpinnerColumn(),
                BarColumn(16),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=Console(highlight=False), transient=True)
            self._task = self._progress.add_task("", total=STEPS)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, number: int, title: str) -> None:
        self._print(f"{number}. {title}", "bold")
        if self._progress is not None:
            self._progress.update(self._task, completed=number - 1, description=title)

    def doing(self, what: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=what)
        elif time.monotonic() - self._last > QUIET:
            self._last = time.monotonic()
            self._print(f"   … {what}")

    def seen(self, what: str) -> None:
        self._print(f"   ✓ {what}", "green")

    def _print(self, text: str, style: str | None = None) -> None:
        if self._progress is not None:
            self._progress.console.print(text, style=style, markup=False)
        else:
            show.say(text)


def _way_to_the_command() -> Sequence[tuple[str, str]]:
    """Return what makes `icefront` a command of this shell, if it is none yet."""
    activate = Path(sys.prefix) / "bin" / "activate"
    return () if shutil.which("icefront") or not activate.exists() else ((f". {activate}", ""),)


def _summary(claims: Sequence[Claim], folder: Path, took: float) -> None:
    show.say("")
    show.print_rows(("shown", "by"), [(claim.what, claim.evidence) for claim in claims])
    show.say(f"\nAll of it held, in {took:.0f} s. The lakehouse is in {folder}. To try next:")
    for command, why in (
        *_way_to_the_command(),
        (f"cd {folder}", ""),
        ("icefront status", "state, frontier and lag of both tables"),
        ("icefront epochs shop.yaml", "what each snapshot brought, and how long it took"),
        ("icefront verify shop.yaml", "compare table and source once more"),
        ("icefront init my-project", "a small project to start your own from"),
    ):
        show.say(f"  {command:<28}{'# ' + why if why else ''}".rstrip())
