"""Commits that are applied after their client gave up, against the client itself and against a successor, in both orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from icefront.core.errors import ConnectionFailed, FencedOut, RolledBack, SchemaRefused, Stopped
from icefront.core.marks import Mark
from icefront.core.ports import Wish
from icefront.core.protocol import Claim, FencedOff, Head, Published, renewal
from icefront.iceberg.java import Gateway
from icefront.iceberg.partitions import PartitionField
from icefront.proof.proxy import FaultProxy, Strike
from tests.rest.channel import Channel, applied, release_before_looking
from tests.sinks.test_iceberg_sink import state

pytestmark = [pytest.mark.spark, pytest.mark.process]
Channels = Callable[..., Channel]


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


def test_a_publish_applied_between_its_writers_look_and_its_second_sending_refuses_that(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = channel()
    table.claim()
    passed: list[str] = []
    released: list[Strike] = []

    def late(failpoint: str) -> None:
        passed.append(failpoint)
        if passed.count("publish.before-commit") == 2 and not released:
            released.extend(proxy.release())

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", late)
    proxy.arm("late-504")
    # Harmless, but it notes what the catalog says to the second request.
    proxy.arm("slow", nth=2)
    outcome = table.publish({1: "a"})
    assert outcome.attempts == 2, "its look had not found it yet"
    assert [(strike.fault, strike.answers) for strike in proxy.strikes] == [("late-504", [200]), ("slow", [409])]
    assert applied(released) == [True]
    table.publish({2: "b"})
    table.check()


def test_publishes_applied_after_their_writer_sent_them_again_are_refused(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    proxy.arm("late-504")
    proxy.arm("late-closed", nth=2)
    outcome = table.publish({1: "a"})
    assert outcome.attempts == 3
    assert applied(proxy.release()) == [False, False], "the third one had won"
    table.publish({2: "b"})
    table.check()


MOMENTS = ["before it is sent", "before it is looked for", "before it is sent again"]


def land_amid(
    change: Callable[[], None], moment: str, proxy: FaultProxy, table: Channel, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let the next publish be applied right after a change that its fence does not see: at once, or late. Return what was done."""
    passed: list[str] = []
    done: list[str] = []
    look = table.sink._look

    def land() -> None:
        if not done:
            change()
            done.extend(f"applied {strike}" for strike in applied(proxy.release()))
            done.append("changed")

    def pass_by(failpoint: str) -> None:
        passed.append(failpoint)
        if moment != "before it is looked for" and passed.count("publish.before-commit") == 1 + (moment != "before it is sent"):
            land()

    def looked() -> Head:
        if moment == "before it is looked for":
            land()
        return look()

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", pass_by)
    monkeypatch.setattr(table.sink, "_look", looked)
    if moment != "before it is sent":
        proxy.arm("late-504")
    return done


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_column_that_is_replaced_between_a_fence_and_its_commit_is_named_and_the_next_run_goes_on(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The catalog compares the branch, which a change of the schema does not move: the publish lands."""
    table, successor = channel(), channel()
    near = f"near.{table.name}"
    table.claim()
    table.publish({1: "a"})
    staged = table.stage({2: "b"})

    def replace_column() -> None:
        table.spark.sql(f"ALTER TABLE {near} DROP COLUMN v")
        table.spark.sql(f"ALTER TABLE {near} ADD COLUMN v string")

    done = land_amid(replace_column, moment, proxy, table, monkeypatch)
    fact = rf"^epoch \[10.0000000000, 20.0000000000\) is published in {table.sink.target}, but by now column v was replaced by another one"
    with pytest.raises(Stopped, match=fact) as stopped:
        table.publish_staged(staged, {2: "b"})
    assert done == ["changed"] if moment == "before it is sent" else ["applied True", "changed"]
    assert stopped.value.exit_code == 5
    assert state(table.spark, near) == {1: None, 2: None}
    table.hold(staged, {2: "b"})
    successor.held = table.held
    assert successor.claim().frontier == staged.epoch.upper
    successor.publish({1: "c", 2: "d"})
    successor.check()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_key_column_that_is_dropped_between_a_fence_and_its_commit_is_named_and_the_next_run_stops_too(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table = channel()
    table.claim()
    table.publish({1: "a"})
    staged = table.stage({1: "b"})

    def drop_key() -> None:
        live = Gateway.of(table.spark).load(f"near.{table.name}")
        assert live is not None
        live.table.updateSchema().setIdentifierFields([]).deleteColumn("id").commit()

    done = land_amid(drop_key, moment, proxy, table, monkeypatch)
    with pytest.raises(SchemaRefused, match=r"is published in .* key column with field id 1 was dropped"):
        table.publish_staged(staged, {1: "b"})
    assert "changed" in done
    with pytest.raises(SchemaRefused, match="has no column id, which the keys name"):
        channel().claim()


def test_a_rollback_to_what_a_commit_was_built_on_refuses_its_second_sending(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a commit asserts where the branch is, and there it is; but its sequence number was given to the first sending."""
    table = channel()
    near = f"near.{table.name}"
    table.claim()
    table.publish({1: "a"})
    staged = table.stage({2: "b"})
    base = table.table().current_snapshot()
    assert base is not None
    passed: list[str] = []
    landed: list[bool] = []

    def roll_back(failpoint: str) -> None:
        passed.append(failpoint)
        if failpoint == "publish.before-commit" and passed.count(failpoint) == 2:
            landed.extend(applied(proxy.release()))
            table.spark.sql(f"CALL near.system.rollback_to_snapshot('{table.name}', {base.snapshot_id})")

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", roll_back)
    proxy.arm("late-504")
    with pytest.raises(RolledBack, match=r"ends at 10\.0000000000, its mark says 20\.0000000000"):
        table.publish_staged(staged, {2: "b"})
    assert landed == [True]
    assert state(table.spark, near) == {1: "a"}


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


def test_a_late_schema_change_does_not_come_twice(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    table.publish({1: "a"})
    wishes = [Wish("extra", "long", "f:1")]
    proxy.arm("late-504")
    assert table.sink.prepare(wishes).column_names == ["id", "v", "extra"]
    assert applied(proxy.release()) == [False]
    schema = table.table().schema()
    assert schema.column_names == ["id", "v", "extra"]
    assert table.sink._live().metadata().lastColumnId() == schema.highest_field_id
    assert table.changes() == ["schema"]
    table.publish({})
    table.check()


def test_a_late_schema_change_that_lands_before_the_look_is_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = channel()
    table.claim()
    table.publish({1: "a"})
    proxy.arm("late-504")
    released = release_before_looking(proxy, table.sink, monkeypatch)
    assert table.sink.prepare([Wish("extra", "long", "f:1")]).column_names == ["id", "v", "extra"]
    assert applied(released) == [True]
    assert table.changes() == ["schema"]
    table.check()


def a_schema_change(table: Channel) -> None:
    table.sink.prepare([Wish("late", "long", "f:1")])


def a_partitioning_change(table: Channel) -> None:
    table.sink._align_partitioning()


# By themselves the catalog would take both: the successor changes neither schema nor partitioning.
CHANGES = [a_schema_change, a_partitioning_change]


def send_late_change(proxy: FaultProxy, gone: Channel, change: Callable[[Channel], None]) -> None:
    """Let a writer send a change that reaches the catalog later than it waits."""
    gone.claim()
    gone.publish({1: "a"})
    gone.sink._wanted = replace(gone.sink._wanted, partition_by=(PartitionField("bucket", "id", 2),))
    proxy.arm("late-504", times=2)
    with pytest.raises(ConnectionFailed, match="could not be changed in 2 attempts"):
        change(gone)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["after its claim", "after its publish"])
def test_a_change_applied_after_a_successors_claim_is_refused(
    proxy: FaultProxy, channel: Channels, change: Callable[[Channel], None], moment: str
) -> None:
    gone, successor = channel(retries=0), channel()
    send_late_change(proxy, gone, change)
    successor.held = gone.held
    mark = successor.claim()
    if moment == "after its publish":
        successor.publish({1: "b"})
    before = successor.table().metadata_location
    assert applied(proxy.release()) == [False, False]
    with pytest.raises(FencedOut, match=f"is owned by writer {mark.writer}"):
        change(gone)
    assert successor.table().metadata_location == before, "a refused writer changed the table"
    successor.publish({2: "c"})
    successor.check()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_applied_before_a_successors_claim_counts_and_comes_once(
    proxy: FaultProxy, channel: Channels, change: Callable[[Channel], None]
) -> None:
    gone, successor = channel(retries=0), channel()
    send_late_change(proxy, gone, change)
    assert applied(proxy.release()) == [True, False], "of two attempts the first one wins"
    assert len(successor.changes()) == 1
    successor.held = gone.held
    successor.claim()
    successor.publish({})
    assert len(successor.changes()) == 1, "a sink without `partition_by` takes the table as it is"
    successor.check()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before it is built", "before it is sent"])
def test_a_writer_that_is_overtaken_between_its_look_and_its_change_is_refused(
    channel: Channels, monkeypatch: pytest.MonkeyPatch, change: Callable[[Channel], None], moment: str
) -> None:
    """Built on the successor's claim it is for the fence to refuse: the catalog sees nothing wrong. Built before, it is the catalog's."""
    gone, successor = channel(), channel()
    gone.claim()
    gone.publish({1: "a"})
    successor.held = gone.held
    gone.sink._wanted = replace(gone.sink._wanted, partition_by=(PartitionField("bucket", "id", 2),))
    location: list[str] = []

    def overtake() -> None:
        if not location:
            location.append("about to be")
            successor.claim()
            location[0] = successor.table().metadata_location

    def renewed(*looked: Any) -> Claim:
        claim = renewal(*looked)
        overtake()
        return claim

    if moment == "before it is built":
        monkeypatch.setattr("icefront.sinks.iceberg.renewal", renewed)
    else:
        monkeypatch.setattr("icefront.sinks.iceberg.failpoint", lambda _: overtake())
    with pytest.raises(FencedOut, match="is owned by writer"):
        change(gone)
    assert [successor.table().metadata_location] == location, "a refused writer changed the table"
    successor.publish({2: "b"})
    successor.check()


def test_a_change_that_a_successor_has_made_meanwhile_is_not_taken_for_its_own(
    channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, successor = channel(), channel()
    gone.claim()
    gone.publish({1: "a"})
    successor.held = gone.held
    late = gone.stage({1: "late"})
    marks: list[Mark] = []

    def overtake(failpoint: str) -> None:
        if failpoint == "schema.before" and not marks:
            marks.append(successor.claim())
            a_schema_change(successor)

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", overtake)
    # In the place of the module's own logger: one that was used before cannot be captured.
    logger = CapturingLogger()
    monkeypatch.setattr("icefront.sinks.iceberg.log", logger)
    a_schema_change(gone)
    assert [call.args[0] for call in logger.calls if call.kwargs.get("what") == "schema"] == [
        "changed the table",
        "found the table changed, under another writer",
    ]
    assert successor.changes() == ["schema"]
    assert gone.publish_staged(late, {1: "late"}) == FencedOff(marks[0].writer)
    successor.publish({})
    successor.check()


def test_a_table_made_late_is_taken_as_it_is(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(retries=0), channel()
    proxy.arm("late-504")
    with pytest.raises(ConnectionFailed, match="the catalog did not answer: CommitStateUnknownException"):
        _ = gone.sink
    assert applied(proxy.release()) == [True]
    successor.claim()
    successor.publish({1: "a"})
    successor.check()


def test_a_table_made_late_does_not_replace_one_that_was_made_meanwhile(proxy: FaultProxy, channel: Channels) -> None:
    gone, successor = channel(retries=0), channel()
    proxy.arm("late-closed")
    with pytest.raises(ConnectionFailed):
        _ = gone.sink
    successor.claim()
    successor.publish({1: "a"})
    assert applied(proxy.release()) == [False]
    successor.check()
