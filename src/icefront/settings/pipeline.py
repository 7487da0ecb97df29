"""The pipeline file: one source, one or more targets, and how changes get there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic import ValidationInfo as Info
from pyiceberg.types import DoubleType, FloatType, IcebergType

from icefront.core.epochs import Minting
from icefront.core.errors import ConfigError
from icefront.iceberg.types import parse_type, print_type
from icefront.settings.part import Bool, Found, Int, Part, Properties, config_error
from icefront.settings.problems import Loc, Problem, closest, describe, failure, unavailable
from icefront.settings.project import Kinds, Project, Source
from icefront.settings.upkeep import Upkeep, Wanted
from icefront.settings.values import TABLE_PLACEHOLDER, Duration, PartitionBy, Size, check_name, check_table_name

Mode = Literal["upsert", "append"]


def _column_type(value: Any) -> IcebergType:
    if isinstance(value, IcebergType):
        return value
    if not isinstance(value, str):
        raise Problem(f"expected a type, got {describe(value)}", "write e.g. bigint or decimal(12,2)")
    try:
        return parse_type(value)
    except ConfigError as error:
        raise Problem(error.fact, error.next_step) from None


ColumnType = Annotated[IcebergType, PlainValidator(_column_type), PlainSerializer(print_type), WithJsonSchema({"type": "string"})]
Columns = Mapping[str, ColumnType]


def _names(value: tuple[str, ...]) -> tuple[str, ...]:
    problems: list[Found] = [
        ((i,), Problem(f'"{name}" is written twice' if name else "a name is empty", "name each column once"))
        for i, name in enumerate(value)
        if not name or name in value[:i]
    ]
    if problems:
        raise failure("names", problems)
    return value


Names = Annotated[tuple[str, ...], AfterValidator(_names)]


class IcebergSink(Part):
    """An Iceberg table."""

    table: Annotated[str, AfterValidator(check_table_name)] = Field(
        description="`catalog.namespace.table`. `{table}` stands for the last part of the source table's name."
    )
    format_version: Literal[2, 3] = Field(default=3, description="The table format, when the table is created.")
    partition_by: tuple[PartitionBy, ...] = Field(
        default=(),
        description="Partition fields; changed later, the next run gives the table a new partition spec: `day(created_at)`, `bucket(16, id)`, `truncate(4, name)`, "
        "`year(ts)`, `month(ts)`, `hour(ts)`, `region`.",
    )
    deletes: Literal["global", "scoped"] = Field(
        default="global",
        description="`global`: a delete reaches the key in every partition. `scoped`: only in the row's own; for tables that are "
        "partitioned by keys and never get a second partition spec: a run stops when one appears.",
    )
    properties: Properties = Field(default={}, description="Table properties, when the table is created.")
    shared: Bool = Field(
        default=False, description="Let a second pipeline write this table. Both must say so; disjoint keys are their promise."
    )

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        properties = data.get("properties")
        for name in properties if isinstance(properties, Mapping) else ():
            if str(name).startswith("icefront."):
                yield ("properties", name), Problem("icefront.* is Icefront's own", "remove it", on_key=True, hides=False)
            if name == "format-version":
                step = f"write format_version: {properties[name]}" if isinstance(properties, Mapping) else ""
                yield ("properties", name), Problem("the format is not set here", step, on_key=True, hides=False)
        fields = data.get("partition_by")
        seen: set[object] = set()
        for i, field in enumerate(fields if isinstance(fields, list | tuple) else ()):
            if field in seen:
                yield ("partition_by", i), Problem(f"{describe(str(field))} is written twice", "keep one of them")
            seen.add(field)

    @property
    def catalog(self) -> str:
        return self.table.split(".")[0]

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace and name, without the catalog: what PyIceberg asks for."""
        return tuple(self.table.split(".")[1:])

    def named(self, source_table: str) -> IcebergSink:
        """Put the source table's name in the place of ``{table}``."""
        name = source_table.rsplit(".", 1)[-1]
        return self.model_copy(update={"table": self.table.replace(TABLE_PLACEHOLDER, name)})


