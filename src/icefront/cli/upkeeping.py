"""`icefront settle`: upkeep by hand."""

from __future__ import annotations

from dataclasses import asdict

from icefront import api
from icefront.cli import show
from icefront.cli.sessions import start_project
from icefront.settings import load_project


def settle(table: str, *, as_json: bool) -> None:
    spark = start_project(load_project("."), "settle", quiet=as_json)
    try:
        with show.waiting(f"settling {table}", quiet=as_json):
            done = api.settle(spark, table)
    finally:
        spark.stop()
    if as_json:
        show.print_json(asdict(done))
    elif not done.equality_files:
        show.say(f"{table} has no equality deletes: there is nothing to settle")
    else:
        show.say(
            f"{show.count(done.equality_files)} equality-delete files became deletes of {show.count(done.dead_rows)} rows in "
            f"{show.count(done.files_with_dead_rows)} data files, of {show.count(done.files_looked_at)} looked at, in {show.seconds(done.seconds)}"
        )
