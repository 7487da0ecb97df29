"""The Iceberg sink against real tables: fences, lost answers, foreign writers, rollback and replacement."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.errors import (
    CommitUncertain,
    ConfigError,
    FencedOut,
    FrontierGap,
    IcefrontError,
    NewerFormat,
    NotOurs,
    Replaced,
    RolledBack,
    SchemaRefused,
    Stopped,
)
from icefront.core.files import FileKind, Staged, column_ids
from icefront.core.marks import MARK_FORMAT, Identity, Mark, Position
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Wish
from icefront.core.protocol import FencedOff, Landed, NotLanded, Published
from icefront.core.timestamps import Timestamp
from icefront.iceberg import evolution
from icefront.iceberg.java import Gateway, _Fence
from icefront.iceberg.partitions import PartitionField
from icefront.iceberg.view import View
from icefront.proof.harness import wait_until
from icefront.sinks.iceberg import IcebergSink, IcebergTarget
from icefront.upkeep.settle import settle

pytestmark = pytest.mark.spark
SOURCE = Identity.of({"test": "feed"})
COLUMNS = (("id", "bigint"), ("v", "string"))


def make(spark: Any, table: str, **wanted: Any) -> IcebergSink:
    target = IcebergTarget(**{"pipeline": "p", "table": table, "keys": ("id",), "columns": COLUMNS, **wanted})
    sink = IcebergSink(spark, target, sleep=lambda _: None)
    if sink.open() is None:
        sink.prepare(())
    return sink


def claim(sink: IcebergSink, **options: Any) -> Mark:
    return sink.claim(uuid.uuid4().hex, SOURCE, **{"adopt": False, **options})


def stage(sink: IcebergSink, mark: Mark, upper: int, changes: Mapping[int, str | None], *, fresh: bool = False) -> Staged:
    """Write changes of keys (None deletes) as an epoch from the mark's frontier to `upper`."""
    epoch = Epoch(mark.frontier, Timestamp(upper))
    rows = pa.table(
        {
            "id": pa.array(list(changes), pa.int64()),
            "v": pa.array(list(changes.values()), pa.string()),
            OP: pa.array([-1 if v is None else 1 for v in changes.values()], pa.int8()),
            WALL: pa.array([epoch.lower.wall] * len(changes), pa.int64()),
            LOGICAL: pa.array([0] * len(changes), pa.int32()),
            ORDER: pa.array(range(len(changes)), pa.int64()),
        }
    )
    schema = sink.prepare(())
    files = tuple(sink.writer(epoch, schema, fresh=fresh).write([rows] if changes else [], 0, uuid.uuid4().hex[:8]))
    return Staged(
        pipeline="p",
        target=sink.target,
        epoch=epoch,
        epoch_id=epoch_id("p", sink.target, epoch),
        position=Position.of({"at": upper}),
        files=files,
        schema_id=schema.schema_id,
        settings=sink.settings(),
        fresh=fresh,
        columns=column_ids(schema),
    )


def publish(sink: IcebergSink, mark: Mark, upper: int, changes: Mapping[int, str | None], **options: Any) -> Mark:
    outcome = sink.publish(stage(sink, mark, upper, changes, **options), mark)
    assert isinstance(outcome, Published), outcome
    return outcome.mark


def state(spark: Any, table: str) -> dict[int, str]:
    rows = spark.table(table).select("id", "v").collect()
    assert len({r[0] for r in rows}) == len(rows), "a key is there twice"
    return {r[0]: r[1] for r in rows}


def count(spark: Any, table: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {table}.snapshots").collect()[0][0])


@pytest.mark.parametrize("format_version", [2, 3])
def test_epochs_upsert_and_delete_and_the_mark_moves_with_them(spark: Any, table: str, format_version: int) -> None:
    sink = make(spark, table, format_version=format_version)
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "b"}, fresh=True)
    mark = publish(sink, mark, 20, {1: "c", 2: None, 3: "d"})
    assert state(spark, table) == {1: "c", 3: "d"}
    assert make(spark, table).recall() == mark
    summary = spark.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at DESC LIMIT 1").collect()[0][0]
    assert summary["icefront.frontier"] == "20.0000000000"
    assert summary["icefront.lower"] == "10.0000000000"
    assert summary["icefront.position"] == '{"at":20}'


