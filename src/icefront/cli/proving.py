"""`icefront prove`: a live table on a screen, a line per life in a log, and at the end what was survived."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from typing import Literal, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from icefront.cli import show
from icefront.cli.errors import INTERRUPTED, UNEXPECTED, tell
from icefront.core.errors import ConfigError
from icefront.proof.prove import Prove, Report, needed

VIOLATED = 7


def prove(
    *, minutes: float, seed: int | None, catalog: Literal["sqlite", "rest"], uri: str | None, keep: bool, as_json: bool
) -> None:
    _check(catalog, uri)
    folder = Path(tempfile.mkdtemp(prefix="icefront-prove-"))
    chosen = SystemRandom().randrange(10**6) if seed is None else seed
    if seed is None:
        tell(f"seed {chosen}")  # at once: whatever ends this, the run can be repeated
    with Screen(quiet=as_json) as screen:
        proof = Prove(folder, screen, minutes=minutes, seed=chosen, uri=uri, keep=keep)
        # Runs are ended on the way out: ask to be terminated and we leave the way Ctrl-C does.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: proof.interrupt())
        report = proof()
    if keep or report.violations:
        tell(f"everything is in {folder}")
    else:
        shutil.rmtree(folder)
    if as_json:
        show.print_json(report.to_dict())
    else:
        _summary(report)
    if code := exit_code(report):
        raise typer.Exit(code)


def exit_code(report: Report) -> int:
    """Say how it went: a violation, an interruption, kinds that were not struck often enough, or well."""
    if report.violations:
        return VIOLATED
    if report.interrupted:
        return INTERRUPTED
    return UNEXPECTED if report.missing else 0


def _check(catalog: str, uri: str | None) -> None:
    if (catalog == "rest") != (uri is not None):
        fact = "a REST catalog has an address" if catalog == "rest" else "only a REST catalog has an address"
        raise ConfigError(fact, "write `--catalog rest --uri http://…`, or neither")
    if uri is not None and not uri.startswith("http://"):
        raise ConfigError(
            f"{uri} is no http:// address", "the fault proxy speaks plain HTTP: name a catalog of your own for tests"
        )
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", 'pip install "icefront[spark]"')


# ── while it runs ──────────────────────────────────────────────────────────────────────────
class Screen:
    """`proof.prove.Display`: a table that moves on a terminal, one line per life elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        console = Console(stderr=quiet, highlight=False)
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def moved(self, report: Report) -> None:
        if self._live is not None:
            self._live.update(Group(_table(report), Text(_numbers(report))), refresh=True)

    def lived(self, report: Report, what: str) -> None:
        self.moved(report)
        line = f"{report.seconds:5.0f} s  {what}  ·  {_numbers(report)}"
        if self._live is not None:
            return
        (tell if self._quiet else show.say)(line)


def _table(report: Report) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("fault", "struck", "what happens"):
        table.add_column(column, justify="right" if column == "struck" else "left")
    for row in _rows(report):
        table.add_row(*row)
    return table


def _rows(report: Report) -> Sequence[Sequence[str | Text]]:
    wanted = needed(report.minutes)
    return [
        (kind, Text(show.count(report.struck[kind]), style="green" if report.struck[kind] >= max(1, wanted) else "yellow"), about)
        for kind, about in report.kinds.items()
    ]


def _numbers(report: Report) -> str:
    return (
        f"{report.epochs:,} epochs, {report.snapshots:,} snapshots checked, {report.rows:,} rows compared, "
        f"{len(report.violations)} violations"
    )


# ── at the end ─────────────────────────────────────────────────────────────────────────────
def _summary(report: Report) -> None:
    show.say("")
    show.print_rows(("fault", "struck", "what happens"), _rows(report))
    show.say("")
    places = ", ".join(f"{place} {times}" for place, times in sorted(report.places.items()))
    show.say(f"runs were hurt at: {places or 'no failpoint'}")
    show.say(f"{report.changes:,} changes in {report.scenes} scenes and {report.lives} lives of runs: {_numbers(report)}")
    show.say(f"engines: {', '.join(report.engines) or 'none got to the end'}{_only_spark(report)}")
    if report.blind:
        show.say(f"{report.blind:,} looks without staged files: the state file was damaged at that moment")
    for violation in report.violations:
        show.say(f"VIOLATION  {violation}")
    if report.violations:
        show.say(f"found during: {report.during}")
    if report.missing:
        show.say(f"struck less than {needed(report.minutes)} times, give it more minutes: {', '.join(report.missing)}")
    elif report.never:
        show.say(
            f"under three minutes not every kind has to be struck; {len(report.never)} never were: {', '.join(report.never)}"
        )
    show.say(f"{_verdict(report)} in {report.seconds:.0f} s. To repeat: {report.command}")


def _only_spark(report: Report) -> str:
    return " (datafusion is not installed: no second engine has read the tables)" if len(report.engines) == 1 else ""


def _verdict(report: Report) -> str:
    held = "What was struck held" if report.never else "All of it held"
    return {VIOLATED: "It does not hold", INTERRUPTED: "Interrupted", UNEXPECTED: "Not enough was struck"}.get(
        exit_code(report), held
    )
