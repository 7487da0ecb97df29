"""The publish protocol: facts already read go in, a decision comes out.

`fence` runs inside the target's own atomic step, on the state being committed onto. `claiming`
and `publishing` are the conversations around it, as generators: they yield what is to be done
(`Load`, `Send`), are sent what came of it, and return the outcome. The real sink and the
simulator drive the same generators.

    publishing ──Send──▶ target ──Landed──────────────▶ Published
                           └─anything else─▶ Load ─▶ found in the ancestry ─▶ AlreadyPublished
                                              ├─ mark unmoved ─▶ Send the same files again
                                              └─ otherwise ─▶ Fenced
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import assert_never
from uuid import UUID

from icefront.core.epochs import Epoch, origin_id
from icefront.core.errors import CommitUncertain, FencedOut, FrontierGap, NotOurs, Overcompacted, RolledBack, SourceChanged
from icefront.core.files import Staged
from icefront.core.marks import START, Identity, Mark, Position, Writer
from icefront.core.timestamps import ORIGIN, Timestamp


# ── what a target shows ────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Ancestor:
    """One snapshot of the current branch, as far as the protocol cares.

    `epoch_id`, `frontier` and `writer` are set on snapshots of any pipeline of ours (what only
    `claims` carries those of the mark that it renews). `adds_files` is true of every snapshot that
    may have added rows.
    """

    snapshot: int
    pipeline: str | None = None
    epoch_id: UUID | None = None
    frontier: Timestamp | None = None
    writer: Writer | None = None
    adds_files: bool = False
    claims: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """A target's state: its mark, and the current branch's snapshots, newest first.

    `whole` says that the last ancestor is the root; otherwise older ones have expired.
    `elsewhere` holds the epoch ids of snapshots that exist but are not ancestors.
    """

    mark: Mark | None
    ancestors: tuple[Ancestor, ...] = ()
    whole: bool = True
    elsewhere: frozenset[UUID] = frozenset()


# ── what a writer wants ────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Claim:
    """Make `writer` the only one who may publish. `seen` is the mark it read."""

    pipeline: str
    target: str
    writer: Writer
    source: Identity
    seen: Mark | None
    adopt: bool = False

    def mark(self) -> Mark:
        """Return the mark that this claim writes."""
        if self.seen is not None:
            return self.seen.claimed_by(self.writer)
        return Mark(self.pipeline, ORIGIN, origin_id(self.pipeline, self.target), START, self.source, self.writer)


@dataclass(frozen=True, slots=True)
class Publication:
    """Make a staged epoch visible on top of the mark `onto`, which this writer owns."""

    staged: Staged
    onto: Mark

    def mark(self) -> Mark:
        """Return the mark that this publication writes."""
        staged = self.staged
        return replace(self.onto, frontier=staged.epoch.upper, epoch_id=staged.epoch_id, position=staged.position)


# ── decisions ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Publish:
    """Go on: nothing stands in the way."""


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    """This very epoch, by this very writer, is in the target."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer owns the target."""

    owner: Writer


Decision = Publish | AlreadyPublished | Fenced


def decide(mark: Mark, epoch: Epoch, epoch_id: UUID, onto: Mark) -> Decision:
    """Say whether the writer who owns `onto` may publish `epoch` on top of `mark`.

    Raises FrontierGap when publishing would skip or repeat changes. `upper > frontier` would not
    do: overlapping epochs pass that.
    """
    if mark.writer != onto.writer:
        return Fenced(mark.writer)
    if mark.epoch_id == epoch_id and mark.frontier == epoch.upper:
        return AlreadyPublished()
    if mark.frontier == epoch.lower and mark.epoch_id == onto.epoch_id:
        return Publish()
    raise FrontierGap(
        f"epoch {epoch} would go on top of frontier {mark.frontier} (epoch id {mark.epoch_id}, expected {onto.epoch_id})",
        "another program changed this pipeline's mark; run `icefront status`, then start the pipeline again",
    )


def check_lineage(head: Head, mark: Mark) -> None:
    """Raise RolledBack unless the current branch still contains what `mark` remembers.

    Properties do not roll back with snapshots, and CREATE OR REPLACE keeps them too: only the
    ancestry tells. A chain cut by expiry is accepted, unless the snapshot still exists elsewhere.
    """
    for ancestor in head.ancestors:
        if ancestor.pipeline != mark.pipeline or ancestor.epoch_id is None:
            continue
        if ancestor.epoch_id == mark.epoch_id:
            return
        raise RolledBack(
            f"the table's newest snapshot of pipeline {mark.pipeline} ends at {ancestor.frontier}, its mark says {mark.frontier}",
            "the table was rolled back: set its current snapshot forward again, or load into a new table",
        )
    if head.whole or mark.epoch_id in head.elsewhere:
        raise RolledBack(
            f"no snapshot on the current branch holds epoch {mark.epoch_id}, which the mark of pipeline {mark.pipeline} remembers"
            f" (frontier {mark.frontier})",
            "the table was rolled back or replaced: restore it, or write to a new table",
        )


