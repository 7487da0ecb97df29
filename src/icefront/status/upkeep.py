"""How well each target reads, what upkeep did about it, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table import Table

from icefront.iceberg.view import View
from icefront.settings import Upkeep
from icefront.state.records import CycleRecord
from icefront.upkeep.health import Meter
from icefront.upkeep.need import Health, State, Verdict, judge


@dataclass(frozen=True, slots=True)
class UpkeepStatus:
    """One target's upkeep. `by` says who does it: a run, another process, or nobody."""

    by: str
    now: datetime
    health: Health | None = None
    verdicts: Sequence[Verdict] = ()
    last: Sequence[CycleRecord] = ()
    """The last cycle of each kind, newest first."""
    trouble: str = ""
    """Why the table could not be measured."""

    @property
    def next(self) -> Verdict | None:
        """What comes next: what is due, or else what will be first by time alone."""
        due = [v for v in self.verdicts if v.state is State.DUE]
        timed = sorted((v for v in self.verdicts if v.at), key=lambda v: v.at or self.now)
        return next(iter([*due, *timed]), None)

    @property
    def oldest_unsettled(self) -> float | None:
        """For how many seconds the oldest equality delete has not been settled."""
        oldest = self.health.oldest_equality if self.health else None
        return max(0.0, (self.now - oldest).total_seconds()) if oldest else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "trouble": self.trouble,
            **(self._measured(self.health) if self.health else {}),
            "kinds": [_verdict_dict(v) for v in self.verdicts],
            "next": _verdict_dict(self.next) if self.next else None,
            "last": [cycle_dict(cycle) for cycle in self.last],
        }

    def _measured(self, health: Health) -> dict[str, Any]:
        return {
            "unsettled_files": health.equality_files,
            "unsettled_deletes": health.equality_rows,
            "oldest_unsettled_seconds": self.oldest_unsettled,
            "read_amplification": round(health.amplification, 3),
            "data_files": health.data_files,
            "bytes": health.bytes,
            "small_files": health.small_files,
            "dead_rows": health.dead_rows,
            "dead_share": round(health.dead, 4),
            "dead_files": health.dead_files,
            "snapshots": health.snapshots,
            "oldest_snapshot_at": health.loose[0].isoformat() if health.loose else None,
        }


def upkeep_of(wanted: Upkeep, name: str, table: Table, past: Sequence[CycleRecord]) -> UpkeepStatus:
    """Measure a table and judge what it needs, as a run would."""
    terms, now = wanted.terms, datetime.now(UTC)
    by = wanted.by if terms.on else "off"
    last = tuple({cycle.kind: cycle for cycle in reversed(past)}.values())[::-1]
    try:
        health = Meter(dead=terms.compact.dead if terms.compact else None).measure(
            View(name, table.metadata, table.io.properties)
        )
    except Exception as error:  # noqa: BLE001 — PyIceberg passes on whatever its storage library raises
        said = str(error).partition("\n")[0][:300] or type(error).__name__
        return UpkeepStatus(by, now, last=last, trouble=f"its manifests cannot be read: {said}")
    return UpkeepStatus(by, now, health, judge(health, terms, past, now), last)


def _verdict_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind.value,
        "state": verdict.state.value,
        "why": verdict.why,
        "at": verdict.at.isoformat() if verdict.at else None,
    }


def cycle_dict(cycle: CycleRecord) -> dict[str, Any]:
    """Return what `--json` prints of a cycle."""
    return {
        "kind": cycle.kind,
        "started": cycle.started.isoformat(),
        "ended": cycle.ended.isoformat() if cycle.ended else None,
        "seconds": cycle.seconds,
        "outcome": cycle.outcome,
        "why": cycle.why,
        "facts": dict(cycle.facts),
    }
