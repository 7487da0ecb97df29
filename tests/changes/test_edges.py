"""Tables at the edge of what there is: nothing in them, too much, too wide, too deep, too large."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestampNanoType, TimeType

from icefront.changelog import changes
from icefront.core.errors import ConfigError, IcefrontError
from icefront.iceberg import history
from icefront.iceberg.java import Gateway
from icefront.iceberg.view import View
from icefront.kernels import datafiles
from icefront.kernels.datafiles import LEFT, Files, _windows
from icefront.proof.changelog import verify
from tests.changes.oracle import check, check_all, snapshots
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create, kinds

pytestmark = pytest.mark.spark


# ── little or nothing ──────────────────────────────────────────────────────────────────────
def test_snapshots_without_rows(spark: Any, table: str) -> None:
    """Empty commits before, between and after others, and a table that lost everything."""
    create(spark, table)
    nothing = f"INSERT INTO {table} SELECT 1L, 'a', 1 WHERE false"
    spark.sql(nothing)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    spark.sql(nothing)
    spark.sql(f"TRUNCATE TABLE {table}")
    spark.sql(nothing)
    points = snapshots(spark, table)
    assert len(points) == 5
    found = check(spark, table, None, points[-1])
    assert [(row["_change_ordinal"], row["_change_type"]) for row in found] == [(1, "INSERT"), (3, "DELETE")]
    assert check(spark, table, None, points[-1], net=True) == []
    check_all(spark, table)


@pytest.mark.parametrize("version", [2, 3])
def test_only_deletes(spark: Any, table: str, version: int) -> None:
    """Deletes of rows that never were, and of all that are, until nothing is left but delete files."""
    create(spark, table, version=version)
    stream = Streaming(spark, table)
    stream.commit(deletes=[{"id": 1}])
    assert changes(spark, table).collect() == []
    stream.commit([{"id": i, "v": "a", "n": 1} for i in range(4)])
    stream.commit(deletes=[{"id": 1}, {"id": 2}])
    stream.commit(deletes=[{"id": i} for i in range(9)])
    points = snapshots(spark, table)
    assert [kinds(check(spark, table, *pair)) for pair in pairwise(points)] == [
        {"INSERT": 4},
        {"DELETE": 2},
        {"DELETE": 2},
    ]
    assert check(spark, table, points[0], points[-1], net=True) == []


def test_deletes_that_hold_everywhere_after_a_dropped_partition_field_of_format_1(spark: Any, table: str) -> None:
    """Format 1 cannot drop a partition field: it stays in the spec and says nothing. The spec is unpartitioned all the same."""
    create(spark, table, version=1, mode="copy-on-write", partitioned="n")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'b', 2), (2, 'c', 1)")
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD n")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='2')")
    stream = Streaming(spark, table)
    assert stream.unpartitioned() == 1
    stream.upsert([{"id": 1, "v": "z", "n": 3}], everywhere=True)
    spark.sql(f"REFRESH TABLE {table}")
    found = check(spark, table, *snapshots(spark, table))
    assert sorted((row["_change_type"], row["v"]) for row in found) == [("DELETE", "a"), ("DELETE", "b"), ("INSERT", "z")]


def test_an_equality_delete_by_a_column_that_was_dropped(spark: Any, table: str) -> None:
    """It goes on to hold. Spark cannot read such a table any more, so what must come is written down."""
    create(spark, table, version=2)
    stream = Streaming(spark, table)
    path = stream.commit([{"id": i, "v": v, "n": 1} for i, v in enumerate("abcd")])
    stream.commit(deletes=[{"v": "b"}], keys=["v"])
    spark.sql(f"REFRESH TABLE {table}")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN v")
    stream.commit(positions=[(path, 1), (path, 2)])
    points = snapshots(spark, table)
    assert told(changes(spark, table, points[0])) == [(0, "DELETE", 1), (1, "DELETE", 2)]
    assert told(changes(spark, table, points[0], net=True)) == [(0, "DELETE", 1), (0, "DELETE", 2)]
    assert told(changes(spark, table, net=True)) == [(0, "INSERT", 0), (0, "INSERT", 3)]


def told(found: Any) -> list[tuple[Any, ...]]:
    return sorted((row["_change_ordinal"], row["_change_type"], row["id"]) for row in found.collect())


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_partitions_of_odd_floats(spark: Any, table: str, version: int) -> None:
    """NaN is one partition, and the two zeros are two."""
    granularity = {"write.delete.granularity": "partition"}
    create(spark, table, version=version, partitioned="d", columns="id bigint, v string, d double", **granularity)
    values = ", ".join(f"({i}, 'a', double('{d}'))" for i in range(3) for d in ("NaN", "0.0", "-0.0", "1.5"))
    for _ in range(2):
        spark.sql(f"INSERT INTO {table} VALUES {values}")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    stream = Streaming(spark, table)
    for sign in (0.0, -0.0):
        stream.upsert([{"id": 2, "v": "b", "d": sign}])
    spark.sql(f"REFRESH TABLE {table}")
    points = snapshots(spark, table)
    assert kinds(check(spark, table, points[1], points[2])) == {"DELETE": 8}
    assert [kinds(check(spark, table, *pair)) for pair in pairwise(points[2:])] == [{"DELETE": 2, "INSERT": 1}] * 2


# ── all alike ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.long), "merge-on-read"])
def test_rows_that_are_all_alike(spark: Any, table: str, mode: str) -> None:
    """Duplicate rows, duplicate keys and rows of nulls: as often as they are there."""
    create(spark, table, mode=mode)
    spark.sql(f"INSERT INTO {table} SELECT NULL, NULL, NULL FROM range(5)")
    spark.sql(f"INSERT INTO {table} SELECT 1, 'a', CAST(id % 2 AS int) FROM range(6)")
    spark.sql(f"UPDATE {table} SET v = 'b' WHERE n = 1")
    spark.sql(f"UPDATE {table} SET n = 0 WHERE id IS NULL")
    spark.sql(f"DELETE FROM {table} WHERE v = 'b'")
    points = snapshots(spark, table)
    both = {"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3}
    assert kinds(check(spark, table, points[1], points[2], keys=["id"])) == both
    assert kinds(check(spark, table, points[2], points[3], keys=["id"])) == {"UPDATE_BEFORE": 5, "UPDATE_AFTER": 5}
    # By all that was before: three of six rows with one key went, and five of another were updated.
    assert kinds(check(spark, table, points[1], points[4], keys=["id"], net=True)) == {
        "DELETE": 3,
        "UPDATE_BEFORE": 5,
        "UPDATE_AFTER": 5,
    }
    check_all(spark, table)


# ── wide and deep ──────────────────────────────────────────────────────────────────────────
def test_a_thousand_columns(spark: Any, table: str) -> None:
    kinds_of = ("bigint", "string", "double", "date", "decimal(20,3)")
    columns = ", ".join(f"c{i} {kinds_of[i % len(kinds_of)]}" for i in range(999))
    create(spark, table, mode="copy-on-write", columns=f"id bigint, {columns}")
    values = ("id", "concat('v', id)", "id / 3D", "date_add(DATE'2026-01-01', CAST(id AS int))", "CAST(id AS decimal(20,3))")
    row = ", ".join(values[i % len(values)] for i in range(999))
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, {row} FROM range(200)")
    spark.sql(f"UPDATE {table} SET c996 = 'changed' WHERE id % 50 = 0")
    first, second = snapshots(spark, table)
    found = [row.asDict() for row in changes(spark, table, first, second, keys=["id"]).collect()]
    sides = [{row["id"]: row for row in found if row["_change_type"] == kind} for kind in ("UPDATE_BEFORE", "UPDATE_AFTER")]
    assert [sorted(side) for side in sides] == [[0, 50, 100, 150]] * 2
    assert len(found) == 8
    for key, before in sides[0].items():
        after = sides[1][key]
        assert {name for name in before if before[name] != after[name]} == {"c996", "_change_type"}
    assert len(found[0]) == 1004


DEEP = "array<struct<m: map<string, array<struct<x: double, y: map<int, struct<z: array<binary>>>>>>, t: struct<f: float>>>"


def deep(x: str, z: str, f: str) -> str:
    inner = f"named_struct('x', double('{x}'), 'y', map(1, named_struct('z', array({z}, NULL)), 2, NULL))"
    held = f"map('a', array({inner}, NULL), 'b', NULL, 'c', array())"
    return f"array(named_struct('m', {held}, 't', named_struct('f', float('{f}'))), NULL)"


@pytest.mark.parametrize("mode", ["copy-on-write", pytest.param("merge-on-read", marks=pytest.mark.long)])
def test_deep_nesting(spark: Any, table: str, mode: str) -> None:
    """Every value counts, at any depth: one bit of a float or a byte makes another row, NaN makes none."""
    create(spark, table, mode=mode, columns=f"id bigint, d {DEEP}")
    shapes = [("NaN", "X'00'", "0.0"), ("-0.0", "X'00'", "0.0"), ("0.0", "X'00'", "-0.0"), ("0.0", "X'01'", "0.0")]
    rows = ", ".join(f"({i}, {deep(*shape)})" for i, shape in enumerate(shapes))
    spark.sql(f"INSERT INTO {table} VALUES {rows}, (8, NULL), (9, array())")
    # All of them written again: with the sign of a zero turned, with another byte, and the same.
    turned = [("NaN", "X'00'", "0.0"), ("0.0", "X'00'", "0.0"), ("0.0", "X'00'", "0.0"), ("0.0", "X'02'", "0.0")]
    rows = ", ".join(f"({i}, {deep(*shape)})" for i, shape in enumerate(turned))
    spark.sql(f"INSERT OVERWRITE {table} VALUES {rows}, (8, NULL), (9, array())")
    spark.sql(f"UPDATE {table} SET id = 10 WHERE id = 9")
    first, second, third = snapshots(spark, table)
    found = check(spark, table, first, second, keys=["id"])
    assert {(row["id"], row["_change_type"]) for row in found} == {
        (i, kind) for i in (1, 2, 3) for kind in ("UPDATE_AFTER", "UPDATE_BEFORE")
    }
    assert kinds(check(spark, table, second, third)) == {"DELETE": 1, "INSERT": 1}
    assert verify(spark, table, first, second, changes(spark, table, first, second), 3) == []
    check_all(spark, table)


def test_nested_columns_that_change_are_verified_by_their_ids(spark: Any, table: str) -> None:
    create(
        spark, table, mode="copy-on-write", columns="id bigint, l array<struct<a: int, b: string>>, m map<string, struct<c: int>>"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, array(named_struct('a', 1, 'b', 'x')), map('k', named_struct('c', 1)))")
    spark.sql(f"INSERT INTO {table} VALUES (2, array(named_struct('a', 2, 'b', 'y')), map('k', named_struct('c', 2)))")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN l.element.more string FIRST")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN l.element.b TO renamed")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN m.value.c TYPE bigint")
    spark.sql(f"UPDATE {table} SET id = 3 WHERE id = 2")
    first, _, last = snapshots(spark, table)
    found = changes(spark, table, first, last)
    assert verify(spark, table, first, last, found, 3) == []
    assert [d.times for d in verify(spark, table, first, last, found.where("_change_type = 'INSERT'"), 3)] == [1]
    rows = {(r["_change_type"], r["id"], r["l"][0]["renamed"], r["l"][0]["more"], r["m"]["k"]["c"]) for r in found.collect()}
    assert rows == {("INSERT", 2, "y", None, 2), ("DELETE", 2, "y", None, 2), ("INSERT", 3, "y", None, 2)}


@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.long), "merge-on-read"])
def test_a_column_with_an_initial_default(spark: Any, table: str, mode: str) -> None:
    """Rows of before have it, also where they are not rewritten; what is carried over has not changed."""
    create(spark, table, mode=mode)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1)")
    found = Gateway(spark).load(table)
    assert found is not None
    iceberg = spark._jvm.org.apache.iceberg
    kind, seven = iceberg.types.Types.IntegerType.get(), iceberg.expressions.Expressions.lit(7)
    found.table.updateSchema().addColumn("c", kind, None, seven).commit()
    spark.sql(f"REFRESH TABLE {table}")
    spark.sql(f"UPDATE {table} SET v = 'z' WHERE id = 1")
    spark.sql(f"UPDATE {table} SET c = 8 WHERE id = 2")
    first, second, third = snapshots(spark, table)
    steps = [changes(spark, table, *pair, keys=["id"]) for pair in ((first, second), (second, third), (first, third))]
    assert [sorted((r["_change_type"], r["v"], r["c"]) for r in step.collect()) for step in steps[:2]] == [
        [("UPDATE_AFTER", "z", 7), ("UPDATE_BEFORE", "a", 7)],
        [("UPDATE_AFTER", "b", 8), ("UPDATE_BEFORE", "b", 7)],
    ]
    for pair, step in zip(((first, second), (second, third), (first, third)), steps, strict=True):
        assert verify(spark, table, *pair, step, 3) == []


@pytest.mark.parametrize("mode", ["copy-on-write", pytest.param("merge-on-read", marks=pytest.mark.long)])
def test_a_column_of_no_type(spark: Any, table: str, mode: str) -> None:
    create(spark, table, mode=mode, columns="id bigint, u void")
    spark.sql(f"INSERT INTO {table} VALUES (1, NULL), (2, NULL), (3, NULL)")
    spark.sql(f"UPDATE {table} SET id = 4 WHERE id = 1")
    first, second = snapshots(spark, table)
    assert kinds(check(spark, table, first, second)) == {"DELETE": 1, "INSERT": 1}


def test_columns_of_types_that_cannot_be_shown(spark: Any, table: str) -> None:
    create(spark, table, columns="id bigint, v variant")
    with pytest.raises(ConfigError, match=r'column v of .* has type "variant"'):
        changes(spark, table)
    for kind in (TimeType(), TimestampNanoType()):
        other = f"{table}_{kind}"
        schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "at", kind, required=False))
        Gateway(spark).create(other, schema.model_dump_json(), {"format-version": "3"}, None)
        with pytest.raises(IcefrontError, match=r"(?i)spark does not support|cannot convert unsupported type|not supported"):
            changes(spark, other)


def test_back_over_a_widening(spark: Any, table: str) -> None:
    """What does not fit into the older snapshot's columns is told in the wider ones."""
    create(spark, table, mode="copy-on-write", columns="id bigint, n int, l array<struct<f: float>>")
    spark.sql(f"INSERT INTO {table} VALUES (1, 1, array(named_struct('f', float('0.1'))))")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN l.element.f TYPE double")
    spark.sql(f"INSERT INTO {table} VALUES (2, 5000000000, array(named_struct('f', double('0.1'))))")
    spark.sql(f"UPDATE {table} SET n = 2 WHERE id = 1")
    first, second, third = snapshots(spark, table)
    back = changes(spark, table, third, first)
    assert sorted((row["_change_type"], row["n"], row["l"][0]["f"] == 0.1) for row in back.collect()) == [
        ("DELETE", 2, False),
        ("DELETE", 5000000000, True),
        ("INSERT", 1, False),
    ]
    for begin, end in ((third, first), (second, first), (first, third)):
        assert verify(spark, table, begin, end, changes(spark, table, begin, end), 3) == []


