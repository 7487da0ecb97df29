"""`icefront prove`: what is struck and how often on a screen, a line per life in a log, and at the end what was survived."""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from typing import Literal, Self

import typer
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from icefront.cli import show
from icefront.cli.errors import INTERRUPTED, tell
from icefront.core.errors import UNEXPECTED, ConfigError
from icefront.proof.failpoints import ENVIRONMENT, armed
from icefront.proof.harness import class_archive, has_class_archive
from icefront.proof.prove import OVERTIME, Prove
from icefront.proof.report import Report, needed
from icefront.proof.trouble import check_memory, check_room, check_system, reach, try_out

VIOLATED = 7


def prove(
    *, minutes: float, seed: int | None, catalog: Literal["sqlite", "rest"], uri: str | None, keep: bool, as_json: bool
) -> None:
    _check(minutes, catalog, uri)
    if not has_class_archive():
        with show.waiting("preparing Spark's classes, once on this machine: half a minute, and 150 MB in the cache"):
            class_archive()
    chosen = SystemRandom().randrange(10**6) if seed is None else seed
    if seed is None:
        tell(f"seed {chosen}")  # at once: whatever ends this, the run can be repeated
    with _folder() as folder, Screen(quiet=as_json) as screen:
        proof = Prove(folder, screen, minutes=minutes, seed=chosen, uri=uri, keep=keep)
        # Runs are ended on the way out: ask to be terminated, or close the terminal, and we leave the way Ctrl-C does.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under `nohup`
                signal.signal(number, lambda *_: proof.interrupt())
        try:
            report = proof()
        except BaseException:
            _name_left(proof.report)
            raise
    try:
        if as_json:
            show.print_json(report.to_dict())
        else:
            _summary(report)
    finally:
        _clean_up(report, folder, keep=keep)
    code = exit_code(report)
    if report.error is not None and code == report.error.exit_code:
        raise report.error
    if code:
        raise typer.Exit(code)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder for it all. Who gets it removes it; when something goes wrong that nobody foresaw, it stays."""
    folder = Path(tempfile.mkdtemp(prefix="icefront-prove-"))
    try:
        yield folder
    except BaseException:
        tell(f"everything is in {folder}")
        raise


def _clean_up(report: Report, folder: Path, *, keep: bool) -> None:
    """Remove what nobody has to look at, and say what stays and where."""
    if keep or report.violations or report.doubtful:
        tell(f"everything is in {folder}")
    else:
        shutil.rmtree(folder)
    _name_left(report)


def _name_left(report: Report) -> None:
    """Name what stays in a catalog of the user's own."""
    # Of a catalog that does not answer nobody knows.
    stays = "may be left" if report.error else "is left"
    for namespace in report.left:
        tell(f"namespace {namespace} {stays} in {report.uri}")


def exit_code(report: Report) -> int:
    """Say how it went: a violation, an error that is not the table's, an interruption, too few faults, or well."""
    if report.violations:
        return VIOLATED
    if report.error is not None:
        return report.error.exit_code
    if report.interrupted:
        return INTERRUPTED
    return UNEXPECTED if report.missing else 0


def _check(minutes: float, catalog: str, uri: str | None) -> None:
    """Refuse what cannot be proved here, before anything is made."""
    if not math.isfinite(minutes):
        raise ConfigError(f"{minutes} minutes have no end", "write a number, such as `--minutes 60`")
    if (catalog == "rest") != (uri is not None):
        fact = "a REST catalog has an address" if catalog == "rest" else "only a REST catalog has an address"
        raise ConfigError(fact, "write `--catalog rest --uri http://…`, or neither")
    if uri is not None and not uri.startswith("http://"):
        raise ConfigError(
            f"{uri} is no http:// address", "the fault proxy speaks plain HTTP: name a catalog of your own for tests"
        )
    if hurt := ", ".join(armed()):
        raise ConfigError(
            f"{ENVIRONMENT} arms {hurt} in this shell: that would hurt prove itself",
            f"unset {ENVIRONMENT}: prove arms its own runs",
        )
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", 'pip install "icefront[spark,prove]"')
    check_system()
    check_room(Path(tempfile.gettempdir()))
    check_memory()
    if uri is not None:
        with show.waiting(f"asking the catalog at {uri}"):
            reach(uri)
            try_out(uri)


# ── while it runs ──────────────────────────────────────────────────────────────────────────
class Screen:
    """`proof.report.Display`: numbers that move on a terminal, one line per life elsewhere."""

    def __init__(self, *, quiet: bool, console: Console | None = None) -> None:
        self._quiet = quiet
        console = console or Console(stderr=quiet, highlight=False)
        self._report: Report | None = None
        self._begun = time.monotonic()
        # It moves by itself: a life may take a minute.
        self._live = Live(console=console, transient=True, get_renderable=self._shown) if console.is_terminal else None

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # a terminal that was closed
                self._live.stop()

    def _shown(self) -> Group:
        return _now(self._report, time.monotonic() - self._begun) if self._report else Group(Text("it begins"))

    def moved(self, report: Report) -> None:
        self._report = report
        if self._live is not None:
            self._live.refresh()

    def lived(self, report: Report, what: str) -> None:
        self.moved(report)
        line = f"{report.seconds:5.0f} s  {what}  ·  {_numbers(report)}"
        if self._live is not None:
            return
        (tell if self._quiet else show.say)(line)