def check_fresh(head: Head) -> None:
    """Raise FrontierGap if rows may exist: an epoch without equality deletes must be the first."""
    if not head.whole or any(a.adds_files for a in head.ancestors):
        raise FrontierGap(
            "this epoch was written without deletes for an empty table, but the table has had rows since",
            "start the pipeline again: the epoch is written again, with deletes",
        )


def fence(head: Head, intent: Claim | Publication) -> Mark:
    """Return the mark to write, or raise `Refusal`; runs inside the target's atomic step.

    It raises and never merely says no: a refusal that a commit library understands makes it clean
    up, and the attempt may have landed with only its answer lost.
    """
    match intent:
        case Claim():
            _check_claim(head, intent)
        case Publication(staged=staged, onto=onto):
            if head.mark is None:
                raise Refusal("the mark is gone")
            match decide(head.mark, staged.epoch, staged.epoch_id, onto):
                case AlreadyPublished():
                    raise Refusal("already published")
                case Fenced(owner=owner):
                    raise Refusal(f"claimed by {owner}")
                case Publish():
                    check_lineage(head, head.mark)
                    if staged.fresh:
                        check_fresh(head)
                case never:
                    assert_never(never)
        case never:
            assert_never(never)
    return intent.mark()


class Refusal(Exception):
    """Raised inside a commit attempt to abandon it; what it means is found out by looking."""


def _check_claim(head: Head, claim: Claim) -> None:
    if head.mark != claim.seen:
        raise Refusal("the mark moved since it was read")
    if claim.seen is not None:
        # Here and not only before a run: what was claimed meanwhile may be another source's.
        check_source(claim.seen, claim.source)
        check_lineage(head, claim.seen)
        return
    if any(a.pipeline == claim.pipeline for a in head.ancestors):
        raise RolledBack(
            f"the table has snapshots of pipeline {claim.pipeline} but its mark is gone",
            f"restore the table property icefront.mark.{claim.pipeline}, or write to a new table",
        )
    if not claim.adopt and (not head.whole or any(a.adds_files for a in head.ancestors)):
        raise NotOurs(
            f"the table has rows but no mark of pipeline {claim.pipeline}: these rows are not ours",
            "`icefront run --adopt` takes the table over (its rows are kept); or name another table",
        )


# ── conversations ──────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Load:
    """Ask the target for its state. The answer is a `Head`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Ask the target to apply `intent` under `fence`. The answer is `Landed` or `NotLanded`."""

    intent: Claim | Publication


@dataclass(frozen=True, slots=True)
class Landed:
    """The target confirmed the commit. Each attempt before that met a commit of somebody else."""

    snapshot: int
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class NotLanded:
    """No confirmation: refused, conflicting, failed, or landed with its answer lost."""

    why: str


Request = Load | Send
Answer = Head | Landed | NotLanded


@dataclass(frozen=True, slots=True)
class Published:
    """The epoch is visible, as this snapshot."""

    snapshot: int
    mark: Mark
    attempts: int
    """How often the target was asked, as far as it is known."""


@dataclass(frozen=True, slots=True)
class FencedOff:
    """Another writer owns the target; nothing of ours may be published any more."""

    owner: Writer


Outcome = Published | FencedOff


MOVES = 100
"""How often a mark may move under a claim before that gives up."""


def claiming(
    pipeline: str, target: str, run: str, source: Identity, *, adopt: bool, retries: int
) -> Generator[Request, Answer, Mark]:
    """Claim a target for the run named `run` and return the mark from which to go on.

    The last to claim wins; whoever held the target before is refused from then on.
    """
    why = ""
    seen: Mark | None = None
    attempts = failures = 0
    while True:
        head = _head((yield Load()))
        if head.mark is not None and head.mark.writer.id == run:
            return head.mark
        if attempts:
            # A mark that others moved meanwhile is no failure of ours: an owner that catches up moves it with every epoch.
            failures += head.mark == seen
            if failures > retries or attempts > retries + MOVES:
                raise CommitUncertain(f"could not claim {target} in {attempts} attempts; the last said: {why}", "run it again")
        attempts += 1
        seen = head.mark
        generation = head.mark.writer.generation + 1 if head.mark else 1
        claim = Claim(pipeline, target, Writer(run, generation), source, head.mark, adopt)
        # Refuse before sending where that is already certain: the errors name what to do.
        try:
            fence(head, claim)
        except Refusal as refusal:
            why = str(refusal)
            continue
        match (yield Send(claim)):
            case Landed():
                return claim.mark()
            case NotLanded(why=why):
                # Not a failure yet: a lost answer may hide our own success.
                pass


