"""Settling real tables: every reader sees the same rows before and after, and engines without equality deletes can read it then."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from icefront.changelog import changes
from icefront.core.errors import ConnectionFailed, FilesGone
from icefront.iceberg.live import DeleteKind
from icefront.iceberg.view import View
from icefront.proof import failpoints
from icefront.spark import settle as settle_job
from icefront.upkeep import settle as settling
from icefront.upkeep.compact import compact
from icefront.upkeep.expire import expire
from icefront.upkeep.settle import debt, settle
from tests.changes.oracle import spelled
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.engines import WITHOUT_EQUALITY_DELETES

pytestmark = pytest.mark.spark


def rows(spark: Any, table: str) -> Counter[Any]:
    spark.sql(f"REFRESH TABLE {table}")
    return Counter(tuple(spelled(v) for v in row) for row in spark.table(table).collect())


def by_pyiceberg(lake_folder: Any, table: str) -> Counter[Any]:
    """PyIceberg refuses equality deletes."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake_folder}/catalog.db")
    found = catalog.load_table(table.partition(".")[2]).scan().to_arrow()
    return Counter(tuple(spelled(v) for v in row.values()) for row in found.to_pylist())


def metadata(lake_folder: Any, table: str) -> str:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake_folder}/catalog.db")
    return catalog.load_table(table.partition(".")[2]).metadata_location


def deletes(spark: Any, table: str) -> Counter[DeleteKind]:
    view = View.of(spark, table)
    manifests = view.manifests()
    found = manifests.entries(list(manifests.of(view.metadata.current_snapshot()).values()))
    return Counter(d.kind for entries in found for d in entries.deletes)


def check(spark: Any, lake_folder: Any, table: str) -> settling.Settled:
    """Settle, and compare what two engines read with what was there."""
    before = rows(spark, table)
    done = settle(spark, table)
    assert rows(spark, table) == before
    assert by_pyiceberg(lake_folder, table) == before
    assert DeleteKind.EQUALITY not in deletes(spark, table)
    assert not debt(View.of(spark, table)).equality
    assert settle(spark, table).snapshots == (), "there is nothing left to settle"
    return done


@pytest.mark.parametrize(
    ("version", "partitioned"),
    [
        (2, ""),
        (3, "n"),
        (2, "bucket(3, id)"),
        *(pytest.param(*kind, marks=pytest.mark.long) for kind in ((3, ""), (2, "n"), (3, "bucket(3, id)"))),
    ],
)
def test_upserts_are_settled(spark: Any, lake_folder: Any, table: str, version: int, partitioned: str) -> None:
    create(spark, table, version=version)
    if partitioned:
        # Icefront's own tables begin unpartitioned: that is what global equality deletes need.
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD {partitioned}")
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(40)")
    spark.sql(f"INSERT INTO {table} SELECT id, concat('w', id), CAST(id % 3 AS int) FROM range(40, 60)")
    writer = Streaming(spark, table)
    writer.commit([{"id": 5, "v": "new", "n": 2}], [{"id": 5}, {"id": 41}, {"id": 999}])
    writer.commit([{"id": 5, "v": "newer", "n": 2}], [{"id": 5}, {"id": 7}])
    done = check(spark, lake_folder, table)
    assert done.equality_files == 2
    assert done.dead_rows == 4, "5 twice, 41 and 7"
    assert len(done.snapshots) == 1
    wanted = rows(spark, table)
    for engine in WITHOUT_EQUALITY_DELETES:
        found = engine(metadata(lake_folder, table)).to_pylist()
        assert Counter(tuple(spelled(row[name]) for name in ("id", "v", "n")) for row in found) == wanted, engine.__name__
    kind = DeleteKind.VECTOR if version == 3 else DeleteKind.POSITION
    assert deletes(spark, table) == {kind: done.files_with_dead_rows}


