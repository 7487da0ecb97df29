"""Iceberg's own Java API in the driver, through py4j: tables, heads, fenced commits.

The reference implementation commits, with the catalogs people use. Files are described as JSON
(`ContentFileParser`): none is read or listed to build a manifest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started

from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError, Replaced, Stopped
from icefront.core.files import ClosedFile, FileKind
from icefront.core.marks import Mark
from icefront.core.protocol import Ancestor, Head, Landed, NotLanded, Refusal
from icefront.iceberg import summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JavaObject = Any


class LazyHead(Head):
    """A head that walks the ancestry only as far as it is asked: the mark is usually near.

    With a thousand snapshots a full walk through py4j would cost a second at every publish.
    """

    __slots__ = ("_metadata", "_walked")
    _metadata: JavaObject
    _walked: list[tuple[JavaObject, Ancestor]]

    def __init__(self, metadata: JavaObject, pipeline: str) -> None:
        text = metadata.properties().get(summary.mark_property(pipeline))
        object.__setattr__(self, "mark", Mark.from_json(text) if text else None)
        object.__setattr__(self, "_metadata", metadata)
        object.__setattr__(self, "_walked", [])

    @property
    def ancestors(self) -> Iterable[Ancestor]:  # type: ignore[override]
        for _, ancestor in self._walk():
            yield ancestor

    @property
    def whole(self) -> bool:
        last: JavaObject = None
        for snapshot, _ in self._walk():
            last = snapshot
        return last is None or last.parentId() is None

    @property
    def elsewhere(self) -> frozenset[UUID]:
        mine = {ancestor.snapshot for ancestor in self.ancestors}
        found = set()
        for snapshot in self._metadata.snapshots():
            text = snapshot.summary().get(summary.EPOCH_ID)
            if text and snapshot.snapshotId() not in mine:
                found.add(UUID(text))
        return frozenset(found)

    def _walk(self) -> Iterator[tuple[JavaObject, Ancestor]]:
        yield from self._walked
        if self._walked:
            parent = self._walked[-1][0].parentId()
            snapshot = self._metadata.snapshot(parent) if parent is not None else None
        else:
            snapshot = self._metadata.currentSnapshot()
        while snapshot is not None:
            step = (snapshot, read_ancestor(snapshot))
            self._walked.append(step)
            yield step
            parent = snapshot.parentId()
            snapshot = self._metadata.snapshot(parent) if parent is not None else None


def read_ancestor(snapshot: JavaObject) -> Ancestor:
    """Read what the protocol cares about, in as few py4j calls as a foreign snapshot needs."""
    return summary.ancestor(snapshot.snapshotId(), _SummaryView(snapshot.summary()))


class _SummaryView(dict[str, str]):
    """A Java map of strings, asked key by key: copying all of it costs a call per entry."""

    def __init__(self, entries: JavaObject) -> None:
        super().__init__()
        self._entries = entries

    def __contains__(self, key: object) -> bool:
        return self._entries.get(key) is not None

    def __getitem__(self, key: str) -> str:
        value: str | None = self._entries.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = self._entries.get(key)
        return default if value is None else value


class _Fence:
    """Called by Iceberg in every commit attempt, with the branch's ancestry.

    It raises to refuse. Returning false would become a ValidationException, after which Iceberg
    cleans up the attempt, even when that very attempt had landed and only its answer was lost.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.error: Exception | None = None

    def validate(self, _snapshots: JavaObject) -> bool:
        try:
            self._check()
        except Exception as error:
            self.error = error
            raise
        self.error = None
        return True

    def errorMessage(self) -> str:  # noqa: N802 — Java's name
        return "refused by the fence"

    class Java:
        implements = ("org.apache.iceberg.SnapshotAncestryValidator",)


def _is_noise(record: logging.LogRecord) -> bool:
    """Our fence refuses by raising through py4j, which reports that as an error of ours."""
    return not str(record.msg).startswith("There was an exception while executing the Python Proxy")


