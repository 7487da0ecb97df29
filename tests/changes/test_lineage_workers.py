"""The lineage job's workers without Spark: random rewrites, told by ids and by values."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql.types import LongType as SparkLong
from pyspark.sql.types import StringType as SparkString
from pyspark.sql.types import StructField, StructType

from icefront.iceberg.lineage import ROW_ID, ROW_ID_FIELD, SEQUENCE, SEQUENCE_FIELD
from icefront.iceberg.live import DataEntry
from icefront.iceberg.statediff import FileChange
from icefront.kernels.changelog import CHANGE_TYPE, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from icefront.kernels.datafiles import Files, Layout
from icefront.spark import changes as job
from icefront.spark import lineage
from icefront.spark.exchange import Spread

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType()), schema_id=0)
COLUMNS = {
    "id": (1, pa.int64()),
    "v": (2, pa.string()),
    ROW_ID: (ROW_ID_FIELD, pa.int64()),
    SEQUENCE: (SEQUENCE_FIELD, pa.int64()),
}
ARROW = pa.schema([pa.field(n, kind, metadata={"PARQUET:field_id": str(i)}) for n, (i, kind) in COLUMNS.items()])
OUTPUT = StructType([StructField("id", SparkLong()), StructField("v", SparkString()), *job.OUTPUT])

Blobs = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Row:
    """A row with the lineage that its file gives it."""

    id: int
    v: str
    row_id: int
    sequence: int


@st.composite
def rewrites(draw: st.DrawFn) -> tuple[list[list[Row]], list[list[Row]]]:
    """Files before and after commit 2: rows are kept, changed, moved, dropped, added, and some lose their id on the way."""
    rows = [Row(draw(st.integers(0, 3)), draw(st.sampled_from("ab")), number, 1) for number in range(draw(st.integers(0, 8)))]
    after: list[Row] = []
    for row in draw(st.permutations(rows)):
        match draw(st.sampled_from(["keep", "keep", "change", "drop", "forget"])):
            case "keep":
                after.append(row)
            case "change":
                after.append(Row(row.id, draw(st.sampled_from("abc")), row.row_id, 2))
            case "forget":
                after.append(Row(row.id, row.v, 100 + row.row_id, 2))
    after += [Row(draw(st.integers(0, 3)), "b", 200 + number, 2) for number in range(draw(st.integers(0, 3)))]
    return cut(draw, rows), cut(draw, after)


def cut(draw: st.DrawFn, rows: list[Row]) -> list[list[Row]]:
    at = draw(st.integers(0, len(rows)))
    return [part for part in (rows[:at], rows[at:]) if part]


def written(folder: Path, name: str, rows: list[Row]) -> DataEntry:
    told = [{"id": r.id, "v": r.v, ROW_ID: r.row_id, SEQUENCE: r.sequence} for r in rows]
    path = folder / name
    pq.write_table(pa.Table.from_pylist(told, ARROW), path)
    return DataEntry(str(path), "parquet", 0, (), sequence=2, records=len(rows), size=1, first_row_id=1000)


def exchanged(blobs: Iterable[pa.RecordBatch], work: Blobs) -> Iterator[pa.RecordBatch]:
    """What Spark does between two stages: each partition's blobs come to one call."""
    partitions: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in blobs:
        partitions[batch.column("partition")[0].as_py()].append(batch)
    for found in partitions.values():
        yield from work(iter(found))


def handed_out(items: list[Any]) -> Iterator[pa.RecordBatch]:
    for task, work in enumerate(items):
        yield pa.record_batch({"task": [task], "work": [pickle.dumps(work)]})


def told(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    return Counter((row["id"], row["v"], row[CHANGE_TYPE]) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("keys", [(), (1,)])
@given(rewrites(), st.integers(1, 3))
def test_ids_tell_what_values_tell_and_only_the_rest_is_read(keys: tuple[int, ...], drawn: Any, count: int) -> None:
    before, after = drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [FileChange(written(folder, f"b{i}", rows), (), None) for i, rows in enumerate(before)]
        found += [FileChange(written(folder, f"a{i}", rows), None, ()) for i, rows in enumerate(after)]
        layout = Layout({0: SCHEMA.model_dump_json()}, 3)
        plan = job.Plan("t", layout, {}, name, {0: job.Moment(7, 0, 0, 0)}, keys, 0, OUTPUT)
        items = [[(0, [change])] for change in found]
        spread = Spread({0: count}, count)
        by_values = exchanged(job._Scatter(plan, job._Own(plan), spread)(handed_out(items)), job._Gather(plan))
        expected = told(by_values)

        places = exchanged(lineage._Trace(plan, spread)(handed_out(items)), lineage._match)
        with pytest.MonkeyPatch.context() as patch:
            read = counted(patch)
            residue = list(exchanged(places, lineage._Read(plan, spread)))
        assert told(exchanged(residue, job._Gather(plan))) == expected
        left, came = ({(r.row_id, r.sequence) for rows in side for r in rows} for side in (before, after))
        assert sum(read) == len(left ^ came)

        by_id = replace(plan, keys=(), by_row_id=True)
        places = exchanged(lineage._Trace(by_id, spread)(handed_out(items)), lineage._match)
        rest = exchanged(exchanged(places, lineage._Read(by_id, spread)), lineage._Cancel(spread))
        images = told(exchanged(rest, lineage._Pair(by_id)))
        assert sides(images) == sides(expected)
        kinds = Counter(kind for _, _, kind in images.elements())
        assert kinds[UPDATE_BEFORE] == kinds[UPDATE_AFTER] <= len({i for i, _ in left} & {i for i, _ in came})


def sides(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Changes without the difference that keys make."""
    plain = {UPDATE_BEFORE: DELETE, UPDATE_AFTER: INSERT}
    return Counter((key, v, plain.get(kind, kind)) for key, v, kind in found.elements())


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows that are read in full."""
    read: list[int] = []
    original = Files.rows

    def rows(*arguments: Any) -> Iterator[Any]:
        for start, batch in original(*arguments):
            read.append(batch.num_rows if "v" in batch.schema.names else 0)
            yield start, batch

    patch.setattr(Files, "rows", rows)
    return read
