"""Sabotage: switches that break one rule of the protocol each, in a test's own process or in a program that is `icefront` otherwise.

It lives here and only here: the program that is shipped has no switch for any of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from icefront.cli import main
from icefront.core import protocol
from icefront.core.epochs import Epoch, epoch_id
from icefront.core.files import Staged
from icefront.core.marks import START, Mark, Position, Writer
from icefront.core.protocol import Claim, Head, NotLanded, Publication
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import java
from icefront.pipeline import Lane
from icefront.sinks import iceberg
from icefront.testing.mutants import MUTANTS, Mutant
from tests.process.matrix import HOOKED

ROOT = Path(__file__).parent.parent
Patch = Callable[[object, str, object], None]
"""`setattr`, or in a test's own process `monkeypatch.setattr`."""


def fence_off(patch: Patch) -> None:
    """Let every commit through."""
    patch(iceberg, "fence", mutant("fence removed").rules.fence)


def lower_unchecked(patch: Patch) -> None:
    """Publish an epoch wherever the frontier is, as long as it ends beyond that and the writer owns the target."""
    patch(protocol, "decide", mutant("lower unchecked").inner["decide"])


def writer_unchecked(patch: Patch) -> None:
    """Publish whoever owns the target, as long as the epoch continues the frontier."""
    patch(protocol, "decide", mutant("writer unchecked").inner["decide"])


def mutant(name: str) -> Mutant:
    """Find a rule that the simulator breaks, too: it means the same there and here."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def change_unfenced(patch: Patch) -> None:
    """Change schema and partitioning whoever owns the target; claims and publishes are fenced as ever."""
    fence = protocol.fence
    changes: list[Claim] = []

    def renewed(head: Head, pipeline: str, target: str, writer: Writer) -> Claim:
        assert head.mark is not None
        changes.append(Claim(pipeline, target, writer, head.mark.source, head.mark))
        return changes[-1]

    def fenced(head: Head, intent: Claim | Publication) -> Mark:
        return intent.mark() if any(intent is change for change in changes) else fence(head, intent)

    patch(iceberg, "renewal", renewed)
    patch(iceberg, "fence", fenced)


def commit_transaction(patch: Patch) -> None:
    """Leave the commit to Iceberg's own retries, and the cleaning up after what it takes for a failure."""
    patch(java.JavaTable, "_swap", lambda _table, transaction: transaction.commitTransaction())


def fence_says_no(patch: Patch) -> None:
    """Refuse by returning false: in the retries of Iceberg's own, that makes it clean up after itself."""
    validate = java._Fence.validate

    def validated(fence: java._Fence, snapshots: Any) -> bool:
        try:
            return validate(fence, snapshots)
        except protocol.Refusal:
            return False

    patch(java._Fence, "validate", validated)
    commit_transaction(patch)


def delete_on_unknown_outcome(patch: Patch) -> None:
    """Take a commit without an answer for one that failed, and clean up its files."""
    commit_fenced = java.JavaTable.commit_fenced

    def committed(table: java.JavaTable, pipeline: str, change: java.Change, *rest: Any, **options: Any) -> Any:
        answer = commit_fenced(table, pipeline, change, *rest, **options)
        if isinstance(answer, NotLanded):
            for file in change.files:
                Path(urlsplit(file.path).path).unlink()
        return answer

    patch(java.JavaTable, "commit_fenced", committed)


def release_before_publish(patch: Patch) -> None:
    """Release the source as soon as an epoch is on its way."""

    def released(lane: Lane) -> tuple[Timestamp, Position]:
        return (lane.tip.frontier, lane.tip.position) if lane.tip else (ORIGIN, START)

    patch(Lane, "done", property(released))


def squash_two_epochs(patch: Patch) -> None:
    """Publish every two epochs in one snapshot, with the files of both."""
    stage = Lane.stage
    held: list[tuple[Staged, Mark]] = []

    def staged_together(lane: Lane, staged: Staged, timings: dict[str, float]) -> None:
        assert lane.tip is not None
        if not held:
            held.append((staged, lane.tip))
            lane.tip = Publication(staged, lane.tip).mark()
            return
        first, lane.tip = held.pop()
        both = Epoch(first.epoch.lower, staged.epoch.upper)
        name = epoch_id(staged.pipeline, staged.target, both)
        files = first.files + staged.files
        stage(lane, replace(staged, epoch=both, epoch_id=name, files=files, fresh=first.fresh), timings)

    patch(Lane, "stage", staged_together)


def reuse_paths(_patch: Patch) -> None:
    """Write every attempt at a split to the same paths; workers are told through their environment."""
    os.environ |= {**HOOKED, "MATRIX_REUSE": "1"}


SWITCHES: Mapping[str, Callable[[Patch], None]] = {
    "nothing": lambda _: None,
    "fence-off": fence_off,
    "lower-unchecked": lower_unchecked,
    "writer-unchecked": writer_unchecked,
    "change-unfenced": change_unfenced,
    "commit-transaction": commit_transaction,
    "fence-says-no": fence_says_no,
    "delete-on-unknown-outcome": delete_on_unknown_outcome,
    "release-before-publish": release_before_publish,
    "squash-two-epochs": squash_two_epochs,
    "reuse-paths": reuse_paths,
}


def program(name: str) -> Sequence[str]:
    """The command that runs Icefront with this switch thrown, from any folder."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0:1] = ['icefront']; from tests import sabotage; sabotage.run({name!r})"
    return sys.executable, "-c", code


def run(name: str) -> None:
    SWITCHES[name](setattr)
    main()
