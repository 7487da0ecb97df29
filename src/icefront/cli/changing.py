"""`icefront changes`: row changes as a table or as JSON, and their proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from icefront.changelog import tell
from icefront.cli import show
from icefront.cli.sessions import start_project
from icefront.proof.changelog import Difference, verify
from icefront.settings import load_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIFFERENT = 7
SHOWN_DIFFERENCES = 5


def changes(
    table: str,
    begin: str | None,
    end: str | None,
    *,
    net: bool,
    keys: Sequence[str] | None,
    proof: bool,
    limit: int,
    as_json: bool,
) -> None:
    spark = start_project(load_project("."), "changes", quiet=as_json)
    try:
        with show.waiting("reading changes", quiet=as_json):
            rows, more, differences = _look(spark, table, begin, end, net=net, keys=keys, proof=proof, limit=limit)
    finally:
        spark.stop()
    if as_json:
        show.print_json({"changes": rows, "more": more} | ({"differences": [vars(d) for d in differences]} if proof else {}))
    else:
        _print(rows, differences, more=more, proof=proof)
    if differences:
        raise typer.Exit(DIFFERENT)


def _look(
    spark: SparkSession,
    table: str,
    begin: str | None,
    end: str | None,
    *,
    net: bool,
    keys: Sequence[str] | None,
    proof: bool,
    limit: int,
) -> tuple[list[dict[str, Any]], bool, Sequence[Difference]]:
    told = tell(spark, table, begin, end, keys=keys, net=net)
    shown = told.in_order().limit(limit + 1).collect()
    differences = verify(spark, table, told.begin, told.end, told.frame, SHOWN_DIFFERENCES) if proof else ()
    return [row.asDict(recursive=True) for row in shown[:limit]], len(shown) > limit, differences


def _print(rows: Sequence[dict[str, Any]], differences: Sequence[Difference], *, more: bool, proof: bool) -> None:
    if not rows:
        show.say("no changes")
    else:
        show.print_rows(tuple(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
    if more:
        show.say("… and more: --limit shows them, --json for programs")
    for difference in differences:
        word = "too often" if difference.times > 0 else "not often enough"
        show.say(f"different: {abs(difference.times)} × {word}: {difference.row}")
    if proof and not differences:
        show.say("verified: before, minus deletes, plus inserts, is after")


def _cell(value: Any) -> str:
    return "null" if value is None else str(value)
