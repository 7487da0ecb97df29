"""Expire: snapshots by age and number, and the files that nobody needs any more.

    old snapshots leave the table ─▶ files that only they had are deleted ─▶ files that nothing knows are deleted, by age

Tags and branches hold their snapshots. A staged file belongs to an epoch that is still to be published: it is never deleted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from icefront.core.errors import ConfigError
from icefront.proof.failpoints import failpoint
from icefront.upkeep.need import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icefront.iceberg.expiring import Expiring

YOUNGEST_ORPHAN = timedelta(hours=1)
"""Files that are being written now look like orphans: whoever writes for longer than this would lose them."""
_METADATA = ".metadata.json"
Staged = Callable[[], Collection[str]] | Collection[str]


@dataclass(frozen=True, slots=True)
class Expired:
    """What left the table, and what was deleted."""

    table: str
    snapshots: int
    data_files: int
    delete_files: int
    manifests: int
    """Manifests and lists of them."""
    metadata_files: int
    """Metadata files that the table's log does not name any more, and statistics of expired snapshots."""
    orphans: int
    """Other files that nothing in the table's metadata knows."""
    seconds: float


def expire(
    spark: SparkSession,
    table: str,
    *,
    keep: timedelta | None = None,
    at_least: int | None = None,
    orphans_after: timedelta | None = timedelta(days=3),
    staged: Staged = (),
) -> Expired:
    """Take out snapshots that are older than `keep` and not among the last `at_least` of a branch; delete what nobody needs.

    Without them the table's own properties count (`history.expire.max-snapshot-age-ms`, `history.expire.min-snapshots-to-keep`),
    and without those five days and one snapshot. Files in the table's folders that nothing knows are deleted once they are older
    than `orphans_after` (None: not at all). Of all these files those that are `staged` stay; a function for them is asked after
    files were found.
    """
    from icefront.iceberg.expiring import Expiring  # noqa: PLC0415 — Spark is an extra, and slow to import
    from icefront.iceberg.java import Gateway  # noqa: PLC0415

    begun = time.perf_counter()
    _check(keep, at_least, orphans_after)
    live = Gateway.of(spark).load(table)
    if live is None:
        raise ConfigError(f"table {table} does not exist", "write catalog.namespace.table, of a catalog of this session")
    properties = live.properties()
    if properties.get("gc.enabled", "true").lower() == "false":
        raise ConfigError(
            f"{table} has gc.enabled = false: its files may be those of another table too",
            "nothing of it may be deleted; if they are its own, set the property to true",
        )
    keep, at_least = Policy.of(properties).decide(keep, at_least, usual=1)
    now = datetime.now(UTC)
    work = Expiring(spark, live)
    failpoint("expire.before")
    before = work.snapshots()
    kinds = _delete_expired(work, now - keep, at_least, staged)
    gone = before - work.snapshots()
    orphans = _delete(work, work.orphans(now - orphans_after), staged) if orphans_after is not None else ()
    failpoint("expire.after")
    old_metadata = sum(path.endswith(_METADATA) for path in orphans)
    return Expired(
        table,
        snapshots=len(gone),
        data_files=kinds["DATA"],
        delete_files=kinds["POSITION_DELETES"] + kinds["EQUALITY_DELETES"],
        manifests=kinds["Manifest"] + kinds["Manifest List"],
        metadata_files=kinds["Statistics Files"] + old_metadata,
        orphans=len(orphans) - old_metadata,
        seconds=time.perf_counter() - begun,
    )


def _check(keep: timedelta | None, at_least: int | None, orphans_after: timedelta | None) -> None:
    if keep is not None and keep < timedelta():
        raise ConfigError(f"snapshots are to be kept for {keep}", "give a time of at least 0")
    if at_least is not None and at_least < 1:
        raise ConfigError(f"{at_least} snapshots are to be kept", "keep at least 1: the current one always stays")
    if orphans_after is not None and orphans_after < YOUNGEST_ORPHAN:
        raise ConfigError(
            f"files are to be orphans after {orphans_after}: what is being written now looks just like one",
            f"give at least {YOUNGEST_ORPHAN}, and more than the longest write takes",
        )


def _delete_expired(work: Expiring, older_than: datetime, at_least: int, staged: Staged) -> Counter[str]:
    """Expire snapshots, and delete what only they had; return how many files of each kind."""
    found = dict(work.expire(older_than, at_least))
    failpoint("expire.before-delete")
    return Counter(found[path] for path in _delete(work, found, staged))


def _delete(work: Expiring, found: Collection[str], staged: Staged) -> Collection[str]:
    """Delete files that were found to be unneeded, if they still are."""
    # An epoch that was rolled back may be staged again, with the same files.
    unstaged = _unstaged(found, staged)
    # What was published since the table was looked at is neither staged any more nor known to what was seen: look once more.
    unneeded = work.unknown(unstaged)
    work.delete(unneeded)
    return unneeded


def _unstaged(paths: Collection[str], staged: Staged) -> list[str]:
    from icefront.iceberg.expiring import without  # noqa: PLC0415 — Spark is an extra, and slow to import

    return list(without(paths, staged() if callable(staged) else staged))
