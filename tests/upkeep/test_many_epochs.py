"""Many epochs of one row: with upkeep, what the table has to carry does not grow with their number."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from icefront.iceberg.java import Gateway
from icefront.proof.oracle import compare
from icefront.testing.feeds import ORDERS, Feed
from icefront.upkeep import need
from tests.lakes import Lake, orders

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

TERMS = {
    "settle": {"files": 20, "every": "1ms"},
    "compact": {"files": 20, "every": "1ms"},
    "expire": {"keep": "30d", "at_least": 5, "at_most": 40, "orphans": "off", "every": "1ms"},
}
LIMITS = {
    "data files": 150,
    "delete files": 150,
    "manifests": 300,
    "snapshots": 150,
    "kilobytes of metadata": 400,
    "metadata files": 101,
}
"""What a table may have to carry, whose cycles do not rest. Without upkeep all of it grows on.

A commit that lost to another one leaves its metadata file to the removal of orphans, which is by age.

A publish reads the list of manifests and writes it and the metadata anew: what it takes grows with these numbers, and with no other.
"""
RESTED = 6
"""Over many stretches: after a cycle its kind rests four times as long as it took, and stretches of ten epochs a second come meanwhile.

Over two of them nothing rests: how much there is would be a matter of the machine's speed.
"""


@pytest.mark.parametrize(
    ("epochs", "stretch", "rest", "rested"),
    [(100, 50, 0, 1), pytest.param(10_000, 100, need.REST, RESTED, marks=pytest.mark.long)],
)
def test_one_row_epochs_leave_a_table_that_stays_small(
    lake: Lake, table: str, epochs: int, stretch: int, rest: int, rested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(need, "REST", rest)
    pipeline = lake.pipeline(**orders(table, upkeep=TERMS))
    feed = Feed(lake.feed, tables=[ORDERS], seed=9)
    feed.scan(30)
    published = 0
    for _ in range(epochs // stretch):
        for _ in range(stretch):
            feed.advance(1)
        # What is due is done before it ends.
        published += lake.run(pipeline).epochs
        live = Gateway(lake.spark).load(table)
        assert live is not None
        summary = live.table.currentSnapshot().summary()
        metadata = Path(urlsplit(live.metadata().metadataFileLocation()).path)
        carried = {
            "data files": int(summary["total-data-files"]),
            "delete files": int(summary["total-delete-files"]),
            "manifests": lake.spark.sql(f"SELECT * FROM {table}.manifests").count(),
            "snapshots": live.metadata().snapshots().size(),
            "kilobytes of metadata": metadata.stat().st_size // 1024,
            "metadata files": live.metadata().previousFiles().size() + 1,
        }
        assert {what: number for what, number in carried.items() if number > rested * LIMITS[what]} == {}, (published, carried)
    assert published == epochs + 1
    expected = feed.state("orders", feed.resolved[-1].next())
    assert not compare(expected, lake.rows(table), lake.schema(table), ["id"])
