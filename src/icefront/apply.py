"""`apply_changes`: any Spark DataFrame of changes into an Iceberg table, exactly once.

Made for `foreachBatch`, which repeats a batch after a failure: the batch id is the timeline, so a
batch at or below the last one is already in the table and does nothing. Ids may have gaps.

Ids begin at 0 again with a new checkpoint. The mark therefore remembers whose they are: the id of the
streaming query, which stays with its checkpoint. Batches of another one stop, unless they are adopted:
then they count from where the table is.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.errors import ConfigError, FencedOut, SourceChanged
from icefront.core.files import Staged, column_ids
from icefront.core.marks import Identity, Mark, Position, canonical
from icefront.core.ports import Wish
from icefront.core.protocol import FencedOff, Published
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg.types import print_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icefront.sinks.iceberg import IcebergSink

STREAM = "sql.streaming.queryId"
"""The local property in which Spark says, inside `foreachBatch`, which streaming query is at work."""
BASE = "base"
Publish = Literal["immediate", "settled"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch. `snapshot` is None when the batch was in the table already."""

    batch: int
    snapshot: int | None
    upserts: int = 0
    deletes: int = 0


_claims: dict[tuple[str, str, str], Mark] = {}
"""Claims held by this process, by Spark application, table and query: a claim per batch would be a snapshot per batch."""


def apply_changes(
    df: DataFrame,
    table: str,
    *,
    keys: str | Sequence[str],
    query: str,
    batch: int,
    sequence_by: str | None = None,
    op: str | None = None,
    adopt: bool = False,
    properties: dict[str, str] | None = None,
    publish: Publish = "immediate",
) -> Applied:
    """Upsert and delete the rows of `df` in `table`, once per (query, batch).

    `op` names a column with -1/1, c/r/u/d or insert/update/delete; without it every row is an upsert.
    `sequence_by` names the column that orders changes of one key within the batch. The table is created
    from the DataFrame's schema when it does not exist, and takes on new columns when they come.

    `query` names what is applied; a batch id counts within its streaming query. A stream with a new checkpoint is another
    one, and stops with SourceChanged: pass `adopt` once to let it go on from what the table holds. `adopt` also takes over
    a table that has rows of others.

    Deletes name keys, and readers look for them until the table is settled. With `publish="settled"` the rows are looked up
    before: that takes longer, and every engine can read every snapshot.
    """
    if batch < 0:
        raise ConfigError(f"batch is {batch}", "pass foreachBatch's batch id, which begins at 0")
    if publish not in get_args(Publish):
        raise ConfigError(f"publish is {publish!r}", f"pass one of {', '.join(get_args(Publish))}")
    from icefront.sinks.iceberg import IcebergSink, IcebergTarget  # noqa: PLC0415 — Spark is an extra, and slow to import
    from icefront.spark.frames import FrameWork, write_frame  # noqa: PLC0415

    spark = df.sparkSession
    keys = (keys,) if isinstance(keys, str) else tuple(keys)
    wanted = IcebergTarget(pipeline=query, table=table, keys=keys, properties=properties or {}, publish=publish)
    sink = IcebergSink(spark, wanted)
    schema = sink.open()
    if schema is None:
        sink.prepare(_wishes(df, {op}, None))
    mark = _hold(sink, spark, table, _source(spark, query), batch, adopt=adopt)
    # Only the owner changes the schema.
    schema = sink.prepare(_wishes(df, {op}, schema) if schema else ())
    _check_key_types(df, schema, keys)
    upper = Timestamp(_base(mark) + batch + 1)
    if upper <= mark.frontier:
        return Applied(batch, None)
    epoch = Epoch(mark.frontier, upper)
    fresh = mark.frontier == ORIGIN and sink.is_empty()
    arrow = schema_to_pyarrow(schema, include_field_ids=True)
    work = FrameWork(sink.writer(epoch, schema, fresh=fresh), arrow.serialize().to_pybytes(), keys, sequence_by, op)
    files, counts = write_frame(df, work)
    staged = Staged(
        pipeline=query,
        target=table,
        epoch=epoch,
        epoch_id=epoch_id(query, table, epoch),
        position=Position.of({"batch": batch}),
        files=files,
        schema_id=schema.schema_id,
        settings=sink.settings(),
        fresh=fresh,
        counts=counts,
        columns=column_ids(schema),
    )
    match sink.publish(staged, mark):
        case Published(snapshot=snapshot, mark=after):
            _claims[spark.sparkContext.applicationId, table, query] = after
            return Applied(batch, snapshot, counts["upserts"], counts["deletes"])
        case FencedOff(owner=owner):
            raise _fenced(table, query, mark, owner)


