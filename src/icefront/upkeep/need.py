"""What a table needs, and when: plain facts and terms in, one verdict per kind of upkeep out. No clock, no I/O.

    health ─┐
    terms ──┼─▶ judge ─▶ off · fine · held back until … · due, each with its reason
    past ───┘

A cycle takes a share of the time and no more: after it, its kind rests several times as long as it took. Of what is due, that which
has not had its turn for the longest time goes first: nothing that is due for ever can keep the rest from its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

from icefront.state.records import CycleRecord

REST = 4
"""After a cycle its kind rests this many times as long as it took: a fifth of the time at most."""
DOUBLINGS = 6
"""How often waiting doubles after cycles that failed or found nothing to do."""
LONGEST_WAIT = timedelta(days=1)
"""It doubles no further than that."""
ORPHANS_EVERY = timedelta(days=1)
"""Looking for orphans lists the whole table."""
KEEP, AT_LEAST = timedelta(days=5), 10
"""How long snapshots stay and how many at least, where nobody says."""
FOREVER = timedelta(days=36_500)
"""Longer than that nothing stays: no calendar reaches back as far as properties can say."""
NOTICEABLE = 64 * 1024**2
"""Below that many bytes of deletes nobody notices how often they are read, nor of files that their rows are dead."""
DEAD_BYTES = 0.1
"""Files of mostly dead rows are worth a cycle when they are that part of the table."""
_GC_OFF = "the table's gc.enabled is false: nothing of it may be deleted"
_NEVER = datetime.min.replace(tzinfo=UTC)


class Kind(StrEnum):
    SETTLE = "settle"
    COMPACT = "compact"
    EXPIRE = "expire"
    ORPHANS = "orphans"


class Outcome(StrEnum):
    """How a cycle ended; one without an outcome runs, or was killed."""

    DONE = "done"
    NOTHING = "nothing"  # it found nothing to do
    LOST = "lost"  # others changed the same files in every attempt
    FAILED = "failed"
    CANCELLED = "cancelled"  # the run ended


@dataclass(frozen=True, slots=True)
class Policy:
    """What a table's own properties say: how long snapshots stay, and how many at least; None: nothing."""

    keep: timedelta | None = None
    at_least: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Policy:
        age = _number(properties, "history.expire.max-snapshot-age-ms")
        least = _number(properties, "history.expire.min-snapshots-to-keep")
        longest = FOREVER // timedelta(milliseconds=1)
        return cls(
            None if age is None else timedelta(milliseconds=min(max(0, age), longest)), None if least is None else max(1, least)
        )

    def decide(self, keep: timedelta | None, at_least: int | None, usual: int) -> tuple[timedelta, int]:
        """Say how long snapshots stay and how many at least: as asked for, else as the table says, else as usual."""
        keep = self.keep if keep is None else keep
        at_least = self.at_least if at_least is None else at_least
        return KEEP if keep is None else keep, usual if at_least is None else at_least


def _number(properties: Mapping[str, str], name: str) -> int | None:
    """Read a property. One that is no number is left to Iceberg, which expires nothing then."""
    try:
        return int(properties[name])
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Health:
    """What a table's metadata says about how well it reads."""

    snapshot: int | None = None
    rows: int = 0
    bytes: int = 0
    data_files: int = 0
    equality_files: int = 0
    equality_rows: int = 0
    oldest_equality: datetime | None = None
    """When the oldest unsettled delete was published."""
    delete_reads: int = 0
    """Bytes of equality deletes that a full scan loads, where each data file loads those that may name rows of it."""
    small_files: int = 0
    """In the partition that has most of them."""
    dead_rows: int = 0
    """Named by deletion vectors and position deletes."""
    dead_files: int = 0
    """Data files with so many dead rows that they are worth rewriting."""
    dead_bytes: int = 0
    """What these files hold."""
    snapshots: int = 0
    loose: tuple[datetime, ...] = ()
    """When the snapshots were made that no branch or tag names, oldest first."""
    may_delete: bool = True
    """False where `gc.enabled` is false: files may be those of another table too."""
    policy: Policy = Policy()

    @property
    def dead(self) -> float:
        return self.dead_rows / self.rows if self.rows else 0.0

    @property
    def amplification(self) -> float:
        """How many times the table's own bytes a full scan reads."""
        return 1 + self.delete_reads / self.bytes if self.bytes else 1.0


@dataclass(frozen=True, slots=True)
class Settling:
    files: int
    rows: int
    reads: float
    age: timedelta
    every: timedelta


@dataclass(frozen=True, slots=True)
class Compacting:
    files: int
    dead: float
    max_bytes: int
    sort: Literal["auto", "off"]
    every: timedelta


@dataclass(frozen=True, slots=True)
class Expiring:
    """`keep` and `at_least` are the table's own unless they are given."""

    keep: timedelta | None
    at_least: int | None
    at_most: int
    orphans: timedelta | None
    every: timedelta


