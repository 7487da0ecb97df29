"""JSON values → Arrow columns, exactly: what msgspec decodes a value into, and how a list of those becomes an array.

    JSON text ── msgspec, typed by `wire` ──▶ Python values ── `array`, vectorised ──▶ Arrow column

Nothing passes through a double that was not declared one, and nothing is truncated: a value that does not fit raises
`Unfit` with its place in the list, and with the wider type when a legal Iceberg widening would hold it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import isfinite
from operator import attrgetter
from types import GenericAlias
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.errors import ConfigError

_READABLE = "boolean, int, long, float, double, decimal, string, date, time, timestamps, uuid, binary, fixed, list, map, struct"

RAW_NULL = msgspec.Raw(b"null")
MAX_PRECISION = 38
_SPECIAL_FLOATS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "Inf": float("inf"),
    "+Inf": float("inf"),
    "-Infinity": float("-inf"),
    "-Inf": float("-inf"),
}
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError, KeyError)


class Unfit(Exception):
    """Value number `index` of a list does not fit its type; `reason` and `advice` are for people."""

    def __init__(self, index: int, reason: str, advice: str) -> None:
        super().__init__(index, reason, advice)
        self.index = index
        self.reason = reason
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Fitted:
    """A column, or the wider type that it needs."""

    array: pa.Array | None
    wider: IcebergType | None = None


def wire(kind: IcebergType, *, raw_strings: bool = False) -> Any:
    """Return what msgspec is to decode a JSON value of this type into; null is always legal here.

    Decimals stay raw slices, which Arrow parses exactly and four times as fast as Python decimals. With `raw_strings` strings do
    so too: then a value that is no JSON string (JSONB, a number) gives its text.
    """
    made = _wire(kind, raw_strings=raw_strings)
    return made if made is msgspec.Raw else made | None


def _wire(kind: IcebergType, *, raw_strings: bool) -> Any:
    match kind:
        case BooleanType():
            return bool
        case IntegerType() | LongType():
            return int
        case FloatType() | DoubleType():
            return int | float | str
        case DecimalType():
            return msgspec.Raw
        case StringType():
            return msgspec.Raw if raw_strings else str
        case ListType():
            return GenericAlias(list, wire(kind.element_type, raw_strings=True))
        case MapType() if isinstance(kind.key_type, StringType):
            return GenericAlias(dict, (str, wire(kind.value_type, raw_strings=True)))
        case StructType():
            return record("Member", {f.name: wire(f.field_type, raw_strings=True) for f in kind.fields})
        case _ if is_text(kind):
            return str
    raise ConfigError(f"a column of type {kind} cannot be read from JSON", f"use one of: {_READABLE}")


def is_readable(column: str) -> bool:
    """Say whether a member of this name can be read: msgspec looks for it as it is written."""
    return json.dumps(column, ensure_ascii=False) == f'"{column}"'


def unreadable(column: str) -> str:
    return f"column {json.dumps(column)} has a quote, a backslash or a control character in its name, which cannot be read"


def record(name: str, wires: Mapping[str, Any], unset: Collection[str] = ()) -> type[msgspec.Struct]:
    """Define a struct with these members, in order; its attributes are f0, f1, … since column names may be anything.

    An unknown member is an error, a missing one is null, or UNSET where that is to be told apart.
    """
    for column in wires:
        if not is_readable(column):
            raise ConfigError(unreadable(column), "rename it in the source, and in the table")
    nulls = {c: msgspec.UNSET if c in unset else RAW_NULL if kind is msgspec.Raw else None for c, kind in wires.items()}
    fields = [(f"f{i}", kind, nulls[column]) for i, (column, kind) in enumerate(wires.items())]
    names = {f"f{i}": column for i, column in enumerate(wires)}
    return msgspec.defstruct(name, fields, rename=names, forbid_unknown_fields=True, gc=False, eq=False)


def fit(values: Sequence[Any], kind: IcebergType, arrow: pa.DataType) -> Fitted:
    """Make a column of decoded values, or say which wider type would hold them all.

    Raises Unfit for the first value that neither fits.
    """
    try:
        return Fitted(array(values, kind, arrow))
    except _UNFIT:
        wider = _widest(kind)
        if wider is not None and _fits(values, *wider):
            return Fitted(None, _narrowed(values, kind, *wider))
        at = first_unfit(values, *(wider or (kind, arrow)))
    raise Unfit(at, f"does not fit {kind}", _advice(kind))


def array(values: Sequence[Any], kind: IcebergType, arrow: pa.DataType) -> pa.Array:
    """Make a column of decoded values; raises one of several exceptions when a value does not fit."""
    match kind:
        case DecimalType():
            return _decimals(_texts(values), arrow)
        case StringType():
            return _strings(values, arrow)
        case FloatType() | DoubleType():
            return _floats(values, arrow)
        case ListType():
            return _lists(values, kind, arrow)
        case MapType():
            return _maps(values, kind, arrow)
        case StructType():
            return _structs(values, kind, arrow)
    if is_text(kind):
        return from_text(pa.array(values, pa.string()), kind, arrow)
    return pa.array(values, arrow)


def is_text(kind: IcebergType) -> bool:
    """Say whether values of this type come as JSON strings in a form of their own; a string itself has none."""
    return type(kind) in _FROM_TEXT


def from_text(texts: pa.Array, kind: IcebergType, arrow: pa.DataType) -> pa.Array:
    """Make a column of values in text form; raises one of several exceptions when a text is no such value."""
    return _FROM_TEXT[type(kind)](texts, arrow)


def exact_as_double(text: str) -> bool:
    """Say whether a number's text survives the way through a double."""
    number = float(text)
    try:
        return isfinite(number) and Decimal(text) in {Decimal(repr(number)), Decimal(number)}
    except InvalidOperation:  # an exponent beyond what even a Decimal can hold
        return False


