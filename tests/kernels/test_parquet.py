"""Files of an Iceberg table: what is in them, what is said about them, and when a new one begins."""

from __future__ import annotations

import datetime as dt
import pickle
import struct
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.errors import ConfigError, Stopped
from icefront.core.files import ClosedFile, FileKind, deduplicate
from icefront.core.ports import LOGICAL, OP, ORDER, WALL
from icefront.kernels import parquet
from icefront.kernels.parquet import IcebergEpochWriter, TableLayout

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "day", DateType()), NestedField(3, "note", StringType())
)
WHOLE = PartitionSpec(spec_id=0)


def layout(
    root: Path, schema: Schema = SCHEMA, spec: PartitionSpec = WHOLE, keys: tuple[int, ...] = (1,), **properties: str
) -> TableLayout:
    return TableLayout(
        table="lake.shop.orders",
        location=f"file://{root}",
        pipeline="orders",
        schema_json=schema.model_dump_json(),
        spec_json=spec.model_dump_json(),
        deletes_spec_id=0,
        key_ids=keys,
        properties={name.replace("__", "-").replace("_", "."): value for name, value in properties.items()},
    )


def changes(schema: Schema, rows: list[dict[str, Any]]) -> pa.Table:
    arrow = [f.with_nullable(True) for f in schema_to_pyarrow(schema)]
    more = [
        pa.field(OP, pa.int8()),
        pa.field(WALL, pa.int64()),
        pa.field(LOGICAL, pa.int32()),
        pa.field(ORDER, pa.int64()),
    ]
    stamped = [{OP: 1, WALL: 5, LOGICAL: 0, ORDER: i, **row} for i, row in enumerate(rows)]
    return pa.Table.from_pylist(stamped, schema=pa.schema([*arrow, *more]))


def orders(*rows: tuple[int, int | None, str | None, int]) -> pa.Table:
    days = [None if day is None else dt.date(2026, 1, day) for _, day, _, _ in rows]
    return changes(SCHEMA, [{"id": i, "day": d, "note": n, OP: op} for (i, _, n, op), d in zip(rows, days, strict=True)])


def written(to: TableLayout, *tables: pa.Table, **options: bool) -> list[ClosedFile]:
    return list(IcebergEpochWriter(to, "epoch-1", **options).write(tables, 3, "attempt"))


def content(file: ClosedFile) -> list[dict[str, Any]]:
    return list(pq.ParquetFile(file.path.removeprefix("file://")).read().to_pylist())


def of_kind(files: list[ClosedFile], kind: FileKind) -> list[ClosedFile]:
    return [file for file in files if file.kind is kind]


def test_upserts_become_rows_and_all_keys_become_deletes(tmp_path):
    data, deletes = written(layout(tmp_path), orders((1, 2, "a", 1), (2, None, None, -1), (3, 4, None, 1)))
    assert content(data) == [
        {"id": 1, "day": dt.date(2026, 1, 2), "note": "a"},
        {"id": 3, "day": dt.date(2026, 1, 4), "note": None},
    ]
    assert content(deletes) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert (data.kind, data.equality_ids, data.records) == (FileKind.DATA, (), 2)
    assert (deletes.kind, deletes.equality_ids, deletes.records) == (FileKind.EQUALITY_DELETES, (1,), 3)
    assert (data.split, data.attempt, data.epoch_id, data.schema_id, data.spec_id) == (3, "attempt", "epoch-1", 0, 0)


def test_a_file_says_its_true_size_and_lies_under_its_names(tmp_path):
    data, deletes = written(layout(tmp_path), orders((1, 2, "a", 1)))
    for file in (data, deletes):
        assert Path(file.path.removeprefix("file://")).stat().st_size == file.size
    assert data.path == f"file://{tmp_path}/data/orders-epoch-1-00003-attempt-00000.parquet"
    assert deletes.path == f"file://{tmp_path}/data/orders-epoch-1-00003-attempt-00001-deletes.parquet"
    assert ClosedFile.from_json(data.to_json()) == data


