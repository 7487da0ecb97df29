"""Rows → Iceberg partitions: transform the source columns, group the rows, say each partition's value in Iceberg's JSON form."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.errors import ConfigError, Stopped
from icefront.kernels.codes import encode, groups, plain

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Partition:
    """One partition of a spec: the tuple of its values, as JSON by partition field id, and its folder."""

    values: tuple[Any, ...] = ()
    json: tuple[tuple[str, Any], ...] = ()
    path: str = ""

    def to_path(self) -> str:
        """Print the folder, for PyIceberg's location providers."""
        return self.path


WHOLE = Partition()
"""The only partition of an unpartitioned spec."""


@dataclass(frozen=True)
class Partitioner:
    """Splits tables of a schema by a spec."""

    schema: Schema
    spec: PartitionSpec

    def __post_init__(self) -> None:
        for part in self.spec.fields:
            if isinstance(part.transform, UnknownTransform):
                raise ConfigError(
                    f"partition field {part.name}: unknown transform {part.transform}", "upgrade Icefront, or change the spec"
                )

    @cached_property
    def _types(self) -> list[IcebergType]:
        return [f.field_type for f in self.spec.partition_type(self.schema).fields]

    def source_columns(self) -> set[str]:
        """Name the columns that decide about a row's partition."""
        names = {
            self.schema.find_column_name(f.source_id) for f in self.spec.fields if not isinstance(f.transform, VoidTransform)
        }
        return {name for name in names if name is not None}

    def split(self, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield each partition that has rows, with these, in their order."""
        if not self.spec.fields:
            yield WHOLE, rows
            return
        if not rows.num_rows:
            return
        columns = [self._values(field, rows) for field in self.spec.fields]
        codes, count = encode(columns)
        order, starts = groups(codes, count)
        whole = rows if count == 1 else rows.take(pa.array(order))
        firsts = pa.array(order[starts[:-1]])
        distinct = [column.take(firsts).to_pylist() for column in columns]
        for i, values in enumerate(zip(*distinct, strict=True)):
            yield self._partition(values), whole.slice(starts[i], starts[i + 1] - starts[i])

    def _values(self, field: PartitionField, rows: pa.Table) -> pa.Array:
        """Transform a column; dates and times become the integers that Iceberg has for them."""
        if isinstance(field.transform, VoidTransform):
            return pa.nulls(rows.num_rows, pa.int32())
        source = plain(self._source(field, rows))
        made = source
        if not isinstance(field.transform, IdentityTransform):
            if pa.types.is_large_binary(source.type):
                source = source.cast(pa.binary())  # the transforms do not know the large one
            made = plain(field.transform.pyarrow_transform(self.schema.find_type(field.source_id))(source))
        if pa.types.is_date32(made.type):
            return made.cast(pa.int32())
        if pa.types.is_temporal(made.type):
            return made.cast(pa.int64())
        return made

    def _source(self, field: PartitionField, rows: pa.Table) -> pa.ChunkedArray:
        name = self.schema.find_column_name(field.source_id)
        if name is None:
            raise Stopped(
                f"partition field {field.name}: its source column {field.source_id} is gone", "change the table's partition spec"
            )
        if name in rows.column_names:
            return rows[name]
        first, *rest = name.split(".")
        return pc.struct_field(rows[first], rest)

    def _partition(self, values: tuple[Any, ...]) -> Partition:
        json = tuple(
            (str(f.field_id), to_json(kind, v)) for f, kind, v in zip(self.spec.fields, self._types, values, strict=True)
        )
        readable = [uuid.UUID(bytes=v) if isinstance(k, UUIDType) and v else v for k, v in zip(self._types, values, strict=True)]
        return Partition(values, json, self.spec.partition_to_path(Record(*readable), self.schema))


def to_json(kind: IcebergType, value: Any) -> Any:
    """Return Iceberg's single-value JSON form; dates and times come as the integers that Iceberg stores."""
    if value is None:
        return None
    match kind:
        case DateType():
            return (_EPOCH.date() + dt.timedelta(days=value)).isoformat()
        case TimeType():
            return (_EPOCH + dt.timedelta(microseconds=value)).time().isoformat("microseconds")
        case TimestampType() | TimestampNanoType():
            return _stamp(value, nanos=isinstance(kind, TimestampNanoType))
        case TimestamptzType() | TimestamptzNanoType():
            return _stamp(value, nanos=isinstance(kind, TimestamptzNanoType)) + "+00:00"
        case DecimalType():
            return f"{value:f}"
        case BinaryType() | FixedType():
            return value.hex().upper()
        case UUIDType():
            return str(uuid.UUID(bytes=value))
        case FloatType() | DoubleType() if not np.isfinite(value):
            raise Stopped(f"{value} cannot be a partition value: JSON has no form for it", "partition by another column")
    return value


def _stamp(value: int, *, nanos: bool) -> str:
    per_second = 1_000_000_000 if nanos else 1_000_000
    seconds, rest = divmod(value, per_second)
    moment = (_EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=None)
    return f"{moment.isoformat('T', 'seconds')}.{rest:0{9 if nanos else 6}d}"
