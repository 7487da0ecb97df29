"""A second opinion on a changefeed: what a table must hold, found out in the plainest way.

For `icefront verify`. It shares no code with what it checks: file names, messages, timestamps and
values are read here anew, with `json` and `decimal`, one message at a time.

    files ─ replay ─▶ key → row ─┐
                                 ├─ compare ─▶ Difference
    any engine's rows ───────────┘

A table that is upserted holds the last version of each key before the frontier. One that is appended
to holds a row for every change: a row as often as the feed says changes into it, or more often, but
not more often than their repetitions in the feed account for. A feed may repeat itself, and whether
a repetition becomes a row depends on when it came. Memory grows with the number of keys, for several
frontiers with that of the keys that changed before each, or with the number of changes.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
from bisect import bisect_right
from collections import Counter
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
_NEVER: At = (1 << 128, 0)

_NAME = re.compile(r"(\d{33})-.*?-\d+-\d+-[0-9a-f]{8,}-(.+)-([0-9a-f]+)\.ndjson(\.gz|\.zst)?")
_INSTANT = re.compile(r"(\d{1,6}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d(?::?\d\d)?)?")
_META = "__crdb__"
_NO_VALUE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, struct.error)
_NO_MESSAGE = (ValueError, KeyError, TypeError, AttributeError)
SHOWN = 20


# ── what the table must hold ───────────────────────────────────────────────────────────────
Files = Iterable[tuple[str, IO[bytes]]]
"""Names without folders, and bytes as they lie there."""


@dataclass(frozen=True, slots=True)
class Said:
    """A row of a table that is appended to: the feed says changes into it, `most` times with all their repetitions."""

    row: Row
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class _Change:
    """One message. Without a `row` it is a delete, named by its key or by the row before."""

    at: At
    schema_id: int
    row: Row | None
    key: Sequence[Any] | None
    before: Row | None
    where: str


def replay(root: str | Path, table: str, keys: Sequence[str], frontier: str | None = None) -> dict[Key, Row]:
    """Return the table's rows as of `frontier` (a printed timestamp; None: as far as the files go), by key values."""
    return next(replay_files(local_files(root, table), table, keys, [frontier]))


def local_files(root: str | Path, table: str) -> Files:
    """Open a folder's files of one table, each when its turn comes."""
    return ((p.name, p.open("rb")) for p in sorted(Path(root).rglob("*")) if _of(p.name, table) and p.is_file())


def replay_files(
    files: Files, table: str, keys: Sequence[str], frontiers: Sequence[str | None] = (None,)
) -> Iterator[dict[Key, Row]]:
    """Replay files from anywhere, read once, up to each of these frontiers, which grow. `keys` are in the order in which the feed says their values."""
    steps: list[dict[Key, _Change]] = [{} for _ in frontiers]
    for number, change in _steps(files, table, frontiers):
        step, key = steps[number], _hashable(_key(change, keys))
        known = step.get(key)
        if known is None or (known.at, known.schema_id) <= (change.at, change.schema_id):
            step[key] = change
    versions: dict[Key, _Change] = {}
    for step in steps:
        versions |= step  # which is later than all before it
        yield {key: change.row for key, change in versions.items() if change.row is not None}


def replay_appended(files: Files, table: str, frontiers: Sequence[str | None] = (None,)) -> Iterator[list[Said]]:
    """Return the rows that changes before each of these frontiers say, which grow, with how often they do; files are read once."""
    steps: list[list[_Change]] = [[] for _ in frontiers]
    for number, change in _steps(files, table, frontiers):
        steps[number].append(change)
    rows: dict[str, Row] = {}
    changes: dict[str, set[tuple[At, str]]] = {}
    messages: Counter[str] = Counter()
    for step in steps:
        for change in step:
            if change.row is None:
                raise BadRow(f"{change.where}: a delete, but the mode is append", "verify a pipeline whose feed only inserts")
            text = json.dumps(change.row, sort_keys=True, default=repr)
            rows[text] = change.row
            changes.setdefault(text, set()).add((change.at, json.dumps(change.key, default=repr)))
            messages[text] += 1
        yield [Said(row, len(changes[text]), messages[text]) for text, row in rows.items()]


