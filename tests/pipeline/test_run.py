"""The loop: epochs minted once for all lanes, each lane with its own mark, a failing one left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch, Minting
from icefront.core.errors import BadRow, ConnectionFailed, FencedOut, IcefrontError, Overcompacted, SourceChanged, Stopped
from icefront.core.ports import Wish
from icefront.core.timestamps import ORIGIN
from icefront.pipeline import EpochPublished, Result, Route, Run, RunOptions, Unroutable, Upkeep
from tests.pipeline.small_world import MemoryNotes, MemorySource, at, route

EVERY_CUT = Minting(every=None)
CHANGES: dict[str, list[tuple[int, int, int | None]]] = {
    "a": [(1, 1, 10), (3, 2, 20), (5, 1, None)],
    "b": [(1, 7, 70), (5, 7, 71)],
}


def source(**changes: list[tuple[int, int, int | None]]) -> MemorySource:
    return MemorySource(changes or {name: list(rows) for name, rows in CHANGES.items()}, [2, 4, 6])


def run(
    feed: MemorySource,
    routes: Sequence[Route | Unroutable],
    notes: MemoryNotes | None = None,
    *,
    minting: Minting = EVERY_CUT,
    options: RunOptions | None = None,
    discover: Callable[[], Sequence[Route | Unroutable]] | None = None,
    tell: Callable[[EpochPublished], None] = lambda _: None,
    stop: threading.Event | None = None,
    upkeep: Upkeep | None = None,
) -> Result:
    chosen = options or RunOptions(until_caught_up=True, poll=0)
    found, kept = discover or (lambda: routes), notes or MemoryNotes()
    return Run("p", feed, found, kept, minting, options=chosen, tell=tell, stop=stop, upkeep=upkeep)()


def test_every_lane_ends_with_its_rows_and_the_same_frontier() -> None:
    feed = source()
    (a, sink_a, _), (b, sink_b, _) = route(feed, "a"), route(feed, "b")
    result = run(feed, [a, b])
    assert sink_a.table.rows() == [(2, 20)]
    assert sink_b.table.rows() == [(7, 71)]
    assert result.frontiers == {"lake.a": at(6), "lake.b": at(6)}
    assert feed.released[-1] == 6


def test_epochs_are_minted_once_for_all_lanes() -> None:
    feed = source()
    (a, _, job_a), (b, _, job_b) = route(feed, "a"), route(feed, "b")
    run(feed, [a, b])
    assert [epoch.upper for epoch in job_a.written] == [at(2), at(4), at(6)]
    assert [epoch.upper for epoch in job_b.written] == [at(2), at(4), at(6)]


def test_a_stretch_without_changes_is_published_with_the_next_epoch() -> None:
    feed = source()
    b, sink, job = route(feed, "b")
    result = run(feed, [b], minting=Minting(every=1, heartbeat=100))
    assert sink.table.rows() == [(7, 71)]
    assert job.written == [Epoch(ORIGIN, at(6))]
    assert result.epochs == 1


def test_a_quiet_lane_catches_up_from_its_own_frontier() -> None:
    """Minting goes on for the busy table; the quiet one writes its next change from where its mark is."""
    feed = MemorySource({"busy": [(n, 1, n) for n in (1, 3, 5)], "quiet": [(1, 1, 1), (5, 1, 5)]}, [2, 4, 6])
    (busy, _, _), (quiet, sink, job) = route(feed, "busy"), route(feed, "quiet")
    run(feed, [busy, quiet], minting=Minting(every=1, max_changes=1, heartbeat=100))
    assert sink.table.rows() == [(1, 5)]
    assert job.written[-1].upper == at(6)


def test_a_target_that_fails_stays_and_the_others_go_on() -> None:
    feed = source()
    (a, sink_a, job_a), (b, sink_b, _) = route(feed, "a"), route(feed, "b")
    job_a.failing = BadRow("feed/1.ndjson:3: no number", "correct it")
    with pytest.raises(BadRow, match=r"1\.ndjson:3"):
        run(feed, [a, b])
    assert sink_a.table.rows() == []
    assert sink_b.table.rows() == [(7, 71)]
    assert feed.released == []


def test_what_a_failed_target_published_before_is_noted_and_told() -> None:
    feed = source()
    a, sink, _ = route(feed, "a")
    sink.failing[2] = Stopped("the catalog is on fire", "put it out")
    notes, told = MemoryNotes(), list[EpochPublished]()
    with pytest.raises(Stopped, match="on fire"):
        run(feed, [a], notes, tell=told.append)
    assert notes.done == [("lake.a", 2)]
    assert [event.epoch.upper for event in told] == [at(2)]
    assert [staged.epoch.upper for staged in notes.staged("p", "lake.a")] == [at(4), at(6)]


def test_the_next_run_publishes_what_was_staged_without_writing_it_again() -> None:
    feed = source()
    a, sink, job = route(feed, "a")
    sink.failing[2] = Stopped("the catalog is on fire", "put it out")
    notes = MemoryNotes()
    with pytest.raises(Stopped):
        run(feed, [a], notes)
    written = list(job.written)
    told: list[EpochPublished] = []
    run(feed, [a], notes, tell=told.append)
    assert job.written == written
    assert [(event.epoch.upper, event.recovered) for event in told] == [(at(4), True), (at(6), True)]
    assert sink.table.rows() == [(2, 20)]
    assert notes.staged("p", "lake.a") == ()


def test_staged_epochs_whose_files_are_gone_are_written_again() -> None:
    feed = source()
    a, sink, job = route(feed, "a")
    sink.failing[2] = Stopped("the catalog is on fire", "put it out")
    notes = MemoryNotes()
    with pytest.raises(Stopped):
        run(feed, [a], notes)
    for staged in notes.staged("p", "lake.a"):
        sink.table.storage.delete(file.path for file in staged.files)
    job.written.clear()
    run(feed, [a], notes)
    assert job.written[0].lower == at(2)
    assert sink.table.rows() == [(2, 20)]


def test_a_second_run_takes_over_and_the_first_is_fenced() -> None:
    feed = source()
    a, sink, _ = route(feed, "a")

    def overtake(event: EpochPublished) -> None:
        if event.epoch.upper == at(2):
            # In the middle of the first run: a successor claims.
            sink.claim("successor", feed.identity(), adopt=False)

    with pytest.raises(FencedOut, match="successor"):
        run(feed, [a], tell=overtake, minting=Minting(every=None, in_flight=1))


def test_fenced_comes_before_other_errors() -> None:
    feed = source()
    (a, _, job_a), (b, sink_b, _) = route(feed, "a"), route(feed, "b")
    job_a.failing = BadRow("feed/1.ndjson:3: no number", "correct it")
    sink_b.failing[1] = FencedOut("owned by another", "let it work")
    with pytest.raises(FencedOut):
        run(feed, [a, b])


def test_a_table_is_made_with_its_first_change_and_claimed_then() -> None:
    feed = MemorySource({"late": [(5, 1, 1)]}, [2, 4, 6])
    late, sink, job = route(feed, "late", exists=False)
    run(feed, [late])
    assert sink.claims == 1
    assert job.written == [Epoch(ORIGIN, at(6))]
    assert sink.table.rows() == [(1, 1)]


def test_a_table_without_changes_does_not_hold_the_source_back() -> None:
    feed = MemorySource({"busy": [(1, 1, 1), (5, 1, 2)], "never": []}, [2, 4, 6])
    (busy, _, _), (never, sink, _) = route(feed, "busy"), route(feed, "never", exists=False)
    run(feed, [busy, never])
    assert not sink.exists
    assert feed.released[-1] == 6
    assert feed.asked[-1] == 6, "it is observed from where it is, not from the start"


def test_a_target_that_cannot_be_routed_stops_alone() -> None:
    feed = source()
    b, sink, _ = route(feed, "b")
    with pytest.raises(Stopped, match="two candidates"):
        run(feed, [Unroutable("lake.a", Stopped("the key of a has two candidates", "name it")), b])
    assert sink.table.rows() == [(7, 71)]
    assert feed.released == []


def test_with_no_other_target_a_run_ends_at_once() -> None:
    lost = Unroutable("lake.a", Stopped("the key of a has two candidates", "name it"))
    with pytest.raises(Stopped, match="two candidates"):
        run(source(), [lost], options=RunOptions(poll=0))


def test_a_table_that_appears_while_running_gets_a_lane() -> None:
    feed = source()
    (a, _, _), (b, sink, _) = route(feed, "a"), route(feed, "b")
    found = iter([[a], [a, b]])
    run(feed, (), discover=lambda: next(found, [a, b]))
    assert sink.table.rows() == [(7, 71)]


class Heard:
    """Upkeep that only writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, target: str) -> None:
        self.said.append(target)

    def finish(self, give_up: Callable[[], bool]) -> None:
        self.said.append(f"finish, give up: {give_up()}")

    def close(self) -> None:
        self.said.append("close")


