"""Rows at given positions of a file: the same whether pages are passed over or not."""

from __future__ import annotations

import decimal
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from icefront.core.errors import Stopped
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange
from icefront.kernels import datafiles
from icefront.kernels.datafiles import LEFT, Files, Layout

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

    def watched(places: Any, ends: Any) -> list[tuple[int, int]]:
        asked.extend(windows(places, ends))
        return asked

    monkeypatch.setattr(datafiles, "_windows", watched)
    monkeypatch.setattr(datafiles, "PAGE_ROWS", 100)
    wanted = np.zeros(ROWS, bool)
    wanted[[10, 90, 1_999, 2_000, 4_500]] = True
    assert read(written, wanted)["id"].to_pylist() == [10, 90, 1_999, 2_000, 4_500]
    assert asked == [(10, 91), (1_999, 2_000), (2_000, 2_001), (4_500, 4_501)], "row groups are read one by one"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_of_old_writers_keep_years_that_are_far_away(tmp_path: Path, version: int, zone: str | None) -> None:
    """INT96, without Arrow's own notes, is what Spark wrote for long."""
    moments = [datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC if zone else None) for year in (1, 1816, 2026, 9999)]
    rows = pa.table(
        [pa.array(moments, pa.timestamp("us", zone))], pa.schema([pa.field("at", pa.timestamp("us", zone), metadata=ident(1))])
    )
    path = tmp_path / "old.parquet"
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True, store_schema=False)
    kind = TimestamptzType() if zone else TimestampType()
    schema = Schema(NestedField(1, "at", kind))
    mapping = '[{"field-id": 1, "names": ["at"]}]'
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, version, name_mapping=mapping))
    entry = DataEntry(str(path), "parquet", 0, (), sequence=1, records=4, size=1)
    for wanted in (None, np.array([True, False, False, True])):
        found = [at for _, batch in files.rows(entry, schema, wanted) for at in batch["at"].to_pylist()]
        assert [at.replace(tzinfo=UTC) for at in found] == [
            at.replace(tzinfo=UTC) for i, at in enumerate(moments) if wanted is None or wanted[i]
        ]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"])
def test_encodings_that_one_reader_does_not_know_are_read_by_the_other(tmp_path: Path, encoding: str) -> None:
    prices = [decimal.Decimal(i) / 100 for i in range(100)]
    rows = pa.table(
        [pa.array(prices, pa.decimal128(20, 2))], pa.schema([pa.field("price", pa.decimal128(20, 2), metadata=ident(1))])
    )
    path = tmp_path / "encoded.parquet"
    pq.write_table(rows, path, use_dictionary=False, column_encoding={"price": encoding})
    assert picked(path, 100, [3, 99]).column(0).to_pylist() == [prices[3], prices[99]]


def test_columns_are_called_whatever_they_are_called(tmp_path: Path) -> None:
    names = ["*", "^.*$", "a.b", "a", "A", "place"]
    rows = pa.table([pa.array([i, i + 10]) for i in range(len(names))], names)
    rows = rows.cast(pa.schema([f.with_metadata(ident(i)) for i, f in enumerate(rows.schema, 1)]))
    path = tmp_path / "names.parquet"
    pq.write_table(rows, path)
    assert picked(path, 2, [1]).to_pylist() == [{name: i + 10 for i, name in enumerate(names)}]


def picked(path: Path, records: int, places: list[int]) -> pa.Table:
    schema = pyarrow_to_schema(pq.read_schema(path))
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, 3))
    wanted = np.zeros(records, bool)
    wanted[places] = True
    entry = DataEntry(str(path), "parquet", 0, (), sequence=1, records=records, size=1)
    return pa.Table.from_batches(batch for _, batch in files.rows(entry, schema, wanted))


def test_equality_deletes_may_go_by_members_of_structs(tmp_path: Path) -> None:
    """A struct that is null is none whose members are null, as Iceberg's reader has it; a member that was dropped still counts."""
    place = pa.struct([pa.field("zip", pa.string(), metadata=ident(3)), pa.field("street", pa.string(), metadata=ident(4))])
    rows = pa.table(
        [
            pa.array([1, 1, 1, 2]),
            pa.array([{"zip": "a", "street": "x"}, {"zip": None, "street": "x"}, None, {"zip": "a", "street": "x"}], place),
        ],
        pa.schema([pa.field("id", pa.int64(), metadata=ident(1)), pa.field("place", place, metadata=ident(2))]),
    )
    whole = pyarrow_to_schema(rows.schema)
    now = Schema(whole.fields[0], NestedField(2, "place", StructType(NestedField(4, "street", StringType()))), schema_id=1)
    layout = Layout({0: whole.model_dump_json(), 1: now.model_dump_json()}, 3)
    data = put(tmp_path / "data.parquet", rows)
    keys = pa.struct([pa.field("zip", pa.string(), metadata=ident(3))])
    named = pa.table(
        [pa.array([1, 1]), pa.array([{"zip": "a"}, {"zip": None}], keys)],
        pa.schema([rows.schema.field("id"), pa.field("place", keys, metadata=ident(2))]),
    )
    delete = DeleteEntry(
        DeleteKind.EQUALITY, put(tmp_path / "deletes.parquet", named), None, 1, "parquet", 0, (), sequence=2, equality_ids=(1, 3)
    )
    files = Files(PyArrowFileIO({}), layout)
    entry = DataEntry(data, "parquet", 0, (), sequence=1, records=4, size=1)
    assert files.dead(entry, [delete]).tolist() == [True, True, False, False]


