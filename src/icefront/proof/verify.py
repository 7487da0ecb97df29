"""Table against source: the feed replayed by a reader of its own, the table read by Spark, compared row by row.

    feed ─ oracle.replay ─▶ rows at the frontier ─┐
                                                  ├─ oracle.compare ─▶ Comparison
    snapshot ─ Spark ─▶ rows ─────────────────────┘

Each snapshot is compared at its own frontier. Snapshot and frontier come from one reading of the table's metadata, so a
pipeline that runs meanwhile disturbs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from icefront.api import Pipeline
from icefront.core.errors import ConfigError
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.proof.oracle import SHOWN, Difference, Key, Row, compare, replay, replay_files
from icefront.settings import Target
from icefront.sources.changefeed_store import LocalStore, Store
from icefront.status import Look
from icefront.status.look import ancestors, entries, read_mark
from icefront.status.targets import human_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_SHOWN = SHOWN


@dataclass(frozen=True, slots=True)
class Point:
    """What is compared: one target's snapshot, and the frontier up to which it must hold everything."""

    target: Target
    keys: tuple[str, ...]
    snapshot: int | None
    frontier: Timestamp
    schema: Schema


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one comparison. `missing` and `extra` hold whole rows, `differing` single values with both sides."""

    target: str
    source_table: str
    snapshot: int | None
    frontier: Timestamp
    expected: int
    rows: int
    difference: Difference = field(default_factory=Difference)
    missing: Sequence[Row] = ()
    extra: Sequence[Row] = ()

    @property
    def equal(self) -> bool:
        return not self.difference

    @property
    def nothing_published(self) -> bool:
        return self.frontier == ORIGIN

    def to_dict(self, limit: int = SHOWN) -> dict[str, Any]:
        found = self.difference
        return {
            "target": self.target,
            "source_table": self.source_table,
            "snapshot_id": self.snapshot,
            "frontier": str(self.frontier),
            "frontier_time": human_time(self.frontier),
            "equal": self.equal,
            "expected_rows": self.expected,
            "rows": self.rows,
            "counts": dict(found.counts),
            "missing": [dict(row) for row in self.missing[:limit]],
            "extra": [dict(row) for row in self.extra[:limit]],
            "repeated_keys": [list(key) for key in found.repeated[:limit]],
            "differing": [
                {"key": list(d.key), "column": d.column, "expected": d.expected, "actual": d.actual}
                for d in found.differing[:limit]
            ],
            "columns_not_in_table": sorted(found.absent),
        }


def points(pipeline: Pipeline, *, every_snapshot: bool = False) -> Sequence[Point]:
    """Choose what to compare: each target as it is now, or at every snapshot that the pipeline made."""
    look = Look(pipeline)
    return [point for target in look.targets for point in _points(look, target, every_snapshot=every_snapshot)]


def _points(look: Look, target: Target, *, every_snapshot: bool) -> Iterator[Point]:
    keys = tuple(look.keys(target))
    if target.mode_with(keys) == "append":
        raise ConfigError(
            f"{target.name} is written in mode append; verify compares the last state of each key",
            "verify a pipeline in mode upsert",
        )
    table = look.table(target)
    if table is None:
        yield Point(target, keys, None, ORIGIN, Schema())
        return
    metadata = table.metadata
    if every_snapshot:
        yield from _history(look.settings.pipeline, target, keys, metadata)
        return
    mark = read_mark(metadata, look.settings.pipeline)
    yield Point(target, keys, metadata.current_snapshot_id, mark.frontier if mark else ORIGIN, table.schema())


def _history(pipeline: str, target: Target, keys: tuple[str, ...], metadata: TableMetadata) -> Iterator[Point]:
    """Name the pipeline's snapshots on the current branch, oldest first, claims too: a claim must change nothing."""
    for snapshot in reversed(list(ancestors(metadata))):
        said = entries(snapshot)
        if said.get(summary.PIPELINE) == pipeline and summary.FRONTIER in said:
            schema = metadata.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
            yield Point(target, keys, snapshot.snapshot_id, Timestamp.parse(said[summary.FRONTIER]), schema or metadata.schema())