@dataclass(frozen=True, slots=True)
class Quiet:
    """Minutes of the day, UTC, in which no cycle starts: from `begin` until before `end`, over midnight where that is less."""

    begin: int
    end: int

    def ends(self, at: datetime) -> datetime | None:
        """Say when the quiet around a moment ends; None outside it."""
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
        minute = (at - midnight) / timedelta(minutes=1)
        if self.begin <= minute and (minute < self.end or self.end < self.begin):
            return midnight + timedelta(minutes=self.end, days=int(self.end < self.begin))
        if minute < self.end < self.begin:
            return midnight + timedelta(minutes=self.end)
        return None


@dataclass(frozen=True, slots=True)
class Terms:
    """When upkeep is done; None: never."""

    settle: Settling | None = None
    compact: Compacting | None = None
    expire: Expiring | None = None
    quiet: tuple[Quiet, ...] = ()

    def every(self, kind: Kind) -> timedelta | None:
        """Return the least time between the beginnings of two cycles; None when the kind is off."""
        match kind:
            case Kind.SETTLE:
                return self.settle.every if self.settle else None
            case Kind.COMPACT:
                return self.compact.every if self.compact else None
            case Kind.EXPIRE:
                return self.expire.every if self.expire else None
            case Kind.ORPHANS:
                return ORPHANS_EVERY if self.expire and self.expire.orphans else None

    @property
    def on(self) -> bool:
        return any(self.every(kind) for kind in Kind)


class State(StrEnum):
    OFF = "off"
    FINE = "fine"
    HELD = "held back"
    DUE = "due"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kind of upkeep is due, and why (not). `at`: when it is due by time alone, if that can be told."""

    kind: Kind
    state: State
    why: str
    at: datetime | None = None


# ── the verdict ────────────────────────────────────────────────────────────────────────────
def judge(health: Health, terms: Terms, past: Sequence[CycleRecord], now: datetime) -> tuple[Verdict, ...]:
    """Say of each kind whether it is due. `past` are the table's cycles, newest first."""
    return tuple(_judged(kind, health, terms, past, now) for kind in Kind)


def _judged(kind: Kind, health: Health, terms: Terms, past: Sequence[CycleRecord], now: datetime) -> Verdict:
    every = terms.every(kind)
    if every is None:
        return Verdict(kind, State.OFF, "off")
    why, at = _wanted(kind, health, terms, past, now)
    if at is None:
        return Verdict(kind, State.FINE, why)
    rested, because = _rested(kind, every, past)
    free = after_quiet(terms.quiet, max(now, at, rested))
    if at > now:
        return Verdict(kind, State.FINE, why, free)
    if rested > now:
        return Verdict(kind, State.HELD, f"{why}; {because}", free)
    if free > now:
        return Verdict(kind, State.HELD, f"{why}; quiet hours until {free:%H:%M} UTC", free)
    return Verdict(kind, State.DUE, why)


def may_start(terms: Terms, past: Sequence[CycleRecord], now: datetime) -> bool:
    """Say whether anything could be due, before the table is looked at."""
    if after_quiet(terms.quiet, now) > now:
        return False
    return any(every and _rested(kind, every, past)[0] <= now for kind in Kind for every in [terms.every(kind)])


def turn(kind: Kind, past: Sequence[CycleRecord]) -> tuple[datetime, int]:
    """Order what is due: what has not had its turn for the longest time comes first."""
    return max((cycle.started for cycle in past if cycle.kind == kind), default=_NEVER), list(Kind).index(kind)


def kept(health: Health, terms: Expiring, now: datetime) -> tuple[timedelta, int]:
    """Return the age up to which snapshots stay, less where there are too many, and how many stay at least."""
    keep, at_least, at_most = _bounds(health, terms)
    excess = min(health.snapshots - at_most, len(health.loose))
    if excess > 0:
        keep = max(timedelta(0), min(keep, now - health.loose[excess - 1]))
    return keep, at_least


def _bounds(health: Health, terms: Expiring) -> tuple[timedelta, int, int]:
    """Say how long snapshots stay, how many at least, and how many at most: never fewer than at least."""
    keep, at_least = health.policy.decide(terms.keep, terms.at_least, AT_LEAST)
    return keep, at_least, max(terms.at_most, at_least)


def after_quiet(quiet: Iterable[Quiet], at: datetime) -> datetime:
    """Return the first moment from `at` on that is in no quiet hours."""
    windows = tuple(quiet)
    # Each window can push on at most once a day; together they leave some of the day free.
    for _ in range(2 * len(windows) + 1):
        at = max((end for window in windows if (end := window.ends(at))), default=at)
    return at


