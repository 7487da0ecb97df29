"""Places on a source's timeline: hybrid logical clock values, totally ordered.

Printed the way CockroachDB prints an HLC: ``<wall nanoseconds>.<logical, ten digits>``.
"""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass

LOGICAL_LIMIT = 2**31
_PRINTED = re.compile(r"(\d{1,20})\.(\d{10})")
_NAMED = re.compile(r"(\d{14})(\d{9})(\d{10})")


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A place on a timeline: wall nanoseconds since 1970, then a logical counter."""

    wall: int
    logical: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.wall < 2**63 and 0 <= self.logical < LOGICAL_LIMIT):
            raise ValueError(f"timestamp out of range: wall={self.wall} logical={self.logical}")

    def __str__(self) -> str:
        return f"{self.wall}.{self.logical:010d}"

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Read the printed form, e.g. ``1585861087210714000.0000000000``."""
        match = _PRINTED.fullmatch(text)
        if match is None:
            raise ValueError(f"not a timestamp: {text!r} (expected <nanoseconds>.<ten digits>)")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def parse_name(cls, text: str) -> Timestamp:
        """Read the form used in file names: ``YYYYMMDDHHMMSS`` + nanoseconds + logical."""
        match = _NAMED.fullmatch(text)
        if match is None:
            raise ValueError(f"not a file-name timestamp: {text!r} (expected 33 digits)")
        seconds = calendar.timegm(time.strptime(match[1], "%Y%m%d%H%M%S"))
        return cls(seconds * 1_000_000_000 + int(match[2]), int(match[3]))

    def name(self) -> str:
        """Print the form used in file names; sorts as the timestamps do."""
        seconds, nanos = divmod(self.wall, 1_000_000_000)
        return f"{time.strftime('%Y%m%d%H%M%S', time.gmtime(seconds))}{nanos:09d}{self.logical:010d}"

    def next(self) -> Timestamp:
        """Return the least timestamp after this one: "≤ R" is ``[lower, R.next())``."""
        if self.logical + 1 == LOGICAL_LIMIT:
            return Timestamp(self.wall + 1, 0)
        return Timestamp(self.wall, self.logical + 1)

    def prev(self) -> Timestamp:
        """Return the greatest timestamp before this one; the inverse of `next`."""
        if self.logical:
            return Timestamp(self.wall, self.logical - 1)
        return Timestamp(self.wall - 1, LOGICAL_LIMIT - 1)

    def plus(self, seconds: float) -> Timestamp:
        """Return the timestamp so many seconds of wall time later."""
        return Timestamp(self.wall + round(seconds * 1e9), 0)


ORIGIN = Timestamp(0, 0)
"""The frontier of a target that has seen nothing."""
