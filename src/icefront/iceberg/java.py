"""Iceberg's own Java API in the driver, through py4j: tables, heads, fenced commits.

The reference implementation commits, with the catalogs people use. Files are described as JSON
(`ContentFileParser`): none is read or listed to build a manifest.
"""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.types import StructType

from icefront.core.errors import (
    ClockBehind,
    CommitUncertain,
    ConfigError,
    ConnectionFailed,
    IcefrontError,
    Replaced,
    Stopped,
)
from icefront.core.files import ClosedFile, FileKind
from icefront.core.marks import Mark
from icefront.core.protocol import Ancestor, Head, Landed, NotLanded, Refusal
from icefront.iceberg import described, names, summary
from icefront.iceberg.described import DeleteChange, Described
from icefront.iceberg.partitions import PartitionField

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

JavaObject = Any
CATALOG_RACES = 2
"""Drivers that start at once may both make the tables of a new JDBC catalog: who comes second finds them the next time."""
# PySpark turns some Java exceptions into Python ones of its own.
JAVA_ERRORS = (Py4JError, CapturedException)
_TURN = 0.25
"""Seconds that a commit waits for another one of the same process."""
_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By the table's uuid."""
_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
"""Seconds between a conflict and the next attempt: two writers in step must not stay in step, and a busy catalog is spared."""

_METADATA_TABLE = "org.apache.iceberg.BaseMetadataTable"
"""What a catalog returns for `catalog.namespace.table.snapshots` and the like."""
_FOREVER = 2**63 - 1
_CLOCKS_DIFFER = 60_000
"""By so many milliseconds Iceberg lets a commit be older than the one before it."""


class LazyHead(Head):
    """A head that walks the ancestry only as far as it is asked: the mark is usually near.

    With a thousand snapshots a full walk through py4j would cost a second at every publish.
    """

    __slots__ = ("_gateway", "_metadata", "_walked")
    _gateway: Gateway
    _metadata: JavaObject
    _walked: list[tuple[JavaObject, Ancestor]]

    def __init__(self, gateway: Gateway, metadata: JavaObject, pipeline: str) -> None:
        text = metadata.properties().get(summary.mark_property(pipeline))
        object.__setattr__(self, "mark", Mark.from_json(text) if text else None)
        object.__setattr__(self, "_gateway", gateway)
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
        snapshots = self._metadata.snapshots()
        for snapshot in (snapshots.get(i) for i in range(snapshots.size())):
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
            step = (snapshot, summary.ancestor(snapshot.snapshotId(), self._gateway.read(snapshot.summary())))
            self._walked.append(step)
            yield step
            parent = snapshot.parentId()
            snapshot = self._metadata.snapshot(parent) if parent is not None else None


@dataclass(frozen=True, slots=True)
class Unanswered(NotLanded):
    """The catalog was not reached, was away or refused us: what to do about that is known."""

    next_step: str


def _unconfirmed(error: Exception) -> NotLanded:
    failed = translate(error)
    return Unanswered(failed.fact, failed.next_step) if isinstance(failed, ConnectionFailed) else NotLanded(said(error))


@dataclass(frozen=True, slots=True)
class Upkept:
    """What became of a commit of upkeep: its snapshot, or None where another commit touched the same files."""

    snapshot: int | None
    summary: Mapping[str, str] = field(default_factory=dict)
    """Of that snapshot."""
    sent: bool = True
    """Whether the catalog was asked at all. What was, may land late: nothing of it may be deleted."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be committed in one step: files, the snapshot's summary, properties of the table.

    `also` is given the transaction first, and may change schema or partitioning in it. `deletes` is given the very metadata that is
    committed onto, anew in every attempt, and says which deletes come and go with the files. That may be dear: only an owner is asked.
    """

    files: Sequence[ClosedFile]
    entries: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    also: Callable[[JavaObject], None] = lambda _: None
    deletes: Callable[[JavaObject], DeleteChange] | None = None


