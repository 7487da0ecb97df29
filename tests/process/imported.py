"""What `icefront run` imports sooner or later, imported: see `forked`, whose server does so before it forks."""

from __future__ import annotations

import gc

# Next to nothing of what imports make is garbage, and what is forked need not search it either.
gc.disable()

import pyspark.sql  # noqa: E402, F401 — the point is to import, and late

import icefront.cli.running  # noqa: E402, F401 — likewise
from icefront.spark import daemon  # noqa: E402 — likewise

daemon.preload()
gc.freeze()
gc.enable()
