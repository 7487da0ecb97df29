"""From rows that left and rows that came to changes (rules R2 and R3 of the changelog).

    rows that left ─┐
                    ├─ cancel what is on both sides ─▶ pair by key ─▶ INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER
    rows that came ─┘

A rewritten file carries most of its rows over unchanged. Those are found by a hash of the row and then compared value by value, as a
multiset: two equal rows that left and one that came leave one delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icefront.kernels.codes import Codes, encode, flat, plain

INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = "INSERT", "DELETE", "UPDATE_BEFORE", "UPDATE_AFTER"
CHANGE_TYPE = "_change_type"

Path = tuple[str, ...]
"""Of a column, or of a member of structs: the names that lead to it."""
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
_NONE: Codes = np.array([], np.int64)


@dataclass(frozen=True)
class Diff:
    """Rows that left and rows that came, in the same columns."""

    left: pa.Table
    came: pa.Table


def hashes(rows: pa.Table, columns: Sequence[Path] = ()) -> Hashes:
    """Hash rows, or some of their columns: equal rows have equal hashes, in every process."""
    chosen = _picked(rows, columns) if columns else rows.columns
    return _hashed([part for column in chosen for part in _parts(plain(column))], rows.num_rows)


def _hashed(parts: Sequence[pa.Array], count: int) -> Hashes:
    if not parts:
        return np.zeros(count, np.uint64)
    # Of floats all NaN have one hash here, and so have both zeros: what is equal has.
    return pl.DataFrame([pl.Series(str(i), pl.from_arrow(part)) for i, part in enumerate(parts)]).hash_rows(seed=0).to_numpy()


def _picked(rows: pa.Table, paths: Sequence[Path]) -> list[pa.ChunkedArray]:
    """Return columns, or members of structs: of a struct that is null they are null."""
    return [reduce(lambda column, name: pc.struct_field(column, [name]), path[1:], rows[path[0]]) for path in paths]


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    """Take a column apart into what can be hashed: of structs the members, of lists and maps one number for all that is in them.

    Equal values have equal parts. The reverse need not hold, exactness comes later; but rows without flat columns are spread too.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        yield column.is_null()
        for member in column.flatten():  # of a struct that is null they are null, whatever lies below
            yield from _parts(plain(member))
    elif pa.types.is_map(kind):
        whole = pa.concat_arrays([column])  # a slice's children are those of the whole
        yield _summed(whole, [*_parts(plain(whole.keys)), *_parts(plain(whole.items))])
    elif pa.types.is_nested(kind):
        whole = pa.concat_arrays([column])
        yield _summed(whole, list(_parts(plain(whole.values))))
    elif pa.types.is_fixed_size_binary(kind):
        yield column.cast(pa.binary())
    else:
        yield column


def _summed(column: pa.Array, elements: Sequence[pa.Array]) -> pa.Array:
    """Add up the hashes of each row's elements: a map is the same in whatever order it has its entries."""
    offsets = column.offsets.to_numpy()
    # Numbers of 64 bits wrap around: differences of sums are right nevertheless.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_hashed(elements, int(offsets[-1])))])
    return pa.array(sums[offsets[1:]] - sums[offsets[:-1]], mask=column.is_null().to_numpy(zero_copy_only=False))


def cancel(diff: Diff, columns: Sequence[str] | None = None) -> Diff:
    """Leave out rows that are on both sides, as often as they are: equal in all columns, or in some."""
    if not diff.left.num_rows or not diff.came.num_rows:
        return diff
    mine, theirs = (side.select(columns) if columns is not None else side for side in (diff.left, diff.came))
    left, came = hashes(mine), hashes(theirs)
    if columns is None and len(in_place := _in_place(mine, theirs, left, came)):
        return cancel(Diff(_without(diff.left, in_place), _without(diff.came, in_place)))
    left_at, came_at = _pairs(left, came)
    same = _same(mine.take(pa.array(left_at)), theirs.take(pa.array(came_at)))
    keep_left, keep_came = np.ones(len(left), bool), np.ones(len(came), bool)
    keep_left[left_at[same]] = False
    keep_came[came_at[same]] = False
    if not same.all():
        # Unequal rows with equal hashes: whatever has one of those is matched by its values alone.
        odd = np.unique(left[left_at[~same]])
        left_odd, came_odd = np.flatnonzero(np.isin(left, odd)), np.flatnonzero(np.isin(came, odd))
        keep_left[left_odd], keep_came[came_odd] = _unmatched(mine.take(pa.array(left_odd)), theirs.take(pa.array(came_odd)))
    return Diff(diff.left.filter(pa.array(keep_left)), diff.came.filter(pa.array(keep_came)))


