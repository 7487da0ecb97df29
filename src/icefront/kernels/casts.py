"""Columns from Iceberg's types to Spark's and back. Spark has no uuid: there it is its text, also within other values."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa


def recast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give columns other types; their names are those of the schema, in its order."""
    return pa.table([_cast(column, kind) for column, kind in zip(rows.columns, schema.types, strict=True)], schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if _has_uuid(column.type) == _has_uuid(kind):
        return column.cast(kind)
    return pa.chunked_array([_respelled(chunk, kind) for chunk in column.chunks], kind)


def _has_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType) or any(_has_uuid(kind.field(i).type) for i in range(kind.num_fields))


def _respelled(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array part by part: Arrow itself would take a uuid's bytes for a text."""
    found = values.type
    if isinstance(found, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], kind)
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else UUID(value).bytes for value in values.to_pylist()], kind)
    if not pa.types.is_nested(found):
        return values.cast(kind)
    if pa.types.is_struct(found):
        members = [_respelled(member, field.type) for member, field in zip(values.flatten(), _fields(kind), strict=True)]
        return pa.StructArray.from_arrays(members, fields=_fields(kind), mask=values.is_null())
    whole = pa.concat_arrays([values])  # a slice's children are those of the whole
    if pa.types.is_map(found):
        members = [_respelled(whole.keys, kind.key_type), _respelled(whole.items, kind.item_type)]
        return pa.MapArray.from_arrays(whole.offsets, *members, type=kind, mask=whole.is_null())
    large = pa.types.is_large_list(kind)
    to: Any = pa.LargeListArray if large else pa.ListArray
    offsets = whole.offsets.cast(pa.int64() if large else pa.int32())
    return to.from_arrays(offsets, _respelled(whole.values, kind.value_type), type=kind, mask=whole.is_null())


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]
