"""Chunks of lines while they are being decoded: which line became which row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from icefront.core.errors import BadRow
from icefront.formats.place import Place
from icefront.formats.stamps import Tally

PIECE = 1024 * 1024
LARGE = 4 * PIECE
"""For lines that do not become objects: then fewer pieces are faster."""
_LINE_END = ord("\n")


@dataclass
class Chunk:
    """Whole lines; `passed` counts those that were left out because they are of another epoch."""

    lines: bytes
    place: Place
    order: int = 0
    passed: Tally | None = None
    numbers: np.ndarray[Any, Any] | None = field(default=None, init=False)
    """Of the line that each row came from; None where each line is a row."""

    @cached_property
    def texts(self) -> list[bytes]:
        texts = self.lines.split(b"\n")
        return texts if texts[-1] else texts[:-1]

    @cached_property
    def letters(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.lines, np.uint8)

    @cached_property
    def ends(self) -> np.ndarray[Any, Any]:
        return np.flatnonzero(self.letters == _LINE_END)

    @cached_property
    def starts(self) -> np.ndarray[Any, Any]:
        """Where each line starts."""
        return np.concatenate([np.zeros(1, np.int64), self.ends + 1])[: self.count]

    @property
    def count(self) -> int:
        return len(self.ends) + (self.lines[-1:] not in {b"\n", b""})

    def is_straight(self, values: int) -> bool:
        """Say whether each line is one of so many values: as many lines, and each line end between two braces.

        Within a value no brace that closes is followed by one that opens.
        """
        if self.count != values:
            return False
        closed = (self.letters[self.ends - 1] == ord("}")).all()
        return bool(closed and (self.letters[self.starts] == ord("{")).all())

    def number(self, row: int) -> int:
        return row if self.numbers is None else int(self.numbers[row])

    def text(self, row: int) -> bytes:
        return self.texts[self.number(row)]

    def filled(self) -> Iterator[tuple[int, bytes]]:
        return ((number, text) for number, text in enumerate(self.texts) if text.strip())

    def keep(self, rows: np.ndarray[Any, Any]) -> None:
        """Take note that only these rows are left."""
        self.numbers = rows if self.numbers is None else self.numbers[rows]

    def bad(self, row: int, fact: str, next_step: str) -> BadRow:
        return self.place.bad(self.number(row), fact, next_step)


def pieces(lines: bytes, size: int = PIECE) -> Iterator[bytes]:
    """Cut at line ends into pieces, by default so that their objects stay in the processor's cache: more than twice as fast."""
    start = 0
    while len(lines) - start > size:
        end = lines.find(b"\n", start + size) + 1 or len(lines)
        yield lines[start:end]
        start = end
    if start < len(lines) or not lines:
        yield lines[start:]