def test_a_woken_zombie_is_refused_and_changes_nothing(spark: Any, table: str) -> None:
    zombie = make(spark, table)
    mark = publish(zombie, claim(zombie), 10, {1: "a"})
    late = stage(zombie, mark, 20, {1: "zombie"})
    successor = make(spark, table)
    owner = claim(successor)
    before = count(spark, table)
    assert zombie.publish(late, mark) == FencedOff(owner.writer)
    assert count(spark, table) == before
    publish(successor, owner, 20, {1: "b"})
    assert zombie.publish(late, mark) == FencedOff(owner.writer)
    assert state(spark, table) == {1: "b"}
    assert zombie.present(late), "a refused writer deletes nothing"


def test_a_commit_that_never_arrived_is_sent_again_with_the_same_files(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"})
    live = sink._live()
    real = live.commit_fenced
    answers = [NotLanded("no route"), NotLanded("no route")]

    def lose_two(*args: Any, **options: Any) -> Landed | NotLanded:
        if not answers:
            return real(*args, **options)
        options["before_commit"]()
        return answers.pop()

    passed: list[str] = []
    monkeypatch.setattr(live, "commit_fenced", lose_two)
    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", passed.append)
    outcome = sink.publish(staged, mark)
    assert isinstance(outcome, Published)
    assert outcome.attempts == 3
    assert state(spark, table) == {1: "a"}
    assert passed == ["publish.before", *["publish.before-commit"] * 3, "publish.after"]


def test_an_epoch_published_by_this_writer_already_is_found_not_repeated(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"})
    first, again = sink.publish(staged, mark), sink.publish(staged, mark)
    assert isinstance(first, Published)
    assert isinstance(again, Published)
    assert again.snapshot == first.snapshot


def test_foreign_appends_compaction_and_expiry_do_not_stand_in_the_way(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "b"})
    staged = stage(sink, mark, 20, {1: "c"})
    spark.sql(f"INSERT INTO {table} VALUES (100, 'foreign')")
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)")
    outcome = sink.publish(staged, mark)
    assert isinstance(outcome, Published)
    assert state(spark, table) == {1: "c", 2: "b", 100: "foreign"}
    assert make(spark, table).recall() == outcome.mark


def test_a_rolled_back_table_stops_the_writer_and_the_next_claim(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    snapshot = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at DESC").collect()[0][0]
    mark = publish(sink, mark, 20, {1: "b"})
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {snapshot})")
    with pytest.raises(RolledBack, match="rolled back"):
        sink.publish(stage(sink, mark, 30, {1: "c"}), mark)
    with pytest.raises(RolledBack):
        claim(make(spark, table))
    assert state(spark, table) == {1: "a"}


