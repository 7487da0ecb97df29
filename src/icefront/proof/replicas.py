"""Replica against source: two tables at one point of the source's timeline, both read by plain time travel, as multisets of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefront.api import Pipeline
from icefront.core.errors import ConfigError
from icefront.core.marks import START, Position
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.iceberg.names import quoted
from icefront.proof.oracle import SHOWN, Difference
from icefront.proof.texts import printed, unbalanced
from icefront.proof.verify import Comparison
from icefront.settings import Target
from icefront.sources.iceberg_timeline import Place
from icefront.status import Look
from icefront.status.look import ancestors, entries, read_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ReplicaPoint:
    """One snapshot of a replica, and the place in the source's timeline that it must be equal at."""

    target: Target
    snapshot: int | None
    frontier: Timestamp
    position: Position = START


def points(pipeline: Pipeline, *, every_snapshot: bool = False) -> Sequence[ReplicaPoint]:
    """Choose what to compare: each replica as it is now, or at every epoch that is complete."""
    look = Look(pipeline)
    return [point for target in look.targets for point in _points(look, target, every_snapshot=every_snapshot)]


def _points(look: Look, target: Target, *, every_snapshot: bool) -> Iterator[ReplicaPoint]:
    table = look.table(target)
    mark = read_mark(table.metadata, look.settings.pipeline) if table else None
    if table is None or mark is None or mark.frontier == ORIGIN:
        yield ReplicaPoint(target, None, ORIGIN)
        return
    if every_snapshot:
        for snapshot in reversed(list(ancestors(table.metadata))):
            said = entries(snapshot)
            if said.get(summary.PIPELINE) == look.settings.pipeline and summary.LOWER in said:
                position = Position(said[summary.POSITION])
                if not _is_loading(position):
                    yield ReplicaPoint(target, snapshot.snapshot_id, Timestamp.parse(said[summary.FRONTIER]), position)
        return
    if _is_loading(mark.position):
        raise ConfigError(
            f"{target.name} is still being loaded from {target.source_table}: it holds only some of the rows",
            "verify again when the load is through: `icefront status` shows how far it is",
        )
    yield ReplicaPoint(target, table.metadata.current_snapshot_id, mark.frontier, mark.position)


def _is_loading(position: Position) -> bool:
    place = Place.of(position)
    return place is not None and place.loaded is not None


def verify(pipeline: Pipeline, spark: SparkSession, chosen: Iterable[ReplicaPoint], shown: int = SHOWN) -> Iterator[Comparison]:
    """Compare point by point, so that progress can be shown between them."""
    followed = pipeline.settings.source.iceberg
    if followed is not None and followed.start != "initial":
        raise ConfigError(
            "verify compares whole tables, and source.iceberg.start is not initial", "it is only available with start: initial"
        )
    refreshed: set[str] = set()
    for point in chosen:
        source, target = point.target.source_table, point.target.name
        if point.snapshot is None:
            yield Comparison(target, source, None, point.frontier)
            continue
        for table in {source, target} - refreshed:
            # The session may have seen the table before another process changed it.
            spark.catalog.refreshTable(quoted(table))
            refreshed.add(table)
        place = Place.of(point.position)
        replica = spark.read.option("versionAsOf", point.snapshot).table(quoted(target))
        origin = spark.read.table(quoted(source)).limit(0)
        if place is not None and place.snapshot is not None:
            origin = spark.read.option("versionAsOf", place.snapshot).table(quoted(source))
        yield _compared(point, origin, replica, shown)


def _compared(point: ReplicaPoint, origin: DataFrame, replica: DataFrame, shown: int) -> Comparison:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    columns = [name for name in origin.columns if name in replica.columns]
    found = Difference(shown=shown, rows=replica.count())
    if point.target.schema_policy.add_column != "ignore":
        found.absent |= {*origin.columns} - {*replica.columns}
    kinds = {name: replica.schema[name].dataType for name in columns}
    # With the types that the replica has: a widened column holds the same values.
    text = printed([(F.col(f"`{name}`").cast(kinds[name]), kinds[name]) for name in columns])
    sums = unbalanced([(frame, text, F.lit(times)) for frame, times in ((origin, 1), (replica, -1))])
    for kind, sign in (("missing", 1), ("extra", -1)):
        those = sums.where(F.col("times") * sign > 0)
        found.counts[kind] = int(those.agg(F.sum(F.abs("times"))).first()[0] or 0)
        if found.counts[kind]:
            texts = [json.loads(row["row"]) for row in those.orderBy("row").limit(shown).collect()]
            getattr(found, kind).extend(dict(zip(columns, text.values(), strict=True)) for text in texts)
    return Comparison(
        point.target.name, point.target.source_table, point.snapshot, point.frontier, origin.count(), found.rows, found
    )