def rest(sides: Iterable[tuple[int, pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
    """Hold rows that left (0) and rows that came (1), and return those that are not on both sides."""
    held: tuple[list[pa.Table], list[pa.Table]] = ([], [])
    for side, rows in sides:
        held[side].append(rows)
    if not (held[0] and held[1]):
        yield from ((side, rows) for side, tables in enumerate(held) for rows in tables)
        return
    diff = cancel(Diff(*(pa.concat_tables(tables) for tables in held)))
    yield from ((side, rows) for side, rows in enumerate((diff.left, diff.came)) if rows.num_rows)


def _in_place(one: pa.Table, other: pa.Table, one_hashes: Hashes, other_hashes: Hashes) -> Codes:
    """Return where both sides have the same row, if that is so for most: an update leaves rows in their order. Nothing is sorted then."""
    count = min(len(one_hashes), len(other_hashes))
    if np.count_nonzero(one_hashes[:count] == other_hashes[:count]) * 2 < count:
        return _NONE
    return np.flatnonzero(_same(one.slice(0, count), other.slice(0, count)))


def _pairs(left: Hashes, came: Hashes) -> tuple[Codes, Codes]:
    """Pair rows with equal hashes: the n-th of one side with the n-th of the other."""
    left_order, came_order = np.argsort(left, kind="stable"), np.argsort(came, kind="stable")
    left_sorted, came_sorted = left[left_order], came[came_order]
    starts = np.flatnonzero(np.append(True, left_sorted[1:] != left_sorted[:-1])[: len(left)])
    first = np.repeat(starts, np.diff(starts, append=len(left)))
    partner = np.searchsorted(came_sorted, left_sorted, "left") + (np.arange(len(left)) - first)
    found = partner < len(came)
    found[found] = came_sorted[partner[found]] == left_sorted[found]
    return left_order[found], came_order[partner[found]]


def _same(one: pa.Table, other: pa.Table) -> Mask:
    """Compare rows in pairs, exactly."""
    same = np.ones(one.num_rows, bool)
    for name in one.column_names:
        mine, theirs = one[name], other[name]
        if pa.types.is_null(mine.type):
            continue
        if pa.types.is_nested(mine.type):
            both = encode([pa.chunked_array([*mine.chunks, *theirs.chunks], mine.type)])[0]
            same &= both[: len(mine)] == both[len(mine) :]
            continue
        a, b = flat(plain(mine)), flat(plain(theirs))
        equal = pc.fill_null(pc.equal(a, b), fill_value=False).to_numpy(zero_copy_only=False)
        if a.null_count or b.null_count:
            equal = equal | pc.and_(a.is_null(), b.is_null()).to_numpy(zero_copy_only=False)
        same &= equal
    return same


def _unmatched(left: pa.Table, came: pa.Table) -> tuple[Mask, Mask]:
    """Say which rows of each side have no equal on the other, by their values alone."""
    codes, _ = encode(pa.concat_tables([left, came]).columns)
    left_at, came_at = _pairs(codes[: left.num_rows].astype(np.uint64), codes[left.num_rows :].astype(np.uint64))
    keep_left, keep_came = np.ones(left.num_rows, bool), np.ones(came.num_rows, bool)
    keep_left[left_at] = False
    keep_came[came_at] = False
    return keep_left, keep_came


def changes(diff: Diff, keys: Sequence[Path] = ()) -> pa.Table:
    """Name what happened to each row: with keys, a row that left and one that came with the same key are an update.

    Of several with one key as many are paired as there are on both sides, in the order of their values; the rest are what they are.
    Deletes come before inserts, an update's two images beside one another.
    """
    left, came = diff.left, diff.came
    left_at, came_at = _updated(left, came, keys) if keys and left.num_rows and came.num_rows else (_NONE, _NONE)
    before, after = left.take(pa.array(left_at)), came.take(pa.array(came_at))
    gone, new = _without(left, left_at), _without(came, came_at)
    pairs = pa.array([UPDATE_BEFORE, UPDATE_AFTER] * before.num_rows, pa.string())
    kinds = pa.chunked_array([pa.repeat(DELETE, gone.num_rows), pairs, pa.repeat(INSERT, new.num_rows)])
    images = pa.concat_tables([before, after]).take(pa.array(_interleaved(before.num_rows)))
    rows = pa.concat_tables([gone, images, new])
    return rows.append_column(CHANGE_TYPE, kinds)


def _updated(left: pa.Table, came: pa.Table, keys: Sequence[Path]) -> tuple[Codes, Codes]:
    both = pa.concat_tables([left, came])
    codes, _ = encode(_picked(both, keys))
    left_codes, came_codes = codes[: left.num_rows], codes[left.num_rows :]
    left_order, came_order = np.arange(left.num_rows), np.arange(came.num_rows)
    if len(np.unique(left_codes)) < len(left_codes) or len(np.unique(came_codes)) < len(came_codes):
        # Files come in any order; values decide, so that every run pairs the same.
        order = _order(both)
        left_order = np.argsort(order[: left.num_rows], kind="stable")
        came_order = np.argsort(order[left.num_rows :], kind="stable")
    left_at, came_at = _pairs(left_codes[left_order].astype(np.uint64), came_codes[came_order].astype(np.uint64))
    return left_order[left_at], came_order[came_at]


def _order(rows: pa.Table) -> Codes:
    """Rank rows by their values; what cannot be compared counts as its text."""
    columns = {
        str(i): pa.array(map(repr, c.to_pylist())) if pa.types.is_nested(c.type) else plain(c) for i, c in enumerate(rows.columns)
    }
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns]).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _without(rows: pa.Table, at: Codes) -> pa.Table:
    if not len(at):
        return rows
    kept = np.ones(rows.num_rows, bool)
    kept[at] = False
    return rows.filter(pa.array(kept))


def _interleaved(count: int) -> Codes:
    """Return 0, n, 1, n + 1 and so on."""
    return np.arange(2 * count).reshape(2, count).T.ravel()
