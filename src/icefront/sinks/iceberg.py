"""The Iceberg sink: one table, one mark, one fenced snapshot per epoch.

open ─▶ claim ─▶ (prepare ─▶ writer … workers … closed files) ─▶ publish
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import structlog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.errors import CommitUncertain, ConfigError, ConnectionFailed, NotOurs, SchemaRefused, Stopped
from icefront.core.files import ClosedFile, FileKind, Staged, column_ids
from icefront.core.marks import Identity, Mark, Writer, canonical
from icefront.core.ports import EpochWriter, Wish
from icefront.core.protocol import (
    MOVES,
    Answer,
    Claim,
    Head,
    Landed,
    NotLanded,
    Outcome,
    Publication,
    Published,
    Request,
    Send,
    claiming,
    fence,
    publishing,
    renewal,
)
from icefront.iceberg import evolution, summary
from icefront.iceberg.java import Change, Gateway, JavaObject, JavaTable, Unanswered, call
from icefront.iceberg.partitions import PartitionField, check_scope
from icefront.kernels.net import check_keys
from icefront.kernels.parquet import IcebergEpochWriter, TableLayout, check_format
from icefront.proof.failpoints import failpoint
from icefront.spark.settle import Settler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

SHARED = "icefront.shared"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """What a user asks of one target table."""

    pipeline: str
    table: str
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...] = ()
    mode: str = "upsert"
    format_version: int = 3
    partition_by: tuple[PartitionField, ...] | None = None
    deletes: str = "global"
    shared: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    write_properties: Mapping[str, str] = field(default_factory=dict)
    io_properties: Mapping[str, str] = field(default_factory=dict)
    policy: evolution.Policy = field(default_factory=evolution.Policy)
    sequence_by: str | None = None
    retries: int = 5
    patience: float = 60.0
    publish: Literal["immediate", "settled"] = "immediate"


class IcebergSink:
    """`core.ports.Sink` over one Iceberg table."""

    def __init__(self, spark: SparkSession, wanted: IcebergTarget, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._gateway = Gateway.of(spark)
        self._wanted = wanted
        self._sleep = sleep
        self._settler = Settler(spark)
        self._table: JavaTable | None = None
        self._writer: Writer | None = None

    @property
    def target(self) -> str:
        return self._wanted.table

    @property
    def _scoped(self) -> bool:
        """Whether deletes belong to partitions; where every change is a row there are none."""
        return self._wanted.deletes == "scoped" and self._wanted.mode == "upsert"

    # ── opening ────────────────────────────────────────────────────────────────────────────
    def open(self) -> Schema | None:
        """Load the table, changing nothing; None when there is none yet.

        A new table is made when the first epoch shows which columns it needs beside the declared ones.
        """
        self._table = self._gateway.load(self.target)
        if self._table is None:
            return None
        self._check_company()
        self._check_fitness()
        return self._schema()

    def prepare(self, wishes: Sequence[Wish]) -> Schema:
        """Create the table, or evolve its schema by policy; return the schema that changes are to have."""
        if self._table is None:
            self._create(wishes)
        else:
            self._evolve(wishes)
            global_deletes = self._wanted.mode == "upsert" and not self._scoped
            if self._writer is not None and global_deletes and self._unpartitioned_spec() is None:
                # Expiry may clean out specs that no file has any more.
                self._align_partitioning()
        return self._schema()

    def _create(self, wishes: Sequence[Wish]) -> None:
        wanted = self._wanted
        declared = dict(wanted.columns)
        columns = declared | {w.column: w.type for w in wishes if w.column not in declared}
        schema = evolution.new_schema(columns, wanted.keys)
        properties = {
            "format-version": str(wanted.format_version),
            # Every epoch writes a metadata file; those that the table's log has forgotten nobody reads.
            "write.metadata.delete-after-commit.enabled": "true",
            **wanted.write_properties,
            **wanted.properties,
        }
        check_format(self.target, properties)
        partition_by = wanted.partition_by or ()
        self._check_partition_columns(schema.column_names)
        if self._scoped:
            check_scope(self.target, 1, partition_by, None, wanted.keys)
        failpoint("table.before")
        first, then = (partition_by, ()) if self._scoped else ((), partition_by)
        self._table = self._patiently(
            partial(
                self._gateway.create,
                self.target,
                schema.model_dump_json(),
                properties,
                self._adder(then) if then else None,
                first,
            )
        )
        failpoint("table.after")
        log.info("created table", table=self.target, columns=len(schema.fields))
        # It may be another's, made in the same moment.
        self._check_fitness()

    def _evolve(self, wishes: Sequence[Wish]) -> None:
        """Change the schema until no wish is left open."""

        def evolve(transaction: JavaObject) -> None:
            schema = self._parse(transaction.table().schema())
            changes = self._plan(schema, wishes)
            # Renames first and by themselves: the rest is united by name.
            renames = [c for c in changes if isinstance(c, evolution.Rename)]
            update = transaction.updateSchema()
            for rename in renames:
                update.renameColumn(rename.old, rename.new)
            if not renames:
                union = evolution.union_schema(schema, changes)
                update.unionByNameWith(self._gateway.schema_parser.fromJson(union.model_dump_json()))
            update.commit()

        self._alter("schema", lambda: self._plan(self._schema(), wishes), evolve)

    def _plan(self, schema: Schema, wishes: Sequence[Wish]) -> list[evolution.Change]:
        wanted = self._wanted
        return evolution.plan(schema, wishes, wanted.policy, dict(wanted.columns), self.target)

    def _align_partitioning(self) -> None:
        """Give the table the declared partitioning, and an unpartitioned spec in its history."""
        wanted = self._wanted.partition_by
        fields = self._current_fields() if wanted is None else tuple(wanted)
        self._check_partition_columns(self._schema().column_names)

        def left() -> list[str]:
            aligned = self._unpartitioned_spec() is not None and fields == self._current_fields()
            return [] if aligned else [f"partition by {', '.join(map(str, fields)) or 'nothing'}"]

        def align(transaction: JavaObject) -> None:
            current = PartitionSpec.model_validate_json(self._gateway.spec_parser.toJson(transaction.table().spec())).fields
            if current:
                remover = transaction.updateSpec()
                for partition_field in current:
                    remover.removeField(partition_field.name)
                remover.commit()
            if fields:
                adder = transaction.updateSpec()
                self._adder(fields)(adder)
                adder.commit()

        self._alter("partitioning", left, align)

    def _check_partition_columns(self, columns: Sequence[str]) -> None:
        missing = [f for f in self._wanted.partition_by or () if f.column not in columns]
        if missing:
            raise ConfigError(
                f"{self.target} is to be partitioned by {missing[0]}, but has no such column; it has {', '.join(columns)}",
                "correct `partition_by`, or declare the column",
            )

    def _alter(self, what: str, left: Callable[[], Sequence[object]], do: Callable[[JavaObject], None]) -> None:
        """Change schema or partitioning until nothing is left to do; each attempt begins with what the table is then.

        Others' commits may come between and win, our own publishes among them. An answer that was lost is not missed: what
        landed is not left to do.
        """
        most = 2 * self._wanted.retries + 2
        tried: Sequence[object] = ()
        seen, failures = "", 0
        answer: Landed | NotLanded = NotLanded("")
        for attempts in itertools.count():
            if failures:
                self._back_off(failures)
            head, now = self._look(), self._live().place()
            changes = left()
            if tried and changes != tried:
                # Also when the answer was lost and the change is found now.
                failpoint(f"{what}.after")
                ours = isinstance(answer, Landed) or (head.mark is not None and head.mark.writer == self._writer)
                event = "changed the table" if ours else "found the table changed, under another writer"
                log.info(event, table=self.target, what=what, changes=[str(change) for change in tried])
            elif tried:
                # To lose to a commit of somebody else is no failure.
                failures += isinstance(answer, Unanswered) or now == seen
            if not changes:
                return
            if failures >= most or attempts >= most + MOVES:
                break
            tried, seen = changes, now
            answer = self._renew(head, what, do)
        why = answer.why if isinstance(answer, NotLanded) else "it is changed, and more is to be"
        fact = f"the {what} of {self.target} could not be changed in {attempts} attempts; the last said: {why}"
        if isinstance(answer, Unanswered):
            raise ConnectionFailed(fact, answer.next_step)
        raise CommitUncertain(fact, "run it again")

    def _renew(self, head: Head, what: str, do: Callable[[JavaObject], None]) -> Landed | NotLanded:
        """Claim once more what is ours, and change the table in the same step: so the fence decides about that, too."""
        assert self._writer is not None, "only the owner changes a table"
        claim = renewal(head, self._wanted.pipeline, self.target, self._writer)
        mark = claim.mark()
        return self._live().commit_fenced(
            self._wanted.pipeline,
            Change((), summary.of_change(mark, what), also=lambda transaction: call(lambda: do(transaction))),
            mark,
            lambda onto: fence(onto, claim),
            patience=0,  # what is to be done is found out anew when others came first
            before_commit=lambda: failpoint(f"{what}.before"),
        )

    def _back_off(self, attempt: int) -> None:
        self._sleep(random.uniform(0.5, 1.0) * min(0.1 * 2**attempt, 5.0))  # noqa: S311 — spreads retries, not secret

    def _adder(self, fields: Sequence[PartitionField]) -> Callable[[JavaObject], None]:
        def add(update: JavaObject) -> None:
            for partition_field in fields:
                update.addField(partition_field.term(self._gateway.expressions))

        return add

    def _check_fitness(self) -> None:
        """Refuse a table that could not be written as it is, before anything in it is changed."""
        self._check_version()
        if self._scoped:
            self._check_scope()
        self._layout(self._schema())
        self._plan(self._schema(), ())
        self._check_partition_columns(self._schema().column_names)

    def _check_version(self) -> None:
        version = int(self._live().metadata().formatVersion())
        if version < 2:
            raise ConfigError(
                f"table {self.target} has format version {version}, which cannot hold deletes",
                f"ALTER TABLE {self.target} SET TBLPROPERTIES ('format-version'='2'), or name another table",
            )

    def _check_scope(self) -> None:
        check_scope(self.target, len(self._specs()), self._current_fields(), self._wanted.partition_by, self._wanted.keys)

    def _check_company(self) -> None:
        """Refuse a table that another pipeline writes, unless both said that they share it."""
        properties = self._live().properties()
        prefix = summary.mark_property("")
        others = sorted(k.removeprefix(prefix) for k in properties if k.startswith(prefix))
        others = [name for name in others if name != self._wanted.pipeline]
        if others and not (self._wanted.shared and properties.get(SHARED) == "true"):
            raise NotOurs(
                f"table {self.target} is written by pipeline {', '.join(others)}; this pipeline is {self._wanted.pipeline}",
                "name another table; or, if their keys never meet, say `shared: true` in the sink of both",
            )

    # ── what the table is now ──────────────────────────────────────────────────────────────
    def _live(self) -> JavaTable:
        if self._table is None:
            raise Stopped(f"table {self.target} does not exist", "run the pipeline first")
        return self._table

    def _schema(self) -> Schema:
        schema = Schema.model_validate_json(self._live().schema_json())
        missing = [key for key in self._wanted.keys if key not in schema.column_names]
        if missing:
            raise SchemaRefused(
                f"table {self.target} has no column {', '.join(missing)}, which the keys name; it has {', '.join(schema.column_names)}",
                "correct `keys`, or declare the column",
            )
        if self._wanted.mode == "upsert":
            check_keys(schema, self._wanted.keys)
        return schema

    def _specs(self) -> dict[int, PartitionSpec]:
        return {i: PartitionSpec.model_validate_json(text) for i, text in self._live().specs_json().items()}

    def _spec(self) -> PartitionSpec:
        return self._specs()[int(self._live().table.spec().specId())]

    def _unpartitioned_spec(self) -> int | None:
        return next((i for i, spec in sorted(self._specs().items()) if spec.is_unpartitioned()), None)

    def _current_fields(self) -> tuple[PartitionField, ...]:
        schema = Schema.model_validate_json(self._live().schema_json())
        return tuple(
            PartitionField.of(f, schema) for f in self._spec().fields if not f.transform.__class__.__name__.startswith("Void")
        )

    def _layout(self, schema: Schema) -> TableLayout:
        table = self._live()
        properties = table.properties()
        layout = TableLayout(
            table=self.target,
            pipeline=self._wanted.pipeline,
            location=table.table.location(),
            schema_json=schema.model_dump_json(),
            spec_json=self._spec().model_dump_json(),
            deletes_spec_id=-1 if (whole := self._unpartitioned_spec()) is None else whole,
            properties={**self._wanted.write_properties, **properties},
            io_properties={**table.io_properties(), **self._wanted.io_properties},
            key_ids=tuple(schema.find_field(key).field_id for key in self._wanted.keys),
        )
        layout.check()
        return layout

    def settings(self) -> str:
        """Fingerprint what written files depend on: under another one they are written again."""
        wanted = self._wanted
        facts = {
            "uuid": self._live().uuid,
            "keys": wanted.keys,
            "mode": wanted.mode,
            "deletes": wanted.deletes,
            "spec": self._spec().spec_id,
            "sequence": wanted.sequence_by,
            "renames": dict(wanted.policy.renames),
            "add_column": wanted.policy.add_column,
        }
        return hashlib.sha256(canonical(facts).encode()).hexdigest()

    # ── the port ───────────────────────────────────────────────────────────────────────────
    def recall(self) -> Mark | None:
        if self._table is None:
            return None
        return self._look().mark

    def is_empty(self) -> bool:
        """Say whether no snapshot on the branch ever added a file: only then deletes may be omitted."""
        head = self._live().head(self._wanted.pipeline)
        return head.whole and not any(a.adds_files for a in head.ancestors)

    def claim(self, run: str, source: Identity, *, adopt: bool) -> Mark:
        wanted = self._wanted
        self._refresh()
        self._check_company()
        mark = self._converse(
            claiming(wanted.pipeline, wanted.table, run, source, adopt=adopt or wanted.shared, retries=wanted.retries)
        )
        failpoint("claim.after")
        self._writer = mark.writer
        log.info("claimed", table=wanted.table, writer=str(mark.writer), frontier=str(mark.frontier))
        # Only now: a table that turns out not to be ours is left as it is.
        if self._scoped:
            self._check_scope()
        else:
            self._align_partitioning()
        return mark

    def go_on_as(self, writer: Writer) -> None:
        """Go on as a writer that has claimed the table before, through another sink."""
        self._writer = writer

    def writer(self, epoch: Epoch, schema: Schema, *, fresh: bool) -> EpochWriter:
        return IcebergEpochWriter(
            layout=self._layout(schema),
            epoch_id=str(epoch_id(self._wanted.pipeline, self.target, epoch)),
            fresh=fresh,
            scoped=self._scoped,
            append=self._wanted.mode == "append",
        )

    def present(self, staged: Staged) -> bool:
        table = self._live()
        io = load_file_io({**table.io_properties(), **self._wanted.io_properties}, table.table.location())
        # Notes of before say nothing of columns.
        known = bool(staged.columns or not staged.files)
        fits = known and not self._lost_specs(staged) and not self._replaced_columns(staged)
        return fits and all(_exists(io, f.path, f.size) for f in staged.files)

    def _lost_specs(self, staged: Staged) -> list[str]:
        """Say which partition specs of an epoch the table has no longer, and what has their numbers now.

        Expiry may clean out those that no file has, and the next one gets the number: it is the fields that tell.
        """
        now = {number: sorted(str(f.field_id) for f in spec.fields) for number, spec in self._specs().items()}
        was = {file.spec_id: sorted(file.partition) for file in self._added(staged)}
        return [
            f"partition spec {number} of {self.target}, which had {_fields(fields)} when the epoch was written, "
            + (f"has {_fields(now[number])} by now" if number in now else "is gone")
            for number, fields in sorted(was.items())
            if now.get(number) != fields
        ]

    def _replaced_columns(self, staged: Staged) -> dict[str, str]:
        """Name the columns that are others by now, and say so of each: what was written for them would read as null."""
        if not staged.files:
            return {}
        now = _columns(self._live().schema_json())
        replaced = {name: was for name, was in sorted(staged.columns.items()) if now.get(name, was) != was}
        return {name: f"{name} was field {was}, now it is field {now[name]}" for name, was in replaced.items()}

    def _dropped_keys(self, staged: Staged) -> list[int]:
        """Name the keys of an epoch's deletes that are no columns by now."""
        schema = self._live().metadata().schema()
        return [i for i in sorted({i for f in staged.files for i in f.equality_ids}) if schema.findField(i) is None]

    def _parse(self, schema: JavaObject) -> Schema:
        return Schema.model_validate_json(self._gateway.schema_parser.toJson(schema))

    def publish(self, staged: Staged, onto: Mark) -> Outcome:
        publication = Publication(staged, onto)
        change = self._change(staged, publication.mark())
        outcome = self._converse(publishing(publication, retries=self._wanted.retries), change)
        if isinstance(outcome, Published):
            # Also when the answer was lost and it was found in the table.
            failpoint(f"{_step(publication)}.after")
            self._check_landed(staged)
        return outcome

    def _change(self, staged: Staged, mark: Mark) -> Change:
        """Say what publishing an epoch changes. Settled, its equality deletes stay outside, and what they name goes in."""
        entries = summary.of_epoch(mark, staged)
        added = self._added(staged)
        if len(added) == len(staged.files):
            return Change(added, entries)
        equality = [file for file in staged.files if file.kind is FileKind.EQUALITY_DELETES]
        deletes = self._settler.settling(self._live(), equality, self._wanted.io_properties)
        return Change(added, entries, deletes=deletes)

    def _added(self, staged: Staged) -> Sequence[ClosedFile]:
        """Return the files of an epoch that the table gets."""
        if self._wanted.publish == "immediate" or all(file.kind is FileKind.DATA for file in staged.files):
            return staged.files
        # Files without rows are there for the sake of equality deletes only.
        return [file for file in staged.files if file.kind is FileKind.DATA and file.records]

    def _converse(self, conversation: Generator[Request, Answer, T], publishes: Change | None = None) -> T:
        """Carry out what the protocol asks for, with back-off between attempts."""
        answer: Answer | None = None
        reply: Landed | NotLanded | None = None
        sent = 0
        while True:
            try:
                request = next(conversation) if answer is None else conversation.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            except CommitUncertain as error:
                if isinstance(reply, Unanswered):
                    raise ConnectionFailed(error.fact, reply.next_step) from error
                raise
            if isinstance(request, Send):
                if sent:
                    self._back_off(sent)
                else:
                    failpoint(f"{_step(request.intent)}.before")  # once for a step, however often it is sent
                sent += 1
                answer = reply = self._send(request, publishes)
            else:
                answer = self._look()

    def _look(self) -> Head:
        self._refresh()
        return self._live().head(self._wanted.pipeline)

    def _refresh(self) -> None:
        """Read the table's state."""
        self._patiently(self._live().refresh)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the catalog; one that is away for a moment is asked again."""
        for attempt in range(self._wanted.retries):
            try:
                return ask()
            except (ConnectionFailed, CommitUncertain) as error:
                log.warning("the catalog did not answer, or refused; asking again", table=self.target, error=error.fact)
                self._back_off(attempt + 1)
        return ask()

    def _send(self, request: Send, publishes: Change | None) -> Landed | NotLanded:
        intent = request.intent
        table = self._live()
        mark = intent.mark()
        match intent:
            case Claim():
                change = Change((), summary.of_claim(mark), {SHARED: "true" if self._wanted.shared else "false"})
            case Publication(staged=staged):
                change = publishes or self._change(staged, mark)

        def check(head: Head) -> None:
            if isinstance(intent, Claim):
                # Here once more: two pipelines may have found the table empty in the same moment.
                self._check_company()
            fence(head, intent)
            if isinstance(intent, Publication):
                # Last: an epoch that has landed already is not said to be written anew.
                self._check_layout(intent.staged)

        return table.commit_fenced(
            self._wanted.pipeline,
            change,
            mark,
            check,
            patience=self._wanted.patience,
            before_commit=lambda: failpoint(f"{_step(intent)}.before-commit"),
        )

    def _check_layout(self, staged: Staged) -> None:
        """Stop when what the files were written under is no longer valid where they would go."""
        anew = "start the pipeline again: the epoch is written anew"
        if lost := self._lost_specs(staged):
            raise Stopped("; ".join(lost), anew)
        if replaced := self._replaced_columns(staged):
            columns, said = ", ".join(replaced), "; ".join(replaced.values())
            raise Stopped(
                f"column {columns} of {self.target} was replaced by another one since the epoch was written: {said}", anew
            )
        if dropped := self._dropped_keys(staged):
            raise SchemaRefused(
                f"key column with field id {dropped[0]} was dropped from {self.target}",
                "add the column back, or write to a new table",
            )
        if self._scoped and any(f.equality_ids for f in staged.files):
            check_scope(self.target, len(self._specs()), (), None, ())

    def _check_landed(self, staged: Staged) -> None:
        """Stop when what was published met other columns than the fence saw: a REST catalog compares the branch, not the schema.

        What the table is by now came with the answer, or with the look for it. Somebody who replaced the column only after the
        commit is told so, too: the rows are the same.
        """
        published = f"epoch {staged.epoch} is published in {self.target}, but by now"
        if dropped := self._dropped_keys(staged):
            raise SchemaRefused(
                f"{published} the key column with field id {dropped[0]} was dropped: rows do not replace older ones any more",
                "load into a new table",
            )
        if replaced := self._replaced_columns(staged):
            raise Stopped(
                f"{published} column {', '.join(replaced)} was replaced by another one ({'; '.join(replaced.values())}): "
                "it is null in the epoch's rows, as in older ones",
                "start the pipeline again, and it goes on after this epoch; to have the values, load into a new table",
            )


@lru_cache(maxsize=16)
def _columns(schema_json: str) -> Mapping[str, int]:
    """Say which field each name stands for; every publish asks that, of schemas that hardly change."""
    return column_ids(Schema.model_validate_json(schema_json))


def _fields(ids: Sequence[str]) -> str:
    return f"the fields {', '.join(ids)}" if ids else "no fields"


def _step(intent: Claim | Publication) -> str:
    """Name the durable step that a commit is, as failpoints do."""
    if isinstance(intent, Claim):
        return "claim"
    return "publish" if intent.staged.files else "heartbeat"


def _exists(io: Any, path: str, size: int) -> bool:
    file = io.new_input(path)
    return bool(file.exists()) and len(file) == size
