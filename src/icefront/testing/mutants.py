"""The protocol, or upkeep, with one thing done wrong, each by name: the simulator must catch every one.

A mutant replaces one function of the bundle, or one of core's inner functions while it runs. One
guard cannot be told from its absence here: that the replaced mark carries the epoch id resumed from.
Frontier and writer imply it, as long as nobody edits marks by hand; it is there for those who do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np

from icefront.core import protocol
from icefront.core.epochs import Cut, Epoch, Minting, epoch_id, mint
from icefront.core.errors import FrontierGap, IcefrontError
from icefront.core.files import ClosedFile, Staged
from icefront.core.marks import Identity, Mark, Position, Writer
from icefront.core.protocol import (
    AlreadyPublished,
    Ancestor,
    Answer,
    Claim,
    Decision,
    Fenced,
    Head,
    Landed,
    Load,
    NotLanded,
    Outcome,
    Publication,
    Publish,
    Published,
    Refusal,
    Request,
    Send,
)
from icefront.core.timestamps import Timestamp
from icefront.iceberg import settling
from icefront.iceberg.live import DeleteEntry, Listing
from icefront.iceberg.settling import Debt, NewDelete, Unsettled
from icefront.iceberg.statediff import Facts
from icefront.kernels.datafiles import Mask
from icefront.kernels.vectors import Positions
from icefront.testing.commits import Rewrite
from icefront.testing.memory import Change, Fence, MemoryTable
from icefront.testing.rules import Netted, Rules, usable
from icefront.testing.simulator import Simulation, Violation
from icefront.testing.upkeep import Upkeep, orphans

_decide = protocol.decide
_check_lineage = protocol.check_lineage


@dataclass(frozen=True, slots=True)
class Mutant:
    """One thing done wrong. `within` is the number of seeds that must be enough to catch it."""

    name: str
    rules: Rules = field(default_factory=Rules)
    inner: Mapping[str, Any] = field(default_factory=dict)
    within: int = 2000

    @contextmanager
    def at_work(self) -> Iterator[Rules]:
        """Replace what is to be replaced, for as long as the block runs."""
        if not self.inner:
            yield self.rules
            return
        with patch.multiple(protocol, **self.inner):
            yield self.rules


# ── the fence ──────────────────────────────────────────────────────────────────────────────
def _no_fence(head: Head, intent: Claim | Publication) -> Mark:
    del head
    return intent.mark()


def _only_upper(head: Head, intent: Claim | Publication) -> Mark:
    """Refuse what was published already, and nothing else: overlaps pass."""
    if isinstance(intent, Claim):
        return protocol.fence(head, intent)
    if head.mark is None or intent.staged.epoch.upper <= head.mark.frontier:
        raise Refusal("already published")
    protocol.check_lineage(head, head.mark)
    return intent.mark()


def _decide_without_lower(mark: Mark, epoch: Epoch, epoch_id: UUID, onto: Mark) -> Decision:
    if mark.writer != onto.writer:
        return Fenced(mark.writer)
    if mark.epoch_id == epoch_id:
        return AlreadyPublished()
    if epoch.upper > mark.frontier:
        return Publish()
    raise FrontierGap("published already")


def _decide_without_writer(mark: Mark, epoch: Epoch, epoch_id: UUID, onto: Mark) -> Decision:
    return _decide(replace(mark, writer=onto.writer), epoch, epoch_id, onto)


def _first_generation(run: str, generation: int) -> Writer:
    """Run names are unique, or should be; where one is used twice only the generation tells."""
    del generation
    return Writer(run, 1)


def _any_lineage(head: Head, mark: Mark) -> None:
    del head, mark


def _cut_chain_refused(head: Head, mark: Mark) -> None:
    _check_lineage(replace(head, whole=True), mark)


def _cut_chain_trusted(head: Head, mark: Mark) -> None:
    _check_lineage(replace(head, elsewhere=frozenset()), mark)


def _any_table_is_fresh(head: Head) -> None:
    del head


def _claims_unfenced(head: Head, intent: Claim | Publication) -> Mark:
    return intent.mark() if isinstance(intent, Claim) else protocol.fence(head, intent)


class _Looked:
    """The fence of one who looks, then commits: it decides before the atomic step."""

    def __init__(self) -> None:
        self.verdicts: dict[int, Mark | Exception] = {}

    def before(self, table: MemoryTable, intent: Claim | Publication) -> None:
        try:
            self.verdicts[id(intent)] = protocol.fence(table.head(), intent)
        except (Refusal, IcefrontError) as refusal:
            self.verdicts[id(intent)] = refusal

    def fence(self, head: Head, intent: Claim | Publication) -> Mark:
        verdict = self.verdicts.get(id(intent)) or protocol.fence(head, intent)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


_LOOKED = _Looked()


def _mark_apart(table: MemoryTable, intent: Claim | Publication, fence: Fence) -> int:
    """Write the mark in a second commit, which now and then does not come."""
    before = table.mark
    snapshot = table.apply(intent, fence)
    if isinstance(intent, Publication) and snapshot % 3 == 0:
        table.mark = before
        table.roll_to(table.current)
        raise Refusal("the rows are in, the mark is not")
    return snapshot


# ── conversations ──────────────────────────────────────────────────────────────────────────
def _everything(table: MemoryTable) -> Head:
    """Look at all snapshots instead of the current branch's."""
    newest_first = sorted(table.snapshots.values(), key=lambda s: -s.id)
    return Head(table.mark, tuple(s.seen for s in newest_first))


