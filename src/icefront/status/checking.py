"""What `icefront check` finds: configuration, source, catalogs, and each target's table against what was declared.

Only looks: no JVM, nothing created. Every finding names its subject; an error carries the next step and the exit code
that a run would end with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType

from icefront.api import Pipeline
from icefront.core.errors import ConfigError, IcefrontError, NotOurs, SchemaRefused
from icefront.core.marks import START
from icefront.core.protocol import check_lineage, check_resume
from icefront.iceberg.evolution import can_widen
from icefront.iceberg.partitions import PartitionField, check_scope
from icefront.settings import Target
from icefront.settings.keys import keys_unknown, refuse_members
from icefront.settings.problems import closest
from icefront.status.look import Look, other_pipelines, read_head
from icefront.status.targets import human_time

FORMAT = "write.format.default"
SHARED = "icefront.shared"


class Level(StrEnum):
    """How much a finding matters: with an `error` a run would stop."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    fact: str
    next_step: str = ""
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"level": self.level.value, "about": self.about, "fact": self.fact, "next_step": self.next_step}


def _ok(about: str, fact: str) -> Finding:
    return Finding(Level.OK, about, fact)


def _warn(about: str, fact: str, step: str) -> Finding:
    return Finding(Level.WARNING, about, fact, step)


def _error(about: str, error: IcefrontError) -> Finding:
    return Finding(Level.ERROR, about, error.fact, error.next_step, error.exit_code)


def check(path: Path, load: Callable[[Path], Pipeline] = Pipeline.load) -> Sequence[Finding]:
    """Check one pipeline file, as far as its first obstacle lets us look."""
    try:
        look = Look(load(path))
    except IcefrontError as error:
        return [_error(str(path), error)]
    findings = [_ok("configuration", _described(look))]
    try:
        findings += _source(look)
        targets = look.targets
    except IcefrontError as error:
        return [*findings, _error("source", error)]
    for target in targets:
        try:
            findings += _target(look, target)
        except IcefrontError as error:
            findings.append(_error(target.name, error))
    return findings


def _described(look: Look) -> str:
    settings = look.settings
    tables = f", {len(settings.tables)} table entries" if settings.tables else ""
    return (
        f"pipeline {settings.pipeline} reads a {settings.source.kind}{tables}; catalogs: {', '.join(settings.project.catalogs)}"
    )


# ── the source ─────────────────────────────────────────────────────────────────────────────
def _source(look: Look) -> Iterator[Finding]:
    if look.follows:
        yield from _followed(look)
        return
    where = look.source.store.where()
    tables = look.source_tables
    cuts = look.source.observe(START, tables).cuts
    if not tables:
        yield _warn("source", f"{where} has no changefeed files yet", "a run waits for them; is this the changefeed's folder?")
    elif not cuts:
        fact = f"{where} holds {len(tables)} tables and no resolved timestamp"
        yield _warn("source", fact, "create the changefeed WITH resolved: without it nothing is ever complete")
    else:
        newest = human_time(cuts[-1].frontier)
        yield _ok("source", f"{where}: tables {', '.join(tables)}; {len(cuts)} resolved timestamps, the newest {newest}")


def _followed(look: Look) -> Iterator[Finding]:
    for target in look.targets:
        metadata = look.following(target).metadata
        current = metadata.current_snapshot_id
        fact = f"{target.source_table}: format {metadata.format_version}, {len(metadata.snapshots)} snapshots"
        yield _ok("source", f"{fact}, the current one {current}" if current is not None else f"{fact}: it is empty")


# ── a target ───────────────────────────────────────────────────────────────────────────────
def _target(look: Look, target: Target) -> Iterator[Finding]:
    if target.source_table not in look.source_tables:
        near = closest(target.source_table, look.source_tables)
        fact = f"the source has no files of table {target.source_table}{near}"
        yield _warn(target.name, fact, "a run waits for them; correct the name if it is another")
    keys = _checked_keys(look, target)
    yield _ok(
        target.name, f"{target.source_table} by key {', '.join(keys)}" if keys else f"{target.source_table}, every change a row"
    )
    table = look.table(target)
    _check_scope(target, table, keys)
    if table is None:
        columns = ", ".join(target.columns) or "taken from the first epoch"
        yield _ok(
            target.name, f"the table does not exist; a run creates it (format {target.sink.format_version}, columns: {columns})"
        )
        return
    yield _ok(target.name, f"the table exists (format {table.metadata.format_version}, {len(table.schema().fields)} columns)")
    yield from _format(target, table)
    yield from _columns(target, table.schema())
    yield from _key_columns(target, table.schema(), keys)
    yield from _partitioning(target, table)
    yield from _ownership(look, target, table)


def _checked_keys(look: Look, target: Target) -> Sequence[str]:
    keys = look.keys(target)
    if target.mode_with(keys) == "append":
        return ()
    if not keys and target.source_table in look.source_tables:
        raise keys_unknown(target, look.settings.source.kind)
    if look.follows:
        refuse_members(look.settings, target, keys, look.following(target).sample(target.source_table))
    return keys


