"""The keeper with hands that do nothing real: turns, leases, failures, and the thread behind a run."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from icefront.core.errors import ConnectionFailed
from icefront.settings import Upkeep
from icefront.state.records import CycleRecord
from icefront.state.store import StateStore
from icefront.upkeep.keeper import IDLE_SECONDS, Background, Did, Keeper
from icefront.upkeep.need import Health, Kind, Outcome, Quiet, Terms
from tests.upkeep.test_need import ALL

T = "lake.shop.orders"
START = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
AUTO = Upkeep().terms


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()

    def passes(self, **span: float) -> None:
        self.now += timedelta(**span)


@dataclass
class Hands:
    """What the keeper asked for; how tables are, and what work does."""

    tables: dict[str, Health] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    measured: list[str] = field(default_factory=list)
    worked: list[tuple[Kind, str]] = field(default_factory=list)
    act: Callable[[Kind, str], Did] = lambda *_: Did({"files": 1})
    cancelled: threading.Event = field(default_factory=threading.Event)

    def measure(self, table: str) -> Health | None:
        self.measured.append(table)
        if table in self.unreadable:
            raise RuntimeError(f"{table}: a manifest is lost")
        return self.tables.get(table)

    def work(self, kind: Kind, table: str, health: Health) -> Did:
        assert self.tables[table] == health
        self.worked.append((kind, table))
        return self.act(kind, table)

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class World:
    """A keeper, and all that it can see."""

    notes: StateStore
    clock: Clock
    hands: Hands = field(default_factory=Hands)
    told: list[CycleRecord] = field(default_factory=list)

    def keeper(self, terms: Terms = AUTO, *targets: str, **options: Any) -> Keeper:
        keeper = Keeper("orders", terms, self.hands, self.notes, tell=self.told.append, clock=self.clock, **options)
        for target in targets or [T]:
            keeper.watch(target)
        return keeper

    def outcomes(self, target: str = T) -> list[tuple[str, str | None]]:
        return [(c.kind, c.outcome) for c in reversed(self.notes.cycles(target))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = Clock()
    with StateStore(tmp_path / "state.db", clock=clock.seconds) as notes:
        yield World(notes, clock)


# ── one step ───────────────────────────────────────────────────────────────────────────────
def test_a_step_does_one_cycle_and_each_kind_has_its_turn(world: World) -> None:
    world.hands.tables[T] = ALL
    keeper = world.keeper()
    done = [keeper.step() for _ in range(5)]
    assert [c and c.kind for c in done] == ["settle", "compact", "expire", "orphans", None]
    assert {c.outcome for c in world.told} == {Outcome.DONE}
    first = world.told[0]
    assert (first.target, first.facts) == (T, {"files": 1})
    assert "unsettled delete files" in first.why


def test_a_cycle_whose_note_is_damaged_is_told_as_what_it_was(world: World) -> None:
    """What was noted before it is another's."""
    world.hands.tables[T] = ALL
    keeper = world.keeper()
    keeper.step()

    def damage(*_: object) -> Did:
        with closing(sqlite3.connect(world.notes.path)) as connection, connection:
            connection.execute("UPDATE cycles SET started = 'x' WHERE cycle = (SELECT max(cycle) FROM cycles)")
        return Did({"files": 7})

    world.hands.act = damage
    assert keeper.step() is world.told[1]
    assert (world.told[1].kind, world.told[1].outcome, world.told[1].facts) == ("compact", "done", {"files": 7})
    assert world.outcomes() == [("settle", "done")]


def test_a_table_that_needs_nothing_or_does_not_exist_is_left_alone(world: World) -> None:
    world.hands.tables["lake.fine"] = Health(rows=10)
    assert world.keeper(AUTO, "lake.fine", "lake.absent").step() is None
    assert world.hands.worked == []
    assert world.outcomes("lake.fine") == []


def test_of_several_tables_the_one_that_waited_longest_goes_first(world: World) -> None:
    settle = Upkeep.of({"compact": "off", "expire": "off"}).terms
    world.hands.tables = {"a": ALL, "b": ALL}
    keeper = world.keeper(settle, "a", "b")
    for _ in range(4):
        keeper.step()
        world.clock.passes(minutes=2)
    assert [table for _, table in world.hands.worked] == ["a", "b", "a", "b"]


def test_while_everything_rests_or_it_is_quiet_no_table_is_even_measured(world: World) -> None:
    world.hands.tables[T] = ALL
    keeper = world.keeper()
    while keeper.step():
        pass
    looks = len(world.hands.measured)
    world.clock.passes(seconds=30)
    assert keeper.step() is None
    quiet = world.keeper(replace(AUTO, quiet=(Quiet(11 * 60, 13 * 60),)))
    world.clock.passes(minutes=30)
    assert quiet.step() is None
    assert len(world.hands.measured) == looks
    world.clock.passes(minutes=30)
    assert quiet.step() is not None


def test_a_table_is_not_measured_again_and_again(world: World) -> None:
    world.hands.tables[T] = Health(rows=1)
    keeper = world.keeper(look_seconds=5)
    for _ in range(3):
        keeper.step()
        world.clock.passes(seconds=1)
    assert len(world.hands.measured) == 1
    assert keeper.rests == 2
    world.clock.passes(seconds=2)
    keeper.step()
    keeper.step(at_once=True)
    assert len(world.hands.measured) == 3


