"""What `import icefront` offers: `Pipeline`, `apply_changes`, `changes`, `settle`, `compact` and `expire`. Importing it starts nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from icefront.apply import Applied, apply_changes
from icefront.changelog import changes
from icefront.core.errors import ConfigError, ConnectionFailed, FencedOut, IcefrontError
from icefront.core.marks import START
from icefront.core.ports import Source
from icefront.core.timestamps import ORIGIN
from icefront.pipeline import EpochPublished, Result, Run, RunOptions
from icefront.settings import PipelineSettings, Project, Target, load_pipeline, reveal
from icefront.settings.secrets import masked
from icefront.sources.changefeed import Changefeed
from icefront.sources.iceberg import IcebergSource, Table
from icefront.state.records import CycleRecord
from icefront.state.store import StateStore
from icefront.upkeep.compact import Compacted, compact
from icefront.upkeep.expire import Expired, expire
from icefront.upkeep.keeper import Background, Keeper
from icefront.upkeep.settle import Settled, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_BYTES = 64 * 1024 * 1024
LOOK_AGAIN = 60.0
"""So often, in seconds, upkeep asks which targets there are by now."""

__all__ = [
    "Applied",
    "Compacted",
    "CycleRecord",
    "EpochPublished",
    "Expired",
    "Pipeline",
    "Result",
    "Settled",
    "apply_changes",
    "changes",
    "compact",
    "expire",
    "settle",
    "staged_paths",
    "start_session",
]


def start_session(project: Project, name: str) -> SparkSession:
    """Start the Spark session that a project file describes."""
    from icefront.spark.session import start  # noqa: PLC0415 — Spark is an extra, and slow to import

    for catalog in project.catalogs.values():
        catalog.create_folder()
    log = project.state.parent / "spark.log"
    return start(f"icefront {name}", project.spark.master, project.spark_conf(), log=log)


def staged_paths(project: Project) -> Collection[str]:
    """Name the files that pipelines of a project have staged, as of now: written, noted, still to be published."""
    with StateStore(project.state, only_look=True) as notes:
        return notes.staged_paths()


class Pipeline:
    """One source, one or more targets, as a pipeline file or the same settings built in Python say."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Pipeline:
        """Read a pipeline file and the project file beside it."""
        return cls(load_pipeline(Path(path)))

    def source(self, parallelism: int = 1) -> Changefeed:
        """Make the source of a changefeed. Nothing is read yet. Epochs are cut into about `parallelism` splits where that is worth it."""
        feed = self.settings.source.changefeed
        if feed is None:
            raise ConfigError(f"pipeline {self.settings.pipeline} reads no changefeed", "this is only available for changefeeds")
        return Changefeed(
            feed.path,
            storage=reveal(feed.storage),
            name=feed.id,
            envelope=feed.envelope,
            split_bytes=SPLIT_BYTES,
            parallelism=parallelism,
        )

    def following(self, target: Target, table: Table, parallelism: int = 1) -> IcebergSource:
        """Make the source of one target that follows an Iceberg table: each has its own place in the table's history."""
        followed = self.settings.source.iceberg
        assert followed is not None
        return IcebergSource(
            table,
            tag=f"icefront-{self.settings.pipeline}-{hashlib.sha256(target.name.encode()).hexdigest()[:8]}",
            start=followed.start,
            batch_bytes=followed.batch.bytes,
            split_bytes=SPLIT_BYTES,
            parallelism=parallelism,
        )

    def targets(self, source: Changefeed | None = None) -> Sequence[Target]:
        """Say which of the source's tables goes where, as of now."""
        if self.settings.source.iceberg is not None:
            return self.settings.targets_for(())
        return self.settings.targets_for((source or self.source()).tables(START))

    def session(self) -> SparkSession:
        """Start the Spark session that the project file describes."""
        return start_session(self.settings.project, self.settings.pipeline)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        until: Literal["caught-up"] | None = None,
        seconds: float | None = None,
        adopt: bool = False,
        on_epoch: Callable[[EpochPublished], None] | None = None,
        on_cycle: Callable[[CycleRecord], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Result:
        """Run until told to stop: by `until`, by `seconds`, or by setting the event `stop`, which drains.

        `on_epoch` hears of every published epoch, `on_cycle` of every cycle of upkeep.
        """
        if until not in {None, "caught-up"}:
            raise ConfigError(f'until is "{until}"', 'the only condition is "caught-up"')
        from icefront.assembly import Routes  # noqa: PLC0415 — Spark is an extra, and slow to import

        polled = self.settings.source.changefeed or self.settings.source.iceberg
        assert polled is not None
        options = RunOptions(until_caught_up=until is not None, seconds=seconds, adopt=adopt, poll=polled.poll.seconds)
        session = spark or self.session()

        def run_one(source: Source, only: str | None, stop: threading.Event) -> Result:
            with StateStore(self.settings.project.state) as notes:
                run = Run(
                    self.settings.pipeline,
                    source,
                    Routes(session, self.settings, source, only),
                    notes,
                    self.settings.minting,
                    options=options,
                    tell=on_epoch or (lambda _: None),
                    stop=stop,
                    upkeep=Background(self.keeper(session, notes, on_cycle)) if self.settings.upkeep.in_run else None,
                )
                return _noted(notes, self.settings.pipeline, run, session)

        return _together([partial(run_one, *one) for one in self._sources(session)], stop or threading.Event())

    def upkeep(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        on_cycle: Callable[[CycleRecord], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Do the upkeep that is due: once, or whenever something is until the event `stop` is set. Beside a run, or without one."""
        from icefront.status.look import Look  # noqa: PLC0415 — it imports this module

        ended = stop or threading.Event()
        session = spark or self.session()
        with StateStore(self.settings.project.state) as notes:
            background = Background(self.keeper(session, notes, on_cycle))
            try:
                for target in Look(self).targets:
                    background.notice(target.name)
                while not once and not ended.wait(LOOK_AGAIN):
                    # A source that is away for a moment names no new target.
                    with suppress(ConnectionFailed):
                        for target in Look(self).targets:
                            background.notice(target.name)
                background.finish(ended.is_set)
            finally:
                background.close()
        if once and background.trouble is not None:
            raise background.trouble

    def keeper(self, spark: SparkSession, notes: StateStore, on_cycle: Callable[[CycleRecord], None] | None = None) -> Keeper:
        """Make what does the upkeep of targets; it is told of them one by one."""
        from icefront.upkeep.hands import SparkHands  # noqa: PLC0415 — Spark is an extra, and slow to import

        terms = self.settings.upkeep.terms
        hands = SparkHands(spark, notes.staged_paths, terms)
        return Keeper(self.settings.pipeline, terms, hands, notes, tell=on_cycle or (lambda _: None), masked=masked)

    def _check_not_emptied(self, source: Changefeed) -> None:
        """Stop where a feed was read and shows no table any more: then nobody else knows that there is a target."""
        if source.tables(START):
            return
        from icefront.status.look import Look  # noqa: PLC0415 — it imports this module

        for target, mark in Look(self).begun():
            source.observe(mark.position, [target.source_table])

    def _sources(self, spark: SparkSession) -> Sequence[tuple[Source, str | None]]:
        """Make the sources: one for all targets of a changefeed, and one for each target that follows a table."""
        parallelism = spark.sparkContext.defaultParallelism
        if self.settings.source.iceberg is None:
            source = self.source(parallelism)
            self._check_not_emptied(source)
            return [(source, None)]
        from icefront.iceberg.followed import FollowedTable  # noqa: PLC0415 — Spark is an extra, and slow to import

        catalogs = self.settings.project.catalogs
        made: list[tuple[Source, str | None]] = []
        for target in self.targets():
            name = target.source_table.split(".")[0]
            table = FollowedTable(spark, target.source_table, catalogs[name].pyiceberg_properties(name))
            made.append((self.following(target, table, parallelism), target.name))
        return made


def _together(runs: Sequence[Callable[[threading.Event], Result]], stop: threading.Event) -> Result:
    """Run at once what has sources of its own. One that fails leaves the others alone, unless another writer took over."""
    if len(runs) == 1:
        return runs[0](stop)
    ours = threading.Event()
    with ThreadPoolExecutor(len(runs), "follow") as threads:
        futures = [threads.submit(run, ours) for run in runs]
        try:
            while (found := wait(futures, timeout=0.2)).not_done:
                if stop.is_set() or any(isinstance(future.exception(), FencedOut) for future in found.done):
                    ours.set()
        finally:
            ours.set()
    if errors := [error for future in futures if (error := future.exception()) is not None]:
        raise min(errors, key=lambda error: not isinstance(error, FencedOut))
    results = [future.result() for future in futures]
    frontiers = dict(chain.from_iterable(result.frontiers.items() for result in results))
    published = tuple(chain.from_iterable(result.published for result in results))
    return Result(len(published), min(frontiers.values(), default=ORIGIN), frontiers, published)


def _noted(notes: StateStore, pipeline: str, run: Run, spark: SparkSession) -> Result:
    """Run, and leave a note of how it began and how it ended."""
    from icefront.spark.session import living  # noqa: PLC0415 — Spark is an extra, and slow to import

    notes.run_started(pipeline, run.id)
    try:
        with living(spark):
            result = run()
    except BaseException as error:
        kind, what = (type(error).__name__, error.fact) if isinstance(error, IcefrontError) else ("unexpected", repr(error))
        # How it ended decides what is done next; that it could not be noted does not.
        with suppress(IcefrontError):
            notes.run_ended(run.id, kind, masked(what))
        raise
    notes.run_ended(run.id, "done", epochs=result.epochs)
    return result