class Gateway:
    """The JVM classes in use, looked up once: a full dotted path costs a millisecond each time."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.session = spark._jsparkSession  # noqa: SLF001
        jvm = spark._jvm  # noqa: SLF001
        assert jvm is not None
        logging.getLogger("py4j.clientserver").addFilter(_is_noise)
        ensure_callback_server_started(spark.sparkContext._gateway)  # noqa: SLF001
        self.sessions = spark._get_j_spark_session_class(jvm)  # noqa: SLF001
        iceberg = jvm.org.apache.iceberg
        self.spark_util = iceberg.spark.Spark3Util
        self.file_parser = iceberg.ContentFileParser
        self.schema_parser = iceberg.SchemaParser
        self.spec_parser = iceberg.PartitionSpecParser
        self.order_parser = iceberg.SortOrderParser
        self.mapper = iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper()
        self.expressions = iceberg.expressions.Expressions
        self.identifier = iceberg.catalog.TableIdentifier
        self.namespace = iceberg.catalog.Namespace

    def catalog(self, name: str) -> JavaObject:
        # Spark looks catalogs up through the thread's own session, and a new thread has none.
        self.sessions.setActiveSession(self.session)
        return call(lambda: self.spark_util.loadIcebergCatalog(self.session, name))

    def load(self, name: str) -> JavaTable | None:
        """Load a table by its full name; None when it does not exist."""
        catalog, identifier = self.locate(name)
        try:
            table = catalog.loadTable(identifier)
            table.refresh()
        except Py4JJavaError as error:
            if java_class(error).endswith(("NoSuchTableException", "NoSuchNamespaceException", "NotFoundException")):
                return None
            raise translate(error) from error
        return JavaTable(self, name, table)

    def locate(self, name: str) -> tuple[JavaObject, JavaObject]:
        """Split `catalog.namespace.table` and find the catalog."""
        parts = name.split(".")
        if len(parts) < 3:
            raise ConfigError(f'table name "{name}" has {len(parts)} parts', "write catalog.namespace.table")
        return self.catalog(parts[0]), self.identifier.parse(".".join(parts[1:]))

    def create(
        self, name: str, schema_json: str, properties: Mapping[str, str], partition: Callable[[JavaObject], None] | None
    ) -> JavaTable:
        """Create a table whose first spec is unpartitioned, then give it its partitioning, in one step.

        Equality deletes under an unpartitioned spec are global; a table that never had such a spec
        could not hold them.
        """
        catalog, identifier = self.locate(name)
        self._create_namespace(".".join(f"`{part}`" for part in name.split(".")[:-1]))
        builder = catalog.buildTable(identifier, self.schema_parser.fromJson(schema_json)).withProperties(
            self.string_map(properties)
        )
        try:
            transaction = builder.createTransaction()
            if partition is not None:
                update = transaction.updateSpec()
                partition(update)
                update.commit()
            transaction.commitTransaction()
        except Py4JJavaError as error:
            # Two drivers may create it at once: whoever comes second takes what is there.
            if not java_class(error).endswith("AlreadyExistsException"):
                raise translate(error) from error
        table = self.load(name)
        if table is None:
            raise Replaced(f"table {name} vanished right after it was created", "look for a program that drops it")
        return table

    def _create_namespace(self, namespace: str) -> None:
        """Create by SQL: catalogs come wrapped in a cache, which knows no namespaces."""
        statement = f"CREATE NAMESPACE IF NOT EXISTS {namespace}"
        try:
            self.spark.sql(statement)
        except Py4JJavaError:
            # Another target or driver may have made it in the same moment: then it is there now.
            call(lambda: self.spark.sql(statement))

    def string_map(self, values: Mapping[str, str]) -> JavaObject:
        jvm = self.spark._jvm  # noqa: SLF001
        assert jvm is not None
        result = jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result


class JavaTable:
    """One Iceberg table through Java."""

    def __init__(self, gateway: Gateway, name: str, table: JavaObject) -> None:
        self.gateway = gateway
        self.name = name
        self.table = table
        self.uuid = table.uuid().toString()

    def refresh(self) -> None:
        """Read the table's current state; a table dropped or recreated meanwhile is `Replaced`."""
        try:
            self.table.refresh()
        except Py4JJavaError as error:
            if java_class(error).endswith("NoSuchTableException"):
                raise Replaced(f"table {self.name} is gone", "restore it, or start with a new table") from error
            if "UUID does not match" in str(error.java_exception.getMessage()):
                raise self._recreated("another") from error
            raise translate(error) from error
        self.metadata()

    def metadata(self) -> JavaObject:
        """Return the table's current metadata; another table under the same name is `Replaced`."""
        return self._mine(self.table.operations().current())

    def _mine(self, current: JavaObject) -> JavaObject:
        if current is None:
            raise Replaced(f"table {self.name} is gone", "restore it, or start with a new table")
        if (found := current.uuid()) != self.uuid:
            raise self._recreated(found)
        return current

    def _recreated(self, found: str) -> Replaced:
        return Replaced(
            f"table {self.name} was dropped and recreated: it had uuid {self.uuid}, now {found}",
            "restore it, or start with a new table",
        )

    def head(self, pipeline: str) -> LazyHead:
        return LazyHead(self.metadata(), pipeline)

    def schema_json(self) -> str:
        text: str = self.gateway.schema_parser.toJson(self.table.schema())
        return text

    def specs_json(self) -> dict[int, str]:
        specs = self.table.specs()
        return {int(i): self.gateway.spec_parser.toJson(specs.get(i)) for i in specs.keySet()}

    def properties(self) -> dict[str, str]:
        return dict(self.table.properties())

    def io_properties(self) -> dict[str, str]:
        """Return what the table's own FileIO was given: endpoints, and credentials that the catalog vends."""
        kept = ("s3.", "gcs.", "adls.", "hdfs.", "client.")
        return {k: v for k, v in dict(self.table.io().properties()).items() if k.startswith(kept)}

    def commits(self, commit: Callable[[], object]) -> bool:
        """Commit a change of metadata; False when somebody else's commit came between or the answer was lost.

        Then look again: such changes are planned anew from what the table is by then.
        """
        try:
            commit()
        except Py4JJavaError as error:
            if not java_class(error).endswith(("CommitFailedException", "CommitStateUnknownException")):
                raise translate(error) from error
            return False
        finally:
            self.refresh()
        return True

    def commit_fenced(
        self,
        pipeline: str,
        files: Sequence[ClosedFile],
        entries: Mapping[str, str],
        properties: Mapping[str, str],
        mark: Mark,
        check: Callable[[Head], None],
        before_commit: Callable[[], None] = lambda: None,
    ) -> Landed | NotLanded:
        """Commit files, summary and mark in one transaction, under a fence evaluated in each attempt."""
        transaction: JavaObject = None
        # The transaction's own view is exactly what is being committed onto; nobody else's refresh moves it.
        fence = _Fence(lambda: check(LazyHead(self._mine(transaction.table().operations().current()), pipeline)))
        try:
            transaction = self.table.newTransaction()
            update = self._snapshot_update(transaction, files)
            update.validateWith(fence)
            for key, value in entries.items():
                update.set(key, value)
            update.commit()
            remembered = transaction.updateProperties().set(summary.mark_property(pipeline), mark.to_json())
            for key, value in properties.items():
                remembered.set(key, value)
            remembered.commit()
            before_commit()
            transaction.commitTransaction()
        except Py4JError as error:
            if fence.error is not None and not isinstance(fence.error, Refusal):
                raise fence.error from error
            return NotLanded(_short(error) if fence.error is None else str(fence.error))
        try:
            return self._find(pipeline, mark)
        except Py4JError as error:
            return NotLanded(_short(error))

    def _find(self, pipeline: str, mark: Mark) -> Landed | NotLanded:
        """Find our snapshot: by now the table's newest may already be somebody else's."""
        ancestors = self.head(pipeline).ancestors
        found = next((a for a in ancestors if a.epoch_id == mark.epoch_id and a.writer == mark.writer), None)
        return Landed(found.snapshot) if found else NotLanded("the commit was confirmed, but the branch does not show it")

    def _snapshot_update(self, transaction: JavaObject, files: Sequence[ClosedFile]) -> JavaObject:
        """Choose the operation: an empty row delta would be an `overwrite`, so it is an append."""
        parsed = self._parse(files)
        if any(file.kind is not FileKind.DATA for file in files):
            update = transaction.newRowDelta()
            for file, node in parsed:
                if file.kind is FileKind.DATA:
                    update.addRows(node)
                else:
                    update.addDeletes(node)
            return update
        update = transaction.newAppend()
        for _, node in parsed:
            update.appendFile(node)
        return update

    def _parse(self, files: Sequence[ClosedFile]) -> list[tuple[ClosedFile, JavaObject]]:
        if not files:
            return []
        tree = self.gateway.mapper.readTree(json.dumps([content_file_json(f) for f in files]))
        specs = self.table.specs()
        parse = self.gateway.file_parser.fromJson
        return [(file, parse(tree.get(i), specs)) for i, file in enumerate(files)]


