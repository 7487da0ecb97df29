"""Compacting real tables: the same rows in fewer files, beside publishes and settles."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from icefront.changelog import changes
from icefront.core.errors import ConfigError, FilesGone, Stopped
from icefront.iceberg.described import DeleteChange
from icefront.iceberg.java import JavaTable, Upkept
from icefront.iceberg.live import DeleteKind
from icefront.iceberg.rewriting import Rewriter
from icefront.iceberg.view import View
from icefront.proof import failpoints
from icefront.settings.upkeep import Upkeep
from icefront.upkeep import compact as compacting
from icefront.upkeep.compact import GROUP_BYTES, Compacted, compact, next_batch, order, worst_first
from icefront.upkeep.expire import expire
from icefront.upkeep.hands import SparkHands, group_bytes
from icefront.upkeep.health import small
from icefront.upkeep.need import Kind
from icefront.upkeep.settle import settle
from tests.changes.oracle import spelled
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.upkeep.test_settle import by_pyiceberg, deletes, rows

pytestmark = pytest.mark.spark


def fill(spark: Any, table: str, files: int = 6, per_file: int = 10) -> Streaming:
    """Many small files."""
    writer = Streaming(spark, table)
    for start in range(0, files * per_file, per_file):
        writer.commit([{"id": i, "v": f"v{i}", "n": i % 3} for i in range(start, start + per_file)])
    return writer


def files(spark: Any, table: str) -> list[Any]:
    spark.sql(f"REFRESH TABLE {table}")
    return list(spark.sql(f"SELECT * FROM {table}.data_files").collect())


def with_ids(spark: Any, table: str) -> Counter[Any]:
    found = spark.sql(f"SELECT _row_id, _last_updated_sequence_number, * FROM {table}").collect()
    return Counter(tuple(spelled(v) for v in row) for row in found)


def check(spark: Any, table: str, **options: Any) -> Compacted:
    """Compact; nobody sees another row, and no change. Rows that have ids keep them."""
    snapshot = View.of(spark, table).metadata.current_snapshot()
    read = rows if snapshot is None or snapshot.first_row_id is None else with_ids
    spark.sql(f"REFRESH TABLE {table}")
    before, at = read(spark, table), View.of(spark, table).metadata.current_snapshot_id
    done = compact(spark, table, **options)
    spark.sql(f"REFRESH TABLE {table}")
    assert read(spark, table) == before
    assert changes(spark, table, at).collect() == []
    told = {s.snapshot_id: s.summary and s.summary["icefront.upkeep"] for s in View.of(spark, table).metadata.snapshots}
    assert {told[snapshot] for snapshot in done.snapshots} <= {"compact"}
    assert done.failed_groups == 0
    return done


@pytest.mark.parametrize("version", [2, 3])
def test_small_files_become_one_and_dead_rows_leave(spark: Any, lake_folder: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    fill(spark, table).commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}, {"id": 41}])
    settle(spark, table)
    done = check(spark, table)
    assert (done.files_before, done.files_after, done.dead_rows, done.left) == (7, 1, 2, 0)
    assert deletes(spark, table) == {}, "a delete of nothing is not kept"
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)
    assert check(spark, table).snapshots == (), "there is nothing left to compact"


@pytest.mark.parametrize(("version", "everywhere"), [pytest.param(2, True, marks=pytest.mark.long), (3, True), (3, False)])
def test_unsettled_deletes_are_kept_as_long_as_they_hold_for_a_file(
    spark: Any, lake_folder: Any, table: str, version: int, everywhere: Any
) -> None:
    """Also where it holds everywhere, and no file is in a partition of its own."""
    create(spark, table, version=version)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
    for start in range(0, 30, 5):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range({start}, {start + 5})")
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 1 FROM range(100, 105)")
    Streaming(spark, table).upsert([], [{"id": 3, "n": 0}, {"id": 101, "n": 1}], everywhere=everywhere)
    done = check(spark, table)
    assert (done.files_before, done.files_after, done.dead_rows) == (6, 1, 1)
    assert deletes(spark, table) == {DeleteKind.EQUALITY: 1}, "the one that partition 1 still needs"
    check(spark, table, everything=True)
    assert deletes(spark, table) == {}
    assert sorted(row[0] for row in spark.table(table).collect()) == [
        *(i for i in range(30) if i != 3),
        100,
        102,
        103,
        104,
    ]
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)


def test_one_file_with_many_dead_rows(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=1)
    Streaming(spark, table).commit([], [{"id": i} for i in range(4)])
    settle(spark, table)
    assert compact(spark, table, dead=0.5).snapshots == ()
    assert check(spark, table, dead=0.4).dead_rows == 4


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_files_without_a_live_row_leave(spark: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    fill(spark, table, files=2)
    Streaming(spark, table).commit([], [{"id": i} for i in range(20)])
    settle(spark, table)
    done = check(spark, table)
    assert (done.files_before, done.files_after, done.dead_rows) == (2, 0, 20)
    assert deletes(spark, table) == {}


def test_rows_are_sorted_by_the_key_so_that_later_settles_look_at_less(spark: Any, table: str) -> None:
    create(spark, table, columns="id bigint NOT NULL, v string, n int")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.target-file-size-bytes'='2000')")
    spark.sql(f"ALTER TABLE {table} SET IDENTIFIER FIELDS id")
    writer = Streaming(spark, table)
    for start in range(5):
        writer.commit([{"id": i, "v": "v" * 100, "n": 0} for i in range(start, 500, 5)])
    check(spark, table, everything=True)
    found = sorted((row.readable_metrics.id.lower_bound, row.readable_metrics.id.upper_bound) for row in files(spark, table))
    assert len(found) > 1
    assert all(before[1] < after[0] for before, after in pairwise(found)), found


def test_what_rows_are_sorted_by(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=1)
    assert order(View.of(spark, table), "auto") is None
    Streaming(spark, table).commit([], [{"n": 7, "v": "x"}], keys=("n", "v"))
    assert order(View.of(spark, table), "auto") == ["n", "v"]
    assert order(View.of(spark, table), "off") is None
    assert order(View.of(spark, table), ["v"]) == ["v"]
    with pytest.raises(ConfigError, match="has no column w"):
        order(View.of(spark, table), ["v", "w"])
    spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY v DESC")
    assert order(View.of(spark, table), "auto") == (), "its own"
    check(spark, table, everything=True)
    assert [row.v for row in spark.table(table).collect()] == sorted((f"v{i}" for i in range(10)), reverse=True)


def test_what_becomes_one_file_is_packed_and_not_sorted_by_key(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To sort it costs more than half again as much, and its range of keys would be the same."""
    create(spark, table, columns="id bigint NOT NULL, v string, n int")
    spark.sql(f"ALTER TABLE {table} SET IDENTIFIER FIELDS id")
    made = []
    private = Rewriter._private

    class Counted:
        def __init__(self, name: str, runner: Any) -> None:
            self.name, self.runner = name, runner

        def rewrite(self, group: Any) -> Any:
            made.append(self.name)
            return self.runner.rewrite(group)

    monkeypatch.setattr(Rewriter, "_private", lambda self, name, arguments: Counted(name, private(self, name, arguments)))
    packed, sorted_ = "SparkBinPackFileRewriteRunner", "SparkSortFileRewriteRunner"
    for sort, expected in (("auto", packed), ("off", packed), (["id"], sorted_)):
        fill(spark, table)
        check(spark, table, sort=sort)
        assert made.pop() == expected, sort
    spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY v")
    fill(spark, table)
    check(spark, table)
    assert made == [sorted_], "the table's own order is kept in each file"


