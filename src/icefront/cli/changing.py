"""`icefront changes`: row changes as a table or as JSON, and their proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer

from icefront.changelog import tell
from icefront.cli import show
from icefront.cli.sessions import start_project
from icefront.cli.values import cell, on_one_line
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
    # Arrow knows instants from local times, and maps by any key: rows as Spark collects them have the zone of this process.
    shown = told.in_order().limit(limit + 1).toArrow()
    differences = verify(spark, table, told.begin, told.end, told.frame, SHOWN_DIFFERENCES) if proof else ()
    return rows_of(shown.slice(0, limit)), shown.num_rows > limit, differences


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return a table's rows; a map whose keys are not text is a list of its entries, an empty one too."""
    kinds = {field.name: field.type for field in table.schema}
    return [{name: _value(value, kinds[name]) for name, value in row.items()} for row in table.to_pylist()]


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        entries = [(_value(key, kind.key_type), _value(inner, kind.item_type)) for key, inner in value]
        is_text = pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)
        return dict(entries) if is_text else [{"key": key, "value": inner} for key, inner in entries]
    return value


def _print(rows: Sequence[dict[str, Any]], differences: Sequence[Difference], *, more: bool, proof: bool) -> None:
    if not rows:
        show.say("no changes")
    else:
        show.print_rows(tuple(rows[0]), [[cell(value) for value in row.values()] for row in rows])
    if more:
        show.say("… and more: --limit shows them, --json for programs")
    for difference in differences:
        word = "too often" if difference.times > 0 else "not often enough"
        show.say(f"different: {abs(difference.times)} × {word}: {on_one_line(difference.row)}")
    if proof and not differences:
        show.say("verified: before, minus deletes, plus inserts, is after")
