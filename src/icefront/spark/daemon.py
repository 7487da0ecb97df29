"""The parent of Spark's Python workers, made quick to fork from.

Spark starts one daemon and forks a worker per task slot. Two things cost every task dearly:
workers drop and rebuild their import caches at each task (`zipimporter.invalidate_caches`), and
each imports Arrow, polars and PyIceberg anew. Here the caches stay and the imports happen once,
before the first fork.
"""

from __future__ import annotations

import contextlib
import zipimport

from pyspark import daemon


def preload() -> None:
    """Import what every worker needs. Without Icefront on this machine, workers import it themselves."""
    with contextlib.suppress(ImportError):
        import icefront.kernels.parquet  # noqa: PLC0415 — the point is to import before the fork
        import icefront.sources.changefeed  # noqa: PLC0415
        import icefront.spark.job  # noqa: PLC0415, F401


if __name__ == "__main__":
    setattr(zipimport.zipimporter, "invalidate_caches", lambda _self: None)  # noqa: B010 — typed as a method
    preload()
    daemon.manager()
