"""A table on a REST catalog, written through one sink, and what each of its snapshots must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icefront.core.files import Staged
from icefront.core.marks import Mark
from icefront.core.protocol import Head, Outcome, Published
from icefront.proof.checker import by_datafusion
from icefront.proof.proxy import FaultProxy, Request, Strike
from icefront.sinks.iceberg import IcebergSink
from tests.servers.rest import RestCatalog
from tests.sinks.test_iceberg_sink import claim, make, stage

Rows = dict[int, str]


@dataclass
class Channel:
    """Writes through `catalog`, looks at the server directly. `held` is what the table holds at each frontier."""

    spark: Any
    server: RestCatalog
    catalog: str
    name: str
    wanted: Mapping[str, Any]
    held: dict[str, Rows] = field(default_factory=dict)
    mark: Mark | None = None
    _sink: IcebergSink | None = None

    @property
    def opened(self) -> bool:
        return self._sink is not None

    @property
    def sink(self) -> IcebergSink:
        """The sink, its table opened or created."""
        if self._sink is None:
            self._sink = make(self.spark, f"{self.catalog}.{self.name}", **self.wanted)
        return self._sink

    def claim(self) -> Mark:
        self.mark = claim(self.sink)
        return self.mark

    def stage(self, changes: Mapping[int, str | None]) -> Staged:
        assert self.mark is not None
        return stage(self.sink, self.mark, self.mark.frontier.wall + 10, changes)

    def publish(self, changes: Mapping[int, str | None]) -> Published:
        outcome = self.publish_staged(self.stage(changes), changes)
        assert isinstance(outcome, Published), outcome
        return outcome

    def publish_staged(self, staged: Staged, changes: Mapping[int, str | None]) -> Outcome:
        assert self.mark is not None
        outcome = self.sink.publish(staged, self.mark)
        if isinstance(outcome, Published):
            self.mark = outcome.mark
            self.hold(staged, changes)
        return outcome

    def hold(self, staged: Staged, changes: Mapping[int, str | None]) -> None:
        """Expect these changes in the table from the end of this epoch on."""
        before = self.held.get(str(staged.epoch.lower), {})
        self.held[str(staged.epoch.upper)] = {key: v for key, v in (before | dict(changes)).items() if v is not None}

    # ── looking ────────────────────────────────────────────────────────────────────────────
    def table(self) -> Table:
        return load_catalog("near", **self.server.properties).load_table(self.name)

    def claims(self) -> int:
        """Count the snapshots that make a writer the owner, and do nothing else."""
        return sum("icefront.claim" in said and "icefront.change" not in said for said in self._summaries())

    def changes(self) -> list[str]:
        """Name what was changed in the table besides its rows, in this order."""
        return [said["icefront.change"] for said in self._summaries() if "icefront.change" in said]

    def _summaries(self) -> list[Mapping[str, str]]:
        return [s.summary.additional_properties for s in self.table().metadata.snapshots if s.summary]

    def check(self) -> None:
        """Every epoch is there once and in order, on one branch; every snapshot can be read and is right, by two engines."""
        check_snapshots(self.spark, f"near.{self.name}", self.table(), self.held)


# ── what a table must hold ─────────────────────────────────────────────────────────────────
def check_snapshots(spark: Any, name: str, table: Table, held: Mapping[str, Rows]) -> None:
    """The table publishes these frontiers once each and in this order, on one branch, with these rows at each.

    All of them are read by Spark, under this name, and the newest by a second engine.
    """
    metadata = table.metadata
    parents = {s.snapshot_id: s.parent_snapshot_id for s in metadata.snapshots}
    branch = []
    at = metadata.current_snapshot_id
    while at is not None:
        branch.append(at)
        at = parents[at]
    assert sorted(branch) == sorted(parents), "a snapshot is on no branch"
    summaries = {s.snapshot_id: s.summary.additional_properties for s in metadata.snapshots if s.summary}
    epochs = [(i, summaries[i]["icefront.frontier"]) for i in reversed(branch) if "icefront.lower" in summaries[i]]
    assert [frontier for _, frontier in epochs] == list(held)
    if epochs:
        assert _travel(spark, name, [i for i, _ in epochs]) == list(held.values())
        assert sorted((row["id"], row["v"]) for row in by_datafusion(table)) == sorted(list(held.values())[-1].items())


def _travel(spark: Any, name: str, snapshots: Sequence[int]) -> list[Rows]:
    """Read all these snapshots by Spark, in one query."""
    parts = [f"SELECT {number} AS number, id, v FROM {name} VERSION AS OF {i}" for number, i in enumerate(snapshots)]
    rows = spark.sql(" UNION ALL ".join(parts)).collect()
    assert len({(row[0], row[1]) for row in rows}) == len(rows), "a key is there twice"
    return [{row[1]: row[2] for row in rows if row[0] == number} for number in range(len(snapshots))]


# ── what the catalog is asked ──────────────────────────────────────────────────────────────
def note_requests(proxy: FaultProxy) -> list[Request]:
    """Note every request from now on."""
    seen: list[Request] = []

    def note(request: Request) -> bool:
        seen.append(request)
        return False

    proxy.arm("slow", where=note)  # strikes nothing, but is asked about every request
    return seen


# ── what comes late ────────────────────────────────────────────────────────────────────────
def release_before_looking(proxy: FaultProxy, sink: IcebergSink, monkeypatch: pytest.MonkeyPatch) -> list[Strike]:
    """Let what is held back reach the catalog just before the sink looks for the first time."""
    released: list[Strike] = []
    look = sink._look

    def late(*args: Any) -> Head:
        released.extend(proxy.release())
        return look(*args)

    monkeypatch.setattr(sink, "_look", late)
    return released


def applied(strikes: Sequence[Strike]) -> list[bool]:
    return [strike.applied for strike in strikes]
