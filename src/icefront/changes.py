"""`changes`: the row changes between snapshots of any Iceberg table, whatever wrote it.

Iceberg's own changelog scan refuses snapshots with delete files. This one compares states: what is live before and after a snapshot,
file by file, planned from metadata alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from icefront.core.errors import ConfigError, Stopped
from icefront.iceberg import history, statediff
from icefront.iceberg.history import Name, Step
from icefront.iceberg.live import DeleteKind, Manifests
from icefront.iceberg.statediff import Facts, FileChange
from icefront.kernels.datafiles import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes(
    spark: SparkSession,
    table: str,
    from_snapshot: Name | None = None,
    to_snapshot: Name | None = None,
    *,
    keys: Sequence[str] | None = None,
    net: bool = False,
) -> DataFrame:
    """Return what changed in `table` after `from_snapshot` up to and with `to_snapshot`.

    A snapshot is named by its id, a time, a tag or a branch. Without `from_snapshot` the changes begin with the oldest snapshot that
    is left; without `to_snapshot` they end with the newest. Each snapshot's changes come by themselves, or with `net` only what
    remains of all of them.

    The columns are those of `create_changelog_view`: the row's (as the last snapshot has them), `_change_type`, `_change_ordinal`,
    `_commit_snapshot_id`, `_commit_timestamp`. An update is an UPDATE_BEFORE and an UPDATE_AFTER if `keys` tell rows apart; they
    default to the table's identifier fields. Pass `keys=[]` for none.
    """
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 — Spark is an extra, and slow to import

    from icefront.iceberg.java import Gateway  # noqa: PLC0415
    from icefront.spark.changes import OUTPUT, Moment, Plan, read_changes  # noqa: PLC0415

    view = View.of(spark, table)
    begin = history.find(table, view.metadata, from_snapshot) if from_snapshot is not None else None
    end = history.find(table, view.metadata, to_snapshot)
    last = history.schema_of(view.metadata, end)
    steps = history.steps(view.metadata, begin, end, net=net)
    output = Gateway(spark).spark_schema(last)
    for name in output.names:
        if name in {field.name for field in OUTPUT}:
            raise ConfigError(f"table {table} has a column {name} of its own", "rename it: the changes need that name")
    plan = Plan(
        layout=view.layout,
        io_properties=view.io_properties,
        location=view.metadata.location,
        moments={s.ordinal: Moment(s.snapshot.snapshot_id, s.snapshot.timestamp_ms, view.schema_id(s)) for s in steps},
        keys=view.key_columns(last, keys),
        schema_id=last.schema_id,
        # The past may have had no value where the table has one by now.
        output=StructType([*(StructField(f.name, f.dataType) for f in output.fields), *OUTPUT]),
    )
    return read_changes(spark, plan, view.plan(steps))


@dataclass(frozen=True)
class View:
    """A table's metadata, and its files' place."""

    table: str
    metadata: TableMetadata
    io_properties: Mapping[str, str]

    @classmethod
    def of(cls, spark: SparkSession, table: str) -> View:
        """Ask the catalog for a table."""
        from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import

        found = Gateway(spark).load(table)
        if found is None:
            raise ConfigError(f"table {table} does not exist", "write catalog.namespace.table, of a catalog of this session")
        return cls(table, TableMetadataUtil.parse_raw(found.metadata_json()), found.io_properties())

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
        )

    @property
    def facts(self) -> Facts:
        fields = {i: schema.find_type(i) for schema in self.metadata.schemas for i in schema.field_ids}
        return Facts(
            frozenset(spec.spec_id for spec in self.metadata.partition_specs if spec.is_unpartitioned()),
            {i: kind for i, kind in fields.items() if isinstance(kind, PrimitiveType)},
        )

    def schema_id(self, step: Step) -> int:
        return history.schema_of(self.metadata, step.snapshot).schema_id

    def plan(self, steps: Sequence[Step]) -> dict[int, list[FileChange]]:
        """Find the files that tell the changes of each step; silent ones have none."""
        manifests, facts = Manifests(self.io), self.facts
        planned: dict[int, list[FileChange]] = {}
        for step in steps:
            if not step.is_silent:
                old, new = manifests.of(step.parent), manifests.of(step.snapshot)
                planned[step.ordinal] = statediff.plan(old, new, manifests.entries, facts)
        for change in (change for found in planned.values() for change in found):
            self._check_formats(change)
        return planned

    def _check_formats(self, change: FileChange) -> None:
        """Refuse files that workers could not read, before any is started."""
        deletes = [d for d in (*(change.before or ()), *(change.after or ())) if d.kind is not DeleteKind.VECTOR]
        formats = {change.file.path: change.file.format} | {d.path: d.format for d in deletes}
        for path, written in formats.items():
            if written != "parquet":
                raise Stopped(
                    f"{path} of {self.table} has the format {written}, and only Parquet can be read",
                    "rewrite the table's files as Parquet, or begin after a snapshot that did",
                )

    def key_columns(self, schema: Schema, keys: Sequence[str] | None) -> tuple[str, ...]:
        if keys is None:
            return tuple(sorted(schema.identifier_field_names()))
        missing = [key for key in keys if key not in schema.column_names]
        if missing:
            raise ConfigError(
                f"{self.table} has no column {missing[0]}", f"keys are among {', '.join(f.name for f in schema.fields)}"
            )
        return tuple(keys)