def _format(target: Target, table: Table) -> Iterator[Finding]:
    written = table.metadata.properties.get(FORMAT, "parquet")
    if written.lower() != "parquet":
        fact = f"the table's {FORMAT} is {written}; Icefront writes parquet"
        yield _error(target.name, ConfigError(fact, f"set the table property {FORMAT}=parquet"))
    if table.metadata.format_version != target.sink.format_version:
        fact = f"the table has format {table.metadata.format_version}, format_version says {target.sink.format_version}"
        yield _warn(target.name, fact, "the table's own format is kept")


def _columns(target: Target, schema: Schema) -> Iterator[Finding]:
    """Compare declared columns with the table's, as the schema policy would."""
    policy = target.schema_policy
    for name, declared in target.columns.items():
        if name not in schema.column_names:
            fact = f"the table has no column {name} ({declared})"
            if policy.add_column == "stop":
                yield _error(
                    target.name, SchemaRefused(f"{fact}; schema.add_column is stop", "add it to the table, or set evolve")
                )
            else:
                yield _ok(target.name, f"{fact}; it is added when the source has it")
            continue
        current = schema.find_type(name)
        if current == declared or can_widen(declared, current):
            continue
        fact = f"column {name} is {current} in the table, {declared} in the pipeline file"
        if can_widen(current, declared) and policy.widen_type == "evolve":
            yield _ok(target.name, f"{fact}; it is widened when the source needs it")
        else:
            yield _error(target.name, SchemaRefused(fact, "declare the table's type, or change the table"))


def _key_columns(target: Target, schema: Schema, keys: Sequence[str]) -> Iterator[Finding]:
    for key in keys:
        if key not in schema.column_names:
            fact = f"the table has no column {key}, which the keys name; it has {', '.join(schema.column_names)}"
            yield _error(target.name, SchemaRefused(fact, "correct `keys`, or add the column"))
        elif isinstance(kind := schema.find_type(key), FloatType | DoubleType):
            fact = f"column {key} of type {kind} cannot be a key: its values cannot be compared exactly"
            yield _error(target.name, ConfigError(fact, "choose other key columns"))


def _partitioning(target: Target, table: Table) -> Iterator[Finding]:
    if "partition_by" not in target.sink.model_fields_set:
        return
    schema = table.schema()
    known = {*schema.column_names, *target.columns}
    for field in target.sink.partition_by:
        if field.column not in known:
            fact = f"partition_by names column {field.column}, which the table does not have{closest(field.column, known)}"
            yield _error(target.name, ConfigError(fact, "correct partition_by"))
    current, wanted = _current(table), _declared(target)
    if current != wanted and target.sink.deletes != "scoped":
        now, then = (", ".join(map(str, fields)) for fields in (current, wanted))
        fact = f"the table is partitioned by [{now}], partition_by says [{then}]"
        yield _warn(target.name, fact, "the next run gives the table a new partition spec; old files stay as they are")


def _check_scope(target: Target, table: Table | None, keys: Sequence[str]) -> None:
    """Refuse scoped deletes that could miss their rows; where every change is a row there are no keys, and no deletes."""
    if target.sink.deletes != "scoped" or not keys:
        return
    wanted = _declared(target) if "partition_by" in target.sink.model_fields_set else None
    fields, specs = (_current(table), len(table.specs())) if table else (wanted or [], 1)
    check_scope(target.name, specs, fields, wanted, keys)


def _current(table: Table) -> Sequence[PartitionField]:
    return [PartitionField.of(field, table.schema()) for field in table.spec().fields]


def _declared(target: Target) -> Sequence[PartitionField]:
    return [PartitionField(field.transform, field.column, field.argument) for field in target.sink.partition_by]


def _ownership(look: Look, target: Target, table: Table) -> Iterator[Finding]:
    """Say whether a run could claim the table: nobody else writes it, and its mark continues from here."""
    pipeline = look.settings.pipeline
    others = other_pipelines(table.metadata, pipeline)
    if others and not (target.sink.shared and table.metadata.properties.get(SHARED) == "true"):
        fact = f"the table is written by pipeline {', '.join(others)}; this pipeline is {pipeline}"
        yield _error(target.name, NotOurs(fact, "name another table; or say `shared: true` in the sink of both"))
    head = read_head(table.metadata, pipeline)
    if head.mark is None:
        if not target.sink.shared and (not head.whole or any(a.adds_files for a in head.ancestors)):
            fact = f"the table has rows but no mark of pipeline {pipeline}: these rows are not ours"
            yield _error(target.name, NotOurs(fact, "`icefront run --adopt` takes the table over; or name another table"))
        return
    check_lineage(head, head.mark)
    source = look.source_of(target)
    observation = source.observe(head.mark.position, [target.source_table])
    check_resume(head.mark, source.identity(), observation.earliest)
    when = human_time(head.mark.frontier) or "the beginning"
    yield _ok(target.name, f"a run goes on from {when}, {look.count(len(observation.cuts))} behind")
