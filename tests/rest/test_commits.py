"""Every fault on every kind of commit: each epoch is published once, and the table stays readable and right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from icefront.core.errors import CommitUncertain, ConnectionFailed, Stopped
from icefront.core.ports import Wish
from icefront.core.protocol import FencedOff, Landed, NotLanded, Published, Send
from icefront.iceberg.java import Change, JavaTable, Unanswered
from icefront.iceberg.partitions import PartitionField
from icefront.proof.proxy import FAULTS, FaultProxy, Where, commits, loads
from tests.rest.channel import Channel, applied, release_before_looking

pytestmark = [pytest.mark.spark, pytest.mark.process]
Channels = Callable[..., Channel]

# The client waits a second before it repeats these by itself: each meets one publish, and one of them every other commit.
WAITS = ("429-before", "429-after", "503-before", "503-after")
LANDED = [name for name, fault in FAULTS.items() if fault.catalog in {"once", "twice"}]
FAMILIES = sorted({name.partition("-")[0] for name in FAULTS if name not in {"silent", *WAITS}})


@pytest.mark.parametrize("family", FAMILIES)
def test_creation_claim_publish_heartbeat_and_schema_change_happen_once_whatever_the_fault(
    proxy: FaultProxy, channel: Channels, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: Counter[str] = Counter()
    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", lambda name: passed.update([name]))
    faults = [name for name in FAULTS if name.partition("-")[0] == family]
    table = channel()
    proxy.arm(faults[0])
    with suppress(ConnectionFailed, Stopped):
        assert table.sink.target, "made now, or by the next run"
    assert table.sink.target
    for fault in faults:
        for changes in (None, {1: "a", 2: "b"}, {1: "c", 2: None, 3: "d"}, {}):
            proxy.arm(fault)
            table.claim() if changes is None else table.publish(changes)
    for fault in faults:
        proxy.arm(fault)
        assert fault in table.sink.prepare([Wish(fault, "long", "f:1")]).column_names
    table.publish({})
    assert not any(strike.applied for strike in proxy.release()), "what comes late finds another table than it was made for"
    assert proxy.struck == {fault: 5 + (fault == faults[0]) for fault in faults}
    assert all(strike.applied == (FAULTS[strike.fault].catalog in {"once", "twice"}) for strike in proxy.strikes)
    assert table.claims() == len(faults)
    assert table.changes() == ["schema"] * len(faults)
    after = {name: count for name, count in passed.items() if name.endswith(".after") and name != "table.after"}
    once = dict.fromkeys(("claim.after", "schema.after"), len(faults))
    assert after == {**once, "publish.after": 2 * len(faults), "heartbeat.after": len(faults) + 1}, "also without an answer"
    assert table.table().schema().column_names == ["id", "v", *faults]
    table.check()


def test_a_partitioning_change_and_a_settled_epoch_happen_once_whatever_the_fault(proxy: FaultProxy, channel: Channels) -> None:
    table = channel(publish="settled")
    table.claim()
    table.publish({1: "a", 2: "b"})
    faults = [name for name in FAULTS if name.partition("-")[0] in FAMILIES]
    for number, fault in enumerate(faults):
        table.sink._wanted = replace(table.sink._wanted, partition_by=(PartitionField("bucket", "id", 2 + number),))
        proxy.arm(fault)
        table.sink._align_partitioning()
        proxy.arm(fault)
        table.publish({1: fault, 3 + number: "new", 2 + number: None})
    assert not any(strike.applied for strike in proxy.release()), "what comes late finds another table than it was made for"
    assert proxy.struck == dict.fromkeys(faults, 2)
    assert table.changes() == ["partitioning"] * len(faults)
    last = table.table().current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert last.summary["total-equality-deletes"] == "0"
    table.check()


@pytest.mark.parametrize("fault", LANDED)
def test_a_creation_that_landed_and_was_answered_badly_makes_one_table(proxy: FaultProxy, channel: Channels, fault: str) -> None:
    table = channel(partition_by=(PartitionField("bucket", "id", 2),))
    proxy.arm(fault)
    assert table.sink.target, "made, and found"
    assert [(strike.fault, strike.applied) for strike in proxy.strikes] == [(fault, True)]
    made = table.table().metadata.table_uuid
    table.claim()
    table.publish({1: "a"})
    table.publish({1: None, 2: "b"})
    assert table.table().metadata.table_uuid == made
    assert [str(field.transform) for field in table.table().spec().fields] == ["bucket[2]"]
    table.check()


def test_a_publish_that_the_client_repeats_by_itself_happens_once(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    for fault in WAITS:
        proxy.arm(fault)
        table.publish({1: "a"})
        table.publish({1: fault, 2: "b"})
    assert proxy.struck == dict.fromkeys(WAITS, 1)
    table.check()


def test_a_creation_a_claim_and_a_schema_change_that_the_client_repeats_by_itself_happen_once(
    proxy: FaultProxy, channel: Channels
) -> None:
    table = channel()
    proxy.arm("503-after")
    assert table.sink.target, "made, and found"
    proxy.arm("503-after")
    assert table.claim().writer.generation == 1
    table.publish({1: "a"})
    proxy.arm("503-after")
    assert table.sink.prepare([Wish("extra", "long", "f:1")]).column_names == ["id", "v", "extra"]
    table.publish({})
    assert [(strike.fault, strike.applied) for strike in proxy.strikes] == [("503-after", True)] * 3
    assert (table.claims(), table.changes()) == (1, ["schema"])
    assert table.sink._live().metadata().lastColumnId() == table.table().schema().highest_field_id
    table.check()


def test_which_requests_the_client_repeats_by_itself(proxy: FaultProxy, channel: Channels) -> None:
    """Of commits only what says 429, or 503 with Retry-After; of loads also other 5xx, and lost connections."""
    live = channel().sink._live()
    seen: Counter[str] = Counter()
    # Strikes nothing, but is asked about every request.
    proxy.arm("slow", nth=1000, where=lambda request: bool(seen.update([request.method])))

    def change() -> None:
        live.commits(live.table.updateProperties().set("a", "b").commit)

    def requests(fault: str, where: Where) -> int:
        seen.clear()
        proxy.arm(fault, where=where)
        with suppress(ConnectionFailed):
            (change if where is commits else live.refresh)()
        return seen["POST" if where is commits else "GET"]

    for where, times, faults in (
        (commits, 1, ["403-before", "500-before", "502-before", "504-before", "lost", "reset-before"]),
        (commits, 2, ["429-before", "503-before"]),
        (loads, 1, ["403-before", "truncated"]),
        (loads, 2, ["500-before", "503-before", "lost", "reset-before"]),
    ):
        assert {fault: requests(fault, where) for fault in faults} == dict.fromkeys(faults, times)


def test_a_repetition_that_is_refused_does_not_remove_what_the_first_request_made(proxy: FaultProxy, channel: Channels) -> None:
    """The client repeats after a 503; by then its token has run out, or the repetition conflicts with what it repeats."""
    table = channel(properties={"commit.retry.num-retries": "0"})
    table.claim()
    proxy.arm("503-after")
    proxy.arm("403-before", nth=2)
    table.publish({1: "a"})
    proxy.arm("twice-second")
    table.publish({2: "b"})
    table.publish({1: None})
    assert proxy.struck == {"503-after": 1, "403-before": 1, "twice-second": 1}
    table.check()


def test_iceberg_by_itself_removes_what_a_landed_commit_needs(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why its `commitTransaction` is not used, and that these tests would notice."""
    monkeypatch.setattr(JavaTable, "_swap", lambda _, transaction: transaction.commitTransaction())
    table = channel()
    table.claim()
    proxy.arm("403-after")
    table.publish({1: "a"})
    with pytest.raises(Exception, match=r"iceberg\.exceptions\.NotFoundException: .*\bsnap-\S+\.avro"):
        table.check()


