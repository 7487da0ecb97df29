"""The alternative: what a `foreachBatch` function does with a batch of change files and `MERGE INTO`.

It gets what favours it: the batch's files by name, without listing; timestamps compared as text; no notes about what was done, so
nothing that makes it exactly-once; and the best of the settings below, tried on the same table before anything counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icefront.testing.feeds import ORDERS_COLUMNS

COLUMNS = tuple(ORDERS_COLUMNS)
ENVELOPE = (
    "after struct<amount: decimal(12,2), created_at: timestamp, customer_id: bigint, id: bigint, note: string, status: string>, "
    "key array<bigint>, updated string"
)
NETTING = {
    "max_by": "SELECT key[0] AS k, max_by(struct(after), updated).after AS after FROM {changes} GROUP BY key[0]",
    "row_number": "SELECT key[0] AS k, after FROM (SELECT *, row_number() OVER (PARTITION BY key[0] ORDER BY updated DESC) AS n "
    "FROM {changes}) WHERE n = 1",
}


@dataclass(frozen=True)
class Setting:
    """One way to run it."""

    partitions: int = 2
    adaptive: bool = False
    distribution: str = "none"
    netting: str = "max_by"
    hash_join: bool = False

    def __str__(self) -> str:
        join = "shuffled hash join" if self.hash_join else "sort-merge join"
        adaptive = "on" if self.adaptive else "off"
        return f"{self.partitions} shuffle partitions, adaptive execution {adaptive}, distribution {self.distribution}, {self.netting}, {join}"


def neighbours(best: Setting) -> Iterator[Callable[[Setting], Setting]]:
    """One setting changed at a time."""
    for partitions in (4, 8):
        yield lambda s, n=partitions: replace(s, partitions=n)  # type: ignore[misc]
    yield lambda s: replace(s, adaptive=not best.adaptive)
    yield lambda s: replace(s, distribution="hash")
    yield lambda s: replace(s, netting="row_number")
    yield lambda s: replace(s, hash_join=True)


class MergeTable:
    """A table that changes are merged into: format 3, merge-on-read."""

    def __init__(self, spark: Any, table: str) -> None:
        self.spark = spark
        self.table = table
        self.setting = Setting()

    def copy_of(self, other: str) -> None:
        """Begin with the rows of another table."""
        modes = ", ".join(f"'write.{kind}.mode'='merge-on-read'" for kind in ("merge", "update", "delete"))
        self.spark.sql(
            f"CREATE TABLE {self.table} USING iceberg TBLPROPERTIES ('format-version'='3', {modes}) AS SELECT * FROM {other}"
        )

    def drop(self) -> None:
        self.spark.sql(f"DROP TABLE {self.table} PURGE")

    def use(self, setting: Setting) -> None:
        self.setting = setting
        kinds = ("write.merge.distribution-mode", "write.distribution-mode")
        properties = ", ".join(f"'{kind}'='{setting.distribution}'" for kind in kinds)
        self.spark.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ({properties})")

    def merge(self, files: Sequence[Path]) -> None:
        """Decode, net and merge one batch."""
        with self._configured():
            changes = self.spark.read.schema(ENVELOPE).json([str(f) for f in files])
            changes.createOrReplaceTempView("bench_changes")
            source = NETTING[self.setting.netting].format(changes="bench_changes")
            updates = ", ".join(f"t.{c} = s.after.{c}" for c in COLUMNS)
            values = ", ".join(f"s.after.{c}" for c in COLUMNS)
            self.spark.sql(
                f"MERGE INTO {self.table} t USING ({source}) s ON t.id = s.k "
                "WHEN MATCHED AND s.after IS NULL THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND s.after IS NOT NULL THEN INSERT ({', '.join(COLUMNS)}) VALUES ({values})"
            )

    @contextmanager
    def _configured(self) -> Iterator[None]:
        """Set what this table's setting asks for, and put back what was there."""
        wanted = {
            "spark.sql.shuffle.partitions": str(self.setting.partitions),
            "spark.sql.adaptive.enabled": str(self.setting.adaptive).lower(),
            "spark.sql.join.preferSortMergeJoin": str(not self.setting.hash_join).lower(),
        }
        before = {name: self.spark.conf.get(name) for name in wanted}
        for name, value in wanted.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, value)


def checksum(spark: Any, table: str) -> tuple[int, int, int]:
    """Read all of a table: its rows, and two sums of row hashes that agree when the rows do."""
    hashed = f"xxhash64({', '.join(sorted(COLUMNS))})"
    query = f"SELECT count(*), coalesce(sum(CAST(h AS decimal(38,0))), 0), coalesce(bit_xor(h), 0) FROM (SELECT {hashed} AS h FROM {table})"
    rows, total, mixed = spark.sql(query).collect()[0]
    return int(rows), int(total), int(mixed)
