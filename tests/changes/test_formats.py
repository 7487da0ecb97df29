"""Tables whose files are ORC and Avro, or of several formats, or not even written for Iceberg: against plain time travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from icefront.changelog import changes
from icefront.core.errors import Stopped
from icefront.core.marks import START
from icefront.iceberg.java import Gateway
from icefront.iceberg.view import View
from icefront.proof.changelog import verify
from icefront.sources.iceberg import IcebergSource
from tests.changes.oracle import check, snapshots
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create, kinds, told

pytestmark = pytest.mark.spark

OTHERS = ("orc", "avro")
FORMAT = "write.format.default"


def written_as(spark: Any, table: str, form: str) -> None:
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{FORMAT}'='{form}', 'write.delete.format.default'='{form}')")


def formats(spark: Any, table: str, content: int) -> set[str]:
    """What is really there."""
    return {r[0].lower() for r in spark.sql(f"SELECT file_format FROM {table}.all_files WHERE content = {content}").collect()}


def check_whole(spark: Any, table: str) -> None:
    """All steps in one, and what remains of them."""
    points = snapshots(spark, table)
    check(spark, table, None, points[-1])
    check(spark, table, points[0], points[-1], net=True)


KINDS_OF_TABLES = {
    "ORC, position deletes in partitions": ("orc", "merge-on-read", 2, "n", "orc"),
    "Avro, position deletes": pytest.param("avro", "merge-on-read", 2, "", "avro", marks=pytest.mark.long),
    "ORC, deletion vectors": pytest.param("orc", "merge-on-read", 3, "", "puffin", marks=pytest.mark.long),
    "Avro, copy-on-write in partitions": ("avro", "copy-on-write", 3, "n", ""),
}  # fmt: skip


@pytest.mark.parametrize(("form", "mode", "version", "partitioned", "deletes"), KINDS_OF_TABLES.values(), ids=KINDS_OF_TABLES)
def test_inserts_updates_deletes_and_merges(
    spark: Any, table: str, form: str, mode: str, version: int, partitioned: str, deletes: str
) -> None:
    create(spark, table, mode=mode, version=version, partitioned=partitioned, **{FORMAT: form})
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(30)")
    spark.sql(f"INSERT INTO {table} VALUES (100, 'x', 0), (100, 'x', 0), (NULL, NULL, NULL)")
    spark.sql(f"UPDATE {table} SET v = 'changed' WHERE id IN (3, 4, 5)")
    spark.sql(f"DELETE FROM {table} WHERE id % 7 = 0")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id, 'merged' v, 1 n FROM range(25, 35)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 26 THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    assert formats(spark, table, 0) == {form}
    assert formats(spark, table, 1) == ({deletes} if deletes else set())
    points = snapshots(spark, table)
    updated = check(spark, table, points[1], points[2], keys=["id"])
    assert kinds(updated) == {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3}
    assert kinds(check(spark, table, points[2], points[3], keys=["id"])) == {"DELETE": 5}
    merged = check(spark, table, points[3], points[4], keys=["id"])
    assert kinds(merged) == {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3, "DELETE": 1, "INSERT": 6}
    check(spark, table, points[0], points[-1], net=True)


def test_a_table_whose_format_changes(spark: Any, table: str) -> None:
    """Files of one format are replaced by those of another, and have deletes of a third, within one snapshot."""
    create(spark, table, version=2)
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(30)")
    written_as(spark, table, "orc")
    spark.sql(f"UPDATE {table} SET v = 'orc' WHERE id < 4")
    written_as(spark, table, "avro")
    spark.sql(f"DELETE FROM {table} WHERE id IN (0, 29)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.update.mode'='copy-on-write')")
    spark.sql(f"UPDATE {table} SET v = 'avro' WHERE id IN (1, 20)")
    assert formats(spark, table, 0) == {"parquet", "orc", "avro"}
    assert formats(spark, table, 1) == {"orc", "avro"}
    points = snapshots(spark, table)
    assert kinds(check(spark, table, points[0], points[1], keys=["id"])) == {"UPDATE_BEFORE": 4, "UPDATE_AFTER": 4}
    assert told(check(spark, table, points[1], points[2])) == [("DELETE", 0, "orc"), ("DELETE", 29, "v29")]
    rewritten = check(spark, table, points[2], points[3], keys=["id"])
    assert told(rewritten) == [
        ("UPDATE_AFTER", 1, "avro"),
        ("UPDATE_AFTER", 20, "avro"),
        ("UPDATE_BEFORE", 1, "orc"),
        ("UPDATE_BEFORE", 20, "v20"),
    ]
    check_whole(spark, table)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {points[1]})")
    assert kinds(check(spark, table, points[3], points[1], keys=["id"])) == {"UPDATE_BEFORE": 2, "UPDATE_AFTER": 2, "INSERT": 2}


TYPES = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "u", UUIDType(), required=False),
    NestedField(3, "l", ListType(10, UUIDType(), element_required=False), required=False),
    NestedField(
        4,
        "s",
        StructType(NestedField(11, "u", UUIDType(), required=False), NestedField(12, "x", BinaryType(), required=False)),
        required=False,
    ),
    NestedField(5, "f", FixedType(4), required=False),
    NestedField(6, "p", DecimalType(38, 10), required=False),
    NestedField(7, "t", TimestamptzType(), required=False),
    NestedField(8, "nt", TimestampType(), required=False),
    NestedField(9, "v", StringType(), required=False),
    NestedField(13, "d", ListType(14, DoubleType(), element_required=False), required=False),
    NestedField(15, "m", MapType(16, IntegerType(), 17, StringType(), value_required=False), required=False),
)


def test_values_of_every_type_are_the_same_in_every_format(spark: Any, table: str) -> None:
    """Whatever format a row is rewritten to, it is the row that it was."""
    Gateway(spark).create(table, TYPES.model_dump_json(), {"format-version": "2"}, None)
    spark.sql(
        f"INSERT INTO {table} VALUES (1, '{UUID(int=1)}', array('{UUID(int=2**127)}', NULL), named_struct('u', '{UUID(int=7)}', 'x', X'00ff'), "
        "X'00010203', 1.5, TIMESTAMP'0001-01-01 00:00:00.123456', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', '', "
        "array(double('NaN'), double('-0.0'), NULL), map(1, 'ü', 2, NULL)), "
        "(2, NULL, array(), named_struct('u', NULL, 'x', NULL), NULL, NULL, NULL, NULL, NULL, array(), map()), "
        "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    for form in ("orc", "avro", "parquet", "orc"):
        written_as(spark, table, form)
        spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table}")
    spark.sql(
        f"UPDATE {table} SET s = named_struct('u', '{UUID(int=8)}', 'x', s.x), d = array(double('NaN'), 0.0, NULL) WHERE id = 1"
    )
    points = snapshots(spark, table)
    for begin, end in pairwise(points[:-1]):
        assert changes(spark, table, begin, end).count() == 0
    updated = changes(spark, table, points[-2], points[-1], keys=["id"])
    assert verify(spark, table, points[-2], points[-1], updated, 5) == []
    shown = {(r[0], r[1], r[2], str(r[3][1])) for r in updated.select("_change_type", "u", "s.u", "d").collect()}
    one = str(UUID(int=1))
    assert shown == {("UPDATE_BEFORE", one, str(UUID(int=7)), "-0.0"), ("UPDATE_AFTER", one, str(UUID(int=8)), "0.0")}
    everything = changes(spark, table, None, points[-1])
    assert verify(spark, table, None, points[-1], everything, 5) == []


@pytest.mark.parametrize(
    ("form", "mode", "version"), [pytest.param("orc", "copy-on-write", 2, marks=pytest.mark.long), ("avro", "merge-on-read", 3)]
)
def test_schemas_that_change(spark: Any, table: str, form: str, mode: str, version: int) -> None:
    columns = "id bigint, v string, n int, s struct<a: int, b: array<float>>"
    create(spark, table, mode=mode, version=version, columns=columns, **{FORMAT: form})
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1, named_struct('a', 1, 'b', array(float(0.5)))), (2, 'b', 2, NULL)")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN extra decimal(10,2)")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN s.a TYPE bigint")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 3, named_struct('a', 3, 'b', array()), 1.50)")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO renamed")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra FIRST")
    spark.sql(f"UPDATE {table} SET renamed = 'z' WHERE id = 1")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN n")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    points = snapshots(spark, table)
    updated = [row.asDict() for row in changes(spark, table, points[1], points[2], keys=["id"]).collect()]
    assert {(r["_change_type"], r["renamed"], r["n"]) for r in updated} == {("UPDATE_BEFORE", "a", 1), ("UPDATE_AFTER", "z", 1)}
    for begin, end in pairwise(points):
        assert verify(spark, table, begin, end, changes(spark, table, begin, end), 5) == []
    everything = changes(spark, table)
    assert "n" not in everything.columns
    assert everything.count() == 6


# ── deletes in other formats ───────────────────────────────────────────────────────────────
class Deleting:
    """Commits delete files through Iceberg's own writers, in any format."""

    def __init__(self, spark: Any, table: str, form: str) -> None:
        found = Gateway(spark).load(table)
        assert found is not None
        self.spark, self.table, self.form = spark, found.table, form
        self.iceberg = spark._jvm.org.apache.iceberg

    def equality(self, column: str, values: Sequence[str]) -> None:
        names = self.spark._jvm.java.util.ArrayList()
        names.add(column)
        schema = self.table.schema().select(names)
        ids = self.spark.sparkContext._gateway.new_array(self.spark._jvm.int, 1)
        ids[0] = schema.findField(column).fieldId()
        factory = self._factory().equalityFieldIds(ids).equalityDeleteRowSchema(schema).build()
        writer = factory.newEqualityDeleteWriter(self._place(), self.table.spec(), None)
        for value in values:
            record = self.iceberg.data.GenericRecord.create(schema)
            record.setField(column, value)
            writer.write(record)
        self._commit(writer)

    def positions(self, path: str, *positions: int) -> None:
        writer = self._factory().build().newPositionDeleteWriter(self._place(), self.table.spec(), None)
        for position in positions:
            writer.write(self.iceberg.deletes.PositionDelete.create().set(path, position))
        self._commit(writer)

    def _factory(self) -> Any:
        form = self.iceberg.FileFormat.fromString(self.form)
        return getattr(self.iceberg.data, "GenericFileWriterFactory$Builder")(self.table).deleteFileFormat(form)

    def _place(self) -> Any:
        output = self.table.io().newOutputFile(f"{self.table.location()}/data/{uuid4()}.{self.form}")
        return self.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(output)

    def _commit(self, writer: Any) -> None:
        writer.close()
        self.table.refresh()
        self.table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


