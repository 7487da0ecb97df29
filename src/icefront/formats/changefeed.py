"""CockroachDB changefeed NDJSON → Arrow changes.

    lines ─ msgspec, typed ─▶ one struct per line ─▶ one list per column ─▶ Arrow columns + _op, _wall, _logical, _order
              │ does not fit
              └▶ line by line: a wish for the schema, a column to be read otherwise, or BadRow with file:line

| envelope | a line | deletes |
|---|---|---|
| wrapped | `{"after": {…}, "key": […], "updated": "…"}` | `after` is null, the key columns come from `key`, else from `before` |
| bare | the row, and `__crdb__` with `updated`, `key` | look like a row of nulls: such a line is refused, unless it has nothing but `__crdb__` with a key |
| row | the same | are empty messages without a key: refused |

Blank lines are skipped; so are `{"resolved": …}` lines, which announce a timestamp and carry no change (files have them apart).
Other unknown members of the envelope are left alone: new CockroachDB versions add some.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from icefront.core.errors import BadRow, ConfigError
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Wish
from icefront.formats.columns import RAW_NULL, Unfit, first_unfit, fit, record, wire
from icefront.formats.infer import Sightings, merge, unite
from icefront.formats.place import Place, shorten

__all__ = ["Decoded", "Decoder", "Envelope", "Place", "infer", "merge", "unite"]

Envelope = Literal["wrapped", "bare", "row"]

META = "__crdb__"
PIECE = 1024 * 1024
CREATE = "create the changefeed WITH envelope='wrapped', updated, resolved, key_in_value"
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EMPTY = msgspec.Raw(b"")
_PRINTED = re.compile(r"\d{1,19}\.\d{10}")


@dataclass(frozen=True)
class Decoded:
    """Changes of a chunk. With wishes they are incomplete: evolve the schema, then decode again."""

    changes: pa.Table
    wishes: tuple[Wish, ...] = ()


class _Wrapped(msgspec.Struct, gc=False, eq=False):
    """The envelope as far as it is needed when a line has to be looked at closely."""

    after: dict[str, msgspec.Raw] | None = None
    before: dict[str, msgspec.Raw] | None = None


class _Meta(msgspec.Struct, gc=False, eq=False):
    """What stands under `__crdb__`."""

    key: msgspec.Raw = _EMPTY
    mvcc_timestamp: str | None = None
    resolved: msgspec.Raw = _EMPTY
    updated: str | None = None


class _Learned(Exception):
    """The decoder reads some column otherwise from now on: decode the chunk again."""


@dataclass
class _Chunk:
    """The lines being decoded, and which of them became rows."""

    lines: bytes
    place: Place
    order: int
    numbers: np.ndarray[Any, Any] | None = None  # of the line that each row came from; None where each line is a row

    @cached_property
    def texts(self) -> list[bytes]:
        texts = self.lines.split(b"\n")
        return texts if texts[-1] else texts[:-1]

    @cached_property
    def _ends(self) -> np.ndarray[Any, Any]:
        return np.flatnonzero(np.frombuffer(self.lines, np.uint8) == ord("\n"))

    @property
    def count(self) -> int:
        return len(self._ends) + (self.lines[-1:] not in {b"\n", b""})

    def is_straight(self, values: int) -> bool:
        """Say whether each line is one of so many values: as many line ends, and each after a closing brace."""
        if self.count != values or self.lines[:1] == b"\n":
            return False
        return bool((np.frombuffer(self.lines, np.uint8)[self._ends - 1] == ord("}")).all())

    def number(self, row: int) -> int:
        return row if self.numbers is None else int(self.numbers[row])

    def text(self, row: int) -> bytes:
        return self.texts[self.number(row)]

    def filled(self) -> Iterator[tuple[int, bytes]]:
        return ((number, text) for number, text in enumerate(self.texts) if text.strip())

    def bad(self, row: int, fact: str, next_step: str) -> BadRow:
        return self.place.bad(self.number(row), fact, next_step)


class Decoder:
    """Turns chunks of lines into changes of one table's schema; picklable.

    It learns: a string column that showed other JSON values (JSONB, numbers) is read as raw text from then on, an unknown column
    that showed nothing but nulls is expected to do so again. Both only choose a faster way to the same result.
    """

    def __init__(
        self, schema: Schema, keys: Sequence[str], envelope: Envelope = "wrapped", ignored: Collection[str] = ()
    ) -> None:
        """Decode into `schema`. Columns that it does not have become wishes, except those that are `ignored`."""
        self._schema, self._keys, self._envelope, self._ignored = schema, tuple(keys), envelope, frozenset(ignored)
        self._fields = {f.name: f for f in schema.fields}
        missing = [k for k in keys if k not in self._fields]
        if missing:
            raise ConfigError(f"key column {missing[0]} is not among the columns {', '.join(self._fields)}", "correct `keys`")
        arrow = schema_to_pyarrow(schema, include_field_ids=True)
        change = [pa.field(OP, pa.int8()), pa.field(WALL, pa.int64()), pa.field(LOGICAL, pa.int32()), pa.field(ORDER, pa.int64())]
        # Deletes have nulls in required columns too, so here all may be null; the writer restores what the table says.
        self.arrow_schema = pa.schema([*(f.with_nullable(True) for f in arrow), *change])
        self._raw: set[str] = set()
        self._nulls: set[str] = set()
        self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, (self._schema, self._keys, self._envelope, self._ignored)

    def _build(self) -> None:
        # CockroachDB prints members sorted by name; msgspec finds them fastest in the order in which they come.
        wires = {c: self._wire(c) for c in sorted(self._fields)} | dict.fromkeys(sorted(self._nulls), None)
        wires |= dict.fromkeys(sorted(self._ignored - wires.keys()), msgspec.Raw)
        self._attributes = {column: f"f{i}" for i, column in enumerate(wires)}
        if self._envelope == "wrapped":
            self._row = record("Row", wires)
            line = msgspec.defstruct(
                "Line", [("after", self._row | None | msgspec.UnsetType, msgspec.UNSET)], bases=(_Meta,), gc=False
            )
        else:
            self._row = line = record("Row", {**wires, META: _Meta | None})
            self._attributes[META] = f"f{len(wires)}"
        self._lines = msgspec.json.Decoder(line)
        keys: Any = tuple(self._wire(k) for k in self._keys)
        self._key_lists = msgspec.json.Decoder(list[tuple[keys]])

    def _wire(self, column: str) -> Any:
        return wire(self._fields[column].field_type, raw_strings=column in self._raw)

    def decode(self, lines: bytes, place: Place, order: int) -> Decoded:
        """Decode whole lines, the last maybe without its newline; the first line's change gets `order`.

        Raises BadRow for a line that cannot become a change.
        """
        decoded, at = [], 0
        for piece in _pieces(lines):
            chunk = _Chunk(piece, Place(place.path, place.line + at), order + at)
            decoded.append(self._decode(chunk))
            at += chunk.count
        wishes = unite(wish for part in decoded for wish in part.wishes)
        if wishes:
            return Decoded(self.arrow_schema.empty_table(), wishes)
        return Decoded(pa.concat_tables(part.changes for part in decoded).combine_chunks())

    def _decode(self, chunk: _Chunk) -> Decoded:
        while True:
            try:
                found = self._lines.decode_lines(chunk.lines)
            except _UNDECODABLE:
                wishes = self._look_closely(chunk)
                if wishes:
                    return Decoded(self.arrow_schema.empty_table(), wishes)
                continue
            try:
                return self._changes(chunk, found)
            except _Learned:
                self._build()
                chunk.numbers = None

    # ── the fast way ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _changes(self, chunk: _Chunk, found: list[Any]) -> Decoded:
        self._number(chunk, len(found))
        rows, metas, deleted = self._unwrap(chunk, found)
        wall, logical = _timestamps(chunk, metas)
        values = {c: list(map(attrgetter(self._attributes[c]), rows)) for c in self._fields}
        for row, key in self._keys_of(chunk, deleted, metas):
            for column, value in zip(self._keys, key, strict=True):
                values[column][row] = value
        fitted = [self._fit(chunk, column, listed) for column, listed in values.items()]
        wishes = tuple(made for made in fitted if isinstance(made, Wish))
        if wishes:
            return Decoded(self.arrow_schema.empty_table(), wishes)
        self._check_nulls(chunk, fitted, deleted)
        op = np.ones(len(rows), np.int8)
        op[deleted] = -1
        order = chunk.order + (np.arange(len(rows), dtype=np.int64) if chunk.numbers is None else chunk.numbers)
        return Decoded(pa.table([*fitted, pa.array(op), wall, logical, pa.array(order)], schema=self.arrow_schema))

    def _number(self, chunk: _Chunk, count: int) -> None:
        """Say which line each row came from, and refuse files whose values are not one per line."""
        if chunk.is_straight(count):
            return
        filled = [number for number, _ in chunk.filled()]
        if len(filled) != count:
            self._look_closely(chunk)
        if self._envelope == "row" and len(filled) < len(chunk.texts):
            blank = next(n for n, text in enumerate(chunk.texts) if not text.strip())
            raise chunk.place.bad(blank, "an empty message is a delete in envelope=row, and its key is not there", CREATE)
        chunk.numbers = np.array(filled, dtype=np.int64)

    def _unwrap(self, chunk: _Chunk, found: list[Any]) -> tuple[list[Any], list[Any], list[int]]:
        """Return rows, their metadata, and which of them are deletes; lines that carry no change are dropped."""
        if self._envelope == "wrapped":
            rows, metas = [line.after for line in found], found
        else:
            rows, metas = self._flat(found)
        if set(map(type, rows)) <= {self._row}:
            return rows, metas, []
        dropped = {i for i, row in enumerate(rows) if row is msgspec.UNSET}
        for i in dropped:
            if metas[i] is None or not bytes(metas[i].resolved):
                raise chunk.bad(i, f"no change in this line: {shorten(chunk.text(i))}", CREATE)
        if dropped:
            kept = [i for i in range(len(rows)) if i not in dropped]
            chunk.numbers = np.array([chunk.number(i) for i in kept], dtype=np.int64)
            rows, metas = [rows[i] for i in kept], [metas[i] for i in kept]
        nothing = self._row()
        return [nothing if row is None else row for row in rows], metas, [i for i, row in enumerate(rows) if row is None]

    def _flat(self, found: list[Any]) -> tuple[list[Any], list[Any]]:
        """Of lines without an envelope: one with nothing but metadata is a delete if that has a key, else no change."""
        metas = list(map(attrgetter(self._attributes[META]), found))
        keyed = [meta is not None and bool(bytes(meta.key)) for meta in metas]
        rows = [(None if key else msgspec.UNSET) if self._is_bare(row) else row for row, key in zip(found, keyed, strict=True)]
        return rows, metas

    def _is_bare(self, row: Any) -> bool:
        cells = (getattr(row, self._attributes[c]) for c in self._fields)
        return all(cell is None or cell is RAW_NULL for cell in cells)

    def _keys_of(self, chunk: _Chunk, deleted: list[int], metas: list[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Deletes have no row: take their key columns from `key`, in primary-key order, else from `before`."""
        raws = {row: bytes(metas[row].key) for row in deleted}
        keyed = {row: raw for row, raw in raws.items() if raw not in {b"", b"null"}}
        try:
            yield from zip(keyed, self._key_lists.decode(b"[%b]" % b",".join(keyed.values())), strict=True)
        except _UNDECODABLE:
            for row, raw in keyed.items():
                yield row, self._key(chunk, row, raw)
        yield from ((row, self._key_before(chunk, row)) for row in raws.keys() - keyed.keys())

    def _key(self, chunk: _Chunk, row: int, raw: bytes) -> Sequence[Any]:
        try:
            parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except _UNDECODABLE:
            parts = []
        if len(parts) != len(self._keys):
            fact = f"the key {shorten(raw)} has not the {len(self._keys)} values of ({', '.join(self._keys)})"
            raise chunk.bad(row, fact, "name all columns of the primary key under `keys`, in its order")
        return [self._value(chunk, row, column, part) for column, part in zip(self._keys, parts, strict=True)]

    def _key_before(self, chunk: _Chunk, row: int) -> Sequence[Any]:
        before = _LOOSE.decode(chunk.text(row)).before if self._envelope == "wrapped" else None
        if before is None or any(k not in before for k in self._keys):
            raise chunk.bad(row, f"missing key: a delete without the values of ({', '.join(self._keys)})", CREATE)
        return [self._value(chunk, row, column, before[column]) for column in self._keys]

    def _value(self, chunk: _Chunk, row: int, column: str, raw: msgspec.Raw) -> Any:
        """Decode one value by itself; a column that turns out to need another reading is learned."""
        try:
            return msgspec.json.decode(raw, type=self._wire(column))
        except _UNDECODABLE as problem:
            kind = self._fields[column].field_type
            if isinstance(kind, StringType) and column not in self._raw:
                self._raw.add(column)
                raise _Learned from None
            fact = f"column {column}: {shorten(bytes(raw))} is no {kind} ({problem})"
        raise chunk.bad(row, fact, "correct the row at its source, or declare the column with another type, e.g. string")

    def _fit(self, chunk: _Chunk, column: str, values: list[Any]) -> pa.Array | Wish:
        kind = self._fields[column].field_type
        try:
            fitted = fit(values, kind, self.arrow_schema.field(column).type)
        except Unfit as unfit:
            text = self._source_text(chunk, unfit.index, column)
            raise chunk.bad(unfit.index, f"column {column}: {shorten(text)} {unfit.reason}", unfit.advice) from None
        if fitted.wider is None:
            return fitted.array
        first = first_unfit(values, kind, self.arrow_schema.field(column).type)
        return Wish(column, str(fitted.wider), chunk.place.at(chunk.number(first)), widens=str(kind))

    def _source_text(self, chunk: _Chunk, row: int, column: str) -> bytes:
        """Find how the source wrote a value."""
        cells = self._cells(chunk.text(row))
        return bytes(cells[column]) if column in cells else chunk.text(row)

    def _cells(self, text: bytes) -> dict[str, msgspec.Raw]:
        if self._envelope == "wrapped":
            return _LOOSE.decode(text).after or {}
        cells = _CELLS.decode(text)
        return {column: raw for column, raw in cells.items() if column != META}

    def _check_nulls(self, chunk: _Chunk, columns: Sequence[pa.Array], deleted: list[int]) -> None:
        """Refuse nulls in keys, in required columns, and all over: in envelope=bare that may be a delete."""
        empty = np.ones(len(columns[0]), bool)
        for (name, of), column in zip(self._fields.items(), columns, strict=True):
            if name in self._keys and column.null_count:
                row = pc.index(column.is_null(), True).as_py()
                raise chunk.bad(
                    row, f"null in key column {name}: {shorten(chunk.text(row))}", "a key has a value in every column"
                )
            if name not in self._keys and of.required and column.null_count > len(deleted):
                row = _first_upsert(_is_null(column), deleted)
                raise chunk.bad(
                    row, f"required column {name} is null or missing", "make it optional in the table, or correct the row"
                )
            if name not in self._keys and self._envelope == "bare":
                empty &= _is_null(column)
        if self._envelope == "bare" and empty.sum() > len(deleted):
            row = _first_upsert(empty, deleted)
            raise chunk.bad(row, "only the key has values: in envelope=bare a delete and a row of nulls look the same", CREATE)

    # ── the careful way ───────────────────────────────────────────────────────────────────────────────────────────────

    def _look_closely(self, chunk: _Chunk) -> tuple[Wish, ...]:
        """Go line by line to find what does not fit: wishes for unknown columns, something to learn, or a bad row."""
        seen, unknown, learned = Sightings(chunk.place), set[str](), len(self._raw)
        for number, text in chunk.filled():
            known = len(self._raw)
            try:
                self._lines.decode(text)
            except _UNDECODABLE as problem:
                new = self._explain(_Chunk(text, Place(chunk.place.path, chunk.place.line + number), 0), problem)
                for column, raw in new.items():
                    unknown.add(column)
                    seen.see(column, bytes(raw), number)
            if len(self._raw) > known:
                self._build()  # so that the next line is refused only for what is still unexplained
        wishes = seen.wishes()
        silent = unknown - wishes.keys() - self._nulls
        if not (wishes or silent or len(self._raw) > learned):
            raise chunk.place.bad(
                0, "the lines of this chunk are not one JSON object each", "correct the file: was it cut or joined?"
            )
        self._nulls |= silent
        self._build()
        return tuple(wishes.values())

    def _explain(self, line: _Chunk, problem: Exception) -> dict[str, msgspec.Raw]:
        """Return a refused line's unknown columns; raise BadRow unless these, or something learned, explain the refusal."""
        try:
            cells = self._cells(line.lines)
        except _UNDECODABLE as why:
            raise line.bad(
                0, f"not a changefeed message: {why}: {shorten(line.lines)}", "correct the file: was it cut or joined?"
            ) from None
        explained = False
        for column in cells.keys() & self._fields.keys():
            try:
                self._value(line, 0, column, cells[column])
            except _Learned:
                explained = True
        new = {column: raw for column, raw in cells.items() if column not in self._fields and column not in self._ignored}
        if not (new or explained):
            raise line.bad(0, f"not a changefeed message: {problem}: {shorten(line.lines)}", CREATE)
        return new


