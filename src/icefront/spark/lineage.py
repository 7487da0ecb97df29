"""The changes job of steps that row lineage tells of: two numbers per row meet first, and only rows that did change are read in full.

    file changes ─▶ versions as runs ══shuffle══▶ leave out what was carried over ─▶ positions ══shuffle══▶ read ─▶ blobs of rows

Those blobs go the way of all others. To tell rows apart by their ids takes one exchange more: equal rows may have other ids, and have
to meet before.

    blobs of rows ══shuffle by values══▶ cancel ══shuffle by id══▶ pair images ─▶ rows
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from icefront.iceberg.lineage import ROW_ID
from icefront.iceberg.live import DataEntry
from icefront.iceberg.statediff import FileChange
from icefront.kernels import lineage
from icefront.kernels.changelog import Diff, cancel, changes
from icefront.kernels.datafiles import CAME, LEFT
from icefront.kernels.net import from_blob, to_blob
from icefront.spark.exchange import BLOBS, Spread, blob, handed_out, met, spread, work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icefront.spark.changes import Item, Plan

MATCH_ROWS = 4 * 1024 * 1024


def residue(
    session: SparkSession, plan: Plan, steps: Mapping[int, Sequence[FileChange]], items: Sequence[Sequence[Item]], rows: Spread
) -> DataFrame:
    """Return blobs of the rows that were not carried over."""
    records = {ordinal: sum(change.file.records for change in found) for ordinal, found in steps.items()}
    ids = spread(records, MATCH_ROWS, rows.width)
    runs = handed_out(session, items).mapInArrow(_Trace(plan, ids), BLOBS)
    places = runs.repartitionById(ids.width, "partition").mapInArrow(_match, BLOBS)
    return places.repartitionById(len(items), "partition").mapInArrow(_Read(plan, rows), BLOBS)


def paired(blobs: DataFrame, plan: Plan, rows: Spread) -> DataFrame:
    """Return the changes that blobs of rows tell, with update images by row id."""
    told = blobs.repartitionById(rows.width, "partition").mapInArrow(_Cancel(rows), BLOBS)
    return told.repartitionById(rows.width, "partition").mapInArrow(_Pair(plan), plan.output)


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class _Part:
    """Some rows of a file: as runs of versions, or as positions; and the task that reads the file."""

    home: int
    file: DataEntry
    rows: bytes


@dataclass(frozen=True)
class _Trace:
    """Read the versions of rows that left and came, and send them to where their ids are."""

    plan: Plan
    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, items in work(batches):
            for ordinal, found in items:
                for change in found:
                    yield from self._runs(number, ordinal, change)

    def _runs(self, home: int, ordinal: int, change: FileChange) -> Iterator[pa.RecordBatch]:
        file = change.file
        for side, wanted in self.plan.files.moved(change):
            for versions in lineage.versions(self.plan.files, file, wanted):
                for bucket, part in lineage.split(versions, self.spread.buckets[ordinal]):
                    payload = pickle.dumps(_Part(home, file, to_blob(lineage.packed(part))))
                    yield blob(self.spread.partition(ordinal, bucket), bucket, ordinal, side, payload)


def _match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out what was carried over; send the positions of the rest to where their files are read."""
    held: dict[tuple[int, int], tuple[list[_Part], list[_Part]]] = defaultdict(lambda: ([], []))
    for batch in batches:
        for row in batch.to_pylist():
            held[row["ordinal"], row["bucket"]][row["side"]].append(_part(row["payload"]))
    for (ordinal, bucket), sides in sorted(held.items()):
        found = [[lineage.unpacked(from_blob(part.rows)) for part in parts] for parts in sides]
        whole = [lineage.joined(parts) for parts in found]
        for side, over in zip((LEFT, CAME), lineage.carried(*whole), strict=True):
            start = 0
            for part, versions in zip(sides[side], found[side], strict=True):
                rest = versions.positions[~over[start : start + len(versions)]]
                start += len(versions)
                if len(rest):
                    positions = BitMap64(rest.astype(np.uint64)).serialize()
                    yield blob(part.home, bucket, ordinal, side, pickle.dumps(replace(part, rows=positions)))


@dataclass(frozen=True)
class _Read:
    """Read rows at positions, and send them to where their likes are."""

    plan: Plan
    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted: dict[tuple[int, str, int], tuple[DataEntry, BitMap64]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                part = _part(row["payload"])
                _, positions = wanted.setdefault((row["ordinal"], part.file.path, row["side"]), (part.file, BitMap64()))
                positions |= BitMap64.deserialize(part.rows)
        for (ordinal, _, side), (file, positions) in sorted(wanted.items(), key=lambda item: item[0]):
            mask = np.zeros(file.records, bool)
            mask[np.asarray(positions.to_array(), np.int64)] = True
            schema = self.plan.schema(ordinal)
            values = [(field.name,) for field in schema.fields]
            if self.plan.by_row_id:
                for rows in lineage.rows(self.plan.files, file, schema, mask):
                    yield from self.spread.blobs(ordinal, side, rows, values)
            else:
                keys = self.plan.key_paths(ordinal)
                for _, batch in self.plan.files.rows(file, schema, mask):
                    yield from self.spread.blobs(ordinal, side, pa.Table.from_batches([batch]), keys)


def _part(payload: bytes) -> _Part:
    part: _Part = pickle.loads(payload)  # noqa: S301 — written by our own workers
    return part


@dataclass(frozen=True)
class _Cancel:
    """Leave out rows that are on both sides whatever their ids, and send the rest to where their ids are."""

    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ordinal, found in met(batches):
            # Of several equal rows those with the same id go first, then as their ids say: every run leaves the same.
            diff = cancel(Diff(found.left.sort_by(ROW_ID), found.came.sort_by(ROW_ID)))
            values = [name for name in found.left.column_names if name != ROW_ID]
            rest = cancel(diff, values)
            for side, rows in ((LEFT, rest.left), (CAME, rest.came)):
                yield from self.spread.blobs(ordinal, side, rows, [(ROW_ID,)])


@dataclass(frozen=True)
class _Pair:
    """Pair what was updated."""

    plan: Plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ordinal, diff in met(batches):
            yield from self.plan.finished(changes(diff, [(ROW_ID,)]).drop_columns([ROW_ID]), ordinal)
