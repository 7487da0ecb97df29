"""A deterministic simulator: one seed, one world, the protocol's own code.

    python -m icefront.testing.simulator --seeds 20000
    python -m icefront.testing.simulator --seed 4711 --trace

Writers, settles, compactions, expiries, readers with tags, foreign writers, schema changes, rollbacks and
replacements take turns as the seed says; at each effect of a writer, or of upkeep, one of these happens:

    ok · fails before · applied, answer lost · applied late · applied twice · crash · pause as zombie

After every commit the table must equal the oracle at its frontier. Then the faults stop, and a
fresh writer must finish. A failing seed is the bug report.

What it takes as given: nobody removes both the rolled-back snapshots and the older ones before the
pipeline looks again, orphans are cleaned only when they are older than every writer and request that is still
around, and nobody rewrites or drops files while another program's compaction is under way.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from icefront.core.epochs import Minting, origin_id
from icefront.core.errors import (
    CommitUncertain,
    ConnectionFailed,
    FencedOut,
    FrontierGap,
    IcefrontError,
    NotOurs,
    Overcompacted,
    RolledBack,
)
from icefront.core.files import Staged
from icefront.core.marks import START, Identity, Mark, Writer
from icefront.core.protocol import Answer, Claim, Landed, NotLanded, Publication, Published, Refusal
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.testing.crew import Crew, Sent
from icefront.testing.memory import Change, Feed, MemoryTable, PathReused, Row, Storage, Unreadable, at, rank
from icefront.testing.process import Act, Commit, Process, World
from icefront.testing.rules import REAL, Rules

OTHERS = Mark("another", Timestamp(1), origin_id("another", "t0"), START, Identity("{}"), Writer("another", 1))
FOREIGN = 1000  # keys from here on belong to foreign writers
LIMIT = 4000  # turns after which a run without faults counts as stuck


class Violation(AssertionError):
    """The protocol broke a promise; the seed repeats it and the trace shows it."""

    def __init__(self, seed: int, what: str, trace: Iterable[str]) -> None:
        self.seed = seed
        self.what = what
        self.trace = tuple(trace)
        super().__init__("\n".join((f"seed {seed}: {what}", *self.trace)))


@dataclass(slots=True)
class Watch:
    """What the simulator knows about a table from outside.

    `last` is the snapshot of its newest epoch (or first claim). `tainted`: it is no longer on the
    branch, so nothing may be published. `suspect`: stopping is right, going on may be too.
    `foreign` are the rows of others, `tagged` those that a reader's tag holds.
    """

    last: int | None = None
    tainted: bool = False
    suspect: bool = False
    rolled: bool = False
    before: int | None = None
    foreign_first: bool = False
    foreign: list[Row] = field(default_factory=list)
    tagged: list[Row] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one commit: is it applied now, later, again; and what becomes of its writer."""

    name: str
    applied: bool = True
    answered: bool = False
    late: bool = False
    again: bool = False
    crash: bool = False
    pause: bool = False


FAULTS = (
    Fault("fails before", applied=False),
    Fault("answer lost"),
    Fault("applied late", applied=False, late=True),
    Fault("applied twice", again=True),
    Fault("applied twice, again late", answered=True, late=True),
    Fault("crash before", applied=False, crash=True),
    Fault("crash after", crash=True),
    Fault("crash, applied late", applied=False, late=True, crash=True),
    Fault("pause before", applied=False, pause=True),
    Fault("pause after", answered=True, pause=True),
    Fault("pause, applied late", applied=False, late=True, pause=True),
)


