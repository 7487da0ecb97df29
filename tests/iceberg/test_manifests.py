"""Manifests as columns: what PyIceberg's own reader finds in them, entry by entry, is what they say."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.iceberg.live import DataEntry, Ref, entries

IO = PyArrowFileIO()
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
VALUES: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), INTS),
    (LongType(), LONGS),
    (DoubleType(), st.floats(allow_nan=False, width=32)),  # PyIceberg reads them with the precision of floats
    (DateType(), st.integers(-10_000, 50_000)),
    (TimeType(), st.integers(0, 86_400_000_000 - 1)),
    (TimestampType(), LONGS),
    (TimestamptzType(), LONGS),
    (StringType(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    (UUIDType(), st.uuids()),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (BinaryType(), st.binary(max_size=5)),
    (DecimalType(12, 2), st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-2))),
]
BYTES = st.dictionaries(st.integers(1, 4), st.binary(max_size=9), max_size=4)


@st.composite
def manifests(draw: Any) -> tuple[PartitionSpec, Schema, list[ManifestEntry]]:
    columns = draw(st.lists(st.sampled_from(VALUES), max_size=3))
    schema = Schema(*(NestedField(i, f"c{i}", kind, required=False) for i, (kind, _) in enumerate(columns, 1)))
    spec = PartitionSpec(*(PartitionField(i, 999 + i, IdentityTransform(), f"c{i}") for i in range(1, len(columns) + 1)))
    numbers = range(draw(st.integers(1, 6)))
    return spec, schema, [entry(draw, number, [values for _, values in columns]) for number in numbers]


def entry(draw: Any, number: int, partition: list[st.SearchStrategy[Any]]) -> ManifestEntry:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:/table/{number}.parquet",
        file_format=draw(st.sampled_from([FileFormat.PARQUET, FileFormat.ORC, FileFormat.AVRO])),
        partition=Record(*(draw(st.none() | values) for values in partition)),
        record_count=draw(st.integers(0, 2**40)),
        file_size_in_bytes=draw(st.integers(0, 2**40)),
        lower_bounds=draw(st.none() | BYTES),
        upper_bounds=draw(st.none() | BYTES),
        null_value_counts=draw(st.none() | st.dictionaries(st.integers(1, 4), st.integers(0, 2**40), max_size=4)),
    )
    file.spec_id = 0
    status = draw(st.sampled_from([ManifestEntryStatus.ADDED, ManifestEntryStatus.DELETED]))
    sequences = st.integers(0, 5)
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=7,
        sequence_number=draw(st.none() | sequences if status == ManifestEntryStatus.ADDED else sequences),
        file_sequence_number=None,
        data_file=file,
    )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_what_manifests_list_is_what_pyiceberg_reads(tmp_path: Path, version: Any, codec: Any) -> None:
    @settings(max_examples=40, deadline=None)
    @given(manifests())
    def check(drawn: tuple[PartitionSpec, Schema, list[ManifestEntry]]) -> None:
        spec, schema, written = drawn
        path = str(tmp_path / "m.avro")
        with write_manifest(version, spec, schema, IO.new_output(path), 7, codec) as writer:
            for one in written:
                writer.add_entry(one)
        agree(path)

    check()


def test_a_manifest_may_list_nothing(tmp_path: Path) -> None:
    """PyIceberg refuses to write such a one; others do."""
    path = str(tmp_path / "m.avro")
    writer = write_manifest(2, PartitionSpec(), Schema(), IO.new_output(path), 7, "deflate").__enter__()
    writer._writer.__exit__(None, None, None)
    agree(path)
    ref = Ref(path, bytes=0, spec_id=0, sequence=9, has_data=False, first_row_id=None)
    assert entries(IO, ref, frozenset()).deletes == []


def agree(path: str) -> None:
    """Read a manifest both ways."""
    ref = Ref(path, bytes=0, spec_id=3, sequence=9, has_data=True, first_row_id=None)
    found = entries(IO, ref, frozenset({1, 4})).data
    assert found is not None
    with AvroFile[ManifestEntry](
        IO.new_input(path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as listed:
        live = [e for e in listed if e.status != ManifestEntryStatus.DELETED]
    assert found.some(range(len(found))) == [expected(e) for e in live]
    for i in (1, 4):
        told = [(f.lower_bounds, f.upper_bounds, f.null_value_counts) for f in (e.data_file for e in live)]
        columns = zip(*([(metric or {}).get(i) for metric in metrics] for metrics in told), strict=True)
        metric = found.metrics[i]
        assert [column.to_pylist() for column in (metric.lower, metric.upper, metric.nulls)] == (
            [list(column) for column in columns] or [[], [], []]
        )


def expected(listed: ManifestEntry) -> DataEntry:
    file = listed.data_file
    return DataEntry(
        file.file_path,
        file.file_format.value.lower(),
        3,
        tuple(file.partition[i] for i in range(len(file.partition))),
        9 if listed.sequence_number is None else listed.sequence_number,
        file.record_count,
        file.file_size_in_bytes,
    )
