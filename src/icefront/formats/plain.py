r"""Lines as CockroachDB prints most of them, cut at their quotes and decoded by columns: no Python object per value.

    {"after": {"id": 7, "note": "new"}, "key": [7], "updated": "1585861087210714000.0000000000"}
    {|after|: {|id|: 7, |note|: |new|}, |key|: [7], |updated|: |1585861087210714000.0000000000|}

All lines of a table have the same shape: between the same quotes stand the same letters, or a value. So they can be read as CSV
with the quote for a delimiter, which Arrow does in less than half the time that it takes for JSON. Then every column of that is
either held against the letters that the shape has there, or is a value of a known type, whose grammar is checked: nothing is
skipped or assumed, a line that passes is exactly what it looks like.

There is one place that knows what other lines mean, and it is not here. Whatever differs, be it a space, is left alone: then
`changefeed.py` decodes the same lines from scratch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from icefront.core.epochs import Epoch
from icefront.formats import stamps
from icefront.formats.chunks import Chunk
from icefront.formats.columns import from_text, is_readable, is_text, singles
from icefront.formats.stamps import Tally

# Control characters never stand in JSON, so that they can stand for something else here.
_HOLE, _NULL, _BACKSLASH, _QUOTE = "\0", "\1", "\2", "\3"
_ESCAPED = f"[{_BACKSLASH}{_QUOTE}\\\\]"
_INTEGER = "-?(?:0|[1-9][0-9]*)"
_GRAMMAR: Mapping[type[IcebergType], str] = {
    BooleanType: "true|false",
    IntegerType: _INTEGER,
    LongType: _INTEGER,
    DecimalType: rf"{_INTEGER}(?:\.[0-9]+)?",
    FloatType: rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?",
    DoubleType: rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?",
}
_LARGEST = 2.0**53
_LONGEST_PAUSE = 64
_ODD = (pa.ArrowException, msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError)


class PlainLines:
    """Decodes lines that have the usual shape, and says None of others, and of so few that the other way is faster.

    Trying costs time where it is in vain. So after lines that were odd the next ones are not tried: one piece at first, and twice
    as many each time that one is odd again, up to 64; the first success forgets that. A table that is never plain (JSONB) is
    hardly slowed down, and a rare odd line does not matter. In the same way texts that are null are looked for as soon as some
    lines cannot be read otherwise.
    """

    least = 512 * 1024
    """How many bytes make it worth while, since cutting costs a millisecond or two however few the lines are."""

    def __init__(self, fields: Mapping[str, NestedField], keys: Sequence[str], arrow: pa.Schema) -> None:
        self._fields, self._keys, self._arrow = fields, tuple(keys), arrow
        self._fill = False
        self._pause, self._untried = 1, 0

    @cached_property
    def _shapes(self) -> dict[tuple[bool, bool], _Shape]:
        """Shapes by whether a line is a delete, and whether it has `mvcc_timestamp`."""
        kinds = {name: field.field_type for name, field in self._fields.items()}
        return {(gone, mvcc): _shape(kinds, self._keys, gone=gone, mvcc=mvcc) for gone in (False, True) for mvcc in (False, True)}

    def decode(self, chunk: Chunk, epoch: Epoch) -> tuple[pa.Table, Tally] | None:
        """Return the changes inside the epoch, and the count of all; None if some line is not plain, or was not tried."""
        if len(chunk.lines) < self.least:
            return None
        if self._untried:
            self._untried -= 1
            return None
        try:
            decoded = self._changes(chunk, epoch)
        except _ODD:
            self._untried, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return None
        self._pause = 1
        return decoded

    def _changes(self, chunk: Chunk, epoch: Epoch) -> tuple[pa.Table, Tally]:
        # A control character may be a line end for CSV; a byte order mark at the beginning is skipped there.
        _demand(chunk.lines.startswith(b"{") and np.count_nonzero(chunk.letters < ord(" ")) == chunk.ends.size)
        deleted = chunk.letters.take(chunk.starts + len('{"after": '), mode="clip") == ord("n")
        upserts, deletes = self._cut(chunk, deleted)
        self._check_keys(upserts)
        # Upserts first, then deletes; `rows` puts them into the order of their lines.
        rows = np.empty(len(deleted), np.int64)
        rows[~deleted], rows[deleted] = np.arange(len(upserts.when)), len(upserts.when) + np.arange(len(deletes.when))
        when = stamps.read_column(pa.concat_arrays([upserts.when, deletes.when])).only(rows)
        kept, tally = stamps.choose(when, epoch)
        numbers = np.arange(len(rows)) if kept is None else kept
        if kept is not None:
            rows, when, deleted = rows[kept], when.only(kept), deleted[kept]
        places = {True: pa.array(rows), False: pa.array(rows, mask=deleted)}
        columns = [self._column(name, upserts, deletes).take(places[name in self._keys]) for name in self._fields]
        op = np.where(deleted, np.int8(-1), np.int8(1))
        change = [pa.array(column) for column in (op, when.wall, when.logical, chunk.order + numbers)]
        return pa.table([*columns, *change], schema=self._arrow), tally

    def _cut(self, chunk: Chunk, deleted: np.ndarray[Any, Any]) -> tuple[_Cut, _Cut]:
        """Cut the upserts and the deletes into their values."""
        mvcc = b'], "mvcc_timestamp": "' in chunk.lines[: chunk.starts[1] if len(chunk.starts) > 1 else None]
        upserts, deletes = _apart(chunk, deleted)
        gone = self._shapes[True, mvcc].cut(deletes, int(deleted.sum()))
        count = len(deleted) - len(gone.when)
        if not self._fill:
            try:
                return self._shapes[False, mvcc].cut(upserts, count), gone
            except _ODD:
                self._fill = True
        return self._shapes[False, mvcc].cut(self._filled(upserts), count), gone

    def _filled(self, lines: bytes) -> bytes:
        """Put a text in the place of every text that is null: then all lines have as many quotes."""
        for name, field in self._fields.items():
            if name not in self._keys and _is_quoted(field.field_type):
                lines = lines.replace(f'"{name}": null'.encode(), f'"{name}": "{_NULL}"'.encode())
        return lines

    def _check_keys(self, upserts: _Cut) -> None:
        """Demand that every upsert's `key` is that of its row; what it means if not is decided the other way."""
        held = [upserts.row[column] for column in self._keys]
        _demand(all(said.equals(own) for said, own in zip(upserts.key, held, strict=True)))

    def _column(self, name: str, upserts: _Cut, deletes: _Cut) -> pa.Array:
        """Make a column of the upserts' values, and of the deletes' where it is part of the key."""
        texts, field = upserts.row[name], self._fields[name]
        if name in self._keys:
            texts = pa.concat_arrays([texts, deletes.key[self._keys.index(name)]])
        _demand(not (texts.null_count and (field.required or name in self._keys)))
        return _fit(texts, field.field_type, self._arrow.field(name).type)