@pytest.mark.parametrize("inserts", [[100] * 6, [100] * 18, [600, 600, *[100] * 6]], ids=["few", "many", "large ones first"])
def test_all_cores_rewrite_a_group_evenly_and_its_files_are_not_small_again(
    spark: Any, table: str, inserts: Sequence[int]
) -> None:
    """As many rows as make two files of an eighth of the target size each, dead ones not counted; or more than fit into one file."""
    create(spark, table, columns="id bigint NOT NULL, v string, n int")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.target-file-size-bytes'='36000')")
    for count in inserts:
        spark.sql(f"INSERT INTO {table} SELECT id, uuid(), 0 FROM range(0, {count}, 1, 1)")
    assert sum(row.file_size_in_bytes for row in files(spark, table)) > 4 * small(View.of(spark, table).metadata)
    done = check(spark, table, everything=True)
    assert (done.files_before, done.files_after) == (len(inserts), spark.sparkContext.defaultParallelism)
    found = [row.record_count for row in files(spark, table)]
    assert max(found) - min(found) <= 200, "one would keep a core busy while the other waits, here and for all readers"
    assert check(spark, table).snapshots == ()


def test_deletes_that_outweigh_rows_do_not_keep_files_apart(spark: Any, table: str) -> None:
    """Each file is read with all deletes that are on it: by their weight every file would be a task of its own."""
    create(spark, table, columns="id bigint NOT NULL, v string, n int", version=2)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.target-file-size-bytes'='36000')")
    for start in range(0, 600, 100):
        spark.sql(f"INSERT INTO {table} SELECT id, uuid(), 0 FROM range({start}, {start + 100}, 1, 1)")
    Streaming(spark, table).commit([], [{"id": -i * i * 7919} for i in range(1, 1000)])
    assert check(spark, table, everything=True).files_after == 2, "as many as by Iceberg itself"


