"""Rows of files that only Iceberg's own reader reads exactly: ORC and Avro, or whose deletes are such files.

    file changes ─▶ scan tasks, before and after ─▶ planned by Iceberg ─▶ rows, each with the number of its step and side

The reader gets a table that is nowhere but in memory: the columns of a step's schema by their ids, and one more that no file has. By
that one every task is partitioned, so that Iceberg itself fills it in, as it does for files of migrated tables. Of a file whose deletes
changed both states are read whole; what is in both cancels out where rows meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IntegerType, NestedField, PrimitiveType
from pyspark.sql import DataFrame

from icefront.core.errors import Replaced
from icefront.iceberg.java import Gateway, JavaTable, call
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange
from icefront.kernels.casts import recast
from icefront.kernels.datafiles import CAME, LEFT, Layout
from icefront.spark.session import for_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOVED = 2_000_000_000
"""The id of the column that tells step and side: beyond those of columns, below those that Iceberg reserves."""
_FIRST_PARTITION_FIELD = 1000
_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True)
class Task:
    """A file as it was in one state: with the deletes that applied to it there."""

    ordinal: int
    side: int
    file: DataEntry
    deletes: tuple[DeleteEntry, ...]

    @property
    def moved(self) -> int:
        """Number the step and its side; `Staged` reads it back."""
        return 2 * self.ordinal + self.side


def scans(
    spark: SparkSession, table: str, layout: Layout, steps: Mapping[int, Sequence[FileChange]], schemas: Mapping[int, int]
) -> list[tuple[int, DataFrame]]:
    """Return the rows that only Iceberg reads, for each schema that steps have; of other files none. Nothing is read yet."""
    by_schema: dict[int, list[Task]] = {}
    for ordinal, found in steps.items():
        if tasks := [task for change in found if change.is_foreign for task in _tasks(ordinal, change)]:
            by_schema.setdefault(schemas[ordinal], []).extend(tasks)
    if not by_schema:
        return []
    loaded = Gateway.of(spark).load(table)
    if loaded is None:
        raise Replaced(f"table {table} is gone", "restore it")
    return [
        (i, _planned(for_jobs(spark), loaded, _Description(layout, layout.schema(i), tasks))) for i, tasks in by_schema.items()
    ]


def _tasks(ordinal: int, change: FileChange) -> Iterator[Task]:
    for side, deletes in ((LEFT, change.before), (CAME, change.after)):
        if deletes is not None:
            yield Task(ordinal, side, change.file, deletes)


def _planned(session: SparkSession, loaded: JavaTable, described: _Description) -> DataFrame:
    """Let Iceberg plan a scan of tasks, and keep only the plan: a frame may be looked at again, much later or never."""
    gateway, jvm = loaded.gateway, session._jvm  # noqa: SLF001
    assert jvm is not None
    iceberg, own = jvm.org.apache.iceberg, session._jsparkSession  # noqa: SLF001
    metadata = gateway.metadata_parser.fromJson(json.dumps(described.metadata()))
    table = iceberg.BaseTable(iceberg.StaticTableOperations(metadata, loaded.table.io()), loaded.name)
    parser, node, specs = iceberg.rest.TableScanResponseParser, gateway.mapper.readTree(described.tasks_json()), table.specs()
    tasks = call(lambda: parser.parseFileScanTasks(node, parser.parseDeleteFiles(node, specs), specs, True))
    manager, name = iceberg.spark.ScanTaskSetManager.get(), str(uuid4())
    nothing = jvm.scala.Option.empty()
    manager.stageTasks(table, name, tasks)
    try:
        staged = iceberg.spark.source.SparkRewriteTable(table, name)
        relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(staged, nothing, nothing)
        everything = call(lambda: jvm.org.apache.spark.sql.classic.Dataset.ofRows(own, relation))
        # Format 3 adds columns of its own to such a table.
        frame = DataFrame(everything, session).select(*described.columns)._jdf  # noqa: SLF001
        rows = call(lambda: frame.queryExecution().toRdd())
    finally:
        manager.removeTasks(table, name)
    return DataFrame(own.internalCreateDataFrame(rows, frame.schema(), False), session)


@dataclass(frozen=True)
class _Description:
    """Tasks and the table that they are of, as JSON: none of its files goes through py4j by itself."""

    layout: Layout
    schema: Schema
    tasks: Sequence[Task]

    def metadata(self) -> dict[str, Any]:
        """Describe a table of one schema, with a spec for each that the files have."""
        schema = self._scanned
        return {
            "format-version": max(2, self.layout.format_version),
            "table-uuid": str(uuid4()),
            "location": "memory",
            "last-sequence-number": 0,
            "last-updated-ms": 0,
            "last-column-id": _MOVED,
            "schemas": [json.loads(schema.model_dump_json())],
            "current-schema-id": schema.schema_id,
            "partition-specs": [{"spec-id": 0, "fields": []}, *(self._spec(number) for number in self._spec_ids)],
            "default-spec-id": 0,
            "last-partition-id": _FIRST_PARTITION_FIELD + _MOVED,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "next-row-id": 0,
            "properties": {_NAME_MAPPING: self.layout.name_mapping} if self.layout.name_mapping else {},
            "snapshots": [],
        }

    def tasks_json(self) -> str:
        deletes = {delete.key: delete for task in self.tasks for delete in task.deletes}
        places = {key: place for place, key in enumerate(deletes)}
        tasks = [
            {
                "data-file": self._data(task),
                "delete-file-references": [places[delete.key] for delete in task.deletes],
                "residual-filter": True,
            }
            for task in self.tasks
        ]
        return json.dumps({"delete-files": [_delete(delete) for delete in deletes.values()], "file-scan-tasks": tasks})

    @property
    def columns(self) -> list[str]:
        """Name what is to be read: the schema's columns, and last the one that tells step and side."""
        names = [field.name for field in self._scanned.fields]
        return [*names[: len(self.schema.fields)], names[-1]]

    @property
    def _scanned(self) -> Schema:
        """The columns, then those that only deletes name, then the one that tells step and side. Names are ours: ids count."""
        named = {i for task in self.tasks for delete in task.deletes for i in delete.equality_ids}
        lost = self.layout.columns(sorted(named - self.schema.field_ids)).fields
        fields = [*self.schema.fields, *lost, NestedField(_MOVED, "", IntegerType(), required=False)]
        return Schema(*(f.model_copy(update={"name": f"_{at}"}) for at, f in enumerate(fields)), schema_id=0)

    @property
    def _spec_ids(self) -> list[int]:
        return sorted({task.file.spec_id for task in self.tasks})

    def _known(self, spec_id: int) -> dict[int, int]:
        """Name the columns whose values may be only in the partition, and where; floats have no JSON, and are in the file."""
        places = self.layout.identities.get(spec_id, {})
        kinds = {i: self.schema.find_type(i) for i in places if i in self.schema.field_ids}
        return {i: places[i] for i, kind in kinds.items() if not isinstance(kind, FloatType | DoubleType)}

    def _spec(self, spec_id: int) -> dict[str, Any]:
        sources = [_MOVED, *self._known(spec_id)]
        fields = [
            {"name": f"by_{i}", "transform": "identity", "source-id": i, "field-id": _FIRST_PARTITION_FIELD + i} for i in sources
        ]
        return {"spec-id": 1 + spec_id, "fields": fields}

    def _data(self, task: Task) -> dict[str, Any]:
        file = task.file
        known = [(self.schema.find_type(i), file.partition[at]) for i, at in self._known(file.spec_id).items()]
        return {
            "spec-id": 1 + file.spec_id,
            "content": "data",
            "file-path": file.path,
            "file-format": file.format,
            "partition": [task.moved, *(_single(kind, value) for kind, value in known)],
            "file-size-in-bytes": file.size,
            "record-count": file.records,
        }


