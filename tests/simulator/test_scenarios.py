"""The failure matrix, row by row, on a table in memory: what the seeds find by chance is here by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.errors import CommitUncertain, FrontierGap, NotOurs, RolledBack
from icefront.core.files import ClosedFile, FileKind, Staged
from icefront.core.marks import Identity, Mark
from icefront.core.protocol import FencedOff, Landed, Outcome, Publication, Published, Refusal, claiming, publishing, recoverable
from icefront.core.timestamps import ORIGIN
from icefront.testing.commits import Conflict, Rewrite, RowDelta
from icefront.testing.memory import MemoryTable, PathReused, Row, Snapshot, Storage, Unreadable, at, drive, position
from icefront.testing.upkeep import Do, Job, Refused, Swap, Upkeep, kept, settle

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


def rewrite(table: MemoryTable, planned: Snapshot, path: str) -> Rewrite:
    """A compaction of all files of a snapshot, at the point of its commit."""
    table.storage.write(path, table.live(planned))
    return Rewrite(path, planned.id, tuple(planned.data), path, planned.sequence)


def epochs_in(table: MemoryTable) -> int:
    return sum(1 for snapshot in table.chain() if snapshot.epoch is not None)


# ── answers that are lost, late or repeated ────────────────────────────────────────────────
def test_a_lost_answer_of_the_memory_table_does_not_publish_twice() -> None:
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
    assert set(table.storage.files) == set(table.snapshots[2].files)


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
    rewrite(table, planned, "merged").apply(table)
    assert table.rows() == [(1, 11), (2, 20)]


# ── upkeep ─────────────────────────────────────────────────────────────────────────────────
def run(table: MemoryTable, job: Job, meanwhile: Callable[[], object] = lambda: None, *, before: int = 1) -> bool:
    """Do all steps of a job; `meanwhile` is done once, before its first commit, or another one."""
    answer: object = None
    commits = 0
    try:
        while True:
            match job.send(answer):
                case Do(do=do):
                    answer = do()
                case Swap(change=change):
                    commits += 1
                    if commits == before:
                        meanwhile()
                    try:
                        answer = Landed(change.apply(table).id)
                    except Conflict as conflict:
                        answer = Refused(str(conflict))
    except StopIteration as end:
        return bool(end.value)


def updated_table() -> tuple[MemoryTable, Mark]:
    table = MemoryTable()
    mark = put(table, claim(table, "a"), 5, [(1, 10), (2, 20)])
    return table, put(table, mark, 7, [(1, 11)])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("limit", [1, 1000])
def test_a_settle_leaves_the_rows_as_they_are_and_no_equality_deletes(version: int, limit: int) -> None:
    table, mark = updated_table()
    table.format = version
    put(table, put(table, mark, 9, [(3, 30), (1, 12)]), 11, [(3, 31)])
    for snapshots in (3 if limit == 1 else 1, 0):
        before = len(table.snapshots)
        assert run(table, settle(table, Upkeep(), f"s{snapshots}", limit))
        assert len(table.snapshots) == before + snapshots
    assert table.rows() == [(1, 12), (2, 20), (3, 31)]
    assert not table.snapshots[table.current or 0].deletes


def test_a_publish_between_does_not_refuse_a_settle() -> None:
    table, mark = updated_table()
    done = run(table, settle(table, Upkeep(), "s", 1000), lambda: put(table, mark, 9, [(2, 21), (1, 12)]))
    assert done
    assert table.rows() == [(1, 12), (2, 21)]
    assert sum(snapshot.upkeep is not None for snapshot in table.chain()) == 1


def test_a_compaction_between_makes_a_settle_plan_anew() -> None:
    table, _ = updated_table()
    planned = table.snapshots[2]
    late = rewrite(table, planned, "merged")
    assert run(table, settle(table, Upkeep(), "s", 1000), lambda: late.apply(table))
    assert table.rows() == [(1, 11), (2, 20)]
    assert [snapshot.upkeep for snapshot in table.chain() if snapshot.upkeep] == ["s-2-1", "merged"]


def test_a_compaction_that_began_before_a_settle_and_ends_after_it_is_refused() -> None:
    table, _ = updated_table()
    late = rewrite(table, table.snapshots[2], "merged")
    assert run(table, settle(table, Upkeep(), "s", 1000))
    with pytest.raises(Conflict, match="position delete"):
        late.apply(table)
    assert table.rows() == [(1, 11), (2, 20)]


def test_deletes_alone_are_lost_by_a_compaction_of_all_older_files_and_with_a_data_file_they_are_not() -> None:
    """As it was seen in Iceberg 1.12, and why an epoch of deletes comes with a data file without rows."""
    for anchors in ([], ["beside-1", "beside-2"]):
        table = MemoryTable()
        mark = put(table, claim(table, "a"), 5, [(1, 10), (2, 20), (3, 30)])
        late = rewrite(table, table.snapshots[2], "merged")
        for number, key in enumerate((1, 2)):
            table.storage.write(f"deletes-{key}", [(key, 0)])
            for path in anchors[number : number + 1]:
                table.storage.write(path, [])
            table.commit(anchors[number : number + 1], [f"deletes-{key}"], mark=mark)
        replace(late, looks=False).apply(table)
        assert table.rows() == ([(3, 30)] if anchors else [(1, 10), (3, 30)])


def test_a_settle_whose_first_part_was_rolled_back_plans_anew() -> None:
    """By itself the last part would take out equality deletes whose rows no vector names any more."""
    table, mark = updated_table()
    put(table, mark, 9, [(2, 21)])
    planned = next(table.chain()).id
    assert run(table, settle(table, Upkeep(), "s", 1), lambda: table.roll_to(planned), before=2)
    assert table.rows() == [(1, 11), (2, 21)]
    assert not next(table.chain()).deletes


def test_a_compaction_does_not_drop_deletes_whose_data_another_one_rewrote_meanwhile() -> None:
    table = MemoryTable()
    mark = put(table, claim(table, "a"), 5, [(1, 10), (2, 20), (3, 30)])
    late = rewrite(table, table.snapshots[2], "all")
    mark = put(table, mark, 7, [(1, 11)])
    put(table, mark, 9, [(2, 21)])
    now = next(table.chain())
    small = tuple(path for path, sequence in now.data.items() if sequence > table.snapshots[2].sequence)
    table.storage.write("small", table.live(now, small))
    Rewrite("small", now.id, small, "small", now.sequence).apply(table)
    with pytest.raises(Conflict, match="published since"):
        late.apply(table)
    assert table.rows() == [(1, 11), (2, 21), (3, 30)]
    replace(late, looks=False).apply(table)
    assert (1, 10) in table.rows(), "what Iceberg does by itself: a row is back"


def test_a_settle_whose_snapshot_expired_plans_anew() -> None:
    table, mark = updated_table()

    def expire() -> None:
        put(table, put(table, mark, 9, [(4, 40)]), 11, [(2, 21)])
        table.expire(1)

    assert run(table, settle(table, Upkeep(), "s", 1000), expire)
    assert table.rows() == [(1, 11), (2, 21), (4, 40)]


def test_a_vector_for_a_file_that_is_gone_is_refused_whoever_removed_it() -> None:
    table, _ = updated_table()
    planned = table.snapshots[3]
    old = next(iter(table.snapshots[2].data))
    change = RowDelta("s", planned.id, planned.id, {"vector": old}, (), (old,))
    table.commit(removed=[old], operation="delete")
    with pytest.raises(Conflict, match="missing data files"):
        change.apply(table)


def test_expiry_keeps_the_branch_whole_down_to_a_tag_that_holds_the_mark() -> None:
    """Else the tag's snapshot is there and not on the branch, which is what a rollback looks like."""
    table, mark = updated_table()
    table.tags["reader"] = table.current or 0
    for number in range(3):
        table.append(f"foreign-{number}", [(90 + number, 0)])
    assert kept(table, 1) == 4
    table.expire(kept(table, 1))
    put(table, mark, 9, [(1, 12)])
    del table.tags["reader"]
    table.expire(kept(table, 1))
    assert len(table.snapshots) == 1


def test_expiry_that_cuts_a_tag_off_the_branch_looks_like_a_rollback() -> None:
    table, mark = updated_table()
    table.tags["reader"] = table.current or 0
    for number in range(3):
        table.append(f"foreign-{number}", [(90 + number, 0)])
    table.expire(1)
    with pytest.raises(RolledBack):
        put(table, mark, 9, [(1, 12)])


# ── what others do to the branch ───────────────────────────────────────────────────────────
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
