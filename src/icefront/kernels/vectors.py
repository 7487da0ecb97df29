"""Deletion vectors: positions of dead rows as bytes, and the Puffin files that hold them.

    magic ─ vector ─ vector ─ … ─ footer: where each begins, and whose rows it names

A vector is its length, a magic number, a 64-bit roaring bitmap, and a checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.io import FileIO
from pyroaring import BitMap64

from icefront.core.errors import Stopped
from icefront.version import __version__

Positions = np.ndarray[Any, np.dtype[np.int64]]
_MAGIC = b"\xd1\xd3\x39\x64"
_PUFFIN = b"PFA1"
_LENGTH = _CRC = 4
_POSITION_FIELD = 2147483645  # reserved by the specification: the position of a row in its file


def encode(positions: Positions) -> bytes:
    """Write positions as one vector."""
    # Of all that it takes this is the fastest, by far, and makes no object per position.
    bitmap = BitMap64(array("Q", positions.astype(np.uint64).tobytes()))
    bitmap.run_optimize()
    body = _MAGIC + bitmap.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(vector: bytes, path: str) -> Positions:
    """Read the positions of a vector of a file."""
    return np.asarray(bitmap(vector, path).to_array(), np.int64)


def bitmap(vector: bytes, path: str) -> BitMap64:
    """Read a vector of a file as it is: a few bytes may name very many positions."""
    body = vector[_LENGTH:-_CRC]
    if vector[:_LENGTH] != struct.pack(">I", len(body)) or vector[-_CRC:] != struct.pack(">I", zlib.crc32(body)):
        raise Stopped(f"the deletion vector in {path} is damaged: its length or checksum is another", "restore the file")
    if body[: len(_MAGIC)] != _MAGIC:
        raise Stopped(f"the deletion vector in {path} begins with {body[: len(_MAGIC)]!r}, not {_MAGIC!r}", "restore the file")
    return BitMap64.deserialize(body[len(_MAGIC) :])


def blob(io: FileIO, path: str, offset: int | None, length: int) -> bytes:
    """Take a vector out of its file."""
    with io.new_input(path).open() as stream:
        stream.seek(offset or 0)
        return stream.read(length)


@dataclass(frozen=True, slots=True)
class Placed:
    """A vector in its file: whose rows it names, how many, and where it is."""

    referenced: str
    count: int
    offset: int
    length: int


def puffin(vectors: Iterable[tuple[str, Positions]]) -> tuple[bytes, Sequence[Placed]]:
    """Write one file with the dead rows of several data files."""
    content = bytearray(_PUFFIN)
    placed = []
    for referenced, positions in vectors:
        vector = encode(positions)
        placed.append(Placed(referenced, len(positions), len(content), len(vector)))
        content += vector
    footer = json.dumps({"blobs": [_blob(p) for p in placed], "properties": {"created-by": f"icefront {__version__}"}}).encode()
    content += _PUFFIN + footer + struct.pack("<II", len(footer), 0) + _PUFFIN
    return bytes(content), placed


def _blob(placed: Placed) -> dict[str, Any]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": placed.offset,
        "length": placed.length,
        "properties": {"referenced-data-file": placed.referenced, "cardinality": str(placed.count)},
    }