def _on_everything(table: MemoryTable, intent: Claim | Publication, fence: Fence) -> int:
    return table.apply(intent, lambda _, wanted: fence(_everything(table), wanted))


def _found_by_anyone(ancestors: Iterable[Ancestor], epoch_id: UUID, writer: Writer) -> Ancestor | None:
    del writer
    return next((a for a in ancestors if a.epoch_id == epoch_id), None)


@dataclass(frozen=True, slots=True)
class _Forced(Publication):
    """A publication that no fence looks at."""


def _force(head: Head, intent: Claim | Publication) -> Mark:
    return intent.mark() if isinstance(intent, _Forced) else protocol.fence(head, intent)


def _resends_blindly(publication: Publication, *, retries: int) -> Generator[Request, Answer, Outcome]:
    """Take an unknown outcome for a failure."""
    wanted = publication
    for attempt in range(1, retries + 2):
        match (yield Send(wanted)):
            case Landed(snapshot=snapshot):
                return Published(snapshot, publication.mark(), attempt)
            case NotLanded(why=why) if "claimed by" in why:
                break
        wanted = _Forced(publication.staged, publication.onto)
    return (yield from protocol.publishing(publication, retries=retries))


def _believes(publication: Publication, *, retries: int) -> Generator[Request, Answer, Outcome]:
    """Take an unknown outcome for a success."""
    answer = yield Send(publication)
    if isinstance(answer, NotLanded) and "claimed by" in answer.why:
        return (yield from protocol.publishing(publication, retries=retries))
    return Published(answer.snapshot if isinstance(answer, Landed) else 0, publication.mark(), 1)


def _no_claim(
    pipeline: str, target: str, run: str, source: Identity, *, adopt: bool, retries: int
) -> Generator[Request, Answer, Mark]:
    """Go on from the mark as it is, under the name of whoever wrote it."""
    head = yield Load()
    if isinstance(head, Head) and head.mark is not None:
        return head.mark
    return (yield from protocol.claiming(pipeline, target, run, source, adopt=adopt, retries=retries))


def _claim_believed(
    pipeline: str, target: str, run: str, source: Identity, *, adopt: bool, retries: int
) -> Generator[Request, Answer, Mark]:
    """Take a claim without an answer for won."""
    talk = protocol.claiming(pipeline, target, run, source, adopt=adopt, retries=retries)
    request = next(talk)
    try:
        while True:
            answer = yield request
            if isinstance(request, Send) and isinstance(answer, NotLanded):
                return request.intent.mark()
            request = talk.send(answer)
    except StopIteration as end:
        mark: Mark = end.value
        return mark