@pytest.mark.parametrize(("form", "data"), [("avro", "parquet"), pytest.param("orc", "avro", marks=pytest.mark.long)])
def test_deletes_of_another_format_than_the_rows(spark: Any, table: str, form: str, data: str) -> None:
    """Equality and position deletes, also by a column that is dropped later."""
    create(spark, table, version=2, **{FORMAT: data})
    spark.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1L, 'a', 1), (2L, 'b', 1), (3L, 'c', 1), (4L, NULL, 1)"
    )
    deleting = Deleting(spark, table, form)
    deleting.equality("v", ["a", "nothing"])
    path, first = spark.sql(f"SELECT _file, _pos FROM {table} WHERE id = 2").collect()[0]
    deleting.positions(path, first)
    Streaming(spark, table).commit([{"id": 1, "v": "z", "n": 1}], deletes=[{"id": 3}])
    points = snapshots(spark, table)
    assert told(check(spark, table, points[0], points[1])) == [("DELETE", 1, "a")]
    assert told(check(spark, table, points[1], points[2])) == [("DELETE", 2, "b")]
    assert told(check(spark, table, points[2], points[3])) == [("DELETE", 3, "c"), ("INSERT", 1, "z")]
    check_whole(spark, table)
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    spark.sql(f"INSERT INTO {table} VALUES (9, 9)")
    found = changes(spark, table, points[0], net=True).collect()
    # Without that column the two rows 1 are alike; had the delete been lost, there would be one too many.
    assert sorted((row["_change_type"], row["id"]) for row in found) == [("DELETE", 2), ("DELETE", 3), ("INSERT", 9)]


