"""Arrow values of one schema in the shape of another, found by field id at any depth.

PyIceberg's visitor does it but for lists and maps: it makes an empty one of a null one whose elements are structs, and does not look
into lists and maps that are elements themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.schema import Schema, promote
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampType,
    TimestamptzType,
)


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


def wider(one: PrimitiveType, other: PrimitiveType) -> PrimitiveType | None:
    """Return the one of two types that the other is promoted to; None if neither is."""
    if one == other:
        return one
    for narrow, wide in ((one, other), (other, one)):
        with suppress(ResolveError):
            if promote(narrow, wide) == wide:
                return wide
    return None


def united(one: NestedField, other: NestedField) -> NestedField:
    """Unite two forms of a column: all members of both, each as wide as in either. The second one counts where they do not agree.

    Columns may be narrower than they were: `CREATE OR REPLACE` keeps the ids of names.
    """
    kind, kinds = other.field_type, (one.field_type, other.field_type)
    if isinstance(kinds[0], StructType) and isinstance(kinds[1], StructType):
        known = {member.field_id: member for member in kinds[0].fields}
        members = [united(known.pop(m.field_id), m) if m.field_id in known else m for m in kinds[1].fields]
        kind = StructType(*members, *known.values())
    elif isinstance(kinds[0], PrimitiveType) and isinstance(kinds[1], PrimitiveType):
        kind = wider(kinds[0], kinds[1]) or kind
    return other.model_copy(update={"field_type": kind})


def named_by_id(field: NestedField) -> NestedField:
    """Give a column, and the members of structs, names of ours: one may be called as another one was."""
    kind = field.field_type
    if isinstance(kind, StructType):
        kind = StructType(*map(named_by_id, kind.fields))
    return field.model_copy(update={"name": f"_{field.field_id}", "field_type": kind})


def absent(written: Schema, wanted: Schema, ids: Collection[int]) -> frozenset[int]:
    """Name the fields of `wanted` that files of another schema do not have, although that has their ids."""
    kept = Schema(*agreeing(written.fields, wanted, ids))
    return frozenset((written.field_ids - kept.field_ids) & wanted.field_ids)


def renumbered(field: NestedField, ids: Mapping[int, int]) -> NestedField:
    """Give some fields other ids, at any depth."""
    if not ids:
        return field
    said = {"field_id": ids.get(field.field_id, field.field_id), "field_type": _renumbered(field.field_type, ids)}
    return field.model_copy(update=said)


def _renumbered(kind: IcebergType, ids: Mapping[int, int]) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*(renumbered(field, ids) for field in kind.fields))
        case ListType():
            element = renumbered(kind.element_field, ids)
            return ListType(element.field_id, element.field_type, kind.element_required)
        case MapType():
            key, value = renumbered(kind.key_field, ids), renumbered(kind.value_field, ids)
            return MapType(key.field_id, key.field_type, value.field_id, value.field_type, kind.value_required)
    return kind


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
