"""A table's partition fields, comparable with what a user declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.schema import Schema

from icefront.core.errors import ConfigError, Stopped


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One transform of one column: `day(created_at)`, `bucket(16, id)`, or the column itself (`identity`)."""

    transform: str
    column: str
    width: int | None = None

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({self.column})" if self.width is None else f"{self.transform}({self.width}, {self.column})"

    @classmethod
    def of(cls, field: IcebergPartitionField, schema: Schema) -> PartitionField:
        """Read a table's own partition field, e.g. `bucket[16]` of field id 1."""
        column = schema.find_column_name(field.source_id) or f"<dropped column {field.source_id}>"
        name, _, width = str(field.transform).partition("[")
        return cls(name, column, int(width.rstrip("]")) if width else None)

    def term(self, expressions: Any) -> Any:
        """Build Iceberg's Java term, given the `Expressions` class."""
        if self.transform == "identity":
            return expressions.ref(self.column)
        function = getattr(expressions, self.transform)
        return function(self.column) if self.width is None else function(self.column, self.width)

    def add_to(self, builder: Any) -> None:
        """Add itself to Iceberg's Java builder of a partition spec, by the name that an update of one would give it."""
        function = getattr(builder, self.transform)
        if self.width is None:
            function(self.column)
        else:
            function(
                self.column,
                self.width,
                f"{self.column}_{'trunc' if self.transform == 'truncate' else self.transform}_{self.width}",
            )


def check_scope(
    table: str, specs: int, fields: Sequence[PartitionField], wanted: Sequence[PartitionField] | None, keys: Sequence[str]
) -> None:
    """Refuse to scope deletes to partitions where a row could lie in another one than its delete does.

    `fields` are those that the table is partitioned by, or is to be; `wanted` those that were declared, if any were.
    """
    if specs > 1:
        raise Stopped(
            f"{table} has {specs} partition specs, and deletes are scoped to one partition",
            "old rows could reappear: set `deletes: global` in the sink",
        )
    if wanted is not None and tuple(fields) != tuple(wanted):
        now, then = (", ".join(map(str, each)) or "nothing" for each in (fields, wanted))
        raise ConfigError(
            f"{table} is partitioned by {now}, `partition_by` says {then}, and deletes are scoped to one partition",
            "leave the partitioning as it is; or set `deletes: global` in the sink",
        )
    if strangers := sorted({field.column for field in fields} - set(keys)):
        raise ConfigError(
            f"{table} is partitioned by {', '.join(strangers)}, which is no key, and deletes are scoped to one partition",
            "a row could move to another one: set `deletes: global` in the sink, or partition by keys only",
        )