def script(rng: Random, targets: int, *, evolving: bool, long: bool) -> Feed:
    """Make up a history and the way it is delivered: repeated, early, out of order, never missing."""
    history: list[Change] = []
    events: list[tuple[Change, ...] | int] = []
    early: list[Change] = []
    schema_changes: set[int] = set()
    sizes: dict[int, int] = {}
    wall, logical, value = 1, 0, 0
    segments: list[tuple[list[Change], int]] = []
    for _ in range((20 if long else 3) + int(rng.random() * 7)):
        changes: list[Change] = []
        for _ in range(int(rng.random() * 5)):
            # Often the least timestamp after the one before: that is where "≤ R" goes wrong.
            if rng.random() < 0.5:
                logical += 1
            else:
                wall, logical = wall + 1 + int(rng.random() * 3), 0
            value += 1
            target, key = int(rng.random() * targets), int(rng.random() * 4)
            changes.append((wall << 8 | logical, target, key, None if rng.random() < 0.25 else value))
        if not changes or rng.random() < 0.3:
            wall, logical = wall + 1 + int(rng.random() * 3), 0
        history += changes
        segments.append((changes, wall << 8 | logical))
    for number, (changes, resolved) in enumerate(segments):
        rows = [change for change in changes if change not in early]
        if number + 1 < len(segments):
            hasty = [change for change in segments[number + 1][0] if rng.random() < 0.2]
            early += hasty
            rows += hasty
        known = [change for change in history if change[0] <= resolved]
        rows += [known[int(rng.random() * len(known))] for _ in range(2) if known and rng.random() < 0.4]
        rng.shuffle(rows)
        half = int(rng.random() * (len(rows) + 1))
        events += [tuple(part) for part in (rows[:half], rows[half:]) if part]
        events.append(resolved)
        if rng.random() < 0.1:
            events.append(segments[int(rng.random() * (number + 1))][1])  # again, or an older one
        sizes[resolved] = len(changes)
        if evolving and rng.random() < 0.2:
            schema_changes.add(resolved)
    return Feed(history, events, frozenset(schema_changes), sizes)


