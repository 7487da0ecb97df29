"""Commits that are applied after their client gave up, against the client itself and against a successor, in both orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from icefront.core.errors import ConnectionFailed
from icefront.core.ports import Wish
from icefront.core.protocol import FencedOff, Head, Published
from icefront.core.timestamps import Timestamp
from icefront.proof.proxy import FaultProxy, Strike
from icefront.sinks.iceberg import IcebergSink
from tests.rest.channel import Channel

pytestmark = [pytest.mark.spark, pytest.mark.process]
Channels = Callable[..., Channel]


def release_before_looking(proxy: FaultProxy, sink: IcebergSink, monkeypatch: pytest.MonkeyPatch) -> list[Strike]:
    """Let what is held back reach the catalog just before the sink looks for the first time."""
    released: list[Strike] = []
    look = sink._look

    def late(*args: Any) -> Head:
        released.extend(proxy.release())
        return look(*args)

    monkeypatch.setattr(sink, "_look", late)
    return released


def applied(strikes: Sequence[Strike]) -> list[bool]:
    return [strike.applied for strike in strikes]


@pytest.mark.parametrize("fault", ["late-504", "late-closed"])
def test_a_publish_applied_before_its_writer_looks_is_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    table = channel()
    table.claim()
    released = release_before_looking(proxy, table.sink, monkeypatch)
    proxy.arm(fault)
    outcome = table.publish({1: "a"})
    assert isinstance(outcome, Published)
    assert outcome.attempts == 1
    assert applied(released) == [True]
    table.check()


def test_a_publish_applied_while_its_writer_sends_it_again_is_refused_or_refuses(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    staged = table.stage({1: "a"})
    proxy.arm("late-504")
    # The second request of the same epoch waits too; the first one arrives, then the second one.
    proxy.arm("late-closed", nth=2)
    assert isinstance(table.publish_staged(staged, {1: "a"}), Published)
    assert applied(proxy.release()) == [False, False], "the third one had won"
    table.check()


@pytest.mark.parametrize("moment", ["after its claim", "after its publish"])
def test_a_publish_applied_after_a_successors_claim_is_refused(proxy: FaultProxy, channel: Channels, moment: str) -> None:
    gone, successor = channel(retries=0), channel()
    gone.claim()
    gone.publish({1: "a", 2: "b"})
    late = gone.stage({1: "late"})
    proxy.arm("late-504")
    with pytest.raises(ConnectionFailed, match="was not accepted in 1 attempts"):
        gone.publish_staged(late, {1: "late"})
    successor.held = gone.held
    mark = successor.claim()
    assert mark.frontier == late.epoch.lower
    if moment == "after its claim":
        assert applied(proxy.release()) == [False]
    successor.publish({1: "c"})
    if moment == "after its publish":
        assert applied(proxy.release()) == [False]
    assert gone.publish_staged(late, {1: "late"}) == FencedOff(mark.writer)
    assert gone.sink.present(late), "a refused writer deletes nothing"
    successor.check()


@pytest.mark.parametrize("moment", ["before it reads the mark", "between its look and its claim"])
def test_a_publish_applied_before_a_successors_claim_counts_and_the_successor_goes_on_from_it(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    gone, successor = channel(retries=0), channel()
    gone.claim()
    late = gone.stage({1: "late"})
    proxy.arm("late-closed")
    with pytest.raises(ConnectionFailed):
        gone.publish_staged(late, {1: "late"})
    gone.hold(late, {1: "late"})
    successor.held = gone.held
    assert successor.sink.recall() == gone.mark, "not there yet"
    released: list[Strike] = []
    if moment == "before it reads the mark":
        released.extend(proxy.release())
    else:
        monkeypatch.setattr("icefront.sinks.iceberg.failpoint", lambda _: released.extend(proxy.release()))
    mark = successor.claim()
    assert applied(released) == [True]
    assert (mark.frontier, mark.epoch_id) == (late.epoch.upper, late.epoch_id)
    successor.publish({2: "next"})
    successor.check()


def test_a_claim_applied_late_takes_nothing_from_the_successor(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(retries=0), channel()
    assert gone.sink.target
    proxy.arm("late-504")
    with pytest.raises(ConnectionFailed, match=r"could not claim .* in 1 attempts"):
        gone.claim()
    mark = successor.claim()
    assert mark.writer.generation == 1
    assert applied(proxy.release()) == [False]
    successor.publish({1: "a"})
    successor.check()


def test_a_claim_applied_before_the_successors_own_is_overtaken_by_it(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(retries=0), channel()
    assert gone.sink.target
    proxy.arm("late-504")
    with pytest.raises(ConnectionFailed):
        gone.claim()
    assert applied(proxy.release()) == [True]
    assert successor.claim().writer.generation == 2
    successor.publish({1: "a"})
    successor.check()


def test_a_late_schema_change_does_not_come_twice(proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    table = channel()
    table.claim()
    wishes = [Wish("extra", "long", "f:1")]
    proxy.arm("late-504")
    assert table.sink.prepare(wishes).column_names == ["id", "v", "extra"]
    assert applied(proxy.release()) == [False]
    schema = table.table().schema()
    assert schema.column_names == ["id", "v", "extra"]
    assert table.sink._live().metadata().lastColumnId() == schema.highest_field_id
    assert table.mark is not None
    assert table.mark.frontier == Timestamp(0)


def test_a_table_made_late_is_taken_as_it_is(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(), channel()
    proxy.arm("late-504")
    with pytest.raises(ConnectionFailed, match="the catalog did not answer: CommitStateUnknownException"):
        _ = gone.sink
    assert applied(proxy.release()) == [True]
    successor.claim()
    successor.publish({1: "a"})
    successor.check()


def test_a_table_made_late_does_not_replace_one_that_was_made_meanwhile(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(), channel()
    proxy.arm("late-closed")
    with pytest.raises(ConnectionFailed):
        _ = gone.sink
    successor.claim()
    successor.publish({1: "a"})
    assert applied(proxy.release()) == [False]
    successor.check()
