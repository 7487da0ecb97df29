"""Epochs: half-open stretches of a timeline, and the rule by which they are minted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from icefront.core.timestamps import ORIGIN, Timestamp

_NAMESPACE = UUID("6f1d4d54-7e0e-5f0c-9a54-1cef20407a11")


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """All changes of one timeline in [lower, upper)."""

    lower: Timestamp
    upper: Timestamp

    def __post_init__(self) -> None:
        if self.upper < self.lower:
            raise ValueError(f"epoch ends before it begins: [{self.lower}, {self.upper})")

    def __contains__(self, timestamp: Timestamp) -> bool:
        return self.lower <= timestamp < self.upper

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper})"


def epoch_id(pipeline: str, target: str, epoch: Epoch) -> UUID:
    """Name an epoch for one target: the same bounds always give the same id."""
    return uuid5(_NAMESPACE, f"{pipeline}:{target}:{epoch.lower}:{epoch.upper}")


def origin_id(pipeline: str, target: str) -> UUID:
    """Name the empty epoch at the origin: what a target remembers before its first epoch."""
    return epoch_id(pipeline, target, Epoch(ORIGIN, ORIGIN))


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where an epoch may end: the source is complete before `frontier`.

    `size` estimates the changes since the previous cut; `schema_changes_after` says that a schema
    version begins after this cut, so an epoch that reaches it must end here.
    """

    frontier: Timestamp
    size: int = 0
    schema_changes_after: bool = False


@dataclass(frozen=True, slots=True)
class Minting:
    """When epochs end.

    `every` is the least stretch of timeline between two epochs in nanoseconds, or None for
    one epoch per cut. `max_changes` is a target, not a promise: one cut is never split.
    `heartbeat` is the longest stretch without changes that goes unpublished.
    """

    every: int | None = 10_000_000_000
    max_changes: int = 2_000_000
    in_flight: int = 3
    heartbeat: int = 300_000_000_000

    def __post_init__(self) -> None:
        if self.in_flight < 1 or self.max_changes < 1:
            raise ValueError("in_flight and max_changes must be at least 1")


def mint(
    minting: Minting,
    lower: Timestamp,
    earliest: Timestamp,
    cuts: Iterable[Cut],
    *,
    open_epochs: int,
    flush: bool,
) -> Sequence[Epoch]:
    """Mint the epochs that may be written now, in order.

    `lower` is where the last minted epoch ended (or the resume frontier), `earliest` the least
    timestamp the source can still read, `open_epochs` how many are minted and unpublished.
    `flush` ends an epoch at the last cut even when `every` has not passed: on resume (the
    catch-up epoch) and when running until caught up.

    Nothing is minted before the source's frontier is past both `lower` and `earliest`: changes
    below either were published already or cannot be read.
    """
    room = minting.in_flight - open_epochs
    epochs: list[Epoch] = []
    pending: list[Cut] = []
    reached = max(lower, earliest)
    changes = 0

    def close() -> None:
        nonlocal changes
        epochs.append(Epoch(epochs[-1].upper if epochs else lower, pending[-1].frontier))
        pending.clear()
        changes = 0

    for cut in cuts:
        # Also a cut that comes again, or regresses: an epoch that ends where it begins has no place in a chain.
        if cut.frontier <= reached:
            continue
        reached = cut.frontier
        if pending and changes + cut.size > minting.max_changes:
            close()
        pending.append(cut)
        changes += cut.size
        if minting.every is None or cut.schema_changes_after:
            close()
        if len(epochs) >= room:
            return epochs[: max(room, 0)]
    if pending:
        begins = epochs[-1].upper if epochs else lower
        stretch = pending[-1].frontier.wall - begins.wall
        due = minting.every or 0
        if flush or stretch >= (due if changes else max(due, minting.heartbeat)):
            close()
    return epochs[: max(room, 0)]