def _delete_files(table: MemoryTable, staged: Staged) -> None:
    table.storage.delete(file.path for file in staged.files)


# ── minting, reading, writing ──────────────────────────────────────────────────────────────
def _past_the_frontier(
    minting: Minting, lower: Timestamp, earliest: Timestamp, cuts: Iterable[Cut], *, open_epochs: int, flush: bool
) -> Sequence[Epoch]:
    epochs = list(mint(minting, lower, earliest, cuts, open_epochs=open_epochs, flush=flush))
    return [*epochs[:-1], Epoch(epochs[-1].lower, Timestamp(epochs[-1].upper.wall + 2))] if epochs else epochs


def _through_schema_changes(
    minting: Minting, lower: Timestamp, earliest: Timestamp, cuts: Iterable[Cut], *, open_epochs: int, flush: bool
) -> Sequence[Epoch]:
    smooth = [replace(cut, schema_changes_after=False) for cut in cuts]
    return mint(minting, lower, earliest, smooth, open_epochs=open_epochs, flush=flush)


def _one_too_far(resolved: Timestamp) -> Timestamp:
    return resolved.next().next()


def _one_too_near(resolved: Timestamp) -> Timestamp:
    return resolved


def _listed_before(before: int, after: int) -> int:
    del after
    return before


def _old_versions_kept(changes: list[Change], target: int, lower: int, upper: int) -> list[Change]:
    """Write what a restarted feed repeats, if its key has nothing newer in this epoch."""
    del lower
    return [c for c in changes if c[1] == target and c[0] < upper]


def _upper_included(changes: list[Change], target: int, lower: int, upper: int) -> list[Change]:
    return [c for c in changes if c[1] == target and lower <= c[0] <= upper]


def _all_changes(changes: list[Change]) -> Netted:
    return [(key, value) for _, _, key, value in sorted(set(changes), key=lambda c: c[0])]


def _last_to_arrive(changes: list[Change]) -> Netted:
    return list({change[2]: change[3] for change in changes}.items())


def _own_low_water(files: Sequence[tuple[Change, ...]], low: int, listed: int, upper: int, target: int) -> int:
    """Count only what this target still needs; but the release is for all."""
    for number in range(low, listed):
        if any(change[0] >= upper and change[1] == target for change in files[number]):
            return number
    return listed


def _path_without_attempt(epoch_id: UUID, split: int, attempt: str) -> str:
    del attempt
    return f"{epoch_id}/{split}"


def _every_attempt(attempts: Sequence[tuple[ClosedFile, ...]]) -> tuple[ClosedFile, ...]:
    return tuple(file for attempt in attempts for file in attempt)


def _some_splits(reported: int, splits: int) -> bool:
    del splits
    return reported > 0


def _two_at_once(queue: list[Staged]) -> Staged:
    first = queue.pop(0)
    if not queue:
        return first
    second = queue.pop(0)
    both = Epoch(first.epoch.lower, second.epoch.upper)
    return replace(second, epoch=both, epoch_id=epoch_id(first.pipeline, first.target, both), files=first.files + second.files)


def _newest_first(queue: list[Staged]) -> Staged:
    return queue.pop()


# ── notes and release ──────────────────────────────────────────────────────────────────────
def _any_settings(mark: Mark, notes: Iterable[Staged], settings: str) -> tuple[Staged, ...]:
    return protocol.recoverable(mark, [replace(note, settings=settings) for note in notes], settings)


def _files_not_looked_for(staged: Staged, target: str, table: MemoryTable) -> bool:
    return usable(replace(staged, files=()), target, table)


def _any_target(staged: Staged, target: str, table: MemoryTable) -> bool:
    return usable(replace(staged, target=target), target, table)


def _fresh_notes_kept(staged: Staged, target: str, table: MemoryTable) -> bool:
    return usable(replace(staged, fresh=False), target, table)


