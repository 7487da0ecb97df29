"""Every table of the matrix at every snapshot, compared with the feed by `verify`, which reads by Spark: one session for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from icefront.api import Pipeline
from icefront.proof.harness import SMALL, quick_jvm
from icefront.proof.verify import points, verify
from icefront.spark.session import start
from tests.process.matrix import Watched

CHANGED = ("added", "removed")


def differences(projects: Iterable[Watched]) -> Iterator[str]:
    """Name what is not as the feed says."""
    spark = start("matrix", "local[1]", {**SMALL, **quick_jvm()})
    snapshots = 0
    try:
        for project in projects:
            pipeline = Pipeline.load(project.file)
            # Sessions look catalogs up each for themselves, so all projects may have one of the same name.
            session = spark.newSession()
            for name, catalog in pipeline.settings.project.catalogs.items():
                for key, value in catalog.spark_conf(name).items():
                    session.conf.set(key, value)
            told = published(project)
            chosen = [point for point in points(pipeline, every_snapshot=True) if point.snapshot in told]
            compared = list(verify(pipeline, session, chosen))
            snapshots += len(compared)
            yield from (f"{project.folder}, snapshot {c.snapshot}: {c.difference}" for c in compared if not c.equal)
    finally:
        spark.stop()
    if not snapshots:
        yield "Spark has read no snapshot at all"


def published(project: Watched) -> set[int]:
    """The snapshots that have other files than the one before them; a claim or an empty epoch that had is found by the checker."""
    table = project.load()
    assert table is not None
    said = {snapshot.snapshot_id: snapshot.summary for snapshot in table.metadata.snapshots}
    return {number for number, summary in said.items() if summary and any(summary[f"{what}-files-size"] for what in CHANGED)}
