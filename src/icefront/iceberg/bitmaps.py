"""Steps whose rows only leave, or only come, although vectors were replaced: what the vectors themselves say.

Each DELETE of format 3 puts a larger vector in the place of the one before. By metadata alone rows may have come back then, and would
have to meet those that left.

    vector before ⊆ vector after ─▶ rows only leave
    vector before ⊇ vector after ─▶ rows only come, as in a rollback
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyiceberg.io import FileIO
from pyroaring import BitMap64

from icefront.iceberg.live import DeleteEntry
from icefront.iceberg.statediff import FileChange, Key, Moves, meets
from icefront.kernels import vectors

MOST_VECTORS, MOST_BYTES = 512, 8 << 20
"""What the driver reads at most for one plan. Rows of steps beyond that meet, as all that may have come and left do."""
_THREADS = 8


def looked_into(steps: Mapping[int, list[FileChange]], io: FileIO) -> dict[int, list[FileChange]]:
    """Say of files with another vector than before what rows do, in steps where that may decide whether rows meet."""
    replaced = {i: _vectors(found) for i, found in steps.items()}
    wanted = _within_bounds({i: v for i, v in replaced.items() if 0 < len(v) <= MOST_VECTORS and _may_decide(steps[i])})
    if not wanted:
        return dict(steps)
    known = _read({d.key: d for deletes in wanted.values() for d in deletes}, io)
    return {i: [_told(c, known) for c in found] if i in wanted else found for i, found in steps.items()}


def _may_decide(found: Sequence[FileChange]) -> bool:
    """Say whether rows need not meet if all vectors turn out to name what they did and more, or all of them nothing else than they did."""
    return meets(found) and any(not meets([_hoped(c, only) for c in found]) for only in (Moves.LEAVE, Moves.COME))


def _hoped(change: FileChange, only: Moves) -> FileChange:
    """Return a change as it would be if rows only leave, or only come. By the number of rows that vectors name that may be out of question."""
    if change.replaced is None:
        return change
    fewer, more = change.replaced if only is Moves.LEAVE else reversed(change.replaced)
    return replace(change, vectors=only) if fewer.records <= more.records else change


def _vectors(found: Iterable[FileChange]) -> list[DeleteEntry]:
    """Return vectors that took another's place, and those. Most files of a large step only came: they are passed over at once."""
    return [vector for change in found if change.before and change.after for vector in change.replaced or ()]


def _within_bounds(wanted: Mapping[int, list[DeleteEntry]]) -> dict[int, list[DeleteEntry]]:
    """Choose steps, the first ones first, as long as their vectors are not too many. Steps that follow one another share some."""
    chosen: dict[int, list[DeleteEntry]] = {}
    known: dict[Key, int] = {}
    for ordinal, deletes in wanted.items():
        more = known | {d.key: d.length for d in deletes}
        if len(more) <= MOST_VECTORS and sum(more.values()) <= MOST_BYTES:
            chosen[ordinal], known = deletes, more
    return chosen


def _read(deletes: Mapping[Key, DeleteEntry], io: FileIO) -> Mapping[Key, BitMap64]:
    with ThreadPoolExecutor(_THREADS) as threads:
        read = threads.map(lambda d: vectors.bitmap(vectors.blob(io, d.path, d.offset, d.length), d.path), deletes.values())
        return dict(zip(deletes, read, strict=True))


def _told(change: FileChange, known: Mapping[Key, BitMap64]) -> FileChange:
    if change.replaced is None:
        return change
    was, now = (known[vector.key] for vector in change.replaced)
    leave, come = (Moves(0) if one <= other else what for one, other, what in ((now, was, Moves.LEAVE), (was, now, Moves.COME)))
    return replace(change, vectors=leave | come)