def content_file_json(file: ClosedFile) -> dict[str, Any]:
    """Describe a closed file the way Iceberg's ContentFileParser reads it."""

    def pairs(values: Mapping[int, Any]) -> dict[str, list[Any]]:
        return {"keys": list(values), "values": list(values.values())}

    described: dict[str, Any] = {
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


def call(action: Callable[[], Any]) -> Any:
    """Run a py4j call and say what a Java failure means."""
    try:
        return action()
    except Py4JJavaError as error:
        raise translate(error) from error


def java_class(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def translate(error: Py4JJavaError) -> IcefrontError:
    """Turn a Java failure outside a commit into ours; inside one, nothing is known from it."""
    name = java_class(error)
    message = _short(error)
    if name.endswith(("UncheckedIOException", "ServiceUnavailableException", "RESTException", "UncheckedSQLException")):
        return ConnectionFailed(f"the catalog did not answer: {message}", "check that it runs and can be reached, then run again")
    if name.endswith(("NotAuthorizedException", "ForbiddenException")):
        return ConnectionFailed(f"the catalog refused us: {message}", "check the catalog's credential")
    return Stopped(f"the catalog said: {message}", "nothing was changed; see the message")


def _short(error: Py4JError) -> str:
    if isinstance(error, Py4JJavaError):
        return f"{java_class(error).rsplit('.', 1)[-1]}: {error.java_exception.getMessage()}"[:500]
    return str(error)[:500]