def test_a_commit_that_is_never_accepted_stays_staged_and_the_next_run_publishes_it(proxy: FaultProxy, channel: Channels) -> None:
    table = channel(retries=1, patience=0)
    table.claim()
    staged = table.stage({1: "a"})
    proxy.arm("500-before", times=99)
    with pytest.raises(ConnectionFailed, match=r"was not accepted in 2 attempts; the last said: the catalog did not answer"):
        table.publish_staged(staged, {1: "a"})
    proxy.disarm()
    proxy.arm("403-before", times=99)
    with pytest.raises(ConnectionFailed, match="the catalog refused us: ForbiddenException") as refused:
        table.publish_staged(staged, {1: "a"})
    assert "credential" in refused.value.next_step
    proxy.disarm()
    proxy.arm("409-before", times=2)
    with pytest.raises(Stopped, match="was not accepted in 2 attempts"):
        table.publish_staged(staged, {1: "a"})
    proxy.disarm()
    table.check()
    table.publish_staged(staged, {1: "a"})
    table.check()


def test_a_schema_change_that_is_never_accepted_stops_and_the_next_run_makes_it(proxy: FaultProxy, channel: Channels) -> None:
    table = channel(retries=0, patience=0)
    table.claim()
    table.publish({1: "a"})
    wishes = [Wish("extra", "long", "f:1")]
    proxy.arm("500-before", times=2)
    with pytest.raises(ConnectionFailed, match=r"the schema of .* could not be changed in 2 attempts; the last said: .* 500"):
        table.sink.prepare(wishes)
    proxy.arm("409-before", times=2)
    with pytest.raises(CommitUncertain, match=r"the schema of .* could not be changed in 2 attempts"):
        table.sink.prepare(wishes)
    assert table.table().schema().column_names == ["id", "v"]
    assert table.sink.prepare(wishes).column_names == ["id", "v", "extra"]
    table.publish({})
    table.check()


