"""DataFrames as changes, in workers: every value arrives as it is, or the batch stops."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

from icefront.core.errors import BadRow
from icefront.core.ports import EpochWriter
from icefront.spark.frames import FrameWork, as_changes

NOON = dt.datetime(2026, 1, 2, 12)  # noqa: DTZ001
DECIMAL = Decimal("1.23")


def cast_to(kind: pa.DataType, values: pa.Array) -> list[Any]:
    arrow = pa.schema([pa.field("id", pa.int64()), pa.field("v", kind)])
    work = FrameWork(cast("EpochWriter", None), arrow.serialize().to_pybytes(), ("id",), None, None)
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.chunked_array([values[:1], values[1:]])})
    changed = as_changes(rows, work)
    assert changed.schema.field("v").type == kind
    found: list[Any] = changed["v"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([0.5, None, float("inf")]), pa.float32()),
        (pa.array([1.5, None], pa.float32()), pa.float64()),
        (pa.array([1, None, 2**31 - 1], pa.int64()), pa.int32()),
        (pa.array([1, None], pa.int32()), pa.int64()),
        (pa.array([3.0, None]), pa.int64()),
        (pa.array([DECIMAL, None], pa.decimal128(10, 2)), pa.decimal128(5, 3)),
        (pa.array([Decimal("1.20")], pa.decimal128(10, 2)), pa.decimal128(5, 1)),
        (pa.array([DECIMAL], pa.decimal128(10, 2)), pa.float64()),
        (pa.array([NOON], pa.timestamp("us")), pa.timestamp("us")),
        (pa.array([NOON], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array(["x", None]), pa.large_string()),
        (pa.array([b"x", None]), pa.large_binary()),
        (pa.array([[0.5, None], None, []]), pa.large_list(pa.float32())),
        (pa.array([{"a": 1}, None]), pa.struct([("b", pa.int32()), ("a", pa.int32())])),
        (pa.array([[("x", 0.5)], None], pa.map_(pa.string(), pa.float64())), pa.map_(pa.large_string(), pa.float32())),
        (pa.array([None, None], pa.null()), pa.struct([("a", pa.int32())])),
    ],
)
def test_values_that_the_tables_type_holds_exactly_are_cast(values: pa.Array, kind: pa.DataType):
    found = cast_to(kind, values)
    given = values.to_pylist()
    if pa.types.is_struct(kind):
        assert found == [row and {"b": None, **row} for row in given]
    elif pa.types.is_floating(kind):
        assert found == [None if value is None else float(value) for value in given]
    else:
        assert found == given


def test_not_a_number_stays_one():
    (value,) = cast_to(pa.float32(), pa.array([float("nan")]))
    assert value != value  # noqa: PLR0124


def test_an_instant_is_the_same_in_any_zone():
    values = pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))
    assert cast_to(pa.timestamp("us", "UTC"), values) == [NOON.replace(tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        (pa.array([0.5, 0.1]), pa.float32(), "is double, the table has float: 0.1 would become 0.1"),
        (pa.array([1, 2**31], pa.int64()), pa.int32(), "is int64, the table has int32: .*2147483648 not in range"),
        (pa.array([2**24 + 1], pa.int64()), pa.float32(), "is int64, the table has float"),
        (pa.array([1.239]), pa.decimal128(5, 2), "1.239 would become 1.24"),
        (pa.array([DECIMAL]), pa.decimal128(5, 1), "would cause data loss"),
        (pa.array([Decimal("12345678901234567.89")]), pa.float64(), "would become"),
        (pa.array([Decimal("123.45")]), pa.decimal128(4, 2), "does not fit in precision 4"),
        (pa.array([1.5]), pa.int64(), "truncated"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), pa.timestamp("us"), "no timestamptz is a timestamp"),
        (pa.array([NOON], pa.timestamp("us")), pa.timestamp("us", "UTC"), "no timestamp is a timestamptz"),
        (pa.array([NOON], pa.timestamp("us")), pa.date32(), "no timestamp is a date32"),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us"), "would lose data"),
        (pa.array([2]), pa.bool_(), "no number is a bool"),
        (pa.array(["01"]), pa.int64(), "no text is a number"),
        (pa.array([[0.1]]), pa.large_list(pa.float32()), "0.1 would become 0.1"),
        (pa.array([{"a": 0.1}]), pa.struct([("a", pa.float32())]), "0.1 would become 0.1"),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]), "its member b would be dropped"),
        (pa.array([[("x", 0.1)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.large_string(), pa.float32()), "would become"),
    ],
)
def test_a_cast_that_would_change_a_value_stops_the_batch(values: pa.Array, kind: pa.DataType, words: str):
    with pytest.raises(BadRow, match=f"column v .*{words}") as caught:
        cast_to(kind, values)
    assert "cast it before applying" in caught.value.next_step


def changes_of(rows: list[dict[str, Any]], sequence_by: str | None = None) -> list[Any]:
    arrow = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("s", pa.int64())])
    work = FrameWork(cast("EpochWriter", None), arrow.serialize().to_pybytes(), ("id",), sequence_by, None)
    found: list[Any] = as_changes(pa.Table.from_pylist(rows, schema=arrow), work).to_pylist()
    return found


def test_changes_of_one_key_that_nothing_orders_stop_the_batch():
    with pytest.raises(BadRow, match="two different changes of id=1 in one batch, with no sequence_by"):
        changes_of([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}])
    with pytest.raises(BadRow, match="two different changes of id=1 in one batch, with the same s"):
        changes_of([{"id": 1, "v": "a", "s": 5}, {"id": 1, "v": "b", "s": 5}], "s")


def test_a_change_that_is_said_twice_is_one_change():
    assert len(changes_of([{"id": 1, "v": "a"}, {"id": 1, "v": "a"}])) == 2
    assert len(changes_of([{"id": 1, "v": "a", "s": 5}, {"id": 1, "v": "b", "s": 6}], "s")) == 2
