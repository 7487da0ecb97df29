"""Every fault on every kind of commit: each epoch is published once, and the table stays readable and right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from icefront.core.errors import CommitUncertain, ConnectionFailed, Stopped
from icefront.core.ports import Wish
from icefront.core.protocol import FencedOff, Head, Landed, NotLanded, Published, Send
from icefront.iceberg.java import Change, Unanswered
from icefront.iceberg.partitions import PartitionField
from icefront.proof.harness import wait_until
from icefront.proof.proxy import FAULTS, FaultProxy, Where, commits, loads
from icefront.proof.scene import commit_of
from tests import sabotage
from tests.rest.channel import Channel, applied, note_requests, release_before_looking

pytestmark = [pytest.mark.spark, pytest.mark.process]
Channels = Callable[..., Channel]

# The client waits a second before it repeats these by itself, or longer if it is told to: all four meet a publish, and two each other commit.
WAITS = ("429-before", "429-after", "503-before", "503-after")
LANDED = [name for name, fault in FAULTS.items() if fault.catalog in {"once", "twice"}]
UNREADABLE = r"iceberg\.exceptions\.NotFoundException: .*\bsnap-\S+\.avro"
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
    assert table.sink.target, "made"
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


def test_a_commit_is_known_in_all_its_repetitions_and_told_from_others(proxy: FaultProxy, channel: Channels) -> None:
    """By that `prove` tells a run that gave up too soon from one that was struck too often."""
    table = channel()
    proxy.arm("502-before", times=2)
    assert table.sink.target, "made"
    for changes in (None, {1: "a"}, {1: "b"}, {}):
        proxy.arm("502-before", times=2)
        table.claim() if changes is None else table.publish(changes)
    proxy.arm("502-before", times=2)
    assert "new" in table.sink.prepare([Wish("new", "long", "f:1")]).column_names
    commits = [commit_of(strike.request) for strike in proxy.strikes]
    assert commits[::2] == commits[1::2]
    assert len({*commits, ""}) == len(commits) // 2 + 1


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


NOT_LANDED = ("reset-before", "403-before", "409-before", "500-before", "502-before", "504-before", "late-504", "late-closed")


@pytest.mark.parametrize("fault", NOT_LANDED)
def test_a_creation_is_tried_again_as_often_as_other_commits(proxy: FaultProxy, channel: Channels, fault: str) -> None:
    proxy.arm(fault, times=3)
    given_up, table = channel(retries=1), channel(retries=1)
    with pytest.raises(CommitUncertain if fault == "409-before" else ConnectionFailed):
        assert given_up.sink.target
    assert table.sink.target, "made with the second try"
    assert proxy.struck == {fault: 3}
    assert not any(strike.applied for strike in proxy.release()), "the table was there already"
    table.claim()
    table.publish({1: "a"})
    table.publish({1: None, 2: "b"})
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


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_other_commit_that_the_client_repeats_by_itself_happens_once(
    proxy: FaultProxy, channel: Channels, when: str
) -> None:
    unavailable, too_many = f"503-{when}", f"429-{when}"
    table = channel(publish="settled")
    proxy.arm(unavailable)
    assert table.sink.target, "made, and found"
    proxy.arm(too_many)
    assert table.claim().writer.generation == 1
    table.publish({1: "a", 2: "b"})
    proxy.arm(unavailable)
    table.publish({})
    proxy.arm(too_many)
    table.publish({1: "c", 2: None})
    proxy.arm(unavailable)
    assert table.sink.prepare([Wish("extra", "long", "f:1")]).column_names == ["id", "v", "extra"]
    table.sink._wanted = replace(table.sink._wanted, partition_by=(PartitionField("bucket", "id", 2),))
    proxy.arm(too_many)
    table.sink._align_partitioning()
    table.publish({})
    applied = when == "after"
    assert [(s.fault, s.applied) for s in proxy.strikes] == [(unavailable, applied), (too_many, applied)] * 3
    assert (table.claims(), table.changes()) == (1, ["schema", "partitioning"])
    assert table.sink._live().metadata().lastColumnId() == table.table().schema().highest_field_id
    table.check()


def test_which_requests_the_client_repeats_by_itself(proxy: FaultProxy, channel: Channels) -> None:
    """Of commits only what says 429, or 503 with Retry-After; of loads also other 5xx, and lost connections."""
    live = channel().sink._live()
    seen = note_requests(proxy)

    def change() -> None:
        live.commits(live.table.updateProperties().set("a", "b").commit)

    def requests(fault: str, where: Where) -> int:
        seen.clear()
        proxy.arm(fault, where=where)
        with suppress(ConnectionFailed):
            (change if where is commits else live.refresh)()
        return sum(map(where, seen))

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
    """Why its `commitTransaction` is not used for what is published, and that these tests would notice."""
    sabotage.commit_transaction(monkeypatch.setattr)
    table = channel()
    table.claim()
    proxy.arm("403-after")
    table.publish({1: "a"})
    with pytest.raises(Exception, match=UNREADABLE):
        table.check()


def test_icebergs_own_retries_clean_up_after_a_fence_that_returns_false_and_not_after_one_that_raises(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request landed, and its repetition was refused: Iceberg puts the change together anew, and meets the fence."""
    table = channel()
    table.claim()
    sabotage.commit_transaction(monkeypatch.setattr)
    proxy.arm("twice-second")
    table.publish({1: "a"})
    table.check()
    sabotage.fence_says_no(monkeypatch.setattr)
    proxy.arm("twice-second")
    table.publish({1: "b"})
    assert proxy.struck == {"twice-second": 2}
    with pytest.raises(Exception, match=UNREADABLE):
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


