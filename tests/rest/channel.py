"""A table on a REST catalog, written through one sink, and what each of its snapshots must hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icefront.core.files import Staged
from icefront.core.marks import Mark
from icefront.core.protocol import Outcome, Published
from icefront.proof.checker import by_datafusion
from icefront.sinks.iceberg import IcebergSink
from tests.servers.rest import RestCatalog
from tests.sinks.test_iceberg_sink import claim, make, stage

Rows = dict[int, str]


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Compile no code for queries over a handful of rows."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)


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
        """Count the snapshots that renew a mark, and publish nothing."""
        return len(self.table().metadata.snapshots) - len(self.held)

    def check(self) -> None:
        """Every epoch is there once and in order, on one branch; every snapshot can be read and is right, by two engines."""
        table = self.table()
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
        assert [frontier for _, frontier in epochs] == list(self.held)
        if epochs:
            assert self._travel([i for i, _ in epochs]) == list(self.held.values())
            assert sorted((row["id"], row["v"]) for row in by_datafusion(table)) == sorted(list(self.held.values())[-1].items())

    def _travel(self, snapshots: list[int]) -> list[Rows]:
        """Read all these snapshots by Spark, in one query."""
        parts = [
            f"SELECT {number} AS number, id, v FROM near.{self.name} VERSION AS OF {i}" for number, i in enumerate(snapshots)
        ]
        with interpreted(self.spark):
            rows = self.spark.sql(" UNION ALL ".join(parts)).collect()
        assert len({(row[0], row[1]) for row in rows}) == len(rows), "a key is there twice"
        return [{row[1]: row[2] for row in rows if row[0] == number} for number in range(len(snapshots))]
