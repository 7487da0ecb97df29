"""The stages of an epoch job, run here as Spark's workers run them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Report, Split
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.kernels.net import net
from icefront.spark.job import Work, _BlobStage, _MergeStage

EPOCH = Epoch(ORIGIN, Timestamp(100))
COLUMNS = ("k", "s", OP, WALL, LOGICAL, ORDER)
TYPES = (pa.int64(), pa.int64(), pa.int8(), pa.int64(), pa.int32(), pa.int64())
SCHEMA = pa.schema(list(zip(COLUMNS, TYPES, strict=True)))


@dataclass
class Reader:
    """Reads one of several pieces, each piece as several tables."""

    pieces: Sequence[Sequence[pa.Table]]

    def infer(self, split: Split, epoch: Epoch) -> Report:
        raise NotImplementedError

    def read(self, split: Split, epoch: Epoch, schema: Schema) -> Iterator[pa.Table | Report]:
        del epoch, schema
        yield from self.pieces[split.number]
        yield Report(split.number)


@dataclass
class Writer:
    """Keeps what it is given."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, changes: Any, split: int, attempt: str) -> Iterator[Any]:
        del split, attempt
        for table in changes:
            self.rows += table.to_pylist()
        yield from ()


def through_stages(pieces: Sequence[Sequence[pa.Table]], sequence_by: str | None) -> list[dict[str, Any]]:
    """Send pieces through both stages, two buckets wide; return what is written."""
    writer = Writer()
    work = Work(Reader(pieces), writer, EPOCH, Schema(), ("k",), sequence_by, upsert=True)
    blobs = [row for number in range(len(pieces)) for row in _BlobStage(work, 2)((Split(number, 1, ""),))]
    reports = [pickle.loads(payload) for _, (kind, payload) in blobs if kind == "report"]
    assert [report.split for report in reports] == list(range(len(pieces)))
    for bucket in range(2):
        list(_MergeStage(work)((number, told) for number, told in blobs if told[0] == "changes" and number == bucket))
    return sorted(writer.rows, key=lambda row: row["k"])


changes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([1, 1, -1]), st.integers(0, 9)), min_size=1, max_size=12
)


def as_table(listed: Sequence[tuple[int, int, int, int]]) -> pa.Table:
    rows = [
        {"k": k, "s": None if op < 0 else s, OP: op, WALL: wall, LOGICAL: 0, ORDER: order}
        for order, (k, s, op, wall) in enumerate(listed)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@given(changes, st.lists(st.integers(0, 12), max_size=3), st.sampled_from([None, "s"]))
def test_it_does_not_matter_how_an_epoch_is_split(listed, cuts, sequence_by):
    table = as_table(listed)
    bounds = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    parts = [table.slice(a, b - a) for a, b in pairwise(bounds) if b > a]
    expected = sorted(net(table, ["k"], sequence_by).to_pylist(), key=lambda row: row["k"])
    assert through_stages([[part] for part in parts], sequence_by) == expected
    assert through_stages([parts], sequence_by) == expected
