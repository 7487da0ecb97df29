"""Schema evolution: what reading wishes for, checked against the policy, as a plan of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType, NestedField

from icefront.core.errors import ConfigError, SchemaRefused
from icefront.core.ports import Wish
from icefront.formats.infer import unite
from icefront.iceberg.types import parse_type, print_type


@dataclass(frozen=True, slots=True)
class Policy:
    """What may change by itself. `renames` maps a new column name to the one it had."""

    add_column: str = "evolve"
    widen_type: str = "evolve"
    rename_column: str = "evolve"
    renames: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Add:
    column: str
    type: IcebergType

    def __str__(self) -> str:
        return f"add {self.column} {self.type}"


@dataclass(frozen=True, slots=True)
class Widen:
    column: str
    type: IcebergType

    def __str__(self) -> str:
        return f"widen {self.column} to {self.type}"


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str

    def __str__(self) -> str:
        return f"rename {self.old} to {self.new}"


Change = Add | Widen | Rename


def plan(
    schema: Schema, wishes: Sequence[Wish], policy: Policy, declared: Mapping[str, str] = {}, table: str = "the table"
) -> list[Change]:
    """Turn wishes into changes, or raise SchemaRefused naming the column, the place and the policy.

    A wish that the schema already grants plans nothing: after a crash between schema commit and data
    the same wishes come again. A column that is `declared` gets that type, whatever its values look like.
    """
    wishes = [_as_declared(wish, declared) for wish in wishes]
    renames = {**policy.renames, **{w.column: w.former for w in wishes if w.former}}
    changes: dict[str, Change] = {w.column: w for w in _widenings(schema, replace(policy, renames=renames), declared, table)}
    for wish in [*unite([w for w in wishes if not w.widens]), *(w for w in wishes if w.widens)]:
        if wish.column in schema.column_names and wish.widens is None:
            continue
        change = _widen(schema, wish, policy) if wish.widens else _add(schema, wish, policy)
        if change is not None:
            changes[wish.column] = _wider(changes.get(wish.column), change)
    return list(changes.values())


def _as_declared(wish: Wish, declared: Mapping[str, str]) -> Wish:
    """Give the wish for a new column its declared type; one to widen a column knows what the source has."""
    return wish if wish.widens or wish.column not in declared else replace(wish, type=declared[wish.column], doubt=None)


def _widenings(schema: Schema, policy: Policy, declared: Mapping[str, str], table: str) -> Iterator[Widen]:
    """Widen what the table has narrower than declared; what it has otherwise is refused.

    Wider than declared is fine: the source asked for it, and the policy granted it.
    """
    for column, text in declared.items():
        name = column if column in schema.column_names else _former_name(schema, column, policy.renames)
        if name is None:
            continue
        current, wanted = schema.find_field(name).field_type, parse_type(text)
        if print_type(current) == print_type(wanted) or can_widen(wanted, current):
            continue
        fact = f"column {name} of {table} is {print_type(current)}, and `columns` declares {column} as {print_type(wanted)}"
        if not can_widen(current, wanted):
            raise SchemaRefused(fact, "correct `columns`, or write to a new table")
        if policy.widen_type != "evolve":
            raise SchemaRefused(
                f"{fact}; schema.widen_type is {policy.widen_type}",
                "set schema.widen_type: evolve in the pipeline file, or correct `columns`; nothing was written",
            )
        # A column that is still to be renamed is widened under its new name.
        if name == column:
            yield Widen(column, wanted)


def _add(schema: Schema, wish: Wish, policy: Policy) -> Change | None:
    old = wish.former if wish.former in schema.column_names else _former_name(schema, wish.column, policy.renames)
    if old is not None:
        if policy.rename_column != "evolve":
            raise _refused(wish, f"column {old} is now called {wish.column}", "schema.rename_column", policy.rename_column)
        return Rename(old, wish.column)
    if policy.add_column == "ignore":
        return None
    if policy.add_column != "evolve":
        raise _refused(wish, f"the table has no column {wish.column} ({wish.type})", "schema.add_column", policy.add_column)
    if (twin := _twin(wish.column, schema.column_names)) is not None:
        raise SchemaRefused(
            f"{wish.where}: column {wish.column} differs from the table's {twin} only in case, and Spark could tell neither by its name",
            "rename one of them in the source, or set schema.add_column: ignore",
        )
    if wish.doubt:
        raise wish.doubt
    return Add(wish.column, parse_type(wish.type))


def _former_name(schema: Schema, column: str, renames: Mapping[str, str]) -> str | None:
    """Follow a column's earlier names back to one that the table has: it may have been renamed more than once meanwhile."""
    passed = {column}
    while (former := renames.get(column)) is not None and former not in passed:
        if former in schema.column_names:
            return former
        passed.add(former)
        column = former
    return None


