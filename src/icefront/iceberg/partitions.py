"""A table's partition fields, comparable with what a user declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.schema import Schema


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
        """Add itself to Iceberg's Java builder of a partition spec."""
        function = getattr(builder, self.transform)
        function(self.column) if self.width is None else function(self.column, self.width)
