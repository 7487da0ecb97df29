"""Table against source: the feed replayed by a reader of its own, the table read by Spark, compared row by row.

    feed ─ oracle.replay ─▶ rows at the frontier ─┐
                                                  ├─ oracle.compare ─▶ Comparison
    snapshot ─ Spark ─▶ rows ─────────────────────┘

Each snapshot is compared at its own frontier. Snapshot and frontier come from one reading of the table's metadata, so a
pipeline that runs meanwhile disturbs nothing. In mode append rows are counted: none may be missing, and none may be there
more often than the feed says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from icefront.api import Pipeline
from icefront.core.errors import ConfigError
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.iceberg.names import quoted
from icefront.proof.oracle import (
    SHOWN,
    Difference,
    Files,
    Key,
    Row,
    Said,
    compare,
    compare_appended,
    local_files,
    replay_appended,
    replay_files,
)
from icefront.settings import Target
from icefront.settings.keys import keys_unknown
from icefront.sources.changefeed_store import LocalStore, Store
from icefront.status import Look
from icefront.status.look import ancestors, entries, read_mark
from icefront.status.targets import human_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FEW_JOBS = f"WITH ('split-size' = '{16 << 20}', 'file-open-cost' = '{64 << 10}')"
"""Every split is a job of its own here, and as a whole in memory: by itself Iceberg has 16 MB in one, too, but counts the smallest file as four."""
Expected = Mapping[Key, Row] | Sequence[Said]
"""What a table must hold: the last row of each key; or, in mode append, rows with how often they may be there."""


@dataclass(frozen=True, slots=True)
class Point:
    """What is compared: one target's snapshot, and the frontier up to which it must hold everything.

    Without keys it is a table that is appended to.
    """

    target: Target
    keys: tuple[str, ...]
    snapshot: int | None
    frontier: Timestamp
    schema: Schema


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one comparison. `expected` counts the rows that must be there at least."""

    target: str
    source_table: str
    snapshot: int | None
    frontier: Timestamp
    expected: int = 0
    rows: int = 0
    difference: Difference = field(default_factory=Difference)

    @classmethod
    def of(cls, point: Point) -> Comparison:
        """Begin with nothing found and nothing expected."""
        return cls(point.target.name, point.target.source_table, point.snapshot, point.frontier)

    @property
    def equal(self) -> bool:
        return not self.difference

    @property
    def nothing_published(self) -> bool:
        return self.frontier == ORIGIN

    def to_dict(self) -> dict[str, Any]:
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
            "missing": [dict(row) for row in found.missing],
            "extra": [dict(row) for row in found.extra],
            "repeated_keys": [list(key) for key in found.repeated],
            "differing": [
                {"key": list(d.key), "column": d.column, "expected": d.expected, "actual": d.actual} for d in found.differing
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
        keys = ()
    elif not keys and target.source_table in look.source_tables:
        raise keys_unknown(target)
    elif target.sequence_column is not None:
        # Which value wins depends on where epochs ended, which snapshots that have expired no longer tell.
        raise ConfigError(
            f"{target.name} takes the greatest {target.sequence_column} of an epoch's changes, verify takes the last by `updated`",
            "verify a pipeline without `sequence_by`",
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


def verify(pipeline: Pipeline, spark: SparkSession, chosen: Iterable[Point], shown: int = SHOWN) -> Iterator[Comparison]:
    """Compare point by point, so that progress can be shown between them; a target's by their frontiers. `shown` differences of each kind are kept."""
    store = pipeline.source().store
    for name, some in groupby(chosen, lambda point: point.target.name):
        ordered = sorted(some, key=lambda point: point.frontier)
        there = [point for point in ordered if point.snapshot is not None]
        yield from (Comparison.of(point) for point in ordered if point.snapshot is None)
        if there:
            # The session may have seen the table before another process changed it.
            spark.catalog.refreshTable(quoted(name))
            yield from (_compare(spark, *pair, shown) for pair in zip(there, _expected(store, there), strict=True))


def _compare(spark: SparkSession, point: Point, said: Expected, shown: int) -> Comparison:
    expected = _renamed(said, point.schema, point.target.schema_policy.renames)
    difference = _difference(point, expected, _read(spark, point), shown)
    return replace(Comparison.of(point), expected=_count(expected), rows=difference.rows, difference=difference)


def _expected(store: Store, some: Sequence[Point]) -> Iterator[Expected]:
    """Replay one target's feed up to the frontier of each point: they are ordered by it."""
    table, frontiers = some[0].target.source_table, [str(point.frontier) for point in some]
    files: Files = local_files(store.root, table) if isinstance(store, LocalStore) else _stored(store)
    return replay_files(files, table, some[0].keys, frontiers) if some[0].keys else replay_appended(files, table, frontiers)


def _count(expected: Expected) -> int:
    return len(expected) if isinstance(expected, Mapping) else sum(said.least for said in expected)


def _stored(store: Store) -> Iterator[tuple[str, IO[bytes]]]:
    """List an object store's files: names without folders, each opened when its turn comes."""
    for entry in store.top():
        if entry.is_folder:
            for inner in store.walk(entry.name):
                yield inner.name.rsplit("/", 1)[-1], store.open(f"{entry.name}/{inner.name}")
        else:
            yield entry.name, store.open(entry.name)


def _renamed(expected: Expected, schema: Schema, renames: Mapping[str, str]) -> Expected:
    """Give rows that were said before a declared rename the names that the table has now."""
    names = {old: new for new, old in renames.items() if new in schema.column_names and old not in schema.column_names}

    def renamed(row: Row) -> Row:
        return {names.get(column, column): value for column, value in row.items()}

    if not names:
        return expected
    if isinstance(expected, Mapping):
        return {key: renamed(row) for key, row in expected.items()}
    return [replace(said, row=renamed(said.row)) for said in expected]


def _frame(spark: SparkSession, point: Point) -> DataFrame:
    return spark.sql(f"SELECT * FROM {quoted(point.target.name)} VERSION AS OF {point.snapshot} {_FEW_JOBS}")  # noqa: S608 — our own names


def _read(spark: SparkSession, point: Point) -> Iterator[Row]:
    frame = _frame(spark, point)
    instants = [name for name, kind in frame.dtypes if kind == "timestamp"]
    for row in frame.toLocalIterator(prefetchPartitions=True):
        found = row.asDict(recursive=True)
        # Spark gives instants in the zone of this process, and does not say so: shown, they would be other times.
        yield found | {name: found[name].astimezone(UTC) for name in instants if found[name] is not None}


def _difference(point: Point, expected: Expected, actual: Iterable[Row], shown: int) -> Difference:
    if isinstance(expected, Mapping):
        found = compare(expected, actual, point.schema, point.keys, shown)
    else:
        found = compare_appended(expected, actual, point.schema, shown)
    if point.target.schema_policy.add_column == "ignore":
        found.absent.clear()
    return found
