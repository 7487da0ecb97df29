"""Netting: one final change per key and epoch; and the way of changes between workers.

An equality delete does not touch rows of its own snapshot, so an epoch must not carry two changes of one key. The last one is by
(wall, logical, order), wherever and in whatever order the changes come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core import transform  # type: ignore[import-untyped]

from icefront.core.errors import ConfigError, Stopped
from icefront.core.ports import LOGICAL, OP, ORDER, WALL
from icefront.kernels.codes import Codes, encode, groups, plain

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_HASH_LIMIT = 2**31 - 1


def check_keys(schema: Schema, keys: Sequence[str]) -> None:
    """Refuse keys that cannot be compared exactly: missing, repeated, nested, floating-point."""
    fields = {f.name: f.field_type for f in schema.fields}
    if not keys or len(set(keys)) != len(keys):
        raise ConfigError(f"keys {list(keys)}: at least one column, each once", "correct `keys`")
    for key in keys:
        if key not in fields:
            raise ConfigError(f"key column {key} is not among the columns {', '.join(fields)}", "correct `keys`")
        if not fields[key].is_primitive or str(fields[key]) in {"float", "double", "unknown"}:
            raise ConfigError(
                f"column {key} of type {fields[key]} cannot be a key: its values cannot be compared exactly",
                "choose other key columns, or declare it with another type (decimal, string)",
            )


def net(changes: pa.Table, keys: Sequence[str], sequence_by: str | None = None) -> pa.Table:
    """Keep the last change of each key, in the order in which these came in.

    With `sequence_by` the greatest value of that column wins instead, then the source's order. A delete has no such value: what the
    source had before it is gone, whatever its value, and what comes after it counts.
    """
    _refuse_null_keys(changes, keys)
    if changes.num_rows < 2:
        return changes
    codes, count = encode([changes[k] for k in keys])
    if count == changes.num_rows:
        return changes
    return changes.take(pa.array(_last(changes, codes, count, sequence_by)))


def _last(changes: pa.Table, codes: Codes, count: int, sequence_by: str | None) -> Codes:
    """Return the rows that win, ascending. Only keys that occur repeatedly are sorted: they are few as a rule."""
    repeated = np.flatnonzero(np.bincount(codes, minlength=count)[codes] > 1)
    kept = np.ones(len(codes), bool)
    kept[repeated] = False
    rows = repeated[_in_order(changes, codes, repeated, sequence_by)]
    ends = np.flatnonzero(np.diff(codes[rows], append=-1))
    kept[rows[ends]] = True
    return np.flatnonzero(kept)


def _in_order(changes: pa.Table, codes: Codes, rows: Codes, sequence_by: str | None) -> Codes:
    """Sort rows by key and then from first to last."""
    contenders = changes.select([c for c in (OP, WALL, LOGICAL, ORDER, sequence_by) if c]).take(pa.array(rows))
    op, wall, logical, order = (contenders[c].to_numpy() for c in (OP, WALL, LOGICAL, ORDER))
    code = codes[rows]
    # The operation comes last: even changes that claim the same place are told apart the same way everywhere.
    by_source = np.lexsort((op, order, logical, wall, code))
    if sequence_by is None:
        return by_source
    sequence = contenders[sequence_by]
    unsequenced = (op < 0) & sequence.is_null().to_numpy()
    era = np.empty(len(rows), np.int64)
    era[by_source] = np.cumsum(unsequenced[by_source])
    return np.lexsort((op, order, logical, wall, _ranks(plain(sequence)), era, code))


def _ranks(column: pa.Array) -> Codes:
    """Number the values in their order, from 0; null is -1."""
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary) + 1, np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    ranks[-1] = -1
    ranked: Codes = ranks[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return ranked


def _refuse_null_keys(changes: pa.Table, keys: Sequence[str]) -> None:
    for key in keys:
        if changes[key].null_count:
            raise Stopped(
                f"{changes[key].null_count} changes have a null in key column {key}", "correct the rows, or choose other keys"
            )


def partition_by_key(changes: pa.Table, keys: Sequence[str], n: int) -> list[pa.Table]:
    """Distribute changes over n tables so that equal keys meet.

    The hash is Iceberg's bucket transform (Murmur3, laid down in its specification), so every process, machine and version
    computes the same.
    """
    _refuse_null_keys(changes, keys)
    if n == 1:
        return [changes]
    order, starts = groups(_buckets(changes, keys, n), n)
    sorted_changes = changes.take(pa.array(order))
    return [sorted_changes.slice(starts[i], starts[i + 1] - starts[i]) for i in range(n)]


def _buckets(changes: pa.Table, keys: Sequence[str], n: int) -> Codes:
    mixed = np.zeros(changes.num_rows, np.uint64)
    for key in keys:
        mixed = mixed * np.uint64(31) + _hash(plain(changes[key]))
    buckets: Codes = ((mixed ^ (mixed >> np.uint64(15))) % np.uint64(n)).astype(np.int64)
    return buckets


def _hash(column: pa.Array) -> Any:
    hashable = column.cast(pa.int32()) if pa.types.is_boolean(column.type) else column
    return transform.bucket(hashable, _HASH_LIMIT).to_numpy(zero_copy_only=False).astype(np.uint64)


def to_blob(table: pa.Table) -> bytes:
    """Pack a table for the way to another worker."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def from_blob(blob: bytes) -> pa.Table:
    return pa.ipc.open_stream(blob).read_all()
