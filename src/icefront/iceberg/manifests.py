"""Manifests as columns: of each entry only what is asked for, hundred thousands of them in a moment.

    bytes ─ blocks put together, records opened up ─▶ one flat Avro block ─ polars ─▶ columns by field id

A record inside a record is written as its fields one after the other. So the same bytes can be read as if the data file's fields and
its partition's were the entry's own, and polars skips those that nobody wants.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import polars as pl
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader

Partition = tuple[Any, ...]
AvroType = Any
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
_DATA_FILE, _PARTITION = 2, 102
_SYNC = bytes(SYNC_SIZE)


class Manifest:
    """The entries of one manifest file."""

    def __init__(self, data: bytes) -> None:
        """Unpack a file; nothing is decoded yet."""
        decoder = new_decoder(data)
        header: AvroFileHeader = _HEADER.read(decoder)
        codec = header.compression_codec()
        blocks: list[bytes] = []
        self.count = 0
        while decoder.tell() < len(data):
            self.count += decoder.read_int()
            block = decoder.read_bytes()
            blocks.append(codec.decompress(block) if codec else block)
            decoder.skip(SYNC_SIZE)
        self._payload = b"".join(blocks)
        self._layout = _layout(header.meta["avro.schema"])

    def entries(self, ids: Collection[int]) -> tuple[Mapping[int, pl.Series], list[Partition]]:
        """Return those of some columns that the manifest has, by field id; and the entries' partitions.

        A partition's values are as the specification writes them: a date is its days.
        """
        meanings = self._layout.meanings
        wanted = {*map(str, ids), *meanings}
        found = self._decoded([name for name in self._layout.names if name in wanted])
        values = [
            [None if value is None else meaning(value) for value in found[name].to_list()] for name, meaning in meanings.items()
        ]
        partitions = list(zip(*values, strict=True)) if values else [()] * self.count
        return {int(name): found[name] for name in found.columns if name not in meanings}, partitions

    def _decoded(self, names: list[str]) -> pl.DataFrame:
        if not names or not self.count:
            return pl.DataFrame({name: [] for name in names})
        return pl.read_avro(io.BytesIO(self._layout.header + _block(self.count, self._payload)), columns=names)


def _block(count: int, payload: bytes) -> bytes:
    stream: Any = io.BytesIO()
    encoder = BinaryEncoder(stream)
    encoder.write_int(count)
    encoder.write_bytes(payload)
    encoder.write(_SYNC)
    written: bytes = stream.getvalue()
    return written


@dataclass(frozen=True)
class _Layout:
    """An entry's fields, opened up: an Avro header that says so, their names, and what values of the partition mean."""

    header: bytes
    names: tuple[str, ...]
    meanings: Mapping[str, Callable[[Any], Any]]


@lru_cache(maxsize=64)
def _layout(schema: str) -> _Layout:
    """Read a manifest's schema; those of one partition spec have the same."""
    fields = list(_flat(json.loads(schema), {}))
    flat = {"type": "record", "name": "entry", "fields": [{"name": name, "type": _physical(said)} for name, said in fields]}
    stream: Any = io.BytesIO()
    encoder = BinaryEncoder(stream)
    encoder.write(MAGIC)
    encoder.write_int(1)
    encoder.write_utf8("avro.schema")
    encoder.write_utf8(json.dumps(flat))
    encoder.write_int(0)
    encoder.write(_SYNC)
    meanings = {name: _meaning(said) for name, said in fields if name.startswith("p")}
    return _Layout(stream.getvalue(), tuple(name for name, _ in fields), meanings)


def _flat(record: AvroType, known: dict[str, AvroType], prefix: str = "") -> Iterator[tuple[str, AvroType]]:
    """Open up the records that are part of every entry. Fields are named by id, those of the partition by their place."""
    for place, field in enumerate(record["fields"]):
        number = field["field-id"]
        said = _named(field["type"], known)
        if not prefix and number in {_DATA_FILE, _PARTITION}:
            yield from _flat(said, known, "p" if number == _PARTITION else "")
        else:
            yield (f"p{place}" if prefix else str(number)), said


def _named(said: AvroType, known: dict[str, AvroType]) -> AvroType:
    """Put types that were defined before in place of their names."""
    if isinstance(said, str):
        return known.get(said, said)
    if isinstance(said, list):
        return [_named(choice, known) for choice in said]
    said = {key: _named(value, known) if key in {"items", "values"} else value for key, value in said.items()}
    if "fields" in said:
        said["fields"] = [{**field, "type": _named(field["type"], known)} for field in said["fields"]]
    if "name" in said:
        known[said["name"]] = said
    return said


def _physical(said: AvroType) -> AvroType:
    """Leave out what a value means: a date stays a number."""
    if isinstance(said, list):
        return [_physical(choice) for choice in said]
    if isinstance(said, dict):
        return {key: value for key, value in said.items() if key not in {"logicalType", "precision", "scale"}}
    return said


def _meaning(said: AvroType) -> Callable[[Any], Any]:
    """Say how to make a partition's value of what is written; most are themselves."""
    kind: Any = next((choice for choice in said if choice != "null"), "null") if isinstance(said, list) else said
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    if logical == "decimal":
        scale = kind.get("scale", 0)
        return lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale)
    if logical == "uuid":
        return lambda value: UUID(bytes=value)
    return lambda value: value
