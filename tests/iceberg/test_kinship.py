"""Which files were rewritten into which: guessed from what manifests say, and harmless when wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefront.iceberg.bounds import Ranges
from icefront.iceberg.kinship import Side, kin

Range = tuple[int, int] | None


def side(prefix: str, *files: Sequence[Range], records: Sequence[int] = ()) -> Side:
    """Make files, each given by the ranges of its columns; None is unknown."""
    columns = list(zip(*files, strict=True))
    return Side(
        [f"{prefix}{i}" for i in range(len(files))],
        np.array(records or [1] * len(files), np.float64),
        {number: told(column) for number, column in enumerate(columns)},
    )


def told(column: Sequence[Range]) -> Ranges:
    low, high = (np.array([0 if r is None else r[end] for r in column], np.int64) for end in (0, 1))
    return Ranges(low, high, np.zeros(len(column), bool), np.array([r is not None for r in column]))


def together(left: Side, came: Side) -> set[frozenset[str]]:
    numbers = kin(left, came)
    assert numbers.keys() == {*left.paths, *came.paths}
    return {frozenset(path for path, number in numbers.items() if number == n) for n in numbers.values()}


def test_files_whose_ranges_lie_apart_do_not_belong_together() -> None:
    left = side("o", [(0, 9)], [(10, 19)], [(20, 29)], [(30, 39)])
    came = side("n", [(20, 39)], [(0, 19)])
    assert together(left, came) == {frozenset({"o0", "o1", "n1"}), frozenset({"o2", "o3", "n0"})}


def test_where_ranges_overlap_shared_ends_tell() -> None:
    left = side("o", [(1, 96)], [(0, 99)], [(2, 98)], [(5, 95)])
    came = side("n", [(0, 99)], [(1, 98)], records=[2, 2])
    assert together(left, came) == {frozenset({"o1", "o3", "n0"}), frozenset({"o0", "o2", "n1"})}


def test_an_end_that_all_share_tells_nothing() -> None:
    left = side("o", [(0, 9), (1, 5)], [(0, 9), (2, 7)])
    came = side("n", [(0, 9), (2, 7)], [(0, 9), (1, 5)])
    assert together(left, came) == {frozenset({"o0", "n1"}), frozenset({"o1", "n0"})}


def test_one_old_file_may_have_become_several() -> None:
    assert together(side("o", [(0, 99)]), side("n", [(0, 49)], [(50, 99)])) == {frozenset({"o0", "n0", "n1"})}


def test_a_file_that_holds_nothing_of_the_others_is_alone() -> None:
    assert together(side("o", [(0, 9)]), side("n", [(0, 9)], [(50, 59)])) == {frozenset({"o0", "n0"}), frozenset({"n1"})}


RANGES = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (min(pair), max(pair)))
FILES = st.lists(st.tuples(RANGES, RANGES), min_size=1, max_size=6)


@given(FILES, FILES)
def test_every_file_has_a_number_whatever_is_known(left: Sequence[Sequence[Range]], came: Sequence[Sequence[Range]]) -> None:
    groups = together(side("o", *left), side("n", *came))
    assert sorted(path for group in groups for path in group) == sorted(
        [*(f"o{i}" for i in range(len(left))), *(f"n{i}" for i in range(len(came)))]
    )
