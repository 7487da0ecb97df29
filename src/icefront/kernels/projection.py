"""Arrow values of one schema in the shape of another, found by field id at any depth.

PyIceberg's visitor does it but for lists and maps: it makes an empty one of a null one whose elements are structs, and does not look
into lists and maps that are elements themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.schema import Schema, promote
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, TimestampType, TimestamptzType


class Projector(ArrowProjectionVisitor):
    """Keeps what is null, and what elements were made into."""

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        if list_array is None or value_array is None:
            return None
        values = self._cast_if_needed(list_type.element_field, value_array)
        element = self._construct_field(list_type.element_field, values.type)
        return _around(
            pa.large_list(element) if pa.types.is_large_list(list_array.type) else pa.list_(element), list_array, values
        )

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        if map_array is None or key_result is None or value_result is None:
            return None
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        fields = [self._construct_field(f, a.type) for f, a in ((map_type.key_field, keys), (map_type.value_field, values))]
        return _around(pa.map_(*fields), map_array, pa.StructArray.from_arrays([keys, values], fields=fields))


def _around(kind: pa.DataType, array: pa.Array, children: pa.Array) -> pa.Array:
    """Give a list or map other elements: which are whose, and what is null, stays as it is, also in a slice."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[children])


def agreeing(written: Sequence[NestedField], wanted: Schema, ids: Collection[int]) -> list[NestedField]:
    """Leave out fields, of those with some `ids`, that are of another type than they are wanted in: they are others of the same name.

    `CREATE OR REPLACE` keeps the ids of names, whatever their types.
    """
    if not ids or not wanted.field_ids & set(ids):
        return list(written)
    kept = []
    for field in written:
        kind = _agreed(field.field_type, wanted, ids)
        other = wanted.find_type(field.field_id) if field.field_id in wanted.field_ids else None
        if kind is not None and (other is None or field.field_id not in ids or _becomes(field.field_type, other)):
            kept.append(field.model_copy(update={"field_type": kind}))
    return kept


def _agreed(kind: IcebergType, wanted: Schema, ids: Collection[int]) -> IcebergType | None:
    """Leave fields out inside of a type; None if nothing of it is left."""
    match kind:
        case StructType():
            return StructType(*agreeing(kind.fields, wanted, ids))
        case ListType():
            element = agreeing([kind.element_field], wanted, ids)
            return ListType(kind.element_id, element[0].field_type, kind.element_required) if element else None
        case MapType():
            parts = agreeing([kind.key_field, kind.value_field], wanted, ids)
            if len(parts) < 2:
                return None
            return MapType(kind.key_id, parts[0].field_type, kind.value_id, parts[1].field_type, kind.value_required)
    return kind


def _becomes(kind: IcebergType, wanted: IcebergType) -> bool:
    if not (kind.is_primitive and wanted.is_primitive):
        return type(kind) is type(wanted)
    if kind == wanted or all(isinstance(each, TimestampType | TimestamptzType) for each in (kind, wanted)):
        return True
    try:
        promote(kind, wanted)
    except ResolveError:
        return False
    return True