_LOOSE = msgspec.json.Decoder(_Wrapped)
_CELLS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _pieces(lines: bytes) -> Iterator[bytes]:
    """Cut at line ends into pieces whose objects stay in the processor's cache: more than twice as fast."""
    start = 0
    while len(lines) - start > PIECE:
        end = lines.find(b"\n", start + PIECE) + 1 or len(lines)
        yield lines[start:end]
        start = end
    if start < len(lines) or not lines:
        yield lines[start:]


def _is_null(column: pa.Array) -> np.ndarray[Any, Any]:
    nulls: np.ndarray[Any, Any] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _first_upsert(marked: np.ndarray[Any, Any], deleted: list[int]) -> int:
    upserts = marked.copy()
    upserts[deleted] = False
    return int(np.argmax(upserts))


def _timestamps(chunk: _Chunk, metas: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Read `updated`, else `mvcc_timestamp`, of every row."""
    texts: list[Any] = list(map(attrgetter("updated"), metas)) if None not in metas else [None]
    if None in texts:
        texts = [meta and (meta.updated or meta.mvcc_timestamp) for meta in metas]
    stamps = pa.array(texts, pa.string())
    if stamps.null_count:
        raise chunk.bad(texts.index(None), 'neither "updated" nor "mvcc_timestamp" in this line', CREATE)
    try:
        return _hlc(stamps)
    except ValueError:
        wrong = next(i for i, text in enumerate(texts) if not _PRINTED.fullmatch(text) or not _in_range(text))
    raise chunk.bad(
        wrong, f"{shorten(texts[wrong])!r} is not a timestamp", "expected <nanoseconds>.<ten digits>, as CockroachDB prints it"
    )


def _hlc(stamps: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split `<nanoseconds>.<ten digits>` into two integers; raises ValueError (as Arrow's errors are) for anything else."""
    binary = stamps.view(pa.binary())
    if pc.any(pc.less(pc.binary_length(binary), 12)).as_py():
        raise ValueError(stamps)
    wall = pc.binary_slice(binary, 0, -11).view(pa.string()).cast(pa.int64())
    logical = pc.binary_slice(binary, -10).view(pa.string()).cast(pa.int32())
    points = pc.equal(pc.binary_slice(binary, -11, -10), b".")
    if points.true_count < len(stamps) or pc.any(pc.less(wall, 0)).as_py() or pc.any(pc.less(logical, 0)).as_py():
        raise ValueError(stamps)
    return wall, logical


def _in_range(text: str) -> bool:
    return int(text[:-11]) < 2**63 and int(text[-10:]) < 2**31


def infer(lines: bytes, place: Place, envelope: Envelope = "wrapped") -> dict[str, Wish]:
    """Find every column in the lines, with the type that its values suggest (see `infer.py`)."""
    seen = Sightings(place)
    for number, text in _Chunk(lines, place, 0).filled():
        try:
            cells = (_LOOSE.decode(text).after or {}) if envelope == "wrapped" else _CELLS.decode(text)
        except _UNDECODABLE as why:
            raise place.bad(
                number, f"not a changefeed message: {why}: {shorten(text)}", "correct the file: was it cut or joined?"
            ) from None
        for column, raw in cells.items():
            if column != META:
                seen.see(column, bytes(raw), number)
    return seen.wishes()