def test_create_or_replace_is_noticed_although_the_mark_is_still_there(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 7L AS id, 'x' AS v")
    with pytest.raises((RolledBack, SchemaRefused)):
        sink.publish(stage(sink, mark, 20, {1: "b"}), mark)
    with pytest.raises(RolledBack):
        claim(make(spark, table))


def test_a_table_dropped_and_recreated_under_a_running_writer_stops_it(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    staged = stage(sink, mark, 20, {1: "b"})
    spark.sql(f"DROP TABLE {table}")
    with pytest.raises((Replaced, Stopped)):
        sink.publish(staged, mark)
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg")
    with pytest.raises(Replaced, match="recreated"):
        sink.publish(staged, mark)
    assert state(spark, table) == {}


def test_a_mark_that_somebody_removed_stops(spark: Any, table: str) -> None:
    sink = make(spark, table)
    publish(sink, claim(sink), 10, {1: "a"})
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('icefront.mark.p')")
    with pytest.raises(RolledBack, match="mark is gone"):
        claim(make(spark, table))


def test_a_mark_of_a_newer_icefront_stops_the_commit_and_the_next_claim_and_changes_nothing(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"}, fresh=True)
    newer = json.dumps({**json.loads(mark.to_json()), "format": MARK_FORMAT + 1})
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('icefront.mark.p' = '{newer}')")

    def metadata() -> list[str]:
        return [row.file for row in spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()]

    before = metadata()
    with pytest.raises(NewerFormat, match=f"format {MARK_FORMAT + 1}, this Icefront reads up to {MARK_FORMAT}"):
        sink.publish(staged, mark)
    with pytest.raises(NewerFormat):
        claim(make(spark, table))
    assert metadata() == before
    assert sink.present(staged), "what may still be published stays"


def test_a_table_with_rows_and_no_mark_is_taken_over_only_when_told(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'theirs'), (2, 'theirs')")
    sink = make(spark, table)
    with pytest.raises(NotOurs, match="--adopt"):
        claim(sink)
    mark = claim(sink, adopt=True)
    assert not sink.is_empty()
    publish(sink, mark, 10, {1: "ours"})
    assert state(spark, table) == {1: "ours", 2: "theirs"}


def test_a_table_that_is_refused_is_left_exactly_as_it_was(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg PARTITIONED BY (v)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'theirs')")
    sink = make(spark, table, partition_by=(PartitionField("bucket", "id", 4),))
    before = sink._live().metadata().metadataFileLocation()
    with pytest.raises(NotOurs):
        claim(sink)
    sink._live().refresh()
    assert sink._live().metadata().metadataFileLocation() == before


def test_a_table_of_format_1_is_refused(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ('format-version'='1')")
    with pytest.raises(ConfigError, match="format version 1"):
        make(spark, table)


def test_an_epoch_without_deletes_is_refused_once_somebody_else_wrote_rows(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "ours"}, fresh=True)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'theirs')")
    with pytest.raises(FrontierGap, match="empty table"):
        sink.publish(staged, mark)
    assert state(spark, table) == {1: "theirs"}
    publish(sink, mark, 10, {1: "ours"})
    assert state(spark, table) == {1: "ours"}


def test_a_second_pipeline_is_refused_unless_both_share(spark: Any, table: str) -> None:
    one = make(spark, table, shared=True)
    publish(one, claim(one), 10, {1: "a"})
    with pytest.raises(NotOurs, match="is written by pipeline p"):
        make(spark, table, pipeline="q")
    other = make(spark, table, pipeline="q", shared=True)
    assert claim(other).pipeline == "q"


def test_a_pipeline_that_did_not_say_shared_keeps_its_table(spark: Any, table: str) -> None:
    one = make(spark, table)
    publish(one, claim(one), 10, {1: "a"})
    with pytest.raises(NotOurs):
        make(spark, table, pipeline="q", shared=True)


def test_the_last_of_several_claims_owns_the_table(spark: Any, table: str) -> None:
    sinks = [make(spark, table) for _ in range(3)]
    marks = [claim(sink) for sink in sinks]
    assert [m.writer.generation for m in marks] == [1, 2, 3]
    outcomes = [
        sink.publish(stage(sink, mark, 10, {1: str(i)}), mark) for i, (sink, mark) in enumerate(zip(sinks, marks, strict=True))
    ]
    assert [type(o) for o in outcomes] == [FencedOff, FencedOff, Published]
    assert state(spark, table) == {1: "2"}


def test_an_empty_epoch_is_an_append_that_moves_the_frontier(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {})
    assert mark.frontier == Timestamp(10)
    operations = {r[0] for r in spark.sql(f"SELECT operation FROM {table}.snapshots").collect()}
    assert operations == {"append"}


def test_deletes_reach_rows_in_every_partition_also_after_the_partitioning_changed(spark: Any, table: str) -> None:
    sink = make(spark, table, partition_by=(PartitionField("identity", "v"),))
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "b", 3: "c"})
    changed = make(spark, table, partition_by=(PartitionField("bucket", "id", 4),))
    mark = claim(changed)
    publish(changed, mark, 20, {1: "z", 2: None})
    assert state(spark, table) == {1: "z", 3: "c"}
    assert [str(f) for f in changed._current_fields()] == ["bucket(4, id)"]


