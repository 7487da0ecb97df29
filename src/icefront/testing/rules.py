"""Everything a simulated pipeline decides, as one bundle: core's functions, and the habits around them.

The simulator calls nothing else, so a mutant is this bundle with one function replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from icefront.core import protocol
from icefront.core.epochs import Cut, Epoch, Minting, mint
from icefront.core.errors import FrontierGap
from icefront.core.files import ClosedFile, Staged
from icefront.core.marks import Identity, Mark, Position
from icefront.core.protocol import Answer, Claim, Head, Outcome, Publication, Request
from icefront.core.timestamps import Timestamp
from icefront.testing.memory import Change, MemoryTable
from icefront.testing.upkeep import Upkeep

Netted = list[tuple[int, int | None]]
Conversation = Generator[Request, Answer, Outcome]


class Mint(Protocol):
    """The type of `epochs.mint`."""

    def __call__(
        self, minting: Minting, lower: Timestamp, earliest: Timestamp, cuts: Iterable[Cut], *, open_epochs: int, flush: bool
    ) -> Sequence[Epoch]: ...


class Claiming(Protocol):
    """The type of `protocol.claiming`."""

    def __call__(
        self, pipeline: str, target: str, run: str, source: Identity, *, adopt: bool, retries: int
    ) -> Generator[Request, Answer, Mark]: ...


class Publishing(Protocol):
    """The type of `protocol.publishing`."""

    def __call__(self, publication: Publication, *, retries: int) -> Conversation: ...


def look(table: MemoryTable) -> Head:
    """Show a writer the table: the current branch, and nothing but it."""
    return table.head()


def apply(table: MemoryTable, intent: Claim | Publication, fence: Callable[[Head, Claim | Publication], Mark]) -> int:
    """Apply rows and mark in one atomic step, the fence inside it."""
    return table.apply(intent, fence)


def listing(before: int, after: int) -> int:
    """Choose the listing to read: the one made after the resolved timestamp was seen."""
    del before
    return after


def select(changes: list[Change], target: int, lower: int, upper: int) -> list[Change]:
    """Keep an epoch's own changes: what was published before, and what comes later, is dropped."""
    return [c for c in changes if c[1] == target and lower <= c[0] < upper]


def net(changes: list[Change]) -> Netted:
    """Keep the last change of each key, by timestamp and not by arrival."""
    last: dict[int, Change] = {}
    for change in changes:
        known = last.get(change[2])
        if known is None or known[0] <= change[0]:
            last[change[2]] = change
    return [(change[2], change[3]) for change in last.values()]


def low_water(files: Sequence[tuple[Change, ...]], low: int, listed: int, upper: int, target: int) -> int:
    """Return the first file that may be needed again after `upper`, by any target."""
    del target
    for number in range(low, listed):
        if any(change[0] >= upper for change in files[number]):
            return number
    return listed


def path(epoch_id: UUID, split: int, attempt: str) -> str:
    """Name a file: a prefix that tells where it belongs, and a suffix that nobody else has."""
    return f"{epoch_id}/{split}-{attempt}"


def anchored(deletes: Sequence[object]) -> bool:
    """Say whether a data file is written even without rows: with deletes, which a compaction of all older files else loses."""
    return bool(deletes)


def winner(attempts: Sequence[tuple[ClosedFile, ...]]) -> tuple[ClosedFile, ...]:
    """Choose one attempt of a split: the one that reported first."""
    return attempts[0]


def complete(reported: int, splits: int) -> bool:
    """Say whether an epoch may be staged: only when every split has reported."""
    return reported == splits


def usable(staged: Staged, target: str, table: MemoryTable) -> bool:
    """Say whether a note is this target's, its files still exist, and its deletes are not missing."""
    if staged.target != target or any(file.path not in table.storage.files for file in staged.files):
        return False
    if staged.fresh:
        try:
            protocol.check_fresh(table.head())
        except FrontierGap:
            return False
    return True


def take(queue: list[Staged]) -> Staged:
    """Take what is published next: one epoch, the oldest."""
    return queue.pop(0)


def releasable(published: Iterable[Mark], staged: Iterable[Mark]) -> Iterable[Mark]:
    """Choose what the release looks at: what is published, never what is only staged."""
    del staged
    return published


def leave(table: MemoryTable, staged: Staged) -> None:
    """After a refusal or an unknown outcome: touch nothing, it may have landed."""


def before_send(table: MemoryTable, intent: Claim | Publication) -> None:
    """Nothing is decided before the atomic step."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pipeline does. The defaults are right."""

    # core
    mint: Mint = mint
    fence: Callable[[Head, Claim | Publication], Mark] = protocol.fence
    claiming: Claiming = protocol.claiming
    publishing: Publishing = protocol.publishing
    check_resume: Callable[[Mark, Identity, Timestamp], None] = protocol.check_resume
    recoverable: Callable[[Mark, Iterable[Staged], str], tuple[Staged, ...]] = protocol.recoverable
    release_point: Callable[[Iterable[tuple[Timestamp, Position]]], tuple[Timestamp, Position]] = protocol.release_point
    # around it
    look: Callable[[MemoryTable], Head] = look
    apply: Callable[[MemoryTable, Claim | Publication, Callable[[Head, Claim | Publication], Mark]], int] = apply
    before_send: Callable[[MemoryTable, Claim | Publication], None] = before_send
    frontier: Callable[[Timestamp], Timestamp] = Timestamp.next
    listing: Callable[[int, int], int] = listing
    select: Callable[[list[Change], int, int, int], list[Change]] = select
    net: Callable[[list[Change]], Netted] = net
    low_water: Callable[[Sequence[tuple[Change, ...]], int, int, int, int], int] = low_water
    path: Callable[[UUID, int, str], str] = path
    anchored: Callable[[Sequence[object]], bool] = anchored
    winner: Callable[[Sequence[tuple[ClosedFile, ...]]], tuple[ClosedFile, ...]] = winner
    complete: Callable[[int, int], bool] = complete
    usable: Callable[[Staged, str, MemoryTable], bool] = usable
    take: Callable[[list[Staged]], Staged] = take
    releasable: Callable[[Iterable[Mark], Iterable[Mark]], Iterable[Mark]] = releasable
    after_refusal: Callable[[MemoryTable, Staged], None] = leave
    after_unknown: Callable[[MemoryTable, Staged], None] = leave
    upkeep: Upkeep = field(default_factory=Upkeep)


REAL = Rules()
