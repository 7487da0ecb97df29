"""When changes happened: printed timestamps → two integers each, and which of them lie inside an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icefront.core.epochs import Epoch
from icefront.core.timestamps import LOGICAL_LIMIT, ORIGIN, Timestamp

ALL_TIME = Epoch(ORIGIN, Timestamp(2**63 - 1, LOGICAL_LIMIT - 1))

_POINT, _END = 19, 30  # where the printed form of a wall time of nineteen digits has its point, and its end
_WALL_POWERS = 10 ** np.arange(18, -1, -1, dtype=np.uint64)
_LOGICAL_POWERS = 10 ** np.arange(9, -1, -1, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many changes lie below, inside and beyond an epoch, and the greatest timestamp of them all."""

    below: int = 0
    inside: int = 0
    beyond: int = 0
    greatest: Timestamp | None = None

    def __add__(self, other: Tally) -> Tally:
        greatest = max((t for t in (self.greatest, other.greatest) if t is not None), default=None)
        return Tally(self.below + other.below, self.inside + other.inside, self.beyond + other.beyond, greatest)

    @property
    def read(self) -> int:
        return self.below + self.inside + self.beyond


NONE = Tally()


@dataclass(frozen=True, slots=True)
class Stamps:
    """Timestamps as two arrays: `wall` of 64 bits, `logical` of 32."""

    wall: np.ndarray[Any, Any]
    logical: np.ndarray[Any, Any]

    def before(self, timestamp: Timestamp) -> np.ndarray[Any, Any]:
        same = (self.wall == timestamp.wall) & (self.logical < timestamp.logical)
        earlier: np.ndarray[Any, Any] = (self.wall < timestamp.wall) | same
        return earlier

    def only(self, kept: np.ndarray[Any, Any]) -> Stamps:
        return Stamps(self.wall[kept], self.logical[kept])


def read(texts: Sequence[str]) -> Stamps:
    """Read printed timestamps; raises ValueError where one of them is none."""
    found = _read_wide(texts)
    if found is None:
        parsed = [Timestamp.parse(text) for text in texts]
        found = Stamps(np.array([t.wall for t in parsed], np.int64), np.array([t.logical for t in parsed], np.int32))
    return found


def is_printed(text: str) -> bool:
    """Say whether a text is a timestamp as CockroachDB prints it."""
    try:
        Timestamp.parse(text)
    except ValueError:
        return False
    return True


def read_column(texts: pa.StringArray) -> Stamps:
    """Read a column of printed timestamps without nulls; raises ValueError where one of them is none."""
    _, offsets, letters = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    found = None
    if len(texts) and (np.diff(ends) == _END).all():
        found = _from_letters(np.frombuffer(letters, np.uint8)[ends[0] : ends[-1]].reshape(-1, _END))
    return read(texts.to_pylist()) if found is None else found


def _read_wide(texts: Sequence[str]) -> Stamps | None:
    """Read all at once if each has nineteen digits, a point and ten digits, as timestamps have from 2001 to 2286."""
    letters = np.frombuffer("\n".join([*texts, ""]).encode(), np.uint8)
    if len(letters) != (_END + 1) * len(texts):
        return None
    lines = letters.reshape(-1, _END + 1)
    # A line end at that place, and none before it since that is no digit: so no text is shorter and makes up for a longer one.
    return _from_letters(lines[:, :_END]) if (lines[:, _END] == ord("\n")).all() else None


def _from_letters(letters: np.ndarray[Any, Any]) -> Stamps | None:
    """Read timestamps of thirty letters each; None if one has others than digits around a point, or is out of range."""
    digits = letters - ord("0")
    if not (letters[:, _POINT] == ord(".")).all() or np.count_nonzero(digits > 9) != len(digits):
        return None
    wall, logical = digits[:, :_POINT] @ _WALL_POWERS, digits[:, _POINT + 1 :] @ _LOGICAL_POWERS
    if (wall >= 2**63).any() or (logical >= LOGICAL_LIMIT).any():
        return None
    return Stamps(wall.astype(np.int64), logical.astype(np.int32))


def choose(stamps: Stamps, epoch: Epoch) -> tuple[np.ndarray[Any, Any] | None, Tally]:
    """Say which timestamps are inside the epoch (None: all of them), and count."""
    count = len(stamps.wall)
    if not count:
        return None, NONE
    least, most = int(stamps.wall.min()), int(stamps.wall.max())
    greatest = Timestamp(most, int(stamps.logical[stamps.wall == most].max()))
    if epoch.lower.wall < least and most < epoch.upper.wall:
        return None, Tally(inside=count, greatest=greatest)
    below, up_to = stamps.before(epoch.lower), stamps.before(epoch.upper)
    inside = up_to & ~below
    tally = Tally(int(below.sum()), int(inside.sum()), int((~up_to).sum()), greatest)
    return (None if tally.inside == count else np.flatnonzero(inside)), tally
