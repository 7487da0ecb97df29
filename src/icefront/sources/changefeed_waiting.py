"""The files that a position will need again: they hold changes beyond it, so they must still be there when it is resumed.

A mark is small, so a position keeps short digests of their names, and beyond `NAMED` files only how many there are.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from icefront.sources.changefeed_catalogue import FeedFile, by_name

NAMED = 256
DIGEST = 6  # letters: 36 bits


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many files wait, and the digests of those with the least names, in that order."""

    count: int = 0
    names: str = ""

    @classmethod
    def among(cls, files: Sequence[FeedFile]) -> Waiting:
        """Remember these files; the same files always give the same value."""
        return cls(len(files), "".join(digest(file) for file in by_name(iter(files))[:NAMED]))

    @classmethod
    def read(cls, value: Mapping[str, Any] | None) -> Waiting:
        """Take it from a position's JSON; positions of before there was such a thing have nothing to check."""
        if value is None:
            return cls()
        count, names = value["count"], value["names"]
        if not isinstance(count, int) or not isinstance(names, str) or len(names) != DIGEST * min(count, NAMED):
            raise ValueError(f"{count} files cannot be named by {names!r}")
        return cls(count, names)

    def json(self) -> Mapping[str, object]:
        return {"count": self.count, "names": self.names}

    def missing(self, files: Sequence[FeedFile]) -> int:
        """Say how many are not among `files`, at least: of those that are only counted, others may take the place."""
        gone = {self.names[at : at + DIGEST] for at in range(0, len(self.names), DIGEST)}
        for file in files:
            if not gone:
                break
            gone.discard(digest(file))
        return max(len(gone), self.count - len(files))


NONE = Waiting()


def digest(file: FeedFile) -> str:
    """Shorten a file's name; its folder does not count."""
    name = file.path.rsplit("/", 1)[-1]
    return urlsafe_b64encode(blake2b(name.encode(), digest_size=6).digest()).decode()[:DIGEST]