class Simulation:
    """One world, run by one seed."""

    def __init__(self, seed: int, rules: Rules = REAL) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)  # noqa: S311 — repeatable is the point
        self.rules = rules
        self.log: list[tuple[int, str, object, object]] = []
        self.now = 0
        # A long run in fair weather: upkeep and publishes have time to meet.
        self.long = rng.random() < 0.07
        targets = 1 if self.long or rng.random() < 0.6 else 2
        minting = Minting(
            every=None if self.long else (None, 3, 8)[int(rng.random() * 3)],
            max_changes=2 if self.long else (2, 6, 1000)[int(rng.random() * 3)],
            in_flight=1 + int(rng.random() * 3),
            heartbeat=4 if rng.random() < 0.5 else 30,
        )
        storage = Storage()
        tables = [MemoryTable(f"t{n}", storage) for n in range(targets)]
        feed = script(rng, targets, evolving=rng.random() < 0.3, long=self.long)
        self.world = World(rng, rules, minting, rng.random() < 0.3, storage, tables, feed)
        self.counts = self.world.counts
        self.watches = {table.name: Watch() for table in tables}
        self.faulty = (0.0, 0.1, 0.25, 0.4)[int(rng.random() * (2 if self.long else 4))]
        self.lossy = rng.random() < 0.3
        self.resettled = rng.random() < 0.25
        self.crowded = rng.random() < 0.25
        self.twinned = rng.random() < 0.12
        self.crew = Crew(self)
        self.actors = self._actors()
        for table in tables:
            table.format = 2 if rng.random() < 0.4 else 3
        self.live: list[Process] = []
        self.zombies: list[Process] = []
        self.late: list[tuple[int, str, MemoryTable, Claim | Publication | Sent]] = []
        self.claimed: set[tuple[str, str]] = set()
        self.twins: set[str] = set()
        self.disturbed: set[str] = set()
        self.settings: dict[str, str] = {}
        self.calm = False
        self._oracle: dict[tuple[int, int], list[Row]] = {}

    def _actors(self) -> list[Callable[[MemoryTable], None]]:
        rng = self.rng
        chosen: list[Callable[[MemoryTable], None]] = [self._nothing]
        for actor, chance in (
            (self._foreign, 0.6),
            (self._load, 0.5 if self.world.adopt else 0.0),
            (self._delete, 0.5),
            (self._read, 0.5),
            (self._upgrade, 0.2),
            (self._evolve, 0.2),
            (self._roll, 0.25),
            (self._replace, 0.06),
        ):
            if rng.random() < chance:
                chosen.append(actor)
        return chosen

    # ── running ────────────────────────────────────────────────────────────────────────────
    def run(self) -> Counter[str]:
        """Run to the end; raises Violation."""
        try:
            self._storm()
            self._calm_down()
            self._finish()
        except Violation:
            raise
        except (PathReused, Unreadable) as broken:
            raise self.violation(str(broken)) from broken
        except Exception as error:
            raise self.violation(f"unexpected {type(error).__name__}: {error}") from error
        return self.counts

    def _storm(self) -> None:
        """Phase one: everything goes wrong."""
        rng = self.rng
        self._start()
        if self.crowded or self.twinned:
            self._start()
        for _ in range((260 if self.long else 60) + int(rng.random() * 120)):
            self.now += 1
            self._due()
            roll = rng.random()
            if not self.live:
                if self._done():
                    break
                if roll < (0.1 if any(watch.tainted for watch in self.watches.values()) else 0.5):
                    self._start()
                    continue
                roll = 0.7 + roll * 0.3
            if roll < self.crew.share:
                self.crew.turn()
            elif roll < 0.70:
                self._turn(self.live[int(rng.random() * len(self.live))])
            elif roll < 0.85:
                self._deliver()
            else:
                table = self.world.tables[int(rng.random() * len(self.world.tables))]
                self.actors[int(rng.random() * len(self.actors))](table)

    def _calm_down(self) -> None:
        """Phase two: no new faults, but zombies wake, late commits land, and all run to their end."""
        rng = self.rng
        self.faulty = 0.0
        until = self.now + LIMIT
        while self.live or self.zombies:
            self.now += 1
            if self.now > until:
                raise self.violation(f"{self.live or self.zombies} did not come to an end")
            roll = rng.random()
            if roll > 1 - self.crew.share / 4:
                self.crew.turn()
            elif self.late and roll < 0.02:
                self._land_late(int(rng.random() * len(self.late)))
            elif self.zombies and (roll < 0.1 or not self.live):
                self._wake(self.zombies.pop())
            elif roll < 0.3 and not self.world.feed.ended:
                self._deliver()
            elif self.live:
                self._turn(self.live[int(rng.random() * len(self.live))])
            else:
                self._deliver()

    def _finish(self) -> None:
        """Phase three: one fresh writer must reach the end, whatever still lands late."""
        feed = self.world.feed
        while not feed.ended:
            self._deliver()
        self.calm = True
        self._start()
        process = self.live[0]
        until = self.now + LIMIT
        while self.live:
            self.now += 1
            if self.now > until:
                raise self.violation("the last writer did not come to an end")
            if self.late and self.rng.random() < 0.1:
                self._land_late(0)
            self._turn(process)
        while self.late:
            self._land_late(0)
        end = at(feed.end).next()
        for number, table in enumerate(self.world.tables):
            if number in process.stopped:
                self.counts["ended: " + type(process.stopped[number]).__name__] += 1
            elif table.mark is None or table.mark.frontier != end:
                raise self.violation(f"{table.name} ends at {table.mark and table.mark.frontier}, the source at {end}")
            else:
                self.check(number)
                self.crew.finish(table)
                self.counts["ended: complete"] += 1

    def _done(self) -> bool:
        feed = self.world.feed
        return (
            feed.ended
            and not self.zombies
            and all(table.mark is not None and rank(table.mark.frontier) > feed.end for table in self.world.tables)
        )

    def _due(self) -> None:
        """Do what was put off until now."""
        for index in range(len(self.late) - 1, -1, -1):
            if self.late[index][0] <= self.now:
                self._land_late(index)
        for process in [z for z in self.zombies if z.wake <= self.now]:
            self.zombies.remove(process)
            self._wake(process)

    def _deliver(self) -> None:
        feed = self.world.feed
        if not feed.ended:
            self.note("feed", "delivers", feed.script[feed.delivered])
            feed.deliver()

    # ── writers ────────────────────────────────────────────────────────────────────────────
    def _start(self) -> None:
        """Start a run; what happened to the notes meanwhile, and under which settings, the seed says."""
        rng, world = self.rng, self.world
        self.counts["runs"] += 1
        name = f"w{self.counts['runs']}"
        run = name
        if self.lossy and not self.calm:
            self._damage_notes(rng.random())
        settings = "s2" if self.resettled and rng.random() < 0.4 else "s1"
        if self.twinned and self.live and rng.random() < 0.7:
            run, settings = self.live[0].run, self.live[0].settings
            self.twins.add(run)
            self.counts["twins"] += 1
        self.settings[run] = settings
        self.note(name, f"starts as run {run} with settings {settings}", "")
        self.live.append(Process(world, name, run, settings))

    def _damage_notes(self, roll: float) -> None:
        world = self.world
        if roll < 0.12:
            world.notes.lose()
            self.count("notes", "lost")
        elif roll < 0.25:
            world.notes.restore()
            self.count("notes", "restored from an older copy")
        elif roll < 0.5:
            world.notes.back_up()
        elif roll < 0.7 and not (self.live or self.zombies or self.late):
            held = {path for table in world.tables for snapshot in table.snapshots.values() for path in snapshot.files}
            held |= {path for path, born in world.storage.written.items() if any(born >= w.born for w in self.crew.workers)}
            world.storage.delete([path for path in world.storage.files if path not in held])
            self.count("orphans", "cleaned")

    def _turn(self, process: Process) -> None:
        """Let a run take one step: perform its effect, or not, and hand over the answer."""
        if process.answer is not None:
            answer, process.answer = process.answer, None
            self._advance(process, answer)
            return
        effect = process.effect
        roll = self.rng.random()
        if isinstance(effect, Commit):
            self._commit(process, effect, self._fault(roll))
            return
        if roll < self.faulty * 0.2:
            self._disturb(process, effect, roll / (self.faulty * 0.2))
            return
        answer = effect.do()
        self.note(process.name, effect, "ok")
        self._after(effect)
        self._advance(process, answer)

    def _fault(self, roll: float) -> Fault | None:
        return FAULTS[int(roll / self.faulty * len(FAULTS))] if roll < self.faulty else None

    def fault(self) -> Fault | None:
        """Say what goes wrong with a commit, if anything does."""
        return self._fault(self.rng.random())

    def put_off(self, name: str, table: MemoryTable, what: Claim | Publication | Sent) -> None:
        """Let a commit be applied later."""
        self.late.append((self.now + 1 + int(self.rng.random() * 40), name, table, what))

    def _disturb(self, process: Process, effect: Act, roll: float) -> None:
        """Interrupt an effect that happens or does not: fail, crash before or after, or pause."""
        if roll < 0.2:
            self.count(process.name, "fails", effect)
            self._advance(process, ConnectionFailed("cannot be reached"))
        elif roll < 0.6:
            if roll > 0.4:
                effect.do()
                self._after(effect)
            self.count(process.name, "crash after" if roll > 0.4 else "crash before", effect)
            self.live.remove(process)
        else:
            self.count(process.name, "pause", effect)
            self._pause(process)

    def _commit(self, process: Process, effect: Commit, fault: Fault | None) -> None:
        table, intent = effect.table, effect.intent
        if fault is None:
            self._advance(process, self._land(process.name, table, intent))
            return
        self.count(process.name, fault.name, effect)
        self.disturbed.add(process.run)
        answer: Answer = NotLanded(fault.name)
        if fault.applied:
            landed = self._land(process.name, table, intent)
            if fault.again:
                landed = self._land(process.name, table, intent)
            if fault.answered or isinstance(landed, NotLanded):
                answer = landed
        if fault.late:
            self.put_off(process.name, table, intent)
        if fault.crash:
            self.live.remove(process)
        elif fault.pause:
            if fault.applied or fault.late:
                process.answer = answer
            self._pause(process)
        else:
            self._advance(process, answer)

    def _pause(self, process: Process) -> None:
        """Freeze a run and start its successor; it knows nothing of that when it wakes."""
        process.wake = self.now + 5 + int(self.rng.random() * 60)
        self.live.remove(process)
        self.zombies.append(process)
        if self.rng.random() < 0.85:
            self._start()

    def _wake(self, process: Process) -> None:
        self.count(process.name, "zombie wakes")
        self.live.append(process)

    def _advance(self, process: Process, answer: object) -> None:
        """Hand a run its answer, and judge how it ends if it does."""
        stopped = len(process.stopped)
        try:
            if isinstance(answer, ConnectionFailed):
                process.effect = process.steps.throw(answer)
            else:
                process.effect = process.steps.send(answer)
        except StopIteration:
            process.finished = True
            self.live.remove(process)
            self.count("runs", "finished", process.name)
        except IcefrontError as error:
            self.live.remove(process)
            self._judge(process, None, error)
        while process.reports:
            self._check_report(process, answer, *process.reports.pop())
        if len(process.stopped) != stopped:
            number, reason = list(process.stopped.items())[-1]
            self._judge(process, self.world.tables[number], reason)

    def _judge(self, process: Process, table: MemoryTable | None, error: IcefrontError) -> None:
        """Stopping is an outcome only for the right reason."""
        self.count(process.name, f"ends with {type(error).__name__}", error)
        tables = [table] if table else self.world.tables
        lost = any(t.mark is None or t.mark.writer.id != process.run for t in tables)
        match error:
            case ConnectionFailed():
                right = not self.calm
            case FencedOut():
                owned = any((t.name, process.run) in self.claimed for t in tables)
                right = not self.calm and (process.run in self.twins or (owned and lost))
            case CommitUncertain():
                right = not self.calm and (process.run in self.disturbed or len(self.claimed) > 1)
            case RolledBack():
                right = any(self.watches[t.name].suspect if self.calm else self.watches[t.name].rolled for t in tables)
            case FrontierGap():
                fresh = any(t.name == s.target and s.fresh for t in tables for s in process.publishing.values())
                right = not self.calm and (process.run in self.twins or (fresh and self._has_rows(tables)))
            case NotOurs():
                right = not self.world.adopt and any(self.watches[t.name].foreign_first for t in tables)
            case Overcompacted():
                right = not self.calm and (lost or process.run in self.twins)
            case _:
                right = False
        if not right:
            raise self.violation(f"{process.name} stopped for no reason: {type(error).__name__}: {error}")

    @staticmethod
    def _has_rows(tables: list[MemoryTable]) -> bool:
        return any(not t.head().whole or any(a.adds_files for a in t.head().ancestors) for t in tables)

    # ── commits ────────────────────────────────────────────────────────────────────────────
    def _land_late(self, index: int) -> None:
        _, name, table, intent = self.late.pop(index)
        self.counts["late commits"] += 1
        if isinstance(intent, Sent):
            self.crew.land_late(f"{name}, late", table, intent)
            return
        answer = self._land(f"{name}, late", table, intent)
        if isinstance(answer, Landed):
            self.counts["late commits that landed"] += 1

    def _land(self, name: str, table: MemoryTable, intent: Claim | Publication) -> Landed | NotLanded:
        """Apply a commit now, in one atomic step, and check everything."""
        before = table.mark
        try:
            snapshot = self.rules.apply(table, intent, self.rules.fence)
        except (Refusal, IcefrontError) as refusal:
            self.note(name, intent, refusal)
            self.counts["fenced"] += 1
            if isinstance(intent, Publication):
                self.rules.after_refusal(table, intent.staged)
            return NotLanded(str(refusal))
        self.note(name, intent, f"snapshot {snapshot}")
        watch = self.watches[table.name]
        if watch.tainted:
            raise self.violation(f"{name} committed to {table.name}, which was rolled back or replaced")
        match intent:
            case Claim(writer=writer):
                self.counts["claims"] += 1
                self.claimed.add((table.name, writer.id))
                if before is None:
                    watch.last = snapshot
                self._check_claim(table, before)
            case Publication(staged=staged, onto=onto):
                self.counts["epochs"] += 1
                watch.last = snapshot
                self._check_publication(table, before, staged, onto)
        self.check(self.world.tables.index(table))
        return Landed(snapshot)

    def _check_claim(self, table: MemoryTable, before: Mark | None) -> None:
        mark = table.mark
        if mark is None or (before is not None and (mark.frontier, mark.epoch_id) != (before.frontier, before.epoch_id)):
            raise self.violation(f"a claim changed what {table.name} remembers: {before} became {mark}")

    def _check_publication(self, table: MemoryTable, before: Mark | None, staged: Staged, onto: Mark) -> None:
        epoch = staged.epoch
        if before is None or table.mark is None:
            raise self.violation(f"{table.name} has no mark, yet epoch {epoch} was published")
        if before.writer != onto.writer:
            raise self.violation(f"{onto.writer} published {epoch} to {table.name}, which {before.writer} has claimed")
        if before.frontier != epoch.lower or table.mark.frontier != epoch.upper:
            raise self.violation(f"{table.name} went from {before.frontier} to {table.mark.frontier} by epoch {epoch}")
        published = [s.id for s in table.chain() if s.epoch is not None and s.seen.epoch_id == staged.epoch_id]
        if len(published) != 1:
            raise self.violation(f"epoch {epoch} of {table.name} is in the snapshots {published}")
        lower, upper = rank(epoch.lower), rank(epoch.upper)
        if any(lower <= change < upper - 1 for change in self.world.feed.schema_changes):
            raise self.violation(f"epoch {epoch} of {table.name} spans a schema change")
        for file in staged.files:
            if self.world.settings_of[file.path] != self.settings[onto.writer.id]:
                raise self.violation(f"{file.path} was written under other settings")

    def _check_report(self, process: Process, answer: object, table: MemoryTable, staged: Staged, outcome: Published) -> None:
        """Check what a writer takes for published because it looked, and has just looked."""
        if isinstance(answer, Landed):
            return
        if outcome.snapshot == 0:
            right = not table.head().whole and not self.watches[table.name].tainted
        else:
            found = next((s for s in table.chain() if s.id == outcome.snapshot), None)
            writer = found.seen.writer if found is not None and found.epoch is not None else None
            right = writer is not None and writer.id == process.run
        if not right:
            raise self.violation(
                f"{process.name} takes {staged.epoch} of {table.name} for its own publication, snapshot {outcome.snapshot}"
            )

    def _after(self, effect: Act) -> None:
        if effect.label == "release":
            self.counts["releases"] += 1
            self._check_release()

    def _check_release(self) -> None:
        feed = self.world.feed
        for number, table in enumerate(self.world.tables):
            frontier = rank(table.mark.frontier) if table.mark else 0
            if feed.released > frontier:
                raise self.violation(f"the source was released up to {feed.earliest}, {table.name} is at {table.mark}")
            for file in feed.files[: feed.low]:
                if any(change[1] == number and change[0] >= frontier for change in file):
                    raise self.violation(f"the source released {file}, which {table.name} still needs")

    def check(self, number: int) -> None:
        """Compare what a reader sees with the oracle, unless the table was taken away from under the pipeline."""
        self.counts["commits"] += 1
        table = self.world.tables[number]
        watch = self.watches[table.name]
        if table.current is None:
            return
        snapshot = table.snapshots[table.current]
        rows = sorted(table.live(snapshot))
        if len(vectors := [d.file for d in snapshot.positional.values() if d.vector]) != len(snapshot.data.keys() & vectors):
            raise self.violation(f"{table.name} has two vectors for one data file, or one for a file that is not there")
        if watch.tainted:
            return
        ours = [row for row in rows if row[0] < FOREIGN]
        if rows[len(ours) :] != watch.foreign:
            raise self.violation(f"{table.name} shows {rows[len(ours) :]} of others, who wrote {watch.foreign}")
        expected = self._expected(number, table, ours)
        if ours != expected:
            frontier = table.mark.frontier if table.mark else None
            raise self.violation(f"{table.name} at {frontier} shows {ours}, the source says {expected}")

    def _expected(self, number: int, table: MemoryTable, ours: list[Row]) -> list[Row]:
        if table.mark is None or table.mark.frontier == ORIGIN:
            return [row for row in ours if row[1] < 0]  # before the first epoch: what somebody loaded
        frontier = rank(table.mark.frontier)
        known = self._oracle.get((number, frontier))
        if known is None:
            state: dict[int, int | None] = {c[2]: c[3] for c in self.world.feed.history if c[1] == number and c[0] < frontier}
            known = self._oracle[number, frontier] = sorted([(k, v) for k, v in state.items() if v is not None])
        return known

    # ── others ─────────────────────────────────────────────────────────────────────────────
    def _nothing(self, table: MemoryTable) -> None:
        """Change a property: new metadata, no snapshot."""
        self.note("foreign", "changes a property of", table.name)

    def _foreign(self, table: MemoryTable) -> None:
        if table.mark is None and not self.world.adopt and self.rng.random() < 0.8:
            return
        self.counts["foreign commits"] += 1
        key = FOREIGN + self.counts["foreign commits"]
        mark = OTHERS if self.rng.random() < 0.3 else None
        self.watches[table.name].foreign.append((key, 0))
        table.append(f"{table.name}/foreign-{key}", [(key, 0)], mark)
        self.note(mark.pipeline if mark else "foreign", "appends to", table.name)
        self._foreign_came(table)

    def _foreign_came(self, table: MemoryTable) -> None:
        if table.mark is None:
            self.watches[table.name].foreign_first = True
        self.check(self.world.tables.index(table))

    def _load(self, table: MemoryTable) -> None:
        """Load rows of our own keys before the first epoch: it touches each of them, so it must hide them."""
        if table.mark is not None and table.mark.frontier != ORIGIN:
            return
        number = self.world.tables.index(table)
        first = next(event for event in self.world.feed.script if isinstance(event, int))
        keys = {c[2] for c in self.world.feed.history if c[1] == number and c[0] <= first}
        if keys and not self.watches[table.name].tainted:
            self.counts["loads"] += 1
            rows = [(key, -self.counts["loads"]) for key in sorted(keys)]
            table.append(f"{table.name}/load-{self.counts['loads']}", rows)
            self.note("loader", f"appends {rows} to", table.name)
            self._foreign_came(table)

    def _delete(self, table: MemoryTable) -> None:
        """Delete a row of others the way they do it: by position, or with its whole file where nothing of ours lives in it."""
        watch = self.watches[table.name]
        if table.current is None or watch.tainted:
            return
        now = table.snapshots[table.current]
        drops = self.rng.random() < 0.5 and not self.crew.is_compacted_by_others(table)
        for path in now.data:
            live = table.live(now, [path])
            theirs = [row for row in live if row[0] >= FOREIGN]
            if drops and len(live) == len(theirs) and table.storage.files[path]:
                table.commit(removed=[path], operation="delete")
            elif not drops and theirs:
                del theirs[1:]
                self._delete_at(table, path, table.storage.files[path].index(theirs[0]))
            else:
                continue
            watch.foreign = [row for row in watch.foreign if row not in theirs]
            self.counts["foreign deletes"] += 1
            self.note("foreign", f"deletes {theirs} of {path} from", table.name)
            self.check(self.world.tables.index(table))
            return

    def _delete_at(self, table: MemoryTable, path: str, place: int) -> None:
        """Add a position delete; a vector takes the place of all that the file had."""
        assert table.current is not None
        now = table.snapshots[table.current]
        before = [old for old, delete in now.positional.items() if delete.file == path] if table.format > 2 else []
        vectors = [old for old in before if now.positional[old].vector]
        places = {place, *(at for old in vectors or before for at, _ in table.storage.files[old])}
        name = f"{table.name}/deleted-{self.counts['foreign deletes']}"
        table.storage.write(name, [(at, 0) for at in sorted(places)])
        table.commit(positional={name: path}, removed=before)

    def _trust_foreign(self, table: MemoryTable) -> None:
        """After a rollback others' rows are those that are there."""
        rows = table.live(table.snapshots[table.current]) if table.current is not None else []
        self.watches[table.name].foreign = sorted([row for row in rows if row[0] >= FOREIGN])

    def _read(self, table: MemoryTable) -> None:
        """Hold a snapshot by a tag; later read it, and let it go."""
        watch = self.watches[table.name]
        if watch.tagged is None:
            if table.current is not None:
                table.tags["reader"] = table.current
                watch.tagged = sorted(table.live(table.snapshots[table.current]))
                self.note("reader", "tags", f"{table.name}: snapshot {table.current}")
            return
        self.counts["reads by tag"] += 1
        held = table.snapshots.get(table.tags.pop("reader"))
        if held is None or sorted(table.live(held)) != watch.tagged:
            raise self.violation(f"a reader of {table.name} does not find what its tag held: {watch.tagged}")
        watch.tagged = None
        self.note("reader", "reads its tag of", table.name)

    def _upgrade(self, table: MemoryTable) -> None:
        table.format = 3
        self.note("foreign", "upgrades", table.name)

    def _evolve(self, table: MemoryTable) -> None:
        table.schema_id += 1
        self.note("foreign", "adds a column to", table.name)

    def _roll(self, table: MemoryTable) -> None:
        """Roll back once, to any ancestor; later, perhaps, forward again."""
        watch = self.watches[table.name]
        if watch.tainted:
            if watch.before in table.snapshots:
                table.roll_to(watch.before)
                watch.tainted = watch.suspect = False
                self._trust_foreign(table)
                self.note("operator", "rolls forward", table.name)
                self.check(self.world.tables.index(table))
            return
        ancestors = [s.id for s in table.chain()][1:]
        if watch.rolled or not ancestors:
            return
        self.counts["rollbacks"] += 1
        watch.before = table.current
        table.roll_to(ancestors[-1 if self.rng.random() < 0.5 else int(self.rng.random() * len(ancestors))])
        watch.rolled = watch.suspect = True
        watch.tainted = watch.last in table.snapshots and all(s.id != watch.last for s in table.chain())
        self._trust_foreign(table)
        self.note(
            "operator", f"rolls back {table.name} to {table.current},", "losing epochs" if watch.tainted else "losing nothing"
        )
        self.check(self.world.tables.index(table))

    def _replace(self, table: MemoryTable) -> None:
        watch = self.watches[table.name]
        if table.mark is None or watch.rolled:
            return
        self.counts["replacements"] += 1
        watch.before = table.current
        if self.rng.random() < 0.5:
            table.replace()
        else:
            table.replace(f"{table.name}/replacement", [(FOREIGN, 0)])
        watch.rolled = watch.suspect = watch.tainted = True
        self.note("operator", "replaces", table.name)

    # ── telling ────────────────────────────────────────────────────────────────────────────
    def note(self, actor: str, effect: object, outcome: object) -> None:
        self.log.append((self.now, actor, effect, outcome))

    def count(self, actor: str, what: str, effect: object = "") -> None:
        self.counts[what if actor not in {"notes", "orphans", "runs"} else f"{actor} {what}"] += 1
        self.log.append((self.now, actor, effect, what))

    def trace(self) -> list[str]:
        return [f"{now:5} {actor:10} {describe(effect)} {describe(outcome)}".rstrip() for now, actor, effect, outcome in self.log]

    def violation(self, what: str) -> Violation:
        return Violation(self.seed, what, self.trace())


