"""Cutting an epoch's files into splits: small files together, large ones in byte ranges.

A range [begin, end) of a file owns the lines that begin after its first newline at or after
`begin` and no later than `end`; the first range owns the first line as well, the last one reads
to the end of the file. So every line has one owner wherever the cuts fall.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

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
    """Cut files, in their order, into splits of equal text; a compressed file stays whole."""
    total = sum(f.text_bytes for f in files)
    step = max(1, -(-total // _count(total, split_bytes, max(1, parallelism))))
    splits: dict[int, list[Part]] = {}
    at = 0
    # A key's changes at one timestamp are ordered by schema version first: the later version knows more columns.
    ranked = sorted(files, key=lambda f: (f.schema_id, f.timestamp.wall, f.timestamp.logical, f.path))
    ranks = {f.path: rank for rank, f in enumerate(ranked)}
    for file in files:
        for number, part in _parts(file, ranks[file.path], at, step):
            splits.setdefault(number, []).append(part)
        at += file.text_bytes
    return tuple(_split(number, table, splits[key]) for number, key in enumerate(sorted(splits)))


def _count(total: int, split_bytes: int, parallelism: int) -> int:
    """Say how many splits to make: as many as there are slots, if they get enough to do, or a multiple of that."""
    if total <= split_bytes * parallelism:
        return max(1, -(-total // split_bytes), min(parallelism, total // SMALLEST))
    return -(-total // (split_bytes * parallelism)) * parallelism


def _parts(file: FeedFile, rank: int, at: int, step: int) -> Iterator[tuple[int, Part]]:
    """Cut a file that begins at `at` in the epoch's text where splits of `step` meet; say which split gets which part."""
    if file.codec or not file.size:
        yield (at + file.text_bytes // 2) // step, Part(file.path, file.codec, rank, 0, None, file.text_bytes)
        return
    cuts = [0, *range(step - at % step, file.size, step), file.size]
    for begin, end in pairwise(cuts):
        last = end == file.size
        yield (at + begin) // step, Part(file.path, "", rank, begin, None if last else end, end - begin)


def _split(number: int, table: str, parts: Sequence[Part]) -> Split:
    work = canonical({"table": table, "parts": [astuple(p) for p in parts]})
    return Split(number, sum(p.text_bytes for p in parts), work)


def parts_of(split: Split) -> list[Part]:
    return [Part(*fields) for fields in json.loads(split.work)["parts"]]
