"""When upkeep is due: from plain facts, without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.settings import Upkeep
from icefront.state.records import CycleRecord
from icefront.upkeep.need import (
    AT_LEAST,
    FOREVER,
    KEEP,
    NOTICEABLE,
    REST,
    Expiring,
    Health,
    Kind,
    Outcome,
    Policy,
    Quiet,
    State,
    Terms,
    Verdict,
    after_quiet,
    judge,
    kept,
    may_start,
    turn,
)

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
AUTO = Upkeep().terms
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
UNSETTLED = Health(rows=1000, bytes=10**9, data_files=3, equality_files=3, equality_rows=10, oldest_equality=NOW - MINUTE)
ALL = Health(
    rows=1000,
    bytes=10**9,
    data_files=100,
    equality_files=100,
    equality_rows=10**7,
    oldest_equality=NOW - DAY,
    small_files=100,
    dead_rows=900,
    snapshots=3000,
    loose=tuple(NOW - timedelta(days=30) + timedelta(minutes=n) for n in range(2999)),
)


def cycle(kind: Kind, started: datetime, seconds: float | None = 1.0, outcome: Outcome | None = Outcome.DONE) -> CycleRecord:
    ended = None if seconds is None else started + timedelta(seconds=seconds)
    return CycleRecord("p", "t", kind, started, ended, outcome if ended else None)


def of(kind: Kind, health: Health, past: Sequence[CycleRecord] = (), terms: Terms = AUTO, now: datetime = NOW) -> Verdict:
    return next(v for v in judge(health, terms, past, now) if v.kind is kind)


# ── conditions ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("kind", "health", "why"),
    [
        (Kind.SETTLE, replace(UNSETTLED, equality_files=10), "10 unsettled delete files"),
        (Kind.SETTLE, replace(UNSETTLED, equality_rows=1_000_000), "1,000,000 unsettled deletes"),
        (Kind.SETTLE, replace(UNSETTLED, oldest_equality=NOW - 10 * MINUTE), "older than 10m"),
        (Kind.SETTLE, replace(UNSETTLED, bytes=NOTICEABLE, delete_reads=NOTICEABLE), "a scan reads 2.0 times"),
        (Kind.COMPACT, Health(small_files=20), "20 small files"),
        (Kind.COMPACT, Health(rows=10, dead_rows=3), "30% of the rows are dead"),
        (Kind.COMPACT, Health(rows=10**6, dead_rows=9, dead_files=20), "20 files with 30% dead rows"),
        (Kind.COMPACT, Health(bytes=10 * NOTICEABLE, dead_files=1, dead_bytes=NOTICEABLE), "at least 10% of the table's bytes"),
        (Kind.EXPIRE, Health(snapshots=12, loose=(NOW - 6 * DAY, NOW - DAY)), "1 snapshot is older than 5d"),
        (Kind.EXPIRE, Health(snapshots=2001, loose=(NOW,)), "2,001 snapshots"),
        (Kind.ORPHANS, Health(snapshots=2, loose=(NOW - 2 * DAY,)), "never looked for"),
    ],
)
def test_each_condition_is_enough(kind: Kind, health: Health, why: str) -> None:
    verdict = of(kind, health)
    assert verdict.state is State.DUE
    assert why in verdict.why


@pytest.mark.parametrize(
    ("kind", "health", "at"),
    [
        (Kind.SETTLE, Health(rows=10**9, data_files=10**5), None),
        (Kind.SETTLE, UNSETTLED, NOW + 9 * MINUTE),
        (Kind.SETTLE, replace(UNSETTLED, bytes=1, delete_reads=NOTICEABLE - 1), NOW + 9 * MINUTE),
        (Kind.COMPACT, Health(rows=10, small_files=19, dead_rows=2), None),
        (Kind.COMPACT, Health(bytes=11 * NOTICEABLE, dead_files=19, dead_bytes=NOTICEABLE), None),
        (Kind.COMPACT, Health(bytes=NOTICEABLE - 1, dead_files=19, dead_bytes=NOTICEABLE - 1), None),
        (Kind.EXPIRE, Health(snapshots=10, loose=(NOW - 99 * DAY,)), None),
        (Kind.EXPIRE, Health(snapshots=11, loose=(NOW - DAY,)), NOW + 4 * DAY),
        (Kind.EXPIRE, replace(ALL, may_delete=False), None),
        (Kind.ORPHANS, replace(ALL, may_delete=False), None),
        (Kind.ORPHANS, Health(snapshots=2, loose=(NOW - DAY,)), NOW + DAY / 2),
    ],
)
def test_below_its_conditions_nothing_is_due_and_time_alone_is_told(kind: Kind, health: Health, at: datetime | None) -> None:
    verdict = of(kind, health)
    assert (verdict.state, verdict.at) == (State.FINE, at)


def test_a_table_without_anything_needs_nothing() -> None:
    assert {v.state for v in judge(Health(), AUTO, (), NOW)} == {State.FINE}


def test_too_many_snapshots_shorten_how_long_they_stay() -> None:
    terms = Upkeep.of({"expire": {"at_least": 1, "at_most": 2}}).terms.expire
    assert terms is not None
    young = Health(snapshots=5, loose=(NOW - 4 * MINUTE, NOW - 3 * MINUTE, NOW - 2 * MINUTE, NOW - MINUTE))
    assert kept(young, terms, NOW) == (2 * MINUTE, 1)
    assert kept(replace(young, snapshots=2), terms, NOW) == (5 * DAY, 1)


# ── the table's own policy ─────────────────────────────────────────────────────────────────
def own(age: object, least: object) -> Health:
    """A table of twelve snapshots, the oldest of forty days, with a policy of its own."""
    properties = {"history.expire.max-snapshot-age-ms": str(age), "history.expire.min-snapshots-to-keep": str(least)}
    return Health(snapshots=12, loose=(NOW - 40 * DAY, *[NOW - DAY] * 10), policy=Policy.of(properties))


NINETY_DAYS = 90 * 86_400_000


@pytest.mark.parametrize(
    ("age", "least", "written", "stay", "state"),
    [
        (NINETY_DAYS, 3, {}, (90 * DAY, 3), State.FINE),
        (NINETY_DAYS, 3, {"keep": "7d"}, (7 * DAY, 3), State.DUE),
        (NINETY_DAYS, 3, {"at_least": 12}, (90 * DAY, 12), State.FINE),
        (3_600_000, 3000, {}, (timedelta(hours=1), 3000), State.FINE),
        (3_600_000, 1, {"keep": "60d", "at_least": 2}, (60 * DAY, 2), State.FINE),
        (2**63 - 1, -1, {}, (FOREVER, 1), State.FINE),
        ("long", "", {}, (KEEP, AT_LEAST), State.DUE),
    ],
)
def test_the_tables_own_policy_counts_where_nothing_was_written(
    age: object, least: object, written: dict[str, object], stay: tuple[timedelta, int], state: State
) -> None:
    terms = Upkeep.of({"expire": written}).terms
    assert terms.expire is not None
    assert kept(own(age, least), terms.expire, NOW) == stay
    assert of(Kind.EXPIRE, own(age, least), terms=terms).state is state


def test_at_least_as_many_snapshots_stay_as_the_table_says_though_there_are_too_many() -> None:
    many = replace(ALL, policy=Policy(at_least=5000))
    assert of(Kind.EXPIRE, many).state is State.FINE
    assert kept(many, AUTO.expire or Expiring(None, None, 1, None, DAY), NOW) == (KEEP, 5000)


# ── when it is held back ───────────────────────────────────────────────────────────────────
def test_a_kind_rests_after_a_cycle_in_proportion_to_what_it_took() -> None:
    begun = NOW - 6 * MINUTE
    long = cycle(Kind.SETTLE, begun, 120)
    held = of(Kind.SETTLE, ALL, [long])
    assert (held.state, held.at) == (State.HELD, begun + timedelta(seconds=120 * (1 + REST)))
    assert "took 2m" in held.why
    assert of(Kind.SETTLE, ALL, [long], now=held.at or NOW).state is State.DUE


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOTHING])
def test_waiting_doubles_after_cycles_without_fruit(outcome: Outcome) -> None:
    past = [cycle(Kind.SETTLE, NOW - n * MINUTE, 1, outcome) for n in (1, 2, 3)] + [cycle(Kind.SETTLE, NOW - 4 * MINUTE)]
    assert of(Kind.SETTLE, ALL, past).at == NOW - MINUTE + 8 * MINUTE
    assert of(Kind.SETTLE, ALL, [cycle(Kind.SETTLE, NOW - MINUTE), *past]).state is State.DUE


def test_a_cycle_that_lost_to_others_comes_again_as_soon() -> None:
    past = [cycle(Kind.SETTLE, NOW - n * MINUTE, 1, Outcome.LOST) for n in (1, 2, 3)]
    assert of(Kind.SETTLE, ALL, past).state is State.DUE


@pytest.mark.parametrize("every", ["1h", "1d", "3d"])
def test_waiting_doubles_up_to_a_day_and_is_never_shorter_than_asked(every: str) -> None:
    terms = Upkeep.of({"expire": {"every": every}}).terms
    past = [cycle(kind, NOW, 1, Outcome.FAILED) for kind in (Kind.EXPIRE, Kind.ORPHANS) for _ in range(20)]
    assert of(Kind.ORPHANS, ALL, past, terms).at == NOW + DAY
    assert of(Kind.EXPIRE, ALL, past, terms).at == NOW + max(DAY, terms.every(Kind.EXPIRE) or DAY)


def test_a_cycle_that_was_killed_counts_as_failed() -> None:
    killed = cycle(Kind.SETTLE, NOW - MINUTE, None)
    held = of(Kind.SETTLE, ALL, [killed])
    assert (held.state, held.at) == (State.HELD, NOW + MINUTE)


def test_quiet_hours_hold_back_and_say_until_when() -> None:
    terms = replace(AUTO, quiet=(Quiet(11 * 60, 13 * 60), Quiet(13 * 60, 14 * 60)))
    held = of(Kind.SETTLE, ALL, terms=terms)
    assert (held.state, held.at) == (State.HELD, NOW + timedelta(hours=2))
    assert "quiet hours until 14:00 UTC" in held.why
    assert not may_start(terms, (), NOW)
    assert of(Kind.SETTLE, ALL, terms=terms, now=NOW + timedelta(hours=2)).state is State.DUE


def test_quiet_hours_may_go_over_midnight() -> None:
    night = [Quiet(22 * 60, 6 * 60)]
    assert after_quiet(night, NOW) == NOW
    assert after_quiet(night, NOW.replace(hour=23)) == NOW.replace(hour=6) + DAY
    assert after_quiet(night, NOW.replace(hour=3)) == NOW.replace(hour=6)


# ── whatever the facts ─────────────────────────────────────────────────────────────────────
spans = st.integers(0, 40 * 24 * 60).map(lambda minutes: minutes * MINUTE)
moments = spans.map(lambda back: NOW - back)
healths = st.builds(
    Health,
    rows=st.integers(0, 1000),
    bytes=st.integers(0, 10**9),
    data_files=st.integers(0, 1000),
    equality_files=st.integers(0, 50),
    equality_rows=st.integers(0, 10**7),
    oldest_equality=st.none() | moments,
    delete_reads=st.integers(0, 10**10),
    small_files=st.integers(0, 100),
    dead_rows=st.integers(0, 1000),
    dead_files=st.integers(0, 50),
    dead_bytes=st.integers(0, 10**9),
    snapshots=st.integers(0, 3000),
    loose=st.lists(moments, max_size=30).map(lambda found: tuple(sorted(found))),
)
hours = st.integers(0, 23).map(lambda hour: hour * 60)
windows = st.lists(
    st.builds(lambda begin, length: Quiet(begin, (begin + length) % 1440), hours, st.integers(1, 11).map(lambda h: h * 60)),
    max_size=2,
)
termses = st.builds(
    lambda on, quiet: Terms(
        AUTO.settle if on[0] else None, AUTO.compact if on[1] else None, AUTO.expire if on[2] else None, tuple(quiet)
    ),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    windows,
)
pasts = st.lists(
    st.builds(cycle, st.sampled_from(Kind), moments, st.none() | st.integers(0, 3600).map(float), st.sampled_from(Outcome)),
    max_size=12,
).map(lambda found: sorted(found, key=lambda c: c.started, reverse=True))


@given(healths, termses, pasts)
def test_nothing_starts_that_is_off_or_in_quiet_hours_or_too_soon(health: Health, terms: Terms, past: list[CycleRecord]) -> None:
    for verdict in judge(health, terms, past, NOW):
        every = terms.every(verdict.kind)
        assert (every is None) == (verdict.state is State.OFF)
        if verdict.state is not State.DUE:
            continue
        assert every is not None
        assert may_start(terms, past, NOW)
        assert not any(window.ends(NOW) for window in terms.quiet)
        for one in past:
            if one.kind == verdict.kind:
                assert one.started + every <= NOW
                break


@given(healths, termses, pasts)
def test_what_is_held_back_is_due_when_it_was_said_to_be(health: Health, terms: Terms, past: list[CycleRecord]) -> None:
    for verdict in judge(health, terms, past, NOW):
        if verdict.at is not None:
            assert verdict.at > NOW
            then = of(verdict.kind, health, past, terms, verdict.at)
            assert then.state is State.DUE, (verdict, then)


@given(termses, st.lists(st.tuples(st.integers(1, 1800), st.sampled_from(Outcome)), min_size=60, max_size=60))
def test_everything_has_its_turn_although_all_of_it_is_always_due(terms: Terms, takes: list[tuple[int, Outcome]]) -> None:
    now, past = NOW, [cycle(Kind.ORPHANS, NOW - 9 * DAY)]
    began = now
    for seconds, outcome in takes:
        verdicts = judge(ALL, terms, past, now)
        due = [v.kind for v in verdicts if v.state is State.DUE]
        if not due:
            later = [v.at for v in verdicts if v.at is not None]
            if not later:
                break
            now = min(later)
            continue
        kind = min(due, key=lambda kind: turn(kind, past))
        past.insert(0, cycle(kind, now, seconds, outcome))
        now += timedelta(seconds=seconds)
    if now - began > 4 * DAY:
        wanted = {kind for kind in Kind if terms.every(kind)}
        assert {c.kind for c in past if c.started >= began} == wanted