def _single(kind: Any, value: Any) -> Any:
    assert isinstance(kind, PrimitiveType)
    return None if value is None else to_json(kind, value)


def _delete(delete: DeleteEntry) -> dict[str, Any]:
    """Describe a delete. That it applies was found out before: where and since when it holds does not matter any more."""
    told: dict[str, Any] = {
        "spec-id": 0,
        "content": "equality-deletes" if delete.kind is DeleteKind.EQUALITY else "position-deletes",
        "file-path": delete.path,
        "file-format": delete.format,
        "partition": [],
        "file-size-in-bytes": (delete.offset or 0) + delete.length,
        "record-count": delete.records,
    }
    if delete.kind is DeleteKind.EQUALITY:
        told["equality-ids"] = list(delete.equality_ids)
    if delete.kind is DeleteKind.VECTOR:
        told |= {
            "referenced-data-file": delete.referenced,
            "content-offset": delete.offset,
            "content-size-in-bytes": delete.length,
        }
    return told


# ── in workers ─────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Staged:
    """Reads what a scan yields: rows of steps that have one schema."""

    layout: Layout
    schema_id: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.Table]]:
        """Yield rows with the ordinal of their step and their side."""
        schema = schema_to_pyarrow(self.layout.schema(self.schema_id), include_field_ids=False)
        for batch in batches:
            moved, rows = batch.column(batch.num_columns - 1), pa.table(batch).select(range(len(schema)))
            for number in pc.unique(moved).to_pylist():
                yield *divmod(number, 2), recast(rows.filter(pc.equal(moved, number)), schema)