class Sink(Kinds):
    """Where changes go; one kind."""

    UNAVAILABLE: ClassVar[Mapping[str, str]] = {"kafka": "a kafka sink", "opensearch": "an opensearch sink"}

    iceberg: IcebergSink | None = Field(default=None, description="An Iceberg table.")

    @property
    def target(self) -> IcebergSink:
        assert self.iceberg is not None
        return self.iceberg


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Sinks = Annotated[tuple[Sink, ...], BeforeValidator(_listed, json_schema_input_type=Sink | list[Sink]), Field(min_length=1)]


class SchemaPolicy(Part):
    """What happens when the source's schema changes."""

    add_column: Literal["evolve", "ignore", "stop"] = Field(
        default="evolve", description="A new column: add it to the table, leave it out, or stop."
    )
    widen_type: Literal["evolve", "stop"] = Field(
        default="evolve", description="A wider type (int → long, float → double, more decimal digits): follow, or stop."
    )
    rename_column: Literal["evolve", "stop"] = Field(
        default="evolve", description="A renamed column, said in `renames`: rename it in the table, or stop."
    )
    drop_column: Literal["keep"] = Field(default="keep", description="A dropped column stays; new rows have null in it.")
    other: Literal["stop"] = Field(default="stop", description="Any other change stops the pipeline.")
    renames: Mapping[str, str] = Field(
        default={}, description="`new_name: old_name`. No feed says that a column was renamed; whoever renamed it does, here."
    )

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        renames = data.get("renames")
        olds: dict[object, str] = {}
        for new, old in renames.items() if isinstance(renames, Mapping) else ():
            if new == old:
                yield ("renames", new), Problem(f'"{new}" is renamed to itself', "write new_name: old_name")
            elif isinstance(old, str) and old in olds:
                yield ("renames", new), Problem(f'"{old}" is renamed to "{olds[old]}" already', "a column has one new name")
            elif isinstance(old, str):
                olds[old] = new


def _keys_cannot_be_floats(data: Mapping[str, Any]) -> Iterator[Found]:
    columns, keys = data.get("columns"), data.get("keys")
    if not isinstance(columns, Mapping) or not isinstance(keys, list | tuple):
        return
    for key in keys:
        if isinstance(_quietly(columns.get(key)), FloatType | DoubleType):
            yield (
                ("columns", key),
                Problem(f'"{key}" is a key, and keys cannot be float or double', "use decimal, bigint or string"),
            )


def _partitions_fit_columns(data: Mapping[str, Any]) -> Iterator[Found]:
    columns = data.get("columns")
    for loc, sink in _iceberg_sinks(data.get("sink")) if isinstance(columns, Mapping) else ():
        fields = _get(sink, "partition_by")
        for i, field in enumerate(fields if isinstance(fields, list | tuple) else ()):
            parsed = _parsed(field)
            type_ = _quietly(columns.get(parsed.column)) if parsed is not None and isinstance(columns, Mapping) else None
            if parsed is not None and type_ is not None and not parsed.iceberg().can_transform(type_):
                fact = f'"{parsed.column}" is {print_type(type_)}, which {parsed.transform} does not apply to'
                yield ("sink", *loc, "partition_by", i), Problem(fact, "choose another transform, or another type in `columns`")


def _scoped_partitions_are_keys(data: Mapping[str, Any]) -> Iterator[Found]:
    keys = data.get("keys")
    if not isinstance(keys, list | tuple) or data.get("mode") == "append":
        return
    for loc, sink in _iceberg_sinks(data.get("sink")):
        fields = _get(sink, "partition_by") if _get(sink, "deletes") == "scoped" else ()
        for i, field in enumerate(fields if isinstance(fields, list | tuple) else ()):
            parsed = _parsed(field)
            if parsed is not None and parsed.column not in keys:
                fact = f'"{parsed.column}" is no key, and deletes are scoped to one partition'
                yield ("sink", *loc, "partition_by", i), Problem(fact, "partition by keys only, or leave deletes out")


