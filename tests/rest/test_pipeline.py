"""A whole pipeline on a bad line: faults by chance on commits and loads, runs again until it is through."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from icefront.api import Pipeline
from icefront.core.errors import CommitUncertain, ConnectionFailed
from icefront.proof.proxy import RANDOM_FAULTS, FaultProxy, commits, loads
from icefront.settings import load_pipeline
from icefront.testing.feeds import ORDERS, Feed
from tests.lakes import Lake, orders

pytestmark = [pytest.mark.spark, pytest.mark.process]
# The client waits seconds before it repeats what says 429 or 503; nobody answers a load with 409.
COMMIT_FAULTS = [name for name in RANDOM_FAULTS if not name.startswith(("429", "503"))]
LOAD_FAULTS = ["lost", "truncated", "slow", "reset-before", "403-before"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_a_pipeline_on_a_bad_line_publishes_every_epoch_once(known: Any, proxy: FaultProxy, tmp_path: Path, seed: int) -> None:
    feed = Feed(tmp_path / "feed", tables=[ORDERS], seed=seed, deletes=0.3)
    feed.scan(20)
    for _ in range(6):
        feed.advance(20)
    table = f"t.line_{seed}"
    (tmp_path / "icefront.yaml").write_text(json.dumps({"catalogs": {"far": {"type": "rest", "uri": proxy.uri}}}))
    settings = {"pipeline": "orders", "source": {"changefeed": {"path": "feed/"}}, **orders(f"far.{table}")}
    (tmp_path / "orders.yaml").write_text(json.dumps(settings))
    pipeline = Pipeline(load_pipeline(tmp_path / "orders.yaml"))
    proxy.randomly(Random(seed), 0.6, COMMIT_FAULTS)
    for number in range(4):
        proxy.arm(LOAD_FAULTS[(seed + number) % len(LOAD_FAULTS)], nth=5 * number + 3, where=loads)
    for _ in range(12):
        try:
            pipeline.run(known, until="caught-up")
            break
        except (ConnectionFailed, CommitUncertain):
            proxy.release()
    proxy.disarm()
    feed.advance(20)
    pipeline.run(known, until="caught-up")
    assert sum(commits(strike.request) for strike in proxy.strikes) >= 3, "too few faults to prove anything"
    assert Lake(known, tmp_path, tmp_path).check_every_snapshot(f"near.{table}", "orders") >= 7
