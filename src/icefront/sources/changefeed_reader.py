"""Reading splits of a changefeed, in Spark's workers: bytes → whole lines → changes inside the epoch.

Memory is bounded by the chunk, whatever the size of the file and also when it is compressed; only
a single line that is larger makes a chunk grow, up to a limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow
from icefront.core.ports import LOGICAL, WALL, Report, Split, Wish
from icefront.core.timestamps import Timestamp
from icefront.formats import changefeed as messages
from icefront.sources.changefeed_catalogue import FeedFile
from icefront.sources.changefeed_splits import Part, parts_of
from icefront.sources.changefeed_store import Store, unreachable

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

CHUNK = 8 << 20
LINE_LIMIT = 256 << 20
_DAMAGED = ("Truncated compressed stream", "zlib", "ZSTD", "inflate", "decompress")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some whole lines: where they begin in the (uncompressed) file, and the lines of this part before them."""

    text: bytes
    offset: int
    lines_before: int


@dataclass(slots=True)
class _Tally:
    """What reading a split adds up to."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wishes: dict[str, Wish] = field(default_factory=dict)

    def note(self, part: Part, chunk: Chunk, changes: pa.Table) -> None:
        file = self.files.setdefault(part.path, {"max": None, "rows": 0, "bytes": 0, "plain": not part.codec})
        file["rows"] += changes.num_rows
        file["bytes"] += len(chunk.text)
        self.counts["read"] += changes.num_rows
        greatest = _greatest(changes)
        if greatest is not None and (file["max"] is None or greatest > Timestamp.parse(file["max"])):
            file["max"] = str(greatest)

    def report(self, split: Split, table: str) -> Report:
        counts = {name: self.counts[name] for name in ("read", "below", "inside", "beyond")}
        return Report(split.number, {"table": table, "files": self.files}, counts, tuple(self.wishes.values()))


@dataclass(frozen=True, slots=True)
class ChangefeedReader:
    """Reads splits of one table."""

    store: Store
    table: str
    keys: tuple[str, ...]
    envelope: messages.Envelope = "wrapped"
    chunk_bytes: int = CHUNK
    line_limit: int = LINE_LIMIT
    ignored: frozenset[str] = frozenset()

    def read(self, split: Split, epoch: Epoch, schema: Schema) -> Iterator[pa.Table | Report]:
        """Yield the changes inside `epoch`; those below it were published, those beyond wait for their epoch.

        After the first wish nothing more is yielded, but all of the split's wishes are collected:
        the schema is to change once, not once per column.
        """
        decoder = messages.Decoder(schema, self.keys, self.envelope, self.ignored)
        tally = _Tally()
        for part in parts_of(split):
            for chunk in self._chunks(part):
                decoded = self._decode(decoder, part, chunk)
                _add_wishes(tally.wishes, decoded.wishes)
                tally.note(part, chunk, decoded.changes)
                inside = _inside(decoded.changes, epoch, tally.counts)
                if inside.num_rows and not tally.wishes:
                    yield inside
        yield tally.report(split, self.table)

    def infer(self, split: Split, epoch: Epoch) -> Report:
        """Wish for every column that the split's rows have, inside the epoch or not."""
        del epoch
        tally = _Tally()
        for part in parts_of(split):
            for chunk in self._chunks(part):
                place = self._near(part, chunk)
                try:
                    found = messages.infer(chunk.text, place, self.envelope)
                except BadRow:
                    found = messages.infer(chunk.text, self._place(part, chunk), self.envelope)
                tally.wishes = messages.merge(tally.wishes, found)
        return tally.report(split, self.table)

    def _decode(self, decoder: messages.Decoder, part: Part, chunk: Chunk) -> messages.Decoded:
        order = (part.rank << 40) + chunk.offset  # a line's number is never above its offset
        try:
            decoded = decoder.decode(chunk.text, self._near(part, chunk), order)
        except BadRow:
            if not part.begin:
                raise
            decoded = None
        if decoded is None or (decoded.wishes and part.begin):
            # Somebody will look for this line, so it is worth counting the lines before it.
            return decoder.decode(chunk.text, self._place(part, chunk), order)
        return decoded

    def _near(self, part: Part, chunk: Chunk) -> messages.Place:
        """Say where a chunk is as far as that costs nothing: a part in the middle does not know its line numbers."""
        path = self.store.where(part.path)
        return messages.Place(f"{path}@byte {part.begin}" if part.begin else path, 1 + chunk.lines_before)

    def _place(self, part: Part, chunk: Chunk) -> messages.Place:
        file = self.store.open(part.path)
        lines, left = 0, chunk.offset
        try:
            while left and (block := _read(file, min(left, self.chunk_bytes), part, self.store)):
                lines += block.count(b"\n")
                left -= len(block)
        finally:
            file.close()
        return messages.Place(self.store.where(part.path), 1 + lines)

    # ── bytes into whole lines ─────────────────────────────────────────────────────────────
    def _chunks(self, part: Part) -> Iterator[Chunk]:
        file = self.store.open(part.path, part.begin)
        stream = pa.CompressedInputStream(file, part.codec) if part.codec else file
        try:
            yield from self._lines(stream, part)
        finally:
            file.close()

    def _lines(self, stream: Any, part: Part) -> Iterator[Chunk]:
        offset, held = self._first_line(stream, part)
        lines = 0
        while part.end is None or offset <= part.end:
            block = _read(stream, self.chunk_bytes, part, self.store)
            held += block
            stop = self._whole(held, offset, part, last=not block)
            if stop:
                text, held = held[:stop], held[stop:]
                yield Chunk(text, offset, lines)
                offset += stop
                lines += text.count(b"\n")
            if not block:
                return
            if len(held) > self.line_limit:
                place = (
                    self._place(part, Chunk(b"", offset, lines))
                    if not part.codec
                    else self._near(part, Chunk(b"", offset, lines))
                )
                raise place.bad(
                    0, f"this line is longer than {self.line_limit} bytes", "is this a file of newline-delimited JSON?"
                )

    def _first_line(self, stream: Any, part: Part) -> tuple[int, bytes]:
        """Find the first line that the part owns: its offset, and what has been read of it."""
        offset = part.begin
        if not offset:
            return 0, b""
        while block := _read(stream, self.chunk_bytes, part, self.store):
            newline = block.find(b"\n")
            if newline >= 0:
                return offset + newline + 1, block[newline + 1 :]
            offset += len(block)
        return offset + 1, b""

    @staticmethod
    def _whole(held: bytes, offset: int, part: Part, *, last: bool) -> int:
        """Say how much of `held` is whole lines that the part owns."""
        if part.end is not None and offset + len(held) > part.end:
            newline = held.find(b"\n", max(0, part.end - offset))
            if newline >= 0:
                return newline + 1
        return len(held) if last else held.rfind(b"\n") + 1


