"""The loop that knows the order; nothing else does.

    observe ─▶ mint ─▶ splits ─▶ write (workers) ─▶ stage ─▶ publish ─▶ note ─▶ release
       S0                             S1              S2        S3        S4       S5

A pipeline has one source and one lane per target. Epochs are minted once for all lanes; each lane
has its own mark. Lanes write an epoch while earlier ones are being published, in order.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, assert_never

import structlog
from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch, Minting, epoch_id, mint
from icefront.core.errors import ConnectionFailed, FencedOut, IcefrontError, SchemaRefused
from icefront.core.files import ClosedFile, FileKind, Staged, column_ids
from icefront.core.marks import START, Identity, Mark, Position
from icefront.core.ports import Observation, Report, Sink, Source, Split, Wish
from icefront.core.protocol import (
    FencedOff,
    Outcome,
    Publication,
    Published,
    check_readable,
    check_resume,
    recoverable,
    release_point,
)
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.proof.failpoints import failpoint

log = structlog.get_logger(__name__)
T = TypeVar("T")

SCHEMA_ROUNDS = 8
SOURCE_ATTEMPTS = 6
WRITERS = 4


# ── what the loop tells and what it needs ──────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class EpochPublished:
    """One epoch became visible in one target. Timings are seconds by phase."""

    target: str
    epoch: Epoch
    snapshot: int
    counts: Mapping[str, int]
    files: int
    bytes: int
    timings: Mapping[str, float]
    recovered: bool = False
    attempts: int = 1
    """How often the catalog was asked: more than once when other writers' commits came first, or an answer was lost."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did. `frontier` is the least over all targets."""

    epochs: int
    frontier: Timestamp
    frontiers: Mapping[str, Timestamp]
    published: tuple[EpochPublished, ...]


class Notes(Protocol):
    """Durable notes of staged epochs; losing them loses no data."""

    def stage(self, staged: Staged) -> None: ...
    def staged(self, pipeline: str, target: str) -> Sequence[Staged]: ...
    def published(self, staged: Staged, snapshot: int, timings: Mapping[str, float]) -> None: ...
    def drop(self, pipeline: str, target: str, epoch_ids: Sequence[str]) -> None: ...


class Upkeep(Protocol):
    """What keeps targets fast to read, behind the run's back. It never raises, and never waits while epochs are published."""

    def notice(self, target: str) -> None:
        """Hear of a target, or that it has a new epoch."""

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Do what is due, then end."""

    def close(self) -> None:
        """End now."""


class EpochJob(Protocol):
    """What a lane asks of Spark: read splits, write files."""

    def infer(self, epoch: Epoch, splits: Sequence[Split]) -> Sequence[Wish]: ...
    def write(
        self, epoch: Epoch, schema: Schema, splits: Sequence[Split], *, fresh: bool, ignored: Collection[str]
    ) -> tuple[Sequence[ClosedFile], Sequence[Report]]: ...


@dataclass(frozen=True, slots=True)
class Route:
    """One table of the source on its way to one target."""

    table: str
    sink: Sink
    job: EpochJob


@dataclass(frozen=True, slots=True)
class Unroutable:
    """A target that cannot be had: what is wrong concerns it alone, the others go on."""

    target: str
    error: IcefrontError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How long to run, and what to take over."""

    until_caught_up: bool = False
    seconds: float | None = None
    adopt: bool = False
    poll: float = 1.0


# ── one target ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _InFlight:
    staged: Staged
    future: Future[Outcome]
    timings: dict[str, float]


