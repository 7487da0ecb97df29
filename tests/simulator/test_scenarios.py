"""The failure matrix, row by row, on a table in memory: what the seeds find by chance is here by name."""

from __future__ import annotations

import pytest

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.errors import CommitUncertain, FrontierGap, NotOurs, RolledBack
from icefront.core.files import ClosedFile, FileKind, Staged
from icefront.core.marks import Identity, Mark
from icefront.core.protocol import FencedOff, Outcome, Publication, Published, Refusal, claiming, publishing, recoverable
from icefront.core.timestamps import ORIGIN
from icefront.testing.memory import MemoryTable, PathReused, Row, Storage, Unreadable, at, drive, position

SOURCE = Identity.of({"feed": "x"})


def claim(table: MemoryTable, run: str, *, adopt: bool = False, retries: int = 2) -> Mark:
    return drive(claiming("shop", table.name, run, SOURCE, adopt=adopt, retries=retries), table)


def stage(table: MemoryTable, onto: Mark, upper: int, rows: list[Row], *, attempt: str = "1", fresh: bool = False) -> Staged:
    """Write one epoch's files: the rows, and a delete for each of their keys."""
    epoch = Epoch(onto.frontier, at(upper))
    named = epoch_id("shop", table.name, epoch)
    files = []
    for kind in [FileKind.DATA] if fresh else FileKind:
        path = f"{named}/{attempt}-{kind}"
        table.storage.write(path, rows)
        files.append(ClosedFile(kind, table.name, str(named), 0, attempt, path, 1, len(rows), 0, 0))
    return Staged("shop", table.name, epoch, named, position(0, upper), tuple(files), 0, "s1", fresh)


def publish(table: MemoryTable, staged: Staged, onto: Mark, retries: int = 2) -> Outcome:
    return drive(publishing(Publication(staged, onto), retries=retries), table)


def put(table: MemoryTable, onto: Mark, upper: int, rows: list[Row], attempt: str = "1") -> Mark:
    """Stage and publish one epoch; return the mark to go on from."""
    outcome = publish(table, stage(table, onto, upper, rows, attempt=attempt), onto)
    assert isinstance(outcome, Published)
    return outcome.mark


def epochs_in(table: MemoryTable) -> int:
    return sum(1 for snapshot in table.chain() if snapshot.epoch is not None)


# ── answers that are lost, late or repeated ────────────────────────────────────────────────
def test_a_lost_answer_does_not_publish_twice() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    table.lose_answers = 1
    put(table, mark, 5, [(1, 10)])
    assert epochs_in(table) == 1
    assert table.rows() == [(1, 10)]


def test_a_request_that_is_repeated_lands_once_and_the_table_stays_readable() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    table.repeat = 1
    put(table, mark, 5, [(1, 10)])
    assert epochs_in(table) == 1
    assert table.rows() == [(1, 10)]


def test_a_commit_that_fails_is_sent_again_with_the_same_files() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    table.fail = 2
    put(table, mark, 5, [(1, 10)])
    assert set(table.storage.files) == set(table.snapshots[2].data) | set(table.snapshots[2].deletes)


def test_commits_that_keep_failing_stop_and_leave_the_staged_files() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    staged = stage(table, mark, 5, [(1, 10)])
    table.fail = 3
    with pytest.raises(CommitUncertain):
        publish(table, staged, mark)
    successor = claim(table, "b")
    assert recoverable(successor, [staged], "s1") == (staged,)
    assert isinstance(publish(table, staged, successor), Published)
    assert table.rows() == [(1, 10)]


def test_a_commit_applied_after_its_writer_gave_up_is_refused_once_a_successor_claimed() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    late = Publication(stage(table, mark, 5, [(1, 10)]), mark)
    successor = claim(table, "b")
    with pytest.raises(Refusal, match="claimed by b"):
        table.apply(late)
    put(table, successor, 7, [(1, 11)], "2")
    with pytest.raises(Refusal, match="claimed by b"):
        table.apply(late)
    assert table.rows() == [(1, 11)]


def test_a_commit_applied_late_but_before_the_claim_is_where_the_successor_goes_on() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    staged = stage(table, mark, 5, [(1, 10)])
    table.apply(Publication(staged, mark))
    successor = claim(table, "b")
    assert successor.frontier == at(5)
    assert recoverable(successor, [staged], "s1") == ()


