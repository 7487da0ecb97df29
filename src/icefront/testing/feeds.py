"""Changefeed directories as CockroachDB writes them, made up from a seed.

`Feed` plays a small cluster: several nodes with their own files, an initial scan, updates, deletes
and re-inserts, schema versions, repeated messages, restarts that say everything since the last
resolved timestamp again, and rows that are ahead of the resolved timestamp. It keeps what it said,
so that a test can ask for a table's true state at any timestamp.

`BulkFeed` writes many plain changes fast, for benchmarks.

Files appear as a cluster's do: complete, under their name at once, and a RESOLVED file after all
that it covers. Modification times follow the feed's own clock, so that a seed gives the same
directory every time.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa

from icefront.core.timestamps import ORIGIN, Timestamp

SECOND = 1_000_000_000
BEGIN = Timestamp(1_775_163_487_210_714_000)  # 2026-04-02 20:58:07.210714 UTC

Row = Mapping[str, object]
Key = tuple[object, ...]
Maker = Callable[[random.Random], object]
_EXTENSIONS = {"": ".ndjson", "gzip": ".ndjson.gz", "zstd": ".ndjson.zst"}
_FOLDERS = {"daily": "%Y-%m-%d/", "hourly": "%Y-%m-%d/%H/", "flat": ""}
_WORDS = ("urgent", "gift wrap", "Grüße", "fragile", "明日", "naïve — café", 'say "hi"', "tab\there", "back\\slash", "🎁", "")


# ── values ─────────────────────────────────────────────────────────────────────────────────
def _instant(rng: random.Random) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**13))


MAKERS: Mapping[str, Maker] = {
    "bigint": lambda rng: rng.choice((rng.randrange(1000), rng.randrange(-(2**63), 2**63))),
    "small": lambda rng: rng.randrange(1000),
    "amount": lambda rng: Decimal(rng.randrange(-(10**6), 10**10)).scaleb(-2),
    "status": lambda rng: rng.choice(("new", "paid", "sent", "returned")),
    "text": lambda rng: rng.choice((None, " ".join(rng.choices(_WORDS, k=rng.randrange(1, 5))))),
    "timestamptz": _instant,
    "date": lambda rng: _instant(rng).date().isoformat(),
    "bool": lambda rng: rng.random() < 0.5,
    "double": lambda rng: rng.choice((rng.uniform(-1e6, 1e6), float("nan"), float("inf"), 0.0)),
    "uuid": lambda rng: UUID(int=rng.getrandbits(128), version=4),
    "bytes": lambda rng: rng.randbytes(rng.randrange(8)),
    "jsonb": lambda rng: rng.choice(({"a": [1, 2.50, None], "b": {"c": "d"}}, [1, "two"], "plain", 3, None)),
}


def encode(value: object) -> str:
    """Print a value as CockroachDB's JSON does: decimals as numbers, the rest that JSON lacks as strings."""
    match value:
        case Decimal():
            return format(value, "f")
        case float() if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN is the one that differs
            return json.dumps("NaN" if value != value else "Infinity" if value > 0 else "-Infinity")  # noqa: PLR0124
        case datetime():
            return json.dumps(value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
        case bytes():
            return json.dumps(f"\\x{value.hex()}")
        case UUID():
            return json.dumps(str(value))
        case dict():
            return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {encode(value[k])}" for k in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(encode, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


# ── tables ─────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class FeedTable:
    """A table: its key columns, and the columns of each schema version, each with the maker of its values."""

    name: str
    keys: tuple[str, ...]
    versions: tuple[Mapping[str, str], ...]


CUSTOMERS = FeedTable(
    "customers",
    ("id",),
    (
        {"name": "text", "city": "text", "vip": "bool", "created_at": "timestamptz"},
        {"name": "text", "city": "text", "vip": "bool", "created_at": "timestamptz", "points": "small"},
    ),
)
ORDERS = FeedTable(
    "orders",
    ("id",),
    (
        {"customer_id": "small", "amount": "amount", "status": "status", "note": "text", "created_at": "timestamptz"},
        {
            "customer_id": "small",
            "amount": "amount",
            "status": "status",
            "note": "text",
            "created_at": "timestamptz",
            "channel": "status",
        },
    ),
)
SHOP = (CUSTOMERS, ORDERS)
ORDERS_COLUMNS = {
    "id": "long",
    "customer_id": "long",
    "amount": "decimal(12, 2)",
    "status": "string",
    "note": "string",
    "created_at": "timestamptz",
}
"""The demo's orders table as Iceberg types; `BulkFeed` writes the same columns."""


@dataclass(frozen=True)
class Said:
    """One change that the feed has said: a row, or None for a delete."""

    table: str
    key: Key
    at: Timestamp
    row: Row | None
    schema_id: int

    def line(self) -> str:
        after = "null" if self.row is None else encode(dict(self.row))
        return f'{{"after": {after}, "key": {encode(list(self.key))}, "updated": "{self.at}"}}\n'


# ── files ──────────────────────────────────────────────────────────────────────────────────
@dataclass
class FeedWriter:
    """Puts files where a cluster would: complete at once, dated by the feed's own clock."""

    root: Path
    codec: str = ""
    partition: str = "daily"
    dated: bool = True

    def data(self, name_at: Timestamp, uniquer: str, table: str, schema_id: int, text: bytes, written: int) -> Path:
        name = f"{name_at.name()}-{uniquer}-{table}-{schema_id:x}{_EXTENSIONS[self.codec]}"
        return self._write(self._folder(name_at) / name, self._packed(text), written)

    def resolved(self, at: Timestamp, written: int) -> Path:
        text = json.dumps({"resolved": str(at)}, separators=(",", ":")).encode()
        return self._write(self._folder(at) / f"{at.name()}.RESOLVED", text, written)

    def _folder(self, at: Timestamp) -> Path:
        return self.root / datetime.fromtimestamp(at.wall // SECOND, UTC).strftime(_FOLDERS[self.partition])

    def _packed(self, text: bytes) -> bytes:
        match self.codec:
            case "gzip":
                return gzip.compress(text, 1, mtime=0)
            case "zstd":
                return bytes(pa.compress(text, codec="zstd", asbytes=True))
            case _:
                return text

    def _write(self, path: Path, content: bytes | memoryview, written: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(content)
        if self.dated:
            os.utime(temporary, ns=(written, written))
        temporary.replace(path)
        return path


@dataclass
class _Node:
    number: int
    session: str
    sink: int
    files: int = 0

    def uniquer(self) -> str:
        self.files += 1
        return f"{self.session}-{self.number}-{self.sink}-{self.files - 1:08x}"


# ── a small cluster ────────────────────────────────────────────────────────────────────────
@dataclass
class Feed:
    """A changefeed over some tables. `scan` first, then `advance` as often as you like."""

    root: Path
    tables: Sequence[FeedTable] = SHOP
    seed: int = 0
    nodes: int = 3
    codec: str = ""
    partition: str = "daily"
    begin: Timestamp = BEGIN
    period: float = 10.0
    repeats: float = 0.05  # of messages are said twice
    beyond: float = 0.1  # of changes are ahead of the next resolved timestamp
    deletes: float = 0.1
    dated: bool = True
    said: list[Said] = field(default_factory=list)
    resolved: list[Timestamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - made-up data
        self._writer = FeedWriter(self.root, self.codec, self.partition, self.dated)
        self._last: dict[tuple[str, Key], Said] = {}
        self._live: dict[str, list[Key]] = {t.name: [] for t in self.tables}
        self._dead: dict[str, list[Key]] = {t.name: [] for t in self.tables}
        self._versions = {t.name: 1 for t in self.tables}
        self._by_name = {t.name: t for t in self.tables}
        self._clock = self.begin.wall
        self._start_session()

    # ── what it does ───────────────────────────────────────────────────────────────────────
    def scan(self, rows: int = 50) -> Timestamp:
        """Say every row that the tables have at the beginning, all at one timestamp, and resolve it."""
        found = [self._insert(t, self.begin, self._new_key(t)) for t in self.tables for _ in range(rows)]
        self._emit(found, self.begin)
        return self._resolve(self.begin)

    def advance(self, changes: int = 100, *, resolve: bool = True) -> Timestamp:
        """Say so many new changes in one period; return the resolved timestamp that then holds."""
        since = self.resolved[-1] if self.resolved else self.begin.prev()
        until = Timestamp(since.wall + round(self.period * SECOND), self._rng.choice((0, 0, 3)))
        new = [change for _ in range(changes) if (change := self._change(since, until))]
        # A local frontier in the middle: what a node flushes after it goes to a file with a later name.
        middle = Timestamp(since.wall + (until.wall - since.wall) // 2, 0)
        self._emit(new, since.next(), middle)
        return self._resolve(until) if resolve else since

    def restart(self) -> None:
        """Start the feed again from its last resolved timestamp: new sessions say everything since then once more."""
        since = self.resolved[-1] if self.resolved else ORIGIN
        self._start_session()
        again = [s for s in self.said if s.at > since]
        if again:
            self._emit(again, since.next() if self.resolved else self.begin)

    def lag(self, resolved: int = 3) -> None:
        """Let a session that started from an older resolved timestamp write now: an old name, old changes and one that is new.

        At most a day older, the margin that readers allow for: a real feed starts from its last checkpoint.
        """
        since = next(r for r in self.resolved[-resolved:] if r.wall >= self.resolved[-1].wall - 86_400 * SECOND)
        self._start_session()
        news = self._change(self.resolved[-1], Timestamp(self.resolved[-1].wall + round(self.period * SECOND)), ahead=True)
        again = [s for s in self.said if s.at > since]
        self._rng.shuffle(again)
        self._emit([*again[:5], *([news] if news else [])], since.next())

    def alter(self, table: str) -> int:
        """Change a table's schema: what is said from now on has its next version."""
        self._versions[table] = min(self._versions[table] + 1, len(self._by_name[table].versions))
        return self._versions[table]

    # ── what is true ───────────────────────────────────────────────────────────────────────
    def state(self, table: str, frontier: Timestamp | None = None) -> dict[Key, Row]:
        """Return the table's rows before `frontier`."""
        rows: dict[Key, Row] = {}
        for change in sorted((s for s in self.said if s.table == table), key=lambda s: s.at):
            if frontier is not None and change.at >= frontier:
                break
            if change.row is None:
                rows.pop(change.key, None)
            else:
                rows[change.key] = change.row
        return rows

    # ── changes ────────────────────────────────────────────────────────────────────────────
    def _change(self, since: Timestamp, until: Timestamp, *, ahead: bool | None = None) -> Said | None:
        table = self._rng.choice(list(self.tables))
        if ahead is None:
            ahead = self._rng.random() < self.beyond
        lower, upper = (until, Timestamp(until.wall + 2 * (until.wall - since.wall))) if ahead else (since, until)
        key = self._some_key(table)
        known = self._last.get((table.name, key))
        lower = max(lower, known.at) if known else lower
        if lower >= upper:
            return None  # this key is already further on
        at = self._between(lower, upper)
        if known and known.row is not None and self._rng.random() < self.deletes:
            return self._say(table, Said(table.name, key, at, None, self._versions[table.name]))
        return self._insert(table, at, key)

    def _between(self, lower: Timestamp, upper: Timestamp) -> Timestamp:
        """Choose a timestamp in (lower, upper], the ends themselves now and then."""
        dice = self._rng.random()
        if dice < 0.1:
            return upper if dice < 0.05 else lower.next()
        at = Timestamp(self._rng.randint(lower.wall, upper.wall), self._rng.choice((0, 0, 0, 1, 2)))
        return at if lower < at <= upper else upper

    def _some_key(self, table: FeedTable) -> Key:
        live, dead = self._live[table.name], self._dead[table.name]
        dice = self._rng.random()
        if live and dice < 0.7:
            return self._rng.choice(live)
        if dead and dice < 0.8:
            return self._rng.choice(dead)
        return self._new_key(table)

    def _new_key(self, table: FeedTable) -> Key:
        number = len(self._live[table.name]) + len(self._dead[table.name]) + 1
        return (number, *(f"{table.name}-{number}-{i}" for i in range(1, len(table.keys))))

    def _insert(self, table: FeedTable, at: Timestamp, key: Key) -> Said:
        version = self._versions[table.name]
        row = dict(zip(table.keys, key, strict=True)) | {c: MAKERS[m](self._rng) for c, m in table.versions[version - 1].items()}
        return self._say(table, Said(table.name, key, at, row, version))

    def _say(self, table: FeedTable, change: Said) -> Said:
        live, dead = self._live[table.name], self._dead[table.name]
        come, go = (dead, live) if change.row is None else (live, dead)
        if change.key in go:
            go.remove(change.key)
        if change.key not in come:
            come.append(change.key)
        self._last[table.name, change.key] = change
        self.said.append(change)
        return change

    # ── files ──────────────────────────────────────────────────────────────────────────────
    def _start_session(self) -> None:
        session = f"{self._rng.getrandbits(64):016x}"
        self._cluster = [_Node(n + 1, session, self._rng.randrange(1, 200)) for n in range(self.nodes)]

    def _emit(self, changes: Iterable[Said], name_at: Timestamp, later: Timestamp | None = None) -> None:
        """Write changes as the nodes' files: one per node, table and schema version, and name."""
        files: dict[tuple[int, str, int, Timestamp], list[Said]] = {}
        for change in changes:
            node = hash_key(change.key) % self.nodes
            named = later.next() if later is not None and change.at > later and self._rng.random() < 0.8 else name_at
            files.setdefault((node, change.table, change.schema_id, named), []).append(change)
            if self._rng.random() < self.repeats:
                files.setdefault((self._rng.randrange(self.nodes), change.table, change.schema_id, name_at), []).append(change)
        for (node, table, schema_id, named), content in sorted(files.items(), key=lambda item: item[0]):
            self._rng.shuffle(content)
            text = "".join(change.line() for change in content).encode()
            self._writer.data(named, self._cluster[node].uniquer(), table, schema_id, text, self._tick())

    def _resolve(self, at: Timestamp) -> Timestamp:
        self._clock = max(self._clock, at.wall)
        self._writer.resolved(at, self._tick())
        self.resolved.append(at)
        return at

    def _tick(self) -> int:
        self._clock += SECOND // 100
        return self._clock


def hash_key(key: Key) -> int:
    """Spread keys over nodes, the same way in every process."""
    return sum(map(ord, repr(key)))


# ── many changes, fast ─────────────────────────────────────────────────────────────────────
@dataclass
class BulkFeed:
    """Plain changes of one table, six columns (`ORDERS_COLUMNS`), 150 to 200 bytes each, written fast.

    `scan` says all keys once; each `advance` says so many changes of random keys and resolves.
    """

    root: Path
    keys: int
    table: str = "orders"
    seed: int = 0
    codec: str = ""
    deletes: float = 0.1
    rows_per_file: int = 100_000
    begin: Timestamp = BEGIN
    period: float = 10.0
    resolved: list[Timestamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._writer = FeedWriter(self.root, self.codec, dated=False)
        self._session = f"{self._rng.integers(2**63):016x}"
        self._files = 0

    def scan(self) -> Timestamp:
        """Say every key once, at one timestamp."""
        for first in range(0, self.keys, self.rows_per_file):
            ids = np.arange(first, min(first + self.rows_per_file, self.keys))
            self._emit(self.begin, ids, np.full(len(ids), self.begin.wall), np.zeros(len(ids), bool))
        return self._resolve(self.begin)

    def advance(self, changes: int = 200_000) -> Timestamp:
        """Say changes of random keys in one period, in order of time."""
        since = self.resolved[-1] if self.resolved else self.begin
        until = Timestamp(since.wall + round(self.period * SECOND))
        ids = self._rng.integers(0, self.keys, changes)
        # Distinct and increasing, so that no key changes twice at one timestamp.
        walls = since.wall + 1 + np.arange(changes) * ((until.wall - since.wall) // (changes + 1))
        gone = self._rng.random(changes) < self.deletes
        for first in range(0, changes, self.rows_per_file):
            part = slice(first, first + self.rows_per_file)
            self._emit(since.next(), ids[part], walls[part], gone[part])
        return self._resolve(until)

    def _emit(self, name_at: Timestamp, ids: np.ndarray, walls: np.ndarray, gone: np.ndarray) -> None:
        uniquer = f"{self._session}-1-72-{self._files:08x}"
        self._files += 1
        self._writer.data(name_at, uniquer, self.table, 1, self._text(ids, walls, gone), 0)

    def _text(self, ids: np.ndarray, walls: np.ndarray, gone: np.ndarray) -> bytes:
        n = len(ids)
        frame = pl.DataFrame(
            {
                "id": ids,
                "wall": walls,
                "gone": gone,
                "euros": self._rng.integers(0, 10_000, n),
                "cents": self._rng.integers(10, 100, n),
                "customer": self._rng.integers(0, 1_000_000, n),
                "status": pl.Series(["new", "paid", "sent"]).gather(self._rng.integers(0, 3, n)),
                "note": self._rng.integers(10**8, 10**9, n),
                "second": self._rng.integers(10, 60, n),
            }
        )
        end = ('], "updated": "', "wall", '.0000000000"}\n')
        created = (', "created_at": "2026-04-02T20:58:', "second", 'Z", "customer_id": ', "customer")
        rest = (', "id": ', "id", ', "note": "', "note", '", "status": "', "status", '"}, "key": [', "id")
        upsert = _joined(('{"after": {"amount": ', "euros", ".", "cents", *created, *rest, *end))
        delete = _joined(('{"after": null, "key": [', "id", *end))
        lines = frame.select(pl.when("gone").then(delete).otherwise(upsert)).to_series()
        # The column's own buffer is the file: no line becomes a Python object.
        return lines.to_arrow(compat_level=pl.CompatLevel.oldest()).buffers()[2].to_pybytes()  # type: ignore[no-any-return]

    def _resolve(self, at: Timestamp) -> Timestamp:
        self._writer.resolved(at, 0)
        self.resolved.append(at)
        return at


def _joined(parts: Sequence[str]) -> pl.Expr:
    """Join texts and columns by turns."""
    return pl.concat_str([pl.col(part) if i % 2 else pl.lit(part) for i, part in enumerate(parts)])


def lines_of(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every message of a feed's plain files with its file's name, for tests that look at all of it."""
    for path in sorted(root.rglob("*.ndjson")):
        for line in path.read_text().splitlines():
            yield path.name, line
