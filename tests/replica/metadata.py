"""Table metadata made up from snapshots alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV2
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField

__all__ = ["TableMetadata", "made"]
SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), schema_id=0)


def made(snapshots: Sequence[Snapshot], *, current: int | None, last: int | None) -> TableMetadata:
    """Make a table with these snapshots; without a last sequence number it has format 1."""
    refs = {} if current is None else {"main": {"snapshot-id": current, "type": "branch"}}
    told: dict[str, Any] = {
        "location": "file:///nowhere",
        "table_uuid": UUID(int=1),
        "last_updated_ms": 1,
        "last_column_id": 1,
        "schemas": [SCHEMA],
        "current_schema_id": 0,
        "partition_specs": [UNPARTITIONED_PARTITION_SPEC],
        "default_spec_id": 0,
        "snapshots": list(snapshots),
        "current_snapshot_id": current,
        "refs": refs,
    }
    if last is None:
        return TableMetadataV1(**told | {"schema": SCHEMA, "partition_spec": []})
    return TableMetadataV2(**told | {"last_sequence_number": last})
