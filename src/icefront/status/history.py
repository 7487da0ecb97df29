"""What the state store adds: staged epochs, runs, cycles of upkeep, and the times of each phase. It may be missing or unreadable; then nothing is known."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from icefront.core.errors import IcefrontError
from icefront.core.timestamps import Timestamp
from icefront.settings import PipelineSettings
from icefront.state.records import CycleRecord, EpochRecord, RunRecord
from icefront.state.store import StateStore


@dataclass(frozen=True, slots=True)
class History:
    """A pipeline's past, as far as it was noted on this machine."""

    run: RunRecord | None = None
    staged: Mapping[str, Sequence[Timestamp]] = field(default_factory=dict)
    """Where the epochs end that are noted as staged, by target; some may have been published by others meanwhile."""
    epochs: Mapping[tuple[str, UUID], EpochRecord] = field(default_factory=dict)
    cycles: Mapping[str, Sequence[CycleRecord]] = field(default_factory=dict)
    """Cycles of upkeep by target, newest first."""
    trouble: str = ""

    @property
    def running(self) -> bool:
        """Say whether the last run noted here is still at work: only its own machine can tell."""
        run = self.run
        return run is not None and run.ended is None and run.host == socket.gethostname() and _alive(run.pid)


def read_history(settings: PipelineSettings, targets: Sequence[str], limit: int = 0) -> History:
    """Read what the state store has about these targets, and their last epochs. The file is left as it is."""
    pipeline = settings.pipeline
    try:
        with StateStore(settings.project.state, only_look=True) as store:
            runs = store.runs(pipeline, limit=1)
            staged = {target: [note.epoch.upper for note in store.staged(pipeline, target)] for target in targets}
            records = [record for target in targets for record in (store.epochs(pipeline, target, limit) if limit else ())]
            cycles = {target: store.cycles(target) for target in targets}
    except IcefrontError as error:
        return History(trouble=error.fact)
    return History(runs[0] if runs else None, staged, {(r.target, r.epoch_id): r for r in records}, cycles)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