def _twin(column: str, others: Iterable[str]) -> str | None:
    return next((other for other in others if other != column and other.lower() == column.lower()), None)


def _widen(schema: Schema, wish: Wish, policy: Policy) -> Change | None:
    current, wanted = schema.find_type(wish.column), parse_type(wish.type)
    if current == wanted or can_widen(wanted, current):
        return None
    if not can_widen(current, wanted):
        raise SchemaRefused(
            f"{wish.where}: column {wish.column} is {current}, the source has {wanted}; schema.other is stop",
            "change the table, give the column another type in `columns`, or write to a new table; nothing was written",
        )
    if policy.widen_type != "evolve":
        raise _refused(
            wish, f"column {wish.column} is {current}, the source has {wanted}", "schema.widen_type", policy.widen_type
        )
    return Widen(wish.column, wanted)


def _refused(wish: Wish, fact: str, key: str, value: str) -> SchemaRefused:
    return SchemaRefused(
        f"{wish.where}: {fact}; {key} is {value}",
        f"set {key}: evolve in the pipeline file, or change the table; nothing was written",
    )


def can_widen(narrow: IcebergType, wide: IcebergType) -> bool:
    """Say whether Iceberg promotes `narrow` to `wide`."""
    match narrow, wide:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return narrow.scale == wide.scale and narrow.precision < wide.precision
    return False


def _wider(known: Change | None, change: Change) -> Change:
    """Unite two splits' wishes to widen one column."""
    if isinstance(known, Widen) and isinstance(change, Widen) and can_widen(change.type, known.type):
        return known
    return change


def new_schema(columns: Mapping[str, str], keys: Sequence[str]) -> Schema:
    """Make the schema of a new table. Key columns are required and are its identifier fields."""
    missing = [key for key in keys if key not in columns]
    if missing:
        raise ConfigError(
            f"key column {', '.join(missing)} is not among the columns {', '.join(columns) or '(none)'}",
            "correct `keys` or `columns`",
        )
    if twins := [(name, twin) for name in columns if (twin := _twin(name, columns)) is not None]:
        raise SchemaRefused(
            f"columns {twins[0][0]} and {twins[0][1]} differ only in case, and Spark could tell neither by its name",
            "rename one of them in the source",
        )
    fields = [
        NestedField(field_id=i, name=name, field_type=parse_type(text), required=name in keys)
        for i, (name, text) in enumerate(columns.items(), 1)
    ]
    draft = assign_fresh_schema_ids(Schema(*fields))
    ids = [draft.find_field(key).field_id for key in keys]
    return Schema(*draft.fields, identifier_field_ids=ids)


def union_schema(schema: Schema, changes: Sequence[Change]) -> Schema:
    """Return the schema as it should be after the additions and widenings (renames come before)."""
    renamed = {c.old: c.new for c in changes if isinstance(c, Rename)}
    widened = {c.column: c.type for c in changes if isinstance(c, Widen)}
    fields = [
        NestedField(
            field_id=f.field_id,
            name=renamed.get(f.name, f.name),
            field_type=widened.get(f.name, f.field_type),
            required=f.required,
            doc=f.doc,
        )
        for f in schema.fields
    ]
    added = [c for c in changes if isinstance(c, Add)]
    fields += [NestedField(field_id=0, name=c.column, field_type=c.type, required=False) for c in added]
    # Only a draft, united by name: Iceberg assigns the real ids, nested ones too.
    return assign_fresh_schema_ids(Schema(*fields))