def test_a_compaction_that_lost_tries_smaller_groups_and_larger_ones_when_it_wins() -> None:
    sizes = [GROUP_BYTES]
    for lost in (True, True, True, True, True, False, False):
        sizes.append(group_bytes(sizes[-1], lost=lost))
    mib = [size >> 20 for size in sizes]
    assert mib == [16384, 4096, 1024, 256, 64, 64, 128, 256]
    assert group_bytes(GROUP_BYTES, lost=False) == GROUP_BYTES


def test_a_cycle_that_lost_all_its_groups_says_so(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(spark, table)
    fill(spark, table)
    hands = SparkHands(spark, list, Upkeep.model_validate({"compact": {"files": 2}}).terms)
    health = hands.measure(table)
    assert health is not None
    monkeypatch.setattr(Rewriter, "commit", lambda *_, **__: Upkept(None, {}, sent=False))
    assert hands.work(Kind.COMPACT, table, health).lost
    monkeypatch.undo()
    done = hands.work(Kind.COMPACT, table, health)
    assert (done.lost, done.idle, done.facts["files_after"]) == (False, False, 1)


def test_groups_are_rewritten_at_once_and_with_one_that_fails_nothing_is_committed(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, partitioned="n")
    for start in range(5):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id % 3 AS int) FROM range({start * 6}, {start * 6 + 6}, 1, 1)")
    write, seen = Rewriter.write, []

    def failing(rewriter: Rewriter, group: Any) -> None:
        seen.append(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        if len(seen) == 1:
            raise Stopped("this group failed", "compact again")
        write(rewriter, group)

    before = rows(spark, table)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "upkeep")
    try:
        monkeypatch.setattr(Rewriter, "write", failing)
        with pytest.raises(Stopped, match="this group failed"):
            compact(spark, table)
        assert set(seen) == {"upkeep"}, "threads have the pool of who called"
        assert rows(spark, table) == before
        monkeypatch.undo()
        done = check(spark, table)
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
    assert (done.files_after, len(done.snapshots)) == (3, 1), "three partitions in one commit"


@pytest.mark.parametrize("settles", [True, False])
def test_a_cycle_of_compaction_settles_first(spark: Any, table: str, settles: Any) -> None:
    create(spark, table)
    fill(spark, table).commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}, {"id": 41}])
    expected = rows(spark, table)
    terms = Upkeep.model_validate({"settle": "auto" if settles else "off", "compact": {"files": 2}}).terms
    hands = SparkHands(spark, list, terms)
    health = hands.measure(table)
    assert health is not None
    assert health.equality_files == 1
    done = hands.work(Kind.COMPACT, table, health)
    told = [s.summary and s.summary["icefront.upkeep"] for s in View.of(spark, table).metadata.snapshots[-2:]]
    assert told == (["settle", "compact"] if settles else ["compact", "compact"])
    assert done.facts["files_after"] == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert rows(spark, table) == expected
    assert deletes(spark, table) == {}


