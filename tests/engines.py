"""A second engine that reads equality deletes: iceberg-rust through DataFusion. It shares no code with Spark or Icefront."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datafusion
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema


def read(catalog: Path, table: str) -> tuple[list[dict[str, Any]], Schema]:
    """Read the table's current rows from an embedded catalog's folder."""
    lake = load_catalog("lake", type="sql", uri=f"sqlite:///{catalog}/catalog.db", warehouse=f"file://{catalog}/warehouse")
    found = lake.load_table(table.removeprefix("lake."))
    context = datafusion.SessionContext()
    context.register_table("t", found)
    return context.sql("SELECT * FROM t").to_pylist(), found.schema()