def test_a_look_that_fails_after_a_lost_answer_is_repeated(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    for fault in ("lost", "truncated", "slow", "reset-before", "403-before", "500-before"):
        proxy.arm("409-after")
        # The first load belongs to the commit, the second one to its repetition, the third one is the look.
        proxy.arm(fault, where=loads, nth=3)
        table.publish({1: fault})
        assert proxy.struck[fault] == 1
    table.check()


def test_a_catalog_that_stays_away_is_a_connection_that_failed(proxy: FaultProxy, channel: Channels) -> None:
    table = channel()
    table.claim()
    staged = table.stage({1: "a"})
    proxy.arm("lost")
    proxy.arm("truncated", where=loads, nth=2, times=99)
    with pytest.raises(ConnectionFailed, match="the catalog did not answer: RESTException"):
        table.sink.publish(staged, table.mark)  # type: ignore[arg-type]
    proxy.disarm()
    found = table.publish_staged(staged, {1: "a"})
    assert isinstance(found, Published)
    assert found.attempts == 1, "it had landed, and was found"
    table.check()


def hasty(channel: Channels) -> Channel:
    """A channel that does not wait long, to a table that is there: it was made by one that does."""
    assert channel("near").sink.target
    return channel("hasty")


def test_a_catalog_that_keeps_silent_is_given_up_and_what_it_does_before_the_look_is_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hasty(channel)
    table.claim()
    released = release_before_looking(proxy, table.sink, monkeypatch)
    proxy.arm("silent")
    assert table.publish({1: "a"}).attempts == 1
    assert applied(released) == [True]
    table.check()


def test_a_catalog_that_keeps_silent_is_given_up_and_what_it_does_after_the_next_attempt_is_refused(
    proxy: FaultProxy, channel: Channels
) -> None:
    table = hasty(channel)
    table.claim()
    proxy.arm("silent")
    assert table.publish({1: "a"}).attempts == 2
    assert applied(proxy.release()) == [False]
    table.check()


def test_an_answer_that_comes_too_slowly_is_given_up_and_its_commit_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hasty(channel)
    send = table.sink._send
    answers: list[Landed | NotLanded] = []

    def noted(request: Send, change: Change | None) -> Landed | NotLanded:
        answers.append(send(request, change))
        return answers[-1]

    monkeypatch.setattr(table.sink, "_send", noted)
    # Between two pieces of an answer this client waits for three seconds.
    monkeypatch.setattr(proxy, "pause", 20.0)
    proxy.arm("slow")
    assert table.claim().writer.generation == 1
    proxy.arm("slow")
    assert table.publish({1: "a"}).attempts == 1
    assert [type(answer) for answer in answers] == [Unanswered, Unanswered], "none was waited for, each was found"
    assert [(strike.fault, strike.applied) for strike in proxy.strikes] == [("slow", True)] * 2
    assert table.claims() == 1
    table.check()


def test_of_two_writers_on_a_bad_line_only_the_owner_publishes(proxy: FaultProxy, channel: Channels) -> None:
    one, other = channel(), channel()
    one.claim()
    staged = one.stage({1: "one"})
    other.claim()
    for fault in ("lost", "twice-second", "500-after"):
        proxy.arm(fault)
        assert isinstance(one.publish_staged(staged, {1: "one"}), FencedOff)
        other.publish({1: fault})
    assert proxy.struck.total() == 3
    other.check()
