"""Upkeep on a REST catalog whose answers go wrong: what landed is found, and no file that the table needs is cleaned up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icefront.proof.proxy import FAULTS, FaultProxy
from icefront.upkeep.compact import compact
from icefront.upkeep.settle import settle
from tests.rest.channel import Channel

pytestmark = [pytest.mark.spark, pytest.mark.process]
# Every other one; the client waits a second before it repeats those that are left out by itself.
LANDED = [name for name, fault in FAULTS.items() if fault.catalog in {"once", "twice"} and not name.startswith(("429", "503"))]


def test_a_settle_and_a_compaction_that_landed_and_were_answered_badly_are_found(
    proxy: FaultProxy, channel: Callable[..., Channel]
) -> None:
    table = channel()
    table.claim()
    name = f"far.{table.name}"
    for turn, fault in enumerate([*LANDED[::2], "503-after"]):
        for i in range(2):
            table.publish({1: f"{turn}.{i}", turn + 2: "new"})
        proxy.arm(fault)
        assert len(settle(table.spark, name).snapshots) == 1
        proxy.arm(fault)
        done = compact(table.spark, name, min_files=2)
        assert (done.files_after, done.failed_groups, done.left) == (1, 0, 0), fault
        assert proxy.struck[fault] == 2
    table.check()
    assert len(list(table.table().scan().plan_files())) == 1
