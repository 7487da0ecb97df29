"""Where each target of a pipeline stands: state with a reason, frontier, lag, and what its table holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from icefront.api import Pipeline
from icefront.core.errors import ConnectionFailed, IcefrontError
from icefront.core.marks import START, Mark
from icefront.core.protocol import check_lineage, check_resume
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.settings import Target
from icefront.status.history import History, read_history
from icefront.status.look import Look, entries, other_pipelines, read_head
from icefront.status.upkeep import UpkeepStatus, upkeep_of

COUNTED = 10**15
"""A wall below this is no time but a sequence number: as a time, it would lie in the first days of 1970."""


class State(StrEnum):
    """How a target is doing."""

    WAITING = "waiting"  # nothing published yet
    CAUGHT_UP = "caught-up"  # at the source's newest resolved timestamp
    BEHIND = "behind"
    STOPPED = "stopped"  # a run would refuse to go on
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target. Times are the timeline's own: lag is the source's newest resolved timestamp minus the frontier."""

    pipeline: str
    target: str
    source_table: str = ""
    state: State = State.WAITING
    reason: str = ""
    next_step: str = ""
    running: bool = False
    frontier: Timestamp | None = None
    resolved: Timestamp | None = None
    lag: float | None = None
    behind: int | None = None
    changes_behind: int | None = None
    epoch_id: str | None = None
    snapshot: int | None = None
    published_at: datetime | None = None
    writer: str | None = None
    staged: int = 0
    records: int | None = None
    files: int | None = None
    unsettled_deletes: int | None = None
    upkeep: UpkeepStatus | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints; timestamps in both their printed and their human form."""
        return {
            "pipeline": self.pipeline,
            "target": self.target,
            "source_table": self.source_table,
            "state": self.state.value,
            "reason": self.reason,
            "next_step": self.next_step,
            "running": self.running,
            "frontier": str(self.frontier) if self.frontier else None,
            "frontier_time": human_time(self.frontier),
            "resolved": str(self.resolved) if self.resolved else None,
            "resolved_time": human_time(self.resolved),
            "lag_seconds": self.lag,
            "positions_behind": self.behind,
            "changes_behind": self.changes_behind,
            "epoch_id": self.epoch_id,
            "snapshot_id": self.snapshot,
            "published_at": self.published_at.isoformat() if self.published_at else None,
            "writer": self.writer,
            "staged_epochs": self.staged,
            "records": self.records,
            "files": self.files,
            "unsettled_deletes": self.unsettled_deletes,
            "upkeep": self.upkeep.to_dict() if self.upkeep else None,
        }


def human_time(timestamp: Timestamp | None) -> str | None:
    """Print a timestamp's wall time in UTC; the origin has none. Of a table's timeline, print the sequence number reached."""
    if timestamp is None or timestamp == ORIGIN:
        return None
    if timestamp.wall < COUNTED:
        return f"sequence {timestamp.wall}" + (f".{timestamp.logical - 1}" if timestamp.logical > 1 else "")
    seconds, nanos = divmod(timestamp.wall, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{nanos // 1000:06d}Z"


def lags(found: TargetStatus, limit: float) -> bool:
    """Say whether a target is more than `limit` seconds behind; one that cannot be told counts, unless nothing is there to do."""
    if found.lag is not None:
        return found.lag > limit
    return found.state is not State.WAITING or bool(found.behind)


def status(pipeline: Pipeline) -> Sequence[TargetStatus]:
    """Look at every target of a pipeline. A target that cannot be read says so; the others are still told."""
    look = Look(pipeline)
    try:
        targets = look.targets
    except IcefrontError as error:
        return [_troubled(TargetStatus(look.settings.pipeline, "", reason=""), error)]
    if not targets:
        nothing = "the source holds no table yet, and the pipeline names none"
        return [TargetStatus(look.settings.pipeline, "", reason=nothing, next_step="wait for the changefeed's first files")]
    history = read_history(look.settings, [target.name for target in targets])
    found = [_of_target(look, target, history) for target in targets]
    return [replace(f, reason=f"{f.reason}; {history.trouble}") for f in found] if history.trouble else found


def _of_target(look: Look, target: Target, history: History) -> TargetStatus:
    found = TargetStatus(
        look.settings.pipeline,
        target.name,
        target.source_table,
        running=history.running,
    )
    staged = history.staged.get(target.name, ())
    try:
        table = look.table(target)
        if table is None:
            return _waiting(look, target, found, "the table does not exist yet")
        found = _with_table(found, table.metadata)
        past = history.cycles.get(target.name, ())
        found = replace(found, upkeep=upkeep_of(look.settings.upkeep, target.name, table, past))
        head = read_head(table.metadata, look.settings.pipeline)
        if head.mark is None:
            return _without_mark(look, target, found, table.metadata)
        found = _with_mark(found, head.mark, table.metadata)
        found = replace(found, staged=sum(upper > head.mark.frontier for upper in staged))
        check_lineage(head, head.mark)
        return _told(look, _with_source(look, target, found, head.mark), history)
    except IcefrontError as error:
        return _troubled(found, error)


def _with_table(found: TargetStatus, metadata: TableMetadata) -> TargetStatus:
    current = metadata.current_snapshot()
    said = entries(current) if current else {}
    return replace(
        found,
        records=_number(said.get("total-records")),
        files=_number(said.get("total-data-files")),
        unsettled_deletes=_number(said.get("total-equality-deletes")),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _with_mark(found: TargetStatus, mark: Mark, metadata: TableMetadata) -> TargetStatus:
    published = next((s for s in reversed(metadata.snapshots) if _published(entries(s), mark)), None)
    return replace(
        found,
        frontier=mark.frontier,
        epoch_id=str(mark.epoch_id) if mark.frontier != ORIGIN else None,
        writer=str(mark.writer),
        snapshot=published.snapshot_id if published else None,
        published_at=datetime.fromtimestamp(published.timestamp_ms / 1000, UTC) if published else None,
    )


def _published(said: dict[str, str], mark: Mark) -> bool:
    """Say whether this snapshot made the mark's epoch visible; a claim repeats the id without being it."""
    return said.get(summary.EPOCH_ID) == str(mark.epoch_id) and summary.CLAIM not in said and summary.UPKEEP not in said


