"""A second engine that reads equality deletes: iceberg-rust through DataFusion. It shares no code with Spark or Icefront."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datafusion
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable


def read(catalog: Path, table: str) -> tuple[list[dict[str, Any]], Schema]:
    """Read the table's current rows from an embedded catalog's folder."""
    name, _, identifier = table.partition(".")
    lake = load_catalog(name, type="sql", uri=f"sqlite:///{catalog}/catalog.db", warehouse=f"file://{catalog}/warehouse")
    return read_metadata(lake.load_table(identifier).metadata_location)


def read_metadata(location: str) -> tuple[list[dict[str, Any]], Schema]:
    """Read the table's rows as a metadata file describes them."""
    found = StaticTable.from_metadata(location)
    context = datafusion.SessionContext()
    context.register_table("t", found)
    return context.sql("SELECT * FROM t").to_pylist(), found.schema()
