"""`icefront init`: a project that runs as it is, with a small generated changefeed."""

from __future__ import annotations

from pathlib import Path

from icefront.cli import show
from icefront.core.errors import ConfigError
from icefront.testing.feeds import ORDERS, Feed

PROJECT = """\
# What the pipelines of this folder share. Everything here is a default; paths are relative to this file.
catalogs:
  lake: {type: sqlite, path: .icefront}   # an embedded lakehouse: .icefront/catalog.db and .icefront/warehouse/
  # lake: {type: rest, uri: "https://…", warehouse: "…", credential: "${env:LAKE_CREDENTIAL}"}
state: .icefront/state.db
spark: {master: "local[*]"}               # or spark://…, yarn, k8s://…
"""
PIPELINE = """\
pipeline: orders
source:
  changefeed: {path: feed/}               # NDJSON and .RESOLVED files, as CockroachDB writes them; s3://… works too
keys: [id]
columns: {id: bigint, customer_id: bigint, amount: "decimal(12,2)", created_at: timestamptz}   # the others are inferred
sink:
  iceberg: {table: lake.shop.orders}
epochs: {every: resolved}                 # one snapshot per resolved timestamp; e.g. `every: 10s` gathers more in one
"""
README = """\
# A first pipeline
`feed/` is a small generated changefeed, `orders.yaml` brings it into the Iceberg table `lake.shop.orders`, exactly once.

    icefront check orders.yaml                      # looks, changes nothing
    icefront run orders.yaml --until caught-up      # one line per epoch; Ctrl-C drains
    icefront status                                 # state, frontier, lag
    icefront epochs orders.yaml                     # what each snapshot brought
    icefront verify orders.yaml --every-snapshot    # table == source, at every snapshot

`icefront.yaml` says where the lakehouse is. Point `source` at your own changefeed next.
"""
FEED = "feed"
ROWS, PERIODS, CHANGES = 200, 5, 120


def init(folder: Path) -> None:
    files = {"icefront.yaml": PROJECT, "orders.yaml": PIPELINE, "README.md": README}
    there = [name for name in (*files, FEED) if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]} exists already", "name an empty or new folder: `icefront init shop`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        with show.waiting("writing a changefeed", quiet=True):
            changes = _feed(folder / FEED)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", "name a folder that this user may write") from error
    show.say(f"{folder}/: icefront.yaml, orders.yaml, README.md and feed/ with {changes:,} changes")
    step = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    show.say(f"  → {step}icefront run orders.yaml --until caught-up")


def _feed(folder: Path) -> int:
    """Make up a small order book: an initial scan, then some periods of changes with deletes and repeats."""
    feed = Feed(folder, tables=(ORDERS,), seed=1)
    feed.scan(ROWS)
    for _ in range(PERIODS):
        feed.advance(CHANGES)
    return len(feed.said)