def _parsed(field: object) -> PartitionBy | None:
    try:
        return field if isinstance(field, PartitionBy) else PartitionBy.parse(str(field))
    except Problem:
        return None


def _quietly(value: object) -> IcebergType | None:
    try:
        return _column_type(value)
    except Problem:
        return None


def _upsert_needs_keys(data: Mapping[str, Any]) -> Iterator[Found]:
    keys = data.get("keys")
    if isinstance(keys, list | tuple) and not keys and data.get("mode") == "upsert":
        yield ("mode",), Problem("upsert needs a key, and keys is empty", "name the keys, or write mode: append")


class TableSettings(Part):
    """One table of a source that carries several."""

    keys: Names | None = Field(default=None, description="As `keys` of the pipeline.")
    mode: Mode | None = Field(default=None, description="As `mode` of the pipeline, which is the default.")
    columns: Columns = Field(default={}, description="As `columns` of the pipeline.")
    sequence_by: str | None = Field(default=None, description="As `sequence_by` of the pipeline, which is the default.")
    schema_policy: SchemaPolicy | None = Field(
        default=None, alias="schema", description="As `schema` of the pipeline, instead of it."
    )
    sink: Sinks = Field(description="Where this table's changes go: one sink, or a list of them.")

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        yield from _keys_cannot_be_floats(data)
        yield from _partitions_fit_columns(data)
        yield from _scoped_partitions_are_keys(data)
        yield from _upsert_needs_keys(data)


class Write(Part):
    """How files are written. The table's own write.* properties rule where set."""

    target_file_size: Size = Field(default=Size(128 * 2**20), description="About how large a data file grows.")
    distribution: Literal["auto", "none", "hash"] = Field(
        default="auto",
        description="How changes get to the tasks that write them. `hash`: by key, always. `none`: not at all; one task reads and writes "
        "the whole epoch, for small epochs and few files. `auto`: `hash` when an epoch has more than one split.",
    )
    publish: Literal["immediate", "settled"] = Field(
        default="immediate",
        description="How an epoch deletes. `immediate`: by key, without looking; readers look, until it is settled. `settled`: the rows are "
        "looked up before publishing, and the epoch becomes visible with deletion vectors (format 2: position deletes) in the same "
        "snapshot. No reader ever meets an equality delete; publishing then costs reading the key columns of the files that may hold a changed key.",
    )


def _every(value: Any) -> Duration | Literal["resolved"]:
    return "resolved" if value == "resolved" else Duration.accept(value)


class Epochs(Part):
    """When epochs end."""

    every: Annotated[Duration | Literal["resolved"], PlainValidator(_every), WithJsonSchema({"type": "string"})] = Field(
        default=Duration(10 * 10**9),
        description="The least stretch of time per epoch. `resolved`: one snapshot per resolved timestamp, empty ones too.",
    )
    max_changes: Int = Field(
        default=2_000_000, ge=1, description="End an epoch near this many changes. One timestamp is never split."
    )
    in_flight: Int = Field(
        default=3,
        ge=1,
        description="How many epochs may be written while earlier ones are not yet published; one where the source is a table.",
    )
    heartbeat: Duration = Field(
        default=Duration(300 * 10**9), description="Without changes, publish an empty epoch this often: the frontier moves on."
    )

    def minting(self) -> Minting:
        """Return the rule in the core's own terms."""
        every = None if isinstance(self.every, str) else self.every.nanoseconds
        return Minting(every, self.max_changes, self.in_flight, self.heartbeat.nanoseconds)


class Commit(Part):
    """How commits are tried."""

    retries: Int = Field(default=5, ge=0, description="How often a refused or unanswered commit is tried again.")
    patience: Duration = Field(
        default=Duration(60 * 10**9),
        description="How long a commit goes on while those of other writers keep coming first; only then it counts as refused.",
    )