def describe(what: object) -> str:
    """Print an effect or its outcome in one line."""
    match what:
        case Act(label=label):
            return f"{label}:"
        case Commit(table=table, intent=intent):
            return f"{describe(intent)} {table.name}:"
        case Claim(writer=writer, target=target, seen=seen):
            return f"claim {target} as {writer} over {seen.writer if seen else 'nobody'}:"
        case Publication(staged=staged, onto=onto):
            fresh = ", fresh" if staged.fresh else ""
            return f"publish {staged.epoch} to {staged.target} as {onto.writer} ({len(staged.files)} files{fresh}):"
        case Exception():
            return f"{type(what).__name__}: {str(what).splitlines()[0]}"
        case _:
            return str(what)


def simulate(seeds: Iterable[int], rules: Rules = REAL) -> Counter[str]:
    """Run seeds one after the other and add up what happened; the first violation is raised."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(Simulation(seed, rules).run())
    return counts


Result = tuple[Counter[str], tuple[int, str, tuple[str, ...]] | None]


def _part(seeds: range) -> Result:
    try:
        return simulate(seeds), None
    except Violation as violation:
        return Counter(), (violation.seed, violation.what, violation.trace)


def sweep(first: int, seeds: int, *, processes: int = 1, progress: Callable[[int], None] | None = None) -> Counter[str]:
    """Run many seeds, over several processes if asked; raises the first violation that is met."""
    size = 500
    parts = [range(begin, min(begin + size, first + seeds)) for begin in range(first, first + seeds, size)]
    if processes == 1:
        return _add_up(map(_part, parts), size, progress)
    # Worlds of a few thousand objects come and go: to look for garbage among them as often as usual takes a sixth of the time.
    with multiprocessing.get_context("spawn").Pool(processes, gc.set_threshold, (100_000,)) as pool:
        return _add_up(pool.imap_unordered(_part, parts), size, progress)


def _add_up(results: Iterable[Result], size: int, progress: Callable[[int], None] | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, (found, violation) in enumerate(results, 1):
        if violation is not None:
            raise Violation(*violation)
        counts.update(found)
        if progress:
            progress(number * size)
    return counts


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line: 0 when every promise was kept, 1 with the trace when not."""
    parser = argparse.ArgumentParser(
        prog="python -m icefront.testing.simulator", description="Run the protocol through seeded failures."
    )
    parser.add_argument("--seeds", type=int, default=20_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    chosen = parser.parse_args(arguments)
    out = sys.stdout
    started = time.perf_counter()
    try:
        if chosen.seed is not None:
            simulation = Simulation(chosen.seed)
            counts = simulation.run()
            if chosen.trace:
                out.write("\n".join(simulation.trace()) + "\n")
        else:
            counts = sweep(chosen.first, chosen.seeds, processes=chosen.processes, progress=_show if out.isatty() else None)
    except Violation as violation:
        out.write(f"{violation}\n")
        return 1
    for name, count in sorted(counts.items()):
        out.write(f"{count:10,}  {name}\n")
    out.write(
        f"{1 if chosen.seed is not None else chosen.seeds:,} seeds in {time.perf_counter() - started:.1f} s, every promise kept\n"
    )
    return 0


def _show(done: int) -> None:
    sys.stderr.write(f"\r{done:,} seeds")


if __name__ == "__main__":
    sys.exit(main())