def test_columns_carry_their_field_ids_and_nullability(tmp_path):
    data, deletes = written(layout(tmp_path), orders((1, 2, "a", 1)))
    read = pq.read_schema(data.path.removeprefix("file://"))
    assert [f.metadata[b"PARQUET:field_id"] for f in read] == [b"1", b"2", b"3"]
    assert [f.nullable for f in read] == [False, True, True]
    assert pq.read_metadata(deletes.path.removeprefix("file://")).metadata[b"delete-field-ids"] == b"1"


def test_a_fresh_table_needs_no_deletes(tmp_path):
    (data,) = written(layout(tmp_path), orders((1, 2, "a", 1), (2, None, None, -1)), fresh=True)
    assert content(data) == [{"id": 1, "day": dt.date(2026, 1, 2), "note": "a"}]


def test_appending_writes_every_change_and_stops_at_a_delete(tmp_path):
    (data,) = written(layout(tmp_path), orders((1, 2, "a", 1), (1, 2, "a", 1)), append=True)
    assert data.records == 2
    with pytest.raises(Stopped, match=r"a delete \(id=2\) at 5\.0000000000, but the mode is append"):
        written(layout(tmp_path), orders((2, None, None, -1)), append=True)


def test_nothing_to_write_makes_no_file(tmp_path):
    assert written(layout(tmp_path)) == []
    assert written(layout(tmp_path), orders()) == []


def test_deletes_alone_come_with_a_data_file_without_rows(tmp_path):
    """A compaction under way would drop them: see the simulator's scenario of the same."""
    deletes, beside = written(layout(tmp_path), orders((1, None, None, -1)))
    assert (deletes.kind, deletes.records) == (FileKind.EQUALITY_DELETES, 1)
    assert (beside.kind, beside.records, beside.partition) == (FileKind.DATA, 0, {})
    assert pq.read_table(beside.path.removeprefix("file://")).num_rows == 0


def test_a_null_in_a_required_column_is_never_written(tmp_path):
    required = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "n", LongType(), required=True))
    to = layout(tmp_path, required)
    delete = changes(required, [{"id": 1, OP: -1}])
    assert [f.kind for f in written(to, delete) if f.records] == [FileKind.EQUALITY_DELETES]
    with pytest.raises(pa.ArrowInvalid):
        written(replace(to, location=f"{to.location}/other"), changes(required, [{"id": 1}]))


def test_columns_of_a_kindred_type_are_cast(tmp_path):
    table = orders((1, 2, "a", 1))
    other = table.set_column(2, "note", pa.array(["a"], pa.string()))
    assert content(written(layout(tmp_path), other)[0])[0]["note"] == "a"


def test_no_path_is_used_twice(tmp_path):
    to = layout(tmp_path)
    paths = [f.path for attempt in ("a", "b") for f in IcebergEpochWriter(to, "e").write([orders((1, 2, "x", 1))], 0, attempt)]
    assert len(set(paths)) == 4
    with pytest.raises(FileExistsError):
        list(IcebergEpochWriter(to, "e").write([orders((1, 2, "x", 1))], 0, "a"))


def test_a_writer_travels_to_workers(tmp_path):
    to = layout(tmp_path)
    assert to.keys == ("id",)
    writer = pickle.loads(pickle.dumps(IcebergEpochWriter(to, "e", fresh=True)))
    assert [f.records for f in writer.write([orders((1, 2, "x", 1))], 0, "a")] == [1]


def test_a_failing_source_leaves_nothing_reported(tmp_path):
    def broken() -> Iterator[pa.Table]:
        yield orders((1, 2, "x", 1))
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(IcebergEpochWriter(layout(tmp_path, write_parquet_row__group__limit="1"), "e").write(broken(), 0, "a"))


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────────────────────

BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day_day"), spec_id=1)
BY_ID = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"), spec_id=1)