# ── large ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.long
def test_a_row_of_fifty_megabytes(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'small', 1)")
    huge = "repeat('0123456789', 5000000)"
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, {huge}, 1 FROM range(2, 4)")
    spark.sql(f"UPDATE {table} SET n = 2 WHERE id = 3")
    points = snapshots(spark, table)
    # In Spark, so that they need not come to the driver.
    found = (
        changes(spark, table, points[1], points[2]).selectExpr("_change_type", "id", "n", "length(v)", "md5(v) AS sum").collect()
    )
    assert sorted(tuple(row)[:4] for row in found) == [("DELETE", 3, 1, 50_000_000), ("INSERT", 3, 2, 50_000_000)]
    assert found[0]["sum"] == found[1]["sum"]


class Counted(io.FileIO):
    """Counts the bytes that are read of a file."""

    bytes: ClassVar[dict[str, int]] = {}

    def read(self, size: int | None = -1, /) -> Any:
        found = super().read(size)
        self.bytes[str(self.name)] = self.bytes.get(str(self.name), 0) + len(found or b"")
        return found

    @classmethod
    def store(cls) -> Any:
        """What asks for files gets such ones."""
        return SimpleNamespace(new_input=lambda path: SimpleNamespace(open=lambda: cls(urlsplit(path).path)))


