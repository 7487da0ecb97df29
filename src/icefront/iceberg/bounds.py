"""What manifests say about a column of many files, and which of those files may hold a value that another one names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Values = np.ndarray[Any, Any]
_ORDERED = (
    BooleanType,
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
    StringType,
    FixedType,
    BinaryType,
)
_EIGHT = (TimeType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)


@dataclass(frozen=True, slots=True)
class Metric:
    """A column's bounds and numbers of nulls, file by file, as manifests have them. Null is unknown."""

    lower: pa.Array
    upper: pa.Array
    nulls: pa.Array


class Ranges(NamedTuple):
    """The same as values that can be compared; `known` says of which files all of it is."""

    low: Values
    high: Values
    nulls: Mask
    known: Mask

    def at(self, places: Any) -> Ranges:
        return Ranges(*(column[places] for column in self))


def ranges(kind: PrimitiveType | None, metric: Metric) -> Ranges:
    """Read what manifests say about a column of some type."""
    nulls = pc.fill_null(metric.nulls, 0).to_numpy() > 0
    said: Mask = metric.nulls.is_valid().to_numpy(zero_copy_only=False)
    # Of floats, bounds leave NaN out; of uuids, writers do not agree on their order; of places, bounds are boxes.
    if not isinstance(kind, _ORDERED):
        nothing = np.zeros(len(nulls), np.int64)
        return Ranges(nothing, nothing, nulls, np.zeros(len(nulls), bool))
    low, low_known = _ordered(kind, metric.lower)
    high, high_known = _ordered(kind, metric.upper)
    return Ranges(low, high, nulls, low_known & high_known & said)


def may_meet(one: Ranges, many: Ranges) -> Mask:
    """Say which of many files can have a value equal to one of a single file: by bounds, or as nulls. What is unknown may be."""
    if not one.known[0]:
        return np.ones(len(many.known), bool)
    overlap = (many.low <= one.high[0]) & (many.high >= one.low[0])
    met: Mask = ~many.known | (many.nulls & one.nulls[0]) | overlap.astype(bool)
    return met


def _ordered(kind: PrimitiveType, bounds: pa.Array) -> tuple[Values, Mask]:
    """Read bounds as numbers, or as bytes where those are in the same order; and say which are known."""
    known: Mask = bounds.is_valid().to_numpy(zero_copy_only=False)
    if (widths := _widths(kind)) is not None:
        lengths = pc.fill_null(pc.binary_length(bounds), 0).to_numpy()
        values, right = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), bool)
        for width in widths:
            if (at := known & (lengths == width)).any():
                values[at] = np.frombuffer(_together(bounds if at.all() else bounds.filter(pa.array(at))), f"<i{width}")
                right |= at
        return values, right
    objects: Values = np.empty(len(bounds), object)
    decimal = isinstance(kind, DecimalType)
    objects[:] = [int.from_bytes(b or b"", "big", signed=True) if decimal else b or b"" for b in bounds.to_pylist()]
    return objects, known


def _together(values: pa.Array) -> pa.Buffer:
    """Return the bytes of all values, one after the other. None of them may be null."""
    large = values.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    first, last = np.frombuffer(offsets, np.int64)[[large.offset, large.offset + len(large)]].tolist()
    return data.slice(first, last - first)


def _widths(kind: PrimitiveType) -> tuple[int, ...] | None:
    """Return how many bytes a number's bound may have: a file that was written before its column was widened has narrow ones."""
    match kind:
        case LongType():
            return 4, 8
        case IntegerType() | DateType():
            return (4,)
        case _:
            # A timestamp that was a date counts in other units: such a bound is unknown.
            return (8,) if isinstance(kind, _EIGHT) else None