# ── files that were not written for Iceberg ────────────────────────────────────────────────
def write_plain(spark: Any, folder: Path, form: str) -> None:
    """Files without field ids, whose column `n` is only in their path."""
    rows = spark.sql("SELECT id, concat('v', id) v, named_struct('a', CAST(id AS int), 'b', array(id)) s, id % 2 n FROM range(8)")
    if form != "avro":
        rows.write.partitionBy("n").format(form).save(str(folder))
        return
    for n in range(2):
        place = folder / f"n={n}"
        place.mkdir(parents=True)
        pl.DataFrame({"id": range(n, 8, 2), "v": [f"v{i}" for i in range(n, 8, 2)]}).write_avro(place / "part-0.avro", name="row")


@pytest.mark.parametrize(
    ("form", "mode"),
    [
        ("parquet", "copy-on-write"),
        pytest.param("parquet", "merge-on-read", marks=pytest.mark.long),
        ("orc", "merge-on-read"),
        pytest.param("avro", "copy-on-write", marks=pytest.mark.long),
    ],
)
def test_files_of_a_migrated_table(spark: Any, table: str, form: str, mode: str, tmp_path: Path) -> None:
    """Found by name mapping, also in structs, and by their path; then renamed, rewritten and deleted from."""
    nested = "s struct<a: int, b: array<bigint>>, " if form != "avro" else ""
    create(spark, table, mode=mode, version=2, columns=f"id bigint, v string, {nested}n bigint", partitioned="n")
    write_plain(spark, tmp_path / "plain", form)
    spark.sql(f"CALL lake.system.add_files(table => '{table}', source_table => '`{form}`.`{tmp_path / 'plain'}`')")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO renamed")
    if nested:
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.a TO inside")
    spark.sql(f"UPDATE {table} SET renamed = 'z' WHERE id = 3")
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    first, second, third = snapshots(spark, table)
    assert {(row["id"], row["n"]) for row in check(spark, table, None, first)} == {(i, i % 2) for i in range(8)}
    updated = [row.asDict(recursive=True) for row in changes(spark, table, first, second, keys=["id"]).collect()]
    assert [(r["_change_type"], r["renamed"], r["n"]) for r in updated] == [("UPDATE_BEFORE", "v3", 1), ("UPDATE_AFTER", "z", 1)]
    if nested:
        assert [row["s"] for row in updated] == [{"inside": 3, "b": [3]}] * 2
    assert [(r["_change_type"], r["id"], r["n"]) for r in check(spark, table, second, third)] == [("DELETE", 4, 0)]
    everything = changes(spark, table, None, third)
    assert verify(spark, table, None, third, everything, 5) == []


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize("kind", ["float", pytest.param("double", marks=pytest.mark.long)])
def test_numbers_that_are_only_in_the_path_of_a_migrated_file(
    spark: Any, table: str, form: str, kind: str, tmp_path: Path
) -> None:
    create(spark, table, version=2, columns=f"id bigint, f {kind}", partitioned="f")
    plain = tmp_path / "plain"
    spark.sql(f"SELECT id, CAST(id AS {kind}) / 2 - 1 f FROM range(3)").write.partitionBy("f").format(form).save(str(plain))
    spark.sql(f"CALL lake.system.add_files(table => '{table}', source_table => '`{form}`.`{plain}`')")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{FORMAT}'='{form}')")
    spark.sql(f"INSERT INTO {table} VALUES (7, CAST('NaN' AS {kind})), (8, CAST('-Infinity' AS {kind})), (9, NULL)")
    first, second = snapshots(spark, table)
    assert {(row["id"], row["f"]) for row in check(spark, table, None, first)} == {(0, -1.0), (1, -0.5), (2, 0.0)}
    check(spark, table, first, second)
    check(spark, table, None, second)