def test_nothing_of_it_is_a_change(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(10)")
    Streaming(spark, table).commit([], [{"id": 1}])
    before = View.of(spark, table).metadata.current_snapshot_id
    check(spark, lake_folder, table)
    assert changes(spark, table, before).collect() == []


def test_vectors_and_position_deletes_of_others_are_merged_not_lost(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table, version=2)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(20)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (1, 2)")
    assert deletes(spark, table) == {DeleteKind.POSITION: 1}
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    Streaming(spark, table).commit([], [{"id": 2}, {"id": 3}])
    assert check(spark, lake_folder, table).dead_rows == 3, "a vector stands for all"
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    Streaming(spark, table).commit([], [{"id": 5}])
    check(spark, lake_folder, table)
    assert sorted(row[0] for row in spark.table(table).collect()) == [0, *range(6, 20)]
    assert deletes(spark, table)[DeleteKind.VECTOR] == 1


def test_keys_of_several_columns_nulls_and_several_sets_of_them(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'b', 1), (1, NULL, 1), (NULL, 'a', 1), (NULL, NULL, 2), (2, 'x', 3)")
    writer = Streaming(spark, table)
    writer.commit([], [{"id": 1, "v": None}, {"id": None, "v": "a"}], keys=("id", "v"))
    writer.commit([], [{"n": 2}], keys=("n",))
    writer.commit([], [{"v": "x"}], keys=("v",))
    assert check(spark, lake_folder, table).dead_rows == 4
    assert {tuple(row) for row in spark.table(table).collect()} == {(1, "a", 1), (1, "b", 1)}


def test_keys_that_were_widened_and_renamed(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    Streaming(spark, table).commit([], [{"n": 1}], keys=("n",))
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN n TO number")
    Streaming(spark, table).commit([], [{"number": 2}], keys=("number",))
    check(spark, lake_folder, table)
    assert [tuple(row) for row in spark.table(table).collect()] == [(3, "c", 3)]


def test_partitions_of_every_kind(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table, columns="id bigint, d date, t timestamp_ntz, x decimal(9,2), s string, b binary")
    for term in ("days(t)", "months(d)", "x", "truncate(2, s)", "bucket(2, b)"):
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD {term}")
    values = [
        f"({i}, DATE '2024-0{i}-03', TIMESTAMP_NTZ '1969-12-3{i % 2} 23:59:59', {i}.25, 's{i}/ü', X'0{i}')" for i in range(1, 6)
    ]
    spark.sql(f"INSERT INTO {table} VALUES {', '.join(values)}, (6, NULL, NULL, NULL, NULL, NULL)")
    Streaming(spark, table).commit([], [{"id": 2}, {"id": 6}])
    assert check(spark, lake_folder, table).dead_rows == 2


def three_files(spark: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    for start in (0, 10, 20):
        Streaming(spark, table).commit([{"id": i, "v": "v", "n": 0} for i in range(start, start + 10)])


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_large_settles_take_several_commits(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_files(spark, table, version)
    Streaming(spark, table).commit([], [{"id": i} for i in (1, 11, 21)])
    monkeypatch.setattr(settling, "COMMIT_BYTES", 1)
    assert len(check(spark, lake_folder, table).snapshots) == 3


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_one_that_ends_between_its_commits_leaves_a_right_table(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of at least three commits, after each of which the next one may never come; and rows are published before it is done anew."""
    three_files(spark, table, version)
    monkeypatch.setattr(settling, "COMMIT_BYTES", 1)
    for key, (place, commit) in enumerate((("settle.before-commit", 2), ("settle.after", 1), ("settle.after", 2))):
        Streaming(spark, table).commit([{"id": 100 + key, "v": "new", "n": key}], [{"id": k} for k in (key, key + 10, key + 20)])
        before, equality = rows(spark, table), deletes(spark, table)[DeleteKind.EQUALITY]
        monkeypatch.setattr(failpoints, "_armed", failpoints.parse(f"{place}=raise@{commit}"))
        with pytest.raises(failpoints.FailpointError):
            settle(spark, table)
        assert rows(spark, table) == before, (place, commit)
        assert deletes(spark, table)[DeleteKind.EQUALITY] == equality, "they stay until the last commit"
    monkeypatch.setattr(failpoints, "_armed", {})
    Streaming(spark, table).commit([], [{"id": 100}, {"id": 29}])
    assert len(check(spark, lake_folder, table).snapshots) > 1


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_settles_of_one_file_do_not_pile_up_deletes(spark: Any, lake_folder: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(20)")
    for key in (1, 2, 3):
        Streaming(spark, table).commit([], [{"id": key}])
        assert check(spark, lake_folder, table).dead_rows == key, "those of before are in it"
    assert deletes(spark, table) == {DeleteKind.VECTOR if version == 3 else DeleteKind.POSITION: 1}


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_position_deletes_that_name_rows_of_several_files_stay_as_long_as_one_needs_them(
    spark: Any, lake_folder: Any, table: str, version: int
) -> None:
    create(spark, table, version=2, **{"write.delete.granularity": "partition"})
    for start in (0, 10):
        Streaming(spark, table).commit([{"id": i, "v": "v", "n": 0} for i in range(start, start + 10)])
    spark.sql(f"DELETE FROM {table} WHERE id IN (1, 11)")
    assert deletes(spark, table) == {DeleteKind.POSITION: 1}
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='{version}')")
    Streaming(spark, table).commit([], [{"id": 2}])
    check(spark, lake_folder, table)
    Streaming(spark, table).commit([], [{"id": 3}, {"id": 12}])
    check(spark, lake_folder, table)
    assert sorted(row[0] for row in spark.table(table).collect()) == [0, *range(4, 11), *range(13, 20)]


@pytest.mark.parametrize("partitioned", ["", "n"])
def test_a_column_that_was_dropped_and_added_again(spark: Any, lake_folder: Any, table: str, partitioned: str) -> None:
    create(spark, table)
    if partitioned:
        spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD {partitioned}")
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(5)")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN v string")
    Streaming(spark, table).commit([], [{"id": 1}])
    check(spark, lake_folder, table)
    assert sorted(row[0] for row in spark.table(table).collect()) == [0, 2, 3, 4]


def test_a_large_backlog_is_settled_oldest_first_a_part_at_a_time(
    spark: Any, lake_folder: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(20)")
    writer = Streaming(spark, table)
    for start in range(5):
        writer.commit([{"id": start, "v": f"w{start}", "n": 0}], [{"id": start}, {"id": start + 10}])
    monkeypatch.setattr("icefront.iceberg.settling.MOST_KEYS", 4)
    seen: list[int] = []
    take = settling._round

    def counted(session: Any, view: View, owed: Any) -> Any:
        seen.append(len(owed.equality))
        return take(session, view, owed)

    monkeypatch.setattr(settling, "_round", counted)
    before = rows(spark, table)
    done = settle(spark, table)
    assert (seen, done.equality_files, done.rounds, len(done.snapshots)) == ([2, 2, 1], 5, 3, 3)
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)


# ── beside others ──────────────────────────────────────────────────────────────────────────
def rewrite(spark: Any, table: str) -> None:
    """Rewrite every file of a table, and expire what knew the old ones."""
    compact(spark, table, everything=True)
    assert expire(spark, table, keep=timedelta(), at_least=1).data_files > 0


class Between:
    """Something that happens after a settle has found its dead rows and before it commits, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
        self.left = [happens]
        commit = settling._commit

        def first(*arguments: Any) -> Any:
            if self.left:
                self.left.pop()()
            return commit(*arguments)

        monkeypatch.setattr(settling, "_commit", first)


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_publish_between_does_not_matter(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(10)")
    writer = Streaming(spark, table)
    writer.commit([], [{"id": 1}])
    Between(monkeypatch, lambda: writer.commit([{"id": 2, "v": "later", "n": 0}], [{"id": 2}]))
    done = settle(spark, table)
    assert done.rounds == 1, "they commute"
    assert deletes(spark, table)[DeleteKind.EQUALITY] == 1, "the later one is not settled yet"
    check(spark, lake_folder, table)
    assert sorted((row[0], row[1]) for row in spark.table(table).collect()) == sorted(
        (i, "later" if i == 2 else "v") for i in range(10) if i != 1
    )


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_rollback_of_its_first_part_makes_it_plan_anew(
    spark: Any, lake_folder: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    for start in (0, 10):
        Streaming(spark, table).commit([{"id": i, "v": "v", "n": 0} for i in range(start, start + 10)])
    Streaming(spark, table).commit([], [{"id": i} for i in (1, 11)])
    planned = View.of(spark, table).metadata.current_snapshot_id
    monkeypatch.setattr(settling, "COMMIT_BYTES", 1)
    commit = settling._commit
    rolled: list[int] = []

    def rolled_back_once(live: Any, view: View, change: Any) -> Any:
        if change.after and not rolled:
            rolled.append(1)
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {planned})")
        return commit(live, view, change)

    monkeypatch.setattr(settling, "_commit", rolled_back_once)
    before = rows(spark, table)
    assert settle(spark, table).rounds == 2
    assert rolled
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("into_new_spec", [False, True])
def test_a_compaction_between_makes_it_plan_anew(
    spark: Any, lake_folder: Any, table: str, version: int, into_new_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table, version=version)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id % 2 AS int) FROM range(10)")
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', CAST(id % 2 AS int) FROM range(10, 20)")
    Streaming(spark, table).commit([], [{"id": 1}, {"id": 11}])

    def compact() -> None:
        if into_new_spec:
            spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD n")
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")

    Between(monkeypatch, compact)
    before = rows(spark, table)
    settle(spark, table)
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)
    assert deletes(spark, table)[DeleteKind.EQUALITY] == 0


def test_files_that_a_compaction_and_an_expiry_removed_after_the_plan_make_it_plan_anew(
    spark: Any, lake_folder: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_files(spark, table, 3)
    Streaming(spark, table).commit([], [{"id": 1}, {"id": 11}])
    find_dead = settle_job.find_dead
    looks: list[int] = []

    def others_first(*work: Any) -> Any:
        looks.append(len(work[-1]))
        if len(looks) == 1:
            rewrite(spark, table)
            Streaming(spark, table).commit([], [{"id": 21}])
        return find_dead(*work)

    monkeypatch.setattr(settle_job, "find_dead", others_first)
    before = rows(spark, table)
    assert settle(spark, table).rounds == 2
    assert looks == [3, 1]
    before.subtract([tuple(map(spelled, (21, "v", 0)))])
    assert rows(spark, table) == +before == by_pyiceberg(lake_folder, table)


def test_a_file_that_is_not_there_at_all_stops_it_and_is_named(spark: Any, table: str) -> None:
    create(spark, table)
    Streaming(spark, table).commit([{"id": 1, "v": "v", "n": 0}])
    Streaming(spark, table).commit([], [{"id": 1}])
    lost = Path(urlsplit(spark.sql(f"SELECT file_path FROM {table}.data_files").head()[0]).path)
    lost.unlink()
    with pytest.raises(FilesGone, match=rf"^a file that {table} names is not there: .*{lost.name}"):
        settle(spark, table)


def test_a_file_that_is_not_there_at_all_is_named_also_while_others_commit(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    Streaming(spark, table).commit([{"id": 1, "v": "v", "n": 0}])
    Streaming(spark, table).commit([], [{"id": 1}])
    lost = Path(urlsplit(spark.sql(f"SELECT file_path FROM {table}.data_files").head()[0]).path)
    lost.unlink()
    find_dead = settle_job.find_dead
    looks: list[int] = []

    def others_first(*work: Any) -> Any:
        looks.append(len(work[-1]))
        Streaming(spark, table).commit([{"id": 10 + len(looks), "v": "v", "n": 0}])
        return find_dead(*work)

    monkeypatch.setattr(settle_job, "find_dead", others_first)
    with pytest.raises(FilesGone, match=lost.name):
        settle(spark, table)
    assert len(looks) == 2


def metadata_files(spark: Any, table: str, kind: str) -> list[Path]:
    query = {
        "manifest": f"SELECT path FROM {table}.manifests",
        "manifest list": f"SELECT manifest_list FROM {table}.snapshots ORDER BY committed_at DESC",
    }
    return [Path(urlsplit(row[0]).path) for row in spark.sql(query[kind]).collect()]


@pytest.mark.parametrize(("kind", "by"), [("manifest", "driver"), ("manifest", "workers"), ("manifest list", "driver")])
def test_metadata_that_is_not_there_stops_it_and_is_named(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch, kind: str, by: str
) -> None:
    create(spark, table)
    Streaming(spark, table).commit([{"id": 1, "v": "v", "n": 0}])
    Streaming(spark, table).commit([], [{"id": 1}])
    if by == "workers":
        monkeypatch.setattr("icefront.iceberg.live.MANY_MANIFESTS", 0)
    lost = metadata_files(spark, table, kind)[0]
    lost.unlink()
    with pytest.raises(FilesGone, match=rf"^a file that {table} names is not there: \S*{lost.name}\n") as stopped:
        settle(spark, table)
    assert [path.rpartition("/")[2] for path in stopped.value.paths] == [lost.name]


def test_manifests_that_cannot_be_read_are_the_storages_matter(spark: Any, table: str) -> None:
    create(spark, table)
    Streaming(spark, table).commit([{"id": 1, "v": "v", "n": 0}])
    Streaming(spark, table).commit([], [{"id": 1}])
    lost = metadata_files(spark, table, "manifest")[0]
    lost.unlink()
    lost.mkdir()
    with pytest.raises(ConnectionFailed, match=rf"^the manifests of {table} cannot be read: .*{lost.name}"):
        settle(spark, table)


def test_a_compaction_that_began_before_and_ends_after_it_is_refused(spark: Any, lake_folder: Any, table: str) -> None:
    """Without the validations of both, the row comes back: its new file knows nothing of the vector."""
    create(spark, table)
    Streaming(spark, table).commit([{"id": i, "v": "v", "n": 0} for i in range(5)])
    writer = Streaming(spark, table)
    writer.table.refresh()
    old = writer.table.table.newScan().planFiles().iterator().next().file()
    at = writer.table.table.currentSnapshot()
    Streaming(spark, table).commit([], [{"id": 1}])
    # As rewrite_data_files does it: rows as they were at its beginning, with that sequence number.
    rewrite = writer.table.table.newRewrite().validateFromSnapshot(at.snapshotId()).dataSequenceNumber(at.sequenceNumber())
    arrow = schema_to_pyarrow(Schema.model_validate_json(writer.table.schema_json()), include_field_ids=True)
    _, new = writer._file("DATA", [{"id": i, "v": "v", "n": 0} for i in range(5)], arrow, {"spec-id": 0, "partition": {}})
    rewrite.deleteFile(old)
    rewrite.addFile(new)
    check(spark, lake_folder, table)
    with pytest.raises(Exception, match="found new"):
        rewrite.commit()
    assert sorted(row[0] for row in spark.table(table).collect()) == [0, 2, 3, 4]


def test_a_foreign_delete_of_the_same_rows_between_is_kept(
    spark: Any, lake_folder: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(10)")
    Streaming(spark, table).commit([], [{"id": 1}])
    Between(monkeypatch, lambda: spark.sql(f"DELETE FROM {table} WHERE id = 2"))
    done = settle(spark, table)
    assert done.rounds == 2, "a vector of another's has come: two cannot be"
    assert sorted(row[0] for row in spark.table(table).collect()) == [0, *range(3, 10)]
    assert by_pyiceberg(lake_folder, table) == rows(spark, table)


def test_two_settles_at_once_leave_a_right_table(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(10)")
    Streaming(spark, table).commit([], [{"id": 1}, {"id": 3}])
    before = rows(spark, table)
    both = [threading.Thread(target=settle, args=(spark, table)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)
    assert deletes(spark, table) == {DeleteKind.VECTOR: 1}
