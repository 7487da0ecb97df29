"""A second opinion on a changefeed: what a table must hold, found out in the plainest way.

For `icefront verify`. It shares no code with what it checks: file names, messages, timestamps and
values are read here anew, with `json` and `decimal`, one message at a time, and the last version
of each key before the frontier wins. Memory grows with the number of keys.

    files ─ replay ─▶ key → row ─┐
                                 ├─ compare ─▶ Difference
    any engine's rows ───────────┘
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.schema import Schema
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
    TimeType,
    UUIDType,
)

from icefront.core.errors import BadRow

Row = Mapping[str, Any]
Key = tuple[Any, ...]
At = tuple[int, int]
"""Wall nanoseconds and logical counter."""

_NAME = re.compile(r"(\d{33})-.*?-\d+-\d+-[0-9a-f]{8,}-(.+)-([0-9a-f]+)\.ndjson(\.gz|\.zst)?")
_INSTANT = re.compile(r"(\d{1,6}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d(?::?\d\d)?)?")
_MEMBERS_OF_NO_ROW = {"__crdb__"}
SHOWN = 20


# ── what the table must hold ───────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Version:
    at: At
    schema_id: int
    row: Row | None


def replay(root: str | Path, table: str, keys: Sequence[str], frontier: str | None = None) -> dict[Key, Row]:
    """Return the table's rows as of `frontier` (a printed timestamp; None: as far as the files go), by key values."""
    paths = sorted(p for p in Path(root).rglob("*") if p.is_file())
    return replay_files(((p.name, p.open("rb")) for p in paths if _of(p.name, table)), table, keys, frontier)


def replay_files(
    files: Iterable[tuple[str, IO[bytes]]], table: str, keys: Sequence[str], frontier: str | None = None
) -> dict[Key, Row]:
    """Replay files from anywhere: their names without folders, and their bytes as they lie there."""
    before = _at(frontier) if frontier else None
    versions: dict[Key, _Version] = {}
    for name, content in files:
        match = _of(name, table)
        if match is None:
            continue
        schema_id = int(match[3], 16)
        with content:
            for number, line in enumerate(_lines(content, match[4]), 1):
                _apply(versions, line, keys, schema_id, before, f"{name}:{number}")
    return {key: version.row for key, version in versions.items() if version.row is not None}


def _of(name: str, table: str) -> re.Match[str] | None:
    match = _NAME.fullmatch(name)
    return match if match and match[2] == table else None


def _lines(content: IO[bytes], codec: str | None) -> Iterator[bytes]:
    if codec == ".gz":
        yield from gzip.GzipFile(fileobj=content)
    elif codec == ".zst":
        # The one thing that the standard library lacks before Python 3.14.
        yield from io.BufferedReader(pa.CompressedInputStream(content, "zstd"))
    else:
        yield from content


def _apply(
    versions: dict[Key, _Version], line: bytes, keys: Sequence[str], schema_id: int, before: At | None, where: str
) -> None:
    if not line.strip():
        return
    try:
        message = json.loads(line, parse_float=Decimal)
        if "resolved" in message and "after" not in message:
            return
        row, meta = _row(message)
        at = _at(meta.get("updated") or meta["mvcc_timestamp"])
        key = tuple(meta["key"]) if row is None else tuple(row[k] for k in keys)
    except (ValueError, KeyError, TypeError) as error:
        raise BadRow(f"{where}: not a changefeed message: {error!r}", "correct the file, or take it away") from error
    if before is not None and at >= before:
        return
    known = versions.get(_hashable(key))
    if known is None or (known.at, known.schema_id) <= (at, schema_id):
        versions[_hashable(key)] = _Version(at, schema_id, row)


def _row(message: dict[str, Any]) -> tuple[Row | None, dict[str, Any]]:
    """Take a message apart: the row or None for a delete, and what is said about it."""
    if "after" in message:
        return message["after"], message
    meta = message["__crdb__"]
    row = {name: value for name, value in message.items() if name not in _MEMBERS_OF_NO_ROW}
    return (row if any(value is not None for value in row.values()) else None), meta


def _at(text: str) -> At:
    wall, _, logical = text.partition(".")
    return int(wall), int(logical or 0)


def _hashable(key: Key) -> Key:
    return tuple(json.dumps(part, sort_keys=True) if isinstance(part, dict | list) else part for part in key)


# ── what it does hold ──────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Differing:
    """One value that is not as it must be."""

    key: Key
    column: str
    expected: Any
    actual: Any


@dataclass(slots=True)
class Difference:
    """All that is wrong: counts of everything, and the first few of each kind."""

    rows: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("missing", "extra", "repeated", "differing"), 0))
    missing: list[Key] = field(default_factory=list)
    extra: list[Key] = field(default_factory=list)
    repeated: list[Key] = field(default_factory=list)
    differing: list[Differing] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)  # columns with values that the table does not have

    def __bool__(self) -> bool:
        return any(self.counts.values()) or bool(self.absent)

    def add(self, kind: str, what: Any) -> None:
        self.counts[kind] += 1
        shown: list[Any] = getattr(self, kind)
        if len(shown) < SHOWN:
            shown.append(what)


