"""What a snapshot and a table remember of us: the names of summary entries and properties."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from icefront.core.files import Staged
from icefront.core.marks import Mark, Writer
from icefront.core.protocol import Ancestor
from icefront.core.timestamps import Timestamp

PIPELINE = "icefront.pipeline"
EPOCH_ID = "icefront.epoch-id"
LOWER = "icefront.lower"
FRONTIER = "icefront.frontier"
POSITION = "icefront.position"
WRITER = "icefront.writer"
CLAIM = "icefront.claim"
CHANGE = "icefront.change"
COUNT = "icefront.changes."
UPKEEP = "icefront.upkeep"


def mark_property(pipeline: str) -> str:
    return f"icefront.mark.{pipeline}"


def of_claim(mark: Mark) -> dict[str, str]:
    return {**_of_mark(mark), CLAIM: "true"}


def of_change(mark: Mark, what: str) -> dict[str, str]:
    """Say what the owner changed in the same commit in which it claimed the table once more."""
    return {**of_claim(mark), CHANGE: what}


def of_epoch(mark: Mark, staged: Staged) -> dict[str, str]:
    counts = {COUNT + kind: str(n) for kind, n in staged.counts.items()}
    return {**_of_mark(mark), LOWER: str(staged.epoch.lower), POSITION: staged.position.text, **counts}


def _of_mark(mark: Mark) -> dict[str, str]:
    return {
        PIPELINE: mark.pipeline,
        EPOCH_ID: str(mark.epoch_id),
        FRONTIER: str(mark.frontier),
        WRITER: str(mark.writer),
    }


def ancestor(snapshot: int, summary: Mapping[str, str]) -> Ancestor:
    """Read one snapshot's summary. Summaries are optional to writers: what is not said may be so."""
    if summary.get("total-records") == "0" and summary.get("total-data-files") == "0":
        adds_files = False
    elif PIPELINE in summary:
        adds_files = "added-data-files" in summary
    else:
        adds_files = True
    if PIPELINE not in summary or UPKEEP in summary:
        return Ancestor(snapshot, adds_files=adds_files)
    return Ancestor(
        snapshot,
        pipeline=summary[PIPELINE],
        epoch_id=UUID(summary[EPOCH_ID]),
        frontier=Timestamp.parse(summary[FRONTIER]),
        writer=Writer.parse(summary[WRITER]),
        adds_files=adds_files,
        claims=CLAIM in summary,
    )
