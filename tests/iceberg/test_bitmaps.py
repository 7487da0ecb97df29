"""Vectors that took the place of others: what they say about rows, and when they are asked."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefront.core.timestamps import ORIGIN
from icefront.iceberg import bitmaps
from icefront.iceberg.bitmaps import looked_into
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange, Moves, meets
from icefront.kernels import vectors
from icefront.kernels.datafiles import CAME, LEFT, Files, Layout
from icefront.sources.iceberg_reader import Piece, _piece
from icefront.sources.iceberg_reader import plan as packed

FILE = DataEntry("f", "parquet", 0, (), sequence=1, records=100, size=1000)
EQUALITY = DeleteEntry(DeleteKind.EQUALITY, "eq", None, 40, "parquet", 0, (), sequence=6, equality_ids=(1,))


@dataclass
class Lake:
    """Puffin files in a folder; remembers how often each was opened."""

    folder: Path
    opened: list[str] = field(default_factory=list)

    def vector(self, positions: Iterable[int], of: str = "f") -> DeleteEntry:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.puffin"
        content, (placed,) = vectors.puffin([(of, np.array(sorted(positions), np.int64))])
        path.write_bytes(content)
        return DeleteEntry(
            DeleteKind.VECTOR, str(path), placed.offset, placed.length, "puffin", 0, (), 5, referenced=of, records=placed.count
        )

    def change(self, was: Iterable[int] | None, now: Iterable[int] | None, of: str = "f") -> FileChange:
        """A file that had one vector, or none, and has another."""
        before, after = (() if positions is None else (self.vector(positions, of),) for positions in (was, now))
        return FileChange(replace(FILE, path=of), before, after)

    def told(self, *found: FileChange) -> list[FileChange]:
        return looked_into({0: list(found)}, self.io)[0]

    @property
    def io(self) -> FileIO:
        class Watched(PyArrowFileIO):
            def new_input(watched, location: str) -> Any:  # noqa: N805 — self is the lake
                self.opened.append(location)
                return super().new_input(location)

        return Watched()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_larger_vector_gives_no_row_back(lake: Lake) -> None:
    change = lake.change({1, 2}, {1, 2, 2**33})
    (told,) = lake.told(change)
    assert (meets([change]), change.may_lose, change.may_gain) == (True, True, True)
    assert (meets([told]), told.may_lose, told.may_gain) == (False, True, False)


def test_a_smaller_one_takes_none(lake: Lake) -> None:
    (told,) = lake.told(lake.change({1, 2, 3}, {3}))
    assert (meets([told]), told.may_lose, told.may_gain) == (False, False, True)


def test_the_same_rows_in_another_vector_are_no_change(lake: Lake) -> None:
    (told,) = lake.told(lake.change({1, 2}, {1, 2}))
    assert (told.may_lose, told.may_gain) == (False, False)


@pytest.mark.parametrize(("was", "now"), [({1}, {2, 3}), ({2, 3}, {1}), ({1}, {2})])
def test_rows_meet_where_some_left_and_some_came_back(lake: Lake, was: set[int], now: set[int]) -> None:
    (told,) = lake.told(lake.change(was, now))
    assert (meets([told]), told.may_lose, told.may_gain) == (True, True, True)


def test_one_file_that_gives_rows_back_is_enough_to_meet(lake: Lake) -> None:
    assert meets(lake.told(lake.change({1}, {1, 2}, "f"), lake.change({1}, {2, 3}, "g")))


def test_other_deletes_count_as_before(lake: Lake) -> None:
    change = lake.change({1}, {1, 2})
    assert change.before is not None
    assert change.after is not None
    lost = replace(change, before=(*change.before, EQUALITY))
    new = replace(change, after=(*change.after, EQUALITY))
    assert meets(lake.told(lost)), "the rows that it named may be back"
    assert not meets(lake.told(new))
    back = lake.change({1, 2}, {1})
    assert back.after is not None
    assert meets(lake.told(replace(back, after=(*back.after, EQUALITY))))


# ── when they are asked ────────────────────────────────────────────────────────────────────
def test_nothing_is_read_that_decides_nothing(lake: Lake) -> None:
    replaced = lake.change({1}, {1, 2})
    new = FileChange(replace(FILE, path="n"), None, ())
    foreign = FileChange(replace(FILE, path="o", format="orc"), (), (EQUALITY,))
    steps = {
        "an update: rows come in new files": [replaced, new],
        "a first vector": [lake.change(None, {1})],
        "an append": [new],
        "Iceberg reads both states of another file": [replaced, foreign],
        "no rows": [],
    }
    found = dict(enumerate(steps.values()))
    assert looked_into(found, lake.io) == found
    assert lake.opened == []


def test_a_vector_that_two_steps_share_is_read_once(lake: Lake) -> None:
    first, second, third = (lake.vector(range(n)) for n in (1, 2, 3))
    told = looked_into({0: [FileChange(FILE, (first,), (second,))], 1: [FileChange(FILE, (second,), (third,))]}, lake.io)
    assert not any(map(meets, told.values()))
    assert sorted(lake.opened) == [first.path, second.path, third.path]


@pytest.mark.parametrize("bound", ["MOST_VECTORS", "MOST_BYTES"])
def test_too_many_vectors_are_not_read(lake: Lake, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits is: the first steps, and later ones that are small."""
    small, large = lake.change({1}, {1, 2}), [lake.change({1}, {1, 2}, name) for name in "ghi"]
    monkeypatch.setattr(bitmaps, bound, 4 if bound == "MOST_VECTORS" else 4 * lake.vector({1, 2}).length)
    told = looked_into({0: [small], 1: large, 2: [lake.change({1}, {1, 2})]}, lake.io)
    assert [meets(found) for found in told.values()] == [False, True, False]
    assert told[1] == large
    assert len(lake.opened) == 4


def test_a_pipeline_reads_them_in_as_many_splits_as_it_likes(lake: Lake) -> None:
    """What was found out goes with the work: rows need not be held to be cancelled."""
    (split,) = packed([Piece(ORIGIN, 1, 0, 0, tuple(lake.told(lake.change({1}, {1, 2}))))], 1 << 20, 1)
    assert not _piece(split).meets


# ── against what reading finds ─────────────────────────────────────────────────────────────
SETS = st.none() | st.sets(st.integers(0, 5))


@given(st.lists(st.tuples(SETS, SETS), min_size=1, max_size=3))
def test_what_vectors_say_is_what_rows_do(drawn: list[tuple[set[int] | None, set[int] | None]]) -> None:
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        found = [lake.change(was, now, f"f{i}") for i, (was, now) in enumerate(drawn)]
        told = pickle.loads(pickle.dumps(lake.told(*found)))
        files = Files(lake.io, Layout({}, 3))
        moved = [{side for side, _ in files.moved(change)} for change in told]
        for sides, change in zip(moved, told, strict=True):
            assert LEFT not in sides or change.may_lose
            assert CAME not in sides or change.may_gain
            if change.vectors is not Moves.EITHER and change.replaced:
                assert (change.may_lose, change.may_gain) == (LEFT in sides, CAME in sides)
        both = set().union(*moved) == {LEFT, CAME}
        # Vectors that name nothing are not written, but if they were, rows would meet in vain.
        assert meets(told) or not both
        if all(was and now for was, now in drawn):
            assert meets(told) is both
