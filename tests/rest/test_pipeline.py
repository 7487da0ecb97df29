"""A whole pipeline on a bad line: faults by chance on commits and loads, runs again until it is through."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icefront.api import Pipeline
from icefront.core.errors import CommitUncertain, ConnectionFailed
from icefront.proof.checker import Checker, Subject, by_datafusion
from icefront.proof.oracle import replay
from icefront.proof.proxy import FAULTS, FaultProxy, Strike, commits, loads
from icefront.settings import load_pipeline
from icefront.testing.feeds import ORDERS, Feed
from tests.lakes import Lake, orders
from tests.rest.channel import applied
from tests.servers.rest import RestCatalog

pytestmark = [pytest.mark.spark, pytest.mark.process]
# The client waits seconds before it repeats what says 429 or 503, and for ever where all is silent; nobody answers a load with 409.
COMMIT_FAULTS = [name for name in FAULTS if not name.startswith(("429", "503", "silent"))]
LOAD_FAULTS = ["lost", "truncated", "slow", "reset-before", "403-before"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_a_pipeline_on_a_bad_line_publishes_every_epoch_once(
    known: Any, proxy: FaultProxy, rest_catalog: RestCatalog, tmp_path: Path, seed: int
) -> None:
    feed = Feed(tmp_path / "feed", tables=[ORDERS], seed=seed, deletes=0.3)
    feed.scan(20)
    for _ in range(6):
        feed.advance(20)
    table = f"t.line_{seed}"
    (tmp_path / "icefront.yaml").write_text(json.dumps({"catalogs": {"far": {"type": "rest", "uri": proxy.uri}}}))
    settings = {
        "pipeline": "orders",
        "source": {"changefeed": {"path": "feed/"}},
        **orders(f"far.{table}", commit={"retries": 1}),
    }
    (tmp_path / "orders.yaml").write_text(json.dumps(settings))
    pipeline = Pipeline(load_pipeline(tmp_path / "orders.yaml"))
    watched = watch(known, rest_catalog, tmp_path, table)
    proxy.arm("late-504", times=2)  # the creation, and its one repetition
    proxy.arm("late-closed", nth=5, times=2)  # a commit, and its
    proxy.randomly(Random(seed), 0.6, COMMIT_FAULTS)
    for number in range(4):
        proxy.arm(LOAD_FAULTS[(seed + number) % len(LOAD_FAULTS)], nth=5 * number + 3, where=loads)
    failed: list[Exception] = []
    late: list[Strike] = []
    for _ in range(12):
        try:
            pipeline.run(known, until="caught-up")
            break
        except (ConnectionFailed, CommitUncertain) as error:
            failed.append(error)
            late.extend(proxy.release())
        assert not watched.check()
    assert 2 <= len(failed) < 12, "the late ones end a run each, and in the end one is through"
    assert any(applied(late)), "of what came after the end of its run nothing was applied"
    assert not any(applied(proxy.release())), "what came after the next attempt was applied"
    assert not watched.check()
    proxy.disarm()
    feed.advance(20)
    pipeline.run(known, until="caught-up")
    struck = Counter("commits" if commits(strike.request) else "loads" for strike in proxy.strikes)
    assert struck["commits"] >= 6, "too few faults to prove anything"
    assert struck["loads"] == 4
    assert not watched.check()
    assert not watched.check_with("DataFusion", by_datafusion)
    published = watched.subject.load()
    assert published is not None
    assert frontiers(published) == [str(resolved.next()) for resolved in feed.resolved]
    assert watched.snapshots == len(feed.resolved)


def watch(spark: Any, server: RestCatalog, folder: Path, table: str) -> Checker:
    """Look at the table past the proxy, with nothing of the writer's code."""
    catalog = load_catalog("near", **server.properties)
    lake = Lake(spark, folder, folder)
    subject = Subject(
        pipeline="orders",
        keys=("id",),
        load=lambda: catalog.load_table(table) if catalog.table_exists(table) else None,
        read=lambda snapshot: lake.rows(f"near.{table}", snapshot),
        expected=lambda frontier: replay(lake.feed, "orders", ["id"], frontier),
        state=folder / ".icefront" / "state.db",
    )
    return Checker(subject)


def frontiers(table: Table) -> list[str]:
    """The frontiers that the branch publishes, oldest first."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    found = []
    at = table.metadata.current_snapshot_id
    while at is not None:
        said = snapshots[at].summary
        if said is not None and "icefront.lower" in said.additional_properties:
            found.append(said.additional_properties["icefront.frontier"])
        at = snapshots[at].parent_snapshot_id
    return found[::-1]