class _Fence:
    """Called by Iceberg when a change is put together, once in every attempt: checks what it is to be committed onto.

    It raises to refuse. Returning false would become a ValidationException, after which Iceberg
    cleans up the attempt, even when that very attempt had landed and only its answer was lost.
    """

    def __init__(self, check: Callable[[JavaObject], object]) -> None:
        self._check = check
        self.transaction: JavaObject = None
        self.error: Exception | None = None

    def check(self) -> None:
        """Raise unless the change may be made of what its transaction begins with."""
        # The transaction's own view is exactly what is being committed onto; nobody else's refresh moves it.
        self._check(self.transaction.table().operations().current())

    def validate(self, _snapshots: JavaObject) -> bool:
        try:
            self.check()
        except Exception as error:
            self.error = error
            raise
        self.error = None
        return True

    def judge(self, error: Exception) -> NotLanded:
        """Say why an attempt failed; what stops the pipeline is raised as what it was before it went through Java."""
        match self.error:
            case None:
                return _unconfirmed(error)
            case Refusal():
                return NotLanded(str(self.error))
            case Py4JError() | CapturedException():
                return _unconfirmed(self.error)
            case _:
                raise self.error from error

    def forget(self) -> None:
        """Let go of Java's objects: a transaction and its fence hold each other across the two languages, which no collector sees."""
        self.transaction = None
        self.error = None

    def errorMessage(self) -> str:  # noqa: N802 — Java's name
        return "refused by the fence"

    class Java:
        implements = ("org.apache.iceberg.SnapshotAncestryValidator",)


def _is_noise(record: logging.LogRecord) -> bool:
    """Our fence refuses by raising through py4j, which reports that as an error of ours."""
    return not str(record.msg).startswith("There was an exception while executing the Python Proxy")


