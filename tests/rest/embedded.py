"""Embedded catalogs in folders of their own, under names of their own in one session."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from icefront.core.files import Staged
from icefront.core.marks import Mark
from icefront.core.timestamps import Timestamp
from icefront.settings import Catalog
from icefront.sinks.iceberg import IcebergSink
from tests.rest.channel import Rows, check_snapshots
from tests.sinks.test_iceberg_sink import claim, make, publish, stage

_names = (f"lite_{number}" for number in itertools.count())
HASTY = "journal_mode=WAL&busy_timeout=200&transaction_mode=IMMEDIATE"
FIRST: Rows = {1: "a", 2: "b"}
SECOND: Rows = {1: "c", 2: "b"}


class Embedded:
    """One such catalog, and its table."""

    def __init__(self, spark: Any, folder: Path, *, hasty: bool = False, **properties: str) -> None:
        self.spark, self.folder, self.name = spark, folder, next(_names)
        self._catalog = Catalog(type="sqlite", path=folder)
        self._catalog.create_folder()
        conf = {**self._catalog.spark_conf(self.name), **{f"spark.sql.catalog.{self.name}.{k}": v for k, v in properties.items()}}
        if hasty:
            conf[f"spark.sql.catalog.{self.name}.uri"] = f"jdbc:sqlite:{self.database}?{HASTY}"
        for key, value in conf.items():
            spark.conf.set(key, value)

    @property
    def database(self) -> Path:
        return self.folder / "catalog.db"

    @property
    def table(self) -> str:
        return f"{self.name}.t.x"

    def sink(self, **wanted: Any) -> IcebergSink:
        return make(self.spark, self.table, **wanted)

    def begin(self, **wanted: Any) -> tuple[IcebergSink, Mark, Staged]:
        """Publish one epoch, and stage another one."""
        sink = self.sink(**wanted)
        mark = publish(sink, claim(sink), 10, FIRST)
        return sink, mark, stage(sink, mark, 20, {1: "c"})

    def check(self, *states: Rows) -> None:
        """Each epoch so far is there once, with these rows: the first ends at 10, the next one at 20."""
        table = load_catalog(self.name, **self._catalog.pyiceberg_properties(self.name)).load_table("t.x")
        held = {str(Timestamp(10 * number)): state for number, state in enumerate(states, 1)}
        check_snapshots(self.spark, self.table, table, held)
