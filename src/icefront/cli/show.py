"""Numbers, times and tables the way all commands print them. What is for machines goes out as plain JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from icefront.cli.errors import tell
from icefront.cli.values import json_text, on_one_line
from icefront.core.timestamps import Timestamp
from icefront.settings.secrets import masked
from icefront.status.targets import human_time

if TYPE_CHECKING:
    from icefront.api import CycleRecord

STYLES = {
    "ok": "green",
    "equal": "green",
    "caught-up": "green",
    "warning": "yellow",
    "warn": "yellow",
    "waiting": "yellow",
    "behind": "yellow",
    "error": "red",
    "missing": "red",
    "stopped": "red",
    "unreachable": "red",
    "different": "red",
}
_PHASES = ("observe", "write", "stage", "publish")


def console() -> Console:
    """Return the console of stdout; piped, lines are as long as they are."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=10_000, soft_wrap=True)


def interactive() -> bool:
    return sys.stdout.isatty() and sys.stderr.isatty()


def say(line: str) -> None:
    """Print a plain line on stdout."""
    sys.stdout.write(f"{masked(line)}\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    say(json_text(value))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a table: lines and colours on a screen, tabs between plain cells in a pipe.

    A plain cell is a value of somebody's: it stays on its line, and says nothing to the terminal. A `Text` is our own.
    """
    header, *held = [[_shown(cell) for cell in row] for row in (columns, *rows)]
    if not sys.stdout.isatty():
        for row in (header, *held):
            sys.stdout.write("\t".join(cell.plain for cell in row) + "\n")
        sys.stdout.flush()
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in header:
        table.add_column(column, overflow="fold")
    for row in held:
        table.add_row(*row)
    console().print(table)


def _shown(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(on_one_line(masked(cell)))


def state(word: str) -> Text:
    return Text(word, style=STYLES.get(word, ""))


# ── numbers and times ──────────────────────────────────────────────────────────────────────
def count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.0f} s"
    minutes = value / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def when(timestamp: Timestamp | None) -> str:
    """Print a frontier's time to the second; its exact form is in the JSON."""
    return (human_time(timestamp) or "–")[:19]


def changes(counts: Mapping[str, int]) -> str:
    """Print changes by kind: upserts, deletes, and what was read but belongs elsewhere."""
    parts = []
    if "upserts" in counts:
        parts.append(f"+{counts['upserts']:,}")
    if counts.get("deletes"):
        parts.append(f"−{counts['deletes']:,}")
    if not parts and "inside" in counts:
        parts.append(f"{counts['inside']:,} changes")
    if counts.get("below"):
        parts.append(f"({counts['below']:,} seen before)")
    return " ".join(parts) or "no changes"


def phases(timings: Mapping[str, float]) -> str:
    known = [phase for phase in _PHASES if phase in timings]
    others = [phase for phase in timings if phase not in _PHASES]
    return " ".join(f"{phase} {timings[phase]:.2f}s" for phase in [*known, *others]) or "–"


def cycle(done: CycleRecord) -> str:
    """Print a cycle of upkeep: what, when, how it ended, why it was done."""
    how = {None: "begun, not ended", "nothing": "found nothing to do", "lost": "lost to others' commits"}.get(
        done.outcome, done.outcome
    )
    took = f" in {seconds(done.seconds)}" if done.seconds is not None else ""
    error = f" ({done.facts['error']})" if "error" in done.facts else ""
    return f"{done.kind} {done.started:%Y-%m-%d %H:%M:%S} {how}{took}{error}: {done.why}"


# ── waiting ────────────────────────────────────────────────────────────────────────────────
@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that something takes a moment: a spinner on a screen, one line elsewhere."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with Console(stderr=True).status(what):
            yield
    else:
        tell(f"{what} …")
        yield


def plain(value: Any) -> str:
    """Print a row or a value on one line."""
    text = json_text(value)
    return text if len(text) <= 400 else f"{text[:399]}…"