class Gateway:
    """The JVM classes in use, looked up once: a full dotted path costs a millisecond each time."""

    @classmethod
    def of(cls, spark: SparkSession) -> Gateway:
        """Return that of a session."""
        known: Gateway | None = getattr(spark, "_icefront_gateway", None)
        if known is None:
            known = spark._icefront_gateway = cls(spark)  # noqa: SLF001 — as long as the session lives
        return known

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
        self.metadata_parser = iceberg.TableMetadataParser
        self._table_metadata = iceberg.TableMetadata
        self._snapshot_ref = iceberg.SnapshotRef
        self._snapshot_util = iceberg.util.SnapshotUtil
        self.schema_util = iceberg.spark.SparkSchemaUtil
        self.spec_parser = iceberg.PartitionSpecParser
        self.spec_class = iceberg.PartitionSpec
        self.order_parser = iceberg.SortOrderParser
        self._list_class = jvm.java.lang.Class.forName("java.util.ArrayList")
        self.mapper = iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper()
        self.expressions = iceberg.expressions.Expressions
        self.identifier = iceberg.catalog.TableIdentifier
        self.namespace = iceberg.catalog.Namespace
        self.at_once = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        """Runs what it is given in the same thread. Of its thread pools Iceberg asks every 10 ms whether they are done: half of a commit."""
        self.clock = jvm.java.lang.System
        self._types = jvm.py4j.reflection.TypeUtil

    def with_snapshot(self, metadata: JavaObject, snapshot: JavaObject) -> JavaObject:
        """Return a table's metadata with one more snapshot, which is the current one."""
        return self._table_metadata.buildFrom(metadata).setBranchSnapshot(snapshot, "main").build()

    def with_tag(self, metadata: JavaObject, tag: str, snapshot: int) -> JavaObject:
        """Return a table's metadata with a tag on a snapshot that stays as long as the tag."""
        ref = self._snapshot_ref.tagBuilder(snapshot).maxRefAgeMs(_FOREVER).build()
        return self._table_metadata.buildFrom(metadata).setRef(tag, ref).build()

    def is_past(self, table: JavaObject, snapshot: int, other: int) -> bool:
        """Say whether a snapshot is one of main's, as far as its history is known, and came after another one."""
        if table.currentSnapshot() is None or (older := table.snapshot(other)) is None:
            return False
        if not self._snapshot_util.isAncestorOf(table, snapshot):
            return False
        if self._snapshot_util.isAncestorOf(table, snapshot, other):
            return True
        # What lay between the two may have expired. Format 1 does not number its snapshots.
        return int(table.snapshot(snapshot).sequenceNumber()) > int(older.sequenceNumber())

    def catalog(self, name: str) -> JavaObject:
        # Spark looks catalogs up through the thread's own session, and a new thread has none.
        self.sessions.setActiveSession(self.session)
        try:
            for _ in range(CATALOG_RACES):
                with suppress(ConnectionFailed):
                    return self._open(name)
            return self._open(name)
        except Stopped as error:
            what = error.fact.removeprefix("the catalog said: ")
            raise ConfigError(f"catalog {name} cannot be opened: {what}", f"check catalogs.{name} in icefront.yaml") from error

    def _open(self, name: str) -> JavaObject:
        return call(lambda: self.spark_util.loadIcebergCatalog(self.session, name))

    def load(self, name: str) -> JavaTable | None:
        """Load a table by its full name; None when it does not exist."""
        catalog, identifier = self.locate(name)
        try:
            table = catalog.loadTable(identifier)
            table.refresh()
        except JAVA_ERRORS as error:
            if java_class(error).endswith(("NoSuchTableException", "NoSuchNamespaceException")):
                return None
            raise translate(error) from error
        if self._types.isInstanceOf(_METADATA_TABLE, table):
            raise ConfigError(f"{name} is a metadata table", f"name the table itself: {name.rpartition('.')[0]}")
        return JavaTable(self, name, table)

    def locate(self, name: str) -> tuple[JavaObject, JavaObject]:
        """Split `catalog.namespace.table` and find the catalog."""
        catalog, *rest = names.parts(name)
        if len(rest) < 2:
            raise ConfigError(f'table name "{name}" has {1 + len(rest)} parts', "write catalog.namespace.table")
        return self.catalog(catalog), self.identifier.parse(".".join(rest))

    def create(
        self,
        name: str,
        schema_json: str,
        properties: Mapping[str, str],
        partition: Callable[[JavaObject], None] | None,
        first: Sequence[PartitionField] = (),
    ) -> JavaTable:
        """Create a table whose first spec has the fields `first`, then give it its partitioning, in one step.

        Equality deletes under an unpartitioned spec are global; a table that never had such a spec could not hold them. Those that
        are scoped to partitions want the opposite: a table that never has a second spec.

        It may be tried again after ConnectionFailed and CommitUncertain: a table that is there by then is taken as it is.
        """
        catalog, identifier = self.locate(name)
        self._create_namespace(names.quoted(name).rpartition(".")[0])
        schema = self.schema_parser.fromJson(schema_json)
        spec = call(lambda: self._spec(schema, first))
        builder = catalog.buildTable(identifier, schema).withPartitionSpec(spec).withProperties(self.string_map(properties))
        failed: IcefrontError | None = None
        try:
            transaction = builder.createTransaction()
            if partition is not None:
                update = transaction.updateSpec()
                partition(update)
                update.commit()
            # It cleans up by itself, see `_swap`; but a table without a snapshot needs no file that it could take away.
            transaction.commitTransaction()
        except JAVA_ERRORS as error:
            # Look all the same: another driver may have made it meanwhile, or we did and the answer was lost.
            failed = _not_made(name, error)
        table = self.load(name)
        if table is None:
            raise failed or Replaced(f"table {name} vanished right after it was created", "look for a program that drops it")
        return table

    def _spec(self, schema: JavaObject, fields: Sequence[PartitionField]) -> JavaObject:
        builder = self.spec_class.builderFor(schema)
        for partition_field in fields:
            partition_field.add_to(builder)
        return builder.build()

    def _create_namespace(self, namespace: str) -> None:
        """Create by SQL: catalogs come wrapped in a cache, which knows no namespaces."""
        statement = f"CREATE NAMESPACE IF NOT EXISTS {namespace}"
        try:
            self.spark.sql(statement)
        except JAVA_ERRORS:
            # Another target or driver may have made it in the same moment: then it is there now.
            call(lambda: self.spark.sql(statement))

    def read(self, value: JavaObject) -> Any:
        """Copy a Java collection of plain values in one call.

        Walking it costs a call per entry, and its end much more: there PySpark turns a Java exception into a Python one.
        """
        return json.loads(self.mapper.writeValueAsString(value))

    def spark_schema(self, schema: Schema) -> StructType:
        """Return a schema the way Spark reads it."""
        read = call(lambda: self.schema_util.convert(self.schema_parser.fromJson(schema.model_dump_json())))
        return StructType.fromJson(json.loads(read.json()))

    def read_list(self, values: Iterable[str]) -> JavaObject:
        """Copy texts to Java in one call."""
        return self.mapper.readValue(json.dumps(sorted(values)), self._list_class)

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
        self.trouble: ConnectionFailed | None = None

    def refresh(self) -> None:
        """Read the table's current state; a table dropped or recreated meanwhile is `Replaced`."""
        try:
            self.table.refresh()
        except JAVA_ERRORS as error:
            if java_class(error).endswith("NoSuchTableException"):
                raise Replaced(f"table {self.name} is gone", "restore it, or start with a new table") from error
            if "UUID does not match" in said(error):
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
        return LazyHead(self.gateway, self.metadata(), pipeline)

    def place(self) -> str:
        """Return where the table's current metadata is: every commit, of rows or not, moves it."""
        place: str = self.metadata().metadataFileLocation()
        return place

    def metadata_json(self, metadata: JavaObject) -> str:
        """Return metadata of the table the way its metadata file has it."""
        text: str = self.gateway.metadata_parser.toJson(metadata)
        return text

    def schema_json(self) -> str:
        text: str = self.gateway.schema_parser.toJson(self.table.schema())
        return text

    def specs_json(self) -> dict[int, str]:
        specs = self.table.specs()
        return {i: self.gateway.spec_parser.toJson(specs.get(i)) for i in self.gateway.read(specs.keySet())}

    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self.gateway.read(self.table.properties())
        return properties

    def io_properties(self) -> dict[str, str]:
        """Return what the table's own FileIO was given: endpoints, and credentials that the catalog vends."""
        kept = ("s3.", "gcs.", "adls.", "hdfs.", "client.")
        return {k: v for k, v in self.gateway.read(self.table.io().properties()).items() if k.startswith(kept)}

    def commits(self, commit: Callable[[], object]) -> bool:
        """Commit a change of metadata; False when somebody else's commit came between or the answer was lost.

        Then look again: such changes are planned anew from what the table is by then.
        """
        self.trouble = None
        try:
            commit()
        except JAVA_ERRORS as error:
            if java_class(error).endswith("CommitFailedException"):
                return False
            self._check_clock(error)
            if not isinstance(failed := translate(error), ConnectionFailed):
                raise failed from error
            log.warning("the catalog did not confirm a change; looking", table=self.name, error=failed.fact)
            self.trouble = failed
            return False
        return True

    def set_tag(self, base: JavaObject, tag: str, snapshot: int) -> bool:
        """Put a tag on a snapshot of what the table is by some metadata; False when it is another one by now."""
        return self.commits(lambda: self.table.operations().commit(base, self.gateway.with_tag(base, tag, snapshot)))

    def commit_fenced(
        self,
        pipeline: str,
        change: Change,
        mark: Mark,
        check: Callable[[Head], object],
        *,
        patience: float,
        before_commit: Callable[[], None] = lambda: None,
    ) -> Landed | NotLanded:
        """Commit a change and the mark in one step, under a fence evaluated in each attempt.

        Commits of others that come first do not count as failures for `patience` seconds: the change is put together anew on theirs.
        So it is when what it is made of cannot be read and the table is another one by then: others may have removed the files.
        """
        marked = replace(change, properties={**change.properties, summary.mark_property(pipeline): mark.to_json()})
        fence = _Fence(lambda onto: check(LazyHead(self.gateway, self._mine(onto), pipeline)))
        try:
            return self._attempts(fence, pipeline, marked, patience, before_commit)
        finally:
            fence.forget()

    def _attempts(
        self, fence: _Fence, pipeline: str, change: Change, patience: float, before_commit: Callable[[], None]
    ) -> Landed | NotLanded:
        given_up = time.monotonic() + patience
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._turn():
                    made = self._change(fence, change)
                    if not isinstance(made, IcefrontError):
                        snapshot = made.currentMetadata().currentSnapshot().snapshotId()
                        before_commit()
                        self._swap(made)
                        return self._find(pipeline, snapshot, attempt)
                answer = self._unmade(made, fence.transaction)
            except Refusal as refusal:
                return NotLanded(str(refusal))
            except JAVA_ERRORS as error:
                self._check_clock(error)
                answer = fence.judge(error)
                if not java_class(error).endswith("CommitFailedException"):
                    return answer
            if time.monotonic() >= given_up:
                return answer
            _pause(attempt)

    def _unmade(self, unread: IcefrontError, transaction: JavaObject) -> NotLanded:
        """Raise why a change could not be made, unless the table is another one by now than its transaction began with, or may be."""
        try:
            self.refresh()
        except ConnectionFailed as error:
            why = f"the catalog does not say whether the table has changed: {error.fact}"
        else:
            if self.place() == str(transaction.startMetadata().metadataFileLocation()):
                raise unread
            why = "the table has changed"
        log.info("a commit could not be put together; looking anew", table=self.name, error=unread.fact, since=why)
        return NotLanded(unread.fact)

    def _change(self, fence: _Fence, change: Change) -> JavaObject | IcefrontError:
        """Put a whole change together on what the table is now (a new transaction asks the catalog); nothing is sent yet.

        Return why it cannot be made, where what it is to be made of cannot be read.
        """
        transaction = self.table.newTransaction()
        fence.transaction = transaction
        change.also(transaction)
        deletes = _deletes(fence, change)
        if isinstance(deletes, IcefrontError):
            return deletes
        try:
            update = self._snapshot_update(transaction, change.files, deletes)
        except JAVA_ERRORS:
            fence.check()  # what does not fit the table may not fit because the fence would have refused it
            raise
        update.scanManifestsWith(self.gateway.at_once)
        update.validateWith(fence)
        for key, value in change.entries.items():
            update.set(key, value)
        update.commit()
        remembered = transaction.updateProperties()
        for key, value in change.properties.items():
            remembered.set(key, value)
        remembered.commit()
        return transaction

    def _check_clock(self, error: Exception) -> None:
        """Say so when a change cannot even be built for its time: Iceberg only says that a log is not sorted."""
        if not java_class(error).endswith(("IllegalArgumentException", "ValidationException")):
            return
        last, now = self.metadata().lastUpdatedMillis(), self.gateway.clock.currentTimeMillis()
        if last - now > _CLOCKS_DIFFER:
            raise ClockBehind(
                f"the last commit to {self.name} is of {_moment(last)}, the clock here says {_moment(now)}: "
                f"{timedelta(seconds=(last - now) // 1000)} behind",
                "set the clock that is wrong, or wait: a commit may be a minute older than the one before it, no more",
            ) from error

    def commit_deletes(
        self,
        deletes: DeleteChange,
        files: Iterable[str],
        planned_at: int,
        entries: Mapping[str, str],
        *,
        patience: float,
        after: Collection[int] = (),
    ) -> int | None:
        """Add and remove delete files in one step, and return its snapshot; None when another commit touched the same files.

        `files` are the data files that get deletes. Nothing but a row delta will do: a concurrent compaction does not look at what a
        `replace` did, and would bring rows back. What the commits `after` which it comes did must not have been rolled back.
        """

        def lost(made: JavaObject, _: JavaObject) -> bool:
            return not set(after) <= self._ancestors(made, until=planned_at)

        def change(table: JavaObject) -> JavaObject:
            update = table.newRowDelta().validateFromSnapshot(planned_at).validateDeletedFiles()
            update.validateDataFilesExist(self.gateway.read_list(files))
            self._exchange(update, deletes)
            return update

        return self.commit_upkeep(change, entries, patience=patience, harms=lost if after else lambda *_: False).snapshot

    def _ancestors(self, snapshot: JavaObject, *, until: int) -> set[int]:
        """Return the snapshots that one was made on, back to another."""
        metadata, found = self.metadata(), set[int]()
        while snapshot is not None and until not in found:
            parent = snapshot.parentId()
            snapshot = None if parent is None else metadata.snapshot(parent)
            found |= set() if parent is None else {int(parent)}
        return found

    def commit_upkeep(
        self,
        change: Callable[[JavaObject], JavaObject],
        entries: Mapping[str, str],
        *,
        patience: float,
        harms: Callable[[JavaObject, JavaObject], bool] = lambda *_: False,
    ) -> Upkept:
        """Commit a change that `change` makes of the table; it says by its validations when another commit touched the same files.

        `harms` is shown the snapshot that would be committed, and the metadata that it would be committed onto: what does harm is not
        sent.
        """
        given_up = time.monotonic() + patience
        sent: dict[int, Mapping[str, str]] = {}
        # One for all attempts: of the manifests that it has written anew only those of later commits are left to the next one.
        update = self._prepared(change, entries)
        attempt = 0
        while True:
            attempt += 1
            try:
                if attempt == 1:
                    # Most of the work, before it is its turn: the second time only the list of manifests is written anew.
                    first = update.apply().manifestListLocation()
                    with suppress(*JAVA_ERRORS):  # else it is an orphan
                        self.table.io().deleteFile(first)
                with self._turn():
                    made = update.apply()
                    onto = self.metadata()
                    if _follows(made, onto):
                        if harms(made, onto):
                            return Upkept(None, sent=bool(sent))
                        snapshot, told = int(made.snapshotId()), self.gateway.read(made.summary())
                        sent[snapshot] = told
                        self.table.operations().commit(onto, self.gateway.with_snapshot(onto, made))
                        return Upkept(snapshot, told)
                if time.monotonic() >= given_up:
                    raise CommitUncertain(f"others kept committing to {self.name}", "nothing was lost; try again later")
            except JAVA_ERRORS as error:
                self._check_clock(error)
                # Whatever is said: it may have landed.
                if (landed := self._any_of(sent)) is not None:
                    return Upkept(landed, sent[landed])
                # The second is how a row delta says that the snapshot it was planned at has expired, or was rolled back.
                if java_class(error).endswith("ValidationException") or "is not an ancestor of" in said(error):
                    return Upkept(None, sent=bool(sent))
                failed = translate(error)
                again = java_class(error).endswith("CommitFailedException") or isinstance(failed, ConnectionFailed)
                if not again or time.monotonic() >= given_up:
                    raise failed from error
                log.info("an upkeep commit was not confirmed; trying again", table=self.name, error=failed.fact)
            _pause(attempt)

    def _prepared(self, change: Callable[[JavaObject], JavaObject], entries: Mapping[str, str]) -> JavaObject:
        update = call(lambda: change(self.table))
        update.scanManifestsWith(self.gateway.at_once)
        for key, value in entries.items():
            update.set(key, value)
        return update

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let publishes and upkeep of one process take turns: whoever came second would have to begin anew.

        Nothing depends on it. A commit that hangs does not keep the others waiting for long.
        """
        turn = _turns[self.uuid]
        got = turn.acquire(timeout=_TURN)
        try:
            yield
        finally:
            if got:
                turn.release()

    def _any_of(self, snapshots: Collection[int]) -> int | None:
        """Find out which of some snapshots the current branch has; None also while the catalog does not say."""
        if not snapshots:
            return None
        try:
            self.refresh()
        except ConnectionFailed as error:
            # What landed refuses the next attempt, and is found then.
            log.info("the catalog does not say what became of a commit", table=self.name, error=error.fact)
            return None
        ancestors = self.head("").ancestors
        return next((ancestor.snapshot for ancestor in ancestors if ancestor.snapshot in snapshots), None)

    def _swap(self, transaction: JavaObject) -> None:
        """Send a change to the catalog, once: its compare-and-swap and nothing around it.

        Iceberg's `commitTransaction` would clean up after a refusal, also when the commit had landed and only a repetition of its
        request was refused: the table could not be read any more.
        """
        transaction.underlyingOps().commit(transaction.startMetadata(), transaction.currentMetadata())

    def _find(self, pipeline: str, snapshot: int, attempt: int) -> Landed | NotLanded:
        """Find our snapshot: by now the table's newest may already be somebody else's."""
        found = any(ancestor.snapshot == snapshot for ancestor in self.head(pipeline).ancestors)
        return Landed(snapshot, attempt) if found else NotLanded("the commit was confirmed, but the branch does not show it")

    def _snapshot_update(self, transaction: JavaObject, files: Sequence[ClosedFile], deletes: DeleteChange) -> JavaObject:
        """Choose the operation: an empty row delta would be an `overwrite`, so it is an append."""
        parsed = list(zip(files, self.parse([described.closed(file) for file in files]), strict=True))
        if deletes.added or deletes.removed or any(file.kind is not FileKind.DATA for file in files):
            update = transaction.newRowDelta()
            for file, node in parsed:
                (update.addRows if file.kind is FileKind.DATA else update.addDeletes)(node)
            if deletes.added:
                # They were made for this very snapshot: vectors that came before are replaced, not met by chance.
                update.validateFromSnapshot(transaction.startMetadata().currentSnapshot().snapshotId())
            self._exchange(update, deletes)
            return update
        update = transaction.newAppend()
        for _, node in parsed:
            update.appendFile(node)
        return update

    def _exchange(self, update: JavaObject, deletes: DeleteChange) -> None:
        for node in self.parse(deletes.added):
            update.addDeletes(node)
        for node in self.parse(deletes.removed):
            update.removeDeletes(node)

    def parse(self, files: Sequence[Described]) -> list[JavaObject]:
        """Make Java's objects of files: one text for all of them is parsed fastest."""
        if not files:
            return []
        tree = self.gateway.mapper.readTree(json.dumps(files))
        specs = self.table.specs()
        return [self.gateway.file_parser.fromJson(tree.get(i), specs) for i in range(len(files))]


