"""A Parquet footer → what a manifest entry says about the file: counts, sizes, bounds, split offsets.

Which columns get what is PyIceberg's plan (`write.metadata.metrics.*`). The footer is walked here, because bounds must hold for the
whole file: Parquet leaves out the bounds of a row group with very long values, and then the file has none; and because an upper bound
is cut to text that exists (never to half a surrogate pair).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    PrimitiveType,
    StringType,
    UUIDType,
)

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column"
_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"
_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES, _LAST = 0xD7FF, 0xE000, 0x10FFFF

Plan = Mapping[str, StatisticsCollector]
"""What to collect, by the column's path in Parquet."""


@dataclass
class Metrics:
    """By field id. Bounds are upper-case hex of Iceberg's binary single-value form."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, str] = field(default_factory=dict)
    upper_bounds: dict[int, str] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()


def plan(schema: Schema, properties: Mapping[str, str]) -> Plan:
    """Say what to collect for each column, as the table's properties ask."""
    collectors = compute_statistics_plan(schema, dict(properties))
    if _DEFAULT not in properties:
        # Tables with very many columns: as Iceberg does, only the first ones get metrics unless asked for.
        for collector in list(collectors.values())[int(properties.get(_INFERRED, 100)) :]:
            if f"{_COLUMN}.{collector.column_name}" not in properties:
                silent = MetricsMode(MetricModeTypes.NONE)
                collectors[collector.field_id] = StatisticsCollector(
                    collector.field_id, collector.iceberg_type, silent, collector.column_name
                )
    return {path: collectors[field_id] for path, field_id in parquet_path_to_id_mapping(schema).items()}


def measure(footer: pq.FileMetaData, collect: Plan) -> Metrics:
    """Sum up a closed file's row groups."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    metrics = Metrics(split_offsets=tuple(sorted(_offset(group.column(0)) for group in groups)))
    for i in range(footer.num_columns if groups else 0):
        chunks = [group.column(i) for group in groups]
        collector = collect[chunks[0].path_in_schema]
        _measure_column(metrics, collector, chunks)
    return metrics


def _measure_column(metrics: Metrics, collector: StatisticsCollector, chunks: list[pq.ColumnChunkMetaData]) -> None:
    at, mode = collector.field_id, collector.mode
    metrics.column_sizes[at] = sum(chunk.total_compressed_size for chunk in chunks)
    if mode.type == MetricModeTypes.NONE:
        return
    metrics.value_counts[at] = sum(chunk.num_values for chunk in chunks)
    statistics = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
    if len(statistics) < len(chunks) or not all(s.has_null_count for s in statistics):
        return
    metrics.null_value_counts[at] = sum(s.null_count for s in statistics)
    if mode.type == MetricModeTypes.COUNTS:
        return
    bounded = [s for s in statistics if s.has_min_max]
    floating = isinstance(collector.iceberg_type, FloatType | DoubleType)  # without bounds they hold nothing but NaN
    gaps = [s for s in statistics if not s.has_min_max and s.num_values and not floating]
    if not bounded or gaps:
        return
    put = _encoder(collector.iceberg_type)
    low, high = min(_raw(s.min_raw, collector) for s in bounded), max(_raw(s.max_raw, collector) for s in bounded)
    metrics.lower_bounds[at] = put(_cut(low, collector)).hex().upper()
    upper = _cut_up(high, collector)
    if upper is not None:
        metrics.upper_bounds[at] = put(upper).hex().upper()


def _offset(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return min(chunk.data_page_offset, dictionary) if dictionary else int(chunk.data_page_offset)


def _raw(value: Any, collector: StatisticsCollector) -> Any:
    """Make physical values comparable: large decimals are stored as big-endian bytes."""
    if isinstance(collector.iceberg_type, DecimalType) and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


def _encoder(kind: PrimitiveType) -> Callable[[Any], bytes]:
    match kind:
        case StringType() | BinaryType() | FixedType() | UUIDType():
            return bytes
        case DecimalType():
            return _signed_bytes
        case BooleanType():
            return struct.Struct("<?").pack
        case FloatType():
            return struct.Struct("<f").pack
        case DoubleType():
            return struct.Struct("<d").pack
    return struct.Struct("<i" if str(kind) in {"int", "date"} else "<q").pack


def _signed_bytes(number: int) -> bytes:
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _cut(value: Any, collector: StatisticsCollector) -> Any:
    length = collector.mode.length
    if length is None:
        return value
    return value.decode()[:length].encode() if isinstance(collector.iceberg_type, StringType) else value[:length]


def _cut_up(value: Any, collector: StatisticsCollector) -> Any:
    """Cut an upper bound and raise it above all that begins so; None when nothing is above."""
    short = _cut(value, collector)
    if short == value:
        return value
    if isinstance(collector.iceberg_type, StringType):
        text = short.decode().rstrip(chr(_LAST))
        return (text[:-1] + _next(text[-1])).encode() if text else None
    binary = short.rstrip(b"\xff")
    return binary[:-1] + bytes([binary[-1] + 1]) if binary else None


def _next(letter: str) -> str:
    point = ord(letter)
    return chr(_FIRST_AFTER_SURROGATES if point == _LAST_BEFORE_SURROGATES else point + 1)
