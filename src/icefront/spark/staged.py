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
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, PrimitiveType, StructType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as everybody calls it

from icefront.core.errors import Replaced
from icefront.iceberg.java import Gateway, JavaTable, call
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange
from icefront.kernels.casts import recast
from icefront.kernels.datafiles import CAME, LEFT, Layout
from icefront.kernels.projection import absent, renumbered
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
    spark: SparkSession,
    table: str,
    layout: Layout,
    steps: Mapping[int, Sequence[FileChange]],
    schemas: Mapping[int, tuple[int, int]],
) -> list[tuple[int, DataFrame]]:
    """Return the rows that only Iceberg reads, for each schema that steps have; of other files none. Nothing is read yet.

    `schemas` are by step that of the state before it, and that in which its rows are compared.
    """
    found: dict[tuple[int, int], list[Task]] = {}
    for ordinal, changes in steps.items():
        before, after = schemas[ordinal]
        left = before if _absent(layout, before, after) else after
        for task in (task for change in changes if change.is_foreign for task in _tasks(ordinal, change)):
            found.setdefault((left if task.side == LEFT else after, after), []).append(task)
    if not found:
        return []
    loaded = Gateway.of(spark).load(table)
    if loaded is None:
        raise Replaced(f"table {table} is gone", "restore it")
    return [
        (after, _planned(for_jobs(spark), loaded, _Description(layout, layout.schema(written), layout.schema(after), tasks)))
        for (written, after), tasks in found.items()
    ]


def _absent(layout: Layout, written: int, wanted: int) -> frozenset[int]:
    """Name the columns of a schema that files of another one do not have, although they have its id: `CREATE OR REPLACE` keeps that."""
    if written == wanted or not layout.replaced:
        return frozenset()
    return absent(layout.schema(written), layout.schema(wanted), layout.replaced)


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
    """Tasks and the table that they are of, as JSON: none of its files goes through py4j by itself.

    `written` is the schema of the state that the files were part of, `schema` the one that they are read in.
    """

    layout: Layout
    written: Schema
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
            "partition-specs": [
                {"spec-id": 0, "fields": []},
                *(self._spec(number, columns) for (_, columns), number in self._specs.items()),
            ],
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
    def columns(self) -> list[Column]:
        """Return what is to be read: the schema's columns, and last the one that tells step and side."""
        names = [field.name for field in self._scanned.fields]
        added = {names[at]: paths for at, paths in enumerate(self._added) if paths}
        read = [*names[: len(self.schema.fields)], names[-1]]
        return [F.col(name).dropFields(*added[name]) if name in added else F.col(name) for name in read]

    @cached_property
    def _lost(self) -> Mapping[int, NestedField]:
        """What only deletes name, by field id: columns, and structs of members, that are not there any more."""
        named = {i for task in self.tasks for delete in task.deletes for i in delete.equality_ids}
        known = self.schema.field_ids - self._absent
        return {f.field_id: f for f in self.layout.columns(sorted(named - known), [self.written]).fields}

    @cached_property
    def _absent(self) -> frozenset[int]:
        return absent(self.written, self.schema, self.layout.replaced)

    @cached_property
    def _columns(self) -> list[NestedField]:
        """The schema's columns. What the files do not have gets ids that they do not have either."""
        fresh = {i: _MOVED + 1 + at for at, i in enumerate(sorted(self._absent))}
        return [renumbered(field, fresh) for field in self.schema.fields]

    @property
    def _added(self) -> list[list[str]]:
        """Where each of the columns gets members that only deletes name."""
        return [list(_missing(f, self._lost[f.field_id], ())) if f.field_id in self._lost else [] for f in self._columns]

    @cached_property
    def _scanned(self) -> Schema:
        """The columns, then those that only deletes name, then the one that tells step and side. Names are ours: ids count."""
        columns = [_united(f, self._lost[f.field_id]) if f.field_id in self._lost else f for f in self._columns]
        others = [field for i, field in self._lost.items() if i not in {f.field_id for f in columns}]
        fields = [*columns, *others, NestedField(_MOVED, "", IntegerType(), required=False)]
        return Schema(*(f.model_copy(update={"name": f"_{at}"}) for at, f in enumerate(fields)), schema_id=0)

    @cached_property
    def _specs(self) -> Mapping[tuple[int, tuple[int, ...]], int]:
        """Number what partitions tell: by the files' spec, and the columns whose values they have."""
        return {told: 1 + at for at, told in enumerate(sorted({self._told(task.file) for task in self.tasks}))}

    def _told(self, file: DataEntry) -> tuple[int, tuple[int, ...]]:
        """Name the columns whose values may be only in a file's partition. What is no number has no JSON: it is taken from the file."""
        places = self.layout.identities.get(file.spec_id, {})
        values = {i: file.partition[at] for i, at in places.items() if i in self.schema.field_ids and i not in self._absent}
        return file.spec_id, tuple(i for i, value in values.items() if not (isinstance(value, float) and not isfinite(value)))

    def _spec(self, number: int, columns: Sequence[int]) -> dict[str, Any]:
        fields = [
            {"name": f"by_{i}", "transform": "identity", "source-id": i, "field-id": _FIRST_PARTITION_FIELD + i}
            for i in (_MOVED, *columns)
        ]
        return {"spec-id": number, "fields": fields}

    def _data(self, task: Task) -> dict[str, Any]:
        file = task.file
        spec_id, columns = told = self._told(file)
        places = self.layout.identities.get(spec_id, {})
        known = [(self.schema.find_type(i), file.partition[places[i]]) for i in columns]
        return {
            "spec-id": self._specs[told],
            "content": "data",
            "file-path": file.path,
            "file-format": file.format,
            "partition": [task.moved, *(_single(kind, value) for kind, value in known)],
            "file-size-in-bytes": file.size,
            "record-count": file.records,
        }


def _united(field: NestedField, lost: NestedField) -> NestedField:
    """Give a struct the members of another form of it that it has not."""
    if not isinstance(field.field_type, StructType) or not isinstance(lost.field_type, StructType):
        return field
    others = {member.field_id: member for member in lost.field_type.fields}
    members = [_united(m, others.pop(m.field_id)) if m.field_id in others else m for m in field.field_type.fields]
    members += [member.model_copy(update={"name": _own(member)}) for member in others.values()]
    return field.model_copy(update={"field_type": StructType(*members)})


def _missing(field: NestedField, lost: NestedField, path: tuple[str, ...]) -> Iterator[str]:
    """Name the members that `_united` adds, with what leads to them."""
    if isinstance(field.field_type, StructType) and isinstance(lost.field_type, StructType):
        members = {member.field_id: member for member in field.field_type.fields}
        for other in lost.field_type.fields:
            if (member := members.get(other.field_id)) is not None:
                yield from _missing(member, other, (*path, f"`{member.name.replace('`', '``')}`"))
            else:
                yield ".".join((*path, f"`{_own(other)}`"))


def _own(member: NestedField) -> str:
    return f"__lost_{member.field_id}"


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
