"""Names of tables: `catalog.namespace.table`, as they are or with backquotes."""

from __future__ import annotations


def parts(name: str) -> list[str]:
    return [part.strip("`") for part in name.split(".")]


def quoted(name: str) -> str:
    """Write a name as Spark's SQL wants it, whatever is in it."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts(name))
