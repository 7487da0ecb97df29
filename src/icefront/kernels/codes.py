"""Rows → small integers: rows get the same code exactly when they have the same values in some columns.

What netting, shuffling and partitioning share. Codes count from 0 without gaps, so that numpy arrays can be indexed by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

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
    encoded = plain(column).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), len(encoded.dictionary)


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return one array of a type that kernels know: uuid is an extension over 16 bytes."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


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