def _decimals(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Parse decimals. Of some with an exponent Arrow makes 0 instead of refusing them: those are looked at one by one."""
    made = texts.cast(arrow)
    for at in pc.indices_nonzero(pc.fill_null(pc.match_substring_regex(texts, "[eE]"), fill_value=False)).to_pylist():
        if Decimal(texts[at].as_py()) != made[at].as_py():
            raise ValueError(f"{texts[at]} is no {arrow}")
    return made


# ── strings and raw slices ────────────────────────────────────────────────────────────────────────────────────────────


def _texts(raws: Sequence[msgspec.Raw]) -> pa.Array:
    """Turn raw slices into text: JSON null is null, quotes are dropped. For values without escapes."""
    # Joined and split again: half the time of making a bytes object of each slice. A line end cannot occur within one.
    joined = pa.array([b"\n".join(raws)], pa.binary()).cast(pa.string())
    texts = pc.split_pattern(joined, "\n").values if raws else pa.array([], pa.string())
    nulls = pc.equal(texts, "null")
    if nulls.true_count:
        texts = pc.if_else(nulls, pa.scalar(None, pa.string()), texts)
    return pc.ascii_trim(texts, '"')


def _strings(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    if values and type(values[0]) is msgspec.Raw:
        return pa.array([_text(bytes(v)) for v in values], arrow)
    return pa.array(values, arrow)


def _text(json: bytes) -> str | None:
    if json[:1] == b'"':
        return msgspec.json.decode(json, type=str)
    return None if json == b"null" else json.decode()


# ── floats ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _floats(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    try:
        doubles = pa.array(values, pa.float64())
    except _UNFIT:
        doubles = pa.array([_float(v) for v in values], pa.float64())
    return doubles if pa.types.is_float64(arrow) else singles(doubles)


def _float(value: Any) -> float | None:
    match value:
        case None:
            return None
        case str():
            return _SPECIAL_FLOATS[value]
        case int() if not exact_as_double(str(value)):
            _no(value)
    return float(value)


def singles(doubles: pa.Array) -> pa.Array:
    """Narrow to 32 bits where nothing is lost: the double is a single, or is how a single is printed."""
    wide = doubles.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    suspect = np.flatnonzero((narrow.astype(np.float64) != wide) & ~np.isnan(wide))
    for i in suspect:
        if float(str(narrow[i])) != wide[i]:
            _no(wide[i])
    return pa.array(narrow, pa.float32(), mask=pc.is_null(doubles).to_numpy(zero_copy_only=False))


def _no(value: object) -> NoReturn:
    raise ValueError(value)


# ── text forms: dates, times, uuids, bytes ────────────────────────────────────────────────────────────────────────────


def _stamps(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    try:
        return texts.cast(arrow)
    except pa.ArrowInvalid:
        # Digits beyond the unit are legal as long as they are zeros.
        digits = 9 if arrow.unit == "ns" else 6
        return pc.replace_substring_regex(texts, rf"(\.\d{{{digits}}})0+", r"\1").cast(arrow)


def _times(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    if pc.any(pc.invert(pc.match_substring_regex(texts, r"^\d\d:\d\d:\d\d(\.\d+)?$"))).as_py():
        _no("time")
    stamped = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return _stamps(stamped, pa.timestamp("us")).cast(pa.int64()).cast(arrow)


def _uuids(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    if pc.any(pc.not_equal(pc.binary_length(texts), 36)).as_py():
        _no("uuid")
    dense = texts.drop_null()
    letters = np.frombuffer("".join(dense.to_pylist()).encode(), np.uint8).reshape(-1, 36)
    if (letters[:, [8, 13, 18, 23]] != ord("-")).any():
        _no("uuid")
    data = bytes.fromhex(np.delete(letters, [8, 13, 18, 23], axis=1).tobytes().decode())
    return pa.ExtensionArray.from_storage(arrow, _fixed(data, 16, texts))


def _binaries(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    dense = texts.drop_null()
    if not pc.all(pc.starts_with(dense, r"\x"), min_count=0).as_py():
        _no("bytes")
    digits = pc.utf8_slice_codeunits(dense, 2)
    lengths = pc.divide(pc.binary_length(digits), 2)
    if pc.any(pc.not_equal(pc.multiply(lengths, 2), pc.binary_length(digits))).as_py():
        _no("bytes")
    data = bytes.fromhex("".join(digits.to_pylist()))
    if len(data) != (pc.sum(lengths).as_py() or 0):  # fromhex skips white space
        _no("bytes")
    if pa.types.is_fixed_size_binary(arrow):
        if pc.any(pc.not_equal(lengths, arrow.byte_width)).as_py():
            _no("fixed")
        return _fixed(data, arrow.byte_width, texts)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int64)
    made = pa.LargeBinaryArray.from_buffers(arrow, len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return _spread(made, texts)


def _fixed(data: bytes, width: int, like: pa.Array) -> pa.Array:
    dense = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])
    return _spread(dense, like)


def _spread(dense: pa.Array, like: pa.Array) -> pa.Array:
    """Put the nulls of `like` back between the values of `dense`."""
    if not like.null_count:
        return dense
    valid = pc.is_valid(like).to_numpy(zero_copy_only=False)
    return dense.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


_FROM_TEXT: Mapping[type[IcebergType], Callable[[pa.Array, pa.DataType], pa.Array]] = {
    DateType: lambda texts, arrow: texts.cast(arrow),
    TimeType: _times,
    TimestampType: _stamps,
    TimestamptzType: _stamps,
    TimestampNanoType: _stamps,
    TimestamptzNanoType: _stamps,
    UUIDType: _uuids,
    BinaryType: _binaries,
    FixedType: _binaries,
}


# ── nested types: flatten, convert the leaves, put together ───────────────────────────────────────────────────────────


def _lists(values: Sequence[list[Any] | None], kind: ListType, arrow: pa.DataType) -> pa.Array:
    flat = [item for items in values if items is not None for item in items]
    items = required(array(flat, kind.element_type, arrow.value_type), kind.element_required)
    offsets = _offsets(values)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, type=arrow, mask=_nulls(values))


def _maps(values: Sequence[dict[str, Any] | None], kind: MapType, arrow: pa.DataType) -> pa.Array:
    entries = [entry for items in values if items is not None for entry in items.items()]
    names = pa.array([name for name, _ in entries], arrow.key_type)
    items = required(array([item for _, item in entries], kind.value_type, arrow.item_type), kind.value_required)
    return pa.MapArray.from_arrays(pa.array(_offsets(values), pa.int32()), names, items, type=arrow, mask=_nulls(values))


def _structs(values: Sequence[Any], kind: StructType, arrow: pa.DataType) -> pa.Array:
    members = []
    for i, member in enumerate(kind.fields):
        get = attrgetter(f"f{i}")
        absent = RAW_NULL if wire(member.field_type, raw_strings=True) is msgspec.Raw else None
        inner = [absent if v is None else get(v) for v in values]
        made = array(inner, member.field_type, arrow.field(i).type)
        if member.required and any(v is not None and not ok for v, ok in zip(values, made.is_valid().to_pylist(), strict=True)):
            _no("null member")
        members.append(made)
    return pa.StructArray.from_arrays(members, fields=list(arrow), mask=_nulls(values))


def required(made: pa.Array, must: bool) -> pa.Array:  # noqa: FBT001 - reads as a sentence where it is used
    if must and made.null_count:
        _no("null element")
    return made


def _offsets(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum([0 if v is None else len(v) for v in values], dtype=np.int64)])


def _nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([v is None for v in values], pa.bool_())


# ── what to do when it does not fit ───────────────────────────────────────────────────────────────────────────────────


def _widest(kind: IcebergType) -> tuple[IcebergType, pa.DataType] | None:
    match kind:
        case IntegerType():
            return LongType(), pa.int64()
        case FloatType():
            return DoubleType(), pa.float64()
        case DecimalType() if kind.precision < MAX_PRECISION:
            return DecimalType(MAX_PRECISION, kind.scale), pa.decimal128(MAX_PRECISION, kind.scale)
    return None


def _narrowed(values: Sequence[Any], kind: IcebergType, wider: IcebergType, arrow: pa.DataType) -> IcebergType:
    """Of the widest decimal keep only the digits that the values need: precision never shrinks again."""
    if not isinstance(kind, DecimalType):
        return wider
    largest = pc.max(pc.abs(array(values, wider, arrow))).as_py()
    return DecimalType(max(len(largest.as_tuple().digits), kind.precision + 1), kind.scale)


def _fits(values: Sequence[Any], kind: IcebergType, arrow: pa.DataType) -> bool:
    try:
        array(values, kind, arrow)
    except _UNFIT:
        return False
    return True


def first_unfit(values: Sequence[Any], kind: IcebergType, arrow: pa.DataType) -> int:
    """Find the first value that does not fit by halving: values[:low] fits, values[:high] does not."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(values[low:middle], kind, arrow):
            low = middle
        else:
            high = middle
    return low


def _advice(kind: IcebergType) -> str:
    match kind:
        case DecimalType():
            return "declare the column with more digits, or as string (which also holds NaN)"
        case DoubleType():
            return "declare the column as decimal(p,s) or string"
        case TimestampType() | TimestamptzType():
            return (
                "expected ISO 8601 with at most microseconds and years 0000-9999; declare the column as string to take any text"
            )
    return "correct the row at its source, or declare the column as string"