def test_upkeep_hears_of_every_publish_and_finishes_before_a_run_that_caught_up_ends() -> None:
    feed, heard = source(), Heard()
    a, _, _ = route(feed, "a")
    run(feed, [a], upkeep=heard)
    assert heard.said == ["lake.a"] * 4 + ["finish, give up: False", "close"], "when it is opened, and after each epoch"
    again = Heard()
    run(feed, [a], upkeep=again)
    assert again.said == ["lake.a", "finish, give up: False", "close"], "a target with a mark needs it without a new epoch too"


def test_upkeep_of_a_run_that_is_stopped_or_fails_is_closed_at_once() -> None:
    feed, heard, stop = source(), Heard(), threading.Event()
    a, _, _ = route(feed, "a")
    run(feed, [a], tell=lambda _: stop.set(), stop=stop, upkeep=heard)
    assert set(heard.said) == {"lake.a", "close"}

    def fail() -> Sequence[Route | Unroutable]:
        raise RuntimeError("unexpected")

    heard = Heard()
    with pytest.raises(RuntimeError):
        run(feed, [], discover=fail, upkeep=heard)
    assert heard.said == ["close"]


def test_a_stop_ends_the_run_after_what_is_in_flight() -> None:
    feed = source()
    a, sink, _ = route(feed, "a")
    stop = threading.Event()
    run(feed, [a], tell=lambda _: stop.set(), stop=stop, options=RunOptions(poll=0))
    assert sink.publishes >= 1
    assert sink.table.mark is not None
    assert sink.table.mark.frontier in {at(2), at(4), at(6)}


