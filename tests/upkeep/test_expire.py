"""Expiring snapshots of real tables, and deleting the files that nobody needs: those that somebody needs stay."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow

from icefront.changelog import changes
from icefront.core.errors import ConfigError
from icefront.iceberg.expiring import Expiring, below, folders, without
from icefront.iceberg.view import View
from icefront.proof import failpoints
from icefront.testing.feeds import ORDERS, Feed
from icefront.upkeep.compact import compact
from icefront.upkeep.expire import expire
from icefront.upkeep.health import Meter
from icefront.upkeep.need import Policy
from icefront.upkeep.settle import settle
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.lakes import Lake, orders
from tests.replica.replicas import Replica
from tests.upkeep.test_compact import fill
from tests.upkeep.test_settle import by_pyiceberg, rows

pytestmark = pytest.mark.spark

NOW = timedelta()
DAYS = 10 * 86_400


def snapshots(spark: Any, table: str) -> list[int]:
    return [s.snapshot_id for s in View.of(spark, table).metadata.snapshots]


def folder(spark: Any, table: str) -> Path:
    return Path(urlsplit(View.of(spark, table).metadata.location).path)


def on_disk(spark: Any, table: str) -> set[str]:
    return {
        str(p.relative_to(folder(spark, table))) for p in folder(spark, table).rglob("*") if p.is_file() and p.suffix != ".crc"
    }


def grow_old(spark: Any, table: str) -> None:
    """Let all files of a table look as if they were written ten days ago."""
    for path in folder(spark, table).rglob("*"):
        os.utime(path, (time.time() - DAYS, time.time() - DAYS))


def stray(spark: Any, table: str, *, old: bool = True) -> str:
    """A file that nothing in the table knows."""
    path = folder(spark, table) / "data" / f"{uuid.uuid4()}.parquet"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"what a killed task left behind")
    if old:
        os.utime(path, (time.time() - DAYS, time.time() - DAYS))
    return f"file://{path}"


def there(path: str) -> bool:
    return Path(urlsplit(path).path).exists()


# ── snapshots ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_what_only_old_snapshots_had_is_deleted(spark: Any, lake_folder: Any, table: str, version: int) -> None:
    create(spark, table, version=version)
    fill(spark, table).commit([], [{"id": 1}, {"id": 41}])
    settle(spark, table)
    compact(spark, table)
    before, old = rows(spark, table), snapshots(spark, table)
    deletes = {row[0] for row in spark.sql(f"SELECT file_path FROM {table}.all_delete_files").collect()}
    done = expire(spark, table, keep=NOW)
    assert done.snapshots == len(old) - 1
    assert (done.data_files, done.orphans) == (6, 0)
    assert done.delete_files == len(deletes) > 1, "equality deletes, and what came in their place"
    assert done.manifests > len(old)
    assert snapshots(spark, table) == old[-1:]
    assert rows(spark, table) == before == by_pyiceberg(lake_folder, table)
    files = [path for path in on_disk(spark, table) if path.startswith("data")]
    assert len(files) == 1
    again = expire(spark, table, keep=NOW)
    assert (again.snapshots, again.data_files, again.manifests) == (0, 0, 0)


def test_a_snapshot_goes_when_it_is_old_and_not_among_the_last(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=4)
    old = snapshots(spark, table)
    assert expire(spark, table).snapshots == 0, "too young"
    assert expire(spark, table, keep=NOW, at_least=9).snapshots == 0, "among the last"
    assert expire(spark, table, keep=NOW, at_least=3).snapshots == 1
    assert snapshots(spark, table) == old[-3:]


def test_the_tables_own_policy_counts_where_nothing_was_asked_for(spark: Any, table: str) -> None:
    own: dict[str, Any] = {"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "3"}
    create(spark, table, **own)
    fill(spark, table, files=6)
    assert expire(spark, table, keep=timedelta(days=1)).snapshots == 0
    assert expire(spark, table, at_least=5).snapshots == 1
    assert expire(spark, table).snapshots == 2
    assert Meter().measure(View.of(spark, table)).policy == Policy(NOW, 3)


def test_tags_and_branches_hold_their_snapshots(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=5)
    old = snapshots(spark, table)
    spark.sql(f"ALTER TABLE {table} CREATE TAG held AS OF VERSION {old[1]}")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH other AS OF VERSION {old[2]}")
    compact(spark, table)
    assert expire(spark, table, keep=NOW).snapshots == 3
    assert set(snapshots(spark, table)) == {old[1], old[2], snapshots(spark, table)[-1]}
    assert spark.sql(f"SELECT * FROM {table} VERSION AS OF 'held'").count() == 20


@pytest.mark.parametrize("properties", [pytest.param("", marks=pytest.mark.long), "'history.expire.max-ref-age-ms'='1'"])
def test_a_reader_that_was_behind_goes_on(lake: Lake, table: str, properties: str) -> None:
    """Also where tags of the table are to be gone at once: the reader's says for itself how long it stays."""
    replica = Replica(lake, table).create()
    if properties:
        lake.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.follow()
    tag = replica.tag()
    for i in range(3, 9):
        replica.sql(f"INSERT INTO T VALUES ({i}, 'c', {i})")
    compact(lake.spark, table)
    assert expire(lake.spark, table, keep=NOW).snapshots == 6
    assert replica.tag() == tag
    replica.follow()
    assert lake.spark.table(replica.target).count() == 8