def test_data_is_partitioned_and_deletes_are_global(tmp_path):
    to = layout(tmp_path, spec=BY_DAY)
    files = written(to, orders((1, 2, "a", 1), (2, 3, "b", 1)), orders((3, 2, "c", 1), (4, None, "d", 1), (5, None, None, -1)))
    data, (deletes,) = of_kind(files, FileKind.DATA), of_kind(files, FileKind.EQUALITY_DELETES)
    found = {f.partition["1000"]: [r["id"] for r in content(f)] for f in data}
    assert found == {"2026-01-02": [1, 3], "2026-01-03": [2], None: [4]}
    assert {f.spec_id for f in data} == {1}
    assert (deletes.spec_id, deletes.partition, deletes.records) == (0, {}, 5)
    assert all(f"{tmp_path}/data/day_day={f.partition['1000'] or 'null'}/orders-epoch-1-" in f.path for f in data)


def test_scoped_deletes_lie_in_the_partition_of_their_key(tmp_path):
    files = written(layout(tmp_path, spec=BY_ID), orders(*((i, 2, "a", -1 if i % 2 else 1) for i in range(20))), scoped=True)
    deletes = of_kind(files, FileKind.EQUALITY_DELETES)
    bucket = BucketTransform(4).transform(LongType())
    assert {f.spec_id for f in deletes} == {1}
    assert all(bucket(r["id"]) == f.partition["1000"] for f in files for r in content(f))
    assert sum(f.records for f in deletes) == 20


def test_scoped_deletes_need_partition_columns_that_are_keys(tmp_path):
    with pytest.raises(ConfigError, match="every partition column to be a key: day"):
        written(layout(tmp_path, spec=BY_DAY), orders((1, 2, "a", 1)), scoped=True)


def test_global_deletes_need_an_unpartitioned_spec(tmp_path):
    with pytest.raises(ConfigError, match="has no unpartitioned spec"):
        written(replace(layout(tmp_path, spec=BY_DAY), deletes_spec_id=-1), orders((1, 2, "a", 1)))


def test_many_partitions_keep_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_OPEN", 3)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"), spec_id=1)
    tables = [orders(*((i, 2, "x" * 10, 1) for i in range(10))) for _ in range(2)]
    files = written(layout(tmp_path, spec=spec, write_parquet_row__group__limit="1"), *tables, append=True)
    assert len(files) > 10
    assert sorted(r["id"] for f in files for r in content(f)) == sorted([*range(10), *range(10)])
    assert len(deduplicate(files)) == len(files)


