"""The floor under intake: the same bytes decoded once and written once by bare libraries, by one process per core.

polars as well as pyarrow decode, pyarrow writes. No netting, no check that a value is exact, no notes, no table. Both are spared what
they are slow at: they need not read the key, which rows repeat, and they read times as text, which pyarrow then casts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from icefront.testing.feeds import ORDERS_COLUMNS

AMOUNT = pa.decimal128(12, 2)
CREATED = pa.timestamp("us", "UTC")
_ROW: dict[str, pl.DataType | type[pl.DataType]] = {
    "amount": pl.String,  # polars reads decimals only as text
    "created_at": pl.String,
    "customer_id": pl.Int64,
    "id": pl.Int64,
    "note": pl.String,
    "status": pl.String,
}
_POLARS: dict[str, pl.DataType | type[pl.DataType]] = {"after": pl.Struct(_ROW), "updated": pl.String}
_ARROW_ROW = pa.struct(
    {
        "amount": pa.float64(),  # and pyarrow only through a double
        "created_at": pa.string(),
        "customer_id": pa.int64(),
        "id": pa.int64(),
        "note": pa.string(),
        "status": pa.string(),
    }
)
_ARROW = pa.schema({"after": _ARROW_ROW, "updated": pa.string()})


def by_polars(file: Path) -> pa.Table:
    return pl.read_ndjson(file, schema=_POLARS).unnest("after").to_arrow()


def by_pyarrow(file: Path) -> pa.Table:
    reading = pj.ReadOptions(use_threads=False, block_size=8 << 20)
    parsing = pj.ParseOptions(explicit_schema=_ARROW, unexpected_field_behavior="ignore")
    table = pj.read_json(file, reading, parsing)
    return pa.table(table["after"].combine_chunks().flatten(), names=_ARROW_ROW.names)


DECODERS: dict[str, Callable[[Path], pa.Table]] = {"polars": by_polars, "pyarrow": by_pyarrow}


def decode_and_write(decoder: str, files: Sequence[Path], target: Path) -> int:
    """Turn files into one Parquet file of the table's columns, a row group per file; return the number of rows."""
    rows = 0
    writer: pq.ParquetWriter | None = None
    for file in files:
        table = DECODERS[decoder](file).select(list(ORDERS_COLUMNS))
        for column, kind in (("amount", AMOUNT), ("created_at", CREATED)):
            table = table.set_column(table.column_names.index(column), column, table[column].cast(kind, safe=False))
        writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
        writer.write_table(table)
        rows += table.num_rows
    if writer is not None:
        writer.close()
    return rows


@contextmanager
def workers() -> Iterator[Pool]:
    """One process per core, each with one polars thread, started and warm."""
    before = os.environ.get("POLARS_MAX_THREADS")
    os.environ["POLARS_MAX_THREADS"] = "1"
    cores = os.cpu_count() or 1
    try:
        with multiprocessing.get_context("spawn").Pool(cores) as pool:
            pool.map(_nothing, range(4 * cores), chunksize=1)
            yield pool
    finally:
        if before is None:
            del os.environ["POLARS_MAX_THREADS"]
        else:
            os.environ["POLARS_MAX_THREADS"] = before


def _nothing(_: int) -> None:
    """Import what decoding needs."""


def run(pool: Pool, decoder: str, files: Sequence[Path], folder: Path) -> int:
    """Let each process take its share of the files."""
    cores = os.cpu_count() or 1
    shares = [files[i::cores] for i in range(cores)]
    folder.mkdir(parents=True, exist_ok=True)
    work = [(decoder, share, folder / f"{i}.parquet") for i, share in enumerate(shares) if share]
    return sum(pool.starmap(decode_and_write, work, chunksize=1))
