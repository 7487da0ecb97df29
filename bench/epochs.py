"""Epochs of 200,000 changes into tables of several sizes, against `foreachBatch` with `MERGE INTO`.

Ours is what a running pipeline does with an epoch, from looking at the source to the note that it is published; everything that a
pipeline does once per run is not in it. Both tables begin with the same rows, get the same files in turns, and must agree at the end.
Both are then read: fast writing that is paid for in reading is no gain. What comes before the rounds happens elsewhere: a small pair of
tables warms the JVM up for both, and copies are what settings for MERGE INTO are tried on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.lake import Lake, Live
from bench.measure import Rounds, Spread, Watch, play
from bench.merge import MergeTable, Setting, checksum, neighbours
from bench.results import Figure, Result
from icefront.api import EpochPublished
from icefront.testing.feeds import BulkFeed

MILLION = 1_000_000
# MERGE INTO joins, and reading with equality deletes holds their keys, in the JVM; Spark's default of 1 GB starves both.
MEMORY = {"spark.driver.memory": "4g"}


@dataclass(frozen=True)
class Form:
    """How much is measured."""

    sizes: Sequence[int]
    changes: int = 200_000
    rounds: int = 5
    readings: int = 3
    warm_up: int = 20


FORMS = {
    "tiny": Form((20_000, 80_000), 10_000, rounds=3, readings=2, warm_up=1),
    "short": Form((MILLION, 8 * MILLION)),
    "long": Form((MILLION, 4 * MILLION, 8 * MILLION, 16 * MILLION), rounds=9, readings=5),
}


@dataclass
class Pair:
    """Two tables with the same rows and one feed: ours, kept by a running pipeline, and the one that is merged into."""

    label: str
    feed: BulkFeed
    changes: int
    live: Live
    merged: MergeTable
    files: Sequence[Path] = ()
    width: float = 0.0
    seen: set[Path] = field(default_factory=set)
    told: list[EpochPublished] = field(default_factory=list)

    def arrive(self) -> None:
        """Let the next epoch's files arrive; nobody has looked yet."""
        self.feed.advance(self.changes)
        found = set(self.feed.root.rglob("*.ndjson"))
        self.files, self.seen = sorted(found - self.seen), found
        self.width = sum(f.stat().st_size for f in self.files) / self.changes

    def ours(self) -> None:
        self.told.append(self.live.epoch())

    def theirs(self) -> None:
        self.merged.merge(self.files)


def load(stack: ExitStack, lake: Lake, size: int, changes: int, say: Callable[[str], None]) -> Pair:
    """Fill both tables of a size."""
    label = f"{size / MILLION:g} M"
    name = f"rows_{size}"
    feed = BulkFeed(lake.feed(name), keys=size, seed=size)
    feed.scan()
    live = stack.enter_context(Live(lake.pipeline(name, name), lake.spark))
    event = live.epoch()
    say(f"{label} rows: loaded {event.counts.get('upserts', 0):,} in {sum(event.timings.values()):.1f} s")
    merged = MergeTable(lake.spark, lake.table(f"merged_{size}"))
    merged.copy_of(lake.table(name))
    return Pair(label, feed, changes, live, merged, seen=set(feed.root.rglob("*.ndjson")))


