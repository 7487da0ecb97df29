"""`changes`: the row changes between snapshots of any Iceberg table, whatever wrote it.

Iceberg's own changelog scan refuses snapshots with delete files. This one compares states: what is live before and after a snapshot,
file by file, planned from metadata, and from vectors that took the place of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefront.core.errors import ConfigError
from icefront.iceberg import history, lineage
from icefront.iceberg.history import Name
from icefront.iceberg.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = ("DELETE", "UPDATE_BEFORE", "UPDATE_AFTER", "INSERT")


def changes(
    spark: SparkSession,
    table: str,
    from_snapshot: Name | None = None,
    to_snapshot: Name | None = None,
    *,
    keys: str | Sequence[str] | None = None,
    net: bool = False,
) -> DataFrame:
    """Return what changed in `table` after `from_snapshot` up to and with `to_snapshot`.

    A snapshot is named by its id, a time, a tag or a branch. Without `from_snapshot` the changes begin with the oldest snapshot that
    is left; without `to_snapshot` they end with the newest. Each snapshot's changes come by themselves, or with `net` only what
    remains of all of them.

    The columns are those of `create_changelog_view`: the row's (as the last snapshot has them), `_change_type`, `_change_ordinal`,
    `_commit_snapshot_id`, `_commit_timestamp`. An update is an UPDATE_BEFORE and an UPDATE_AFTER if `keys` tell rows apart; they
    default to the table's identifier fields. Pass `keys=[]` for none, `keys="_row_id"` for the row ids of format 3.
    """
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 — Spark is an extra, and slow to import

    from icefront.iceberg.java import Gateway  # noqa: PLC0415
    from icefront.spark.changes import OUTPUT, Moment, Plan, read_changes  # noqa: PLC0415

    view = View.of(spark, table)
    begin = history.find(table, view.metadata, from_snapshot) if from_snapshot is not None else None
    end = history.find(table, view.metadata, to_snapshot)
    last = history.schema_of(view.metadata, end)
    if begin is not None:
        last = history.as_wide(last, history.schema_of(view.metadata, begin))
        view = view.with_schema(last)
    steps = history.steps(view.metadata, begin, end, net=net)
    output = Gateway.of(spark).spark_schema(last)
    for name in output.names:
        if name in {field.name for field in OUTPUT}:
            raise ConfigError(f"table {table} has a column {name} of its own", "rename it: the changes need that name")
    keys = [keys] if isinstance(keys, str) else keys
    key_ids, by_row_id = view.key_ids(last, keys), view.is_by_row_id(last, keys)
    manifests = view.manifests()
    planned = view.plan(steps, manifests)
    by_values = {s.ordinal: s for s in steps if s.ordinal in planned and not (key_ids or by_row_id)}
    plan = Plan(
        table=table,
        layout=view.layout,
        io_properties=view.io_properties,
        location=view.metadata.location,
        moments={
            s.ordinal: Moment(
                s.snapshot.snapshot_id, s.snapshot.timestamp_ms, view.schema_id(s.snapshot), view.schema_id(s.parent)
            )
            for s in steps
        },
        keys=key_ids,
        schema_id=last.schema_id,
        # The past may have had no value where the table has one by now.
        output=StructType([*(StructField(f.name, f.dataType) for f in output.fields), *OUTPUT]),
        by_row_id=by_row_id,
        lineage=frozenset(s.ordinal for s in steps if s.ordinal in planned and lineage.tells(s, planned[s.ordinal])),
        apart=frozenset(i for i, step in by_values.items() if view.lie_apart(step, planned[i], manifests)),
    )
    return read_changes(spark, plan, planned)


@dataclass(frozen=True)
class Told:
    """Changes, and the ids of the snapshots that they lead from and to; where row ids pair images, `keys` is None."""

    begin: int | None
    end: int | None
    frame: DataFrame
    keys: Sequence[tuple[str, ...]] | None

    def in_order(self) -> DataFrame:
        """Sort changes so that the images of an update are side by side; but for those by row id every run sorts the same."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 — Spark is an extra, and slow to import

        if self.keys is None:
            # Nobody sees those ids: workers leave images side by side.
            return self.frame.orderBy("_change_ordinal", F.monotonically_increasing_id())
        kind = F.array_position(F.array(*map(F.lit, _KINDS)), F.col("_change_type"))
        # Spark orders no maps.
        rest = [(field.name,) for field in self.frame.schema.fields if "map<" not in field.dataType.simpleString()]
        keys, others = ([F.col(_quoted(path)) for path in paths] for paths in (self.keys, rest))
        return self.frame.orderBy("_change_ordinal", *keys, kind, *others)


def _quoted(path: Sequence[str]) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def tell(spark: SparkSession, table: str, begin: Name | None, end: Name | None, *, keys: Sequence[str] | None, net: bool) -> Told:
    """Read changes, and say between which snapshots: looked up again, a name may mean another one."""
    view = View.of(spark, table)
    first = history.find(table, view.metadata, begin) if begin is not None else None
    last = history.find(table, view.metadata, end)
    first_id, last_id = (snapshot.snapshot_id if snapshot else None for snapshot in (first, last))
    schema = history.schema_of(view.metadata, last)
    paths = [history.path(schema.fields, key) for key in view.key_ids(schema, keys)]
    found = changes(spark, table, first_id, last_id, keys=keys, net=net)
    return Told(first_id, last_id, found, None if view.is_by_row_id(schema, keys) else paths)