def _no_reject(value: Any) -> Any:
    if isinstance(value, Mapping) or value == "reject":
        raise unavailable('"reject"', "write bad_rows: stop")
    return value


@dataclass(frozen=True, slots=True)
class Target:
    """One source table's way into one target, with everything that was said about it."""

    source_table: str
    sink: IcebergSink
    keys: tuple[str, ...] | None
    mode: Mode | None
    columns: Mapping[str, IcebergType]
    sequence_by: str | None
    schema_policy: SchemaPolicy
    path: Loc

    @property
    def name(self) -> str:
        """The target's name: catalog, namespace and table."""
        return self.sink.table

    @property
    def sequence_column(self) -> str | None:
        """The column that orders changes of one key; None when that is the source's own timestamp."""
        return None if self.sequence_by == "updated" else self.sequence_by

    def mode_with(self, source_keys: Sequence[str] | None) -> Mode:
        """Choose the mode: as said; else upsert where there is a key, append where there is none."""
        if self.mode is not None:
            return self.mode
        return "upsert" if (self.keys if self.keys is not None else source_keys) else "append"


def _named_source(value: Any, info: Info) -> Any:
    if not isinstance(value, str):
        return value
    project = info.data.get("project")
    sources: Mapping[str, Source] = project.sources if isinstance(project, Project) else {}
    if value not in sources:
        raise Problem(
            f"source {describe(value)} is not defined{closest(value, sources)}", "define it under sources in icefront.yaml"
        )
    return sources[value]