def verify(pipeline: Pipeline, spark: SparkSession, chosen: Iterable[Point]) -> Iterator[Comparison]:
    """Compare point by point, so that progress can be shown between them."""
    store = pipeline.source().store
    refreshed: set[str] = set()
    replayed: dict[tuple[str, Timestamp], dict[Key, Row]] = {}
    for point in chosen:
        if point.snapshot is None:
            yield Comparison(point.target.name, point.target.source_table, None, point.frontier, 0, 0)
            continue
        if point.target.name not in refreshed:
            # The session may have seen the table before another process changed it.
            spark.catalog.refreshTable(point.target.name)
            refreshed.add(point.target.name)
        at = (point.target.source_table, point.frontier)
        if at not in replayed:
            # Claims repeat their predecessor's frontier; only the last replay of a table is kept.
            replayed = {known: rows for known, rows in replayed.items() if known[0] != at[0]}
            replayed[at] = _expected(store, point)
        expected = _renamed(replayed[at], point.schema, point.target.schema_policy.renames)
        yield _compared(point, expected, _read(spark, point))


def _expected(store: Store, point: Point) -> dict[Key, Row]:
    table, keys, frontier = point.target.source_table, point.keys, str(point.frontier)
    if isinstance(store, LocalStore):
        return replay(store.root, table, keys, frontier)
    return replay_files(_stored(store), table, keys, frontier)


def _stored(store: Store) -> Iterator[tuple[str, IO[bytes]]]:
    """List an object store's files: names without folders, each opened when its turn comes."""
    for entry in store.top():
        if entry.is_folder:
            for inner in store.walk(entry.name):
                yield inner.name.rsplit("/", 1)[-1], store.open(f"{entry.name}/{inner.name}")
        else:
            yield entry.name, store.open(entry.name)


def _renamed(rows: Mapping[Key, Row], schema: Schema, renames: Mapping[str, str]) -> Mapping[Key, Row]:
    """Give rows that were said before a declared rename the names that the table has now."""
    names = {old: new for new, old in renames.items() if new in schema.column_names and old not in schema.column_names}
    if not names:
        return rows
    return {key: {names.get(column, column): value for column, value in row.items()} for key, row in rows.items()}


def _read(spark: SparkSession, point: Point) -> Iterator[Row]:
    frame = spark.sql(f"SELECT * FROM {_quoted(point.target.name)} VERSION AS OF {point.snapshot}")  # noqa: S608 — our own names
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield row.asDict(recursive=True)


def _quoted(table: str) -> str:
    return ".".join(f"`{part}`" for part in table.split("."))


def _compared(point: Point, expected: Mapping[Key, Row], actual: Iterator[Row]) -> Comparison:
    surplus: list[Row] = []
    wanted = {_loose(key) for key in expected}

    def watched() -> Iterator[Row]:
        for row in actual:
            if len(surplus) < SHOWN and _loose(tuple(row.get(k) for k in point.keys)) not in wanted:
                surplus.append(row)
            yield row

    found = compare(expected, watched(), point.schema, point.keys)
    if point.target.schema_policy.add_column == "ignore":
        found.absent.clear()
    by_key = {_loose(key): row for key, row in expected.items()} if found.missing else {}
    if len(surplus) > found.counts["extra"]:
        # Spelled unlike: then the keys alone are shown.
        surplus = [dict(zip(point.keys, key, strict=True)) for key in found.extra]
    return Comparison(
        point.target.name,
        point.target.source_table,
        point.snapshot,
        point.frontier,
        len(expected),
        found.rows,
        found,
        [by_key.get(_loose(key), dict(zip(point.keys, key, strict=True))) for key in found.missing],
        surplus,
    )


def _loose(key: Key) -> tuple[str, ...]:
    """Spell a key so that the feed's and the engine's values look alike: only used to show rows, never to decide."""
    return tuple(str(part) for part in key)
