"""Where a row stands in its source, and how to refuse it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from icefront.core.errors import BadRow

SHOWN = 80


@dataclass(frozen=True, slots=True)
class Place:
    """A chunk of lines: the file, and the number of the chunk's first line (the file's first is 1).

    Where reading began in the middle of the file, `before` counts the lines before that; it is asked only when somebody will
    look for the line.
    """

    path: str
    line: int = 1
    before: Callable[[], int] | None = None

    def plus(self, lines: int) -> Place:
        """Return the place so many lines further on."""
        return replace(self, line=self.line + lines)

    def at(self, index: int) -> str:
        """Name the chunk's line number `index` (from 0)."""
        return f"{self.path}:{(self.before() if self.before else 0) + self.line + index}"

    def near(self, index: int) -> str:
        """Name the line if that costs nothing, else only the file."""
        return self.path if self.before else self.at(index)

    def bad(self, index: int, fact: str, next_step: str) -> BadRow:
        return BadRow(f"{self.at(index)}: {fact}", next_step)


def shorten(text: bytes | str) -> str:
    """Make a value fit into a message; bytes that are no UTF-8 are shown escaped."""
    shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    return shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 1]}…"
