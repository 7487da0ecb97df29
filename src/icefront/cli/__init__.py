"""The command line: `icefront …`."""

from icefront.cli.app import app, main

__all__ = ["app", "main"]