# ── deletes that are left ──────────────────────────────────────────────────────────────────
def numbers(spark: Any, table: str) -> list[int]:
    """Sequence numbers of the data files."""
    return sorted(
        row[0]
        for row in spark.sql(f"SELECT sequence_number FROM {table}.entries WHERE status < 2 AND data_file.content = 0").collect()
    )


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_deletes_that_are_left_hold_for_the_new_files_and_for_no_others(
    spark: Any, lake_folder: Any, table: str, version: int
) -> None:
    create(spark, table, version=version)
    writer = fill(spark, table)
    spark.sql(f"DELETE FROM {table} WHERE id = 7")  # by position: applied as always
    writer.upsert([{"id": 5, "v": "once", "n": 2}], [{"id": 41}], everywhere=True)
    writer.upsert([{"id": 5, "v": "twice", "n": 2}], everywhere=True)
    assert numbers(spark, table) == [1, 2, 3, 4, 5, 6, 8, 9]
    done = check(spark, table, applies=False)
    assert (done.files_before, done.dead_rows) == (6, 1), "5 and 41 are still in them"
    assert numbers(spark, table) == [7, 8, 9], "just before the oldest delete; what came with deletes stays"
    assert deletes(spark, table) == {DeleteKind.EQUALITY: 2}
    settle(spark, table)
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)
    assert {row.v for row in spark.sql(f"SELECT v FROM {table} WHERE id IN (5, 7, 41)").collect()} == {"twice"}
    assert check(spark, table, everything=True).dead_rows == 3


def test_what_is_left_of_a_group_has_to_be_worth_it(spark: Any, table: str) -> None:
    create(spark, table)
    writer = fill(spark, table, files=3)
    for key in (1, 2, 3):
        writer.upsert([{"id": key, "v": "new", "n": 0}], everywhere=True)
    assert check(spark, table, applies=False).snapshots == (), "three old files are not five"
    assert check(spark, table, applies=False, min_files=3).files_before == 3
    assert check(spark, table, applies=False, everything=True).files_before == 1
    spark.sql(f"DELETE FROM {table} WHERE id > 20")
    assert check(spark, table, applies=False).dead_rows == 9, "a file with many dead rows is worth it by itself"


def test_deletes_of_a_partition_are_not_left_where_rows_may_leave_it(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table, partitioned="n")
    for start in range(0, 30, 5):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range({start}, {start + 5})")
    Streaming(spark, table).upsert([], [{"id": 3, "n": 0}])
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")
    assert check(spark, table, applies=False).dead_rows == 1
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)


@pytest.mark.parametrize("key", ["v5", None])
def test_deletes_by_a_column_that_was_dropped_are_not_left(spark: Any, table: str, key: str | None) -> None:
    """In the new files every row would have null for it."""
    create(spark, table)
    writer = fill(spark, table)
    writer.commit([{"id": 100, "v": None, "n": 0}])
    writer.commit([{"id": 1000, "v": "x", "n": 1}], [{"v": key}], keys=("v",))
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    check(spark, table, applies=False)
    gone = 100 if key is None else 5
    assert sorted(row.id for row in spark.table(table).collect()) == [*(i for i in (*range(60), 100) if i != gone), 1000]


