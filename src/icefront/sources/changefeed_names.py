"""The names of a changefeed's files, as CockroachDB's cloud storage sink writes them.

    2026-04-02/202604022058072107140000000000000-56087568dba1e6b8-1-72-00000000-orders-1.ndjson
    └─ folder  └─ timestamp                      └─ session       │ │  └─ file  │      └─ schema id, hexadecimal
                                                             node ┘ └ sink      └─ topic: may hold dashes, dots, plus signs
    2026-04-02/202604022058072107140000000000000.RESOLVED

The folder is the date (`partition_format=daily`), date and hour (`hourly`) or nothing (`flat`).
The timestamp of a data file is an inclusive lower bound of the changes inside; nothing bounds them
from above.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import NoReturn

from icefront.core.errors import ConfigError, Stopped
from icefront.core.timestamps import Timestamp

CODECS = {None: "", ".gz": "gzip", ".zst": "zstd"}

# The session has no dash, so the topic's place is fixed from the left and, by the last dash, from the right. Two parts that
# CockroachDB has proposed to put before the session (a version of the naming scheme, a second timestamp) are let through.
_DATA = re.compile(
    r"(?P<timestamp>\d{33})-(?:\$\d+-)?(?:\d{33}-)?[0-9A-Za-z]+-\d+-\d+-[0-9a-f]{8,}"
    r"-(?P<topic>.+)-(?P<schema>[0-9a-f]+)\.ndjson(?P<codec>\.gz|\.zst)?",
    re.ASCII,
)
_RESOLVED = re.compile(r"(?P<timestamp>\d{33})\.RESOLVED", re.ASCII)
_OURS = re.compile(r"\d{33}-.*\.(?P<format>ndjson|json|csv|parquet|avro)(?:\.gz|\.zst)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class DataName:
    """What a data file's name says."""

    timestamp: Timestamp
    topic: str
    schema_id: int
    codec: str


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """What a RESOLVED file's name says."""

    timestamp: Timestamp


def parse_name(name: str) -> DataName | ResolvedName | None:
    """Read a file name without its folder; None when it is no file of a changefeed.

    A name that begins like a changefeed file but cannot be understood stops: passing over it would
    lose its changes without a word.
    """
    if match := _DATA.fullmatch(name):
        timestamp = _timestamp(match["timestamp"])
        if timestamp is not None:
            return DataName(timestamp, match["topic"], int(match["schema"], 16), CODECS[match["codec"]])
    elif match := _RESOLVED.fullmatch(name):
        timestamp = _timestamp(match["timestamp"])
        return ResolvedName(timestamp) if timestamp is not None else None
    if match := _OURS.fullmatch(name):
        _refuse(name, match["format"])
    return None


def is_day(folder: str) -> bool:
    """Say whether a folder directly below the feed's root holds files of one date."""
    return _DAY.fullmatch(folder) is not None


def is_resolved(path: str) -> bool:
    """Say whether a name, with or without folders, looks like that of a RESOLVED file."""
    return path.endswith(".RESOLVED")


def day_of(timestamp: Timestamp) -> str:
    """Name the folder that files named by `timestamp` lie in."""
    digits = timestamp.name()
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"


def _timestamp(digits: str) -> Timestamp | None:
    """Do as `Timestamp.parse_name`, several times faster: a first listing may meet a hundred thousand names."""
    hour, minute, second = int(digits[8:10]), int(digits[10:12]), int(digits[12:14])
    try:
        days = date(int(digits[:4]), int(digits[4:6]), int(digits[6:8])).toordinal() - _EPOCH
        if hour > 23 or minute > 59 or second > 60:
            return None
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
        return Timestamp(seconds * 1_000_000_000 + int(digits[14:23]), int(digits[23:]))
    except ValueError:
        return None


def _refuse(name: str, format_: str) -> NoReturn:
    if format_ != "ndjson":
        raise ConfigError(
            f"the changefeed writes {format_} files ({name}); newline-delimited JSON is read",
            "recreate the changefeed WITH format = json (its default)",
        )
    raise Stopped(
        f"{name} begins like a changefeed file, but its name is not <timestamp>-<session>-<node>-<sink>-<file>-<topic>-<schema id>.ndjson",
        "a newer CockroachDB may name files otherwise: look for a newer Icefront; if it is not the feed's file, move it away",
    )
