"""The keeper: does what tables need, one cycle at a time, behind the back of whoever publishes.

    noticed, or time has passed ─▶ measure ─▶ judge ─▶ lease ─▶ cycle ─▶ note
                                                                  └─ failed: noted, tried again later; the run goes on

The lease spares two programs the same work. Safety is Iceberg's: a cycle may be cancelled, killed or done twice at any time.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog

from icefront.core.errors import IcefrontError
from icefront.state.records import CycleRecord
from icefront.upkeep.need import Health, Kind, Outcome, State, Terms, Verdict, judge, may_start, turn

log = structlog.get_logger(__name__)

LEASE_SECONDS = 60.0
LOOK_SECONDS = 2.0
"""A table is measured at most so often."""
MEASURING = 20
"""And not again before so many times as long as it took."""
IDLE_SECONDS = 60.0
CANCEL_SECONDS = 0.2
PATIENCE = 30.0
"""How long a cancelled cycle may take to end."""


class Notes(Protocol):
    """Durable notes about upkeep; losing them does no harm."""

    def take_lease(self, name: str, holder: str, seconds: float) -> bool: ...
    def return_lease(self, name: str, holder: str) -> None: ...
    def cycle_started(self, pipeline: str, target: str, kind: str, why: str) -> int: ...
    def cycle_ended(self, cycle: int, outcome: str, facts: Mapping[str, object]) -> None: ...
    def cycles(self, target: str) -> Sequence[CycleRecord]: ...


@dataclass(frozen=True, slots=True)
class Did:
    """What a cycle did; `idle`: nothing was there to do; `lost`: all was in vain, since others were faster."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    idle: bool = False
    lost: bool = False


class Hands(Protocol):
    """What the keeper works with: Spark, or a fake."""

    def measure(self, table: str) -> Health | None:
        """Measure a table; None while it does not exist."""

    def work(self, kind: Kind, table: str, health: Health) -> Did: ...

    def cancel(self) -> None:
        """End the jobs of the cycle at work; called again until it has ended."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    target: str
    health: Health
    verdict: Verdict
    past: Sequence[CycleRecord]


class Keeper:
    """Keeps the targets of a pipeline: `step` does at most one cycle."""

    def __init__(
        self,
        pipeline: str,
        terms: Terms,
        hands: Hands,
        notes: Notes,
        *,
        tell: Callable[[CycleRecord], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        look_seconds: float = LOOK_SECONDS,
        masked: Callable[[str], str] = str,
    ) -> None:
        """`masked` takes secrets out of what is noted and logged about a failure."""
        self._pipeline = pipeline
        self._terms = terms
        self._hands = hands
        self._notes = notes
        self._tell = tell
        self._clock = clock
        self._look_seconds = look_seconds
        self._masked = masked
        self._holder = uuid.uuid4().hex
        self._looks: dict[str, datetime] = {}
        """When each target may be measured again."""
        self._troubles: dict[str, Exception] = {}
        """Why targets could not be measured the last time."""
        self._cancelled = threading.Event()

    def watch(self, target: str) -> None:
        """Take a target into care."""
        self._looks.setdefault(target, self._clock())

    @property
    def rests(self) -> float:
        """In how many seconds a table may be measured again."""
        now = self._clock()
        return max(0.0, (min(self._looks.values(), default=now) - now).total_seconds())

    @property
    def trouble(self) -> Exception | None:
        """Why a target could not be measured the last time; None when all could."""
        return next(iter(self._troubles.values()), None)

    def said(self, error: Exception) -> str:
        """Word an error in one line, without secrets."""
        fact = error.fact if isinstance(error, IcefrontError) else f"{type(error).__name__}: {error}"
        return self._masked(fact.partition("\n")[0])[:500]

    def step(self, *, at_once: bool = False) -> CycleRecord | None:
        """Do the cycle that has waited longest for its turn; None when nothing is due. `at_once`: however lately a table was measured."""
        due = [candidate for target in list(self._looks) for candidate in self._due(target, at_once=at_once)]
        for candidate in sorted(due, key=lambda c: turn(c.verdict.kind, c.past)):
            with self._leased(candidate) as taken:
                if taken and not self._cancelled.is_set():
                    return self._cycle(candidate)
        return None

    def cancel(self) -> None:
        """End the cycle at work. What it wrote is no part of the table, or all of it is."""
        self._cancelled.set()
        try:
            self._hands.cancel()
        except Exception as error:  # noqa: BLE001 — it ends with the session then
            log.debug("cancelling upkeep failed", error=self.said(error))

    def _due(self, target: str, *, at_once: bool) -> Iterator[_Candidate]:
        now = self._clock()
        if self._looks[target] > now and not at_once:
            return
        past = self._notes.cycles(target)
        if not may_start(self._terms, past, now):
            return
        health = self._measured(target, now)
        if health is None:
            return
        for verdict in judge(health, self._terms, past, now):
            if verdict.state is State.DUE:
                yield _Candidate(target, health, verdict, past)

    def _measured(self, target: str, now: datetime) -> Health | None:
        """Measure a target. One that cannot be measured keeps no other from its turn."""
        pause, begun = self._look_seconds, time.perf_counter()
        self._troubles.pop(target, None)
        try:
            return self._hands.measure(target)
        except Exception as error:  # noqa: BLE001 — a lost manifest, a catalog that is away, a type that nobody knows: the run goes on
            self._troubles[target] = error
            pause = IDLE_SECONDS
            log.warning("a table could not be measured; trying again later", target=target, error=self.said(error))
            return None
        finally:
            pause = max(pause, MEASURING * (time.perf_counter() - begun))
            self._looks[target] = now + timedelta(seconds=pause)

    @contextmanager
    def _leased(self, candidate: _Candidate) -> Iterator[bool]:
        """Hold the target's lease; not when another has it, or had it and did something since we looked."""
        name = f"upkeep:{candidate.target}"
        if not self._notes.take_lease(name, self._holder, LEASE_SECONDS):
            yield False
            return
        done = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(name, done), name="lease", daemon=True)
        renewing.start()
        try:
            yield list(self._notes.cycles(candidate.target)) == list(candidate.past)
        finally:
            done.set()
            renewing.join()
            self._notes.return_lease(name, self._holder)

    def _renew(self, name: str, done: threading.Event) -> None:
        while not done.wait(LEASE_SECONDS / 3):
            try:
                self._notes.take_lease(name, self._holder, LEASE_SECONDS)
            except IcefrontError as error:
                # At worst another program does the same work.
                log.debug("a lease could not be renewed", name=name, error=self.said(error))

    def _cycle(self, candidate: _Candidate) -> CycleRecord:
        target, kind, why = candidate.target, candidate.verdict.kind, candidate.verdict.why
        started = self._clock()
        number = self._notes.cycle_started(self._pipeline, target, kind, why)
        log.info("upkeep begins", target=target, kind=kind.value, why=why)
        outcome, facts = self._work(candidate)
        self._notes.cycle_ended(number, outcome, facts)
        record = CycleRecord(self._pipeline, target, kind, started, self._clock(), outcome, why, facts)
        self._tell(record)
        # What was done changes what is due next.
        self._looks[target] = self._clock()
        return record

    def _work(self, candidate: _Candidate) -> tuple[Outcome, Mapping[str, Any]]:
        target, kind = candidate.target, candidate.verdict.kind
        try:
            did = self._hands.work(kind, target, candidate.health)
        except Exception as error:  # noqa: BLE001 — whatever it is, the run goes on
            facts = {"error": self.said(error)}
            if self._cancelled.is_set():
                return Outcome.CANCELLED, facts
            log.warning("upkeep failed; trying again later", target=target, kind=kind.value, **facts)
            return Outcome.FAILED, facts
        return Outcome.LOST if did.lost else Outcome.NOTHING if did.idle else Outcome.DONE, did.facts


