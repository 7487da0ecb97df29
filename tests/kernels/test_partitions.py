"""Partition values against PyIceberg's own scalar transforms, and in the JSON form that Iceberg's parser reads."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.errors import ConfigError, Stopped
from icefront.kernels.partitions import WHOLE, Partitioner

DAY = 86_400_000_000
SOURCES: list[tuple[IcebergType, pa.DataType, st.SearchStrategy[Any], list[Transform[Any, Any]]]] = [
    (
        IntegerType(),
        pa.int32(),
        st.integers(-(2**31) + 10, 2**31 - 1),
        [IdentityTransform(), BucketTransform(16), TruncateTransform(10)],
    ),
    (LongType(), pa.int64(), st.integers(-(2**40), 2**40), [IdentityTransform(), BucketTransform(3), TruncateTransform(7)]),
    (
        DecimalType(12, 2),
        pa.decimal128(12, 2),
        st.decimals(-(10**9), 10**9, places=2),
        [IdentityTransform(), BucketTransform(16), TruncateTransform(50)],
    ),
    (StringType(), pa.large_string(), st.text(max_size=6), [IdentityTransform(), BucketTransform(16), TruncateTransform(2)]),
    (BinaryType(), pa.large_binary(), st.binary(max_size=6), [IdentityTransform(), BucketTransform(16), TruncateTransform(2)]),
    (FixedType(3), pa.binary(3), st.binary(min_size=3, max_size=3), [IdentityTransform(), BucketTransform(16)]),
    (BooleanType(), pa.bool_(), st.booleans(), [IdentityTransform(), VoidTransform()]),
    (
        DateType(),
        pa.date32(),
        st.integers(-40_000, 40_000),
        [IdentityTransform(), YearTransform(), MonthTransform(), DayTransform(), BucketTransform(5)],
    ),
    (
        TimestampType(),
        pa.timestamp("us"),
        st.integers(-40_000 * DAY, 40_000 * DAY),
        [IdentityTransform(), YearTransform(), MonthTransform(), DayTransform(), HourTransform(), BucketTransform(5)],
    ),
    (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        st.integers(-40_000 * DAY, 40_000 * DAY),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
    ),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[IcebergType, pa.Array, list[Any], Transform[Any, Any]]:
    kind, arrow, values, transforms = draw(st.sampled_from(SOURCES))
    listed = draw(st.lists(st.none() | values, min_size=1, max_size=12))
    physical = pa.int32() if pa.types.is_date(arrow) else pa.int64() if pa.types.is_temporal(arrow) else arrow
    return kind, pa.array(listed, physical).cast(arrow), listed, draw(st.sampled_from(transforms))


def spec(*transforms: Transform[Any, Any]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(i, 1000 + i, t, f"p{i}") for i, t in enumerate(transforms, 1)), spec_id=3)


@settings(max_examples=200, deadline=None)
@given(columns())
def test_each_row_lands_where_the_scalar_transform_says(column):
    kind, array, listed, transform = column
    partitioner = Partitioner(Schema(NestedField(1, "c", kind)), spec(transform))
    scalar = transform.transform(kind)
    rows = pa.table({"c": array, "row": range(len(listed))})
    seen = 0
    for partition, part in partitioner.split(rows):
        for row in part["row"].to_pylist():
            assert partition.values == (scalar(listed[row]),)
            seen += 1
    assert seen == len(listed)


def one(kind: IcebergType, value: Any, transform: Transform[Any, Any]) -> tuple[Any, str]:
    schema = Schema(NestedField(1, "c", kind))
    table = pa.table([pa.array([value], schema_to_pyarrow(schema).field(0).type)], schema=schema_to_pyarrow(schema))
    ((partition, _),) = Partitioner(schema, spec(transform)).split(table)
    ((key, json),) = partition.json
    assert key == "1001"
    return json, partition.path


STAMP = dt.datetime(2026, 4, 2, 20, 58, 7, 210714)  # noqa: DTZ001
UUID = uuid.UUID("0e4d1b5c-9d6b-4b9e-8f5a-0123456789ab")


@pytest.mark.parametrize(
    ("kind", "value", "transform", "json", "path"),
    [
        (DateType(), dt.date(2026, 4, 2), IdentityTransform(), "2026-04-02", "p1=2026-04-02"),
        (TimestamptzType(), STAMP.replace(tzinfo=dt.UTC), DayTransform(), "2026-04-02", "p1=2026-04-02"),
        (TimestamptzType(), STAMP.replace(tzinfo=dt.UTC), MonthTransform(), 675, "p1=2026-04"),
        (TimestamptzType(), STAMP.replace(tzinfo=dt.UTC), YearTransform(), 56, "p1=2026"),
        (TimestamptzType(), STAMP.replace(tzinfo=dt.UTC), HourTransform(), 493100, "p1=2026-04-02-20"),
        (TimestampType(), STAMP, IdentityTransform(), "2026-04-02T20:58:07.210714", None),
        (TimestamptzType(), STAMP.replace(tzinfo=dt.UTC), IdentityTransform(), "2026-04-02T20:58:07.210714+00:00", None),
        (TimestampNanoType(), STAMP, IdentityTransform(), "2026-04-02T20:58:07.210714000", None),
        (TimeType(), dt.time(1, 2, 3), IdentityTransform(), "01:02:03.000000", None),
        (DecimalType(9, 2), Decimal("14.20"), IdentityTransform(), "14.20", "p1=14.20"),
        (DecimalType(38, 0), Decimal(10**30), IdentityTransform(), "1" + "0" * 30, None),
        (BinaryType(), b"\xab\x01", IdentityTransform(), "AB01", None),
        (FixedType(2), b"\xab\x01", IdentityTransform(), "AB01", None),
        (UUIDType(), UUID.bytes, IdentityTransform(), str(UUID), f"p1={UUID}"),
        (StringType(), "a/b ü", IdentityTransform(), "a/b ü", "p1=a%2Fb+%C3%BC"),
        (StringType(), None, IdentityTransform(), None, "p1=null"),
        (LongType(), 2**40, IdentityTransform(), 2**40, f"p1={2**40}"),
        (BooleanType(), True, IdentityTransform(), True, None),
        (LongType(), 5, VoidTransform(), None, "p1=null"),
    ],
    ids=repr,
)
def test_a_partition_value_has_the_form_that_iceberg_parses(kind, value, transform, json, path):
    found, folder = one(kind, value, transform)
    assert found == json
    assert type(found) is type(json)
    if path is not None:
        assert folder == path


def test_uuids_fall_into_the_bucket_that_iceberg_computes():
    assert one(UUIDType(), UUID.bytes, BucketTransform(16))[0] == BucketTransform(16).transform(UUIDType())(UUID)


def test_several_fields_make_one_tuple():
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))
    rows = pa.table({"a": [1, 2, 1, None, 1], "b": ["x", "x", "y", None, "x"], "row": range(5)})
    parts = {
        p.values: t["row"].to_pylist() for p, t in Partitioner(schema, spec(IdentityTransform(), IdentityTransform())).split(rows)
    }
    assert parts == {(1, "x"): [0, 4], (2, "x"): [1], (1, "y"): [2], (None, None): [3]}


def test_two_fields_may_have_one_source():
    schema = Schema(NestedField(1, "a", LongType()))
    twice = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "a"), PartitionField(1, 1001, BucketTransform(2), "b"), spec_id=1
    )
    ((partition, _),) = Partitioner(schema, twice).split(pa.table({"a": [5]}))
    assert partition.path == "a=5/b=1"


def test_a_member_of_a_struct_can_be_a_source():
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "x", LongType()))))
    inner = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"), spec_id=1)
    rows = pa.table({"s": [{"x": 7}, None]})
    assert [p.values for p, _ in Partitioner(schema, inner).split(rows)] == [(7,), (None,)]


def test_an_unpartitioned_table_is_one_partition():
    rows = pa.table({"c": [1, 2]})
    assert list(Partitioner(Schema(NestedField(1, "c", LongType())), PartitionSpec()).split(rows)) == [(WHOLE, rows)]


def test_a_transform_of_the_future_is_refused():
    with pytest.raises(ConfigError, match="unknown transform"):
        Partitioner(Schema(NestedField(1, "c", LongType())), spec(UnknownTransform("zorder")))


def test_a_partition_value_without_a_json_form_is_refused():
    with pytest.raises(Stopped, match="nan cannot be a partition value"):
        one(DoubleType(), float("nan"), IdentityTransform())