def _staged_is_enough(published: Iterable[Mark], staged: Iterable[Mark]) -> Iterable[Mark]:
    return staged or published


def _greatest(done: Iterable[tuple[Timestamp, Position]]) -> tuple[Timestamp, Position]:
    return max(done, key=lambda reached: reached[0])


# ── upkeep ─────────────────────────────────────────────────────────────────────────────────
def _committed(**otherwise: Any) -> Rules:
    """Commit a settle with something of it left out."""
    return Rules(upkeep=Upkeep(row_delta=lambda change: replace(change, **otherwise)))


def _later_parts_from_now(planned: int, landed: Sequence[int]) -> int:
    return landed[-1] if landed else planned


def _with_the_first(number: int, parts: int) -> bool:
    del parts
    return number == 1


def _new_dead_only(unsettled: Unsettled, named: Mask, known: Mask, version: int) -> Positions:
    del unsettled, version
    return np.flatnonzero(named & ~known)


def _of_its_own_snapshot(data: Iterable[Listing], deletes: Sequence[DeleteEntry], facts: Facts) -> Debt:
    """Let an equality delete hide rows of an equal sequence number, too."""
    return settling.debt(data, [replace(d, sequence=d.sequence + 1) for d in deletes], facts)


def _old_vectors_stay(new: Iterable[NewDelete]) -> list[DeleteEntry]:
    del new
    return []


def _with_a_new_number(change: Rewrite) -> Rewrite:
    return replace(change, written_at=None)


def _as_of_the_plan(deletes: Iterable[int], planned: int) -> int:
    del deletes
    return planned


def _all_come(file: int, number: int) -> bool:
    del file, number
    return True


def _staged_or_not(unknown: Iterable[str], staged: Collection[str], old: Callable[[str], bool]) -> list[str]:
    del staged
    return orphans(unknown, (), old)


def _of_any_age(unknown: Iterable[str], staged: Collection[str], old: Callable[[str], bool]) -> list[str]:
    del old
    return orphans(unknown, staged, bool)


def _nothing_held(tags: Collection[int]) -> Collection[int]:
    del tags
    return ()


def _no_more(table: MemoryTable, keep: int) -> int:
    del table
    return keep


def _deletes_alone(deletes: Sequence[object]) -> bool:
    del deletes
    return False


