"""The parent of Spark's Python workers, made quick to fork from.

Spark starts one daemon and forks a worker per task slot. Three things cost every task dearly:
workers drop and rebuild their import caches at each task (`zipimporter.invalidate_caches`), each
imports Arrow, polars and PyIceberg anew, and after each task all objects are searched for garbage,
those of the imports too. Here the caches stay, the imports happen once, before the first fork, and
what they made is exempt from the search. Until then nothing is searched: of what imports make next to nothing is
garbage, and to look for it would take a quarter of their time.
"""

from __future__ import annotations

import contextlib
import gc
import zipimport

from pyspark import daemon


def preload() -> None:
    """Import what every worker needs. Without Icefront on this machine, workers import it themselves."""
    with contextlib.suppress(ImportError):
        import icefront.kernels.parquet  # noqa: PLC0415 — the point is to import before the fork
        import icefront.sources.changefeed  # noqa: PLC0415
        import icefront.spark.job  # noqa: PLC0415, F401


def keep_caches() -> None:
    """Let no task drop what is known of the places that modules come from."""
    setattr(zipimport.zipimporter, "invalidate_caches", lambda _self: None)  # noqa: B010 — typed as a method


if __name__ == "__main__":
    gc.disable()
    keep_caches()
    preload()
    gc.freeze()
    gc.enable()
    daemon.manager()