def warm_up(lake: Lake, form: Form, say: Callable[[str], None]) -> None:
    """Let the JVM compile what both ways use, on tables that are not measured.

    A pipeline runs for days. MERGE INTO gets warm while its settings are tried, so here only ours takes as many epochs as that.
    """
    with ExitStack() as stack:
        pair = load(stack, lake, form.changes, form.changes // 2, say)
        for _ in range(form.warm_up):
            pair.arrive()
            pair.ours()
        pair.theirs()


def tune(pair: Pair, lake: Lake, say: Callable[[str], None]) -> dict[str, float]:
    """Give the alternative its best setting: change one at a time, keep what is faster, on a copy and with one epoch's files."""
    pair.arrive()
    trial = MergeTable(lake.spark, lake.table(f"trial_{pair.feed.keys}"))
    trial.copy_of(pair.merged.table)
    tried: dict[str, float] = {}

    def attempt(setting: Setting) -> float:
        trial.use(setting)
        with Watch() as watch:
            trial.merge(pair.files)
        tried[str(setting)] = round(watch.sample.seconds, 2)
        say(f"{pair.label} rows: MERGE INTO with {setting}: {watch.sample.seconds:.2f} s")
        return watch.sample.seconds

    best = Setting()
    attempt(best)  # the copy's first: all later ones meet deletes, as in the rounds
    least = attempt(best)
    for change in neighbours(best):
        setting = change(best)
        if (seconds := attempt(setting)) < least:
            best, least = setting, seconds
    trial.drop()
    pair.merged.use(best)
    pair.ours()
    pair.theirs()
    return tried


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open(MEMORY) as lake, ExitStack() as stack:
        warm_up(lake, form, say)
        pairs = [load(stack, lake, size, form.changes, say) for size in form.sizes]
        tried = {pair.label: tune(pair, lake, say) for pair in pairs}
        for pair in pairs:
            pair.told.clear()
        contenders: dict[str, Callable[[], object]] = {}
        for pair in pairs:
            contenders |= {f"ours, {pair.label}": pair.ours, f"MERGE, {pair.label}": pair.theirs}

        def arrive() -> None:
            for pair in pairs:
                pair.arrive()

        writing = play(contenders, rounds=form.rounds, before=arrive, say=say)
        reading = read(lake, pairs, form.readings, say)
    return report(form_name, form, pairs, writing, reading, tried)


def read(lake: Lake, pairs: Sequence[Pair], rounds: int, say: Callable[[str], None]) -> Rounds:
    """Read all of both tables, in turns, and compare what is in them."""
    found: dict[str, object] = {}

    def reader(name: str, table: str) -> Callable[[], None]:
        def action() -> None:
            found[name] = checksum(lake.spark, table)

        return action

    contenders: dict[str, Callable[[], object]] = {}
    for pair, table in ((pair, lake.table(f"rows_{pair.feed.keys}")) for pair in pairs):
        contenders |= {
            f"read ours, {pair.label}": reader(f"ours {pair.label}", table),
            f"read merged, {pair.label}": reader(f"merged {pair.label}", pair.merged.table),
        }
    played = play(contenders, rounds=rounds, say=say)
    for pair in pairs:
        if found[f"ours {pair.label}"] != found[f"merged {pair.label}"]:
            raise RuntimeError(f"the tables differ: {found}")
    say("both ways made the same rows")
    return played


def report(
    form_name: str, form: Form, pairs: Sequence[Pair], writing: Rounds, reading: Rounds, tried: Mapping[str, Mapping[str, float]]
) -> Result:
    first = pairs[0].label
    figures: list[Figure] = []
    for pair, size in zip(pairs, form.sizes, strict=True):
        goal = {MILLION: "at least 2.5", 8 * MILLION: "at least 7, aim 10"}.get(size, "")
        ours, theirs = f"ours, {pair.label}", f"MERGE, {pair.label}"
        figures += [
            Figure.of(f"{pair.label} rows: epoch, ours", writing.seconds(ours), "s"),
            Figure.of(f"{pair.label} rows: epoch, MERGE INTO", writing.seconds(theirs), "s"),
            Figure.of(f"{pair.label} rows: MERGE INTO / ours", writing.ratio(theirs, ours), "×", goal),
            Figure(f"{pair.label} rows: CPU of an epoch, ours", writing.cpu(ours), "s"),
            Figure(f"{pair.label} rows: CPU of an epoch, MERGE INTO", writing.cpu(theirs), "s"),
        ]
        figures += [
            Figure.of(f"{pair.label} rows: ours / ours at {first}", writing.ratio(ours, f"ours, {first}"), "×", "at most 1.2")
            for _ in range(pair is not pairs[0])
        ]
    for pair in pairs:
        ours, theirs = f"read ours, {pair.label}", f"read merged, {pair.label}"
        figures += [
            Figure.of(f"{pair.label} rows: reading all afterwards, ours", reading.seconds(ours), "s"),
            Figure.of(f"{pair.label} rows: reading all afterwards, merged", reading.seconds(theirs), "s"),
            Figure.of(f"{pair.label} rows: reading, ours / merged", reading.ratio(ours, theirs), "×"),
        ]
    facts = {
        "epoch": f"{form.changes:,} changes of random keys, a tenth of them deletes, six columns, {pairs[0].width:.0f} bytes each as NDJSON",
        "epochs written before the reading": len(pairs[0].told) + 1,
        "phases of ours": "; ".join(f"{pair.label} rows: {phases(pair.told)}" for pair in pairs),
        "MERGE INTO": "; ".join(f"{pair.label} rows: {pair.merged.setting}" for pair in pairs),
        "results": "equal: row count and two sums of 64-bit row hashes of both tables",
        "JVM heap": MEMORY["spark.driver.memory"],
        "poll interval": "none: the run is told when to look",
    }
    raw = {"writing": writing.as_json(), "reading": reading.as_json(), "settings tried": tried}
    title = f"Epochs of {form.changes:,} changes"
    return Result("epochs", title, form_name, figures, writing.quiet and reading.quiet, writing.foreign(), facts, raw)


def phases(told: Sequence[EpochPublished]) -> str:
    names = list(told[0].timings)
    return ", ".join(f"{name} {Spread.of([e.timings[name] for e in told]).median * 1000:.0f} ms" for name in names)
