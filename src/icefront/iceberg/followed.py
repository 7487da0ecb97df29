"""A table that is read from, through Java: its newest metadata, and a tag of ours on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefront.core.errors import CommitUncertain, ConfigError, Replaced, SourceChanged
from icefront.iceberg.java import Gateway, JavaTable
from icefront.iceberg.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 5


class FollowedTable:
    """`sources.iceberg.Table` over a catalog of the session. `io_properties` win over those that the catalog gives."""

    def __init__(self, spark: SparkSession, name: str, io_properties: Mapping[str, str]) -> None:
        self._gateway = Gateway.of(spark)
        self._name = name
        self._io_properties = dict(io_properties)
        self._table: JavaTable | None = None
        self._seen: tuple[str, View] | None = None

    def look(self) -> View:
        """Ask the catalog; metadata that did not change is not read again."""
        table = self._refreshed()
        location = str(table.metadata().metadataFileLocation())
        if self._seen is None or self._seen[0] != location:
            self._seen = location, View.at(table, table.metadata(), self._io_properties)
        return self._seen[1]

    def keep(self, tag: str, snapshot: int) -> bool:
        """Let a tag point to a snapshot, for as long as nobody moves it; others' commits may come between. False where it stays ahead of that.

        It is not moved back in main's history: a run that was overtaken may still ask for that, and would let expire what its successor needs.
        """
        for _ in range(ATTEMPTS):
            table = self._refreshed()
            base = table.metadata()
            ref = base.ref(tag)
            if ref is not None and ref.isBranch():
                raise ConfigError(
                    f"{self._name} has a branch {tag}, where the reader's tag is to be", "give the branch another name"
                )
            if ref is not None and int(ref.snapshotId()) == snapshot:
                return True
            if ref is not None and self._gateway.is_past(table.table, ref.snapshotId(), snapshot):
                return False
            # Made of what was looked at and of nothing newer: Iceberg's own change of a tag would be repeated on what others have made of it.
            if table.set_tag(base, tag, snapshot):
                return True
        raise table.trouble or CommitUncertain(
            f"tag {tag} of {self._name} could not be set in {ATTEMPTS} attempts: others kept committing", "nothing has to be done"
        )

    def _refreshed(self) -> JavaTable:
        if self._table is None:
            self._table = self._gateway.load(self._name)
            if self._table is None:
                raise ConfigError(f"table {self._name} does not exist", "correct the source's table, or create it first")
            return self._table
        try:
            self._table.refresh()
        except Replaced as error:
            raise SourceChanged(error.fact, "restore it, or load into a new table") from error
        return self._table
