"""Values of rows, for programs and for people: JSON that every parser takes, and text that stays on its line.

date, time, timestamp   ISO 8601; an instant in UTC, with a Z, so that a time that was shown means the same when it is given back
decimal                 text: a number would lose digits
NaN, ±Infinity          "NaN", "Infinity", "-Infinity": JSON has no such numbers
binary                  base64
map                     an object if its keys are text, else a list of {"key": …, "value": …}
"""

from __future__ import annotations

import base64
import json
import math
import unicodedata
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Any

_UNSAFE = frozenset({"Cc", "Zl", "Zp"})
"""Control characters, and what ends a line or a paragraph: they would break a table, or command a terminal."""
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def as_json(value: Any) -> Any:
    """Say a value in what JSON has. What is of no known type says itself."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _no_number(value)
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: as_json(inner) for key, inner in value.items()}
        case Mapping():
            return [{"key": as_json(key), "value": as_json(inner)} for key, inner in value.items()]
        case list() | tuple():
            return [as_json(item) for item in value]
    return str(value)


def _no_number(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_text(value: Any) -> str:
    """Print a value as JSON on one line. JSON's own escapes are the ones of `on_one_line`, so that it stays JSON."""
    return on_one_line(json.dumps(as_json(value), ensure_ascii=False, allow_nan=False))


def cell(value: Any) -> str:
    """Print a value for a table: text as it is, all else as in JSON but without quotes around it."""
    said = as_json(value)
    return said if isinstance(said, str) else json_text(said)


def on_one_line(text: str) -> str:
    """Show control characters instead of obeying them."""
    if text.isprintable():
        return text
    return "".join(_SHORT.get(c, f"\\u{ord(c):04x}") if unicodedata.category(c) in _UNSAFE else c for c in text)