def compare(expected: Mapping[Key, Row], actual: Iterable[Row], schema: Schema, keys: Sequence[str]) -> Difference:
    """Compare what must be with the rows that an engine returned, as dictionaries of Python values."""
    types = {f.name: f.field_type for f in schema.fields}
    wanted = {tuple(_plain(part, types[k]) for part, k in zip(key, keys, strict=True)): row for key, row in expected.items()}
    found: set[Key] = set()
    result = Difference()
    for row in actual:
        result.rows += 1
        key = tuple(_plain(row[k], types[k]) for k in keys)
        if key in found:
            result.add("repeated", key)
        elif key not in wanted:
            result.add("extra", key)
        else:
            _compare_row(key, wanted[key], row, types, result)
        found.add(key)
    for key in wanted.keys() - found:
        result.add("missing", key)
    return result


def _compare_row(key: Key, wanted: Row, row: Row, types: Mapping[str, IcebergType], result: Difference) -> None:
    result.absent |= {column for column, value in wanted.items() if value is not None and column not in types}
    for column, kind in types.items():
        must, does = wanted.get(column), row.get(column)
        if not _same(must, does, kind):
            result.add("differing", Differing(key, column, must, does))


def _same(must: Any, does: Any, kind: IcebergType) -> bool:
    """Compare a JSON value with an engine's value of one type."""
    if must is None or does is None:
        return must is does
    try:
        return _equal(must, does, kind)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, struct.error):
        return False  # one of the two is no value of this type


def _equal(must: Any, does: Any, kind: IcebergType) -> bool:
    match kind:
        case StringType():
            # JSON that is no string stands as its text, in whatever spelling.
            return bool(must == does if isinstance(must, str) else json.loads(does, parse_float=Decimal) == must)
        case ListType(element_type=element):
            return len(must) == len(does) and all(_same(m, d, element) for m, d in zip(must, does, strict=True))
        case MapType(key_type=key, value_type=inner):
            wanted = {_plain(k, key): v for k, v in must.items()}
            found = {_plain(k, key): v for k, v in (does.items() if isinstance(does, Mapping) else does)}
            return wanted.keys() == found.keys() and all(_same(wanted[k], found[k], inner) for k in wanted)
        case StructType(fields=fields):
            return all(_same(must.get(f.name), does.get(f.name), f.field_type) for f in fields)
        case _:
            return bool(_plain(must, kind) == _plain(does, kind))


# ── values ─────────────────────────────────────────────────────────────────────────────────
def _plain(value: Any, kind: IcebergType) -> Any:
    """Bring a JSON value and an engine's value of a scalar type to the same, hashable form."""
    return _SCALARS.get(type(kind), _instant)(value, kind)


def _boolean(value: Any, _: IcebergType) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _integer(value: Any, _: IcebergType) -> int:
    number = Decimal(value)
    if isinstance(value, bool) or number != number.to_integral_value():
        raise TypeError(value)
    return int(number)


def _float(value: Any, kind: IcebergType) -> float | str:
    number = float(value)
    if isinstance(kind, FloatType):
        (number,) = struct.unpack("f", struct.pack("f", number))
    return "NaN" if number != number else number  # noqa: PLR0124 - NaN is the one that differs


def _decimal(value: Any, _: IcebergType) -> Decimal:
    try:
        return Decimal(value if isinstance(value, str | int | Decimal) else str(value))
    except InvalidOperation as error:
        raise ValueError(value) from error


def _text(value: Any, _: IcebergType) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _date(value: Any, _: IcebergType) -> date:
    return value if isinstance(value, date) and not isinstance(value, datetime) else date.fromisoformat(str(value)[:10])


def _time(value: Any, _: IcebergType) -> time:
    return value if isinstance(value, time) else time.fromisoformat(str(value).split("T")[-1])


def _uuid(value: Any, _: IcebergType) -> UUID:
    if isinstance(value, bytes | bytearray):
        return UUID(bytes=bytes(value))
    return value if isinstance(value, UUID) else UUID(str(value))


def _bytes(value: Any, _: IcebergType) -> bytes:
    if isinstance(value, str):
        if not value.startswith("\\x"):
            raise ValueError(value)
        return bytes.fromhex(value[2:])
    return bytes(value)


def _instant(value: Any, kind: IcebergType) -> Any:
    """Count nanoseconds since 1970. A time with a zone is an instant; one without is taken by the clock on the wall."""
    zoned = str(kind).startswith("timestamptz")
    if isinstance(value, datetime):
        # Spark hands out instants as naive local times.
        moment = value.astimezone(UTC) if zoned else value.replace(tzinfo=UTC)
        return _nanoseconds(moment.replace(microsecond=0), moment.microsecond * 1000)
    if isinstance(value, int):
        return value
    match = _INSTANT.fullmatch(value)
    if match is None:
        raise ValueError(value)
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone in {None, "Z"} or not zoned else zone if len(zone) > 3 else f"{zone}:00"
    moment = datetime.fromisoformat(f"{day}T{clock}{offset}").astimezone(UTC)
    return _nanoseconds(moment, int((fraction or "").ljust(9, "0") or 0))


def _nanoseconds(moment: datetime, nanoseconds: int) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + nanoseconds


_SCALARS: Mapping[type[IcebergType], Callable[[Any, IcebergType], Any]] = {
    BooleanType: _boolean,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _float,
    DoubleType: _float,
    DecimalType: _decimal,
    StringType: _text,
    DateType: _date,
    TimeType: _time,
    UUIDType: _uuid,
    BinaryType: _bytes,
    FixedType: _bytes,
}
