"""Row lineage: the same changes as by values, from less; and update images by row id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.errors import PythonException

from icefront.changelog import changes
from icefront.core.errors import ConfigError
from icefront.iceberg.history import Step
from icefront.iceberg.lineage import ROW_ID, ROW_ID_FIELD, SEQUENCE, SEQUENCE_FIELD
from icefront.proof.changelog import verify
from tests.changes.oracle import check, snapshots, spelled, told
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create, kinds

pytestmark = pytest.mark.spark

IMAGES = {"UPDATE_BEFORE": 1, "UPDATE_AFTER": 1}


def multiset(found: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(spelled(tuple(row.values())) for row in found)


def by_values(spark: Any, table: str, begin: int | None, end: int, **options: Any) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "has_lineage", False)
        return told(spark, table, begin, end, **options)


def both(spark: Any, table: str, begin: int | None, end: int, **options: Any) -> list[dict[str, Any]]:
    """The changes by lineage, held against time travel and against those by values."""
    found = check(spark, table, begin, end, **options)
    assert multiset(found) == multiset(by_values(spark, table, begin, end, **options))
    return found


def damage(spark: Any, table: str, is_needed: Callable[[int], bool]) -> int:
    """Make `v` unreadable in every row group of every file ever that has no row that is needed, by its id; say in how many."""
    damaged = 0
    for (path,) in spark.sql(f"SELECT DISTINCT file_path FROM {table}.all_data_files").collect():
        local = Path(urlsplit(path).path)
        parquet = pq.ParquetFile(local)
        at = parquet.schema_arrow.names.index("v")
        for group in range(parquet.num_row_groups):
            if not any(map(is_needed, parquet.read_row_group(group, columns=["id"])["id"].to_pylist())):
                chunk = parquet.metadata.row_group(group).column(at)
                with local.open("r+b") as stream:
                    stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                    stream.write(b"\xff" * chunk.total_compressed_size)
                damaged += 1
    return damaged


# ── what Spark writes ──────────────────────────────────────────────────────────────────────
def test_copy_on_write_is_told_by_ids_and_only_the_rest_is_read(spark: Any, table: str) -> None:
    """Four rewrites of one file: from the second on, ids and sequence numbers are in the files."""
    create(spark, table, mode="copy-on-write")
    # Row groups of a hundred rows: more often Iceberg does not look at their size.
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.parquet.row-group-size-bytes'='1000')")
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, concat('v', id), CAST(id % 3 AS int) FROM range(2000)")
    spark.sql(f"UPDATE {table} SET v = 'x' WHERE id BETWEEN 5 AND 7")
    spark.sql(f"UPDATE {table} SET v = 'y' WHERE id BETWEEN 7 AND 9")
    spark.sql(f"DELETE FROM {table} WHERE id IN (8, 20)")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id, 'z' v, 1 n FROM range(10, 12) UNION ALL SELECT 5000, 'z', 1) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 10 THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    points = snapshots(spark, table)
    expected = [{"UPDATE_BEFORE": 3, "UPDATE_AFTER": 3}] * 2 + [{"DELETE": 2}, {**IMAGES, "DELETE": 1, "INSERT": 1}]
    for (begin, end), wanted in zip(pairwise(points), expected, strict=True):
        assert kinds(told(spark, table, begin, end, keys=[ROW_ID])) == wanted
    steps = both(spark, table, points[0], points[-1])
    net = both(spark, table, points[0], points[-1], net=True, keys=["id"])
    assert kinds(net) == {"UPDATE_BEFORE": 5, "UPDATE_AFTER": 5, "DELETE": 3, "INSERT": 1}

    assert damage(spark, table, lambda key: key < 100 or key == 5000) > 20
    assert multiset(told(spark, table, points[0], points[-1])) == multiset(steps)
    assert multiset(told(spark, table, points[0], points[-1], net=True, keys=["id"])) == multiset(net)
    assert multiset(told(spark, table, points[0], points[-1], net=True, keys=[ROW_ID])) == multiset(net)
    with pytest.raises(PythonException, match="thrift"):
        by_values(spark, table, points[0], points[-1])


def test_rows_that_only_moved_are_not_read_at_all(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction in another order, of files with vectors on them, looked at as if it were not silent."""
    create(spark, table, partitioned="n")
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(300)")
    spark.sql(f"UPDATE {table} SET v = 'x', n = 1 WHERE id % 50 = 0")
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table}', strategy => 'sort', sort_order => 'id DESC', "
        "options => map('rewrite-all', 'true'))"
    )
    monkeypatch.setattr(Step, "is_silent", False)
    first, second, third = snapshots(spark, table)
    assert both(spark, table, second, third) == []
    assert check(spark, table, second, third, keys=[ROW_ID]) == []
    net = both(spark, table, first, third, net=True, keys=["id"])
    assert kinds(net) == {"UPDATE_BEFORE": 6, "UPDATE_AFTER": 6}
    damage(spark, table, lambda _: False)
    assert told(spark, table, second, third) == []


