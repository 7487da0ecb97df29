"""The proof of a changelog: rows before, minus what left, plus what came, are the rows after. Both states by plain time travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from icefront.iceberg import history
from icefront.iceberg.evolution import can_widen
from icefront.iceberg.history import Name
from icefront.iceberg.names import quoted
from icefront.iceberg.view import View
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
    if first is not None:
        schema = history.as_wide(schema, history.schema_of(view.metadata, first))
    kind = F.col("_change_type")
    sign = F.when(kind.isin("INSERT", "UPDATE_AFTER"), 1).otherwise(-1)
    sides = [(found, _text(schema, schema), sign)]
    for snapshot, times in ((first, 1), (last, -1)):
        if snapshot is not None:
            state = spark.read.option("versionAsOf", snapshot.snapshot_id).table(quoted(table))
            sides.append((state, _text(history.schema_of(view.metadata, snapshot), schema), F.lit(times)))
    sums = unbalanced(sides).orderBy("row").limit(limit)
    return [Difference(row["row"], row["times"]) for row in sums.collect()]


def _text(written: Schema, schema: Schema) -> Column:
    """Print rows in the columns of a schema, found by their ids."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    def column(name: str) -> Column:
        return F.col(f"`{name.replace('`', '``')}`")

    return printed([(found, None) for found in _members(column, written.fields, schema.fields)])


def _members(member: Callable[[str], Column], written: Sequence[NestedField], wanted: Sequence[NestedField]) -> Iterator[Column]:
    """Find fields by their ids, at any depth; one that was not there yet, or was another one, has its initial default."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    known = {field.field_id: field for field in written}
    for field in wanted:
        if (was := known.get(field.field_id)) is None or not _akin(was.field_type, field.field_type):
            yield F.lit(field.initial_default)
        else:
            yield _shaped(member(was.name), was.field_type, field.field_type)


def _akin(written: IcebergType, wanted: IcebergType) -> bool:
    """Say whether a field is still the same one: `CREATE OR REPLACE` gives others of its name its id."""
    match written, wanted:
        case StructType(), StructType():
            return True
        case ListType(), ListType():
            return _akin(written.element_type, wanted.element_type)
        case MapType(), MapType():
            return _akin(written.key_type, wanted.key_type) and _akin(written.value_type, wanted.value_type)
    return written == wanted or can_widen(written, wanted) or can_widen(wanted, written)


def _shaped(column: Column, written: IcebergType, wanted: IcebergType) -> Column:
    """Give a value the shape that it has in another schema; a map becomes its entries in order, since Spark keeps none."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    match written, wanted:
        case StructType(), StructType():
            members = _members(column.getField, written.fields, wanted.fields)
            return F.when(column.isNotNull(), F.struct(*(m.alias(str(at)) for at, m in enumerate(members))))
        case ListType(), ListType():
            return F.transform(column, lambda e: _shaped(e, written.element_type, wanted.element_type))
        case MapType(), MapType():
            entries = F.transform(
                F.map_entries(column),
                lambda e: F.struct(
                    _shaped(e["key"], written.key_type, wanted.key_type).alias("key"),
                    _shaped(e["value"], written.value_type, wanted.value_type).alias("value"),
                ),
            )
            return F.array_sort(entries)
    return column if written == wanted else column.cast(str(wanted).replace("long", "bigint"))
