"""Every table of the matrix at every snapshot, compared with the feed by `verify`, which reads by Spark: one session for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

from pyspark.sql import SparkSession

from icefront.api import Pipeline
from icefront.iceberg import summary
from icefront.proof.harness import SMALL, quick_jvm
from icefront.proof.verify import Comparison, Point, points, verify
from icefront.spark.session import start
from tests.process.matrix import Watched

_READERS = 4
"""For every data file Iceberg waits hundredths of a second for its deletes, and does nothing."""


def in_one_session(projects: Iterable[Watched]) -> Sequence[str]:
    """Name what is not as the feed says in any of them."""
    spark = start("matrix", f"local[{_READERS}]", {**SMALL, **quick_jvm()})
    try:
        return [*chain(*(differences(spark, project) for project in projects))]
    finally:
        spark.stop()


def differences(spark: SparkSession, project: Watched) -> Iterator[str]:
    """Name what is not as the feed says."""
    pipeline = Pipeline.load(project.file)
    # Sessions look catalogs up each for themselves, so all projects may have one of the same name.
    session = spark.newSession()
    for name, catalog in pipeline.settings.project.catalogs.items():
        for key, value in catalog.spark_conf(name).items():
            session.conf.set(key, value)
    found = chosen(project, pipeline)
    with ThreadPoolExecutor(_READERS) as readers:
        parts = (found[first::_READERS] for first in range(_READERS))
        compared = [*chain(*readers.map(partial(compare, pipeline, session), parts))]
    assert {c.snapshot for c in compared} == {point.snapshot for point in found}
    yield from (f"{project.folder}, snapshot {c.snapshot}: {c.difference}" for c in compared if not c.equal)
    if not any(c.rows for c in compared):
        yield f"{project.folder}: Spark has read no rows at all"


def compare(pipeline: Pipeline, session: SparkSession, some: Sequence[Point]) -> Sequence[Comparison]:
    return list(verify(pipeline, session, some))


def chosen(project: Watched, pipeline: Pipeline) -> Sequence[Point]:
    """All snapshots of the pipeline, but for mere claims: the checker sees that they change nothing. And the newest, whoever made it."""
    table = project.load()
    assert table is not None
    said = {s.snapshot_id: s.summary.additional_properties for s in table.metadata.snapshots if s.summary}
    claims = {number for number, names in said.items() if summary.CLAIM in names and summary.CHANGE not in names}
    history = [point for point in points(pipeline, every_snapshot=True) if point.snapshot not in claims]
    return list({point.snapshot: point for point in [*history, *points(pipeline)]}.values())
