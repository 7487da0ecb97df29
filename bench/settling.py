"""What memory a settle takes, in tables of several sizes: the same keys, looked up in more and more rows.

Each size has a process tree of its own. A JVM keeps what it once took, so one that has done other things before would be measured for them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from bench.epochs import MILLION
from bench.lake import Lake, Live
from bench.measure import Memory, Spread, Watch
from bench.results import Figure, Result
from icefront.testing.feeds import BulkFeed
from icefront.upkeep.settle import settle


@dataclass(frozen=True)
class Form:
    """How much is measured."""

    sizes: Sequence[int]
    changes: int
    epochs: int = 5


FORMS = {
    "tiny": Form((20_000, 40_000), 2_000),
    "short": Form((2 * MILLION, 8 * MILLION), 200_000),
    "long": Form((10 * MILLION, 40 * MILLION), 200_000),
}


@dataclass(frozen=True)
class Peak:
    """The most memory at one moment, in MiB, and what each program had of it."""

    mib: float
    parts: dict[str, float]
    dead_rows: int
    seconds: float
    foreign: float


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    peaks = [in_a_process_of_its_own(size, form) for size in form.sizes]
    figures, facts = [], {}
    for size, peak in zip(form.sizes, peaks, strict=True):
        parts = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in sorted(peak.parts.items()))
        say(f"{size:,} rows: {peak.mib:,.0f} MiB at the most: {parts}")
        figures.append(Figure(f"peak proportional set size of the whole tree, {size:,} rows", peak.mib, "MiB"))
        facts[f"{size:,} rows"] = f"{peak.dead_rows:,} dead rows found in {peak.seconds:.1f} s; at the peak {parts}"
    first, last = peaks[0].mib, peaks[-1].mib
    figures.append(Figure(f"{form.sizes[-1]:,} rows / {form.sizes[0]:,} rows", last / first, "×", goal="at most 1.2"))
    facts["settled"] = f"{form.epochs} epochs of {form.changes:,} changes of random int64 keys; six columns"
    facts["JVM heap"] = "Spark's default of 1 GB"
    foreign = Spread.of([peak.foreign for peak in peaks])
    return Result("settling", "Memory of a settle", form_name, figures, foreign.greatest <= 0.2, foreign, facts)


def in_a_process_of_its_own(rows: int, form: Form) -> Peak:
    command = [sys.executable, "-m", "bench.settling", str(rows), str(form.changes), str(form.epochs)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Peak(**json.loads(told.splitlines()[-1]))


def one(rows: int, changes: int, epochs: int) -> Peak:
    with Lake.open() as lake, ExitStack() as stack:
        feed = BulkFeed(lake.feed("rows"), keys=rows, seed=rows)
        feed.scan()
        live = stack.enter_context(Live(lake.pipeline("rows", "rows"), lake.spark))
        live.epoch()
        for _ in range(epochs):
            feed.advance(changes)
            live.epoch()
        lake.spark._jvm.java.lang.System.gc()  # noqa: SLF001 — what the heap has of before is not the settle's
        with Memory() as memory, Watch() as watch:
            done = settle(lake.spark, lake.table("rows"))
    parts = {name: size / 2**20 for name, size in memory.at_peak.items()}
    return Peak(memory.peak / 2**20, parts, done.dead_rows, done.seconds, watch.sample.foreign)


if __name__ == "__main__":
    print(json.dumps(asdict(one(*map(int, sys.argv[1:])))))