def _check_key_types(df: DataFrame, schema: Schema, keys: Sequence[str]) -> None:
    """Refuse keys that would be cast: Spark would distribute '1' and '01' apart, and both would become 1."""
    given = _iceberg_schema(df)
    for key in keys:
        if key in given.column_names and given.find_type(key) != schema.find_type(key):
            raise ConfigError(
                f"key column {key} is {given.find_type(key)} in the DataFrame, {schema.find_type(key)} in the table",
                "cast it before applying",
            )


def _source(spark: SparkSession, query: str) -> Identity:
    """Name the query, and the streaming query that this batch is from: its id stays with its checkpoint."""
    stream = spark.sparkContext.getLocalProperty(STREAM)
    return Identity.of({"query": query, "stream": stream} if stream else {"query": query})


def _hold(sink: IcebergSink, spark: SparkSession, table: str, source: Identity, batch: int, *, adopt: bool) -> Mark:
    """Return the mark to go on from: claim the table once, then notice when somebody else does."""
    query = json.loads(source.text)["query"]
    name = (spark.sparkContext.applicationId, table, query)
    known, recalled = _claims.get(name), sink.recall()
    if known is not None and recalled is not None:
        if recalled.writer != known.writer:
            # Forgotten, so that a stream that is started again on purpose may claim.
            del _claims[name]
            raise _fenced(table, query, known, recalled.writer)
        sink.go_on_as(known.writer)
        return _continued(recalled, source, table, batch, adopt=adopt)
    if recalled is not None:
        # Before the claim: who is refused must not put another out.
        _continued(recalled, source, table, batch, adopt=adopt)
    # As whoever was there: that we go on from it is said above and below, and becomes durable with the first batch.
    mark = _claims[name] = sink.claim(uuid.uuid4().hex, recalled.source if recalled else source, adopt=adopt)
    return _continued(mark, source, table, batch, adopt=adopt)


def _continued(mark: Mark, source: Identity, table: str, batch: int, *, adopt: bool) -> Mark:
    """Return the mark as `source` goes on from it; the change of source becomes durable with its first batch."""
    theirs = {name: value for name, value in json.loads(mark.source.text).items() if name != BASE}
    ours = json.loads(source.text)
    if theirs == ours:
        return mark
    if mark.frontier != ORIGIN and not (adopt and "query" in theirs):
        raise SourceChanged(
            f"{table} has got as far as {mark.position.text} of {canonical(theirs)}; batch {batch} is of {source.text}",
            "start the stream from the checkpoint it had; or pass adopt=True once: its batches then go on from what the table holds",
        )
    return replace(mark, source=Identity.of({**ours, BASE: mark.frontier.wall}))


def _base(mark: Mark) -> int:
    """Return the batches that streams before this one brought: its own begin at 0."""
    base: int = json.loads(mark.source.text).get(BASE, 0)
    return base


def _fenced(table: str, query: str, mark: Mark, owner: object) -> FencedOut:
    took_over = "another application took this query over: stop one of the two"
    return FencedOut.by(owner, f"query {query} of {table}", mark.writer, took_over)


def _wishes(df: DataFrame, without: set[str | None], schema: Schema | None) -> list[Wish]:
    """Name the DataFrame's columns that the table does not have, with their Iceberg types."""
    known = set(schema.column_names) if schema else set()
    return [
        Wish(field.name, print_type(field.field_type), "the DataFrame")
        for field in _iceberg_schema(df).fields
        if field.name not in known and field.name not in without
    ]


def _iceberg_schema(df: DataFrame) -> Schema:
    jvm: Any = df.sparkSession._jvm  # noqa: SLF001
    java = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(df._jdf.schema())  # noqa: SLF001
    return Schema.model_validate_json(jvm.org.apache.iceberg.SchemaParser.toJson(java))
