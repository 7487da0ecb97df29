"""Versions of rows: read from files, packed for the way, matched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icefront.iceberg.lineage import ROW_ID, ROW_ID_FIELD, SEQUENCE, SEQUENCE_FIELD
from icefront.iceberg.live import DataEntry
from icefront.kernels.datafiles import Files, Layout
from icefront.kernels.lineage import Versions, carried, joined, packed, rows, split, unpacked, versions

FEW_IDS = st.integers(0, 6) | st.sampled_from([1 << 40, 1 << 50])
LISTED = st.lists(st.tuples(FEW_IDS, st.integers(1, 3), st.integers(0, 20)), max_size=12)
RUNS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 3), st.integers(0, 1 << 33), st.integers(1, 9)), max_size=5)


def of(listed: list[tuple[int, int, int]]) -> Versions:
    ids, sequences, positions = np.array(listed, np.int64).reshape(-1, 3).T
    return Versions(ids, sequences, positions)


def listed(found: Versions) -> list[tuple[int, ...]]:
    return list(zip(found.ids.tolist(), found.sequences.tolist(), found.positions.tolist(), strict=True))


# ── matching ───────────────────────────────────────────────────────────────────────────────
@given(LISTED, LISTED)
def test_the_same_version_of_the_same_row_was_carried_over(left: list[Any], came: list[Any]) -> None:
    counts = [Counter(row[0] for row in side) for side in (left, came)]
    both = {row[:2] for row in left} & {row[:2] for row in came}
    for side, mask in zip((left, came), carried(of(left), of(came)), strict=True):
        expected = [row[:2] in both and counts[0][row[0]] == counts[1][row[0]] == 1 for row in side]
        assert mask.tolist() == expected


def test_an_id_that_is_there_twice_tells_nothing() -> None:
    once, twice = of([(7, 1, 0), (8, 1, 1)]), of([(7, 1, 0), (7, 1, 5), (8, 1, 6)])
    assert [m.tolist() for m in carried(once, twice)] == [[False, True], [False, False, True]]
    assert [m.tolist() for m in carried(twice, once)] == [[False, False, True], [False, True]]


# ── the way between workers ────────────────────────────────────────────────────────────────
@given(LISTED)
def test_packing_keeps_everything_and_its_order(rows_: list[Any]) -> None:
    assert listed(unpacked(packed(of(rows_)))) == rows_


@given(RUNS)
def test_rows_that_count_up_together_are_one_run(runs: list[Any]) -> None:
    rows_ = [(first + i, sequence, at + i) for first, sequence, at, count in runs for i in range(count)]
    assert packed(of(rows_)).num_rows <= len(runs)
    assert listed(unpacked(packed(of(rows_)))) == rows_


@given(RUNS, st.integers(1, 5))
def test_equal_ids_meet(runs: list[Any], count: int) -> None:
    rows_ = [(first + i, sequence, at + i) for first, sequence, at, length in runs for i in range(length)]
    parts = dict(split(of(rows_), count))
    assert set(parts) <= set(range(count))
    assert Counter(listed(joined(list(parts.values())))) == Counter(rows_)
    homes: dict[int, int] = {}
    for bucket, part in parts.items():
        assert all(homes.setdefault(number, bucket) == bucket for number in part.ids.tolist())


# ── files ──────────────────────────────────────────────────────────────────────────────────
FIELDS = {"id": 1, ROW_ID: ROW_ID_FIELD, SEQUENCE: SEQUENCE_FIELD}
IDS, SEQUENCES = [70, None, 71, None, 72], [None, 3, 4, None, 5]


def written(folder: Path, **columns: list[Any]) -> tuple[Files, DataEntry]:
    schema = pa.schema([pa.field(n, pa.int64(), metadata={"PARQUET:field_id": str(FIELDS[n])}) for n in columns])
    path = str(folder / "rows.parquet")
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=2)
    entry = DataEntry(path, "parquet", 0, (), sequence=9, records=5, size=1, first_row_id=100)
    return Files(PyArrowFileIO({}), Layout({}, 3)), entry


@pytest.mark.parametrize("wanted", [None, [1, 2, 4], [3]])
def test_a_row_has_what_its_file_says_or_else_what_it_inherits(tmp_path: Path, wanted: list[int] | None) -> None:
    mask = None if wanted is None else np.isin(np.arange(5), wanted)
    places = range(5) if wanted is None else wanted
    said = written(tmp_path, id=list(range(5)), **{ROW_ID: IDS, SEQUENCE: SEQUENCES})
    all_of_them = [(70, 9, 0), (101, 3, 1), (71, 4, 2), (103, 9, 3), (72, 5, 4)]
    assert listed(joined(list(versions(*said, mask)))) == [all_of_them[i] for i in places]
    plain = written(tmp_path, id=list(range(5)))
    assert listed(joined(list(versions(*plain, mask)))) == [(100 + i, 9, i) for i in places]


def test_rows_come_with_their_ids(tmp_path: Path) -> None:
    files, entry = written(tmp_path, id=list(range(5)), **{ROW_ID: IDS, SEQUENCE: SEQUENCES})
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    found = pa.concat_tables(rows(files, entry, schema, np.array([True, True, False, False, True])))
    assert found.to_pydict() == {"id": [0, 1, 4], ROW_ID: [70, 101, 72]}
