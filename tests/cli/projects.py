"""Projects for tests of the command line, and tables made without a JVM: with PyIceberg, as a run would leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from typer.testing import CliRunner, Result

from icefront.cli import app
from icefront.core.epochs import Epoch, epoch_id, origin_id
from icefront.core.marks import START, Identity, Mark, Position, Writer
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.settings import load_project
from icefront.testing.feeds import ORDERS, Feed

TARGET = "lake.shop.orders"
SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "status", StringType(), required=False))


class Kept:
    """The shared session, for a command that would stop the session it asked for."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


def icefront(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@dataclass
class Shop:
    """A project folder with a feed of one table and a pipeline file for it."""

    folder: Path
    feed: Feed

    @classmethod
    def make(cls, folder: Path, **settings: Any) -> Shop:
        feed = Feed(folder / "feed", tables=(ORDERS,), seed=3)
        feed.scan(20)
        for _ in range(3):
            feed.advance(10)
        shop = cls(folder, feed)
        shop.write(**settings)
        return shop

    @property
    def file(self) -> Path:
        return self.folder / "orders.yaml"

    def write(self, **settings: Any) -> None:
        base = {
            "pipeline": "orders",
            "source": {"changefeed": {"path": "feed/"}},
            "keys": ["id"],
            "sink": {"iceberg": {"table": TARGET}},
        }
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in (base | settings).items()]
        self.file.write_text("".join(lines))

    # ── a table, as a run would leave it ───────────────────────────────────────────────────
    def catalog(self) -> Catalog:
        project = load_project(self.folder)
        path = project.catalogs["lake"].path
        assert path is not None
        path.mkdir(exist_ok=True)
        return load_catalog("lake", **project.catalogs["lake"].pyiceberg_properties("lake"))

    def table(self, schema: Schema = SCHEMA, properties: Mapping[str, str] | None = None) -> Table:
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("shop")
        return catalog.create_table("shop.orders", schema, properties=dict(properties or {}))

    def identity(self) -> Identity:
        return Identity.of({"changefeed": str(self.folder / "feed")})

    def mark(self, frontier: Timestamp, lower: Timestamp = ORIGIN, position: Position | None = None) -> Mark:
        name = epoch_id("orders", TARGET, Epoch(lower, frontier)) if frontier != ORIGIN else origin_id("orders", TARGET)
        resolved = frontier.prev() if frontier != ORIGIN else None
        reached = Position.of({"resolved": str(resolved), "from": str(resolved), "since": 0}) if resolved else START
        return Mark("orders", frontier, name, position or reached, self.identity(), Writer("run", 1))

    def publish(self, table: Table, lower: Timestamp, upper: Timestamp, rows: int = 1) -> Mark:
        """Append rows the way a publication does: summary and mark in one transaction."""
        mark = self.mark(upper, lower)
        entries = {
            summary.PIPELINE: "orders",
            summary.EPOCH_ID: str(mark.epoch_id),
            summary.FRONTIER: str(upper),
            summary.WRITER: str(mark.writer),
            summary.LOWER: str(lower),
            summary.POSITION: mark.position.text,
            f"{summary.COUNT}inside": str(rows),
        }
        data = pa.table(
            {"id": pa.array(range(rows), pa.int64()), "status": pa.array(["new"] * rows)},
            schema=pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("status", pa.string())]),
        )
        with table.transaction() as transaction:
            transaction.append(data, snapshot_properties=entries)
            transaction.set_properties({summary.mark_property("orders"): mark.to_json()})
        return mark
