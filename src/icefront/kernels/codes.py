"""Rows → small integers: rows get the same code exactly when they have the same values in some columns.

What netting, shuffling and partitioning share. Codes count from 0 without gaps, so that numpy arrays can be indexed by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Codes = np.ndarray[Any, np.dtype[np.int64]]


def encode(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Codes, int]:
    """Return a code per row and the number of different codes; null is a value like any other."""
    codes, count = _column_codes(columns[0])
    for column in columns[1:]:
        more, width = _column_codes(column)
        # Both counts are at most the number of rows, far below 2**31: the product cannot overflow.
        codes, count = _dense(codes * width + more, count * width)
    return codes, count


def _column_codes(column: pa.ChunkedArray | pa.Array) -> tuple[Codes, int]:
    encoded = flat(plain(column)).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), len(encoded.dictionary)


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return one array of a type that kernels know: uuid is an extension over 16 bytes."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


def flat(column: pa.Array) -> pa.Array:
    """Return values of a type that Arrow can hash and compare, equal exactly where the given ones are. Null stays null.

    A float becomes its bits, so that -0.0 is not 0.0 and NaN is itself; a struct the code of its members; a list the bytes of its
    elements' codes; a map the same, whatever the order of its entries. Codes hold within one call: put together what is to be compared.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        return _bits(column)
    if pa.types.is_struct(kind):
        members = [flat(plain(member)) for member in column.flatten()]
        return _with_nulls_of(column, pa.array(encode(members)[0] if members else np.zeros(len(column), np.int64)))
    if pa.types.is_map(kind):
        whole = pa.concat_arrays([column])  # a slice's children are those of the whole
        return _sequences(whole, encode([plain(whole.keys), plain(whole.items)])[0], in_order=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        whole = pa.concat_arrays([column])
        return _sequences(whole, encode([plain(whole.values)])[0], in_order=True)
    return column


def _bits(column: pa.Array) -> pa.Array:
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    bits = values.view(f"i{values.itemsize}").copy()
    bits[np.isnan(values)] = np.array(np.nan, values.dtype).view(bits.dtype)
    return _with_nulls_of(column, pa.array(bits))


def _sequences(column: pa.Array, codes: Codes, *, in_order: bool) -> pa.Array:
    """Return the codes of each row's elements as bytes."""
    offsets = column.offsets.to_numpy()
    if not in_order:
        rows = np.repeat(np.arange(len(column)), np.diff(offsets))
        codes = codes[np.lexsort((codes[offsets[0] : offsets[-1]], rows)) + offsets[0]]
        offsets = offsets - offsets[0]
    places = (offsets * codes.itemsize).astype(np.int64)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(np.ascontiguousarray(codes))]
    return _with_nulls_of(column, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), buffers))


def _with_nulls_of(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(column.is_null(), pa.scalar(None, values.type), values) if column.null_count else values


def _dense(codes: Codes, count: int) -> tuple[Codes, int]:
    """Close the gaps, so that the next product stays small."""
    if count <= 4 * len(codes) + 1024:
        used = np.zeros(count, bool)
        used[codes] = True
        return (np.cumsum(used) - 1)[codes], int(used.sum())
    encoded = pa.array(codes).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), len(encoded.dictionary)


def groups(codes: Codes, count: int) -> tuple[Codes, Codes]:
    """Return the rows in order of their codes (stable), and where each code starts and the last one ends."""
    narrow = codes.astype(np.uint16) if count <= 1 << 16 else codes  # numpy sorts 16 bits by radix
    return np.argsort(narrow, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=count))])
