"""Exactly-once change data capture into and out of Apache Iceberg, on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icefront.version import __version__

if TYPE_CHECKING:
    from icefront.api import (
        Applied,
        Compacted,
        EpochPublished,
        Expired,
        Pipeline,
        Result,
        Settled,
        apply_changes,
        changes,
        compact,
        expire,
        settle,
    )

__all__ = [
    "Applied",
    "Compacted",
    "EpochPublished",
    "Expired",
    "Pipeline",
    "Result",
    "Settled",
    "__version__",
    "apply_changes",
    "changes",
    "compact",
    "expire",
    "settle",
]


def __getattr__(name: str) -> Any:
    """Load the API on first use: workers and small tools import parts without paying for all of it."""
    if name in __all__:
        return getattr(import_module("icefront.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
