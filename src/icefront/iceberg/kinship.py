"""Which of the files that a snapshot removed were probably rewritten into which of those that it added, by what manifests say.

Rewriting mostly copies whole files: the least and the greatest value of a column in a new file are then those of one of the files that
it was made of, and its range holds all of theirs. Files that belong together are best read together: most of their rows cancel at once.
It is a guess: rows of files that were kept apart by mistake meet later, on a longer way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.types import PrimitiveType

from icefront.iceberg.bounds import Metric, Ranges, ranges
from icefront.iceberg.live import Listing

Numbers = np.ndarray[Any, np.dtype[np.float64]]
COLUMNS = 16
"""How many columns are compared at most."""
PAIRS = 250_000
"""With more pairs of files than that nobody is asked who belongs to whom."""
LITTLE = 8 * 1024 * 1024
"""Nor with fewer bytes: one task reads them all."""


@dataclass(frozen=True, slots=True)
class Side:
    """The files that left, or those that came: their rows, and the ranges of some columns."""

    paths: Sequence[str]
    records: Numbers
    ranges: Mapping[int, Ranges]

    @classmethod
    def of(cls, listings: Iterable[Listing], paths: set[str], types: Mapping[int, PrimitiveType]) -> Side:
        """Take some files out of what manifests list."""
        found: list[str] = []
        records: list[int] = []
        parts: dict[int, list[Ranges]] = {}
        for files in listings:
            places = [i for i, path in enumerate(files.paths) if path in paths]
            found += [files.paths[i] for i in places]
            records += [files.records[i] for i in places]
            for column, metric in files.metrics.items():
                chosen = pa.array(places, pa.int64())
                some = Metric(metric.lower.take(chosen), metric.upper.take(chosen), metric.nulls.take(chosen))
                parts.setdefault(column, []).append(ranges(types.get(column), some))
        joined = {column: Ranges(*map(np.concatenate, zip(*told, strict=True))) for column, told in parts.items()}
        return cls(found, np.array(records, np.float64), joined)


def kin(left: Side, came: Side) -> dict[str, int]:
    """Number files so that those with one number belong together: each file of the larger side goes to one of the smaller."""
    few, many = sorted((left, came), key=lambda side: len(side.paths))
    scores = _scores(few, many)
    room = few.records.copy()
    numbers = {path: i for i, path in enumerate(few.paths)}
    # Those that are surest choose first; the others are left what has room for them.
    for place in np.argsort(-scores.max(axis=1), kind="stable"):
        best = scores[place].max()
        likely = np.flatnonzero(scores[place] == best)
        home = likely[np.argmax(room[likely])]
        if best > -np.inf:
            room[home] -= many.records[place]
            numbers[many.paths[place]] = int(home)
        else:  # no row of it can be in any of them
            numbers[many.paths[place]] = len(few.paths) + int(place)
    return numbers


def strangers(left: Side, came: Side) -> bool:
    """Say whether no row of one side can be equal to one of the other: each two of their files lie apart in some column."""
    return bool(np.isneginf(_scores(left, came)).all())


def _scores(few: Side, many: Side) -> Numbers:
    """Say how much speaks for each pair: ends of ranges that few pairs share; nothing can if some ranges lie apart."""
    scores = np.zeros((len(many.paths), len(few.paths)))
    for column in few.ranges.keys() & many.ranges.keys():
        theirs, ours = few.ranges[column], many.ranges[column]
        known = ours.known[:, None] & theirs.known[None, :]
        for end in ("low", "high"):
            equal = known & (getattr(ours, end)[:, None] == getattr(theirs, end)[None, :]).astype(bool)
            scores += equal / max(1, np.count_nonzero(equal))
        apart = (ours.low[:, None] > theirs.high[None, :]) | (ours.high[:, None] < theirs.low[None, :])
        scores[known & apart.astype(bool) & ~(ours.nulls[:, None] & theirs.nulls[None, :])] = -np.inf
    return scores
