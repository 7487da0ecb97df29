"""Rows at given positions of a file: the same whether pages are passed over or not."""

from __future__ import annotations

import decimal
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO, pyarrow_to_schema
from pyiceberg.schema import Schema

from icefront.iceberg.live import DataEntry
from icefront.kernels import datafiles
from icefront.kernels.datafiles import Files, Layout

ROWS = 5_000
KINDS: dict[str, Any] = {
    "id": pa.int64(),
    "small": pa.int32(),
    "yes": pa.bool_(),
    "x": pa.float32(),
    "y": pa.float64(),
    "price": pa.decimal128(12, 2),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "then": pa.timestamp("us", "UTC"),
    "name": pa.string(),
    "raw": pa.binary(),
}


def value(name: str, row: int) -> Any:
    if row % 7 == 0 and name != "id":
        return None
    return {
        "id": row,
        "small": -row,
        "yes": row % 2 == 0,
        "x": float("nan") if row % 3 else -0.0,
        "y": row / 3,
        "price": decimal.Decimal(row) / 100,
        "day": date.fromordinal(700_000 + row),
        "at": datetime(2026, 1, 1, 0, 0, row % 60, row),  # noqa: DTZ001 — a timestamp without a zone is meant
        "then": datetime(2026, 1, 1, 0, 0, row % 60, row, UTC),
        "name": f"näme {row % 50}",
        "raw": bytes([row % 256, 0]),
    }[name]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of several row groups, each of many pages, below a folder whose name is no pattern."""
    path = tmp_path_factory.mktemp("files") / "of [all] kinds" / "a*b %20.parquet"
    path.parent.mkdir()
    fields = [pa.field(n, k, metadata={"PARQUET:field_id": str(i)}) for i, (n, k) in enumerate(KINDS.items(), 1)]
    rows = pa.table([pa.array([value(n, i) for i in range(ROWS)], k) for n, k in KINDS.items()], pa.schema(fields))
    pq.write_table(rows, path, row_group_size=2_000, data_page_size=1024, write_page_index=True)
    return path


def read(path: Path, wanted: Any) -> pa.Table:
    schema = pyarrow_to_schema(pq.read_schema(path))
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, 3))
    entry = DataEntry(f"file://{path}", "parquet", 0, (), sequence=1, records=ROWS, size=path.stat().st_size)
    target = Schema(*schema.fields)
    batches = [batch for _, batch in files.rows(entry, target, wanted)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.sets(st.integers(0, ROWS - 1), max_size=40), page=st.sampled_from([1, 100, 20_000]))
def test_some_rows_are_those_of_the_whole_file(
    written: Path, places: set[int], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafiles, "PAGE_ROWS", page)
    monkeypatch.setattr(datafiles, "WINDOW_ROWS", 700)
    wanted = np.zeros(ROWS, bool)
    wanted[list(places)] = True
    whole, some = read(written, None), read(written, wanted)
    if not places:
        assert some.num_rows == 0
        return
    expected = whole.filter(pa.array(wanted))
    assert some.schema == expected.schema
    assert [repr(row) for row in some.to_pylist()] == [repr(row) for row in expected.to_pylist()]


def test_pages_without_a_wanted_row_are_passed_over(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    windows = datafiles._windows

    def watched(places: Any) -> list[tuple[int, int]]:
        asked.extend(windows(places))
        return asked

    monkeypatch.setattr(datafiles, "_windows", watched)
    monkeypatch.setattr(datafiles, "PAGE_ROWS", 100)
    wanted = np.zeros(ROWS, bool)
    wanted[[10, 90, 4_000]] = True
    assert read(written, wanted)["id"].to_pylist() == [10, 90, 4_000]
    assert asked == [(10, 91), (4_000, 4_001)]
