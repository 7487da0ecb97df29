"""Intake of NDJSON: an initial load as one epoch, against the floor; and the memory of a very large one.

Ours is a whole run of a pipeline on a session that is up: it looks for files, creates the table, claims it, reads, nets over all
splits, writes, stages and publishes.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import floor
from bench.lake import Lake
from bench.measure import Memory, Spread, Watch, play
from bench.results import Figure, Result
from icefront.api import Result as RunResult
from icefront.testing.feeds import BulkFeed

MILLION = 1_000_000
FEED = "scan"


@dataclass(frozen=True)
class Form:
    """How many changes make the epoch, how many the one whose memory is watched."""

    changes: int
    large: int
    rounds: int = 5


FORMS = {
    "tiny": Form(50_000, 100_000, 3),
    "short": Form(2 * MILLION, 2 * MILLION),
    "long": Form(4 * MILLION, 20 * MILLION, 9),
}


def fill(lake: Lake, changes: int) -> tuple[list[Path], float]:
    """Write a feed; return its files and the bytes per change."""
    feed = BulkFeed(lake.feed(FEED), keys=changes)
    feed.scan()
    files = sorted(feed.root.rglob("*.ndjson"))
    return files, sum(f.stat().st_size for f in files) / changes


def load(lake: Lake, name: str) -> RunResult:
    """Load the feed into a new table."""
    return lake.pipeline(name, FEED).run(lake.spark, until="caught-up")


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open() as lake, floor.workers() as pool:
        files, width = fill(lake, form.changes)
        say(f"{form.changes:,} changes of {width:.0f} bytes in {len(files)} files")
        numbers = itertools.count()
        phases: list[str] = []

        def ours() -> None:
            result = load(lake, f"load_{next(numbers)}")
            (event,) = result.published
            if event.counts["upserts"] != form.changes:
                raise RuntimeError(f"{form.changes} changes in, {event.counts} out")
            phases.append(", ".join(f"{name} {seconds:.2f} s" for name, seconds in event.timings.items()))

        def theirs(decoder: str) -> None:
            if (rows := floor.run(pool, decoder, files, lake.folder / "floor")) != form.changes:
                raise RuntimeError(f"{form.changes} changes in, {rows} out")

        def clear() -> None:
            for table in lake.folder.glob("lake/warehouse/bench/load_*/data"):
                shutil.rmtree(table)

        contenders: Mapping[str, Callable[[], object]] = {"ours": ours} | {name: partial(theirs, name) for name in floor.DECODERS}
        rounds = play(contenders, rounds=form.rounds, before=clear, say=say)
    figures = [
        Figure.of("ours", rounds.seconds("ours").per(form.changes), "changes/s", "400,000 expected"),
        *(Figure.of(f"floor, {name}", rounds.seconds(name).per(form.changes), "changes/s") for name in floor.DECODERS),
        *(Figure.of(f"ours / {name}, as speed", rounds.ratio(name, "ours"), "×", "at least 0.5") for name in floor.DECODERS),
        *(Figure(f"CPU per million changes, {name}", rounds.cpu(name) / form.changes * MILLION, "s") for name in contenders),
    ]
    facts = {
        "epoch": f"{form.changes:,} changes of {width:.0f} bytes as NDJSON, six columns, all keys new",
        "floor": "one process per core; polars read_ndjson or pyarrow.json with a schema, then pyarrow Parquet with zstd",
        "last round of ours": phases[-1],
    }
    title = "Intake of NDJSON"
    return Result("intake", title, form_name, figures, rounds.quiet, rounds.foreign(), facts, {"rounds": rounds.as_json()})


def measure_memory(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open() as lake:
        _, width = fill(lake, form.large)
        say(f"{form.large:,} changes of {width:.0f} bytes")
        with Memory() as memory, Watch() as watch:
            (event,) = load(lake, "large").published
        if event.counts["upserts"] != form.large:
            raise RuntimeError(f"{form.large} changes in, {event.counts} out")
    parts = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in sorted(memory.at_peak.items()))
    say(f"{watch.sample.seconds:.1f} s, {memory.samples} samples; at the peak {parts}")
    figures = [
        Figure("peak proportional set size of the whole tree", memory.peak / 2**30, "GiB", goal="within 4 GB for 20 M changes"),
        Figure("speed meanwhile", form.large / watch.sample.seconds, "changes/s"),
    ]
    facts = {"epoch": f"{form.large:,} changes of {width:.0f} bytes as NDJSON, all keys new", "at the peak": parts}
    foreign = Spread.of([watch.sample.foreign])
    return Result("memory", "Memory of one large epoch", form_name, figures, foreign.median <= 0.2, foreign, facts)
