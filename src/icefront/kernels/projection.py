"""Arrow values of one schema in the shape of another, found by field id at any depth.

PyIceberg's visitor does it but for lists and maps: it makes an empty one of a null one whose elements are structs, and does not look
into lists and maps that are elements themselves.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType


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