def test_the_mark_survives_and_the_pipeline_goes_on(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=3, deletes=0.2)
    feed.scan(20)
    for _ in range(3):
        feed.advance(20)
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    at = View.of(lake.spark, table).metadata.current_snapshot_id
    settle(lake.spark, table)
    assert compact(lake.spark, table, min_files=2).files_after == 1
    grow_old(lake.spark, table)
    assert changes(lake.spark, table, at).collect() == []
    mark = View.of(lake.spark, table).metadata.properties["icefront.mark.orders"]
    assert expire(lake.spark, table, keep=NOW).snapshots > 3
    assert View.of(lake.spark, table).metadata.properties["icefront.mark.orders"] == mark
    feed.advance(20)
    assert lake.run(pipeline).epochs == 1
    lake.check_every_snapshot(table, "orders")


def test_a_mark_that_a_tag_holds_is_not_cut_off_by_what_others_commit_meanwhile(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it still there and not on the branch any more, the next run would take that for a rollback, and stop."""
    feed = Feed(lake.feed, tables=[ORDERS], seed=3, deletes=0.2)
    feed.scan(20)
    pipeline = lake.pipeline(**orders(table))
    lake.run(pipeline)
    lake.spark.sql(f"ALTER TABLE {table} CREATE TAG audit")
    foreign = f"INSERT INTO {table} SELECT * FROM {table} LIMIT 0"
    lake.spark.sql(foreign)
    looked = Expiring._held_marks

    def late(self: Expiring) -> Iterator[int]:
        found = list(looked(self))
        for _ in range(3):
            lake.spark.sql(foreign)
        return iter(found)

    monkeypatch.setattr(Expiring, "_held_marks", late)
    expire(lake.spark, table, keep=NOW)
    feed.advance(20)
    assert lake.run(pipeline).epochs == 1
    lake.check_every_snapshot(table, "orders")


def test_a_file_that_is_published_again_while_snapshots_expire_stays(spark: Any, table: str) -> None:
    """Its epoch was rolled back: only an expired snapshot has it, until its run publishes it once more."""
    create(spark, table)
    writer = fill(spark, table, files=1)
    arrow = schema_to_pyarrow(View.of(spark, table).metadata.schema(), include_field_ids=True)
    (path, file), (lost, other) = (
        writer._file("DATA", [{"id": 100 + i, "v": "late", "n": 0}], arrow, {"spec-id": 0, "partition": {}}) for i in range(2)
    )
    before = writer.table.table.currentSnapshot().snapshotId()
    writer.table.table.newAppend().appendFile(file).appendFile(other).commit()
    writer.table.table.manageSnapshots().rollbackTo(before).commit()

    def published() -> list[str]:
        writer.table.refresh()
        writer.table.table.newAppend().appendFile(file).commit()
        return []

    done = expire(spark, table, keep=NOW, orphans_after=None, staged=published)
    assert (done.snapshots, done.data_files) == (1, 1)
    assert (there(path), there(lost)) == (True, False)
    assert rows(spark, table).total() == 11


@pytest.mark.parametrize("place", ["expire.before", "expire.before-delete", "expire.after"])
def test_what_ends_at_a_failpoint_leaves_orphans_at_most(
    spark: Any, table: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(spark, table)
    fill(spark, table, files=5)
    compact(spark, table)
    before = rows(spark, table)
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse(f"{place}=raise"))
    with pytest.raises(failpoints.FailpointError):
        expire(spark, table, keep=NOW)
    assert rows(spark, table) == before
    grow_old(spark, table)
    done = expire(spark, table, keep=NOW)
    found = {"expire.before": (5, 0), "expire.before-delete": (0, 5), "expire.after": (0, 0)}[place]
    assert done.data_files == found[0]
    assert done.orphans >= found[1]
    assert rows(spark, table) == before
    assert len([path for path in on_disk(spark, table) if path.startswith("data")]) == 1


# ── files that nothing knows ───────────────────────────────────────────────────────────────
def test_orphans_go_by_age_and_nothing_else_does(spark: Any, lake_folder: Any, table: str) -> None:
    create(spark, table, version=2)
    fill(spark, table, files=2).commit([], [{"id": 1}])
    settle(spark, table)
    Streaming(spark, table).commit([{"id": 2, "v": "new", "n": 0}], [{"id": 2}])
    grow_old(spark, table)
    before, files = rows(spark, table), on_disk(spark, table)
    old, young = stray(spark, table), stray(spark, table, old=False)
    assert expire(spark, table, orphans_after=None).orphans == 0
    assert there(old)
    done = expire(spark, table)
    assert (done.orphans, done.metadata_files, done.snapshots) == (1, 0, 0)
    assert (there(old), there(young)) == (False, True)
    assert files <= on_disk(spark, table)
    assert rows(spark, table) == before


def test_a_staged_file_is_never_deleted_however_it_is_spelled(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=1)
    staged, spelled, orphan = (stray(spark, table) for _ in range(3))
    done = expire(spark, table, staged=lambda: [staged, spelled.replace("file://", "file:")])
    assert done.orphans == 1
    assert [there(path) for path in (staged, spelled, orphan)] == [True, True, False]
    assert list(without(["s3a://b/x", "/a", "file:/a/b"], ["s3://b/x", "file:///a"])) == ["file:/a/b"]


def test_a_file_that_is_published_while_files_are_listed_stays(spark: Any, table: str) -> None:
    """By then it is not staged any more, and what was seen of the table does not know it."""
    create(spark, table)
    writer = fill(spark, table, files=1)
    arrow = schema_to_pyarrow(View.of(spark, table).metadata.schema(), include_field_ids=True)
    path, file = writer._file("DATA", [{"id": 100, "v": "late", "n": 0}], arrow, {"spec-id": 0, "partition": {}})
    grow_old(spark, table)
    orphan = stray(spark, table)
    asked = []

    def staged() -> list[str]:
        asked.append(1)
        if len(asked) == 1:
            return [path]
        writer.table.table.newAppend().appendFile(file).commit()
        return []

    assert expire(spark, table, staged=staged).orphans == 1
    assert len(asked) == 2
    assert (there(path), there(orphan)) == (True, False)
    assert rows(spark, table).total() == 11


def test_what_others_keep_below_the_location_is_theirs(spark: Any, table: str) -> None:
    create(spark, table)
    fill(spark, table, files=1)
    own = folder(spark, table) / "mine"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.data.path'='{own}')")
    places = {"checkpoint/offsets/0": True, "database/x": True, "mine/x": False, "data/x": False, "metadata/x": False}
    for place in places:
        path = folder(spark, table) / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"v1")
    grow_old(spark, table)
    assert expire(spark, table).orphans == 3
    assert {place: (folder(spark, table) / place).exists() for place in places} == places


def test_which_folders_a_table_writes_to() -> None:
    own = ["s3://b/t/data", "s3://b/t/metadata"]
    assert folders("s3://b/t", {}) == folders("s3://b/t/", {}) == own
    said = {"write.data.path": "s3a://b/t/files/", "write.metadata.path": "s3://b", "write.object-storage.path": "s3://b/two"}
    assert folders("s3://b/t", said) == [*own, "s3a://b/t/files/"]
    assert list(below(["s3://b/t/data/x", "s3://b/t/database", "/t/x"], own)) == ["s3://b/t/data/x"]


def test_metadata_files_that_the_log_has_forgotten_go_by_age(spark: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='2')")
    fill(spark, table, files=5)
    assert expire(spark, table).metadata_files == 0, "too young"
    grow_old(spark, table)
    done = expire(spark, table)
    assert done.metadata_files > 0
    assert done.orphans == 0
    left = [path for path in on_disk(spark, table) if path.endswith(".metadata.json")]
    assert len(left) == 1 + len(View.of(spark, table).metadata.metadata_log)
    assert spark.table(table).count() == 50


def test_metadata_files_of_tables_that_a_run_makes_go_with_its_commits(lake: Lake, table: str) -> None:
    kept = {"write.metadata.previous-versions-max": "2"}
    feed = Feed(lake.feed, tables=[ORDERS], seed=3)
    feed.scan(5)
    for _ in range(5):
        feed.advance(1)
    other = f"{table}_as_the_user_says"
    said = {**kept, "write.metadata.delete-after-commit.enabled": "false"}
    for name, target, properties in (("orders", table, kept), ("others", other, said)):
        lake.run(lake.pipeline(name, **orders(target, iceberg={"properties": properties})))
    of_ours, of_theirs = (
        len([path for path in on_disk(lake.spark, name) if path.endswith(".metadata.json")]) for name in (table, other)
    )
    assert of_ours == 3
    assert of_theirs > 3


def test_tables_with_nothing_in_them(spark: Any, table: str) -> None:
    create(spark, table)
    done = expire(spark, table, keep=NOW)
    assert (done.snapshots, done.data_files, done.orphans, done.metadata_files) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"keep": timedelta(days=-1)}, "to be kept for"),
        ({"at_least": 0}, "0 snapshots are to be kept"),
        ({"orphans_after": timedelta(minutes=59)}, "looks just like one"),
    ],
)
def test_wrong_options(spark: Any, options: Any, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        expire(spark, "lake.t.any", **options)


def test_tables_that_cannot_be_expired(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        expire(spark, table)
    create(spark, table)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled'='false')")
    with pytest.raises(ConfigError, match=r"gc\.enabled"):
        expire(spark, table)