def test_merge_on_read_updates_have_images_by_row_id(spark: Any, table: str) -> None:
    create(spark, table)
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (1, 'a', 1), (1, 'b', 1), (2, 'b', 1)")
    spark.sql(f"UPDATE {table} SET id = id + 10, v = concat(v, '!') WHERE n = 1 AND v = 'b'")
    spark.sql(f"DELETE FROM {table} WHERE id = 11")
    spark.sql(f"UPDATE {table} SET n = 1")
    first, second, third, fourth = snapshots(spark, table)
    assert kinds(both(spark, table, first, second)) == {"DELETE": 2, "INSERT": 2}
    updated = check(spark, table, first, second, keys=[ROW_ID])
    assert [(row["_change_type"], row["id"], row["v"]) for row in sorted(updated, key=lambda row: row["id"])] == [
        ("UPDATE_BEFORE", 1, "b"),
        ("UPDATE_BEFORE", 2, "b"),
        ("UPDATE_AFTER", 11, "b!"),
        ("UPDATE_AFTER", 12, "b!"),
    ]
    assert kinds(check(spark, table, second, third, keys=[ROW_ID])) == {"DELETE": 1}
    assert check(spark, table, third, fourth, keys=[ROW_ID]) == []
    assert kinds(check(spark, table, first, fourth, net=True, keys=[ROW_ID])) == {**IMAGES, "DELETE": 1}
    assert ROW_ID not in changes(spark, table, keys=[ROW_ID]).columns


def test_an_upgraded_table_has_lineage_from_its_second_commit_on(spark: Any, table: str) -> None:
    create(spark, table, mode="copy-on-write", version=2)
    spark.sql(f"INSERT INTO {table} SELECT id, concat('v', id), CAST(id % 3 AS int) FROM range(9)")
    with pytest.raises(ConfigError, match="has format 2, and rows have ids since format 3"):
        changes(spark, table, keys=[ROW_ID])
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    spark.sql(f"UPDATE {table} SET v = 'x' WHERE id = 3")
    spark.sql(f"UPDATE {table} SET v = 'y' WHERE id IN (0, 3)")
    first, second, third = snapshots(spark, table)
    assert kinds(both(spark, table, first, second, keys=["id"])) == IMAGES
    assert kinds(check(spark, table, first, second, keys=[ROW_ID])) == {"DELETE": 1, "INSERT": 1}
    assert kinds(check(spark, table, second, third, keys=[ROW_ID])) == {"UPDATE_BEFORE": 2, "UPDATE_AFTER": 2}
    assert kinds(both(spark, table, first, third, net=True, keys=["id"])) == {"UPDATE_BEFORE": 2, "UPDATE_AFTER": 2}
    assert kinds(both(spark, table, None, third)) == {"INSERT": 12, "DELETE": 3}
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    spark.sql(f"DELETE FROM {table} WHERE id = 0")
    rolled = snapshots(spark, table)[-1]
    assert kinds(both(spark, table, third, rolled, keys=["id"])) == {**IMAGES, "DELETE": 1}


# ── what other writers write ───────────────────────────────────────────────────────────────
class Rewriting(Streaming):
    """Replaces all files by one, with such ids and sequence numbers as it is told; None: without those columns."""

    def replace(self, rows: Sequence[tuple[Any, ...]], lineage: Sequence[tuple[int | None, int | None]] | None = None) -> None:
        self.table.refresh()
        update = self.table.table.newOverwrite()
        tasks = self.table.table.newScan().planFiles().iterator()
        while tasks.hasNext():
            update.deleteFile(tasks.next().file())
        fields = [*Schema.model_validate_json(self.table.schema_json()).fields]
        written = [dict(zip(("id", "v", "n"), row, strict=True)) for row in rows]
        if lineage:
            fields.append(NestedField(ROW_ID_FIELD, ROW_ID, LongType(), required=False))
            fields.append(NestedField(SEQUENCE_FIELD, SEQUENCE, LongType(), required=False))
            written = [row | {ROW_ID: i, SEQUENCE: n} for row, (i, n) in zip(written, lineage, strict=True)]
        arrow: pa.Schema = schema_to_pyarrow(Schema(*fields), include_field_ids=True)
        update.addFile(self._file("DATA", written, arrow, {"spec-id": 0, "partition": {}})[1])
        update.commit()