@pytest.mark.parametrize("applies", [True, False])
def test_a_column_that_is_dropped_behind_a_compaction_and_a_delete_by_it(
    spark: Any, table: str, applies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    writer = fill(spark, table)
    writer.commit([{"id": 1000, "v": "x", "n": 1}], [{"v": "v5"}], keys=("v",))
    Between(monkeypatch, [lambda: spark.sql(f"ALTER TABLE {table} DROP COLUMN v")])
    with suppress(Stopped):  # Iceberg may find the column missing by itself
        compact(spark, table, applies=applies)
    spark.sql(f"REFRESH TABLE {table}")
    assert sorted(row.id for row in spark.table(table).collect()) == [*(i for i in range(60) if i != 5), 1000]


@pytest.mark.parametrize("applies", [True, False])
def test_rows_do_not_move_to_where_a_delete_of_a_partition_waits_for_them(spark: Any, table: str, applies: Any) -> None:
    create(spark, table)
    writer = fill(spark, table)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
    writer.upsert([{"id": 1000, "v": "x", "n": 1}], [{"id": 41, "n": 2}], everywhere=True)
    writer.upsert([{"id": 2000, "v": "x", "n": 0}], [{"id": 3, "n": 0}])  # of another partitioning than the row 3
    check(spark, table, applies=applies)
    assert 3 in {row.id for row in spark.table(table).collect()}


@pytest.mark.parametrize("of", ["the old partitioning", "the new partitioning"])
def test_rows_do_not_move_away_from_a_delete_of_a_partition_that_comes_meanwhile(
    spark: Any, table: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, partitioned="n")
    for start in range(0, 30, 5):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range({start}, {start + 5})")
    writer = Streaming(spark, table)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")

    def publish() -> None:
        if of == "the old partitioning":
            writer.commit([{"id": 1000, "v": "x", "n": 0}], [{"id": 3}], partition={"1000": 0})
        else:
            writer.upsert([{"id": 1000, "v": "x", "n": 0}], [{"id": 3, "n": 0}])

    Between(monkeypatch, [publish])
    done = compact(spark, table)
    assert done.failed_groups > 0
    spark.sql(f"REFRESH TABLE {table}")
    found = {row.id for row in spark.table(table).collect()}
    assert found == {1000, *(i for i in range(30) if i != 3 or of == "the new partitioning")}


def test_a_delete_that_was_left_and_is_gone_by_a_replace_is_noticed(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg does not look at what a `replace` does, and another program may turn equality deletes into vectors by one."""
    create(spark, table)
    writer = fill(spark, table)
    writer.upsert([{"id": 5, "v": "new", "n": 2}], [{"id": 41}], everywhere=True)

    def convert() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(JavaTable, "commit_deletes", by_replace)
            settle(spark, table)

    def by_replace(live: JavaTable, deletes: DeleteChange, files: object, at: int, *_: object, **__: object) -> int:
        rewrite = live.table.newRewrite().validateFromSnapshot(at)
        for file in live.parse(deletes.removed):
            rewrite.deleteFile(file)
        for file in live.parse(deletes.added):
            rewrite.addFile(file)
        rewrite.commit()
        return int(live.table.currentSnapshot().snapshotId())

    Between(monkeypatch, [convert])
    before = rows(spark, table)
    done = compact(spark, table, applies=False)
    assert done.failed_groups == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert rows(spark, table) == before


def test_what_is_published_behind_the_settle_of_a_cycle_is_left(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(spark, table)
    writer = fill(spark, table)
    writer.upsert([{"id": 5, "v": "new", "n": 2}], everywhere=True)
    hands = SparkHands(spark, list, Upkeep.model_validate({"compact": {"files": 2}}).terms)
    health = hands.measure(table)
    assert health is not None

    def behind(*arguments: Any) -> Any:
        done = settle(*arguments)
        writer.upsert([{"id": 6, "v": "later", "n": 0}], everywhere=True)
        return done

    monkeypatch.setattr("icefront.upkeep.hands.settle", behind)
    done = hands.work(Kind.COMPACT, table, health)
    assert (done.facts["files_before"], done.facts["files_after"], done.facts["dead_rows"]) == (7, 1, 1)
    assert deletes(spark, table) == {DeleteKind.EQUALITY: 1}
    assert {row.id: row.v for row in spark.sql(f"SELECT id, v FROM {table} WHERE id IN (5, 6)").collect()} == {
        5: "new",
        6: "later",
    }


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("between", ["publish", "settle"])
def test_a_compaction_that_leaves_deletes_beside_others(
    spark: Any, lake_folder: Any, table: str, version: int, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    writer = fill(spark, table)
    writer.upsert([{"id": 5, "v": "new", "n": 2}], [{"id": 41}], everywhere=True)

    def publish() -> None:
        writer.upsert([{"id": 6, "v": "later", "n": 0}, {"id": 5, "v": "newer", "n": 0}], everywhere=True)

    Between(monkeypatch, [publish if between == "publish" else lambda: settle(spark, table)])
    done = compact(spark, table, applies=False)
    assert done.failed_groups == (between == "settle"), "publishes commute"
    assert done.left == 0
    expected = {i: f"v{i}" for i in range(60) if i != 41} | {5: "new"}
    expected |= {5: "newer", 6: "later"} if between == "publish" else {}
    assert {row.id: row.v for row in spark.sql(f"SELECT id, v FROM {table}").collect()} == expected
    settle(spark, table)
    assert {row[0]: row[1] for row in by_pyiceberg(lake_folder, table)} == expected


def test_a_settle_that_fails_keeps_no_table_from_its_compaction(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(spark, table)
    fill(spark, table).commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}])
    expected = rows(spark, table)
    hands = SparkHands(spark, list, Upkeep.model_validate({"compact": {"files": 2}}).terms)
    health = hands.measure(table)
    assert health is not None

    def failing(*_: Any) -> None:
        raise Stopped("a delete file is damaged", "restore it")

    monkeypatch.setattr("icefront.upkeep.hands.settle", failing)
    assert hands.work(Kind.COMPACT, table, health).facts["files_after"] == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert rows(spark, table) == expected


@pytest.mark.parametrize("partitioned", ["n", "bucket(2, id)"])
def test_files_of_an_old_partitioning_move_into_the_new_one(spark: Any, table: str, partitioned: str) -> None:
    create(spark, table, version=2)
    fill(spark, table)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD {partitioned}")
    spark.sql(f"INSERT INTO {table} VALUES (1000, NULL, NULL)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    done = check(spark, table)
    assert done.files_before in {6, 7}, "Iceberg packs files of other partitionings with those whose partition is null"
    assert {row.spec_id for row in files(spark, table)} == {1}


def test_deletes_of_a_table_that_was_upgraded(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table, version=2)
    fill(spark, table)
    spark.sql(f"DELETE FROM {table} WHERE id IN (1, 12)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    spark.sql(f"DELETE FROM {table} WHERE id IN (2, 13)")
    Streaming(spark, table).commit([], [{"id": 14}])
    assert check(spark, table).dead_rows == 5
    assert deletes(spark, table) == {}
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)


@pytest.mark.parametrize("written", ["orc", "avro"])
def test_other_formats(spark: Any, table: str, written: str) -> None:
    create(spark, table, version=2)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='{written}')")
    for start in range(0, 15, 3):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range({start}, {start + 3})")
    assert check(spark, table).files_after == 1
    assert [row.file_format.lower() for row in files(spark, table)] == [written]


def test_tables_with_nothing_in_them(spark: Any, table: str) -> None:
    create(spark, table)
    assert compact(spark, table).snapshots == ()
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(f"DELETE FROM {table}")
    assert compact(spark, table, everything=True).snapshots == ()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"dead": 0}, "dead is 0"),
        ({"min_files": 0}, "min_files is 0"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"sort": ["x"]}, "has no column x"),
    ],
)
def test_wrong_options(spark: Any, table: str, options: Any, fact: str) -> None:
    create(spark, table)
    with pytest.raises(ConfigError, match=fact):
        compact(spark, table, **options)


@pytest.mark.parametrize("name", ["lake.t.nowhere", "lake.nowhere.t", "nowhere"])
def test_a_table_that_does_not_exist(spark: Any, name: str) -> None:
    with pytest.raises(ConfigError):
        compact(spark, name)


# ── bounded ────────────────────────────────────────────────────────────────────────────────
def test_work_is_bounded_and_goes_on_the_next_time(spark: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
    for _ in range(3):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id % 3 AS int) FROM range(9)")
    size = sum(row.file_size_in_bytes for row in files(spark, table) if row.partition.n == 0)
    lefts = []
    for _ in range(3):
        done = check(spark, table, max_bytes=size + 10, min_files=3)
        assert 0 < done.bytes <= size + 10
        lefts.append(done.left)
    assert lefts == [6, 3, 0]
    assert len(files(spark, table)) == 3


def test_a_group_that_is_larger_than_the_bound_is_not_left_for_ever(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=1)
    spark.sql(f"DELETE FROM {table} WHERE id < 5")
    assert check(spark, table, max_bytes=1).dead_rows == 5


class _Sized:
    def __init__(self, size: int, count: int) -> None:
        self.bytes, self.files = size, count


def test_small_groups_share_a_commit() -> None:
    small: list[Any] = [_Sized(10, 5) for _ in range(3)]
    large: Any = _Sized(compacting.COMMIT_BYTES * 2, 9)
    assert next_batch([*small, large], None) == small
    assert next_batch([large, *small], None) == [large]
    assert next_batch([large, *small], 25) == small[:2]
    assert next_batch([large], 25) == []
    assert next_batch([large, *small], 25, whatever=True) == [large]
    assert worst_first([large, *small])[-1] is large


@pytest.mark.parametrize("place", ["compact.before", "compact.before-commit", "compact.after"])
def test_what_ends_at_a_failpoint_is_done_by_the_next_one(
    spark: Any, table: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    fill(spark, table).commit([], [{"id": 7}])
    before = rows(spark, table)
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse(f"{place}=raise"))
    with pytest.raises(failpoints.FailpointError):
        compact(spark, table)
    assert rows(spark, table) == before
    assert len(files(spark, table)) == (1 if place == "compact.after" else 6)
    check(spark, table)
    assert len(files(spark, table)) == 1


# ── beside others ──────────────────────────────────────────────────────────────────────────
class Between:
    """Something that happens after groups were rewritten and before they are committed, a few times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Sequence[Callable[[], object]]) -> None:
        left = list(happens)
        commit = Rewriter.commit

        def first(*arguments: Any, **options: Any) -> Any:
            if left:
                left.pop(0)()
            return commit(*arguments, **options)

        monkeypatch.setattr(Rewriter, "commit", first)


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_publish_between_does_not_matter(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    writer = fill(spark, table)
    Between(monkeypatch, [lambda: writer.commit([{"id": 2, "v": "later", "n": 0}], [{"id": 2}, {"id": 3}])])
    done = compact(spark, table)
    assert (done.failed_groups, done.files_before) == (0, 6), "they commute"
    now = rows(spark, table)
    assert sum(now.values()) == 59
    assert {row[1] for row in now if row[0] in {"2", 2}} == {"later"}
    settle(spark, table)
    assert by_pyiceberg(lake_folder, table) == rows(spark, table) == now


@pytest.mark.parametrize("applies", [True, False])
def test_what_is_published_in_the_moment_of_planning_is_not_part_of_the_plan(
    spark: Any, table: str, applies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads share what Iceberg knows of a table: with a publish of another thread it moves in any moment."""
    create(spark, table)
    writer = fill(spark, table)
    metadata, left = JavaTable.metadata, [1]

    def moves(live: JavaTable) -> Any:
        found = metadata(live)
        if left and sys._getframe(1).f_code is Rewriter.plan.__code__:
            left.pop()
            writer.upsert([{"id": 5, "v": "new", "n": 2}], everywhere=True)
            live.table.refresh()
        return found

    monkeypatch.setattr(JavaTable, "metadata", moves)
    done = compact(spark, table, applies=applies)
    assert (left, done.files_before) == ([], 6)
    spark.sql(f"REFRESH TABLE {table}")
    assert {row.id: row.v for row in spark.table(table).collect()} == {i: "new" if i == 5 else f"v{i}" for i in range(60)}


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_settle_between_makes_it_plan_anew(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    fill(spark, table).commit([], [{"id": 1}, {"id": 41}])
    before = rows(spark, table)
    Between(monkeypatch, [lambda: settle(spark, table)])
    done = compact(spark, table)
    assert (done.failed_groups, done.files_before, done.files_after, done.left) == (1, 6, 1, 0)
    assert done.dead_rows == 2
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)
    assert deletes(spark, table) == {}
    known = {name(row[0]) for row in spark.sql(f"SELECT file_path FROM {table}.all_files").collect()}
    folder = Path(urlsplit(View.of(spark, table).metadata.location).path) / "data"
    assert {path.name for path in folder.rglob("*.parquet")} == {one for one in known if one.endswith(".parquet")}


def name(path: str) -> str:
    return path.rpartition("/")[2]


def test_everything_is_planned_once_and_what_lost_is_left(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(spark, table)
    fill(spark, table, files=3)
    Between(monkeypatch, [lambda: spark.sql(f"DELETE FROM {table} WHERE id = 1")])
    done = compact(spark, table, everything=True)
    assert (done.failed_groups, done.left, done.files_before) == (1, 3, 0)
    assert check(spark, table, everything=True).files_after == 1


def test_one_that_always_loses_says_so_and_the_others_are_compacted(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
    for start in range(0, 40, 8):
        spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id % 2 AS int) FROM range({start}, {start + 8})")
    victims = iter(range(0, 40, 2))
    monkeypatch.setattr(compacting, "COMMIT_BYTES", 10**9)
    Between(monkeypatch, [lambda: spark.sql(f"DELETE FROM {table} WHERE id = {next(victims)}")] * 20)
    done = compact(spark, table, dead=1.0)
    assert done.failed_groups > 0
    assert done.left == 5, "those of partition 0"
    assert Counter(row.partition.n for row in files(spark, table)) == {0: 5, 1: 1}
    monkeypatch.undo()
    assert check(spark, table, dead=1.0).left == 0


def test_a_settle_and_a_compaction_at_once_while_rows_are_published(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table)
    writer = fill(spark, table)
    expected = {i: f"v{i}" for i in range(60)}
    failed: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)
                raise

        return run

    for turn in range(3):
        at_once = [
            threading.Thread(target=guarded(lambda: settle(spark, table))),
            threading.Thread(target=guarded(lambda: compact(spark, table, min_files=2))),
        ]
        for one in at_once:
            one.start()
        for step in range(3):
            upserted = turn * 10 + step
            writer.commit([{"id": upserted, "v": f"w{turn}", "n": 0}], [{"id": upserted}, {"id": upserted + 30}])
            expected[upserted] = f"w{turn}"
            expected.pop(upserted + 30, None)
        for one in at_once:
            one.join()
    assert failed == []
    settle(spark, table)
    assert {row[0]: row[1] for row in spark.sql(f"SELECT id, v FROM {table}").collect()} == expected
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_two_compactions_at_once_bring_no_row_back(spark: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one rewrites the data that came with deletes; by itself Iceberg would take them for older than everything."""
    create(spark, table, version=version)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
    spark.sql(f"INSERT INTO {table} SELECT id, 'old', 0 FROM range(10)")
    writer = Streaming(spark, table)
    between = [1]
    commit = compacting._Work._commit

    def after_another(work: Any, batch: Any) -> Any:
        if between:
            between.pop()
            for key in (1, 2):
                writer.upsert([{"id": key, "v": "new", "n": 1}], everywhere=True)
            assert compact(spark, table, min_files=2).files_before == 2, "those of the other partition"
        return commit(work, batch)

    monkeypatch.setattr(compacting._Work, "_commit", after_another)
    done = compact(spark, table, everything=True)
    assert (done.failed_groups, done.left) == (1, 1)
    assert sorted((row[0], row[1]) for row in spark.table(table).collect()) == [
        (key, "new" if key in {1, 2} else "old") for key in range(10)
    ]
    monkeypatch.undo()
    check(spark, table, everything=True)


@pytest.mark.parametrize("lost", ["before it plans", "before it drops what no file is left for"])
def test_a_manifest_of_deletes_that_is_not_there_is_named(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    create(spark, table)
    fill(spark, table).commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}])
    moment = "order" if lost == "before it plans" else "_drop_dangling"
    at, gone = getattr(compacting, moment), list[str]()

    def lose(*told: Any) -> Any:
        found = spark.sql(f"SELECT path FROM {table}.manifests WHERE content = 1").collect()
        for row in found:
            path = Path(urlsplit(row[0]).path)
            path.unlink()
            gone.append(path.name)
        return at(*told)

    monkeypatch.setattr(compacting, moment, lose)
    with pytest.raises(FilesGone) as stopped:
        compact(spark, table, everything=True)
    assert gone
    assert any(name in str(stopped.value) for name in gone)


def test_a_manifest_that_others_expire_while_it_looks_for_what_no_file_is_left_for_is_no_failure(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    fill(spark, table).commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}])
    dangling, looked = compacting._dangling, list[int]()

    def others_first(view: View) -> Any:
        looked.append(1)
        settle(spark, table)
        expire(spark, table, keep=timedelta(), at_least=1)
        return dangling(view)

    monkeypatch.setattr(compacting, "_dangling", others_first)
    spark.sql(f"REFRESH TABLE {table}")
    before = rows(spark, table)
    done = compact(spark, table, everything=True)
    assert looked
    assert (done.failed_groups, len(done.snapshots)) == (0, 1)
    spark.sql(f"REFRESH TABLE {table}")
    assert rows(spark, table) == before
