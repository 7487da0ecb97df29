"""The proof of a changelog: rows before, minus what left, plus what came, are the rows after. Both states by plain time travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from icefront.changes import View
from icefront.iceberg import history
from icefront.iceberg.history import Name
from icefront.proof.texts import printed, unbalanced

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Difference:
    """A row that the changes make too often (positive) or not often enough."""

    row: str
    times: int


def verify(
    spark: SparkSession, table: str, begin: Name | None, end: Name | None, found: DataFrame, limit: int
) -> Sequence[Difference]:
    """Hold changes against the states that they lead from and to; return at most so many rows that differ."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    view = View.of(spark, table)
    first = history.find(table, view.metadata, begin) if begin is not None else None
    last = history.find(table, view.metadata, end)
    schema = history.schema_of(view.metadata, last)
    kind = F.col("_change_type")
    sign = F.when(kind.isin("INSERT", "UPDATE_AFTER"), 1).otherwise(-1)
    sides = [(found, _text(found, schema, schema), sign)]
    for snapshot, times in ((first, 1), (last, -1)):
        if snapshot is not None:
            state = spark.read.option("versionAsOf", snapshot.snapshot_id).table(table)
            sides.append((state, _text(state, history.schema_of(view.metadata, snapshot), schema), F.lit(times)))
    sums = unbalanced(sides).orderBy("row").limit(limit)
    return [Difference(row["row"], row["times"]) for row in sums.collect()]


def _text(frame: DataFrame, written: Schema, schema: Schema) -> Column:
    """Print rows in the columns of a schema, found by their ids."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    names = {field.field_id: field.name for field in written.fields}
    columns: list[tuple[Column, Any]] = []
    for field in schema.fields:
        if field.field_id not in names:
            columns.append((F.lit(field.initial_default), None))
            continue
        column = F.col(f"`{names[field.field_id]}`")
        if written.find_type(field.field_id) != field.field_type and field.field_type.is_primitive:
            column = column.cast(str(field.field_type).replace("long", "bigint"))
        columns.append((column, frame.schema[names[field.field_id]].dataType))
    return printed(columns)