def plain_lines(fields: Mapping[str, NestedField], keys: Sequence[str], arrow: pa.Schema) -> PlainLines | None:
    """Return a decoder for a table; None if its lines are never plain.

    Nested columns have no fixed number of quotes, and between two numbers of a key there is none. Without keys nothing is known
    of what stands under `key`.
    """
    numbers = [not _is_quoted(fields[key].field_type) for key in keys]
    possible = (
        all(_is_quoted(field.field_type) or type(field.field_type) in _GRAMMAR for field in fields.values())
        and all(map(is_readable, fields))
        and numbers
        and not any(one and other for one, other in pairwise(numbers))
    )
    return PlainLines(fields, keys, arrow) if possible else None


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Cut:
    """The values of some lines, as texts: of the row's columns, of the key's, and when each happened."""

    row: dict[str, pa.Array]
    key: list[pa.Array]
    when: pa.Array


@dataclass(frozen=True, slots=True)
class _Shape:
    """What stands between the quotes of a line: letters, or a value, which has a hole for its place and a pattern if not quoted."""

    parts: list[str]
    patterns: list[str | None]
    columns: list[str]
    keys: int

    def cut(self, lines: bytes, count: int) -> _Cut:
        """Cut so many lines into their values; raises one of several exceptions if one of them has another shape."""
        escaped = b"\\" in lines
        columns = _between_quotes(_without_escapes(lines) if escaped else lines, len(self.parts), count)
        patterns = iter(self.patterns)
        values = []
        for part, column in zip(self.parts, columns, strict=True):
            if _HOLE not in part:
                _demand(_is_all(column, part.encode()))
            elif (pattern := next(patterns)) is None:
                values.append(_texts(column, escaped=escaped))
            else:
                values.append(_numbers(column, part, pattern))
        row, key = values[: len(self.columns)], values[len(self.columns) :][: self.keys]
        return _Cut(dict(zip(self.columns, row, strict=True)), key, values[-1])


def _shape(kinds: Mapping[str, IcebergType], keys: Sequence[str], *, gone: bool, mvcc: bool) -> _Shape:
    """Write a line as CockroachDB does, members sorted by name, with a hole for every value."""

    def hole(name: str) -> str:
        return f'"{_HOLE}"' if _is_quoted(kinds[name]) else _HOLE

    columns = [] if gone else sorted(kinds)
    cells = ", ".join(f'"{name}": {hole(name)}' for name in columns)
    after = "null" if gone else f"{{{cells}}}"
    stamped = ["mvcc_timestamp", "updated"] if mvcc else ["updated"]
    when = ", ".join(f'"{name}": "{_HOLE}"' for name in stamped)
    line = f'{{"after": {after}, "key": [{", ".join(map(hole, keys))}], {when}}}'
    patterns = [_GRAMMAR.get(type(kinds[name])) for name in (*columns, *keys)]
    return _Shape(line.split('"'), [*patterns, *(None for _ in stamped)], columns, len(keys))