def test_a_commit_applied_late_between_the_look_and_the_claim_makes_the_claim_look_again() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    late = Publication(stage(table, mark, 5, [(1, 10)]), mark)
    table.meanwhile = lambda: table.apply(late)
    assert claim(table, "b").frontier == at(5)
    assert table.rows() == [(1, 10)]


def test_a_claim_whose_answer_is_lost_or_repeated_claims_once() -> None:
    for table in (MemoryTable(lose_answers=1), MemoryTable(repeat=1)):
        mark = claim(table, "a")
        assert (mark.writer.generation, len(table.snapshots)) == (1, 1)


# ── several writers ────────────────────────────────────────────────────────────────────────
def test_a_woken_zombie_is_refused_and_deletes_nothing() -> None:
    table = MemoryTable()
    zombie = claim(table, "a")
    staged = stage(table, zombie, 5, [(1, 10)])
    successor = put(table, claim(table, "b"), 7, [(1, 11)], "2")
    files = dict(table.storage.files)
    assert publish(table, staged, zombie) == FencedOff(successor.writer)
    assert table.rows() == [(1, 11)]
    assert table.storage.files == files


def test_a_zombie_is_refused_even_where_its_epoch_starts_at_the_frontier() -> None:
    table = MemoryTable()
    zombie = claim(table, "a")
    successor = claim(table, "b")
    assert successor.frontier == zombie.frontier
    assert publish(table, stage(table, zombie, 5, [(1, 10)]), zombie) == FencedOff(successor.writer)
    assert table.rows() == []


def test_a_zombie_whose_publication_landed_knows_it_and_is_refused_at_the_next() -> None:
    table = MemoryTable()
    zombie = claim(table, "a")
    staged = stage(table, zombie, 5, [(1, 10)])
    table.apply(Publication(staged, zombie))
    successor = put(table, claim(table, "b"), 7, [(1, 11)], "2")
    outcome = publish(table, staged, zombie)
    assert isinstance(outcome, Published)
    assert publish(table, stage(table, outcome.mark, 9, [(1, 12)]), outcome.mark) == FencedOff(successor.writer)


def test_of_several_writers_the_last_to_claim_publishes() -> None:
    table = MemoryTable()
    marks = [claim(table, run) for run in "abc"]
    for mark in marks[:2]:
        assert publish(table, stage(table, mark, 5, [(1, 10)], attempt=mark.writer.id), mark) == FencedOff(marks[2].writer)
    put(table, marks[2], 5, [(1, 10)])
    assert table.rows() == [(1, 10)]


def test_two_runs_of_one_name_do_not_publish_an_overlap() -> None:
    """Run names must be unique; where they are not, the frontier still is a fence."""
    table = MemoryTable()
    one, twin = claim(table, "a"), claim(table, "a")
    assert one == twin
    put(table, one, 5, [(1, 10)])
    with pytest.raises(FrontierGap):
        publish(table, stage(table, twin, 7, [(1, 11)], attempt="2"), twin)


# ── what others do to the table ────────────────────────────────────────────────────────────
def test_a_foreign_append_between_does_not_stop_a_publication() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    table.meanwhile = lambda: table.append("foreign", [(99, 0)])
    put(table, mark, 5, [(1, 10)])
    assert table.rows() == [(1, 10), (99, 0)]


def test_expiry_of_all_our_snapshots_does_not_stop_a_publication() -> None:
    table = MemoryTable()
    mark = put(table, claim(table, "a"), 5, [(1, 10)])
    table.append("foreign", [(99, 0)])
    table.expire(keep=1)
    assert not table.head().whole
    put(table, mark, 7, [(1, 11)])
    assert table.rows() == [(1, 11), (99, 0)]


def test_compaction_between_does_not_bring_back_a_row() -> None:
    table = MemoryTable()
    mark = put(table, claim(table, "a"), 5, [(1, 10)])
    mark = put(table, mark, 7, [(2, 20)])
    planned = table.snapshots[3]
    put(table, mark, 9, [(1, 11)])
    assert table.rewrite(planned, tuple(planned.data), "merged") is not None
    assert table.rows() == [(1, 11), (2, 20)]


