"""Codes of values of every type: equal exactly where the values are."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.kernels.codes import encode

FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, 1.5, None])
STRINGS = st.sampled_from(["", "a", "b", None])
LISTS = st.none() | st.lists(FLOATS, max_size=3)
STRUCTS = st.none() | st.fixed_dictionaries({"x": FLOATS, "l": LISTS})
MAPS = st.none() | st.dictionaries(st.sampled_from(["a", "b", "c"]), LISTS, max_size=3).map(lambda d: list(d.items()))
KINDS: dict[str, tuple[Any, pa.DataType]] = {
    "double": (FLOATS, pa.float64()),
    "float": (FLOATS, pa.float32()),
    "string": (STRINGS, pa.string()),
    "list": (LISTS, pa.list_(pa.float64())),
    "large list of lists": (st.none() | st.lists(LISTS, max_size=3), pa.large_list(pa.list_(pa.float64()))),
    "struct": (STRUCTS, pa.struct({"x": pa.float64(), "l": pa.list_(pa.float64())})),
    "map": (MAPS, pa.map_(pa.string(), pa.list_(pa.float64()))),
    "list of maps": (st.none() | st.lists(MAPS, max_size=2), pa.list_(pa.map_(pa.string(), pa.list_(pa.float64())))),
}


def spelled(value: Any) -> Any:
    """A value as something that Python compares the way we want: floats by their bits, with one NaN; maps without order."""
    match value:
        case float():
            return "nan" if math.isnan(value) else struct.pack("d", value)
        case dict():
            return tuple((name, spelled(member)) for name, member in sorted(value.items()))
        case list() if value and isinstance(value[0], tuple):
            return frozenset((key, spelled(item)) for key, item in value), "map"
        case list():
            return tuple(map(spelled, value))
    return value


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_codes_are_equal_exactly_where_values_are(kind: str, data: st.DataObject) -> None:
    strategy, arrow = KINDS[kind]
    values = data.draw(st.lists(strategy, min_size=1, max_size=12))
    cut = data.draw(st.integers(0, len(values)))
    codes, count = encode([pa.chunked_array([pa.array(values[:cut], arrow), pa.array(values[cut:], arrow)])])
    numbers: dict[Any, int] = {}
    assert [numbers.setdefault(spelled(v), len(numbers)) for v in values] == [
        list(dict.fromkeys(codes.tolist())).index(c) for c in codes.tolist()
    ]
    assert count >= len(numbers)


def test_a_slice_is_encoded_by_itself() -> None:
    whole = pa.array([{"a": [1.0]}, None, {"a": [-0.0]}, {"a": [0.0]}, {"a": [1.0]}], pa.struct({"a": pa.list_(pa.float64())}))
    codes, _ = encode([whole.slice(2)])
    assert len(set(codes.tolist())) == 3
    maps = pa.array([[("a", 1)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], pa.map_(pa.string(), pa.int64())).slice(1)
    first, second = encode([maps])[0]
    assert first == second
