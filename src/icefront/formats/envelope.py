"""What a line of a changefeed says by itself: its cells as they are written, and when it happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from icefront.core.epochs import Epoch
from icefront.formats import stamps
from icefront.formats.chunks import Chunk
from icefront.formats.stamps import Tally

Envelope = Literal["wrapped", "bare", "row"]

META = "__crdb__"
EMPTY = msgspec.Raw(b"")
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NO_CHANGE = {"wrapped": b'{"resolved":0}', "bare": b'{"__crdb__":{"resolved":0}}', "row": b'{"__crdb__":{"resolved":0}}'}
"""A line that only announces how far the feed has got."""


class Meta(msgspec.Struct, gc=False, eq=False):
    """What stands beside a row, under `__crdb__`."""

    key: msgspec.Raw = EMPTY
    mvcc_timestamp: str | None = None
    resolved: msgspec.Raw = EMPTY
    updated: str | None = None


META_FIELDS = [(field.name, field.type, field.default) for field in msgspec.structs.fields(Meta)]
"""The same members as an envelope has them, beside `after`, in the order in which CockroachDB prints them."""


class _After(msgspec.Struct, gc=False, eq=False):
    after: dict[str, msgspec.Raw] | None = None


class _Before(msgspec.Struct, gc=False, eq=False):
    before: dict[str, msgspec.Raw] | None = None


class _Stamped(msgspec.Struct, gc=False, eq=False):
    mvcc_timestamp: str | None = None
    updated: str | None = None


class _Flat(msgspec.Struct, gc=False, eq=False, rename={"meta": META}):
    meta: _Stamped | None = None


_AFTER = msgspec.json.Decoder(_After)
_BEFORE = msgspec.json.Decoder(_Before)
_CELLS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STAMPED = msgspec.json.Decoder(_Stamped)
_FLAT = msgspec.json.Decoder(_Flat)


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cells_of(text: bytes, envelope: Envelope) -> dict[str, msgspec.Raw]:
    """Return a row's cells as they are written; none of a delete."""
    if envelope == "wrapped":
        return _AFTER.decode(text).after or {}
    cells = _CELLS.decode(text)
    cells.pop(META, None)
    return cells


def cells_before(text: bytes, envelope: Envelope) -> dict[str, msgspec.Raw]:
    """Return the cells that a changed row had, if the message tells."""
    try:
        return (_BEFORE.decode(text).before or {}) if envelope == "wrapped" else {}
    except UNDECODABLE:
        return {}


def former_names(renames: Mapping[str, str], columns: Collection[str]) -> dict[str, str]:
    """Map the names that columns had, as far as no column has them now, to the columns: `renames` says new name, then old."""
    former: dict[str, str] = {}
    for column in columns:
        old = renames.get(column)
        while old is not None and old not in columns and old not in former:
            former[old] = column
            old = renames.get(old)
    return former


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def printed(stamped: Any) -> str | None:
    """Return `updated`, else `mvcc_timestamp`."""
    when: str | None = stamped.mvcc_timestamp if stamped.updated is None else stamped.updated
    return when


def outside(chunk: Chunk, envelope: Envelope, epoch: Epoch) -> tuple[list[bool], Tally]:
    """Say of each line whether it is of another epoch, and count those; one that does not say when it happened is none."""
    said = [_said(text, envelope) for text in chunk.texts]
    try:
        when = stamps.read([text for text in said if text is not None])
    except ValueError:
        said = [text if text is not None and stamps.is_printed(text) else None for text in said]
        when = stamps.read([text for text in said if text is not None])
    told = [number for number, text in enumerate(said) if text is not None]
    kept, tally = stamps.choose(when, epoch)
    found = [False] * len(said)
    if kept is not None:
        inside = {told[i] for i in kept}
        for number in told:
            found[number] = number not in inside
    return found, replace(tally, inside=0)


def _said(text: bytes, envelope: Envelope) -> str | None:
    try:
        stamped = _STAMPED.decode(text) if envelope == "wrapped" else _FLAT.decode(text).meta
    except UNDECODABLE:
        return None
    return printed(stamped) if stamped else None