# Other faults of loads are made up for by the client itself: they would not come to our own repetition.
@pytest.mark.parametrize("fault", ["truncated", "403-before"])
@pytest.mark.parametrize(("answer", "before"), [("lost", 1), ("409-after", 2)])
def test_a_look_that_fails_after_a_lost_answer_is_repeated(
    proxy: FaultProxy, channel: Channels, answer: str, before: int, fault: str
) -> None:
    table = channel()
    table.claim()
    staged = table.stage({1: "a"})  # before anything is armed: it loads the table, too
    proxy.arm(answer)
    # A load belongs to the commit; after a conflict another one to its repetition, which the fence refuses. Then comes the look.
    proxy.arm(fault, where=loads, nth=before + 1, times=2)
    outcome = table.publish_staged(staged, {1: "a"})
    assert isinstance(outcome, Published)
    assert outcome.attempts == 1, "it had landed, and was found"
    assert [strike.fault for strike in proxy.strikes] == [answer, fault, fault]
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


# What is said of these commits is said of what reaches the catalog: on a busy machine a client in haste may give up a load, too.
def hasty(channel: Channels) -> Channel:
    """A channel that does not wait long, to a table that is there: it was made by one that does."""
    assert channel("near").sink.target
    table = channel("hasty")
    with suppress(ConnectionFailed):
        assert table.sink.target, "opened now, or the next time"
    return table


def test_a_catalog_that_keeps_silent_is_given_up_and_what_it_does_before_the_look_is_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hasty(channel)
    table.claim()
    released = release_before_looking(proxy, table.sink, monkeypatch)
    seen = note_requests(proxy)
    proxy.arm("silent")
    table.publish({1: "a"})
    assert sum(map(commits, seen)) == 1, "it was sent again"
    assert applied(released) == [True]
    table.check()


def test_a_catalog_that_keeps_silent_is_given_up_and_what_it_does_after_the_next_attempt_is_refused(
    proxy: FaultProxy, channel: Channels
) -> None:
    table = hasty(channel)
    table.claim()
    seen = note_requests(proxy)
    proxy.arm("silent")
    table.publish({1: "a"})
    assert sum(map(commits, seen)) >= 2
    assert applied(proxy.release()) == [False]
    table.check()


def test_an_answer_that_comes_too_slowly_is_given_up_and_its_commit_found(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hasty(channel)
    send, look = table.sink._send, table.sink._look
    answers: list[Landed | NotLanded] = []

    def noted(request: Send, change: Change | None) -> Landed | NotLanded:
        answers.append(send(request, change))
        return answers[-1]

    def looked() -> Head:
        wait_until(lambda: all(strike.answers for strike in proxy.strikes), what="the catalog did not answer the proxy")
        return look()

    monkeypatch.setattr(table.sink, "_send", noted)
    monkeypatch.setattr(table.sink, "_look", looked)
    # Between two pieces of an answer this client waits for three seconds.
    monkeypatch.setattr(proxy, "pause", 20.0)
    seen = note_requests(proxy)
    proxy.arm("slow")
    assert table.claim().writer.generation == 1
    proxy.arm("slow")
    table.publish({1: "a"})
    assert {type(answer) for answer in answers} == {Unanswered}, "none was waited for"
    assert sum(map(commits, seen)) == 2, "each was found"
    assert [(strike.fault, strike.applied) for strike in proxy.strikes] == [("slow", True)] * 2
    assert table.claims() == 1
    table.check()


def test_of_two_writers_on_a_bad_line_only_the_owner_publishes(
    proxy: FaultProxy, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is overtaken with its commit in its hands: what the catalog says to that is lost, cut off, or told wrongly."""
    one, other = channel(), channel()
    other.held = one.held
    due: list[str] = []

    def overtake(failpoint: str) -> None:
        if failpoint == "publish.before-commit" and due:
            fault = due.pop()
            other.claim()
            proxy.arm(fault)

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", overtake)
    faults = ("lost", "truncated", "twice-second", "403-after", "500-after")
    for fault in faults:
        one.claim()
        staged = one.stage({1: "one"})
        due.append(fault)
        outcome = one.publish_staged(staged, {1: "one"})
        assert other.mark is not None
        assert outcome == FencedOff(other.mark.writer)
        other.publish({1: fault})
    assert [strike.fault for strike in proxy.strikes] == list(faults)
    assert {status for strike in proxy.strikes for status in strike.answers} == {409}, "the catalog refused every one"
    other.check()