MUTANTS = (
    Mutant("fence removed", Rules(fence=_no_fence)),
    Mutant("only upper > frontier checked", Rules(fence=_only_upper)),
    Mutant("lower unchecked", inner={"decide": _decide_without_lower}),
    Mutant("writer unchecked", inner={"decide": _decide_without_writer}),
    Mutant("generations do not grow", inner={"Writer": _first_generation}, within=5000),
    Mutant("looks, then commits", Rules(fence=_LOOKED.fence, before_send=_LOOKED.before)),
    Mutant("mark written apart from the rows", Rules(apply=_mark_apart)),
    Mutant("lineage unchecked", inner={"check_lineage": _any_lineage}),
    Mutant("chain cut by expiry refused", inner={"check_lineage": _cut_chain_refused}),
    Mutant("chain cut by expiry trusted", inner={"check_lineage": _cut_chain_trusted}),
    Mutant("lineage looked for in all snapshots", Rules(apply=_on_everything, look=_everything)),
    Mutant("publication looked for in all snapshots", Rules(look=_everything)),
    Mutant("publication of anyone taken for ours", inner={"find_published": _found_by_anyone}),
    Mutant("fresh unchecked", inner={"check_fresh": _any_table_is_fresh}),
    Mutant("claim without fence", Rules(fence=_claims_unfenced)),
    Mutant("claim without answer taken for won", Rules(claiming=_claim_believed)),
    Mutant("recovers without claim", Rules(claiming=_no_claim)),
    Mutant("cleans up after a refusal", Rules(after_refusal=_delete_files)),
    Mutant("deletes files on an unknown outcome", Rules(after_unknown=_delete_files)),
    Mutant("unknown outcome taken for failure", Rules(publishing=_resends_blindly, fence=_force)),
    Mutant("unknown outcome taken for success", Rules(publishing=_believes)),
    Mutant("minted past the frontier", Rules(mint=_past_the_frontier)),
    Mutant("schema change inside an epoch", Rules(mint=_through_schema_changes)),
    Mutant("resolved taken one too far", Rules(frontier=_one_too_far)),
    Mutant("resolved taken one too near", Rules(frontier=_one_too_near)),
    Mutant("listed before the resolved timestamp", Rules(listing=_listed_before)),
    Mutant("old versions written again", Rules(select=_old_versions_kept)),
    Mutant("upper included", Rules(select=_upper_included)),
    Mutant("netting omitted", Rules(net=_all_changes)),
    Mutant("last to arrive wins", Rules(net=_last_to_arrive)),
    Mutant("path reused by attempts", Rules(path=_path_without_attempt)),
    Mutant("every attempt staged", Rules(winner=_every_attempt)),
    Mutant("staged before all splits reported", Rules(complete=_some_splits)),
    Mutant("two epochs in one snapshot", Rules(take=_two_at_once)),
    Mutant("newest epoch first", Rules(take=_newest_first)),
    Mutant("notes of other settings used", Rules(recoverable=_any_settings)),
    Mutant("notes of other targets used", Rules(usable=_any_target)),
    Mutant("staged files not looked for", Rules(usable=_files_not_looked_for)),
    Mutant("notes without deletes kept", Rules(usable=_fresh_notes_kept)),
    Mutant("released before published", Rules(releasable=_staged_is_enough)),
    Mutant("released at the greatest frontier", Rules(release_point=_greatest)),
    Mutant("position of one target releases for all", Rules(low_water=_own_low_water)),
    Mutant("deletes published without a data file", Rules(anchored=_deletes_alone)),
    Mutant("settle committed by a replace", _committed(operation="replace")),
    Mutant("settle without a snapshot to validate from", _committed(start=None)),
    Mutant("settle without a look whether its files exist", _committed(files=())),
    Mutant("settle without a look at deleted files", _committed(deleted_files=False)),
    Mutant("later parts of a settle validated from now", Rules(upkeep=Upkeep(start=_later_parts_from_now))),
    Mutant("equality deletes leave with the first part", Rules(upkeep=Upkeep(equality_leaves=_with_the_first))),
    Mutant("settle forgets the deletes of before", Rules(upkeep=Upkeep(dead=_new_dead_only))),
    Mutant("settle leaves the vector of before", Rules(upkeep=Upkeep(replaced=_old_vectors_stay))),
    Mutant("settle deletes rows of the same snapshot", Rules(upkeep=Upkeep(debt=_of_its_own_snapshot))),
    Mutant("compaction with a new sequence number", Rules(upkeep=Upkeep(rewrite=_with_a_new_number))),
    Mutant("compaction leaves deletes, and is younger than they are", Rules(upkeep=Upkeep(written_as_of=_as_of_the_plan))),
    Mutant("compaction leaves deletes, and takes files that they do not hold for", Rules(upkeep=Upkeep(comes=_all_come))),
    Mutant("expiry deletes staged files", Rules(upkeep=Upkeep(orphans=_staged_or_not))),
    Mutant("expiry deletes orphans of any age", Rules(upkeep=Upkeep(orphans=_of_any_age))),
    Mutant("expiry cuts the mark's tag off the branch", Rules(upkeep=Upkeep(kept=_no_more))),
    Mutant("expiry ignores tags", Rules(upkeep=Upkeep(held=_nothing_held))),
)


def catch(mutant: Mutant, seeds: Iterable[int]) -> tuple[int, Violation] | None:
    """Return how many seeds it took and the violation, or None if the mutant survived them."""
    with mutant.at_work() as rules:
        for tried, seed in enumerate(seeds, 1):
            try:
                Simulation(seed, rules).run()
            except Violation as violation:
                return tried, violation
    return None