class PipelineSettings(Part):
    """A pipeline file, with the project it belongs to."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"project", "file"})

    project: Project = Field(default_factory=Project)
    file: Path | None = None
    pipeline: Annotated[str, AfterValidator(check_name)] = Field(
        description="The pipeline's name. Targets remember it: a renamed pipeline is another one."
    )
    source: Annotated[Source, BeforeValidator(_named_source, json_schema_input_type=Source | str)] = Field(
        description="Where changes come from: inline, or the name of a source in icefront.yaml."
    )
    keys: Names | None = Field(
        default=None, description="The columns that identify a row. Default: the source's own key. Without any: `mode: append`."
    )
    mode: Mode | None = Field(
        default=None,
        description="`upsert`: the table holds the last state of each key. `append`: every change is a row; a delete then stops. "
        "Default: `upsert` where there is a key.",
    )
    columns: Columns = Field(
        default={},
        description="Types by column. A column that the table has narrower is widened by `schema.widen_type`; any other difference stops before the table is touched. Columns not named here have the table's type; else the source's; else an inferred one.",
    )
    sequence_by: str | None = Field(
        default=None,
        description="The column that orders changes of one key inside one epoch. Across epochs the source's order wins.",
    )
    sink: Sinks | None = Field(default=None, description="Where changes go: one sink, or a list of them.")
    write: Write = Field(default_factory=Write, description="How files are written.")
    tables: Mapping[str, TableSettings] = Field(
        default={},
        description="Instead of keys, columns and sink, when the source carries several tables: table → settings. A name may be a "
        "pattern (`shop.*`); a table's own entry wins, then the first pattern that fits.",
    )
    epochs: Epochs = Field(default_factory=Epochs, description="When epochs end.")
    commit: Commit = Field(default_factory=Commit, description="How commits are tried.")
    schema_policy: SchemaPolicy = Field(
        default_factory=SchemaPolicy, alias="schema", description="What happens when the source's schema changes."
    )
    bad_rows: Annotated[Literal["stop"], BeforeValidator(_no_reject)] = Field(
        default="stop", description="A record that cannot be decoded stops the pipeline, naming its place."
    )
    upkeep: Wanted = Field(
        default_factory=Upkeep,
        description="What keeps targets fast to read, after publishing: `auto`, `off`, or conditions of your own.",
    )

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        tables = data.get("tables")
        if tables:
            for key in ("keys", "columns", "sink"):
                if data.get(key) is not None:
                    yield (
                        (key,),
                        Problem(f"{key} and tables exclude each other", f"move {key} into the tables", on_key=True, hides=False),
                    )
        elif data.get("sink") is None:
            yield (
                ("sink",),
                Problem("required, but missing", "write a sink, or tables with a sink each", on_key=True, hides=False),
            )
        yield from _keys_cannot_be_floats(data)
        yield from _partitions_fit_columns(data)
        yield from _scoped_partitions_are_keys(data)
        yield from _upsert_needs_keys(data)
        yield from _known_catalogs(data)
        yield from _settled_deletes(data)
        yield from _followed_tables(data)

    @property
    def minting(self) -> Minting:
        """When epochs end. Of a table's snapshots each is one, published before the next is written: in the schema that it has."""
        minting = self.epochs.minting()
        return minting if self.source.iceberg is None else replace(minting, every=None, in_flight=1)

    def targets_for(self, table_names: Sequence[str]) -> tuple[Target, ...]:
        """Say which source table goes to which targets, given the tables that the source shows.

        Tables named one by one are always there, also before their first change; patterns take what they fit.
        Raises ConfigError when a choice is needed, or when two tables would go to one target.
        """
        routes = tuple(self._routes(table_names))
        taken: dict[str, Target] = {}
        for target in routes:
            other = taken.setdefault(target.name, target)
            if other is not target:
                both = f"{other.source_table} and {target.source_table} would both go"
                fact = f"{target.source_table} would go twice" if other.source_table == target.source_table else both
                raise self.problem(
                    (*target.path, "iceberg", "table"), f"{fact} to {target.name}", "give each a target of its own"
                )
        return routes

    def problem(self, path: Loc, fact: str, next_step: str = "") -> ConfigError:
        """Word an error about a setting that only shows later, e.g. `("sink", "iceberg", "table")`, with its place in the file."""
        return config_error(self._places, [(path, Problem(fact, next_step))])

    def _routes(self, table_names: Sequence[str]) -> Iterator[Target]:
        if not self.tables:
            assert self.sink is not None
            own = TableSettings(keys=self.keys, columns=self.columns, sink=self.sink)
            for name in self._single(table_names):
                yield from self._targets(name, own, ())
            return
        patterns = [key for key in self.tables if is_pattern(key)]
        exact = [key for key in self.tables if not is_pattern(key)]
        for name in dict.fromkeys([*exact, *sorted(table_names)]):
            key = name if name in exact else next((p for p in patterns if fnmatchcase(name, p)), None)
            if key is not None:
                yield from self._targets(name, self.tables[key], ("tables", key))

    def _single(self, table_names: Sequence[str]) -> Sequence[str]:
        named = self.source.changefeed or self.source.iceberg
        if named is not None and named.table is not None:
            return [named.table]
        if len(table_names) > 1:
            raise self.problem(
                ("source",),
                f"the source holds {len(table_names)} tables: {', '.join(sorted(table_names))}",
                "choose one with source.changefeed.table, or list them under tables",
            )
        return table_names

    def _targets(self, name: str, table: TableSettings, path: Loc) -> Iterator[Target]:
        for i, sink in enumerate(table.sink):
            if self.source.iceberg is not None and sink.target.named(name).table == name:
                fact = f"{name} would be its own target"
                raise self.problem((*path, "sink", i, "iceberg", "table"), fact, "name another table")
            yield Target(
                source_table=name,
                sink=self._sink_for(name, sink.target, (*path, "sink", i)),
                keys=table.keys,
                mode=table.mode or self.mode,
                columns=table.columns,
                sequence_by=table.sequence_by or self.sequence_by,
                schema_policy=table.schema_policy or self.schema_policy,
                path=(*path, "sink", i),
            )

    def _sink_for(self, name: str, sink: IcebergSink, path: Loc) -> IcebergSink:
        named = sink.named(name)
        try:
            check_table_name(named.table)
        except Problem as problem:
            fact = f"for source table {describe(name)}: {problem.fact}"
            raise self.problem((*path, "iceberg", "table"), fact, "give this table an entry of its own under tables") from None
        return named