def _deletes(fence: _Fence, change: Change) -> DeleteChange | IcefrontError:
    """Ask which deletes come and go with a change, or why nobody can say.

    Who has been overtaken does not get that far: what it would look into may be gone.
    """
    if change.deletes is None:
        return DeleteChange()
    fence.check()
    try:
        return change.deletes(fence.transaction.startMetadata())
    except IcefrontError as error:
        return error


def _follows(snapshot: JavaObject, metadata: JavaObject) -> bool:
    """Say whether a snapshot was made on what the table is by some metadata. Another thread may have looked at it since."""
    current = metadata.currentSnapshot()
    return current is not None and bool(snapshot.parentId() == current.snapshotId())


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(_PAUSE * 1.5 ** (attempt - 1), _LONGEST_PAUSE)))  # noqa: S311 — spreads attempts, not secret


def call(action: Callable[[], Any]) -> Any:
    """Run a py4j call and say what a Java failure means."""
    try:
        return action()
    except JAVA_ERRORS as error:
        raise translate(error) from error


def java_class(error: Exception) -> str:
    """Name what was thrown in Java; PySpark's own exceptions are named after Java's."""
    return str(error.java_exception.getClass().getName()) if isinstance(error, Py4JJavaError) else type(error).__name__


def translate(error: Exception) -> IcefrontError:
    """Turn a Java failure outside a commit into ours; inside one, nothing is known from it."""
    name = java_class(error)
    what = said(error)
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return ConnectionFailed(f"Spark's JVM does not answer any more: {what}", "look into its log, then run again")
    if name.endswith(("NotAuthorizedException", "ForbiddenException")):
        return ConnectionFailed(f"the catalog refused us: {what}", "check the catalog's credential, and what it may do")
    if name.endswith("NoSuchWarehouseException"):
        return ConfigError(f"the catalog has no such warehouse: {what}", "check the catalog's `warehouse` in icefront.yaml")
    if "No space left on device" in what or "SQLITE_FULL" in what:
        return ConnectionFailed(f"a disk is full: {what}", "make room on the disk, then run again")
    if name.endswith(_NO_ANSWER):
        step = next((step for sign, step in _STEPS.items() if sign in what), _STEPS[""])
        return ConnectionFailed(f"the catalog did not answer: {what}", step)
    if name.endswith(".NotFoundException"):
        return Stopped(
            f"a file that the catalog names is not there: {what}",
            "restore it, or register the table from an older metadata file; if the table is to begin anew, drop it",
        )
    return Stopped(f"the catalog said: {what}", "nothing was changed; see the message")