ENTRY = {"kind": DeleteKind.EQUALITY, "offset": None, "length": 1, "format": "parquet", "spec_id": 0, "partition": ()}


def equality(path: Path, ids: tuple[int, ...], named: pa.Table, sequence: int = 9) -> DeleteEntry:
    return DeleteEntry(**ENTRY, path=put(path, named), sequence=sequence, equality_ids=ids)  # type: ignore[arg-type]


def numbered(columns: dict[str, tuple[int, list[Any]]]) -> pa.Table:
    """Columns by name, each with its id and values."""
    arrays = [pa.array(values) for _, values in columns.values()]
    fields = [pa.field(n, a.type, metadata=ident(i)) for (n, (i, _)), a in zip(columns.items(), arrays, strict=True)]
    return pa.table(arrays, pa.schema(fields))


def test_equality_deletes_know_columns_that_the_table_has_forgotten(tmp_path: Path) -> None:
    """The schema goes with the last snapshot that had it; the delete still names two columns, not one."""
    rows = numbered({"id": (1, [1, 1, 2, 2]), "gone": (2, ["a", "b", "a", "c"])})
    now = Schema(pyarrow_to_schema(rows.schema).fields[0], schema_id=1)
    files = Files(PyArrowFileIO({}), Layout({1: now.model_dump_json()}, 3))
    entry = DataEntry(put(tmp_path / "data.parquet", rows), "parquet", 0, (), sequence=1, records=4, size=1)
    named = [numbered({"id": (1, [key]), "gone": (2, [value])}) for key, value in ((1, "a"), (2, "c"))]
    deletes = [equality(tmp_path / f"{i}.parquet", (1, 2), rows) for i, rows in enumerate(named)]
    assert files.dead(entry, deletes).tolist() == [True, False, False, True]
    with pytest.raises(Stopped, match="no schema of the table has column 3"):
        files.dead(entry, [equality(tmp_path / "other.parquet", (1, 3), named[0])])


def test_equality_deletes_may_go_by_columns_that_had_one_name(tmp_path: Path) -> None:
    rows = numbered({"id": (1, [1, 1]), "v": (2, ["a", "b"])})
    first = pyarrow_to_schema(rows.schema)
    second = Schema(first.fields[0], NestedField(3, "v", StringType(), required=False), schema_id=1)
    files = Files(PyArrowFileIO({}), Layout({0: first.model_dump_json(), 1: second.model_dump_json()}, 3))
    entry = DataEntry(put(tmp_path / "data.parquet", rows), "parquet", 0, (), sequence=1, records=2, size=1)
    named = numbered({"old": (2, ["a"]), "v": (3, pa.array([None], pa.string()))})
    assert files.dead(entry, [equality(tmp_path / "deletes.parquet", (2, 3), named)]).tolist() == [True, False]


def ident(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def put(path: Path, rows: pa.Table) -> str:
    pq.write_table(rows, path)
    return f"file://{path}"


class Counting(PyArrowFileIO):
    """Counts how often each file is opened."""

    opened: ClassVar[Counter[str]] = Counter()

    def new_input(self, location: str) -> Any:
        self.opened[Path(location).name] += 1
        return super().new_input(location)


@pytest.mark.parametrize(("kept", "reads"), [(1 << 20, 1), (0, 10)])
def test_deletes_are_read_once_however_many_files_they_are_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, reads: int
) -> None:
    """As in a stream: each file is younger than some deletes, and one delete more applies to all of them."""
    monkeypatch.setattr(Counting, "opened", Counter())
    monkeypatch.setattr(datafiles, "KEPT_BYTES", kept)
    rows = numbered({"id": (1, list(range(12)))})
    schema = pyarrow_to_schema(rows.schema)
    files = Files(Counting({}), Layout({0: schema.model_dump_json()}, 2))
    data = [DataEntry(put(tmp_path / f"f{i}", rows), "parquet", 0, (), sequence=i, records=12, size=1) for i in range(10)]
    old = [equality(tmp_path / f"e{i}", (1,), numbered({"id": (1, [i])}), i + 1) for i in range(10)]
    listed = pa.table({"file_path": [f.path for f in data] * 2, "pos": [5] * 10 + list(range(10))})
    position = replace(old[0], kind=DeleteKind.POSITION, path=put(tmp_path / "p", listed), equality_ids=(), sequence=20)
    new = equality(tmp_path / "new", (1,), numbered({"id": (1, [0, 7, 11])}), 21)
    for i, file in enumerate(data):
        before = (*old[i:], position)
        ((side, left),) = files.moved(FileChange(file, before, (*before, new)))
        assert side == LEFT
        assert left is not None
        assert np.flatnonzero(left).tolist() == [key for key in (0, 7, 11) if key < i or key == 11]
    deletes = {name: count for name, count in Counting.opened.items() if name[0] != "f"}
    assert deletes["p"] == deletes["new"] == reads
    assert set(deletes.values()) <= set(range(1, reads + 1))
    assert all(Counting.opened[f"f{i}"] == 2 for i in range(10)), "once for the new delete, once for all others"


