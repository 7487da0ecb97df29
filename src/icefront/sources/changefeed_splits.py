"""Cutting an epoch's files into splits: small files together, large ones in byte ranges.

A range [begin, end) of a file owns the lines that begin after its first newline at or after
`begin` and no later than `end`; the first range owns the first line as well, the last one reads
to the end of the file. So every line has one owner wherever the cuts fall.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from icefront.core.marks import canonical
from icefront.core.ports import Split
from icefront.sources.changefeed_catalogue import FeedFile

SMALLEST = 4 << 20
"""Splits are not made smaller than this for parallelism's sake: starting a task costs as much as reading it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a byte range of one. `rank` orders the files of an epoch; `end` None: to the end."""

    path: str
    codec: str
    rank: int
    begin: int
    end: int | None
    text_bytes: int


def plan(table: str, files: Sequence[FeedFile], split_bytes: int, parallelism: int) -> tuple[Split, ...]:
    """Cut files, in their order, into splits of about equal text."""
    total = sum(f.text_bytes for f in files)
    wanted = min(split_bytes, max(SMALLEST, -(-total // max(1, parallelism))))
    splits: list[Split] = []
    parts: list[Part] = []
    held = 0
    for part in _parts(files, wanted):
        if parts and held + part.text_bytes > wanted:
            splits.append(_split(len(splits), table, parts))
            parts, held = [], 0
        parts.append(part)
        held += part.text_bytes
    if parts:
        splits.append(_split(len(splits), table, parts))
    return tuple(splits)


def _parts(files: Sequence[FeedFile], wanted: int) -> Iterator[Part]:
    # A key's changes at one timestamp are ordered by schema version first: the later version knows more columns.
    ranks = {
        f.path: i for i, f in enumerate(sorted(files, key=lambda f: (f.schema_id, f.timestamp.wall, f.timestamp.logical, f.path)))
    }
    for file in files:
        pieces = 1 if file.codec else max(1, -(-file.size // wanted))
        step = -(-file.size // pieces)
        for i in range(pieces):
            end = None if i == pieces - 1 else (i + 1) * step
            size = file.text_bytes if pieces == 1 else min(step, file.size - i * step)
            yield Part(file.path, file.codec, ranks[file.path], i * step, end, size)


def _split(number: int, table: str, parts: Sequence[Part]) -> Split:
    work = canonical({"table": table, "parts": [astuple(p) for p in parts]})
    return Split(number, sum(p.text_bytes for p in parts), work)


def parts_of(split: Split) -> list[Part]:
    return [Part(*fields) for fields in json.loads(split.work)["parts"]]