def test_a_source_that_lost_what_comes_next_stops_before_the_claim() -> None:
    feed = source()
    a, sink, _ = route(feed, "a")
    feed.cuts = [2]
    run(feed, [a])
    claims = sink.claims
    feed.cuts, feed.earliest = [2, 4, 6], 5
    with pytest.raises(Overcompacted):
        run(feed, [a])
    assert sink.claims == claims


def test_errors_of_ours_are_values_and_others_are_not_swallowed() -> None:
    feed = source()
    a, _, job = route(feed, "a")
    job.failing = IcefrontError("x", "y")

    class Bug(Exception):
        pass

    def explode(*_: object, **__: object) -> None:
        raise Bug

    job.write = explode  # type: ignore[method-assign, assignment]
    with pytest.raises(Bug):
        run(feed, [a])


def test_a_fenced_target_ends_the_run_with_its_code_also_when_others_could_go_on() -> None:
    feed = source()
    (a, _, _), (b, sink_b, _) = route(feed, "a"), route(feed, "b")
    sink_b.failing[1] = FencedOut("owned by another", "let it work")
    with pytest.raises(FencedOut):
        run(feed, [a, b], options=RunOptions(poll=0))


def test_a_source_that_is_away_for_a_moment_is_asked_again() -> None:
    feed = source()
    (a, sink_a, _), (b, sink_b, _) = route(feed, "a"), route(feed, "b")
    feed.failing = [ConnectionFailed("no route to host", "wait"), ConnectionFailed("no route to host", "wait")]
    run(feed, [a, b])
    assert (sink_a.table.rows(), sink_b.table.rows()) == ([(2, 20)], [(7, 71)])


def test_a_source_that_does_not_say_for_a_moment_which_tables_it_has_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefront.pipeline.SOURCE_ATTEMPTS", 3)
    feed = source()
    (a, _, _), (b, sink, _) = route(feed, "a"), route(feed, "b")
    away = ConnectionFailed("no route to host", "wait")
    answers: Iterator[Sequence[Route] | ConnectionFailed] = iter([away, [a], away, away, [a, b], away, away, away])

    def tables() -> Sequence[Route]:
        answer = next(answers)
        if isinstance(answer, ConnectionFailed):
            raise answer
        return answer

    with pytest.raises(ConnectionFailed, match="no route"):
        run(feed, (), discover=tables, options=RunOptions(poll=0))
    assert sink.table.rows() == [(7, 71)]
    assert next(answers, None) is None, "one that stays away ends the run"