@dataclass(slots=True)
class Lane:
    """One target's way through its epochs.

    `mark` is what is published, `tip` what will be once everything in flight is. `examined` may be
    ahead of the tip: the stretch between held no changes and is published with the next epoch.
    Before the first change there is no tip; `passed` is then the position up to which there is none.
    """

    pipeline: str
    route: Route
    source: Source
    notes: Notes
    minting: Minting
    tell: Callable[[EpochPublished], None]
    run: str = ""
    adopt: bool = False
    schema: Schema | None = None
    mark: Mark | None = None
    tip: Mark | None = None
    examined: Timestamp = ORIGIN
    passed: Position = START
    fresh: bool = False
    ignored: frozenset[str] = frozenset()
    in_flight: deque[_InFlight] = field(default_factory=deque)
    error: IcefrontError | None = None
    publisher: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "publish"))

    @property
    def position(self) -> Position:
        return self.tip.position if self.tip else self.passed

    @property
    def done(self) -> tuple[Timestamp, Position]:
        """Say what this target will never ask for again."""
        return (self.mark.frontier, self.mark.position) if self.mark else (self.examined, self.passed)

    def open(self, identity: Identity) -> None:
        """Load the target, check that it may be resumed, claim it, and publish what was staged."""
        self.schema = self.route.sink.open()
        if self.schema is None:
            return
        if (mark := self.route.sink.recall()) is not None:
            # Before the claim: a run that cannot go on disturbs nobody.
            self._check_resume(identity, mark)
        self._claim(identity)

    def _check_resume(self, identity: Identity, mark: Mark) -> None:
        check_resume(mark, identity, self.source.observe(mark.position, [self.route.table]).earliest)

    def _claim(self, identity: Identity) -> Mark:
        sink = self.route.sink
        self.mark = self.tip = sink.claim(self.run, identity, adopt=self.adopt)
        self.fresh = self.mark.frontier == ORIGIN and sink.is_empty()
        self._recover()
        self.examined = self.tip.frontier
        return self.tip

    def _recover(self) -> None:
        """Publish the staged epochs that continue the mark; drop the rest."""
        assert self.tip is not None
        sink = self.route.sink
        noted = self.notes.staged(self.pipeline, sink.target)
        kept = []
        for staged in recoverable(self.tip, noted, sink.settings()):
            if staged.fresh and not self.fresh:
                break  # written without deletes for an empty table, which has rows by now
            if not sink.present(staged):
                log.warning(
                    "staged files are gone, or do not fit the table any more; writing the epoch again",
                    target=sink.target,
                    epoch=str(staged.epoch),
                )
                break
            kept.append(staged)
        dropped = [str(s.epoch_id) for s in noted if s not in kept]
        self.notes.drop(self.pipeline, sink.target, dropped)
        for staged in kept:
            self.enqueue(staged, {"recovered": 1.0})
            self.collect(block=True)

    # ── S1: write ──────────────────────────────────────────────────────────────────────────
    def write(self, upper: Timestamp, identity: Identity) -> tuple[Staged, dict[str, float]] | None:
        """Write the files of the stretch from the tip to `upper`; None when nothing is to be published."""
        if upper <= self.examined:
            return None
        begun = time.perf_counter()
        epoch = Epoch(self.tip.frontier if self.tip else ORIGIN, upper)
        splits = self.source.splits(self.route.table, epoch, self.position)
        if self.tip is None:
            if not splits:
                self.examined, self.passed = upper, self.source.reached(epoch, self.passed, ())
                return None
            self.schema = self.route.sink.prepare(self.route.job.infer(epoch, splits))
            if (claimed := self._claim(identity)).frontier != epoch.lower:
                # Somebody else made the table meanwhile, and this pipeline's mark is in it.
                self._check_resume(identity, claimed)
                return self.write(upper, identity)
        failpoint("write.before")
        files, reports = self._write_files(epoch, splits)
        assert self.schema is not None
        failpoint("write.after")
        position = self.source.reached(epoch, self.position, reports)
        self.examined = upper
        if not files and not self._due(epoch):
            return None
        staged = Staged(
            pipeline=self.pipeline,
            target=self.route.sink.target,
            epoch=epoch,
            epoch_id=epoch_id(self.pipeline, self.route.sink.target, epoch),
            position=position,
            files=tuple(files),
            schema_id=self.schema.schema_id,
            settings=self.route.sink.settings(),
            fresh=self.fresh,
            counts=_counts(reports, files),
            columns=column_ids(self.schema),
        )
        return staged, {"write": time.perf_counter() - begun}

    def _write_files(self, epoch: Epoch, splits: Sequence[Split]) -> tuple[Sequence[ClosedFile], Sequence[Report]]:
        """Write, and while reading asks for another schema, evolve and write again.

        The files of an abandoned round were never staged: nobody knows them, upkeep removes them.
        """
        for _ in range(SCHEMA_ROUNDS):
            # As the table is now: others may have changed it since the last epoch.
            self.schema = self.route.sink.prepare(())
            files, reports = self.route.job.write(epoch, self.schema, splits, fresh=self.fresh, ignored=self.ignored)
            wishes = [wish for report in reports for wish in report.wishes]
            if not wishes:
                return files, reports
            self.schema = self.route.sink.prepare(wishes)
            # What the policy neither grants nor refuses is left out.
            self.ignored |= {wish.column for wish in wishes} - set(self.schema.column_names)
        raise SchemaRefused(
            f"after {SCHEMA_ROUNDS} rounds reading still asks for {', '.join(f'{w.column} {w.type}' for w in wishes)}",
            "declare these columns in the pipeline file",
        )

    def _due(self, epoch: Epoch) -> bool:
        """Say whether an epoch without changes is published all the same."""
        return self.minting.every is None or epoch.upper.wall - epoch.lower.wall >= self.minting.heartbeat

    # ── S2 to S4: stage, publish, note ─────────────────────────────────────────────────────
    def stage(self, staged: Staged, timings: dict[str, float]) -> None:
        begun = time.perf_counter()
        failpoint("stage.before")
        self.notes.stage(staged)
        failpoint("stage.after")
        timings["stage"] = time.perf_counter() - begun
        self.enqueue(staged, timings)

    def enqueue(self, staged: Staged, timings: dict[str, float]) -> None:
        assert self.tip is not None
        onto = self.tip
        self.tip = Publication(staged, onto).mark()
        self.fresh = False
        self.in_flight.append(_InFlight(staged, self.publisher.submit(self._publish, staged, onto, timings), timings))

    def _publish(self, staged: Staged, onto: Mark, timings: dict[str, float]) -> Outcome:
        if self.mark is not None and self.error is not None:
            raise self.error
        begun = time.perf_counter()
        try:
            return self.route.sink.publish(staged, onto)
        except IcefrontError as error:
            self.error = error
            raise
        finally:
            timings["publish"] = time.perf_counter() - begun

    def collect(self, *, block: bool) -> None:
        """Take note of epochs that were published; raises what stopped one, which also stops those after it."""
        while self.in_flight and (block or self.in_flight[0].future.done()):
            flight = self.in_flight.popleft()
            try:
                outcome = flight.future.result()
            except IcefrontError:
                self.in_flight.clear()
                raise
            match outcome:
                case Published() as published:
                    failpoint("note.before")
                    # Before it counts: by the log alone, a release up to there comes after this line.
                    log.debug("published", target=flight.staged.target, frontier=str(published.mark.frontier))
                    self.mark = published.mark
                    self.notes.published(flight.staged, published.snapshot, flight.timings)
                    failpoint("note.after")
                    self.tell(_told(flight, published))
                case FencedOff(owner=owner):
                    raise FencedOut.by(owner, self.route.sink.target, self.mark.writer if self.mark else "?")
                case never:
                    assert_never(never)