@pytest.mark.parametrize("expired", [False, True])
def test_a_rollback_past_the_mark_stops_and_rolling_forward_continues(expired: bool) -> None:  # noqa: FBT001
    table = MemoryTable()
    mark = claim(table, "a")
    table.append("foreign", [(99, 0)])
    mark = put(table, mark, 5, [(1, 10)])
    if expired:
        table.expire(keep=2)
    newest = table.current
    table.roll_to(2)
    staged = stage(table, mark, 7, [(1, 11)])
    with pytest.raises(RolledBack):
        publish(table, staged, mark)
    with pytest.raises(RolledBack):
        claim(table, "b")
    table.roll_to(newest)
    assert isinstance(publish(table, staged, mark), Published)
    assert table.rows() == [(1, 11), (99, 0)]


def test_a_rollback_that_takes_our_unconfirmed_commit_away_stops() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    staged = stage(table, mark, 5, [(1, 10)])
    table.apply(Publication(staged, mark))
    table.roll_to(1)
    with pytest.raises(RolledBack):
        publish(table, staged, mark)


@pytest.mark.parametrize("path", [None, "replacement"])
def test_create_or_replace_stops(path: str | None) -> None:
    table = MemoryTable()
    mark = put(table, claim(table, "a"), 5, [(1, 10)])
    table.replace(path, [(7, 7)])
    assert table.mark == mark
    with pytest.raises(RolledBack):
        claim(table, "b")
    with pytest.raises(RolledBack):
        publish(table, stage(table, mark, 7, [(1, 11)]), mark)


def test_a_rollback_goes_unseen_only_when_every_trace_of_it_expired() -> None:
    """A limit, not a wish: somebody rolled back, wrote, and expired both what was lost and what was before."""
    table = MemoryTable()
    mark = claim(table, "a")
    mark = put(table, mark, 5, [(1, 10)])
    table.roll_to(1)
    table.append("foreign", [(99, 0)])
    with pytest.raises(RolledBack):
        claim(table, "b")
    table.expire(keep=1)
    assert claim(table, "b").frontier == mark.frontier
    assert table.rows() == [(99, 0)]


def test_a_table_with_rows_of_others_is_taken_over_only_on_request() -> None:
    table = MemoryTable()
    table.append("before", [(1, 1)])
    with pytest.raises(NotOurs):
        claim(table, "a")
    put(table, claim(table, "a", adopt=True), 5, [(1, 10)])
    assert table.rows() == [(1, 10)]


def test_the_first_epoch_may_omit_deletes_only_while_the_table_is_empty() -> None:
    table = MemoryTable()
    mark = claim(table, "a")
    staged = stage(table, mark, 5, [(1, 10)], fresh=True)
    table.append("load", [(1, 1)])
    with pytest.raises(FrontierGap, match="without deletes"):
        publish(table, staged, mark)
    put(table, mark, 5, [(1, 10)], "again")
    assert table.rows() == [(1, 10)]


# ── the table in memory is a fair one ──────────────────────────────────────────────────────
def test_an_equality_delete_hides_older_rows_and_none_of_its_own_snapshot() -> None:
    table = MemoryTable()
    for path in ("old", "new", "delete"):
        table.storage.write(path, [(1, len(path))])
    table.commit(["old"])
    table.commit(["new"], ["delete"])
    assert table.rows() == [(1, 3)]
    assert table.live(table.snapshots[2], ["old"]) == []


def test_a_path_is_written_once_even_after_it_was_deleted() -> None:
    storage = Storage()
    storage.write("x", [])
    storage.delete(["x"])
    with pytest.raises(PathReused):
        storage.write("x", [])


def test_a_visible_file_that_is_gone_is_noticed() -> None:
    table = MemoryTable()
    table.append("x", [(1, 1)])
    table.storage.delete(["x"])
    with pytest.raises(Unreadable):
        table.rows()


def test_an_empty_table_is_at_the_origin_after_its_first_claim() -> None:
    table = MemoryTable()
    assert claim(table, "a").frontier == ORIGIN
    assert table.rows() == []
