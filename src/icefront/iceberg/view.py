"""A table as it is now, from its metadata: what reading its files and planning its changes take."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from icefront.core.errors import ConfigError
from icefront.iceberg import bitmaps, history, kinship, lineage, statediff
from icefront.iceberg.history import Step
from icefront.iceberg.live import Manifests, Read
from icefront.iceberg.statediff import Facts, FileChange
from icefront.kernels.datafiles import Layout
from icefront.kernels.projection import wider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefront.iceberg.java import JavaObject, JavaTable


_VERY_MANY = 50_000


@dataclass(frozen=True)
class View:
    """A table's metadata, and its files' place."""

    table: str
    metadata: TableMetadata
    io_properties: Mapping[str, str]
    elsewhere: Read | None = field(default=None, compare=False)
    """Reads manifests where there are very many."""

    @classmethod
    def of(cls, spark: SparkSession, table: str) -> View:
        """Ask the catalog for a table."""
        from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import

        found = Gateway.of(spark).load(table)
        if found is None:
            raise ConfigError(f"table {table} does not exist", "write catalog.namespace.table, of a catalog of this session")
        return cls.at(found, found.metadata())

    @classmethod
    def at(cls, table: JavaTable, metadata: JavaObject, io_properties: Mapping[str, str] | None = None) -> View:
        """Take a table as some metadata of it says. `io_properties` win over those that the catalog gives."""
        from icefront.spark.manifests import read_in_spark  # noqa: PLC0415 — Spark is an extra, and slow to import

        parsed = _parsed(table.name, table.metadata_json(metadata))
        io = {**table.io_properties(), **(io_properties or {})}
        return cls(table.name, parsed, io, read_in_spark(table.gateway.spark, io, parsed.location))

    @property
    def io(self) -> FileIO:
        return load_file_io(dict(self.io_properties), self.metadata.location)

    @property
    def layout(self) -> Layout:
        metadata = self.metadata
        return Layout(
            schemas={schema.schema_id: schema.model_dump_json() for schema in metadata.schemas},
            format_version=metadata.format_version,
            identities={
                spec.spec_id: {f.source_id: i for i, f in enumerate(spec.fields) if isinstance(f.transform, IdentityTransform)}
                for spec in metadata.partition_specs
            },
            name_mapping=metadata.properties.get("schema.name-mapping.default"),
            replaced=_replaced(metadata.schemas),
        )

    @property
    def facts(self) -> Facts:
        return Facts(
            # A field that was dropped in format 1 stays, and says nothing.
            frozenset(
                s.spec_id for s in self.metadata.partition_specs if all(isinstance(f.transform, VoidTransform) for f in s.fields)
            ),
            _types(self.metadata.schemas),
        )

    def manifests(self, before: Manifests | None = None) -> Manifests:
        return Manifests(self.io, self.elsewhere, before)

    def with_schema(self, schema: Schema) -> View:
        """Return the table with another schema in the place of the one with its number."""
        schemas = [schema if each.schema_id == schema.schema_id else each for each in self.metadata.schemas]
        return replace(self, metadata=self.metadata.model_copy(update={"schemas": schemas}))

    def schema_id(self, snapshot: Snapshot | None) -> int:
        return history.schema_of(self.metadata, snapshot).schema_id

    def plan(self, steps: Sequence[Step], manifests: Manifests | None = None) -> dict[int, list[FileChange]]:
        """Find the files that tell the changes of each step; silent ones have none."""
        manifests, facts = manifests or self.manifests(), self.facts
        planned: dict[int, list[FileChange]] = {}
        with _uncollected():
            for step in steps:
                if not step.is_silent:
                    old, new = manifests.of(step.parent), manifests.of(step.snapshot)
                    planned[step.ordinal] = statediff.plan(old, new, manifests.entries, facts)
            found = bitmaps.looked_into(planned, self.io)
            if sum(map(len, found.values())) >= _VERY_MANY and not gc.get_freeze_count():
                # They count as old at once: the next look for garbage would be among them. With few it would miss what is garbage.
                gc.freeze()
                gc.unfreeze()
            return found

    def lie_apart(self, step: Step, found: Sequence[FileChange], manifests: Manifests) -> bool:
        """Say whether no row that left can be equal to one that came."""
        fields = history.schema_of(self.metadata, step.snapshot).fields
        known = self.facts.types
        columns = [f.field_id for f in fields if isinstance(f.field_type, PrimitiveType) and f.field_id in known]
        types = {i: known[i] for i in columns[: kinship.COLUMNS]}
        return statediff.lie_apart(found, lambda: manifests.of(step.snapshot).values(), manifests.entries, types)

    def key_ids(self, schema: Schema, keys: Sequence[str] | None) -> tuple[int, ...]:
        """Return the field ids of keys: columns, or members of structs with their names in full."""
        if keys is None:
            return tuple(sorted(schema.identifier_field_ids))
        if self.is_by_row_id(schema, keys):
            return ()
        named = {key: schema.find_field(key).field_id for key in keys if key in schema.column_names}
        for key in keys:
            if key not in named:
                raise ConfigError(
                    f"{self.table} has no column {key}", f"keys are among {', '.join(f.name for f in schema.fields)}"
                )
            if not history.path(schema.fields, named[key]):
                raise ConfigError(f"{key} of {self.table} is in a list or map", "keys are columns, or members of structs")
        return tuple(named[key] for key in keys)

    def is_by_row_id(self, schema: Schema, keys: Sequence[str] | None) -> bool:
        """Say whether row ids are meant to tell rows apart. A column of that name is a column."""
        if not keys or lineage.ROW_ID not in keys or lineage.ROW_ID in schema.column_names:
            return False
        if len(keys) > 1:
            raise ConfigError(f"{lineage.ROW_ID} is not the only key", "it tells rows apart by itself: leave the others out")
        if self.metadata.format_version < 3:
            raise ConfigError(
                f"{self.table} has format {self.metadata.format_version}, and rows have ids since format 3",
                "choose other keys, or upgrade the table",
            )
        return True


def _types(schemas: Sequence[Schema]) -> dict[int, PrimitiveType]:
    """Return the types of columns by field id, the widest that each had.

    One that was replaced by another of its name has none: bounds of old files mean other values than those of new ones.
    """
    found: dict[int, PrimitiveType | None] = {}
    for schema in schemas:
        for i in schema.field_ids:
            kind = schema.find_type(i)
            known = found.get(i, kind)
            found[i] = wider(known, kind) if isinstance(kind, PrimitiveType) and isinstance(known, PrimitiveType) else None
    return {i: kind for i, kind in found.items() if kind is not None}


def _replaced(schemas: Sequence[Schema]) -> frozenset[int]:
    """Return the columns that had types of which neither is wider than the other."""
    kinds: dict[int, list[IcebergType]] = {}
    for schema in schemas:
        for i in schema.field_ids:
            kinds.setdefault(i, []).append(schema.find_type(i))
    return frozenset(i for i, found in kinds.items() if any(not _akin(found[0], other) for other in found[1:]))


def _akin(one: IcebergType, other: IcebergType) -> bool:
    if isinstance(one, PrimitiveType) and isinstance(other, PrimitiveType):
        return wider(one, other) is not None
    return type(one) is type(other)


def _parsed(table: str, text: str) -> TableMetadata:
    """Read metadata; a column of a type that PyIceberg does not know is named."""
    try:
        return TableMetadataUtil.parse_raw(text)
    except ValidationError:
        for column in (column for schema in json.loads(text)["schemas"] for column in schema["fields"]):
            if not _is_known(column):
                raise ConfigError(
                    f"column {column['name']} of {table} has type {json.dumps(column['type'])}, which is not supported",
                    "drop the column, and expire the snapshots and schemas that have it",
                ) from None
        raise


def _is_known(column: Mapping[str, Any]) -> bool:
    try:
        NestedField.model_validate(column)
    except (ValidationError, ValueError):
        return False
    return True


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let nobody look for garbage: among hundred thousands of entries, all of them kept, that is a third of planning."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
