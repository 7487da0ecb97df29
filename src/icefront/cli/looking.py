"""Commands that only look: doctor, check, status, epochs. None of them starts a JVM or changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.text import Text

from icefront.api import Pipeline
from icefront.cli import show
from icefront.cli.errors import tell_error
from icefront.cli.files import named_or_all
from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError
from icefront.settings import load_project
from icefront.settings.secrets import masked
from icefront.status import Finding, Level, State, TargetStatus, UpkeepStatus, lags
from icefront.status import check as check_file
from icefront.status import epochs as epochs_of
from icefront.status import examine as examine_machine
from icefront.status import status as status_of

LAGGING = 6


# ── doctor ─────────────────────────────────────────────────────────────────────────────────
def doctor(*, as_json: bool) -> None:
    """Look at this machine and at the project of this folder. Whatever a run would miss gives exit code 2."""
    with show.waiting("looking", quiet=as_json):
        findings = examine_machine(load_project("."))
    if as_json:
        show.print_json([{"name": f.name, "level": f.level.value, "found": f.found, "fix": f.fix} for f in findings])
    else:
        rows = [(show.state(f.level.value), f.name, Text(masked(f.found + (f"\n→ {f.fix}" if f.fix else "")))) for f in findings]
        show.print_rows(("state", "what", "found"), rows)
    missing = [f.name for f in findings if f.level.value == "missing"]
    if missing:
        raise ConfigError(f"a run cannot work here: {', '.join(missing)}", "do what → says, then run `icefront doctor` again")


# ── check ──────────────────────────────────────────────────────────────────────────────────
def check(files: Sequence[Path], *, as_json: bool) -> None:
    found = [(path, finding) for path in files for finding in check_file(path, Pipeline.load)]
    if as_json:
        show.print_json([{"file": str(path)} | finding.to_dict() for path, finding in found])
    else:
        _print_findings([finding for _, finding in found])
    code = next((finding.exit_code for _, finding in found if finding.level is Level.ERROR), 0)
    if code:
        raise typer.Exit(code)


def _print_findings(findings: Sequence[Finding]) -> None:
    good = [f for f in findings if f.level is not Level.ERROR]
    if good:
        rows = [(show.state(f.level.value), f.about, f.fact + (f" → {f.next_step}" if f.next_step else "")) for f in good]
        show.print_rows(("state", "what", "found"), rows)
    for finding in findings:
        if finding.level is Level.ERROR:
            named = finding.about if not finding.fact.startswith(finding.about) else ""
            tell_error(IcefrontError(f"{named}: {finding.fact}" if named else finding.fact, finding.next_step))


# ── status ─────────────────────────────────────────────────────────────────────────────────
def status(files: Sequence[Path], *, max_lag: float | None, as_json: bool) -> None:
    found = [target for path in named_or_all(files) for target in status_of(Pipeline.load(path))]
    if as_json:
        show.print_json([target.to_dict() for target in found])
    else:
        _print_status(found)
    unreachable = [target for target in found if target.state is State.UNREACHABLE]
    if unreachable:
        raise ConnectionFailed(
            f"{unreachable[0].target or unreachable[0].pipeline}: {unreachable[0].reason}", unreachable[0].next_step
        )
    if max_lag is not None and any(lags(target, max_lag) for target in found):
        raise typer.Exit(LAGGING)


def _print_status(found: Sequence[TargetStatus]) -> None:
    columns = (
        "pipeline",
        "target",
        "state",
        "frontier",
        "lag",
        "behind",
        "epoch",
        "snapshot",
        "records",
        "files",
        "unsettled",
        "writer",
    )
    rows = [
        (
            t.pipeline,
            t.target or "–",
            show.state(t.state.value),
            show.when(t.frontier),
            show.seconds(t.lag),
            show.count(t.behind),
            (t.epoch_id or "–")[:8],
            str(t.snapshot or "–"),
            show.count(t.records),
            show.count(t.files),
            show.count(t.unsettled_deletes),
            _short_writer(t.writer),
        )
        for t in found
    ]
    show.print_rows(columns, rows)
    for t in found:
        show.say(f"{t.target or t.pipeline}: {t.state.value}: {t.reason}" + (f"\n  → {t.next_step}" if t.next_step else ""))
        if t.upkeep is not None:
            show.say(f"{t.target}: upkeep: " + "\n  ".join(_upkeep_lines(t.upkeep, running=t.running)))


def _upkeep_lines(upkeep: UpkeepStatus, *, running: bool) -> Iterator[str]:
    """Say how well a table reads, what was done last, and what comes next and why."""
    health = upkeep.health
    if health is None:
        yield upkeep.trouble
    else:
        unsettled = "nothing unsettled"
        if health.equality_files:
            age = f"the oldest for {show.seconds(upkeep.oldest_unsettled)}"
            unsettled = (
                f"{show.count(health.equality_rows)} deletes in {show.count(health.equality_files)} files unsettled, {age}"
            )
        yield (
            f"{unsettled}; a scan reads {health.amplification:.3g} times the table; {show.count(health.small_files)} small files in one "
            f"partition, {health.dead:.0%} dead rows, {show.count(health.snapshots)} snapshots"
        )
    if upkeep.last:
        yield f"last: {'; '.join(show.cycle(cycle) for cycle in upkeep.last)}"
    coming = upkeep.next
    if upkeep.by == "off":
        yield "next: nothing, it is off"
    elif coming is None:
        yield "next: nothing until more has come together"
    elif coming.at is None:
        who = "icefront upkeep" if upkeep.by == "other" else "this run" if running else "the next run"
        yield f"next: {coming.kind}, due, by {who}: {coming.why}"
    else:
        yield f"next: {coming.kind}, at the latest {coming.at:%Y-%m-%d %H:%M} UTC: {coming.why}"


def _short_writer(writer: str | None) -> str:
    """Shorten the run's id; its generation says how often the target was claimed."""
    if writer is None:
        return "–"
    name, _, generation = writer.rpartition("#")
    return f"{name[:8]}#{generation}"


# ── epochs ─────────────────────────────────────────────────────────────────────────────────
def epochs(file: Path, *, limit: int, as_json: bool) -> None:
    rows = epochs_of(Pipeline.load(file), limit)
    if as_json:
        show.print_json([row.to_dict() for row in rows])
        return
    if not rows:
        show.say("no epoch is published yet")
        return
    show.print_rows(
        ("target", "from", "to", "changes", "files", "size", "phases", "snapshot", "note"),
        [
            (
                row.target,
                show.when(row.epoch.lower),
                show.when(row.epoch.upper),
                show.changes(row.changes),
                show.count(row.files),
                show.size(row.bytes),
                show.phases(row.timings),
                str(row.snapshot),
                " ".join(note for note, holds in (("recovered", row.recovered), ("expired", row.expired)) if holds),
            )
            for row in rows
        ],
    )