def test_memory_is_bounded_by_writing_the_largest_gathering(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_GATHERED", 2000)
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"), spec_id=1)
    tables = [orders(*((i, 1 + i % 3, "x" * 50, 1) for i in range(30))) for _ in range(3)]
    files = written(layout(tmp_path, spec=spec), *tables, append=True)
    assert len(files) == 3
    assert all(len(f.split_offsets) > 1 for f in files)
    assert sum(f.records for f in files) == 90


# ── table properties ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_roll_at_the_target_size(tmp_path):
    noise = [uuid.uuid4().hex for _ in range(4000)]
    table = orders(*((i, 2, note, 1) for i, note in enumerate(noise)))
    to = layout(tmp_path, write_target__file__size__bytes="20000", write_delete_target__file__size__bytes="10000")
    files = written(to, table)
    data, deletes = of_kind(files, FileKind.DATA), of_kind(files, FileKind.EQUALITY_DELETES)
    assert len(data) >= 3
    assert all(20_000 <= f.size < 40_000 for f in data[:-1])
    assert [r["note"] for f in data for r in content(f)] == noise
    assert sum(f.records for f in deletes) == 4000


def test_row_groups_follow_the_tables_limits(tmp_path):
    table = orders(*((i, 2, "a", 1) for i in range(100)))
    (data,) = written(layout(tmp_path / "a", write_parquet_row__group__limit="30"), table, fresh=True)
    assert [data.records, len(data.split_offsets)] == [100, 4]
    (small,) = written(layout(tmp_path / "b", write_parquet_row__group__size__bytes="500"), table, fresh=True)
    assert len(small.split_offsets) > 2
    starts = [pq.read_metadata(data.path[7:]).row_group(i).column(0).data_page_offset for i in range(4)]
    assert list(data.split_offsets) == starts


def test_only_values_that_repeat_get_a_dictionary(tmp_path):
    data, deletes = written(layout(tmp_path), orders(*((i, 2, "a", 1) for i in range(100))))
    columns = {c.path_in_schema: c for c in (pq.read_metadata(data.path[7:]).row_group(0).column(i) for i in range(3))}
    assert {path: column.has_dictionary_page for path, column in columns.items()} == {"id": False, "day": True, "note": True}
    assert not pq.read_metadata(deletes.path[7:]).row_group(0).column(0).has_dictionary_page


@pytest.mark.parametrize(
    ("codec", "seen"), [("zstd", "ZSTD"), ("uncompressed", "UNCOMPRESSED"), ("snappy", "SNAPPY"), ("gzip", "GZIP")]
)
def test_the_codec_is_the_tables(tmp_path, codec, seen):
    (data, deletes) = written(layout(tmp_path, write_parquet_compression__codec=codec), orders((1, 2, "a", 1)))
    for file in (data, deletes):
        assert pq.read_metadata(file.path[7:]).row_group(0).column(0).compression == seen


def test_delete_files_can_have_their_own_codec(tmp_path):
    to = layout(tmp_path, write_delete_parquet_compression__codec="gzip", write_parquet_compression__level="3")
    codecs = [pq.read_metadata(f.path[7:]).row_group(0).column(0).compression for f in written(to, orders((1, 2, "a", 1)))]
    assert codecs == ["ZSTD", "GZIP"]


def test_the_data_path_and_the_object_store_layout_are_honoured(tmp_path):
    (data,) = written(layout(tmp_path, write_data_path=f"file://{tmp_path}/elsewhere"), orders((1, 2, "a", 1)), fresh=True)
    assert data.path.startswith(f"file://{tmp_path}/elsewhere/orders-")
    (data,) = written(layout(tmp_path, spec=BY_DAY, write_object__storage_enabled="true"), orders((1, 2, "a", 1)), fresh=True)
    hashed = data.path.removeprefix(f"file://{tmp_path}/data/").split("/")
    assert [len(part) for part in hashed[:4]] == [4, 4, 4, 8]
    assert hashed[4] == "day_day=2026-01-02"
    assert content(data)[0]["id"] == 1


def table_metadata(schema: Schema, spec: PartitionSpec, **properties: str) -> Any:
    return new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, "file:///x", properties)


def test_a_layout_is_taken_from_table_metadata():
    made = TableLayout.of("lake.s.t", table_metadata(SCHEMA, PartitionSpec()), "p", ["id"], {"a": "b"})
    assert (made.key_ids, made.deletes_spec_id, made.location, made.io_properties) == ((1,), 0, "file:///x", {"a": "b"})
    assert TableLayout.of("lake.s.t", table_metadata(SCHEMA, BY_DAY), "p", ["id"], {}).deletes_spec_id == -1


@pytest.mark.parametrize("name", ["write.format.default", "write.delete.format.default"])
def test_other_file_formats_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is orc, only parquet is written"):
        TableLayout.of("lake.s.t", table_metadata(SCHEMA, PartitionSpec(), **{name: "orc"}), "p", ["id"], {})


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS: list[tuple[IcebergType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats()),
    (DecimalType(9, 2), st.decimals(-(10**6), 10**6, places=2)),
    (DecimalType(18, 2), st.decimals(-(10**15), 10**15, places=2)),
    (DecimalType(38, 4), st.decimals(-(10**33), 10**33, places=4)),
    (StringType(), st.text(max_size=30)),
    (BinaryType(), st.binary(max_size=30)),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (UUIDType(), st.uuids().map(lambda u: u.bytes)),
    (DateType(), st.dates()),
    (TimeType(), st.times()),
    (TimestamptzType(), st.datetimes(timezones=st.just(dt.UTC))),
]


