"""What `import icefront` offers: `Pipeline`, `apply_changes` and `changes`. Importing it starts nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from icefront.apply import Applied, apply_changes
from icefront.changes import changes
from icefront.core.errors import ConfigError, IcefrontError
from icefront.core.marks import START
from icefront.pipeline import EpochPublished, Result, Run, RunOptions
from icefront.settings import PipelineSettings, Project, Target, load_pipeline, reveal
from icefront.settings.secrets import masked
from icefront.sources.changefeed import Changefeed
from icefront.state.store import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT_BYTES = 64 * 1024 * 1024

__all__ = ["Applied", "EpochPublished", "Pipeline", "Result", "apply_changes", "changes", "start_session"]


def start_session(project: Project, name: str) -> SparkSession:
    """Start the Spark session that a project file describes."""
    from icefront.spark.session import start  # noqa: PLC0415 — Spark is an extra, and slow to import

    for catalog in project.catalogs.values():
        catalog.create_folder()
    log = project.state.parent / "spark.log"
    return start(f"icefront {name}", project.spark.master, project.spark_conf(), log=log)


class Pipeline:
    """One source, one or more targets, as a pipeline file or the same settings built in Python say."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Pipeline:
        """Read a pipeline file and the project file beside it."""
        return cls(load_pipeline(Path(path)))

    def source(self, parallelism: int = 1) -> Changefeed:
        """Make the source. Nothing is read yet. Epochs are cut into about `parallelism` splits where that is worth it."""
        feed = self.settings.source.changefeed
        assert feed is not None
        return Changefeed(
            feed.path,
            storage=reveal(feed.storage),
            name=feed.id,
            envelope=feed.envelope,
            split_bytes=SPLIT_BYTES,
            parallelism=parallelism,
        )

    def targets(self, source: Changefeed | None = None) -> Sequence[Target]:
        """Say which of the source's tables goes where, as of now."""
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
        stop: threading.Event | None = None,
    ) -> Result:
        """Run until told to stop: by `until`, by `seconds`, or by setting the event `stop`, which drains."""
        if until not in {None, "caught-up"}:
            raise ConfigError(f'until is "{until}"', 'the only condition is "caught-up"')
        from icefront.assembly import Routes  # noqa: PLC0415 — Spark is an extra, and slow to import

        feed = self.settings.source.changefeed
        assert feed is not None
        spark = spark or self.session()
        source = self.source(spark.sparkContext.defaultParallelism)
        with StateStore(self.settings.project.state) as notes:
            run = Run(
                self.settings.pipeline,
                source,
                Routes(spark, self.settings, source),
                notes,
                self.settings.minting,
                options=RunOptions(until_caught_up=until is not None, seconds=seconds, adopt=adopt, poll=feed.poll.seconds),
                tell=on_epoch or (lambda _: None),
                stop=stop,
            )
            return _noted(notes, self.settings.pipeline, run, spark)


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
