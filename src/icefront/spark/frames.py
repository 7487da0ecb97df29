"""Changes that are already a Spark DataFrame: netted and written by key, once.

The rows pass through the JVM because they are there already; from `mapInArrow` on they are Arrow.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefront.core.errors import BadRow, ConfigError, IcefrontError
from icefront.core.files import ClosedFile, deduplicate
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, EpochWriter
from icefront.kernels.codes import encode
from icefront.kernels.net import net
from icefront.spark.session import ship_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RESULT = "kind string, split int, payload binary"
_RESULT_ARROW = pa.schema([("kind", pa.string()), ("split", pa.int32()), ("payload", pa.binary())])
_UPSERTS = ("1", "c", "r", "u", "insert", "update", "upsert")
_DELETES = ("-1", "d", "delete")


@dataclass(frozen=True, slots=True)
class FrameWork:
    """What workers need to write a DataFrame of changes. `arrow` is the table's own Arrow schema, serialised."""

    writer: EpochWriter
    arrow: bytes
    keys: tuple[str, ...]
    sequence_by: str | None
    op: str | None


def write_frame(df: DataFrame, work: FrameWork) -> tuple[tuple[ClosedFile, ...], dict[str, int]]:
    """Net and write `df`; return its closed files and the number of changes by kind."""
    missing = [c for c in (*work.keys, work.sequence_by, work.op) if c is not None and c not in df.columns]
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {', '.join(missing)}; it has {', '.join(df.columns)}", "correct the arguments"
        )
    ship_package(df.sparkSession)
    rows = df.repartition(*work.keys).mapInArrow(_Stage(work), _RESULT).collect()
    files: list[ClosedFile] = []
    counts = {"upserts": 0, "deletes": 0}
    for row in rows:
        value = pickle.loads(bytes(row["payload"]))  # noqa: S301 — written by our own workers
        match row["kind"]:
            case "error":
                raise value
            case "counts":
                counts = {name: counts[name] + value[name] for name in counts}
            case _:
                files.append(value)
    return deduplicate(files), counts


@dataclass(frozen=True, slots=True)
class _Stage:
    work: FrameWork

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for kind, value in self._run(list(batches)):
            yield pa.RecordBatch.from_arrays(
                [pa.array([kind]), pa.array([0], pa.int32()), pa.array([pickle.dumps(value)], pa.binary())], schema=_RESULT_ARROW
            )

    def _run(self, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, Any]]:
        from pyspark import TaskContext  # noqa: PLC0415 — only exists inside a task

        from icefront.spark.job import attempt_id  # noqa: PLC0415 — the same naming as epoch jobs

        held = [b for b in batches if b.num_rows]
        if not held:
            return
        context = TaskContext.get()
        split = context.partitionId() if context else 0
        try:
            changes = net(as_changes(pa.Table.from_batches(held), self.work), self.work.keys)
            for file in self.work.writer.write([changes], split, attempt_id()):
                yield "file", file
            deletes = pc.sum(pc.less(changes[OP], 0)).as_py() or 0
            yield "counts", {"deletes": deletes, "upserts": changes.num_rows - deletes}
        except IcefrontError as error:
            yield "error", error


def as_changes(rows: pa.Table, work: FrameWork) -> pa.Table:
    """Give rows the shape of changes: the table's columns and types, then operation and order."""
    arrow = pa.ipc.read_schema(pa.py_buffer(work.arrow))
    for key in work.keys:
        if rows[key].null_count:
            raise BadRow(f"{rows[key].null_count} rows have a null in key column {key}", "filter them out, or choose other keys")
    columns = {f.name: _cast(rows, f) for f in arrow}
    count = rows.num_rows
    # Rank, not value: any orderable type will do.
    order = _ranks(rows[work.sequence_by]) if work.sequence_by is not None else np.zeros(count, dtype=np.int64)
    columns[OP] = _operations(rows, work.op)
    columns[WALL] = pa.array(order)
    _refuse_ties(pa.table(columns), work)
    columns[LOGICAL] = pa.array(np.zeros(count, dtype=np.int32))
    columns[ORDER] = pa.array(np.arange(count, dtype=np.int64))
    return pa.table(columns)