def _steps(files: Files, table: str, frontiers: Sequence[str | None]) -> Iterator[tuple[int, _Change]]:
    """Read the changes before the last frontier, however often they come and in whatever order, with the number of the first that each is before."""
    ends = [_at(frontier) if frontier else _NEVER for frontier in frontiers]
    for name, content in files:
        match = _of(name, table)
        if match is None:
            continue
        schema_id = int(match[3], 16)
        with content:
            for number, line in enumerate(_lines(content, match[4]), 1):
                change = _change(line, schema_id, f"{name}:{number}") if line.strip() else None
                if change is not None and change.at < ends[-1]:
                    yield bisect_right(ends, change.at), change


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


def _change(line: bytes, schema_id: int, where: str) -> _Change | None:
    """Read one message; None for one that only announces a resolved timestamp."""
    try:
        message = json.loads(line, parse_float=Decimal)
        row, meta = _row(message)
        if row is None and "resolved" in meta and "after" not in message:
            return None
        at = _at(meta.get("updated") or meta["mvcc_timestamp"])
        return _Change(at, schema_id, row, meta.get("key"), message.get("before"), where)
    except _NO_MESSAGE as error:
        raise BadRow(f"{where}: not a changefeed message: {error!r}", "correct the file, or take it away") from error


def _row(message: dict[str, Any]) -> tuple[Row | None, dict[str, Any]]:
    """Take a message apart: the row or None for a delete, and what is said about it."""
    if _META in message:
        row = {name: value for name, value in message.items() if name != _META}
        return (row if any(value is not None for value in row.values()) else None), message[_META]
    return (message["after"] if "resolved" not in message else message.get("after")), message


def _key(change: _Change, keys: Sequence[str]) -> Key:
    """Name the row that changed. A delete has no row: its key says it, in the feed's order, else the row before."""
    try:
        row = change.row if change.row is not None or change.key is not None else change.before
        key = tuple(change.key or ()) if row is None else tuple(row[k] for k in keys)
    except _NO_MESSAGE as error:
        raise BadRow(f"{change.where}: no value for key column {error}", "correct the file, or the keys") from error
    if len(key) != len(keys):
        fact = f"{change.where}: the key {list(key)} has not the {len(keys)} values of ({', '.join(keys)})"
        raise BadRow(fact, "name all columns of the primary key under `keys`")
    return key


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

    shown: int = SHOWN
    rows: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("missing", "extra", "repeated", "differing"), 0))
    missing: list[Row] = field(default_factory=list)  # as the feed says them
    extra: list[Row] = field(default_factory=list)  # as the engine returned them
    repeated: list[Key] = field(default_factory=list)
    differing: list[Differing] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)  # columns with values that the table does not have

    def __bool__(self) -> bool:
        return any(self.counts.values()) or bool(self.absent)

    def add(self, kind: str, what: Any) -> None:
        self.counts[kind] += 1
        shown: list[Any] = getattr(self, kind)
        if len(shown) < self.shown:
            shown.append(what)


def compare(
    expected: Mapping[Key, Row], actual: Iterable[Row], schema: Schema, keys: Sequence[str], shown: int = SHOWN
) -> Difference:
    """Compare what must be with the rows that an engine returned, as dictionaries of Python values."""
    types = _types(schema)
    wanted = {tuple(_plain(part, types[k]) for part, k in zip(key, keys, strict=True)): row for key, row in expected.items()}
    found: set[Key] = set()
    result = Difference(shown)
    for row in actual:
        result.rows += 1
        key = tuple(_plain(row[k], types[k]) for k in keys)
        if key in found:
            result.add("repeated", key)
        elif key not in wanted:
            result.add("extra", row)
        else:
            _compare_row(key, wanted[key], row, types, result)
        found.add(key)
    for key, row in wanted.items():
        if key not in found:
            result.add("missing", row)
    return result


def _types(schema: Schema) -> dict[str, IcebergType]:
    return {f.name: f.field_type for f in schema.fields}


def _compare_row(key: Key, wanted: Row, row: Row, types: Mapping[str, IcebergType], result: Difference) -> None:
    result.absent |= _absent(wanted, types)
    for column, kind in types.items():
        must, does = wanted.get(column), row.get(column)
        if not _same(must, does, kind):
            result.add("differing", Differing(key, column, must, does))