@pytest.mark.parametrize("form", OTHERS)
def test_deletes_by_a_member_of_a_struct_that_was_dropped_since_then(spark: Any, table: str, form: str) -> None:
    create(spark, table, version=2, columns="id bigint, s struct<a: int, b: int>", **{FORMAT: form})
    spark.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1L, named_struct('a', 1, 'b', 10)), "
        "(2L, named_struct('a', 2, 'b', 20)), (3L, NULL)"
    )
    Streaming(spark, table).commit([], deletes=[{"s": {"a": 1}}], keys=["s.a"])
    spark.sql(f"ALTER TABLE {table} DROP COLUMN s.a")
    spark.sql(f"INSERT INTO {table} VALUES (4, named_struct('b', 40))")
    first, second, third = snapshots(spark, table)
    assert [row["id"] for row in changes(spark, table, first, second).collect()] == [1]
    now = {row["id"]: row["s"] and row["s"].asDict() for row in changes(spark, table, None, third, net=True).collect()}
    assert now == {2: {"b": 20}, 3: None, 4: {"b": 40}}


# ── how they are read ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("form", OTHERS)
def test_nothing_stays_staged_and_a_frame_can_be_looked_at_again(spark: Any, table: str, form: str) -> None:
    create(spark, table, mode="copy-on-write", version=3, **{FORMAT: form})
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1)")
    spark.sql(f"UPDATE {table} SET v = 'z' WHERE id = 1")
    found = changes(spark, table, keys=["id"])
    manager = spark._jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
    staged = manager.getClass().getDeclaredField("tasksMap")
    staged.setAccessible(True)
    assert staged.get(manager).isEmpty()
    once = told([row.asDict() for row in found.collect()])
    spark.sql(f"DELETE FROM {table}")
    assert told([row.asDict() for row in found.filter("id > 0").collect()]) == once
    assert once == [("INSERT", 1, "a"), ("INSERT", 2, "b"), ("UPDATE_AFTER", 1, "z"), ("UPDATE_BEFORE", 1, "a")]


@dataclass
class Followed:
    """A table as a source sees it."""

    spark: Any
    name: str

    def look(self) -> View:
        return View.of(self.spark, self.name)

    def keep(self, tag: str, snapshot: int) -> bool:
        raise AssertionError(tag, snapshot)


@pytest.mark.parametrize("form", OTHERS)
def test_a_pipeline_refuses_them_before_it_reads(spark: Any, table: str, form: str) -> None:
    create(spark, table, version=3, **{FORMAT: form})
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    with pytest.raises(Stopped, match=rf"\.{form} in {table}.* are not Parquet"):
        IcebergSource(Followed(spark, table), tag="tag").observe(START, [])
