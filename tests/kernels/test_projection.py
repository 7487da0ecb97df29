"""Values in the shape of another schema: nothing is lost, and null stays null."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from icefront.kernels.datafiles import project


def struct(number: int, name: str, kind: Any) -> StructType:
    return StructType(NestedField(number, name, kind, required=False))


def lists(element: Any) -> ListType:
    return ListType(20, element, element_required=False)


def maps(value: Any) -> MapType:
    return MapType(30, StringType(), 31, value, value_required=False)


def nested(number: int, element: Any) -> ListType:
    return ListType(number, element, element_required=False)


SHAPES = {
    "a list": (lists, [None, [], [None], [{"x": 1}, {"x": None}]]),
    "a map": (maps, [None, [], [("k", None)], [("k", {"x": 1}), ("l", {"x": None})]]),
    "a list of lists": (lambda kind: nested(21, lists(kind)), [None, [], [None, []], [[None, {"x": 1}]]]),
    "a map of lists": (lambda kind: maps(lists(kind)), [None, [], [("k", None), ("l", [])], [("k", [{"x": 1}])]]),
    "a list of maps": (lambda kind: nested(21, maps(kind)), [None, [None, []], [[("k", {"x": 1})]], []]),
}


def renamed(value: Any) -> Any:
    """The value with x called y, as a long, and a z beside it."""
    match value:
        case {"x": number}:
            return {"y": number, "z": None}
        case list():
            return [renamed(each) for each in value]
        case (key, held):
            return (key, renamed(held))
    return value


@pytest.mark.parametrize(("shape", "values"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_structs_in_lists_and_maps_are_projected_at_any_depth(shape: Any, values: list[Any], start: int) -> None:
    old = Schema(NestedField(1, "c", shape(struct(40, "x", IntegerType())), required=False))
    inner = StructType(NestedField(40, "y", LongType(), required=False), NestedField(41, "z", StringType(), required=False))
    new = Schema(NestedField(1, "d", shape(inner), required=False))
    rows = pa.table([pa.array(values, schema_to_pyarrow(old, include_field_ids=False).field(0).type)], names=["c"])
    found = project(rows.slice(start), old, new)
    assert found["d"].to_pylist() == renamed(values)[start:]
    found.validate(full=True)