def test_a_source_that_stays_away_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefront.pipeline.SOURCE_ATTEMPTS", 2)
    feed = source()
    a, _, _ = route(feed, "a")
    feed.failing = [ConnectionFailed("no route to host", "wait")] * 3
    with pytest.raises(ConnectionFailed, match="no route"):
        run(feed, [a], options=RunOptions(poll=0))


def test_a_table_that_was_added_to_the_pipeline_comes_up_to_the_others_in_one_step() -> None:
    feed = source()
    (a, _, job_a), (b, sink_b, job_b) = route(feed, "a"), route(feed, "b", exists=False)
    run(feed, [a])
    written = len(job_a.written)
    run(feed, [a, b])
    assert len(job_a.written) == written
    assert job_b.written == [Epoch(ORIGIN, at(6))]
    assert sink_b.table.rows() == [(7, 71)]


def test_a_target_that_can_be_routed_later_is_taken_up() -> None:
    feed = source()
    (a, _, _), (b, sink, _) = route(feed, "a"), route(feed, "b")
    lost = Unroutable("lake.b", Stopped("the key of b has two candidates", "name it"))
    found: Iterator[Sequence[Route | Unroutable]] = iter([[a, lost], [a, b]])
    run(feed, (), discover=lambda: next(found, [a, b]))
    assert sink.table.rows() == [(7, 71)]
    assert feed.released[-1] == 6


def test_nothing_is_minted_for_a_newcomer_while_the_source_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not listed would be taken for empty, and its rows would be missing for good."""
    monkeypatch.setattr("icefront.pipeline.SOURCE_ATTEMPTS", 2)
    feed = source()
    (a, _, _), (b, sink_b, job_b) = route(feed, "a"), route(feed, "b", exists=False)
    run(feed, [a])
    # The check before the claim of a, which has a mark, still gets its answer.
    feed.failing = [ConnectionFailed("no route to host", "wait")] * 2
    feed.answers_first = 1
    with pytest.raises(ConnectionFailed, match="no route"):
        run(feed, [a, b])
    assert job_b.written == []
    assert not sink_b.exists


def test_a_table_that_a_run_from_another_source_made_meanwhile_is_left_alone() -> None:
    """Both find no table; the one that comes second meets the other's mark only when it claims."""
    feed = source(a=[(1, 1, 10), (3, 2, 20)])
    stranger = MemorySource({"a": [(1, 7, 70), (3, 8, 80)]}, [2, 4, 6], name="another")
    (mine, sink, _), (theirs, other, _) = route(feed, "a"), route(stranger, "a", exists=False)
    other.table = sink.table
    prepare = other.prepare

    def after_the_other(wishes: Sequence[Wish]) -> Schema:
        run(feed, [mine])
        return prepare(wishes)

    other.prepare = after_the_other  # type: ignore[method-assign]
    with pytest.raises(SourceChanged, match="memory"):
        run(stranger, [theirs])
    assert sink.table.rows() == [(1, 10), (2, 20)]
    assert sink.table.mark is not None
    assert sink.table.mark.source == feed.identity()


def test_rows_of_others_that_come_between_staging_and_the_first_publish_are_hidden_by_the_next_run() -> None:
    """The first epoch is written without deletes, for an empty table: then it has to be written again."""
    feed, notes = source(a=[(1, 1, 10), (3, 2, 20)]), MemoryNotes()
    a, sink, job = route(feed, "a")
    sink.failing = {1: Stopped("the catalog is away", "")}
    with pytest.raises(Stopped):
        run(feed, [a], notes)
    assert notes.kept[sink.target]
    assert all(staged.fresh for staged in notes.kept[sink.target][:1])
    sink.table.append("theirs", [(1, 99)])
    run(feed, [a], notes)
    assert sink.table.rows() == [(1, 10), (2, 20)]
    assert job.written.count(Epoch(ORIGIN, at(2))) == 2
