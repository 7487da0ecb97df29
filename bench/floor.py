"""The floor under intake: the same bytes decoded once by polars and written once by pyarrow, by one process per core.

No netting, no exactness beyond polars' own, no notes, no table: nothing that decodes and writes can be much faster.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from icefront.testing.feeds import ORDERS_COLUMNS

AMOUNT = pl.Decimal(12, 2)
ENVELOPE: dict[str, pl.DataType | type[pl.DataType]] = {
    "after": pl.Struct(
        {
            "amount": pl.String,  # polars reads decimals of JSON as text only
            "created_at": pl.Datetime("us", "UTC"),
            "customer_id": pl.Int64,
            "id": pl.Int64,
            "note": pl.String,
            "status": pl.String,
        }
    ),
    "key": pl.List(pl.Int64),
    "updated": pl.String,
}


def decode_and_write(files: Sequence[Path], target: Path) -> int:
    """Turn files into one Parquet file of the table's columns, a row group per file; return the number of rows."""
    rows = 0
    writer: pq.ParquetWriter | None = None
    for file in files:
        frame = pl.read_ndjson(file, schema=ENVELOPE).unnest("after").with_columns(pl.col("amount").cast(AMOUNT))
        table = frame.select(*ORDERS_COLUMNS).to_arrow()
        writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
        writer.write_table(table)
        rows += len(frame)
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


def run(pool: Pool, files: Sequence[Path], folder: Path) -> int:
    """Let each process take its share of the files."""
    cores = os.cpu_count() or 1
    shares = [files[i::cores] for i in range(cores)]
    folder.mkdir(parents=True, exist_ok=True)
    return sum(pool.starmap(decode_and_write, [(share, folder / f"{i}.parquet") for i, share in enumerate(shares) if share]))