def large(rows: int) -> pa.Table:
    numbers = np.arange(rows)
    texts = np.char.add("v", numbers.astype("U8"))
    return pa.table({"id": numbers, "v": texts, "n": (numbers % 7).astype(np.int32)})


def test_one_deletion_in_a_large_file_reads_one_row_group(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(spark, table, version=3)
    rows = 2_000_000
    # Without a dictionary, so that the bytes follow the rows.
    path = Streaming(spark, table).append(large(rows), row_group_size=100_000, use_dictionary=False)
    spark.sql(f"REFRESH TABLE {table}")
    spark.sql(f"DELETE FROM {table} WHERE id = {rows // 2 + 17}")
    first, second = snapshots(spark, table)
    found = [r.asDict() for r in changes(spark, table, first, second).collect()]
    assert [(r["_change_type"], r["id"], r["v"]) for r in found] == [("DELETE", rows // 2 + 17, f"v{rows // 2 + 17}")]

    view = View.of(spark, table)
    (step,) = history.steps(view.metadata, view.metadata.snapshot_by_id(first), view.metadata.snapshot_by_id(second), net=False)
    (change,) = view.plan([step])[0]
    schema = view.layout.schema(history.schema_of(view.metadata, step.snapshot).schema_id)
    files, local = Files(Counted.store(), view.layout), urlsplit(path).path
    ((side, wanted),) = files.moved(change)
    assert side == LEFT
    assert local not in Counted.bytes, "a vector tells which row died without a look into the file"
    assert wanted is not None
    assert list(_windows(np.flatnonzero(wanted), np.array([rows]))) == [(rows // 2 + 17, rows // 2 + 18)], (
        "polars passes over all other pages"
    )
    assert sum(batch.num_rows for _, batch in files.rows(change.file, schema, wanted)) == 1
    monkeypatch.setattr(datafiles, "_local", lambda _: None)  # as of a file in an object store
    Counted.bytes.clear()
    assert sum(batch.num_rows for _, batch in files.rows(change.file, schema, wanted)) == 1
    footer = int.from_bytes(Path(local).read_bytes()[-8:-4], "little")
    group = pq.ParquetFile(local).metadata.row_group(0)
    size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
    assert size < Counted.bytes[local] < 1.5 * size + 2 * footer + (1 << 17)
