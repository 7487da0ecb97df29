"""One run of a simulated pipeline: the order of durable steps, every effect handed to the scheduler.

    claim ─▶ publish what is staged ─▶ catch up ─▶ observe ─▶ mint ─▶ write ─▶ stage ─▶ publish ─▶ release

It is a generator of effects. The scheduler performs them, or does not, or does and says nothing;
a run that is never resumed has crashed, one that is resumed much later was a zombie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from icefront.core.epochs import Epoch, Minting, epoch_id
from icefront.core.errors import FencedOut, FrontierGap, IcefrontError, Overcompacted, Stopped
from icefront.core.files import ClosedFile, FileKind, Staged, deduplicate
from icefront.core.marks import Identity, Mark, Position
from icefront.core.protocol import Answer, Claim, FencedOff, Load, NotLanded, Publication, Published, Request, Send, check_fresh
from icefront.core.timestamps import ORIGIN
from icefront.testing.memory import Feed, MemoryTable, Notes, Storage, coordinates, position, rank
from icefront.testing.rules import Rules

PIPELINE = "shop"
SOURCE = Identity('{"feed":"1"}')
RETRIES = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Act:
    """An effect that either happens or does not: a read, a file, a note, a release."""

    label: str
    do: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """An effect whose outcome may stay unknown."""

    table: MemoryTable
    intent: Claim | Publication


Effect = Act | Commit
Steps = Generator[Effect, Any, T]


@dataclass(slots=True)
class World:
    """What all runs of a pipeline share."""

    rng: Random
    rules: Rules
    minting: Minting
    adopt: bool
    storage: Storage
    tables: list[MemoryTable]
    feed: Feed
    notes: Notes = field(default_factory=Notes)
    settings_of: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0


class Process:
    """One run. `marks` is what it believes; what the targets believe may differ."""

    def __init__(self, world: World, name: str, run: str, settings: str) -> None:
        self.world = world
        self.name = name
        self.run = run
        self.settings = settings
        self.marks: dict[int, Mark] = {}
        self.starts: dict[int, Position] = {}
        self.queues: dict[int, list[Staged]] = {}
        self.stopped: dict[int, IcefrontError] = {}
        self.publishing: dict[int, Staged] = {}
        self.reports: list[tuple[MemoryTable, Staged, Published]] = []
        self.finished = False
        self.wake = 0
        self.born = len(world.storage.written)
        self.answer: Answer | None = None
        self.steps = self._steps()
        self.effect: Effect = next(self.steps)

    def active(self) -> list[int]:
        return [number for number in self.marks if number not in self.stopped]

    def _steps(self) -> Steps[None]:
        yield from self._claim()
        yield from self._recover()
        yield from self._catch_up()
        yield from self._release(self.world.rules.releasable(self.marks.values(), ()))
        yield from self._follow()

    def _claim(self) -> Steps[None]:
        rules = self.world.rules
        for number, table in enumerate(self.world.tables):
            talk = rules.claiming(PIPELINE, table.name, self.run, SOURCE, adopt=self.world.adopt, retries=RETRIES)
            try:
                mark = yield from self._converse(table, talk)
            except Stopped as error:
                self.stopped[number] = error
                continue
            self.marks[number] = mark
            self.starts[number] = mark.position
            self.queues[number] = []
            rules.check_resume(mark, SOURCE, self.world.feed.earliest)

    def _recover(self) -> Steps[None]:
        world = self.world
        for number in self.active():
            table = world.tables[number]
            notes: list[Staged] = yield Act("read the notes", partial(self._usable_notes, table))
            for staged in world.rules.recoverable(self.marks[number], notes, self.settings):
                yield from self._publish(number, staged)
                if number in self.stopped:
                    break
                world.counts["epochs recovered from notes"] += 1
                self.starts[number] = staged.position

    def _usable_notes(self, table: MemoryTable) -> list[Staged]:
        return [note for note in self.world.notes.every() if self.world.rules.usable(note, table.name, table)]

    def _catch_up(self) -> Steps[None]:
        """Bring each target by itself to where the furthest one is."""
        world = self.world
        greatest = max((self.marks[n].frontier for n in self.active()), default=ORIGIN)
        for number in self.active():
            while number not in self.stopped and (mark := self.marks[number]).frontier < greatest:
                cuts = [c for c in world.feed.cuts(rank(mark.frontier), world.rules.frontier) if c.frontier <= greatest]
                earliest = world.feed.earliest
                world.rules.check_resume(mark, SOURCE, earliest)
                epochs = world.rules.mint(world.minting, mark.frontier, earliest, cuts, open_epochs=0, flush=True)
                if not epochs:
                    raise Overcompacted(f"no way from {mark.frontier} to {greatest}, the source begins at {earliest}")
                for epoch in epochs:
                    staged = yield from self._write(number, epoch, len(world.feed.files))
                    yield from self._publish(number, staged)
                    if number in self.stopped:
                        break

    def _follow(self) -> Steps[None]:
        """Write ahead of publishing, up to the window; publish in order."""
        world = self.world
        minted: list[Epoch] = []
        listed = 0
        lower = max((self.marks[n].frontier for n in self.active()), default=ORIGIN)
        first = True
        while active := self.active():
            waiting = max(len(self.queues[number]) for number in active)
            if waiting and (not minted or world.rng.random() < 0.5):
                yield from self._publish_next()
            elif minted:
                epoch = minted.pop(0)
                for number in self.active():
                    staged = yield from self._write(number, epoch, listed)
                    self.queues[number].append(staged)
            else:
                before: int = yield Act("list", lambda: len(world.feed.files))
                cuts, earliest, ended = yield Act("look for resolved timestamps", partial(self._observe, rank(lower)))
                for number in self.active():
                    world.rules.check_resume(self.marks[number], SOURCE, earliest)
                listed = before
                minted = list(world.rules.mint(world.minting, lower, earliest, cuts, open_epochs=waiting, flush=first or ended))
                first = False
                if minted:
                    lower = minted[-1].upper
                elif ended and not waiting:
                    return

    def _observe(self, lower: int) -> tuple[Any, ...]:
        feed = self.world.feed
        return feed.cuts(lower, self.world.rules.frontier), feed.earliest, feed.ended

    def _publish_next(self) -> Steps[None]:
        rules = self.world.rules
        taken = {n: rules.take(self.queues[n]) for n in self.active() if self.queues[n]}
        planned = [replace(self.marks[n], frontier=s.epoch.upper, position=s.position) for n, s in taken.items()]
        yield from self._release(rules.releasable((), planned))
        for number, staged in taken.items():
            if number not in self.stopped:
                yield from self._publish(number, staged)
        yield from self._release(rules.releasable(self.marks.values(), ()))

    def _release(self, marks: Iterable[Mark]) -> Steps[None]:
        """Release the source at what every target is past; while one of them is unknown, not at all."""
        known = list(marks)
        if len(known) == len(self.world.tables):
            _, position = self.world.rules.release_point((mark.frontier, mark.position) for mark in known)
            low, reached = coordinates(position)
            if reached > self.world.feed.released:
                yield Act("release", partial(self.world.feed.release, low, reached))

    def _publish(self, number: int, staged: Staged) -> Steps[None]:
        world = self.world
        table = world.tables[number]
        self.publishing[number] = staged
        talk = world.rules.publishing(Publication(staged, self.marks[number]), retries=RETRIES)
        try:
            outcome = yield from self._converse(table, talk)
        except Stopped as error:
            self.stopped[number] = error
            return
        match outcome:
            case FencedOff(owner=owner):
                raise FencedOut(f"{table.name} belongs to {owner}")
            case Published(mark=mark):
                self.reports.append((table, staged, outcome))
                self.marks[number] = mark
        yield Act("note published", partial(world.notes.published, staged))

    def _converse(self, table: MemoryTable, talk: Generator[Request, Answer, T]) -> Steps[T]:
        rules = self.world.rules
        try:
            request = next(talk)
            while True:
                match request:
                    case Load():
                        answer = yield Act("load", partial(rules.look, table))
                    case Send(intent=intent):
                        rules.before_send(table, intent)
                        answer = yield Commit(table, intent)
                        if isinstance(intent, Publication) and isinstance(answer, NotLanded):
                            rules.after_unknown(table, intent.staged)
                request = talk.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    # ── writing ────────────────────────────────────────────────────────────────────────────
    def _write(self, number: int, epoch: Epoch, listed: int) -> Steps[Staged]:
        """Write an epoch's files for one target, and stage them when every split has reported."""
        world = self.world
        rules, rng, table = world.rules, world.rng, world.tables[number]
        fresh = False
        if epoch.lower == ORIGIN and self.marks[number].frontier == ORIGIN:
            fresh = yield Act("is it empty?", partial(_is_fresh, table))
        named = epoch_id(PIPELINE, table.name, epoch)
        splits = 1 if rng.random() < 0.5 else 2
        reported: list[tuple[ClosedFile, ...]] = []
        staged: Staged | None = None
        for split in range(splits):
            write = partial(self._write_split, number, epoch, named, listed, split, splits, fresh)
            attempts = [(yield Act("write", write))]
            if rng.random() < 0.15:
                attempts.insert(rng.random() < 0.5, (yield Act("write, second attempt", write)))
            reported.append(rules.winner(attempts))
            if rules.complete(len(reported), splits):
                files = tuple([file for report in reported for file in report])
                if files and rng.random() < 0.03:
                    files = deduplicate((*files, files[0]))
                place = self._position(number, epoch, listed)
                staged = Staged(PIPELINE, table.name, epoch, named, place, files, table.schema_id, self.settings, fresh)
                yield Act("stage", partial(world.notes.put, staged))
        assert staged is not None
        self.starts[number] = staged.position
        return staged

    def _position(self, number: int, epoch: Epoch, listed: int) -> Position:
        world = self.world
        low, _ = coordinates(self.starts[number])
        upper = rank(epoch.upper)
        now = world.rules.listing(listed, len(world.feed.files))
        return position(world.rules.low_water(world.feed.files, low, now, upper, number), upper)

    def _write_split(
        self,
        number: int,
        epoch: Epoch,
        named: UUID,
        listed: int,
        split: int,
        splits: int,
        fresh: bool,  # noqa: FBT001
    ) -> tuple[ClosedFile, ...]:
        """Read, net and write one split: data, and a delete for every key it touches."""
        world = self.world
        rules, table = world.rules, world.tables[number]
        low, _ = coordinates(self.starts[number])
        changes = world.feed.read(low, rules.listing(listed, len(world.feed.files)))
        mine = rules.net(rules.select(changes, number, rank(epoch.lower), rank(epoch.upper)))
        if splits > 1:
            mine = [change for change in mine if change[0] & 1 == split]
        world.attempts += 1
        attempt = str(world.attempts)
        table.schema_id = max(table.schema_id, world.feed.schema_at(rank(epoch.lower)))
        files = []
        rows = [(key, value) for key, value in mine if value is not None]
        touched = [] if fresh else [(key, 0) for key, _ in mine]
        for kind, content in ((FileKind.DATA, rows), (FileKind.EQUALITY_DELETES, touched)):
            if content or (kind is FileKind.DATA and rules.anchored(touched)):
                path = f"{table.name}/{rules.path(named, split, attempt)}-{kind[0]}"
                world.storage.write(path, content)
                world.settings_of[path] = self.settings
                size = len(content)
                files.append(ClosedFile(kind, table.name, str(named), split, attempt, path, size, size, table.schema_id, 0))
        return tuple(files)


def _is_fresh(table: MemoryTable) -> bool:
    try:
        check_fresh(table.head())
    except FrontierGap:
        return False
    return True
