"""A target's key columns: what was declared, held against what the source itself knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from icefront.core.errors import ConfigError
from icefront.settings.pipeline import PipelineSettings, Target


def key_columns(settings: PipelineSettings, target: Target, own: Sequence[str] | None) -> Sequence[str]:
    """Name the key columns in the order in which the source says their values; `own` are those that it knows itself.

    Deletes carry key values without names: keys that differ from the source's own would delete other rows.
    """
    if not target.keys or own is None:
        return own or target.keys or ()
    if settings.source.iceberg is not None:
        return target.keys  # a table's deletes are whole rows: any columns may tell them apart
    if set(target.keys) != set(own):
        raise settings.problem(
            (*target.path[:-2], "keys"),
            f"keys are {', '.join(target.keys)}, the key of {target.source_table} in the feed is {', '.join(own)}",
            "deletes name rows by the feed's key: use it, or leave `keys` out",
        )
    return own


def refuse_members(settings: PipelineSettings, target: Target, keys: Sequence[str], columns: Collection[str]) -> None:
    """Refuse keys that are members of structs in the source's table: epochs are netted, and rows deleted, by columns."""
    for key in keys:
        if key not in columns and key.partition(".")[0] in columns:
            table = target.path[:-2]
            place, what = ((*table, "keys"), "key") if target.keys else (table or ("source", "iceberg"), "identifier field")
            raise settings.problem(
                place,
                f"{what} {key} of {target.source_table} is a member of a struct, and the keys of a pipeline are columns",
                "name columns that tell rows apart: `keys: [id]`; or write `mode: append`",
            )


def keys_unknown(target: Target, kind: str = "changefeed") -> ConfigError:
    """Word the error of an upsert without a key, by the kind of source."""
    if kind == "iceberg":
        return ConfigError(
            f"table {target.source_table} has no identifier fields, and no keys are named",
            f"name them: `keys: [id]`; or ALTER TABLE {target.source_table} SET IDENTIFIER FIELDS id; or write `mode: append`",
        )
    return ConfigError(
        f"the key columns of {target.source_table} are not known: the feed carries key values without names",
        "name them: `keys: [id]`; or write `mode: append`",
    )