ROWS = [(1, "a", 1), (2, "b", 1), (2, "b", 1), (3, "c", 1)]


@pytest.fixture
def rewriting(spark: Any, table: str) -> Rewriting:
    """A table with rows of the ids 0 to 3, all of the first commit."""
    create(spark, table)
    writer = Rewriting(spark, table)
    writer.commit([dict(zip(("id", "v", "n"), row, strict=True)) for row in ROWS])
    return writer


def test_a_rewrite_that_does_not_keep_ids_is_told_by_values(spark: Any, table: str, rewriting: Rewriting) -> None:
    rewriting.replace([*ROWS[:3], (3, "changed", 1), (4, "d", 1)])
    first, second = snapshots(spark, table)
    assert kinds(both(spark, table, first, second, keys=["id"])) == {**IMAGES, "INSERT": 1}
    assert kinds(check(spark, table, first, second, keys=[ROW_ID])) == {"DELETE": 1, "INSERT": 2}


def test_ids_that_are_there_twice_are_told_by_values(spark: Any, table: str, rewriting: Rewriting) -> None:
    """Were the first row of an id taken for the one that was carried over, a change would be missing."""
    rewriting.replace([(1, "changed", 1), (1, "a", 1), *ROWS[1:]], [(0, 1), (0, 1), (1, 1), (2, 1), (3, 1)])
    rewriting.replace([(1, "a", 1), *ROWS[1:]], [(0, 1), (1, 1), (2, 1), (3, 1)])
    first, second, third = snapshots(spark, table)
    assert kinds(both(spark, table, first, second)) == {"INSERT": 1}
    assert kinds(both(spark, table, second, third)) == {"DELETE": 1}
    assert both(spark, table, first, third, net=True) == []


def test_equal_rows_and_rows_that_change_places(spark: Any, table: str, rewriting: Rewriting) -> None:
    """One of two equal rows is updated; two rows take one another's values, which changes nothing; a row is written as it was."""
    rewriting.replace([(3, "c", 1), (2, "b", 1), (2, "changed", 1), (1, "a", 1)], [(0, None), (1, None), (2, None), (3, None)])
    first, second = snapshots(spark, table)
    assert kinds(both(spark, table, first, second)) == {"DELETE": 1, "INSERT": 1}
    found = check(spark, table, first, second, keys=[ROW_ID])
    assert [(row["_change_type"], row["id"], row["v"]) for row in found] == [
        ("UPDATE_BEFORE", 2, "b"),
        ("UPDATE_AFTER", 2, "changed"),
    ]


def test_a_writer_that_lies_about_ids_is_believed_and_found_out(spark: Any, table: str, rewriting: Rewriting) -> None:
    rewriting.replace([(1, "secretly changed", 1), *ROWS[1:]], [(0, 1), (1, 1), (2, 1), (3, 1)])
    first, second = snapshots(spark, table)
    found = changes(spark, table, first, second)
    assert found.collect() == []
    assert {(d.times, "secretly changed" in d.row) for d in verify(spark, table, first, second, found, 5)} == {
        (1, False),
        (-1, True),
    }
    assert kinds(by_values(spark, table, first, second)) == {"DELETE": 1, "INSERT": 1}


def test_rows_that_equality_deletes_replace_are_told_by_values(spark: Any, table: str, rewriting: Rewriting) -> None:
    """Their successors have new ids. A later rewrite, with that delete still there, is told by ids again."""
    rewriting.commit([{"id": 1, "v": "z", "n": 1}, {"id": 3, "v": "c", "n": 1}], deletes=[{"id": 1}, {"id": 3}])
    spark.sql(f"REFRESH TABLE {table}")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.update.mode'='copy-on-write')")
    spark.sql(f"UPDATE {table} SET v = 'y' WHERE id = 1")
    first, second, third = snapshots(spark, table)
    assert kinds(both(spark, table, first, second, keys=["id"])) == IMAGES
    assert kinds(check(spark, table, first, second, keys=[ROW_ID])) == {"DELETE": 1, "INSERT": 1}
    assert kinds(check(spark, table, second, third, keys=[ROW_ID])) == IMAGES
    assert kinds(both(spark, table, first, third, net=True, keys=["id"])) == IMAGES


# ── keys ───────────────────────────────────────────────────────────────────────────────────
def test_row_ids_are_the_only_key(spark: Any, table: str) -> None:
    create(spark, table)
    with pytest.raises(ConfigError, match="_row_id is not the only key"):
        changes(spark, table, keys=[ROW_ID, "id"])
