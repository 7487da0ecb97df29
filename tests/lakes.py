"""Helpers for tests that run pipelines: a project around a lake, and comparisons at every snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema

from icefront.api import Pipeline
from icefront.iceberg.java import Gateway
from icefront.pipeline import Result
from icefront.proof.oracle import compare, replay
from icefront.settings import load_pipeline


@dataclass(frozen=True)
class Lake:
    """A project in a folder of its own, on the session's catalog."""

    spark: Any
    folder: Path
    catalog: Path

    @property
    def feed(self) -> Path:
        return self.folder / "feed"

    def pipeline(self, name: str = "orders", **settings: Any) -> Pipeline:
        self.folder.joinpath("icefront.yaml").write_text(
            json.dumps({"catalogs": {"lake": {"type": "sqlite", "path": str(self.catalog)}}, "state": "state.db"})
        )
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps({"pipeline": name, "source": {"changefeed": {"path": "feed/"}}, "upkeep": "off", **settings}))
        return Pipeline(load_pipeline(path))

    def run(self, pipeline: Pipeline, **options: Any) -> Result:
        return pipeline.run(self.spark, until="caught-up", **options)

    def rows(self, table: str, snapshot: int | None = None) -> list[dict[str, Any]]:
        version = f" VERSION AS OF {snapshot}" if snapshot else ""
        return [row.asDict(recursive=True) for row in self.spark.sql(f"SELECT * FROM {table}{version}").collect()]

    def schema(self, table: str) -> Schema:
        found = Gateway(self.spark).load(table)
        assert found is not None
        return Schema.model_validate_json(found.schema_json())

    def epochs(self, table: str) -> list[tuple[int, str]]:
        """The pipeline's epoch snapshots, oldest first, with their frontiers."""
        rows = self.spark.sql(f"SELECT snapshot_id, summary FROM {table}.snapshots ORDER BY committed_at, snapshot_id").collect()
        return [(r[0], r[1]["icefront.frontier"]) for r in rows if "icefront.lower" in r[1]]

    def check_every_snapshot(self, table: str, source_table: str, keys: Sequence[str] = ("id",)) -> int:
        """Every snapshot equals the feed replayed to its frontier, by a reader of its own."""
        schema = self.schema(table)
        epochs = self.epochs(table)
        for snapshot, frontier in epochs:
            expected = replay(self.feed, source_table, keys, frontier)
            difference = compare(expected, self.rows(table, snapshot), schema, keys)
            assert not difference, (table, snapshot, frontier, difference)
        return len(epochs)


def orders(table: str, **settings: Any) -> Mapping[str, Any]:
    """The settings of a pipeline for the demo's orders table."""
    sink = {"iceberg": {"table": table, **settings.pop("iceberg", {})}}
    columns = {"id": "bigint", "amount": "decimal(12,2)", "created_at": "timestamptz"}
    return {"keys": ["id"], "columns": columns, "sink": sink, "epochs": {"every": "resolved"}, "upkeep": "off", **settings}


def snapshots(spark: Any, table: str) -> Iterator[Any]:
    yield from spark.sql(f"SELECT * FROM {table}.snapshots ORDER BY committed_at").collect()