def _read(stream: Any, size: int, part: Part, store: Store) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        where = store.where(part.path)
        if part.codec and any(word in str(error) for word in _DAMAGED):
            raise BadRow(
                f"{where} is not a whole {part.codec} file: {error}",
                "it was cut or damaged: restore it; if it is still being written, let it appear under its name when complete",
            ) from error
        raise unreachable(where, error) from error


# ── timestamps ─────────────────────────────────────────────────────────────────────────────
def _greatest(changes: pa.Table) -> Timestamp | None:
    if not changes.num_rows:
        return None
    wall = pc.max(changes[WALL])
    logical = pc.max(changes[LOGICAL].filter(pc.equal(changes[WALL], wall)))
    return Timestamp(wall.as_py(), logical.as_py())


def _inside(changes: pa.Table, epoch: Epoch, counts: Counter[str]) -> pa.Table:
    """Choose the changes inside the epoch, and count all."""
    if not changes.num_rows:
        return changes
    span = pc.min_max(changes[WALL])
    if epoch.lower.wall < span["min"].as_py() and span["max"].as_py() < epoch.upper.wall:
        counts["inside"] += changes.num_rows
        return changes
    below = _before(changes, epoch.lower)
    before_upper = _before(changes, epoch.upper)
    inside = changes.filter(pc.and_not(before_upper, below))
    counts["below"] += pc.sum(below).as_py()
    counts["beyond"] += changes.num_rows - pc.sum(before_upper).as_py()
    counts["inside"] += inside.num_rows
    return inside


def _before(changes: pa.Table, timestamp: Timestamp) -> Any:
    wall, logical = changes[WALL], changes[LOGICAL]
    same = pc.and_(pc.equal(wall, timestamp.wall), pc.less(logical, timestamp.logical))
    return pc.or_(pc.less(wall, timestamp.wall), same)


def _add_wishes(known: dict[str, Wish], wishes: Sequence[Wish]) -> None:
    """Join new columns' types over chunks. Of several widenings of a column the first will do: reading again asks for more."""
    for wish in wishes:
        old = known.get(wish.column)
        if old is None:
            known[wish.column] = wish
        elif old.widens is None and wish.widens is None:
            known.update(messages.merge({wish.column: old}, {wish.column: wish}))


# ── keys ───────────────────────────────────────────────────────────────────────────────────
def first_lines(store: Store, files: Iterable[FeedFile], count: int) -> list[bytes]:
    """Return up to `count` lines of the first files."""

    def lines() -> Iterator[bytes]:
        for file in files:
            reader = ChangefeedReader(store, file.table, (), chunk_bytes=1 << 16)
            for chunk in reader._chunks(Part(file.path, file.codec, 0, 0, None, file.size)):  # noqa: SLF001 - the same module
                yield from chunk.text.splitlines()

    return list(islice(lines(), count))


def guess_keys(lines: Iterable[bytes]) -> list[str] | None:
    """Find the key columns of wrapped messages, which carry key values without names.

    A column is a candidate for a place in the key if its value is the key's in every row. None
    unless that leaves one column for each place.
    """
    candidates: list[set[str]] | None = None
    for line in lines:
        message = _message(line)
        if message is None:
            continue
        row, key = message
        matching = [{column for column, value in row.items() if value == part} for part in key]
        if candidates is None:
            candidates = matching
        elif len(candidates) == len(matching):
            candidates = [old & new for old, new in zip(candidates, matching, strict=True)]
        else:
            return None
    return _settle(candidates) if candidates else None


def _message(line: bytes) -> tuple[dict[str, str], list[str]] | None:
    """Return a message's row and key with values as JSON text: 1, 1.0 and "1" are three things."""
    try:
        message = json.loads(line, parse_float=lambda text: ("number", text), parse_int=lambda text: ("number", text))
        row, key = message["after"], message["key"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(row, dict) or not isinstance(key, list):
        return None
    return {column: json.dumps(value, sort_keys=True) for column, value in row.items()}, [
        json.dumps(k, sort_keys=True) for k in key
    ]


def _settle(candidates: list[set[str]]) -> list[str] | None:
    """Give each place its only candidate, and take that from the others, until all are settled."""
    keys: dict[int, str] = {}
    while len(keys) < len(candidates):
        place = next((i for i, columns in enumerate(candidates) if i not in keys and len(columns) == 1), None)
        if place is None:
            return None
        (keys[place],) = candidates[place]
        candidates = [columns if i == place else columns - {keys[place]} for i, columns in enumerate(candidates)]
    return [keys[i] for i in range(len(candidates))]