def _absent(wanted: Row, types: Mapping[str, IcebergType]) -> set[str]:
    return {column for column, value in wanted.items() if value is not None and column not in types}


def compare_appended(expected: Iterable[Said], actual: Iterable[Row], schema: Schema, shown: int = SHOWN) -> Difference:
    """Compare rows as a multiset: each as often as changes say it at least, and as the feed repeats it at most."""
    types = _types(schema)
    result = Difference(shown)
    tallies: dict[Key, list[_Tally]] = {}
    for said in expected:
        result.absent |= _absent(said.row, types)
        tallies.setdefault(_bucket(said.row, types), []).append(_Tally(said))
    for row in actual:
        result.rows += 1
        alike = [tally for tally in tallies.get(_bucket(row, types), ()) if _same_rows(tally.said.row, row, types)]
        open_ = [t for t in alike if t.found < t.said.least] or [t for t in alike if t.found < t.said.most]
        if open_:
            open_[0].found += 1
        elif alike:
            result.add("repeated", tuple(row.get(column) for column in types))
        else:
            result.add("extra", row)
    for tally in (tally for some in tallies.values() for tally in some):
        for _ in range(tally.said.least - tally.found):
            result.add("missing", tally.said.row)
    return result


@dataclass(slots=True)
class _Tally:
    said: Said
    found: int = 0


def _same_rows(must: Row, does: Row, types: Mapping[str, IcebergType]) -> bool:
    return all(_same(must.get(column), does.get(column), kind) for column, kind in types.items())


def _bucket(row: Row, types: Mapping[str, IcebergType]) -> Key:
    """Make rows that are the same fall into one bucket; a few others may fall into it too."""
    return tuple(_coarse(row.get(column), kind) for column, kind in types.items())


def _coarse(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    try:
        match kind:
            case StringType():
                return _frozen(_as_json(value))
            case ListType(element_type=element):
                return tuple(_coarse(item, element) for item in value)
            case MapType(key_type=key, value_type=inner):
                entries = value.items() if isinstance(value, Mapping) else value
                return frozenset((_plain(k, key), _coarse(v, inner)) for k, v in entries)
            case StructType(fields=fields):
                return tuple(_coarse(value.get(f.name), f.field_type) for f in fields)
            case _:
                return _plain(value, kind)
    except _NO_VALUE:
        return _NO_VALUE


def _as_json(value: Any) -> Any:
    """Read text that may stand for JSON of whatever spelling."""
    if not isinstance(value, str):
        return value
    try:
        read = json.loads(value, parse_float=Decimal, parse_constant=str)
    except ValueError:
        return value
    return value if isinstance(read, str) else read


def _frozen(value: Any) -> Any:
    """Make JSON hashable, and equal where it means the same: 1 is 1.0, and not true as it is for Python."""
    match value:
        case bool():
            return bool, value
        case dict():
            return frozenset((name, _frozen(item)) for name, item in value.items())
        case list():
            return tuple(_frozen(item) for item in value)
        case _:
            return value


def _same(must: Any, does: Any, kind: IcebergType) -> bool:
    """Compare a JSON value with an engine's value of one type."""
    if must is None or does is None:
        return must is does
    try:
        return _equal(must, does, kind)
    except _NO_VALUE:
        return False  # one of the two is no value of this type


def _equal(must: Any, does: Any, kind: IcebergType) -> bool:
    match kind:
        case StringType():
            # JSON that is no string stands as its text, in whatever spelling.
            return bool(
                must == does if isinstance(must, str) else _frozen(json.loads(does, parse_float=Decimal)) == _frozen(must)
            )
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
    """Zeros with and without a sign are two values. JSON's -0 is an integer to every reader, and has none; -0.0 has one."""
    if isinstance(value, bool):
        raise TypeError(value)
    number = float(value)
    if isinstance(kind, FloatType):
        (number,) = struct.unpack("f", struct.pack("f", number))
    if number == 0:
        return str(number)
    return "NaN" if number != number else number  # noqa: PLR0124 - NaN is the one that differs


def _decimal(value: Any, _: IcebergType) -> Decimal:
    if isinstance(value, bool):
        raise TypeError(value)
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
