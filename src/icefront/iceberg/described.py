"""Files the way Iceberg's ContentFileParser reads them: JSON, of which none has to be opened to build a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.kernels.partitions import to_json

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table.metadata import TableMetadata

    from icefront.core.files import ClosedFile
    from icefront.iceberg.settling import NewDelete

Described = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteChange:
    """Deletes that come and deletes that go."""

    added: Sequence[Described] = ()
    removed: Sequence[Described] = ()


def exchange(metadata: TableMetadata, new: Iterable[NewDelete], old: Iterable[DeleteEntry]) -> DeleteChange:
    """Describe what comes in the place of what."""
    return DeleteChange([_new(metadata, delete) for delete in new], [_old(metadata, delete) for delete in old])


def closed(file: ClosedFile) -> Described:
    """Describe a closed file."""

    def pairs(values: Mapping[int, Any]) -> dict[str, list[Any]]:
        return {"keys": list(values), "values": list(values.values())}

    described: Described = {
        "spec-id": file.spec_id,
        "content": file.kind.value,
        "file-path": file.path,
        "file-format": "PARQUET",
        "partition": dict(file.partition),
        "file-size-in-bytes": file.size,
        "record-count": file.records,
    }
    optional: dict[str, Mapping[int, Any]] = {
        "column-sizes": file.column_sizes,
        "value-counts": file.value_counts,
        "null-value-counts": file.null_value_counts,
        "nan-value-counts": file.nan_value_counts,
        "lower-bounds": file.lower_bounds,
        "upper-bounds": file.upper_bounds,
    }
    described |= {name: pairs(values) for name, values in optional.items() if values}
    if file.split_offsets:
        described["split-offsets"] = list(file.split_offsets)
    if file.equality_ids:
        described["equality-ids"] = list(file.equality_ids)
    if file.sort_order_id is not None:
        described["sort-order-id"] = file.sort_order_id
    return described


def _new(metadata: TableMetadata, new: NewDelete) -> Described:
    """Describe dead rows of one file that were just written down."""
    file = new.of.file
    described: Described = {
        "spec-id": file.spec_id,
        "content": "POSITION_DELETES",
        "file-path": new.path,
        "file-format": "PUFFIN" if new.offset is not None else "PARQUET",
        "partition": _partition(metadata, file),
        "file-size-in-bytes": new.size,
        "record-count": new.count,
        "referenced-data-file": file.path,
    }
    if new.offset is not None:
        described |= {"content-offset": new.offset, "content-size-in-bytes": new.length}
    return described


def _old(metadata: TableMetadata, old: DeleteEntry) -> Described:
    """Describe a delete that the table has."""
    described: Described = {
        "spec-id": old.spec_id,
        "content": "EQUALITY_DELETES" if old.kind is DeleteKind.EQUALITY else "POSITION_DELETES",
        "file-path": old.path,
        "file-format": old.format.upper(),
        "partition": _partition(metadata, old),
        "file-size-in-bytes": old.length,
        "record-count": old.records,
    }
    if old.equality_ids:
        described["equality-ids"] = list(old.equality_ids)
    if old.kind is DeleteKind.VECTOR:
        described |= {
            "referenced-data-file": old.referenced,
            "content-offset": old.offset,
            "content-size-in-bytes": old.length,
        }
    return described


def _partition(metadata: TableMetadata, file: DataEntry | DeleteEntry) -> Mapping[str, Any]:
    """Write a partition as JSON, by field id."""
    spec = next(s for s in metadata.partition_specs if s.spec_id == file.spec_id)
    return {str(f.field_id): _value(metadata, f, value) for f, value in zip(spec.fields, file.partition, strict=True)}


def _value(metadata: TableMetadata, field: PartitionField, value: Any) -> Any:
    """Write a partition's value; its column may be in older schemas only."""
    if value is None:
        return None
    known = next(s for s in reversed(metadata.schemas) if field.source_id in s.field_ids)
    return to_json(field.transform.result_type(known.find_type(field.source_id)), value)