def _told(flight: _InFlight, published: Published) -> EpochPublished:
    staged = flight.staged
    timings = {k: v for k, v in flight.timings.items() if k != "recovered"}
    size = sum(f.size for f in staged.files)
    recovered = "recovered" in flight.timings
    return EpochPublished(
        staged.target,
        staged.epoch,
        published.snapshot,
        staged.counts,
        len(staged.files),
        size,
        timings,
        recovered,
        published.attempts,
    )


def _counts(reports: Sequence[Report], files: Sequence[ClosedFile]) -> dict[str, int]:
    """Add up what was read, and what came of it: every changed key is deleted, every upsert written."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.counts)
    written = {kind: sum(f.records for f in files if f.kind is kind) for kind in FileKind}
    upserts = written[FileKind.DATA]
    return dict(total) | {"upserts": upserts, "deletes": max(0, written[FileKind.EQUALITY_DELETES] - upserts)}


# ── all targets ────────────────────────────────────────────────────────────────────────────
class Run:
    """One run of a pipeline: claims its targets, then goes on until it is told to stop.

    `discover` names the routes there are now: tables may appear in the source while it runs.
    """

    def __init__(
        self,
        pipeline: str,
        source: Source,
        discover: Callable[[], Sequence[Route | Unroutable]],
        notes: Notes,
        minting: Minting,
        *,
        options: RunOptions,
        tell: Callable[[EpochPublished], None] = lambda _: None,
        stop: threading.Event | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self._source = source
        self._minting = minting
        self._options = options
        self._stop = stop or threading.Event()
        self._upkeep = upkeep
        self._published: list[EpochPublished] = []
        self._released: Position | None = None

        def remember(event: EpochPublished) -> None:
            self._published.append(event)
            if upkeep is not None:
                upkeep.notice(event.target)
            tell(event)

        self._discover = discover

        def lane(route: Route) -> Lane:
            return Lane(pipeline, route, source, notes, minting, remember, run=self.id, adopt=options.adopt)

        self._lane = lane
        self._lanes: list[Lane] = []
        self._unroutable: dict[str, IcefrontError] = {}
        self._lost: IcefrontError | None = None

    def __call__(self) -> Result:
        with ThreadPoolExecutor(WRITERS, "write") as writers:
            try:
                self._loop(writers)
            finally:
                if self._upkeep is not None:
                    self._upkeep.close()
                for lane in self._lanes:
                    lane.publisher.shutdown(cancel_futures=True)
        errors = [lane.error for lane in self._lanes if lane.error] + list(self._unroutable.values())
        errors += [self._lost] if self._lost else []
        if errors:
            # Fenced comes first: a supervisor must see that code, and not restart.
            raise min(errors, key=lambda error: not isinstance(error, FencedOut))
        frontiers = {lane.route.sink.target: lane.mark.frontier if lane.mark else ORIGIN for lane in self._lanes}
        return Result(len(self._published), min(frontiers.values(), default=ORIGIN), frontiers, tuple(self._published))

    def _loop(self, writers: ThreadPoolExecutor) -> None:
        identity = self._source.identity()
        deadline = time.monotonic() + self._options.seconds if self._options.seconds else None
        self._open_new(identity)
        flush = True  # the first epoch after a start catches up with all there is
        while (live := self._live()) or not (self._lanes or self._unroutable):
            epochs: Sequence[Epoch] = ()
            if live:
                epochs = self._mint(live, flush=flush or self._options.until_caught_up)
            flush = flush and not live
            for epoch in epochs:
                self._advance(writers, epoch, identity)
                if self._ends:
                    break
            self._collect(block=not epochs)
            if self._ends or (deadline is not None and time.monotonic() >= deadline):
                break
            if not epochs:
                opened = self._open_new(identity)
                if self._ends or (self._options.until_caught_up and not opened):
                    break
                if not opened:
                    self._stop.wait(self._options.poll)
        self._collect(block=True)
        if self._upkeep is not None and self._options.until_caught_up and not self._ends:
            # Who runs now and then has no background in which it could be done.
            self._upkeep.finish(lambda: self._ends or (deadline is not None and time.monotonic() >= deadline))

    def _open_new(self, identity: Identity) -> bool:
        """Open lanes for routes that were not there before; say whether there were any."""
        known = {lane.route.sink.target for lane in self._lanes}
        found = self._patiently(self._discover) or ()
        new = [self._lane(route) for route in found if isinstance(route, Route) and route.sink.target not in known]
        self._lanes += new
        for lane in new:
            self._unroutable.pop(lane.route.sink.target, None)
        for lost in (route for route in found if isinstance(route, Unroutable) and route.target not in self._unroutable):
            self._unroutable[lost.target] = lost.error
            _warn(lost.target, lost.error)
        for lane in new:
            with self._guarded(lane):
                lane.open(identity)
                if self._upkeep is not None and lane.mark is not None:
                    self._upkeep.notice(lane.route.sink.target)
        return bool(new)

    @property
    def _ends(self) -> bool:
        """Say whether to end: we are told to, the source stays away, or another run took over.

        Two runs that each own some of the targets would both go on for ever; and a supervisor must see that we were fenced.
        """
        fenced = any(isinstance(lane.error, FencedOut) for lane in self._lanes)
        return fenced or self._lost is not None or self._stop.is_set()

    def _live(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane.error is None]

    def _mint(self, live: Sequence[Lane], *, flush: bool) -> Sequence[Epoch]:
        """Observe the source from where the slowest target is, and mint what may be written now."""
        least = min([lane for lane in live if lane.tip] or live, key=lambda lane: lane.examined)
        # A target without a table yet comes up to the others in one step.
        newcomer = next((lane for lane in live if lane.tip is None and lane.examined < least.examined), None)
        slowest = newcomer or least
        epochs: Sequence[Epoch] = ()
        with self._guarded(slowest):
            observation = self._observe(slowest.position, sorted({lane.route.table for lane in live}))
            if observation is None:
                return ()
            # A target at the origin takes the source from wherever it begins.
            earliest = ORIGIN if slowest.examined == ORIGIN else observation.earliest
            check_readable(slowest.examined, earliest)
            if newcomer:
                epochs = [Epoch(newcomer.examined, least.examined)]
            else:
                in_flight = max(len(lane.in_flight) for lane in live)
                epochs = mint(self._minting, least.examined, earliest, observation.cuts, open_epochs=in_flight, flush=flush)
        return epochs

    def _observe(self, position: Position, tables: Sequence[str]) -> Observation | None:
        """Look at the source; None when it stays away."""

        def look() -> Observation:
            failpoint("observe.before")
            return self._source.observe(position, tables)

        observation = self._patiently(look)
        if observation is not None:
            failpoint("observe.after")
        return observation

    def _patiently(self, ask: Callable[[], T]) -> T | None:
        """Ask the source something; one that is away for a moment is asked again, one that stays away (None) ends the run."""
        for attempt in range(SOURCE_ATTEMPTS):
            try:
                answer = ask()
            except ConnectionFailed as error:
                log.warning("the source did not answer; asking again", error=error.fact)
                self._lost = error
                if self._stop.wait(min(0.1 * 2**attempt, 5.0)):
                    break
                continue
            self._lost = None
            return answer
        return None

    def _advance(self, writers: ThreadPoolExecutor, epoch: Epoch, identity: Identity) -> None:
        """Let every lane write up to the epoch's end, then stage and hand over to publishing."""
        writing = [(lane, writers.submit(lane.write, epoch.upper, identity)) for lane in self._live()]
        wait([future for _, future in writing])
        for lane, future in writing:
            with self._guarded(lane):
                if (written := future.result()) is not None:
                    lane.stage(*written)
        self._collect(block=False)
        while any(len(lane.in_flight) >= self._minting.in_flight for lane in self._live()):
            self._collect_one()

    def _collect(self, *, block: bool) -> None:
        for lane in self._lanes:  # those that stopped too: what they published before is noted
            with self._guarded(lane):
                lane.collect(block=block)
        self._release()

    def _collect_one(self) -> None:
        """Wait until something in flight is published."""
        oldest = [lane.in_flight[0].future for lane in self._live() if lane.in_flight]
        if oldest:
            wait(oldest, return_when="FIRST_COMPLETED")
        self._collect(block=False)

    def _release(self) -> None:
        """Tell the source what every target is past; a failed target holds it back."""
        if self._unroutable or not self._lanes:
            return
        frontier, position = release_point(lane.done for lane in self._lanes)
        if frontier != ORIGIN and position != self._released:
            failpoint("release.before")
            self._source.release(position)
            self._released = position
            log.debug("released", frontier=str(frontier))
            failpoint("release.after")

    @contextmanager
    def _guarded(self, lane: Lane) -> Iterator[None]:
        """A target that fails stays where it is; the others go on."""
        try:
            yield
        except IcefrontError as error:
            lane.error = error
            _warn(lane.route.sink.target, error)


def _warn(target: str, error: IcefrontError) -> None:
    """Say at once what is raised, with its trace, at the end of the run."""
    log.warning("target stopped", target=target, error=error.fact)
