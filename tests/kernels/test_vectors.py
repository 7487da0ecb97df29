"""Deletion vectors: what is written is read, and what was damaged is not."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.core.errors import Stopped
from icefront.kernels import vectors

POSITIONS = np.array([0, 5, 70_000, 2**33], np.int64)


@given(st.sets(st.integers(0, 2**40), max_size=50))
def test_positions_are_those_that_were_written(places: set[int]) -> None:
    assert vectors.decode(vectors.encode(np.array(sorted(places), np.int64)), "a.puffin").tolist() == sorted(places)


@given(st.integers(0, len(vectors.encode(POSITIONS)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found_wherever_it_is(at: int, by: int) -> None:
    damaged = bytearray(vectors.encode(POSITIONS))
    damaged[at] ^= by
    with pytest.raises(Stopped, match=r"the deletion vector in a\.puffin"):
        vectors.decode(bytes(damaged), "a.puffin")


@pytest.mark.parametrize("kept", [0, 7, 20])
def test_a_vector_that_was_cut_off_is_found(kept: int) -> None:
    with pytest.raises(Stopped, match=r"the deletion vector in a\.puffin is damaged"):
        vectors.decode(vectors.encode(POSITIONS)[:kept], "a.puffin")


def test_something_else_than_a_vector_is_found() -> None:
    body = b"PFA1" + vectors.encode(POSITIONS)[8:-4]
    other = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    with pytest.raises(Stopped, match=r"the deletion vector in a\.puffin begins with b'PFA1'"):
        vectors.decode(other, "a.puffin")