def test_an_adopted_partitioned_table_gets_an_unpartitioned_spec_and_keeps_its_own(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg PARTITIONED BY (v)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    sink = make(spark, table)
    mark = claim(sink, adopt=True)
    publish(sink, mark, 10, {1: "z"})
    assert state(spark, table) == {1: "z", 2: "b"}
    assert [str(f) for f in sink._current_fields()] == ["v"]


BY_ID = (PartitionField("bucket", "id", 4),)


def test_scoped_deletes_lie_beside_their_rows_in_a_table_that_has_one_spec(spark: Any, table: str) -> None:
    sink = make(spark, table, partition_by=BY_ID, deletes="scoped")
    mark = publish(sink, claim(sink), 10, dict.fromkeys(range(12), "a"), fresh=True)
    mark = publish(sink, mark, 20, {1: "b", 2: None, 12: "b"})
    again = make(spark, table, partition_by=BY_ID, deletes="scoped")
    mark = publish(again, claim(again), 30, {1: "c", 3: None, 2: "c"})
    expected = dict.fromkeys(range(4, 12), "a") | {0: "a", 1: "c", 2: "c", 12: "b"}
    assert state(spark, table) == expected
    deletes = spark.sql(f"SELECT DISTINCT spec_id, partition.id_bucket_4 IS NULL FROM {table}.delete_files WHERE content = 2")
    assert [tuple(row) for row in deletes.collect()] == [(0, False)]
    settle(spark, table)
    assert spark.sql(f"SELECT 1 FROM {table}.delete_files WHERE content = 2").count() == 0
    assert state(spark, table) == expected


def test_scoped_deletes_stop_when_a_second_spec_appears(spark: Any, table: str) -> None:
    sink = make(spark, table, partition_by=BY_ID, deletes="scoped")
    mark = publish(sink, claim(sink), 10, {1: "a"}, fresh=True)
    staged = stage(sink, mark, 20, {1: None})
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD v")
    with pytest.raises(Stopped, match="2 partition specs"):
        sink.publish(staged, mark)
    with pytest.raises(Stopped, match="2 partition specs"):
        make(spark, table, deletes="scoped")
    assert state(spark, table) == {1: "a"}
    goes_on = make(spark, table)
    publish(goes_on, claim(goes_on), 20, {1: None})
    assert state(spark, table) == {}


@pytest.mark.parametrize(
    ("wanted", "fact"),
    [
        (
            {"partition_by": (PartitionField("bucket", "id", 8),)},
            r"is partitioned by bucket\(4, id\), `partition_by` says bucket\(8, id\)",
        ),
        ({"keys": ("v",)}, "is partitioned by id, which is no key"),
    ],
)
def test_scoped_deletes_that_could_miss_their_rows_are_refused_and_nothing_changes(
    spark: Any, table: str, wanted: Mapping[str, Any], fact: str
) -> None:
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING iceberg PARTITIONED BY (bucket(4, id))")
    before = spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()
    with pytest.raises(ConfigError, match=fact):
        make(spark, table, deletes="scoped", **wanted)
    assert spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect() == before


def test_no_table_is_made_for_scoped_deletes_that_could_miss_their_rows(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match="v, which is no key"):
        make(spark, table, partition_by=(PartitionField("identity", "v"),), deletes="scoped")
    assert not spark.catalog.tableExists(table)


def test_where_every_change_is_a_row_partitions_need_no_keys(spark: Any, table: str) -> None:
    by_v = (PartitionField("identity", "v"),)
    sink = make(spark, table, keys=(), mode="append", partition_by=by_v, deletes="scoped")
    publish(sink, claim(sink), 10, {1: "a", 2: "b"})
    assert state(spark, table) == {1: "a", 2: "b"}


def test_wider_types_and_new_columns_evolve_and_a_repetition_changes_nothing(spark: Any, table: str) -> None:
    sink = make(spark, table, columns=(("id", "bigint"), ("n", "int")))
    mark = claim(sink)
    wishes = [Wish("n", "long", "f:1", widens="int"), Wish("extra", "string", "f:2")]
    for _ in range(2):
        schema = sink.prepare(wishes)
        assert {f.name: str(f.field_type) for f in schema.fields} == {"id": "long", "n": "long", "extra": "string"}
    assert sink.recall() == mark
    assert sink.is_empty()
    said = [row[0] for row in spark.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at").collect()]
    assert [summary.get("icefront.change") for summary in said] == [None, "schema"]


def test_a_rename_that_the_user_says_keeps_the_columns_identity(spark: Any, table: str) -> None:
    sink = make(spark, table)
    policy = replace(sink._wanted.policy, renames={"w": "v"})
    renaming = IcebergSink(spark, replace(sink._wanted, policy=policy))
    renaming.open()
    claim(renaming)
    before = renaming._schema().find_field("v").field_id
    assert renaming.prepare([Wish("w", "string", "f:1")]).find_field("w").field_id == before


@pytest.mark.parametrize(
    ("key", "file_format", "wanted", "words"),
    [
        ("BIGINT", "orc", {}, "only parquet is written"),
        ("STRING", "parquet", {}, r"column id of .* is string, and `columns` declares id as long"),
        ("INT", "parquet", {"policy": evolution.Policy(widen_type="stop")}, r"schema\.widen_type is stop"),
        ("BIGINT", "parquet", {"partition_by": (PartitionField("identity", "born"),)}, "no such column"),
    ],
)
def test_a_table_that_cannot_be_written_as_it_is_is_refused_before_it_is_claimed(
    spark: Any, table: str, key: str, file_format: str, wanted: Mapping[str, Any], words: str
) -> None:
    properties = f"TBLPROPERTIES ('write.format.default'='{file_format}')"
    spark.sql(f"CREATE TABLE {table} (id {key}, v STRING) USING iceberg {properties}")
    gateway = Gateway(spark)
    before = metadata_file(gateway, table)
    with pytest.raises(IcefrontError, match=words):
        claim(make(spark, table, **wanted))
    assert metadata_file(gateway, table) == before


def metadata_file(gateway: Gateway, table: str) -> str:
    found = gateway.load(table)
    assert found is not None
    found.refresh()
    return str(found.metadata().metadataFileLocation())


def test_a_table_that_turned_to_another_format_under_a_running_writer_stops_it(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.format.default'='orc')")
    sink.prepare(())
    with pytest.raises(ConfigError, match="only parquet is written"):
        stage(sink, mark, 10, {1: "a"})
    assert sink.is_empty()


def test_a_column_declared_wider_than_the_tables_is_widened_by_the_owner(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING iceberg")
    sink = make(spark, table)
    assert str(sink._schema().find_type("id")) == "int"
    mark = claim(sink)
    assert str(sink.prepare(()).find_type("id")) == "long"
    publish(sink, mark, 10, {2**40: "a"})
    assert state(spark, table) == {2**40: "a"}


def test_every_file_kind_of_an_epoch_is_in_its_snapshot(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    staged = stage(sink, mark, 20, {1: "b", 2: "c"})
    assert {f.kind for f in staged.files} == {FileKind.DATA, FileKind.EQUALITY_DELETES}
    sink.publish(staged, mark)
    listed = {r[0] for r in spark.sql(f"SELECT file_path FROM {table}.all_files").collect()}
    assert {f.path for f in staged.files} <= listed


def test_a_schema_change_that_loses_to_other_commits_is_planned_and_tried_again(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: to lose to them is no failure."""
    sink = make(spark, table, retries=0)
    claim(sink)
    struck: list[int] = []

    def come_between(name: str) -> None:
        if name == "schema.before" and len(struck) < 4:
            struck.append(len(struck))
            spark.sql(f"INSERT INTO {table} VALUES ({len(struck)}, 'between')")

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", come_between)
    assert sink.prepare([Wish("extra", "long", "f:1")]).column_names == ["id", "v", "extra"]
    assert state(spark, table) == dict.fromkeys((1, 2, 3, 4), "between")


def test_partitioning_by_a_column_that_is_not_there_is_a_clear_error(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match=r"partitioned by day\(born\), but has no such column; it has id, v"):
        make(spark, table, partition_by=(PartitionField("day", "born"),))
    claim(make(spark, table))
    with pytest.raises(ConfigError, match=r"partitioned by born, but has no such column"):
        claim(make(spark, table, partition_by=(PartitionField("identity", "born"),)))


def test_a_name_that_a_view_has_is_no_tables(spark: Any, table: str) -> None:
    spark.sql(f"CREATE VIEW {table} AS SELECT 1 AS id")
    with pytest.raises(ConfigError, match=f"^{table} is a view"):
        make(spark, table)


def test_a_creation_that_others_came_before_is_no_view_whatever_the_tables_name(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that the catalog says is there, and that nobody finds: asked again as often as other commits."""
    named = f"{table}.view"
    make(spark, named)
    looked: list[str] = []
    monkeypatch.setattr(Gateway, "load", lambda _, name: looked.append(name))
    with pytest.raises(CommitUncertain, match=rf"^the catalog did not make {named}: AlreadyExistsException: .*view"):
        make(spark, named, retries=2)
    assert looked == [named] * 4, "once to open it, and after each attempt"


def test_a_writer_that_was_overtaken_does_not_change_the_schema(spark: Any, table: str) -> None:
    zombie = make(spark, table)
    claim(zombie)
    claim(make(spark, table))
    with pytest.raises(FencedOut, match="is owned by writer"):
        zombie.prepare([Wish("late", "string", "feed:1")])
    assert "late" not in zombie.prepare(()).column_names


def test_a_format_that_is_not_written_is_refused_before_a_table_is_made(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match=r"write\.format\.default is orc, only parquet is written"):
        make(spark, table, properties={"write.format.default": "orc"})
    assert not spark.catalog.tableExists(table)


@pytest.mark.parametrize("moment", ["publish.before", "publish.before-commit"])
def test_an_epoch_is_written_anew_when_a_column_was_replaced_meanwhile(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before the fence looks, or after it: this catalog swaps the whole metadata, so that the commit conflicts."""
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"}, fresh=True)
    before = count(spark, table)
    passed: list[str] = []

    def replace_column(failpoint: str) -> None:
        passed.append(failpoint)
        if passed.count(moment) == 1 and failpoint == moment:
            spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
            spark.sql(f"ALTER TABLE {table} ADD COLUMN v string")

    monkeypatch.setattr("icefront.sinks.iceberg.failpoint", replace_column)
    with pytest.raises(
        Stopped,
        match=r"^column v of .* was replaced by another one since the epoch was written: v was field 2, now it is field 3",
    ):
        sink.publish(staged, mark)
    assert moment in passed
    assert (sink.recall(), count(spark, table)) == (mark, before), "it was published"

    successor = make(spark, table)
    mark = claim(successor)
    assert not successor.present(staged)
    publish(successor, mark, 10, {1: "a"}, fresh=True)
    assert state(spark, table) == {1: "a"}


def clean_out(spark: Any, table: str) -> None:
    """Expire as one may who wants the smallest metadata: with the schemas and specs that no snapshot and no file has any more."""
    options = "older_than => TIMESTAMP '2100-01-01', retain_last => 1, clean_expired_metadata => true"
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{table}', {options})")


def test_an_epoch_is_written_anew_when_the_schema_it_was_written_with_was_removed(spark: Any, table: str) -> None:
    """What its columns were, the table cannot tell any more: the note of the epoch does."""
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"})
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN v string")
    # The claim's snapshot has the schema of before.
    spark.sql(f"INSERT INTO {table} VALUES (7, 'theirs')")
    clean_out(spark, table)
    assert not sink.present(staged)
    with pytest.raises(Stopped, match=r"^column v of .* was replaced by another one since the epoch was written"):
        sink.publish(staged, mark)
    assert state(spark, table) == {7: "theirs"}
    successor = make(spark, table)
    publish(successor, claim(successor), 10, {1: "a"})
    assert state(spark, table) == {1: "a", 7: "theirs"}


def test_an_epoch_stays_good_when_no_more_than_the_schema_it_was_written_with_was_removed(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"})
    spark.sql(f"ALTER TABLE {table} ADD COLUMN w string")
    spark.sql(f"INSERT INTO {table} VALUES (7, 'theirs', 'w')")
    clean_out(spark, table)
    assert staged.schema_id not in {schema.schema_id for schema in View.of(spark, table).metadata.schemas}
    assert sink.present(staged)
    assert isinstance(sink.publish(staged, mark), Published)
    assert state(spark, table) == {1: "a", 7: "theirs"}


def test_an_epoch_without_files_does_not_depend_on_columns(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"}, fresh=True)
    heartbeat = stage(sink, mark, 20, {})
    assert heartbeat.columns
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN v string")
    assert sink.present(heartbeat)
    assert isinstance(sink.publish(heartbeat, mark), Published)


def test_a_member_of_a_struct_that_was_replaced_is_noticed_too(spark: Any, table: str) -> None:
    sink = make(spark, table)
    mark = claim(sink)
    staged = stage(sink, mark, 10, {1: "a"})
    spark.sql(f"ALTER TABLE {table} ADD COLUMN s struct<m: string, l: array<struct<x: int>>>")
    staged = replace(staged, columns=column_ids(sink.prepare(())))
    assert {"s", "s.m", "s.l", "s.l.element", "s.l.element.x"} < staged.columns.keys()
    assert sink.present(staged)
    spark.sql(f"ALTER TABLE {table} DROP COLUMN s.l.element.x")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN s.l.element.x int")
    assert not sink.present(staged)
    with pytest.raises(
        Stopped, match=r"^column s\.l\.element\.x(, \S+)* of .* was replaced by another one since the epoch was written"
    ):
        sink.publish(staged, mark)


def test_a_note_that_does_not_say_what_its_columns_were_is_written_anew(spark: Any, table: str) -> None:
    """One of an older Icefront. Without files nothing depends on them."""
    sink = make(spark, table)
    mark = claim(sink)
    staged, empty = stage(sink, mark, 10, {1: "a"}), stage(sink, mark, 10, {})
    assert sink.present(staged)
    assert not sink.present(replace(staged, columns={}))
    assert sink.present(replace(empty, columns={}))


def test_a_partition_spec_that_got_the_number_of_another_one_is_not_taken_for_it(spark: Any, table: str) -> None:
    """Expiry cleans out the newest one, which no file has; the next one gets its number."""
    sink = make(spark, table, partition_by=(PartitionField("bucket", "id", 2),))
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"}, fresh=True)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD truncate(1, v)")
    staged = stage(
        make(spark, table, partition_by=(PartitionField("bucket", "id", 2), PartitionField("truncate", "v", 1))),
        mark,
        20,
        {3: "c"},
    )
    (written,) = {file.spec_id for file in staged.files if file.kind is FileKind.DATA}
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD truncate(1, v)")
    clean_out(spark, table)
    assert not sink.present(staged)
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(4, v)")
    assert written in View.of(spark, table).metadata.specs(), "no number was given again"
    assert not sink.present(staged)
    was, now = r"which had the fields (\d+, \d+) when the epoch was written", r"has the fields (?!\1 )\d+, \d+ by now"
    with pytest.raises(Stopped, match=rf"; partition spec {written} of {table}, {was}, {now}"):
        sink.publish(staged, mark)


@pytest.mark.parametrize("how", ["immediate", "settled"])
def test_a_partitioned_table_goes_on_when_the_spec_without_partitions_was_removed(spark: Any, table: str, how: str) -> None:
    """Deletes of every partition are written in it; expiry may find that no file has it."""
    wanted = {"publish": how, "partition_by": (PartitionField("bucket", "id", 2),)}
    sink = make(spark, table, **wanted)
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    if how == "immediate":
        mark = publish(sink, mark, 20, {1: "b"})
        settle(spark, table)
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    staged = stage(sink, mark, 30, {2: "c"})
    clean_out(spark, table)
    specs = View.of(spark, table).metadata.specs()
    assert all(spec.fields for spec in specs.values()), "there is one without partitions"
    if how == "settled":
        done = sink.publish(staged, mark)
        assert isinstance(done, Published)
        mark = done.mark
    else:
        assert not sink.present(staged)
        with pytest.raises(
            Stopped, match=rf"^partition spec \d of {table}, which had no fields when the epoch was written, is gone"
        ):
            sink.publish(staged, mark)
    sink.prepare(())
    mark = publish(sink, mark, 40, {2: "d"})
    assert state(spark, table)[2] == "d"
    successor = make(spark, table, **wanted)
    publish(successor, claim(successor), 50, {2: "e"})
    assert state(spark, table)[2] == "e"


def test_two_pipelines_that_find_a_table_empty_in_the_same_moment_do_not_both_get_it(spark: Any, table: str) -> None:
    first, second = make(spark, table), make(spark, table, pipeline="q")
    claim(first)
    second._check_company = _once_blind(second)  # type: ignore[method-assign]
    with pytest.raises(NotOurs, match="is written by pipeline p"):
        claim(second)


def _once_blind(sink: IcebergSink) -> Any:
    """Let the check before the claim see nothing, as if both had looked at once; the one inside the commit sees."""
    looks = iter([True])
    check = sink._check_company
    return lambda: None if next(looks, False) else check()


def test_a_publish_leaves_nothing_behind_in_either_language(spark: Any, table: str) -> None:
    """A fence and its transaction hold each other, one in Python and one in Java: neither collector would ever free them."""
    sink = make(spark, table)
    mark = claim(sink)
    for n in range(1, 6):
        mark = publish(sink, mark, 10 * n, {n: "a"})

    def fences() -> int:
        gc.collect()
        spark._jvm.System.gc()
        return sum(isinstance(held, _Fence) for held in list(spark.sparkContext._gateway.gateway_property.pool.dict.values()))

    wait_until(lambda: fences() == 0, what="fences are still held")
