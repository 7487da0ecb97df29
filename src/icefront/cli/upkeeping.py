"""`icefront settle`, `compact` and `expire`: upkeep by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from icefront import api
from icefront.cli import show
from icefront.cli.sessions import start_project
from icefront.settings import Project, load_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def _session(project: Project, name: str, doing: str, *, quiet: bool) -> Iterator[SparkSession]:
    spark = start_project(project, name, quiet=quiet)
    try:
        with show.waiting(doing, quiet=quiet):
            yield spark
    finally:
        spark.stop()


def settle(table: str, *, as_json: bool) -> None:
    with _session(load_project("."), "settle", f"settling {table}", quiet=as_json) as spark:
        done = api.settle(spark, table)
    if as_json:
        show.print_json(asdict(done))
    elif not done.equality_files:
        show.say(f"{table} has no equality deletes: there is nothing to settle")
    else:
        show.say(
            f"{show.count(done.equality_files)} equality-delete files became deletes of {show.count(done.dead_rows)} rows in "
            f"{show.count(done.files_with_dead_rows)} data files, of {show.count(done.files_looked_at)} looked at, in {show.seconds(done.seconds)}"
        )


def compact(table: str, *, sort: str, max_bytes: int | None, everything: bool, as_json: bool) -> None:
    columns: Sequence[str] = sort if sort in {"auto", "off"} else [name.strip() for name in sort.split(",") if name.strip()]
    with _session(load_project("."), "compact", f"compacting {table}", quiet=as_json) as spark:
        done = api.compact(spark, table, sort=columns, max_bytes=max_bytes, everything=everything)
    if as_json:
        show.print_json(asdict(done))
    else:
        show.say(_told(done))


def _told(done: api.Compacted) -> str:
    """Say what a compaction did. To lose against another commit is no failure: the next one goes on."""
    parts = []
    if done.files_before:
        parts.append(
            f"{show.count(done.files_before)} files became {show.count(done.files_after)} without {show.count(done.dead_rows)} dead rows; "
            f"{show.size(done.bytes)} were rewritten in {show.seconds(done.seconds)}"
        )
    elif not done.failed_groups:
        parts.append(f"{done.table} has no files that are worth rewriting")
    if done.failed_groups:
        parts.append(
            f"{show.count(done.failed_groups)} groups of files were rewritten in vain: others changed the same files meanwhile, and theirs counts"
        )
    if done.left:
        parts.append(f"{show.count(done.left)} files are left for the next time")
    return "\n".join(parts)


def expire(table: str, *, keep: float | None, at_least: int | None, orphans_after: float | None, as_json: bool) -> None:
    project = load_project(".")
    with _session(project, "expire", f"expiring {table}", quiet=as_json) as spark:
        done = api.expire(
            spark,
            table,
            keep=_span(keep),
            at_least=at_least,
            orphans_after=_span(orphans_after),
            staged=lambda: api.staged_paths(project),
        )
    if as_json:
        show.print_json(asdict(done))
        return
    show.say(
        f"{show.count(done.snapshots)} snapshots are gone; deleted were {show.count(done.data_files)} data files, "
        f"{show.count(done.delete_files)} delete files, {show.count(done.manifests)} manifests, {show.count(done.metadata_files)} metadata files "
        f"and {show.count(done.orphans)} files that nothing knew, in {show.seconds(done.seconds)}"
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
