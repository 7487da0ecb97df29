"""Row lineage in Arrow: which rows were carried over, told by two numbers per row instead of by all its values.

file ─▶ row ids and sequence numbers ─▶ runs ══shuffle══▶ versions on both sides were carried over, the others are read in full
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icefront.iceberg.lineage import ROW_ID, ROW_ID_FIELD, SEQUENCE, SEQUENCE_FIELD
from icefront.iceberg.live import DataEntry
from icefront.kernels.codes import Codes, groups
from icefront.kernels.datafiles import Files, Mask

_ROW_ID = NestedField(ROW_ID_FIELD, ROW_ID, LongType(), required=False)
_SEQUENCE = NestedField(SEQUENCE_FIELD, SEQUENCE, LongType(), required=False)
_BLOCK = 16  # ids that differ only in so many low bits stay together, and with them the runs


@dataclass(frozen=True)
class Versions:
    """Which rows lie at which positions of a file: their ids, and the sequence numbers of the commits that last changed them."""

    ids: Codes
    sequences: Codes
    positions: Codes

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, where: Any) -> Versions:
        return Versions(self.ids[where], self.sequences[where], self.positions[where])


def joined(parts: Sequence[Versions]) -> Versions:
    """Put versions one after the other."""
    none: Codes = np.array([], np.int64)
    return Versions(
        np.concatenate([none, *(p.ids for p in parts)]),
        np.concatenate([none, *(p.sequences for p in parts)]),
        np.concatenate([none, *(p.positions for p in parts)]),
    )


# ── files ──────────────────────────────────────────────────────────────────────────────────
def versions(files: Files, file: DataEntry, wanted: Mask | None) -> Iterator[Versions]:
    """Read the versions of a file's rows, or of some of them."""
    for positions, batch in _placed(files, file, Schema(_ROW_ID, _SEQUENCE), wanted):
        sequences = np.full(len(positions), file.sequence, np.int64)
        yield Versions(_ids(file, positions, batch), _said(batch.column(SEQUENCE), sequences), positions)


def rows(files: Files, file: DataEntry, schema: Schema, wanted: Mask) -> Iterator[pa.Table]:
    """Read some rows of a file in full, with their ids as the last column."""
    for positions, batch in _placed(files, file, Schema(*schema.fields, _ROW_ID), wanted):
        at = batch.num_columns - 1
        yield pa.Table.from_batches([batch]).set_column(at, ROW_ID, pa.array(_ids(file, positions, batch)))


def _placed(files: Files, file: DataEntry, schema: Schema, wanted: Mask | None) -> Iterator[tuple[Codes, pa.RecordBatch]]:
    """Yield batches, with the position of each row."""
    positions = np.arange(file.records) if wanted is None else np.flatnonzero(wanted)
    start = 0
    for _, batch in files.rows(file, schema, wanted):
        yield positions[start : start + batch.num_rows], batch
        start += batch.num_rows


def _ids(file: DataEntry, positions: Codes, batch: pa.RecordBatch) -> Codes:
    assert file.first_row_id is not None
    return _said(batch.column(ROW_ID), positions + file.first_row_id)


def _said(column: pa.Array, inherited: Codes) -> Codes:
    """Return what the file says, and where it says nothing, what a row inherits."""
    if column.null_count == len(column):
        return inherited
    said: Codes = column.fill_null(0).to_numpy()
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), said, inherited) if column.null_count else said


# ── between workers ────────────────────────────────────────────────────────────────────────
def split(found: Versions, count: int) -> Iterator[tuple[int, Versions]]:
    """Distribute versions so that equal ids meet."""
    if count == 1:
        yield 0, found
        return
    order, starts = groups((found.ids >> _BLOCK) % count, count)
    parts = ((bucket, found.at(order[starts[bucket] : starts[bucket + 1]])) for bucket in range(count))
    yield from ((bucket, part) for bucket, part in parts if len(part))


def packed(found: Versions) -> pa.Table:
    """Describe versions by runs: ids and positions that count up together, under one sequence number."""
    breaks = (np.diff(found.ids) != 1) | (np.diff(found.positions) != 1) | (np.diff(found.sequences) != 0)
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1]) if len(found) else np.array([], np.int64)
    first = found.at(starts)
    lengths = np.diff(starts, append=len(found))
    return pa.table({"id": first.ids, "sequence": first.sequences, "position": first.positions, "rows": lengths})


def unpacked(runs: pa.Table) -> Versions:
    ids, sequences, positions, lengths = (column.to_numpy() for column in runs.columns)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Versions(np.repeat(ids, lengths) + within, np.repeat(sequences, lengths), np.repeat(positions, lengths) + within)


# ── carry-over ─────────────────────────────────────────────────────────────────────────────
def carried(left: Versions, came: Versions) -> tuple[Mask, Mask]:
    """Say which rows of either side are the same version of the same row.

    An id that is on one side more than once tells nothing: whoever wrote it did not keep to the specification.
    """
    places, width = _places(np.concatenate([left.ids, came.ids]))
    left_rows, came_rows = _only(places[: len(left)], width), _only(places[len(left) :], width)
    both = np.flatnonzero((left_rows >= 0) & (came_rows >= 0))
    left_at, came_at = left_rows[both], came_rows[both]
    same = left.sequences[left_at] == came.sequences[came_at]
    return _mask(len(left), left_at[same]), _mask(len(came), came_at[same])


def _places(ids: Codes) -> tuple[Codes, int]:
    """Number ids from 0, and return how many numbers there are. Ids mostly lie close together: then nothing has to be sorted."""
    least, most = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    if most - least < 4 * len(ids) + 1024:
        return ids - least, most - least + 1
    known, places = np.unique(ids, return_inverse=True)
    return places, len(known)


def _only(places: Codes, width: int) -> Any:
    """Return the row at each place; -1 if there is none, or more than one."""
    rows = np.full(width, -1, np.int32)
    order = np.arange(len(places), dtype=np.int32)
    rows[places] = order  # the last one stays
    rows[places[rows[places] != order]] = -1
    return rows


def _mask(count: int, at: Any) -> Mask:
    mask = np.zeros(count, bool)
    mask[at] = True
    return mask
