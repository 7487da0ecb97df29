"""Other engines: iceberg-rust through DataFusion, which reads equality deletes; PyIceberg, Polars and DuckDB, which need tables without."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
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
    names = found.schema().column_names
    snapshot = found.current_snapshot()
    # It reads in the snapshot's own schema: a column that came since is not in it, and all null.
    old = found.schemas()[snapshot.schema_id].column_names if snapshot is not None and snapshot.schema_id is not None else names
    there = ", ".join(f'"{name}"' for name in names if name in old)
    rows = context.sql(f"SELECT {there} FROM t").to_pylist()
    return [dict.fromkeys(names) | row for row in rows], found.schema()


def by_pyiceberg(location: str) -> pa.Table:
    return StaticTable.from_metadata(location).scan().to_arrow()


def by_polars(location: str) -> pa.Table:
    return pl.scan_iceberg(location).collect().to_arrow()


def by_duckdb(location: str) -> pa.Table:
    """Its extensions come with the packages that are locked: nothing is fetched."""
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            (folder,) = (files(f"duckdb_extension_{name}") / "extensions").iterdir()
            connection.execute(f"LOAD '{folder / name}.duckdb_extension'")
        found: pa.Table = connection.execute("SELECT * FROM iceberg_scan(?)", [location]).to_arrow_table()
        return found


WITHOUT_EQUALITY_DELETES = (by_pyiceberg, by_polars, by_duckdb)