def _not_made(name: str, error: Exception) -> IcefrontError:
    """Say why a catalog has not made a table; CommitUncertain where it may make it the next time."""
    if not java_class(error).endswith(("AlreadyExistsException", "CommitFailedException")):
        return translate(error)
    if _HAS_A_VIEW in (what := said(error)).lower():
        return ConfigError(f"{name} is a view", "name a table that is none, or drop the view")
    return CommitUncertain(f"the catalog did not make {name}: {what}", "look what it logs, then run again")


_HAS_A_VIEW = "view with same name already exists"
"""So say Iceberg's catalogs. The word alone may be of the table's name."""
# Drivers quote the address that they were given.
_PASSWORD = re.compile(r"(?<=:)[^/@:\s]+(?=@)|(?<=password=)[^&;\s]+", re.IGNORECASE)
_NO_ANSWER = (
    "CommitStateUnknownException",
    "RESTException",
    "RuntimeIOException",
    "RuntimeMetaException",
    "SdkClientException",
    "ServiceFailureException",
    "ServiceUnavailableException",
    "UncheckedIOException",
    "UncheckedSQLException",
)
# What to do, by what the innermost cause says; the last one always fits.
_STEPS = {
    "SQLITE_BUSY": "another program holds the catalog's database: end it, or wake it if it is paused, then run again",
    "SQLITE_CANTOPEN": "check that the folder of the catalog's database is there and may be written, then run again",
    "No suitable driver": "give Spark the database's JDBC driver: spark.jars under spark.conf in icefront.yaml",
    "UnknownHostException": "check the host name in the catalog's `uri`, then run again",
    "URISyntaxException": "correct the catalog's `uri`",
    "SSL": "check whether the catalog's `uri` begins with http:// or https://, and its certificate",
    "": "check that it runs and can be reached, then run again",
}


def said(error: Exception) -> str:
    """Put a Java failure and its innermost cause into one line."""
    if not isinstance(error, Py4JJavaError):
        return f"{type(error).__name__}: {_line(str(error))}"
    thrown = root = error.java_exception
    while (cause := root.getCause()) is not None:
        root = cause
    outer, inner = _words(thrown), _words(root)
    return outer if inner.partition(": ")[2] in outer else f"{outer}: {inner}"


def _words(thrown: JavaObject) -> str:
    return f"{thrown.getClass().getSimpleName()}: {_line(str(thrown.getMessage()))}"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).isoformat(" ")


def _line(text: str) -> str:
    return _PASSWORD.sub("***", text.strip().partition("\n")[0])[:300]
