"""The command line: `icefront …`."""

import gc

# Imports are most of what a short command does, and next to nothing of what they make is garbage: to search it as often as Python does
# by itself takes a quarter of their time.
gc.set_threshold(50_000, 20, 50)

from icefront.cli.app import app, main  # noqa: E402 — see above

__all__ = ["app", "main"]