def test_deletes_that_many_files_share_are_read_once_however_large_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a backlog that is settled: all of them were held at once for the first file, and the next one wants them again."""
    monkeypatch.setattr(Counting, "opened", Counter())
    monkeypatch.setattr(datafiles, "KEPT_BYTES", 0)
    rows = numbered({"id": (1, list(range(12)))})
    files = Files(Counting({}), Layout({0: pyarrow_to_schema(rows.schema).model_dump_json()}, 2))
    data = [DataEntry(put(tmp_path / f"f{i}", rows), "parquet", 0, (), sequence=0, records=12, size=1) for i in range(5)]
    deletes = [equality(tmp_path / f"e{i}", (1,), numbered({"id": (1, [i])}), i + 1) for i in range(3)]
    for file in data:
        assert np.flatnonzero(files.dead(file, deletes)).tolist() == [0, 1, 2]
    assert {name: count for name, count in Counting.opened.items() if name[0] == "e"} == {"e0": 1, "e1": 1, "e2": 1}


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_of_format_3_are_kept(tmp_path: Path, zone: str | None) -> None:
    kind = pa.timestamp("ns", zone)
    rows = pa.table([pa.array([1, 1_001], kind)], pa.schema([pa.field("at", kind, metadata=ident(1))]))
    path = tmp_path / "nanos.parquet"
    pq.write_table(rows, path)
    schema = Schema(NestedField(1, "at", TimestamptzNanoType() if zone else TimestampNanoType(), required=False))
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, 3))
    entry = DataEntry(str(path), "parquet", 0, (), sequence=1, records=2, size=1)
    for wanted in (None, np.array([False, True])):
        found = pa.Table.from_batches(batch for _, batch in files.rows(entry, schema, wanted))["at"]
        assert found.type == kind
        assert found.cast(pa.int64()).to_pylist() == [1, 1_001][-found.length() :]


def test_a_column_of_no_type_is_null(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    put(path, numbered({"id": (1, [1, 2])}))
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "u", UnknownType(), required=False))
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, 3))
    entry = DataEntry(str(path), "parquet", 0, (), sequence=1, records=2, size=1)
    for wanted in (None, np.array([True, True])):
        found = pa.Table.from_batches(batch for _, batch in files.rows(entry, schema, wanted))
        assert found.to_pylist() == [{"id": 1, "u": None}, {"id": 2, "u": None}]


IN_PARTITIONS: list[tuple[PrimitiveType, Any, Any]] = [
    (BooleanType(), True, True),
    (IntegerType(), 3, 3),
    (LongType(), 2**40, 2**40),
    (FloatType(), 1.5, 1.5),
    (DoubleType(), -0.0, -0.0),
    (DecimalType(10, 2), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    (DateType(), 19_000, date(2022, 1, 8)),
    (TimeType(), 5, time(0, 0, 0, 5)),
    (TimestampType(), 10**15, datetime(2001, 9, 9, 1, 46, 40)),  # noqa: DTZ001 — a timestamp without a zone is meant
    (TimestamptzType(), 10**15, datetime(2001, 9, 9, 1, 46, 40, tzinfo=ZoneInfo("UTC"))),
    (StringType(), "ä", "ä"),
    (UUIDType(), UUID(int=7), UUID(int=7)),
    (FixedType(3), b"abc", b"abc"),
    (BinaryType(), b"ab", b"ab"),
]


@pytest.mark.parametrize(("kind", "value", "shown"), IN_PARTITIONS, ids=[str(kind) for kind, _, _ in IN_PARTITIONS])
def test_values_that_a_migrated_file_has_only_in_its_partition(tmp_path: Path, kind: Any, value: Any, shown: Any) -> None:
    path = tmp_path / "migrated.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3]}), path)
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "c", kind, required=False))
    mapping = '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["c"]}]'
    files = Files(PyArrowFileIO({}), Layout({0: schema.model_dump_json()}, 2, {0: {2: 0}}, name_mapping=mapping))
    entry = DataEntry(str(path), "parquet", 0, (value,), sequence=1, records=3, size=1)
    for wanted in (None, np.array([False, True, False])):
        found = [row for _, batch in files.rows(entry, schema, wanted) for row in batch.to_pylist()]
        assert [repr(row) for row in found] == [repr({"id": i, "c": shown}) for i in ((1, 2, 3) if wanted is None else (2,))]
