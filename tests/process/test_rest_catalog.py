"""The same pipeline on a real REST catalog: its commits assert the branch, ours fence the writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from icefront.proof.harness import PROGRAM, Driver
from icefront.testing.feeds import ORDERS, Feed
from tests.conftest import lean
from tests.lakes import orders
from tests.process.forked import forked
from tests.servers.rest import RestCatalog

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def test_a_pipeline_runs_resumes_and_verifies_on_a_rest_catalog(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", tables=[ORDERS], seed=31, deletes=0.3)
    feed.scan(30)
    feed.advance(50)
    catalog = {"type": "rest", "uri": rest_catalog.uri}
    (tmp_path / "icefront.yaml").write_text(json.dumps({"catalogs": {"lake": catalog}, "spark": {"master": "local[1]"}}))
    settings = {"pipeline": "orders", "source": {"changefeed": {"path": "feed/"}}, **orders("lake.rest.orders")}
    (tmp_path / "orders.yaml").write_text(json.dumps(settings))

    def icefront(*arguments: str) -> None:
        with Driver([*PROGRAM, *arguments], tmp_path, lean(), forked) as driver:
            driver.expect(0)

    icefront("run", "orders.yaml", "--until", "caught-up")
    feed.advance(50)
    icefront("run", "orders.yaml", "--until", "caught-up")
    icefront("verify", "orders.yaml", "--every-snapshot")
    table = load_catalog("lake", type="rest", uri=rest_catalog.uri).load_table("rest.orders")
    assert "icefront.mark.orders" in table.properties
    assert [s.summary.operation.value for s in table.metadata.snapshots if s.summary] == [
        "append",  # a claim
        "append",  # the first epoch has nothing to delete
        "overwrite",
        "append",  # the second run's claim
        "overwrite",
    ]
