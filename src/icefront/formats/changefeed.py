"""CockroachDB changefeed NDJSON → Arrow changes.

    lines that are all plain ─▶ `plain.py`; others:
    lines ─ msgspec, typed ─▶ one struct per line ─▶ those inside the epoch ─▶ one list per column ─▶ Arrow columns + operation, …
              │ does not fit
              └▶ lines of other epochs put aside ─▶ line by line: a wish for the schema, a column to be read otherwise, or BadRow

A line counts only if its own timestamp is inside the epoch: what it wishes for, and what is wrong with it. One that does not say
when it happened always counts, since it may belong here.

| envelope | a line | deletes |
|---|---|---|
| wrapped | `{"after": {…}, "key": […], "updated": "…"}` | `after` is null, the key columns come from `key`, else from `before` |
| bare | the row, and `__crdb__` with `updated`, `key` | look like a row of nulls: such a line is refused, unless it has nothing but `__crdb__` with a key |
| row | the same | are empty messages without a key: refused |

Blank lines are skipped; so are `{"resolved": …}` lines, which announce a timestamp and carry no change (files have them apart).
Other unknown members of the envelope are left alone: new CockroachDB versions add some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from icefront.core.epochs import Epoch
from icefront.core.errors import ConfigError
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Wish
from icefront.formats import stamps
from icefront.formats.chunks import LARGE, Chunk, pieces
from icefront.formats.columns import RAW_NULL, Unfit, first_unfit, fit, record, wire
from icefront.formats.envelope import (
    META,
    META_FIELDS,
    NO_CHANGE,
    UNDECODABLE,
    Envelope,
    Meta,
    cells_before,
    cells_of,
    former_names,
    outside,
    printed,
)
from icefront.formats.infer import Sightings, undoubted, unite
from icefront.formats.place import Place, shorten
from icefront.formats.plain import plain_lines
from icefront.formats.stamps import ALL_TIME, Stamps, Tally

__all__ = ["ALL_TIME", "Decoded", "Decoder", "Envelope", "Place", "columns", "infer", "unite"]

CREATE = "create the changefeed WITH envelope='wrapped', updated, resolved, key_in_value"
CUT = "correct the file: was it cut or joined?"


@dataclass(frozen=True)
class Decoded:
    """The changes of a chunk that are inside the epoch, and what all its lines add up to.

    With wishes the changes are incomplete: evolve the schema, then decode again.
    """

    changes: pa.Table
    wishes: tuple[Wish, ...] = ()
    tally: Tally = stamps.NONE
    lines: int = 0


class _Learned(Exception):
    """The decoder reads some column otherwise from now on: decode the chunk again."""


class Decoder:
    """Turns chunks of lines into changes of one table's schema; picklable.

    It learns: a string column that showed other JSON values (JSONB, numbers) is read as raw text from then on, an unknown column
    that showed nothing but nulls is expected to do so again. Both only choose a faster way to the same result.
    """

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[str],
        envelope: Envelope = "wrapped",
        ignored: Collection[str] = (),
        renames: Mapping[str, str] = {},
    ) -> None:
        """Decode into `schema`. Columns that it does not have become wishes, except those that are `ignored`.

        `renames` maps a column's name to the one it had before, by which older lines call it.
        """
        self._schema, self._keys, self._envelope, self._ignored = schema, tuple(keys), envelope, frozenset(ignored)
        self._renames = dict(renames)
        self._fields = {f.name: f for f in schema.fields}
        self._former = former_names(self._renames, self._fields)
        missing = [k for k in keys if k not in self._fields]
        if missing:
            raise ConfigError(f"key column {missing[0]} is not among the columns {', '.join(self._fields)}", "correct `keys`")
        arrow = schema_to_pyarrow(schema, include_field_ids=True)
        change = [pa.field(OP, pa.int8()), pa.field(WALL, pa.int64()), pa.field(LOGICAL, pa.int32()), pa.field(ORDER, pa.int64())]
        # Deletes have nulls in required columns too, so here all may be null; the writer restores what the table says.
        self.arrow_schema = pa.schema([*(f.with_nullable(True) for f in arrow), *change])
        self._raw: set[str] = set()
        self._nulls: set[str] = set()
        # What is ignored is there in every line, and none of them plain.
        self._plain = plain_lines(self._fields, keys, self.arrow_schema) if envelope == "wrapped" and not ignored else None
        self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, (self._schema, self._keys, self._envelope, self._ignored, self._renames)

    def _build(self) -> None:
        # CockroachDB prints members sorted by name; msgspec finds them fastest in the order in which they come.
        wires = {c: self._wire(c) for c in sorted(self._fields)} | {old: self._wire(c) for old, c in self._former.items()}
        wires |= dict.fromkeys(sorted(self._nulls - wires.keys()), None)
        wires |= dict.fromkeys(sorted(self._ignored - wires.keys()), msgspec.Raw)
        self._attributes = {column: f"f{i}" for i, column in enumerate(wires)}
        renamed = {*self._former, *self._former.values()}
        if self._envelope == "wrapped":
            self._row = record("Row", wires, unset=renamed)
            after = ("after", self._row | None | msgspec.UnsetType, msgspec.UNSET)
            line = msgspec.defstruct("Line", [after, *META_FIELDS], gc=False, eq=False)
        else:
            self._row = line = record("Row", {**wires, META: Meta | None}, unset=renamed)
            self._attributes[META] = f"f{len(wires)}"
        self._lines = msgspec.json.Decoder(line)
        keys: Any = tuple(self._wire(k) for k in self._keys)
        self._key_lists = msgspec.json.Decoder(list[tuple[keys]])

    def _wire(self, column: str) -> Any:
        return wire(self._fields[column].field_type, raw_strings=column in self._raw)

    def decode(self, lines: bytes, place: Place, order: int, epoch: Epoch = ALL_TIME) -> Decoded:
        """Decode whole lines, the last maybe without its newline; the first line's change gets `order`.

        Raises BadRow for a line inside the epoch that cannot become a change, and for one that does not say when it happened.
        """
        decoded: list[Decoded] = []
        at = 0
        for large in pieces(lines, LARGE):
            if plain := self._plain_changes(Chunk(large, place.plus(at), order + at), epoch):
                decoded.append(plain)
                at += plain.lines
                continue
            for piece in pieces(large):
                decoded.append(self._decode(Chunk(piece, place.plus(at), order + at), epoch))
                at += decoded[-1].lines
        wishes = unite(wish for part in decoded for wish in part.wishes)
        if wishes:
            return Decoded(self.arrow_schema.empty_table(), wishes, lines=at)
        changes = pa.concat_tables(part.changes for part in decoded)
        return Decoded(changes, (), sum((part.tally for part in decoded), stamps.NONE), at)

    def _plain_changes(self, chunk: Chunk, epoch: Epoch) -> Decoded | None:
        """Decode lines that are all as plain as most are: see `plain.py`. All else in here is for others."""
        found = self._plain.decode(chunk, epoch) if self._plain else None
        return found and Decoded(found[0], (), found[1], chunk.count)

    def _decode(self, chunk: Chunk, epoch: Epoch) -> Decoded:
        lines = chunk.count
        while True:
            try:
                found = self._found(chunk)
            except UNDECODABLE:
                if chunk.passed is None:
                    chunk = self._put_aside(chunk, epoch)
                elif wishes := self._look_closely(chunk):
                    return Decoded(self.arrow_schema.empty_table(), wishes, lines=lines)
                continue
            try:
                decoded = self._changes(chunk, found, epoch)
            except _Learned:
                self._build()
            else:
                return replace(decoded, tally=decoded.tally + (chunk.passed or stamps.NONE), lines=lines)

    # ── the fast way ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _found(self, chunk: Chunk) -> list[Any]:
        """Decode the lines, one value each, and number them where some are blank."""
        found: list[Any] = self._lines.decode_lines(chunk.lines)
        chunk.numbers = None
        if chunk.is_straight(len(found)):
            return found
        filled = list(chunk.filled())
        if self._envelope == "row" and len(filled) < len(chunk.texts):
            blank = next(n for n, text in enumerate(chunk.texts) if not text.strip())
            raise chunk.place.bad(blank, "an empty message is a delete in envelope=row, and its key is not there", CREATE)
        chunk.numbers = np.array([number for number, _ in filled], dtype=np.int64)
        return [self._lines.decode(text) for _, text in filled]

    def _changes(self, chunk: Chunk, found: list[Any], epoch: Epoch) -> Decoded:
        rows, metas = ([line.after for line in found], found) if self._envelope == "wrapped" else self._flat(found)
        kinds = set(map(type, rows))
        if msgspec.UnsetType in kinds:
            rows, metas = _without_announcements(chunk, rows, metas)
        when = _stamps(chunk, metas)
        kept, tally = stamps.choose(when, epoch)
        if kept is not None:
            chunk.keep(kept)
            rows, metas, when = [rows[i] for i in kept], [metas[i] for i in kept], when.only(kept)
        deleted = self._deleted(chunk, rows) if kinds != {self._row} else []
        values = self._values(chunk, rows)
        self._check_keys(chunk, deleted, metas, values)
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
        change = [pa.array(column) for column in (op, when.wall, when.logical, order)]
        return Decoded(pa.table([*fitted, *change], schema=self.arrow_schema), (), tally)

    def _flat(self, found: list[Any]) -> tuple[list[Any], list[Any]]:
        """Of lines without an envelope: one with nothing but metadata is a delete if that has a key, else no change."""
        metas = [meta or Meta() for meta in map(attrgetter(self._attributes[META]), found)]
        rows = [
            (None if bytes(meta.key) else msgspec.UNSET) if self._is_bare(row) else row
            for row, meta in zip(found, metas, strict=True)
        ]
        return rows, metas

    def _is_bare(self, row: Any) -> bool:
        cells = (getattr(row, self._attributes[c]) for c in (*self._fields, *self._former))
        return all(cell is None or cell is RAW_NULL or cell is msgspec.UNSET for cell in cells)

    def _deleted(self, chunk: Chunk, rows: list[Any]) -> list[int]:
        """Return which rows are deletes, and put empty rows in their place."""
        if msgspec.UNSET in rows:
            row = rows.index(msgspec.UNSET)
            raise chunk.bad(row, f"no change in this line: {shorten(chunk.text(row))}", CREATE)
        deleted = [i for i, row in enumerate(rows) if row is None]
        nothing = self._row()
        for i in deleted:
            rows[i] = nothing
        return deleted

    def _values(self, chunk: Chunk, rows: list[Any]) -> dict[str, list[Any]]:
        """Return the values of each column; a renamed one has them under any of its names."""
        values = {c: list(map(attrgetter(self._attributes[c]), rows)) for c in (*self._fields, *self._former)}
        for old, column in self._former.items():
            pairs = list(zip(values[column], values.pop(old), strict=True))
            both = next((i for i, pair in enumerate(pairs) if msgspec.UNSET not in pair), None)
            if both is not None:
                fact = f"a row with both {old} and {column}, which `renames` calls one column"
                raise chunk.bad(both, fact, f"take `{column}: {old}` out of `renames` if they are two columns by now")
            values[column] = [former if value is msgspec.UNSET else value for value, former in pairs]
        for column in set(self._former.values()):
            null = RAW_NULL if self._wire(column) is msgspec.Raw else None
            values[column] = [null if value is msgspec.UNSET else value for value in values[column]]
        return values

    def _check_keys(self, chunk: Chunk, deleted: list[int], metas: list[Any], values: dict[str, list[Any]]) -> None:
        """Hold some rows' `key` against the columns that are said to be the key: deletes would go by another one."""
        if not self._keys:
            return
        gone = set(deleted)
        upserts = (
            next((row for row in order if row not in gone), None) for order in (range(len(metas)), reversed(range(len(metas))))
        )
        for row in {row for row in upserts if row is not None and bytes(metas[row].key) not in {b"", b"null"}}:
            said, held = self._key(chunk, row, bytes(metas[row].key)), [values[column][row] for column in self._keys]
            if any(
                None not in (pair := {_letters(one), _letters(other)}) and one != other and len(pair) > 1
                for one, other in zip(said, held, strict=True)
            ):
                fact = f"the key {shorten(bytes(metas[row].key))} is not the row's ({', '.join(self._keys)})"
                raise chunk.bad(row, fact, "name the columns of the primary key under `keys`, in its order")

    def _keys_of(self, chunk: Chunk, deleted: list[int], metas: list[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Deletes have no row: take their key columns from `key`, in primary-key order, else from `before`."""
        raws = {row: bytes(metas[row].key) for row in deleted}
        keyed = {row: raw for row, raw in raws.items() if raw not in {b"", b"null"}}
        try:
            yield from zip(keyed, self._key_lists.decode(b"[%b]" % b",".join(keyed.values())), strict=True)
        except UNDECODABLE:
            for row, raw in keyed.items():
                yield row, self._key(chunk, row, raw)
        yield from ((row, self._key_before(chunk, row)) for row in raws.keys() - keyed.keys())

    def _key(self, chunk: Chunk, row: int, raw: bytes) -> Sequence[Any]:
        try:
            parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except UNDECODABLE:
            parts = []
        if len(parts) != len(self._keys):
            fact = f"the key {shorten(raw)} has not the {len(self._keys)} values of ({', '.join(self._keys)})"
            raise chunk.bad(row, fact, "name all columns of the primary key under `keys`, in its order")
        return [self._value(chunk, row, column, part) for column, part in zip(self._keys, parts, strict=True)]

    def _key_before(self, chunk: Chunk, row: int) -> Sequence[Any]:
        before = {self._former.get(name, name): raw for name, raw in cells_before(chunk.text(row), self._envelope).items()}
        if any(k not in before for k in self._keys):
            raise chunk.bad(row, f"missing key: a delete without the values of ({', '.join(self._keys)})", CREATE)
        return [self._value(chunk, row, column, before[column]) for column in self._keys]

    def _value(self, chunk: Chunk, row: int, column: str, raw: msgspec.Raw) -> Any:
        """Decode one value by itself; a column that turns out to need another reading is learned."""
        try:
            return msgspec.json.decode(raw, type=self._wire(column))
        except UNDECODABLE as problem:
            kind = self._fields[column].field_type
            if isinstance(kind, StringType) and column not in self._raw:
                self._raw.add(column)
                raise _Learned from None
            fact = f"column {column}: {shorten(bytes(raw))} is no {kind} ({problem})"
        raise chunk.bad(row, fact, "correct the row at its source, or declare the column with another type, e.g. string")

    def _fit(self, chunk: Chunk, column: str, values: list[Any]) -> pa.Array | Wish:
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

    def _source_text(self, chunk: Chunk, row: int, column: str) -> bytes:
        """Find how the source wrote a value."""
        cells = self._cells(chunk.text(row))
        return bytes(cells[column]) if column in cells else chunk.text(row)

    def _cells(self, text: bytes) -> dict[str, msgspec.Raw]:
        """Return a row's cells as they are written, by their columns' present names."""
        return {self._former.get(name, name): raw for name, raw in cells_of(text, self._envelope).items()}

    def _check_nulls(self, chunk: Chunk, columns: Sequence[pa.Array], deleted: list[int]) -> None:
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

    def _put_aside(self, chunk: Chunk, epoch: Epoch) -> Chunk:
        """Replace lines of other epochs, so that nothing in them counts, by some that carry no change.

        This is also right for a file that is read again: every line that ever became a change could be read then, so one that
        does not say when it happened is new damage.
        """
        others, passed = outside(chunk, self._envelope, epoch)
        texts = [NO_CHANGE[self._envelope] if other else text for text, other in zip(chunk.texts, others, strict=True)]
        return Chunk(b"\n".join(texts), chunk.place, chunk.order, passed)

    def _look_closely(self, chunk: Chunk) -> tuple[Wish, ...]:
        """Go line by line to find what does not fit: wishes for unknown columns, something to learn, or a bad row."""
        seen, unknown, learned = Sightings(chunk.place), set[str](), len(self._raw)
        for number, text in chunk.filled():
            known = len(self._raw)
            try:
                self._lines.decode(text)
            except UNDECODABLE as problem:
                new = self._explain(Chunk(text, chunk.place.plus(number)), problem)
                for column, raw in new.items():
                    unknown.add(column)
                    seen.see(column, bytes(raw), number)
            if len(self._raw) > known:
                self._build()  # so that the next line is refused only for what is still unexplained
        wishes = seen.wishes(chunk.place.at)
        silent = unknown - wishes.keys() - self._nulls
        if not (wishes or silent or len(self._raw) > learned):
            raise chunk.place.bad(0, "the lines of this chunk are not one JSON object each", CUT)
        self._nulls |= silent
        self._build()
        return tuple(wishes.values())

    def _explain(self, line: Chunk, problem: Exception) -> dict[str, msgspec.Raw]:
        """Return a refused line's unknown columns; raise BadRow unless these, or something learned, explain the refusal."""
        try:
            cells = self._cells(line.lines)
        except UNDECODABLE as why:
            raise line.bad(0, f"not a changefeed message: {why}: {shorten(line.lines)}", CUT) from None
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


def _letters(value: Any) -> str | None:
    """Spell a key's value as loosely as sources do: "1" in the row may be 1 in the key; null is another error's concern."""
    text = bytes(value).decode() if isinstance(value, msgspec.Raw) else value
    return None if text is None or text == "null" else str(text).strip('"')


def _without_announcements(chunk: Chunk, rows: list[Any], metas: list[Any]) -> tuple[list[Any], list[Any]]:
    """Drop lines that only say how far the feed has got."""
    kept = [i for i, row in enumerate(rows) if row is not msgspec.UNSET or not bytes(metas[i].resolved)]
    chunk.keep(np.array(kept, dtype=np.int64))
    return [rows[i] for i in kept], [metas[i] for i in kept]


def _stamps(chunk: Chunk, metas: list[Any]) -> Stamps:
    """Read `updated`, else `mvcc_timestamp`, of every row."""
    texts: list[Any] = list(map(attrgetter("updated"), metas))
    if None in texts:
        texts = list(map(printed, metas))
    if None in texts:
        raise chunk.bad(texts.index(None), 'neither "updated" nor "mvcc_timestamp" in this line', CREATE)
    try:
        return stamps.read(texts)
    except ValueError:
        wrong = next(i for i, text in enumerate(texts) if not stamps.is_printed(text))
    raise chunk.bad(
        wrong, f"{shorten(texts[wrong])!r} is not a timestamp", "expected <nanoseconds>.<ten digits>, as CockroachDB prints it"
    )


def _is_null(column: pa.Array) -> np.ndarray[Any, Any]:
    nulls: np.ndarray[Any, Any] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _first_upsert(marked: np.ndarray[Any, Any], deleted: list[int]) -> int:
    upserts = marked.copy()
    upserts[deleted] = False
    return int(np.argmax(upserts))


# ── columns that nobody declared ──────────────────────────────────────────────────────────────────────────────────────


def columns(lines: Iterable[bytes], envelope: Envelope = "wrapped") -> set[str]:
    """Name the columns that have a value in some line; lines that cannot be read say nothing."""
    found: set[str] = set()
    for text in lines:
        with suppress(*UNDECODABLE):
            found |= {column for column, raw in cells_of(text, envelope).items() if bytes(raw) != b"null"}
    return found


def infer(
    lines: bytes,
    place: Place,
    envelope: Envelope = "wrapped",
    *,
    epoch: Epoch = ALL_TIME,
    ignored: Collection[str] = (),
    renames: Mapping[str, str] = {},
) -> dict[str, Wish]:
    """Find every column in the lines of the epoch, by its present name, with the type that its values suggest (see `infer.py`)."""
    seen = Sightings(place)
    former = former_names(renames, renames.keys() - renames.values())
    chunk = Chunk(lines, place)
    others, _ = outside(chunk, envelope, epoch)
    for number, text in chunk.filled():
        if others[number]:
            continue
        try:
            cells = cells_of(text, envelope)
        except UNDECODABLE as why:
            raise place.bad(number, f"not a changefeed message: {why}: {shorten(text)}", CUT) from None
        for name, raw in cells.items():
            column = former.get(name, name)
            if column not in seen.strings and column not in ignored:
                seen.see(column, bytes(raw), number)
    return undoubted(seen.wishes(place.near))
