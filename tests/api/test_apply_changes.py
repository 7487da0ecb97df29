"""`apply_changes`: any DataFrame, once per batch, through the same sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import icefront
from icefront import apply as applying
from icefront.core.errors import BadRow, ConfigError, FencedOut, NotOurs, SourceChanged

pytestmark = pytest.mark.spark


def frame(spark: Any, rows: list[tuple[Any, ...]], schema: str = "id bigint, v string, ts int, op string") -> Any:
    return spark.createDataFrame(rows, schema)


def state(spark: Any, table: str) -> dict[Any, Any]:
    spark.catalog.refreshTable(table)  # a stream's session is another one
    rows = spark.table(table).collect()
    assert len({r["id"] for r in rows}) == len(rows)
    return {r["id"]: r["v"] for r in rows}


def epochs(spark: Any, table: str) -> int:
    spark.catalog.refreshTable(table)
    found: int = spark.sql(f"SELECT count(*) FROM {table}.snapshots WHERE summary['icefront.lower'] IS NOT NULL").collect()[0][0]
    return found


def apply(df: Any, table: str, batch: int, **options: Any) -> Any:
    defaults: dict[str, Any] = {"keys": ["id"], "sequence_by": "ts", "op": "op", "query": "q"}
    return icefront.apply_changes(df, table, batch=batch, **{**defaults, **options})


def test_a_batch_is_netted_by_sequence_and_applied(spark: Any, table: str) -> None:
    done = apply(frame(spark, [(1, "a", 1, "c"), (1, "b", 2, "u"), (2, "x", 1, "insert"), (2, None, 3, "d")]), table, 0)
    assert (done.upserts, done.deletes) == (1, 1)
    assert state(spark, table) == {1: "b"}
    apply(frame(spark, [(1, None, 9, "delete"), (3, "c", 9, "1")]), table, 1, keys="id")
    assert state(spark, table) == {3: "c"}


def test_a_repeated_batch_does_nothing_and_gaps_are_legal(spark: Any, table: str) -> None:
    df = frame(spark, [(1, "a", 1, "c")])
    first = apply(df, table, 5)
    assert first.snapshot is not None
    assert apply(df, table, 5).snapshot is None
    assert apply(frame(spark, [(1, "old", 1, "c")]), table, 3).snapshot is None
    apply(frame(spark, [(1, "b", 1, "c")]), table, 50)
    assert state(spark, table) == {1: "b"}


def test_a_settled_batch_leaves_no_equality_delete(spark: Any, table: str) -> None:
    def equality() -> str:
        row = spark.sql(f"SELECT summary['total-equality-deletes'] FROM {table}.snapshots ORDER BY committed_at DESC").first()
        return str(row[0])

    apply(frame(spark, [(1, "a", 1, "c"), (2, "b", 1, "c")]), table, 0, publish="settled")
    apply(frame(spark, [(1, "c", 1, "u"), (2, None, 1, "d")]), table, 1)
    assert equality() != "0"
    apply(frame(spark, [(1, "d", 1, "u")]), table, 2, publish="settled")
    spark.catalog.refreshTable(table)
    assert (state(spark, table), equality()) == ({1: "d"}, "0")
    with pytest.raises(ConfigError, match="publish is 'later'"):
        apply(frame(spark, [(1, "e", 1, "u")]), table, 3, publish="later")


def test_without_op_every_row_is_an_upsert_and_new_columns_are_added(spark: Any, table: str) -> None:
    apply(frame(spark, [(1, "a")], "id bigint, v string"), table, 0, op=None, sequence_by=None)
    apply(frame(spark, [(2, "b", 7)], "id bigint, v string, n int"), table, 1, op=None, sequence_by=None)
    assert {r["id"]: r["n"] for r in spark.table(table).collect()} == {1: None, 2: 7}


def test_columns_may_be_called_like_those_that_travel_with_changes(spark: Any, table: str) -> None:
    rows = [(1, "a", 70, "x", 5, 6)]
    apply(
        frame(spark, rows, "id bigint, v string, _order int, _op string, _wall int, _logical int"),
        table,
        0,
        op=None,
        sequence_by=None,
    )
    assert [tuple(row) for row in spark.table(table).collect()] == rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1, "a", 1, "x")], "column op holds 'x'"),
        ([(1, "a", 1, None)], "column op holds None"),
        ([(None, "a", 1, "c")], "null in key column id"),
        ([(1, "a", None, "c")], "sequence_by"),
    ],
)
def test_rows_that_cannot_be_applied_stop_the_batch(spark: Any, table: str, rows: list[tuple[Any, ...]], words: str) -> None:
    apply(frame(spark, [(9, "kept", 1, "c")]), table, 0)
    with pytest.raises(BadRow, match=words):
        apply(frame(spark, rows), table, 1)
    assert state(spark, table) == {9: "kept"}


def test_a_missing_column_is_named_with_those_there_are(spark: Any, table: str) -> None:
    with pytest.raises(ConfigError, match="key column key is not among the columns"):
        apply(frame(spark, [(1, "a", 1, "c")]), table, 0, keys=["key"])


def test_a_key_of_another_type_than_the_tables_is_refused(spark: Any, table: str) -> None:
    apply(frame(spark, [(1, "a", 1, "c")]), table, 0)
    with pytest.raises(ConfigError, match="key column id is string in the DataFrame, long in the table"):
        apply(frame(spark, [("01", "b", 1, "c")], "id string, v string, ts int, op string"), table, 1)


def test_an_application_that_was_overtaken_is_fenced(spark: Any, table: str) -> None:
    apply(frame(spark, [(1, "a", 1, "c")]), table, 0)
    key = (spark.sparkContext.applicationId, table, "q")
    zombie = applying._claims.pop(key)
    apply(frame(spark, [(1, "b", 1, "c")]), table, 1)
    applying._claims[key] = zombie
    with pytest.raises(FencedOut, match="owned by writer"):
        apply(frame(spark, [(1, "zombie", 1, "c")]), table, 2)
    assert state(spark, table) == {1: "b"}


def test_a_table_with_rows_of_others_needs_adopt(spark: Any, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} USING iceberg AS SELECT 1L AS id, 'theirs' AS v")
    df = frame(spark, [(1, "ours")], "id bigint, v string")
    with pytest.raises(NotOurs):
        apply(df, table, 0, op=None, sequence_by=None)
    apply(df, table, 0, op=None, sequence_by=None, adopt=True)
    assert state(spark, table) == {1: "ours"}


def test_a_value_that_the_tables_type_does_not_hold_stops_the_batch(spark: Any, table: str) -> None:
    apply(frame(spark, [(1, 0.5)], "id bigint, v float"), table, 0, op=None, sequence_by=None)
    with pytest.raises(BadRow, match=r"column v is double, the table has float: 0.1 would become"):
        apply(frame(spark, [(2, 0.1)], "id bigint, v double"), table, 1, op=None, sequence_by=None)
    assert state(spark, table) == {1: 0.5}


def stream_once(spark: Any, source: Path, checkpoint: Path, table: str, **options: Any) -> None:
    """Let a streaming query take up what is new in a folder, and end."""
    stream = spark.readStream.schema("id bigint, v string, ts int, op string").json(str(source))
    writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    errors: list[Exception] = []

    def write(df: Any, batch: int) -> None:
        try:
            apply(df, table, batch, **options)
        except Exception as error:
            errors.append(error)
            raise

    try:
        writer.foreachBatch(write).start().awaitTermination()
    except Exception:  # noqa: BLE001 — Spark wraps what the batch raised
        raise errors[0] from None


def test_a_stream_with_a_new_checkpoint_is_not_taken_for_applied_already(spark: Any, table: str, tmp_path: Path) -> None:
    source, first, second = tmp_path / "in", tmp_path / "first", tmp_path / "second"
    source.mkdir()
    for number in (1, 2):
        (source / f"{number}.json").write_text(f'{{"id": 1, "v": "first {number}", "ts": {number}, "op": "c"}}\n')
        stream_once(spark, source, first, table)
    assert state(spark, table) == {1: "first 2"}
    (source / "3.json").write_text('{"id": 1, "v": "second", "ts": 3, "op": "u"}\n')
    with pytest.raises(
        SourceChanged, match=r'got as far as \{"batch":1\} of \{"query":"q","stream":".*"\}; batch 0 is of \{"query"'
    ) as caught:
        stream_once(spark, source, second, table)
    assert "adopt=True" in caught.value.next_step
    assert state(spark, table) == {1: "first 2"}
    stream_once(spark, source, second, table, adopt=True)
    assert state(spark, table) == {1: "second"}
    # From now on its ids count, over restarts too, and those of the first are refused.
    (source / "4.json").write_text('{"id": 2, "v": "x", "ts": 4, "op": "c"}\n')
    stream_once(spark, source, second, table)
    assert state(spark, table) == {1: "second", 2: "x"}
    for path in (second / "commits").glob("*1*"):
        path.unlink()
    stream_once(spark, source, second, table)
    assert epochs(spark, table) == 4
    with pytest.raises(SourceChanged, match="batch 2 is of"):
        stream_once(spark, source, first, table)
    with pytest.raises(SourceChanged, match=r'batch 9 is of \{"query":"q"\}'):
        apply(frame(spark, [(1, "by hand", 1, "c")]), table, 9)
    assert state(spark, table) == {1: "second", 2: "x"}


def test_a_streaming_query_applies_each_batch_once_over_restarts(spark: Any, table: str, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        stream = spark.readStream.schema("id bigint, v string, ts int, op string").json(str(source))
        writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.foreachBatch(lambda df, batch: apply(df, table, batch) and None).start().awaitTermination()

    (source / "1.json").write_text('{"id": 1, "v": "a", "ts": 1, "op": "c"}\n')
    run()
    (source / "2.json").write_text('{"id": 1, "v": "b", "ts": 2, "op": "u"}\n{"id": 2, "v": "x", "ts": 2, "op": "c"}\n')
    run()
    assert state(spark, table) == {1: "b", 2: "x"}
    # The commit of the last batch is forgotten, as after a crash between our publish and Spark's own note.
    for path in (checkpoint / "commits").glob("*1*"):
        path.unlink()
    run()
    assert epochs(spark, table) == 2
    assert state(spark, table) == {1: "b", 2: "x"}