def _with_source(look: Look, target: Target, found: TargetStatus, mark: Mark) -> TargetStatus:
    source = look.source_of(target)
    observation = source.observe(mark.position, [target.source_table])
    check_resume(mark, source.identity(), observation.earliest)
    newest = observation.cuts[-1].frontier if observation.cuts else mark.frontier
    started = mark.frontier != ORIGIN
    return replace(
        found,
        resolved=newest if newest != ORIGIN else None,
        lag=_lag(look, target, mark, newest) if started else None,
        behind=len(observation.cuts),
        changes_behind=sum(cut.size for cut in observation.cuts),
    )


def _lag(look: Look, target: Target, mark: Mark, newest: Timestamp) -> float | None:
    return look.following(target).lag(mark.position) if look.follows else (newest.wall - mark.frontier.wall) / 1e9


def _told(look: Look, found: TargetStatus, history: History) -> TargetStatus:
    """Put the numbers into a state and a sentence."""
    staged = f"; {found.staged} staged, published by the next run" if found.staged else ""
    last = _last_run(history)
    if found.frontier == ORIGIN:
        return replace(found, state=State.WAITING, reason=f"claimed, but nothing is published yet{staged}{last}")
    if found.behind:
        reason = f"{look.count(found.behind)} behind"
        doing = "; a run is at work" if found.running else ""
        return replace(found, state=State.BEHIND, reason=f"{reason}{staged}{doing}{last}")
    everything = "every snapshot of the source" if look.follows else "everything that the source has resolved"
    return replace(found, state=State.CAUGHT_UP, reason=f"{everything} is published{last}")


def _last_run(history: History) -> str:
    run = history.run
    if run is None or history.running:
        return ""
    if run.ended is None:
        return f"; the last run (pid {run.pid} on {run.host}) did not end by itself"
    return f"; the last run ended: {run.reason}" if run.reason else ""


def _waiting(look: Look, target: Target, found: TargetStatus, why: str) -> TargetStatus:
    cuts = look.source_of(target).observe(START, [target.source_table]).cuts
    step = "start it with `icefront run`" if cuts else "wait for the changefeed's first resolved timestamp"
    return replace(
        found,
        reason=f"{why}; the source has {look.count(len(cuts))}",
        next_step=step,
        resolved=cuts[-1].frontier if cuts else None,
        behind=len(cuts),
        changes_behind=sum(cut.size for cut in cuts),
    )


def _without_mark(look: Look, target: Target, found: TargetStatus, metadata: TableMetadata) -> TargetStatus:
    others = other_pipelines(metadata, found.pipeline)
    if others and not target.sink.shared:
        fact = f"the table is written by pipeline {', '.join(others)}"
        return replace(
            found, state=State.STOPPED, reason=fact, next_step="name another table; or say `shared: true` in the sink of both"
        )
    if found.records:
        fact = f"the table has {found.records} rows but no mark of pipeline {found.pipeline}: these rows are not ours"
        return replace(
            found, state=State.STOPPED, reason=fact, next_step="`icefront run --adopt` takes it over; or name another table"
        )
    return _waiting(look, target, found, "no run has claimed the table yet")


def _troubled(found: TargetStatus, error: IcefrontError) -> TargetStatus:
    state = State.UNREACHABLE if isinstance(error, ConnectionFailed) else State.STOPPED
    return replace(found, state=state, reason=error.fact, next_step=error.next_step)