def bound(kind: IcebergType, text: str) -> Any:
    assert isinstance(kind, PrimitiveType)
    return from_bytes(kind, bytes.fromhex(text))


def internal(kind: IcebergType, value: Any) -> Any:
    match kind:
        case DateType():
            return (value - dt.date(1970, 1, 1)).days
        case TimeType():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case TimestamptzType():
            return (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        case FloatType():
            return struct.unpack("<f", struct.pack("<f", value))[0]
    return value


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KINDS).flatmap(
        lambda k: st.tuples(st.just(k[0]), st.lists(st.none() | k[1], min_size=1, max_size=8), st.integers(1, 4))
    )
)
def test_metrics_are_what_the_values_say(tmp_path_factory, case):
    kind, values, group = case
    schema = Schema(NestedField(1, "id", LongType()), NestedField(7, "v", kind))
    table = changes(schema, [{"id": i, "v": v} for i, v in enumerate(values)])
    root = tmp_path_factory.mktemp("t")
    (file,) = written(layout(root, schema, write_parquet_row__group__limit=str(group)), table, fresh=True)
    present = [internal(kind, v) for v in values if v is not None and v == v]  # noqa: PLR0124 - NaN
    nans = sum(v is not None and v != v for v in values)  # noqa: PLR0124
    assert (file.value_counts[7], file.null_value_counts[7]) == (len(values), values.count(None))
    assert file.nan_value_counts.get(7, 0) == nans
    if not present:
        assert (7 in file.lower_bounds, 7 in file.upper_bounds) == (False, False)
    elif isinstance(kind, StringType | BinaryType):
        assert bound(kind, file.lower_bounds[7]) == min(present)[:16]
        if 7 in file.upper_bounds:
            assert max(present) <= bound(kind, file.upper_bounds[7]) or max(present)[:16] < bound(kind, file.upper_bounds[7])
    else:
        assert (bound(kind, file.lower_bounds[7]), bound(kind, file.upper_bounds[7])) == (min(present), max(present))


TEXT = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()), NestedField(3, "b", BinaryType()))


def text_file(root: Path, values: list[Any], column: str = "s", **properties: str) -> ClosedFile:
    table = changes(TEXT, [{"id": i, column: v} for i, v in enumerate(values)])
    (file,) = written(layout(root, TEXT, WHOLE, (1,), **properties), table, fresh=True)
    return file


@pytest.mark.parametrize(
    ("value", "upper"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\U0010ffff" + "z", "a" * 14 + "b"),
        ("a" * 15 + "\ud7ff" + "z", "a" * 15 + "\ue000"),
        ("\U0010ffff" * 17, None),
        ("é" * 17, "é" * 15 + "ê"),
    ],
)
def test_a_text_bound_is_cut_to_text_that_is_not_below(tmp_path, value, upper):
    file = text_file(tmp_path, [value])
    assert bound(StringType(), file.lower_bounds[2]) == value[:16]
    assert (bound(StringType(), file.upper_bounds[2]) if 2 in file.upper_bounds else None) == upper


@pytest.mark.parametrize(("value", "upper"), [(b"a" * 17, b"a" * 15 + b"b"), (b"a" + b"\xff" * 16, b"b"), (b"\xff" * 17, None)])
def test_a_binary_bound_is_cut_to_bytes_that_are_not_below(tmp_path, value, upper):
    file = text_file(tmp_path, [value], "b")
    assert (bound(BinaryType(), file.upper_bounds[3]) if 3 in file.upper_bounds else None) == upper


