"""Iceberg's types to Spark's and back."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest

from icefront.kernels.casts import recast

ONE, TWO = UUID(int=1), UUID(int=2**127 + 5)
NESTED = pa.struct([("a", pa.uuid()), ("n", pa.int32())])
SPARK_NESTED = pa.struct([("a", pa.string()), ("n", pa.int64())])
CASES = {
    "alone": (pa.uuid(), pa.string(), [ONE, None, TWO], [str(ONE), None, str(TWO)]),
    "in a list": (pa.large_list(pa.uuid()), pa.list_(pa.string()), [[], None, [ONE, None], [TWO]], [[], None, [str(ONE), None], [str(TWO)]]),
    "in a struct": (NESTED, SPARK_NESTED, [{"a": ONE, "n": 1}, None, {"a": None, "n": 2}], [{"a": str(ONE), "n": 1}, None, {"a": None, "n": 2}]),
    "in a map": (pa.map_(pa.uuid(), NESTED), pa.map_(pa.string(), SPARK_NESTED), [[(ONE, {"a": TWO, "n": 1})], None, []], [[(str(ONE), {"a": str(TWO), "n": 1})], None, []]),
}  # fmt: skip


@pytest.mark.parametrize(("iceberg", "spark", "values", "texts"), CASES.values(), ids=CASES)
def test_a_uuid_is_its_text_wherever_it_is(iceberg: pa.DataType, spark: pa.DataType, values: object, texts: object) -> None:
    there = pa.table({"x": pa.array(texts, spark)})
    back = recast(there, pa.schema([("x", iceberg)]))
    assert back["x"].to_pylist() == values
    assert recast(back, there.schema).equals(there)
    assert recast(back.slice(1), there.schema).equals(there.slice(1))


def test_other_types_are_cast_and_columns_renamed() -> None:
    rows = pa.table({"a": pa.array([1, None], pa.int32()), "b": pa.array([b"xy", None], pa.binary())})
    schema = pa.schema([("id", pa.int64()), ("fixed", pa.binary(2))])
    assert recast(rows, schema).to_pylist() == [{"id": 1, "fixed": b"xy"}, {"id": None, "fixed": None}]
    assert recast(rows.slice(0, 0), schema).schema == schema