def is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


def _known_catalogs(data: Mapping[str, Any]) -> Iterator[Found]:
    project = data.get("project")
    catalogs = project.catalogs if isinstance(project, Project) else {"lake": None}
    for loc, sink in _all_sinks(data):
        table = _get(sink, "table")
        name = table.split(".")[0] if isinstance(table, str) else None
        if name and "." in str(table) and name not in catalogs:
            fact = f"catalog {describe(name)} is not defined{closest(name, catalogs)}"
            yield (*loc, "table"), Problem(fact, "define it under catalogs in icefront.yaml")


def _settled_deletes(data: Mapping[str, Any]) -> Iterator[Found]:
    for loc, sink in _all_sinks(data) if _get(data.get("write"), "publish") == "settled" else ():
        if _get(sink, "deletes") == "scoped":
            fact = "scoped deletes and publish: settled exclude each other"
            yield (*loc, "deletes"), Problem(fact, "leave deletes out: settled, a delete names rows and not keys")


def _followed_tables(data: Mapping[str, Any]) -> Iterator[Found]:
    """Check which tables a source of kind iceberg follows, and in which catalogs they are."""
    project = data.get("project")
    source = data.get("source")
    if isinstance(source, str):
        source = project.sources.get(source) if isinstance(project, Project) else None
    iceberg = _get(source, "iceberg")
    if iceberg is None:
        return
    catalogs = project.catalogs if isinstance(project, Project) else {"lake": None}
    table, tables = _get(iceberg, "table"), data.get("tables")
    listed = [*tables] if isinstance(tables, Mapping) else []
    if table is not None and listed:
        fact = "source.iceberg.table and tables exclude each other"
        yield ("source", "iceberg", "table"), Problem(fact, "keep one of them", on_key=True, hides=False)
    elif table is None and not listed:
        step = "write catalog.namespace.table, or list several under tables"
        yield ("source", "iceberg", "table"), Problem("required, but missing", step, on_key=True, hides=False)
    for name, loc in [(table, ("source", "iceberg", "table")), *((name, ("tables", name)) for name in listed)]:
        if isinstance(name, str) and (problem := _not_followed(name, catalogs)) is not None:
            yield loc, problem
    every = _get(data.get("epochs"), "every")
    if isinstance(data.get("epochs"), Mapping) and every not in {None, "resolved"}:
        fact = "an iceberg source has one epoch per snapshot"
        yield ("epochs", "every"), Problem(fact, "leave it out, or write resolved", on_key=True, hides=False)


def _not_followed(name: str, catalogs: Iterable[str]) -> Problem | None:
    if is_pattern(name):
        return Problem(f"{describe(name)} is a pattern", "name each source table by itself", on_key=True, hides=False)
    try:
        check_table_name(name)
    except Problem as problem:
        return problem
    catalog = name.split(".", maxsplit=1)[0]
    if catalog not in set(catalogs):
        fact = f"catalog {describe(catalog)} is not defined{closest(catalog, catalogs)}"
        return Problem(fact, "define it under catalogs in icefront.yaml")
    return None


def _all_sinks(data: Mapping[str, Any]) -> Iterator[tuple[Loc, Any]]:
    for loc, sink in _iceberg_sinks(data.get("sink")):
        yield ("sink", *loc), sink
    tables = data.get("tables")
    for name, table in tables.items() if isinstance(tables, Mapping) else ():
        for loc, sink in _iceberg_sinks(_get(table, "sink")):
            yield ("tables", name, "sink", *loc), sink


def _iceberg_sinks(sinks: Any) -> Iterator[tuple[Loc, Any]]:
    for i, sink in enumerate(_listed(sinks)):
        if (found := _get(sink, "iceberg")) is not None:
            yield (i, "iceberg"), found


def _get(node: Any, name: str) -> Any:
    """Look into a mapping from a file or into a model built in Python."""
    return node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