def publishing(publication: Publication, *, retries: int) -> Generator[Request, Answer, Outcome]:
    """Publish one staged epoch, exactly once, whatever happens to the answers."""
    writer = publication.onto.writer
    why = ""
    for attempt in range(1, retries + 2):
        match (yield Send(publication)):
            case Landed(snapshot=snapshot, attempts=attempts):
                return Published(snapshot, publication.mark(), attempt - 1 + attempts)
            case NotLanded(why=why):
                pass
        head = _head((yield Load()))
        if found := find_published(head.ancestors, publication.staged.epoch_id, writer):
            return Published(found.snapshot, publication.mark(), attempt)
        if head.mark is None:
            raise _vanished(publication.onto.pipeline, publication.staged.target)
        match decide(head.mark, publication.staged.epoch, publication.staged.epoch_id, publication.onto):
            case Fenced(owner=owner):
                return FencedOff(owner)
            case AlreadyPublished():
                # The mark says so, but no ancestor carries it: expired at once, or rolled back.
                check_lineage(head, head.mark)
                return Published(0, publication.mark(), attempt)
            case Publish():
                check_lineage(head, head.mark)
                if publication.staged.fresh:
                    check_fresh(head)
            case never:
                assert_never(never)
    raise CommitUncertain(
        f"epoch {publication.staged.epoch} was not accepted in {retries + 1} attempts; the last said: {why}",
        "its files are staged: the next run publishes them without writing them again",
    )


def find_published(ancestors: Iterable[Ancestor], epoch_id: UUID, writer: Writer) -> Ancestor | None:
    """Find our own publication among the current branch's snapshots, and only there."""
    for ancestor in ancestors:
        if ancestor.epoch_id == epoch_id and ancestor.writer == writer and not ancestor.claims:
            return ancestor
    return None


def renewal(head: Head, pipeline: str, target: str, writer: Writer) -> Claim:
    """Return the intent under which the owner changes a schema or a partitioning: it claims once more what it owns.

    Such a change moves no mark, and a catalog may compare nothing about it but schemas. In one step
    with a claim it is fenced as everything else. Raises FencedOut when another writer owns the target.
    """
    if head.mark is None:
        raise _vanished(pipeline, target)
    if head.mark.writer != writer:
        raise FencedOut.by(head.mark.writer, target, writer)
    return Claim(pipeline, target, writer, head.mark.source, head.mark)


def _vanished(pipeline: str, target: str) -> RolledBack:
    return RolledBack(
        f"the mark of pipeline {pipeline} vanished from {target}", "the table was replaced: restore it, or write to a new table"
    )


def _head(answer: Answer) -> Head:
    if not isinstance(answer, Head):
        raise TypeError(f"expected a Head, got {answer!r}")
    return answer


# ── resuming ───────────────────────────────────────────────────────────────────────────────
def check_resume(mark: Mark, source: Identity, earliest: Timestamp) -> None:
    """Raise unless `source` is the one the mark was written for and still has what comes next."""
    check_source(mark, source)
    check_readable(mark.frontier, earliest)


def check_source(mark: Mark, source: Identity) -> None:
    """Raise unless `source` is the one the mark was written for: positions of another mean nothing."""
    if mark.source != source:
        raise SourceChanged(
            f"the mark was written from source {mark.source.text}, this source is {source.text}",
            "point the pipeline at the source it was started with, or write to a new table",
        )


def check_readable(frontier: Timestamp, earliest: Timestamp) -> None:
    """Raise unless the source still has what comes after `frontier`; at the origin, wherever it begins will do."""
    if frontier != ORIGIN and frontier < earliest:
        raise Overcompacted(
            f"the target's frontier is {frontier}, the source can only be read from {earliest}",
            "the changes between the two are gone from the source: restore them, or load into a new table",
        )


def recoverable(mark: Mark, notes: Iterable[Staged], settings: str) -> tuple[Staged, ...]:
    """Choose the staged epochs that form a chain from the mark's frontier, in order.

    The rest is dropped: published already, staged under other settings, or without its
    predecessor.
    """
    by_lower = {n.epoch.lower: n for n in notes if n.settings == settings and n.epoch.lower != n.epoch.upper}
    chain: list[Staged] = []
    frontier = mark.frontier
    while (note := by_lower.get(frontier)) is not None:
        chain.append(note)
        frontier = note.epoch.upper
    return tuple(chain)


def release_point(done: Iterable[tuple[Timestamp, Position]]) -> tuple[Timestamp, Position]:
    """Return the least frontier and its position: what every target is past may be released."""
    return min(done, key=lambda reached: reached[0])