def _refuse_ties(changes: pa.Table, work: FrameWork) -> None:
    """Refuse changes of one key that nothing orders, unless they say the same: the shuffle brings rows in any order."""
    codes, count = encode([changes[key] for key in work.keys])
    if count == changes.num_rows:
        return
    wall = changes[WALL].to_numpy()
    order = np.lexsort((wall, codes))
    one, other = order[:-1], order[1:]
    tied = (codes[one] == codes[other]) & (wall[one] == wall[other])
    for first, second in zip(*(changes.take(pa.array(rows[tied])).to_pylist() for rows in (one, other)), strict=True):
        if repr(first) != repr(second):
            key = ", ".join(f"{name}={first[name]!r}" for name in work.keys)
            by = f"the same {work.sequence_by}" if work.sequence_by else "no sequence_by to order them"
            raise BadRow(
                f"two different changes of {key} in one batch, with {by}", "name a column that orders changes of one key"
            )


def _ranks(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    if column.null_count:
        raise BadRow(
            f"{column.null_count} rows have no value in the sequence_by column", "fill it: without it their order is unknown"
        )
    return np.asarray(pc.rank(column, tiebreaker="dense"), dtype=np.int64)


def _cast(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """Give a column the table's type; every value stays what it is, or the batch stops."""
    if field.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    given = rows[field.name]
    try:
        made = pa.chunked_array([chunk.cast(field.type) for chunk in given.chunks], field.type)
        lost = next(filter(None, map(_loss, given.chunks, made.chunks)), "")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        lost = str(error)
    if lost:
        fact = f"column {field.name} is {given.type}, the table has {field.type}: {lost}"
        raise BadRow(fact, "cast it before applying, or give the table a type that holds its values")
    return made


def _loss(given: pa.Array, made: pa.Array) -> str:
    """Say what a cast changed; nothing when every value stayed what it was."""
    kind = _kind(given.type)
    if kind == "null":
        return ""
    if kind != _kind(made.type):
        return f"no {kind} is a {_kind(made.type)}"
    if kind == "number":
        return "" if given.type == made.type else _changed_number(given, made)
    if kind in {"list", "map"}:
        return _loss(_items(given), _items(made))
    if kind == "struct":
        names = [f.name for f in given.type]
        dropped = [name for name in names if made.type.get_field_index(name) < 0]
        if dropped:
            return f"its member {dropped[0]} would be dropped"
        pairs = zip(given.flatten(), (made.flatten()[made.type.get_field_index(name)] for name in names), strict=True)
        return next(filter(None, (_loss(*pair) for pair in pairs)), "")
    return ""


def _items(values: pa.Array) -> pa.Array:
    """Return what lists hold; of maps their entries."""
    if pa.types.is_map(values.type):
        entry = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(entry))
    return values.flatten()


def _kind(arrow: pa.DataType) -> str:
    """Name what values of a type are. A time with a zone is an instant, one without is a clock's face: neither is the other."""
    types = pa.types
    if types.is_integer(arrow) or types.is_floating(arrow) or types.is_decimal(arrow):
        return "number"
    if types.is_string(arrow) or types.is_large_string(arrow):
        return "text"
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow):
        return "bytes"
    if types.is_timestamp(arrow):
        return "timestamptz" if arrow.tz else "timestamp"
    nested = {"list": types.is_list(arrow) or types.is_large_list(arrow), "map": types.is_map(arrow)}
    return next((kind for kind, holds in nested.items() if holds), "struct" if types.is_struct(arrow) else str(arrow))


def _changed_number(given: pa.Array, made: pa.Array) -> str:
    """Cast back and compare: Arrow rounds floating-point numbers without a word."""
    back = made.cast(given.type, safe=False)
    same = pc.equal(given, back)
    if pa.types.is_floating(given.type):
        same = pc.or_(same, pc.and_(pc.is_nan(given), pc.is_nan(back)))
    at = pc.index(same, False).as_py()
    return f"{given[at]} would become {made[at]}" if at >= 0 else ""


def _operations(rows: pa.Table, op: str | None) -> pa.Array:
    if op is None:
        return pa.array(np.ones(rows.num_rows, dtype=np.int8))
    words = pc.utf8_lower(pc.cast(rows[op], pa.string())).combine_chunks()
    deletes = pc.is_in(words, pa.array(_DELETES))
    known = pc.or_(deletes, pc.is_in(words, pa.array(_UPSERTS)))
    if not pc.all(known, skip_nulls=False).as_py():
        strange = pc.filter(words, pc.invert(known))[0].as_py()
        raise BadRow(f"column {op} holds {strange!r}", f"it must be one of {', '.join((*_UPSERTS, *_DELETES))}")
    return pc.cast(pc.if_else(deletes, -1, 1), pa.int8())