class Background:
    """A keeper in a thread of its own: woken by publishes and by time. It disturbs nobody and raises nothing."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._finishing = self._closed = False
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="upkeep", daemon=True)

    @property
    def trouble(self) -> Exception | None:
        """Why the last look at the tables failed, or at one of them."""
        return self._trouble or self._keeper.trouble

    def notice(self, target: str) -> None:
        """Hear of a target, or that it has a new epoch. Never waits."""
        self._keeper.watch(target)
        self._wake.set()
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Do all that is due, then end; or give up."""
        self._finishing = True
        self._end(give_up)

    def close(self) -> None:
        """End; a cycle at work is cancelled."""
        self._closed = True
        given_up = time.monotonic() + PATIENCE

        def cancel() -> bool:
            self._keeper.cancel()
            return time.monotonic() > given_up

        self._end(cancel)
        if self._thread.is_alive():
            log.warning("upkeep does not end; leaving it behind")

    def _end(self, give_up: Callable[[], bool]) -> None:
        self._hurry.set()
        self._wake.set()
        while self._thread.is_alive() and not give_up():
            self._thread.join(CANCEL_SECONDS)

    def _loop(self) -> None:
        while not self._closed:
            self._wake.clear()
            finishing = self._finishing
            did = self._trouble = None
            try:
                did = self._keeper.step(at_once=finishing)
            except Exception as error:  # noqa: BLE001 — a state file that is away: the run finds that out by itself
                self._trouble = error
                log.warning("upkeep could not look; trying again later", error=self._keeper.said(error))
            if did is None and finishing:
                return
            if did is None:
                # After a publish, until a look is due; without one for a while: age alone makes some things due.
                self._wake.wait(IDLE_SECONDS)
                self._hurry.wait(self._keeper.rests)