def _now(report: Report, seconds: float) -> Group:
    """Show how far it is, in the lines of an ordinary terminal: what matters most comes first, for the end may be cut off."""
    wanted = needed(report.minutes)
    kinds = [
        Text.assemble(f"{kind} ", _struck(report, kind), f"/{wanted}" if wanted else "", no_wrap=True) for kind in report.kinds
    ]
    return Group(
        Text(f"seed {report.seed}  ·  {_time(report, seconds)}  ·  scene {report.scenes}: {report.during}"),
        Text(_numbers(report)),
        Text(f"struck/needed, {len(report.missing)} kinds still needed:" if wanted else "struck:"),
        Columns(kinds, column_first=True, padding=(0, 2)),
    )


def _time(report: Report, seconds: float) -> str:
    """Print how long it goes on: past its time for as long as kinds are missing."""
    if seconds < 60 * report.minutes:
        return f"{_clock(seconds)} of {_clock(60 * report.minutes)}"
    return f"{_clock(seconds)}, overtime up to {_clock(60 * report.minutes * OVERTIME)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _rows(report: Report) -> Sequence[Sequence[str | Text]]:
    return [(kind, _struck(report, kind), about) for kind, about in report.kinds.items()]


def _struck(report: Report, kind: str) -> Text:
    enough = report.struck[kind] >= max(1, needed(report.minutes))
    return Text(show.count(report.struck[kind]), style="green" if enough else "yellow")


def _numbers(report: Report) -> str:
    return (
        f"{report.epochs:,} epochs, {report.snapshots:,} snapshots checked, {report.rows:,} rows compared, "
        f"{len(report.violations)} violations"
    )


# ── at the end ─────────────────────────────────────────────────────────────────────────────
def _summary(report: Report) -> None:
    show.say("")
    show.print_rows(("fault", "struck", "what happens"), _rows(report))
    if report.uri is None:
        show.say("not struck here: requests to a REST catalog (--catalog rest --uri http://…)")
    show.say("")
    places = ", ".join(f"{place} {times}" for place, times in sorted(report.places.items()))
    show.say(f"runs were hurt at: {places or 'no failpoint'}")
    show.say(f"{report.changes:,} changes in {report.scenes} scenes and {report.lives} lives of runs: {_numbers(report)}")
    show.say(f"runs committed {report.upkeep:,} times for upkeep")
    if late := report.late.total():
        show.say(f"{late:,} requests came late to the catalog: {report.late[True]:,} were applied then, the others refused")
    if report.cut:
        lives = ", ".join(f"{life} {times}" for life, times in sorted(report.cut.items()))
        show.say(f"cut short, since a run lost the catalog after requests were struck: {lives}")
    show.say(f"engines: {', '.join(report.engines) or 'none got to the end'}{_only_spark(report)}")
    if report.blind:
        show.say(f"{report.blind:,} looks without new staged files: the state file was damaged or gone at that moment")
    for violation in report.violations:
        show.say(f"VIOLATION  {violation}")
    for violation in report.doubtful:
        show.say(f"DOUBTFUL  {violation}")
    if report.doubtful:
        show.say(f"what is doubtful is no violation, for it may have another reason than the table: {_reason(report)}")
    if report.violations or report.doubtful:
        show.say(f"found during: {report.during}")
    if said := _enough(report):
        show.say(said)
    show.say(f"{_verdict(report)} To repeat: {report.command}")


def _enough(report: Report) -> str:
    """Say whether every kind was struck as often as it has to be, unless something else ended it before."""
    if report.violations or report.error or report.interrupted:
        return ""
    if report.missing:
        return f"struck less than {_times(report)}, give it more minutes: {', '.join(report.missing)}"
    if needed(report.minutes):
        return f"every kind had to be struck {_times(report)}, and was"
    never = f"; {len(report.never)} never were: {', '.join(report.never)}" if report.never else ""
    return f"under three minutes not every kind has to be struck{never}"


def _times(report: Report) -> str:
    times = needed(report.minutes)
    return "once" if times == 1 else f"{times} times"


def _only_spark(report: Report) -> str:
    if not report.why_not:
        return ""
    return f' (no second engine has read the tables: {report.why_not}; pip install "icefront[prove]")'


def _verdict(report: Report) -> str:
    seconds = f"{report.seconds:.0f} s"
    if report.error is not None and not report.violations:
        found = "It is open whether the tables are right" if report.doubtful else "No violation was found until then"
        return f"It ended after {seconds} because of this machine or the catalog, not because of a table. {found}."
    held = (
        f"No violation was found in {seconds}, but some kinds of faults were never struck."
        if report.never
        else f"All of it held in {seconds}."
    )
    ended = {
        VIOLATED: f"It does not hold: a violation was found after {seconds}.",
        INTERRUPTED: f"Interrupted after {seconds}.",
        UNEXPECTED: f"Not enough was struck in {seconds}.",
    }
    return ended.get(exit_code(report), held)


def _reason(report: Report) -> str:
    """Say what ended a proof before its time."""
    return report.error.fact if report.error else "it was interrupted"
