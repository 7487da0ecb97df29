"""Reading splits of a changefeed, in Spark's workers: bytes → whole lines → changes inside the epoch.

Memory is bounded by the chunk, whatever the size of the file and also when it is compressed; only
a single line that is larger makes a chunk grow, up to a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow
from icefront.core.ports import Report, Split, Wish
from icefront.core.timestamps import Timestamp
from icefront.formats import changefeed as messages
from icefront.formats.place import Place
from icefront.formats.stamps import NONE, Tally
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
    """Some whole lines, and where they begin in the (uncompressed) file."""

    text: bytes
    offset: int


@dataclass(slots=True)
class _Findings:
    """What reading a split adds up to."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    tally: Tally = NONE
    wishes: tuple[Wish, ...] = ()

    def note(self, part: Part, chunk: Chunk, decoded: messages.Decoded) -> None:
        file = self.files.setdefault(part.path, {"max": None, "rows": 0, "bytes": 0, "plain": not part.codec})
        file["rows"] += decoded.tally.read
        file["bytes"] += len(chunk.text)
        greatest = decoded.tally.greatest
        if greatest is not None and (file["max"] is None or greatest > Timestamp.parse(file["max"])):
            file["max"] = str(greatest)
        self.tally += decoded.tally
        self.wish(decoded.wishes)

    def wish(self, wishes: Iterable[Wish]) -> None:
        self.wishes = messages.unite([*self.wishes, *wishes])

    def report(self, split: Split, table: str) -> Report:
        tally = self.tally
        counts = {"read": tally.read, "below": tally.below, "inside": tally.inside, "beyond": tally.beyond}
        return Report(split.number, {"table": table, "files": self.files}, counts, self.wishes)


@dataclass(frozen=True, slots=True)
class ChangefeedReader:
    """Reads splits of one table. `renames` maps a column's name to the one it had, by which older lines call it."""

    store: Store
    table: str
    keys: tuple[str, ...]
    envelope: messages.Envelope = "wrapped"
    chunk_bytes: int = CHUNK
    line_limit: int = LINE_LIMIT
    ignored: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)

    def read(self, split: Split, epoch: Epoch, schema: Schema) -> Iterator[pa.Table | Report]:
        """Yield the changes inside `epoch`; those below it were published, those beyond wait for their epoch.

        After the first wish nothing more is yielded, but all of the split's wishes are collected:
        the schema is to change once, not once per column.
        """
        decoder = messages.Decoder(schema, self.keys, self.envelope, self.ignored, self.renames)
        findings = _Findings()
        for part in parts_of(split):
            place = self._place(part)
            for chunk in self._chunks(part):
                order = (part.rank << 40) + chunk.offset  # a line's number is never above its offset
                decoded = decoder.decode(chunk.text, place, order, epoch)
                findings.note(part, chunk, decoded)
                place = place.plus(decoded.lines)
                if decoded.changes.num_rows and not findings.wishes:
                    yield decoded.changes
        yield findings.report(split, self.table)

    def infer(self, split: Split, epoch: Epoch) -> Report:
        """Wish for every column that the split's rows inside the epoch have, except those that are ignored."""
        findings = _Findings()
        for part in parts_of(split):
            place = self._place(part)
            for chunk in self._chunks(part):
                found = messages.infer(chunk.text, place, self.envelope, epoch=epoch, ignored=self.ignored, renames=self.renames)
                findings.wish(found.values())
                place = place.plus(chunk.text.count(b"\n"))
        return findings.report(split, self.table)

    def _place(self, part: Part) -> Place:
        """Say where a part's first line is; in the middle of a file that costs reading what is before it, if somebody asks."""
        where = self.store.where(part.path)
        if not part.begin:
            return Place(where)
        # The line that the cut falls into belongs to the part before.
        return Place(where, 2, cache(partial(self._line_ends, part, part.begin)))

    def _line_ends(self, part: Part, offset: int) -> int:
        """Count the line ends before an offset."""
        count = 0
        with self._opened(part, 0) as stream:
            while offset and (block := _read(stream, min(offset, self.chunk_bytes), part, self.store)):
                count += block.count(b"\n")
                offset -= len(block)
        return count

    # ── bytes into whole lines ─────────────────────────────────────────────────────────────
    @contextmanager
    def _opened(self, part: Part, begin: int) -> Iterator[Any]:
        file = self.store.open(part.path, begin)
        try:
            yield pa.CompressedInputStream(file, part.codec) if part.codec else file
        finally:
            file.close()

    def _chunks(self, part: Part) -> Iterator[Chunk]:
        with self._opened(part, part.begin) as stream:
            offset, held = self._first_line(stream, part)
            while part.end is None or offset <= part.end:
                block = _read(stream, self.chunk_bytes, part, self.store)
                stop = self._whole(held, block, offset, part)
                text, held = _cut(held, block, stop)
                if stop:
                    yield Chunk(text, offset)
                    offset += stop
                if not block:
                    return
                if len(held) > self.line_limit:
                    place = Place(self.store.where(part.path), 1, partial(self._line_ends, part, offset))
                    fact = f"this line is longer than {self.line_limit} bytes"
                    raise place.bad(0, fact, "is this a file of newline-delimited JSON?")

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
    def _whole(held: bytes, block: bytes, offset: int, part: Part) -> int:
        """Say how much of `held` and the block after it is whole lines that the part owns; an empty block is the file's end."""
        size = len(held) + len(block)
        if part.end is not None and offset + size > part.end:
            end = max(0, part.end - offset)
            newline = held.find(b"\n", end) + 1 or _after(len(held), block.find(b"\n", max(0, end - len(held))))
            if newline:
                return newline
        return (_after(len(held), block.rfind(b"\n")) or held.rfind(b"\n") + 1) if block else size


def _after(length: int, newline: int) -> int:
    """Say where the line ends whose end was found in the block, so far behind; 0 if it was not."""
    return length + newline + 1 if newline >= 0 else 0


def _cut(held: bytes, block: bytes, stop: int) -> tuple[bytes, bytes]:
    """Cut `held` and the block after it in two, copying each letter once: blocks are large, what is held hardly ever."""
    if stop < len(held):
        return held[:stop], held[stop:] + block
    return b"".join((held, memoryview(block)[: stop - len(held)])), block[stop - len(held) :]


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


# ── keys ───────────────────────────────────────────────────────────────────────────────────
def first_lines(store: Store, files: Iterable[FeedFile], count: int) -> list[bytes]:
    """Return up to `count` lines of the first files."""

    def lines() -> Iterator[bytes]:
        for file in files:
            reader = ChangefeedReader(store, file.table, (), chunk_bytes=1 << 16)
            for chunk in reader._chunks(Part(file.path, file.codec, 0, 0, None, file.size)):  # noqa: SLF001 - the same module
                yield from chunk.text.split(b"\n")

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
    except (ValueError, KeyError, TypeError, RecursionError):
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
