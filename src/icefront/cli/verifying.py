"""`icefront verify`: what is compared, what was found, and at most a few rows of each kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from icefront.api import Pipeline
from icefront.cli import show
from icefront.cli.sessions import start_session
from icefront.proof import replicas
from icefront.proof.verify import Comparison, points
from icefront.proof.verify import verify as compare_points

DIFFERENT = 7


def verify(file: Path, *, every_snapshot: bool, limit: int, as_json: bool) -> None:
    pipeline = Pipeline.load(file)
    compared: list[Comparison] = []
    if pipeline.settings.source.iceberg is not None:
        pairs = replicas.points(pipeline, every_snapshot=every_snapshot)
        anything, compare = any(pair.snapshot for pair in pairs), partial(replicas.verify, pipeline, chosen=pairs, shown=limit)
        number = len(pairs)
    else:
        chosen = points(pipeline, every_snapshot=every_snapshot)
        anything, compare = any(point.snapshot for point in chosen), partial(compare_points, pipeline, chosen=chosen, shown=limit)
        number = len(chosen)
    if anything:
        spark = start_session(pipeline, quiet=as_json)
        try:
            compared += _with_progress(number, compare(spark=spark), quiet=as_json)
        finally:
            spark.stop()
    if as_json:
        show.print_json([comparison.to_dict() for comparison in compared])
    else:
        _print(compared)
    if not all(comparison.equal for comparison in compared):
        raise typer.Exit(DIFFERENT)


def _with_progress(number: int, comparisons: Iterator[Comparison], *, quiet: bool) -> Iterator[Comparison]:
    if quiet or not sys.stderr.isatty():
        yield from comparisons
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("comparing", total=number)
        for comparison in comparisons:
            progress.update(task, advance=1, description=f"comparing {comparison.target}")
            yield comparison


def _print(compared: Sequence[Comparison]) -> None:
    if not compared:
        show.say("nothing is published yet: nothing to compare")
        return
    rows: list[Sequence[str | Text]] = [
        (
            c.target,
            show.state("equal" if c.equal else "different"),
            str(c.snapshot or "–"),
            show.when(c.frontier),
            show.count(c.expected),
            show.count(c.rows),
            *(show.count(c.difference.counts[kind]) for kind in ("missing", "extra", "repeated", "differing")),
        )
        for c in compared
    ]
    columns = ("target", "result", "snapshot", "frontier", "expected", "rows", "missing", "extra", "repeated", "differing")
    show.print_rows(columns, rows)
    for comparison in compared:
        for line in _details(comparison):
            show.say(line)


def _details(found: Comparison) -> Iterator[str]:
    at = f"{found.target} at snapshot {found.snapshot}"
    for row in found.difference.missing:
        yield f"{at}: missing: the source has {show.plain(row)}"
    for row in found.difference.extra:
        yield f"{at}: extra: only the table has {show.plain(row)}"
    for key in found.difference.repeated:
        yield f"{at}: repeated: {show.plain(list(key))} is there more often than the source says it"
    for value in found.difference.differing:
        sides = f"the source has {show.plain(value.expected)}, the table {show.plain(value.actual)}"
        yield f"{at}: differing: key {show.plain(list(value.key))}, column {value.column}: {sides}"
    if found.difference.absent:
        yield f"{at}: columns with values that the table does not have: {', '.join(sorted(found.difference.absent))}"
