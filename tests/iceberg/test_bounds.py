"""Pruning by bounds, in columns: the same as comparing values one by one, and what is unknown is never pruned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from icefront.iceberg.bounds import Metric, may_meet, ranges

KINDS: list[tuple[PrimitiveType, st.SearchStrategy[bytes]]] = [
    (IntegerType(), st.binary(min_size=4, max_size=4)),
    (DateType(), st.binary(min_size=4, max_size=4)),
    (LongType(), st.binary(min_size=8, max_size=8) | st.binary(min_size=4, max_size=4)),
    (TimestampType(), st.binary(min_size=8, max_size=8)),
    (StringType(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3).map(str.encode)),
    (BinaryType(), st.binary(max_size=3)),
    (UUIDType(), st.binary(min_size=16, max_size=16)),
    (DecimalType(12, 2), st.binary(min_size=1, max_size=5)),
]
Said = tuple[bytes | None, bytes | None, int | None]


@st.composite
def files(draw: Any) -> tuple[PrimitiveType, Said, list[Said]]:
    kind, bounds = draw(st.sampled_from(KINDS))
    said = st.tuples(st.none() | bounds, st.none() | bounds, st.none() | st.integers(0, 2))
    return kind, draw(said), draw(st.lists(said, max_size=6))


def metric(*said: Said) -> Metric:
    kinds = (pa.large_binary(), pa.large_binary(), pa.int64())
    return Metric(*(pa.array([s[i] for s in said], kind) for i, kind in enumerate(kinds)))


def one_by_one(kind: PrimitiveType, one: Said, other: Said) -> bool:
    if None in one or None in other:
        return True
    if one[2] and other[2]:
        return True
    (low, high), (other_low, other_high) = ([value(kind, bound) for bound in said[:2]] for said in (one, other))
    return bool(low <= other_high and other_low <= high)


def value(kind: PrimitiveType, bound: Any) -> Any:
    return from_bytes(IntegerType() if isinstance(kind, LongType) and len(bound) == 4 else kind, bound)


@given(files())
def test_columns_are_pruned_as_values_are(drawn: tuple[PrimitiveType, Said, list[Said]]) -> None:
    kind, one, many = drawn
    found = may_meet(ranges(kind, metric(one)), ranges(kind, metric(*many)))
    assert found.tolist() == [one_by_one(kind, one, other) for other in many]


def test_bounds_that_cannot_be_trusted_prune_nothing() -> None:
    low, high = (1).to_bytes(8, "little"), (2).to_bytes(8, "little")
    far = (8).to_bytes(8, "little"), (9).to_bytes(8, "little"), 0
    for kind in (DoubleType(), None):
        assert may_meet(ranges(kind, metric((low, high, 0))), ranges(kind, metric(far))).tolist() == [True]
    days = (1).to_bytes(4, "little"), (2).to_bytes(4, "little"), 0
    assert may_meet(ranges(TimestampType(), metric(far)), ranges(TimestampType(), metric(days))).tolist() == [True]


def test_bounds_of_uuids_prune_nothing() -> None:
    """Some writers order them by signed halves: what looks like an empty range may hold everything."""
    metric = Metric(pa.array([b"\x80" * 16]), pa.array([b"\x10" * 16]), pa.array([0], pa.int64()))
    one = Metric(pa.array([b"\x10" * 16]), pa.array([b"\x10" * 16]), pa.array([0], pa.int64()))
    assert may_meet(ranges(UUIDType(), one), ranges(UUIDType(), metric)).tolist() == [True]