def _apart(chunk: Chunk, deleted: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    """Separate the lines of upserts from those of deletes."""
    turns = chunk.starts[np.flatnonzero(np.diff(deleted)) + 1].tolist()
    runs = [chunk.lines[start:end] for start, end in pairwise([0, *turns, len(chunk.lines)])]
    upserts, deletes = (runs[1::2], runs[::2]) if deleted[0] else (runs[::2], runs[1::2])
    return b"".join(upserts), b"".join(deletes)


def _between_quotes(lines: bytes, parts: int, count: int) -> list[pa.Array]:
    """Cut lines at their quotes into so many columns."""
    names = [str(i) for i in range(parts)]
    if not count:
        return [pa.array([], pa.string())] * parts
    read = pa.csv.read_csv(
        pa.py_buffer(lines),
        pa.csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names),
        pa.csv.ParseOptions(delimiter='"', quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=False),
        pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
    )
    _demand(read.num_rows == count and read.column(0).num_chunks == 1)
    return [column.chunk(0) for column in read.columns]


def _is_all(column: pa.Array, same: bytes) -> bool:
    """Say whether all values are the same; takes a third of the time of comparing them one by one."""
    letters, ends = _letters(column)
    return bool((np.diff(ends) == len(same)).all()) and letters.tobytes() == same * len(column)


def _letters(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the letters of all values, and where the first begins and each ends."""
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends - ends[0]


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_quoted(kind: IcebergType) -> bool:
    return isinstance(kind, StringType) or is_text(kind)


def _numbers(column: pa.Array, part: str, pattern: str) -> pa.Array:
    """Take values without quotes out of what stands around them."""
    before, after = part.split(_HOLE)
    if not (pattern == _INTEGER and _are_digits(column, before.encode(), after.encode())):
        whole = rf"\A{re.escape(before)}(?:null|{pattern}){re.escape(after)}\z"
        _demand(pc.match_substring_regex(column, whole).true_count == len(column))
    texts = pc.binary_slice(column.cast(pa.binary()), len(before), -len(after)).cast(pa.string())
    return _nulled(texts, "null")


def _are_digits(column: pa.Array, before: bytes, after: bytes) -> bool:
    """Say whether all values are integers without a sign; takes less than half of a pattern's time."""
    letters, ends = _letters(column)
    starts, stops = ends[:-1], ends[1:]
    lengths = stops - starts - len(before) - len(after)
    if not (lengths > 0).all():
        return False
    around = [(starts + at, letter) for at, letter in enumerate(before)]
    around += [(stops - len(after) + at, letter) for at, letter in enumerate(after)]
    # No digit stands around them, so if there are as many as there is room for, there is nothing else.
    return (
        all((letters[places] == letter).all() for places, letter in around)
        and np.count_nonzero(letters - ord("0") <= 9) == lengths.sum()
        and not ((letters[starts + len(before)] == ord("0")) & (lengths > 1)).any()
    )


def _texts(column: pa.Array, *, escaped: bool) -> pa.Array:
    """Turn what stands between quotes into the text that it means."""
    texts = _nulled(column, _NULL)
    if escaped and pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return pa.array([text and _unescaped(text) for text in texts.to_pylist()], pa.string())
    return texts


def _nulled(texts: pa.Array, null: str) -> pa.Array:
    nulls = pc.equal(texts, null)
    return pc.if_else(nulls, pa.scalar(None, pa.string()), texts) if nulls.true_count else texts


def _without_escapes(lines: bytes) -> bytes:
    """Replace escaped quotes, so that every quote is one that begins or ends a string."""
    return lines.replace(b"\\\\", _BACKSLASH.encode()).replace(b'\\"', _QUOTE.encode())


def _unescaped(text: str) -> str:
    written = text.replace(_QUOTE, '\\"').replace(_BACKSLASH, "\\\\")
    return msgspec.json.decode(f'"{written}"'.encode(), type=str)


def _fit(texts: pa.Array, kind: IcebergType, arrow: pa.DataType) -> pa.Array:
    """Turn texts into the column's type; raises one of several exceptions when one does not fit."""
    if is_text(kind):
        return from_text(texts, kind, arrow)
    if isinstance(kind, FloatType | DoubleType):
        doubles = texts.cast(pa.float64())
        _demand(_are_exact(doubles.drop_null().to_numpy()))
        return doubles if isinstance(kind, DoubleType) else singles(doubles)
    return texts.cast(arrow)


def _are_exact(doubles: np.ndarray[Any, Any]) -> bool:
    """Say whether doubles are certain to be read as they are the other way.

    Those that are large may be integers, which are not to be rounded, or out of range; -0 may be an integer, which has no sign.
    """
    return bool((np.abs(doubles) < _LARGEST).all() and not np.signbit(doubles[doubles == 0]).any())


def _demand(plain: bool) -> None:  # noqa: FBT001 - reads as a sentence where it is used
    if not plain:
        raise ValueError("not plain")