def test_a_row_group_with_values_too_long_for_statistics_leaves_the_file_without_bounds(tmp_path):
    file = text_file(tmp_path, ["z" * 5000, "a"], write_parquet_row__group__limit="1")
    assert len(file.split_offsets) == 2
    assert 2 not in file.lower_bounds
    assert 2 not in file.upper_bounds
    assert file.null_value_counts[2] == 0


def test_a_row_group_of_nulls_does_not_disturb_the_bounds(tmp_path):
    file = text_file(tmp_path, [None, "a"], write_parquet_row__group__limit="1")
    assert (file.lower_bounds[2], file.upper_bounds[2]) == ("61", "61")


def test_metrics_modes_are_the_tables(tmp_path):
    long = "a" * 30
    full = text_file(tmp_path / "full", [long], write_metadata_metrics_default="full")
    assert bound(StringType(), full.upper_bounds[2]) == long
    counts = text_file(tmp_path / "counts", [long], write_metadata_metrics_default="counts")
    assert (counts.lower_bounds, counts.value_counts[2]) == ({}, 1)
    none = text_file(tmp_path / "none", [long], write_metadata_metrics_default="none")
    assert (none.value_counts, none.null_value_counts, sorted(none.column_sizes)) == ({}, {}, [1, 2, 3])
    mixed = text_file(
        tmp_path / "mixed", [long], write_metadata_metrics_column_s="truncate(3)", write_metadata_metrics_column_id="none"
    )
    assert (bound(StringType(), mixed.upper_bounds[2]), 1 in mixed.value_counts) == ("aab", False)


def test_wide_tables_get_metrics_for_their_first_columns_only(tmp_path):
    wide = Schema(*(NestedField(i, f"c{i}", LongType()) for i in range(1, 106)))
    table = changes(wide, [{f"c{i}": 1 for i in range(1, 106)}])
    (file,) = written(layout(tmp_path / "a", wide, write_metadata_metrics_column_c105="full"), table, fresh=True)
    assert sorted(file.lower_bounds) == [*range(1, 101), 105]
    (file,) = written(layout(tmp_path / "b", wide, write_metadata_metrics_default="full"), table, fresh=True)
    assert sorted(file.lower_bounds) == list(range(1, 106))


def test_nested_columns_are_counted_without_bounds(tmp_path):
    nested = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "tags", ListType(3, StringType(), element_required=False)),
        NestedField(4, "m", MapType(5, StringType(), 6, DoubleType(), value_required=False)),
        NestedField(7, "s", StructType(NestedField(8, "x", LongType()))),
        NestedField(9, "at", TimestampNanoType()),
    )
    rows = [{"id": 1, "tags": ["a", None], "m": [("k", 1.5)], "s": {"x": 5}, "at": dt.datetime(2026, 1, 1)}]  # noqa: DTZ001
    (file,) = written(layout(tmp_path, nested), changes(nested, rows), fresh=True)
    assert content(file)[0]["tags"] == ["a", None]
    assert file.value_counts == {1: 1, 3: 2, 5: 1, 6: 1, 8: 1, 9: 1}
    assert file.null_value_counts[3] == 1
    assert sorted(file.lower_bounds) == [1, 9]
    assert int.from_bytes(bytes.fromhex(file.lower_bounds[9]), "little") == 1767225600 * 10**9


def test_decimals_are_written_as_integers_where_they_fit(tmp_path):
    kinds = {"a": DecimalType(9, 2), "b": DecimalType(18, 2), "c": DecimalType(19, 2)}
    schema = Schema(NestedField(1, "id", LongType()), *(NestedField(i, n, k) for i, (n, k) in enumerate(kinds.items(), 2)))
    (file,) = written(
        layout(tmp_path, schema), changes(schema, [{"id": 1, **dict.fromkeys(kinds, Decimal("-1.28"))}]), fresh=True
    )
    group = pq.read_metadata(file.path[7:]).row_group(0)
    assert [group.column(i).physical_type for i in (1, 2, 3)] == ["INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"]
    assert [file.lower_bounds[i] for i in (2, 3, 4)] == ["80", "80", "80"]
