"""What the state store remembers about the past: epochs, runs, cycles of upkeep, bindings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from icefront.core.epochs import Epoch
from icefront.core.marks import Position
from icefront.core.timestamps import Timestamp


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One published epoch of one target. `timings` are milliseconds by phase: observe, write, stage, publish."""

    pipeline: str
    target: str
    epoch: Epoch
    epoch_id: UUID
    snapshot: int
    published_at: datetime
    files: int
    bytes: int
    counts: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, int] = field(default_factory=dict)
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a pipeline. Without `ended` it is running, or was killed."""

    run: str
    pipeline: str
    writer: str
    host: str
    pid: int
    started: datetime
    ended: datetime | None = None
    outcome: str | None = None
    reason: str = ""
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One cycle of upkeep on one target. Without `ended` it is at work, or was killed."""

    pipeline: str
    target: str
    kind: str
    started: datetime
    ended: datetime | None = None
    outcome: str | None = None
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        return (self.ended - self.started).total_seconds() if self.ended else None


@dataclass(frozen=True, slots=True)
class Binding:
    """A durable pair timestamp ↔ position. Sealed, it never changes."""

    source: str
    timestamp: Timestamp
    position: Position
    sealed: bool
