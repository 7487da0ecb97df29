"""From settings to parts: which source table goes through which job into which sink."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema

from icefront.core.epochs import Epoch
from icefront.core.errors import IcefrontError
from icefront.core.files import ClosedFile
from icefront.core.marks import START
from icefront.core.ports import Report, Source, Split, Wish
from icefront.formats.infer import unite
from icefront.iceberg import evolution
from icefront.iceberg.partitions import PartitionField
from icefront.iceberg.types import print_type
from icefront.pipeline import Route, Unroutable
from icefront.settings import PipelineSettings, Target, reveal
from icefront.settings.keys import key_columns, keys_unknown, refuse_members
from icefront.settings.pipeline import is_pattern
from icefront.sinks.iceberg import IcebergSink, IcebergTarget
from icefront.spark.job import Work, infer_columns, write_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkJob:
    """`pipeline.EpochJob` over a Spark session, for one table of a source and one sink."""

    spark: SparkSession
    source: Source
    sink: IcebergSink
    wanted: IcebergTarget
    table: str
    keys: tuple[str, ...]
    distribution: str

    def infer(self, epoch: Epoch, splits: Sequence[Split]) -> Sequence[Wish]:
        """Find the columns that nobody declared.

        With none in the first rows, a pass over the epoch is not worth it: one that turns up later is added then.
        """
        declared = {name for name, _ in self.wanted.columns}
        if declared and declared.issuperset(self.source.sample(self.table)):
            return ()
        reader = self.source.reader(self.table, self.keys, declared, self.wanted.policy.renames)
        reports = infer_columns(self.spark, reader, epoch, splits)
        return unite(wish for report in reports for wish in report.wishes)

    def write(
        self, epoch: Epoch, schema: Schema, splits: Sequence[Split], *, fresh: bool, ignored: Collection[str]
    ) -> tuple[Sequence[ClosedFile], Sequence[Report]]:
        work = Work(
            reader=self.source.reader(self.table, self.keys, ignored, self.wanted.policy.renames),
            writer=self.sink.writer(epoch, schema, fresh=fresh),
            epoch=epoch,
            schema=schema,
            keys=self.wanted.keys,
            sequence_by=self.wanted.sequence_by,
            upsert=self.wanted.mode == "upsert",
            distribution=self.distribution,
        )
        written = write_epoch(self.spark, work, splits)
        return written.files, written.reports


class Routes:
    """Names the routes there are now: a table may appear in the source while the pipeline runs.

    With `only`, it is the one to that target: the source is its own.
    """

    def __init__(self, spark: SparkSession, settings: PipelineSettings, source: Source, only: str | None = None) -> None:
        self._spark = spark
        self._settings = settings
        self._source = source
        self._only = only
        self._known: dict[str, Route] = {}
        self._complete = False

    def __call__(self) -> Sequence[Route | Unroutable]:
        if self._complete:
            return list(self._known.values())
        lost: list[Unroutable] = []
        for target in self._settings.targets_for(self._source.tables(START)):
            if target.name not in self._known and self._only in {None, target.name}:
                try:
                    self._known[target.name] = self._route(target)
                except IcefrontError as error:
                    lost.append(Unroutable(target.name, error))
        # Without patterns no other table can appear, and looking for one costs a listing.
        self._complete = bool(self._known) and not lost and not any(is_pattern(name) for name in self._settings.tables)
        return [*self._known.values(), *lost]

    def _route(self, target: Target) -> Route:
        keys = tuple(key_columns(self._settings, target, self._source.keys(target.source_table)))
        wanted = self._wanted(target, keys)
        sink = IcebergSink(self._spark, wanted)
        distribution = self._settings.write.distribution
        job = SparkJob(self._spark, self._source, sink, wanted, target.source_table, keys, distribution)
        return Route(target.source_table, sink, job)

    def _wanted(self, target: Target, keys: tuple[str, ...]) -> IcebergTarget:
        settings = self._settings
        mode = target.mode_with(keys)
        if mode == "upsert" and not keys:
            raise keys_unknown(target, settings.source.kind)
        if mode == "upsert" and settings.source.iceberg is not None:
            refuse_members(settings, target, keys, self._source.sample(target.source_table))
        catalog = settings.project.catalogs[target.sink.catalog]
        declared = "partition_by" in target.sink.model_fields_set
        fields = tuple(PartitionField(f.transform, f.column, f.argument) for f in target.sink.partition_by)
        policy = target.schema_policy
        return IcebergTarget(
            pipeline=settings.pipeline,
            table=target.name,
            keys=keys if mode == "upsert" else (),
            columns=tuple((name, print_type(kind)) for name, kind in target.columns.items()),
            mode=mode,
            format_version=target.sink.format_version,
            partition_by=fields if declared else None,
            deletes=target.sink.deletes,
            shared=target.sink.shared,
            properties=reveal(target.sink.properties),
            write_properties={"write.target-file-size-bytes": str(settings.write.target_file_size.bytes)},
            io_properties=catalog.pyiceberg_properties(target.sink.catalog),
            policy=evolution.Policy(policy.add_column, policy.widen_type, policy.rename_column, dict(policy.renames)),
            sequence_by=target.sequence_column,
            retries=settings.commit.retries,
            patience=settings.commit.patience.seconds,
            publish=settings.write.publish,
        )