def test_what_fails_is_noted_and_tried_again_later_and_the_others_have_their_turn(world: World) -> None:
    world.hands.tables[T] = ALL

    def refuse(kind: Kind, _table: str) -> Did:
        if kind is Kind.SETTLE:
            raise ConnectionFailed("the catalog is away")
        return Did(idle=kind is Kind.COMPACT)

    world.hands.act = refuse
    keeper = world.keeper()
    while keeper.step():
        pass
    assert world.outcomes() == [("settle", "failed"), ("compact", "nothing"), ("expire", "done"), ("orphans", "done")]
    assert world.told[0].facts == {"error": "the catalog is away"}
    world.clock.passes(seconds=90)
    assert keeper.step() is None, "one minute would do after a success"
    world.clock.passes(seconds=31)
    again = keeper.step()
    assert again is not None
    assert again.kind == "settle"


def test_a_table_that_cannot_be_measured_keeps_no_other_from_its_turn(world: World) -> None:
    world.hands.tables = {"bad": ALL, T: ALL}
    world.hands.unreadable.add("bad")
    keeper = world.keeper(AUTO, "bad", T)
    done = [keeper.step() for _ in range(3)]
    assert [c and c.kind for c in done] == ["settle", "compact", "expire"]
    assert world.hands.measured.count("bad") == 1, "it is not looked at again and again"
    assert str(keeper.trouble) == "bad: a manifest is lost"
    world.hands.unreadable.clear()
    world.clock.passes(seconds=IDLE_SECONDS)
    while keeper.step():
        pass
    assert keeper.trouble is None
    assert ("settle", "done") in world.outcomes("bad")


def test_who_has_the_lease_works_and_the_other_goes_on_when_it_runs_out(world: World) -> None:
    world.hands.tables[T] = ALL
    assert world.notes.take_lease(f"upkeep:{T}", "another program", 60)
    keeper = world.keeper()
    assert keeper.step() is None
    world.clock.passes(seconds=61)
    assert keeper.step() is not None
    assert world.notes.take_lease(f"upkeep:{T}", "another program", 60), "it was returned"


def test_what_another_has_just_done_is_not_done_again(world: World) -> None:
    world.hands.tables[T] = ALL
    one, other = world.keeper(), world.keeper()
    measure = world.hands.measure

    def meanwhile(table: str) -> Health | None:
        world.hands.measure = measure  # type: ignore[method-assign]
        found = measure(table)
        assert other.step() is not None
        return found

    world.hands.measure = meanwhile  # type: ignore[method-assign]
    assert one.step() is None
    assert world.outcomes() == [("settle", "done")]


# ── behind a run ───────────────────────────────────────────────────────────────────────────
def test_a_publish_wakes_it_and_finishing_does_all_that_is_due(world: World) -> None:
    world.hands.tables[T] = ALL
    begun = threading.Event()

    def act(*_: Any) -> Did:
        begun.set()
        return Did()

    world.hands.act = act
    background = Background(world.keeper())
    background.notice(T)
    assert begun.wait(10)
    background.finish(lambda: False)
    background.close()
    assert [kind for kind, _ in world.outcomes()] == ["settle", "compact", "expire", "orphans"]


def test_closing_cancels_the_cycle_at_work(world: World) -> None:
    world.hands.tables[T] = ALL
    begun = threading.Event()

    def endless(*_: Any) -> Did:
        begun.set()
        assert world.hands.cancelled.wait(10)
        raise RuntimeError("job cancelled")

    world.hands.act = endless
    background = Background(world.keeper())
    background.notice(T)
    assert begun.wait(10)
    background.close()
    assert world.outcomes() == [("settle", "cancelled")]
    assert world.notes.take_lease(f"upkeep:{T}", "another", 1), "the lease was returned"


def test_finishing_gives_up_when_told_to(world: World) -> None:
    world.hands.tables[T] = ALL
    stop = threading.Event()

    def endless(*_: Any) -> Did:
        stop.set()
        assert world.hands.cancelled.wait(10)
        raise RuntimeError("job cancelled")

    world.hands.act = endless
    background = Background(world.keeper())
    background.notice(T)
    background.finish(stop.is_set)
    background.close()
    assert world.outcomes() == [("settle", "cancelled")]


def test_a_catalog_that_is_away_ends_nothing(world: World) -> None:
    world.hands.tables[T] = ALL
    measure = world.hands.measure
    failed = threading.Event()

    def away(table: str) -> Health | None:
        world.hands.measure = measure  # type: ignore[method-assign]
        failed.set()
        raise ConnectionFailed("the catalog did not answer")

    world.hands.measure = away  # type: ignore[method-assign]
    background = Background(world.keeper())
    background.notice(T)
    assert failed.wait(10)
    background.finish(lambda: False)
    background.close()
    assert ("settle", "done") in world.outcomes()


def test_who_does_all_that_is_due_hears_of_a_table_that_could_not_be_measured(world: World) -> None:
    world.hands.tables = {"bad": ALL, T: ALL}
    world.hands.unreadable.add("bad")
    background = Background(world.keeper(AUTO, "bad"))
    background.notice(T)
    background.finish(lambda: False)
    background.close()
    assert len(world.outcomes()) == 4
    assert str(background.trouble) == "bad: a manifest is lost"


def test_what_was_never_told_of_a_target_has_no_thread_to_end(world: World) -> None:
    background = Background(world.keeper())
    background.finish(lambda: False)
    background.close()
    assert world.hands.measured == []


def test_what_is_noted_and_logged_about_a_failure_has_no_secrets(world: World) -> None:
    world.hands.tables[T] = ALL

    def fails(*_: Any) -> Did:
        raise RuntimeError("refused: token hunter2")

    world.hands.act = fails
    with capture_logs() as logged:
        done = world.keeper(masked=lambda text: text.replace("hunter2", "***")).step()
    assert done is not None
    assert done.facts == {"error": "RuntimeError: refused: token ***"}
    assert [line["error"] for line in logged if "error" in line] == ["RuntimeError: refused: token ***"]
