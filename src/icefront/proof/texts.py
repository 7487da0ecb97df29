"""Rows as text that tells every value apart, so that multisets of them can be compared.

Spark's own idea of equality does not do: to it 0.0 is -0.0, and maps cannot be grouped by.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EXACT = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def printed(columns: Sequence[tuple[Column, Any]]) -> Column:
    """Print columns, each given with its type, as one text."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import
    from pyspark.sql.types import MapType  # noqa: PLC0415

    told = [F.array_sort(F.map_entries(column)) if isinstance(kind, MapType) else column for column, kind in columns]
    return F.to_json(F.struct(*(column.alias(str(at)) for at, column in enumerate(told))), _EXACT)


def unbalanced(sides: Sequence[tuple[DataFrame, Column, Column]]) -> DataFrame:
    """Add up how often each text occurs; each side has its rows' text and how often a row counts. What adds up to 0 is left out."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

    frames = [frame.select(text.alias("row"), times.alias("times")) for frame, text, times in sides]
    together = reduce(lambda one, other: one.union(other), frames)
    return together.groupBy("row").agg(F.sum("times").alias("times")).where("times <> 0")
