"""What a keeper works with: a Spark session, in a scheduler pool of its own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from icefront.core.errors import IcefrontError
from icefront.iceberg.view import View
from icefront.upkeep.compact import GROUP_BYTES, compact
from icefront.upkeep.expire import expire
from icefront.upkeep.health import Meter
from icefront.upkeep.keeper import Did
from icefront.upkeep.need import Health, Kind, Terms, kept
from icefront.upkeep.settle import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()
POOL = "upkeep"
MIN_FILES = 5
"""As many files of a partition are packed together once a compaction is begun, also where no partition alone was reason enough."""


SMALLEST_GROUP = 64 * 1024**2


def group_bytes(before: int, *, lost: bool) -> int:
    """Say how much is rewritten at once after a cycle: less after one that lost, so that it is done before the next epoch comes."""
    return max(SMALLEST_GROUP, before // 4) if lost else min(GROUP_BYTES, before * 2)


class SparkHands:
    """`keeper.Hands` on a Spark session. Local properties are a thread's own: only the keeper's jobs are in its pool."""

    def __init__(self, spark: SparkSession, staged: Callable[[], Collection[str]], terms: Terms) -> None:
        self._spark = spark
        self._staged = staged
        self._terms = terms
        self._tag = f"icefront-upkeep-{uuid.uuid4().hex}"
        self._meters: dict[str, Meter] = {}
        self._groups: dict[str, int] = {}
        """By table: what is rewritten at once."""
        self._measured: dict[str, tuple[str, Health]] = {}
        """By table: the metadata file that was measured, and what was found."""

    def measure(self, table: str) -> Health | None:
        from icefront.iceberg.java import Gateway  # noqa: PLC0415 — Spark is an extra, and slow to import

        self._apart()
        found = Gateway.of(self._spark).load(table)
        if found is None:
            return None
        file = str(found.metadata().metadataFileLocation())
        if self._measured.get(table, ("",))[0] != file:
            # Where nothing is compacted, nobody asks for small and dead files.
            wanted = self._terms.compact
            meter = self._meters.setdefault(table, Meter(wanted.files, wanted.dead) if wanted else Meter(sys.maxsize))
            health = meter.measure(View.of(self._spark, table))
            self._measured[table] = file, health
        return self._measured[table][1]

    def work(self, kind: Kind, table: str, health: Health) -> Did:
        self._apart()
        terms = self._terms
        match kind:
            case Kind.SETTLE:
                done = settle(self._spark, table)
                return Did(asdict(done), idle=not done.equality_files)
            case Kind.COMPACT:
                assert terms.compact is not None
                wanted = terms.compact
                # Spark looks every row up in every equality delete: to read through them costs several times what it takes to end them.
                settled = terms.settle is not None and (not health.equality_files or self._settle_first(table))
                compacted = compact(
                    self._spark,
                    table,
                    sort=wanted.sort,
                    max_bytes=wanted.max_bytes,
                    dead=wanted.dead,
                    min_files=min(MIN_FILES, wanted.files),
                    group_bytes=self._groups.get(table, GROUP_BYTES),
                    # What is published since then is left to the next settle.
                    applies=not settled,
                )
                lost = bool(compacted.failed_groups) and not compacted.snapshots
                self._groups[table] = group_bytes(self._groups.get(table, GROUP_BYTES), lost=lost)
                # Files that stay as many are not rewritten again and again.
                idle = compacted.files_after >= compacted.files_before and not compacted.dead_rows
                return Did(asdict(compacted), idle=idle, lost=lost)
            case Kind.EXPIRE | Kind.ORPHANS:
                assert terms.expire is not None
                keep, at_least = kept(health, terms.expire, datetime.now(UTC))
                expired = expire(
                    self._spark,
                    table,
                    keep=keep,
                    at_least=at_least,
                    orphans_after=terms.expire.orphans if kind is Kind.ORPHANS else None,
                    staged=self._staged,
                )
                return Did(asdict(expired), idle=kind is Kind.EXPIRE and not expired.snapshots)

    def _settle_first(self, table: str) -> bool:
        try:
            settle(self._spark, table)
        except IcefrontError as error:
            log.warning("not settled before the compaction, which takes longer then", table=table, error=str(error))
            return False
        return True

    def cancel(self) -> None:
        self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def _apart(self) -> None:
        """Let this thread's jobs have a share of Spark beside the epochs', and a name by which they can be cancelled."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        # Iceberg's actions give their jobs a group of their own, and leave tags alone.
        context.addJobTag(self._tag)
