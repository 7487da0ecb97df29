"""Random feeds, random ways of running: at every resolved timestamp the table equals a plain dictionary."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from icefront.proof.oracle import compare
from icefront.testing.feeds import ORDERS, Feed
from tests.lakes import Lake, orders

pytestmark = pytest.mark.spark

STEPS = st.lists(st.sampled_from(["advance", "advance", "run", "restart", "lag", "alter", "forget"]), min_size=3, max_size=8)
PARTITIONS = st.sampled_from([None, ["bucket(3, id)"], ["status"], ["month(created_at)", "truncate(2, status)"]])
_tables = iter(range(10**9))


def drive(lake: Lake, feed: Feed, table: str, steps: list[str], **more: Any) -> None:
    pipeline = lake.pipeline(**orders(table, **more))
    feed.scan(15)
    for step in steps:
        match step:
            case "run":
                lake.run(pipeline)
            case "forget":
                for path in lake.folder.glob("state.db*"):
                    path.unlink()
            case "advance":
                feed.advance(25)
            case "alter":
                feed.alter("orders")
            case _:
                getattr(feed, step)()
    feed.advance(10)
    lake.run(pipeline)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    steps=STEPS,
    partition_by=PARTITIONS,
    deletes=st.sampled_from([0.0, 0.2, 0.6]),
    beyond=st.sampled_from([0.0, 0.4]),
    repeats=st.sampled_from([0.0, 0.5]),
    codec=st.sampled_from(["", "gzip", "zstd"]),
    format_version=st.sampled_from([2, 3]),
)
def test_every_snapshot_equals_a_dictionary(
    spark: Any,
    lake_folder: Path,
    seed: int,
    steps: list[str],
    partition_by: list[str] | None,
    deletes: float,
    beyond: float,
    repeats: float,
    codec: str,
    format_version: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(spark, Path(folder), lake_folder)
        table = f"lake.t.fed_{next(_tables)}"
        feed = Feed(lake.feed, tables=[ORDERS], seed=seed, deletes=deletes, beyond=beyond, repeats=repeats, codec=codec)
        iceberg: dict[str, Any] = {"format_version": format_version}
        drive(lake, feed, table, steps, iceberg={**iceberg, **({"partition_by": partition_by} if partition_by else {})})
        epochs = lake.epochs(table)
        note(f"{len(epochs)} epochs")
        assert [f for _, f in epochs] == [str(r.next()) for r in feed.resolved]
        for (snapshot, frontier), resolved in zip(epochs, feed.resolved, strict=True):
            expected = feed.state("orders", resolved.next())
            difference = compare(expected, lake.rows(table, snapshot), lake.schema(table), ["id"])
            assert not difference, (frontier, difference)