# ── what is wanted ─────────────────────────────────────────────────────────────────────────
def _wanted(kind: Kind, health: Health, terms: Terms, past: Sequence[CycleRecord], now: datetime) -> tuple[str, datetime | None]:
    """Say why it is wanted, and from when on: now, by time alone later, or None when that cannot be told."""
    match kind:
        case Kind.SETTLE:
            assert terms.settle is not None
            return _settle_wanted(health, terms.settle, now)
        case Kind.COMPACT:
            assert terms.compact is not None
            return _compact_wanted(health, terms.compact, now)
        case Kind.EXPIRE:
            assert terms.expire is not None
            return _expire_wanted(health, terms.expire, now)
        case Kind.ORPHANS:
            assert terms.expire is not None
            return _orphans_wanted(health, terms.expire, past, now)


def _settle_wanted(health: Health, terms: Settling, now: datetime) -> tuple[str, datetime | None]:
    if not health.equality_files:
        return "no equality deletes", None
    if health.equality_files >= terms.files:
        return f"{health.equality_files:,} unsettled delete files, {terms.files:,} are enough", now
    if health.equality_rows >= terms.rows:
        return f"{health.equality_rows:,} unsettled deletes, {terms.rows:,} are enough", now
    if health.delete_reads >= NOTICEABLE and health.amplification >= terms.reads:
        return f"a scan reads {health.amplification:.1f} times the table's bytes, {terms.reads:g} are enough", now
    # Of unknown age it may be as old.
    due = health.oldest_equality + terms.age if health.oldest_equality else now
    if due <= now:
        return f"an unsettled delete is older than {_span(terms.age)}", now
    return f"{health.equality_files:,} of {terms.files:,} unsettled delete files", due


def _compact_wanted(health: Health, terms: Compacting, now: datetime) -> tuple[str, datetime | None]:
    if health.small_files >= terms.files:
        return f"{health.small_files:,} small files in one partition, {terms.files:,} are enough", now
    if health.dead_rows and health.dead >= terms.dead:
        return f"{health.dead:.0%} of the rows are dead, {terms.dead:.0%} is enough", now
    if health.dead_files >= terms.files:
        return f"{health.dead_files:,} files with {terms.dead:.0%} dead rows, {terms.files:,} are enough", now
    if health.dead_bytes >= max(NOTICEABLE, DEAD_BYTES * health.bytes):
        return f"files with {terms.dead:.0%} dead rows are at least {DEAD_BYTES:.0%} of the table's bytes", now
    return f"{health.small_files:,} of {terms.files:,} small files in one partition, {health.dead:.0%} dead rows", None


def _expire_wanted(health: Health, terms: Expiring, now: datetime) -> tuple[str, datetime | None]:
    if not health.may_delete:
        return _GC_OFF, None
    keep, at_least, at_most = _bounds(health, terms)
    if health.snapshots > at_most and health.loose:
        return f"{health.snapshots:,} snapshots, at most {at_most:,} stay", now
    may_go = health.loose[: max(0, health.snapshots - at_least)]
    if not may_go:
        return f"{health.snapshots:,} snapshots, at least {at_least:,} stay", None
    old = sum(made + keep <= now for made in may_go)
    if old:
        return f"{old:,} snapshot{'s are' if old > 1 else ' is'} older than {_span(keep)}", now
    return f"{health.snapshots:,} snapshots, none older than {_span(keep)}", may_go[0] + keep


def _orphans_wanted(health: Health, terms: Expiring, past: Sequence[CycleRecord], now: datetime) -> tuple[str, datetime | None]:
    assert terms.orphans is not None
    if not health.may_delete:
        return _GC_OFF, None
    if any(cycle.kind == Kind.ORPHANS for cycle in past):
        return f"looked for orphan files every {_span(ORPHANS_EVERY)}", now
    if not health.loose:
        return "no orphan file can be old enough", None
    # What a young table has left behind is younger still.
    return "orphan files were never looked for", health.loose[0] + min(terms.orphans, _bounds(health, terms)[0]) / 2


# ── rest ───────────────────────────────────────────────────────────────────────────────────
def _rested(kind: Kind, every: timedelta, past: Sequence[CycleRecord]) -> tuple[datetime, str]:
    """Say from when on a kind may have its turn again, and what it waits for until then."""
    cycles = [cycle for cycle in past if cycle.kind == kind]
    if not cycles:
        return _NEVER, ""
    last = cycles[0]
    fruitless = 0
    for cycle in cycles:
        if cycle.outcome in {Outcome.DONE, Outcome.CANCELLED, Outcome.LOST}:
            break
        fruitless += 1
    again = last.started + min(every * 2 ** min(fruitless, DOUBLINGS), max(every, LONGEST_WAIT))
    rested = last.ended + (last.ended - last.started) * REST if last.ended else again
    if fruitless and again >= rested:
        return again, f"the last cycle {'failed' if last.outcome != Outcome.NOTHING else 'found nothing to do'}, again later"
    if rested > again:
        return rested, f"the last cycle took {_span(last.ended - last.started)}" if last.ended else ""
    return again, f"at most every {_span(every)}"


def _span(length: timedelta) -> str:
    """Print a stretch of time shortly."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"
