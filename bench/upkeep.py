"""What upkeep costs, and what it is worth.

    settle      a settle of many keys, against its floor: bare pyarrow that reads the key column and looks the keys up, on all cores
    all in      epochs and all upkeep that is due by default, against `MERGE INTO` alone for the same changes; then both tables are read
    publishes   the commit step of small epochs, alone and while settles and compactions of the same table go on

For each round of the first the table is set back to where it had not been settled. The table that was merged into is compacted by
Iceberg before it is read, which is not counted against it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import epochs
from bench.changes import snapshot
from bench.epochs import MEMORY, MILLION, Pair
from bench.lake import Lake, Live
from bench.measure import Rounds, Spread, percentile, play
from bench.merge import checksum
from bench.results import Figure, Result
from icefront.settings.upkeep import Upkeep
from icefront.state.records import CycleRecord
from icefront.state.store import StateStore
from icefront.testing.feeds import BulkFeed
from icefront.upkeep.compact import compact
from icefront.upkeep.hands import SparkHands
from icefront.upkeep.keeper import Keeper
from icefront.upkeep.settle import Settled, settle


@dataclass(frozen=True)
class Form:
    """How much is measured."""

    rows: int
    changes: int
    together: int
    """Epochs of a round."""
    rounds: int
    settled: int
    """Epochs that one measured settle ends."""
    publishes: int


FORMS = {
    "tiny": Form(20_000, 2_000, together=2, rounds=3, settled=2, publishes=4),
    "short": Form(2 * MILLION, 100_000, together=5, rounds=5, settled=5, publishes=50),
    "long": Form(8 * MILLION, 200_000, together=10, rounds=6, settled=5, publishes=100),
}


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open(MEMORY) as lake, ExitStack() as stack:
        pair = epochs.load(stack, lake, form.rows, form.changes, say)
        epochs.tune(pair, lake, say)
        settling, done = settles(lake, pair, form, say)
        cycles: list[CycleRecord] = []
        against = all_in(stack, lake, pair, form, cycles, say)
        say(f"upkeep: {told(cycles)}")
        reading = read(lake, pair, say)
        beside, company = publishes(stack, lake, form, say)
    return report(form_name, form, pair, settling, done, against, told(cycles), reading, beside, company)


# ── settle ─────────────────────────────────────────────────────────────────────────────────
def settles(lake: Lake, pair: Pair, form: Form, say: Callable[[str], None]) -> tuple[Rounds, Settled]:
    """Settle some epochs again and again, beside the floor."""
    table = lake.table(f"rows_{pair.feed.keys}")
    settle(lake.spark, table)
    old = data_files(lake, table)
    for _ in range(form.settled):
        pair.arrive()
        pair.ours()
        pair.theirs()
    unsettled = snapshot(lake, table)
    keys = pa.concat_tables(pq.read_table(f, columns=["id"]) for f in files(lake, table, "content = 2"))["id"].combine_chunks()
    done: list[Settled] = []

    def back() -> None:
        lake.spark.sql(
            f"CALL lake.system.set_current_snapshot(table => '{table.removeprefix('lake.')}', snapshot_id => {unsettled})"
        )

    rounds = play(
        {"settle": lambda: done.append(settle(lake.spark, table)), "floor": lambda: floor(old, keys)},
        rounds=form.rounds,
        before=back,
        say=say,
    )
    return rounds, done[-1]


def files(lake: Lake, table: str, where: str) -> list[str]:
    return [
        urlsplit(row[0]).path
        for row in lake.spark.sql(f"SELECT file_path FROM {table}.all_files WHERE {where}").distinct().collect()
    ]


def data_files(lake: Lake, table: str) -> list[str]:
    return [urlsplit(row[0]).path for row in lake.spark.sql(f"SELECT file_path FROM {table}.data_files").collect()]


def floor(paths: Sequence[str], keys: pa.Array) -> int:
    """Read the key column of every file and look the keys up, on all cores and with nothing around it."""

    def one(path: str) -> int:
        found = pc.is_in(pq.read_table(path, columns=["id"], use_threads=False)["id"], keys)
        return int(pc.sum(found).as_py())

    with ThreadPoolExecutor(pa.cpu_count()) as threads:
        return sum(threads.map(one, paths))


# ── all in ─────────────────────────────────────────────────────────────────────────────────
def all_in(stack: ExitStack, lake: Lake, pair: Pair, form: Form, cycles: list[CycleRecord], say: Callable[[str], None]) -> Rounds:
    """Epochs with the upkeep that `upkeep: auto` finds due, as if ten seconds passed from each to the next, against `MERGE INTO`."""
    table = lake.table(f"rows_{pair.feed.keys}")
    batches: list[Sequence[Path]] = []
    ahead = timedelta()

    def now() -> datetime:
        return datetime.now(UTC) + ahead

    notes = stack.enter_context(StateStore(lake.folder / "upkeep.db", clock=lambda: now().timestamp()))
    terms = Upkeep().terms
    keeper = Keeper("bench", terms, SparkHands(lake.spark, notes.staged_paths, terms), notes, tell=cycles.append, clock=now)
    keeper.watch(table)

    def arrive() -> None:
        batches.clear()
        for _ in range(form.together):
            pair.arrive()
            batches.append(pair.files)

    def ours() -> None:
        nonlocal ahead
        for _ in range(form.together):
            pair.ours()
            ahead += timedelta(seconds=pair.feed.period)
            while keeper.step(at_once=True) is not None:
                pass

    def theirs() -> None:
        for batch in batches:
            pair.merged.merge(batch)

    return play({"ours": ours, "MERGE": theirs}, rounds=form.rounds, before=arrive, say=say)


def told(cycles: Sequence[CycleRecord]) -> str:
    counted = Counter(f"{cycle.kind} {cycle.outcome}" for cycle in cycles)
    return ", ".join(f"{number} × {what}" for what, number in counted.items())


def read(lake: Lake, pair: Pair, say: Callable[[str], None]) -> Rounds:
    """Read both tables, both settled and compacted, and compare what is in them."""
    table = lake.table(f"rows_{pair.feed.keys}")
    settle(lake.spark, table)
    for name in (table, pair.merged.table):
        compact(lake.spark, name, everything=True)
    found: dict[str, object] = {}
    rounds = play(
        {
            "ours": lambda: found.update(ours=checksum(lake.spark, table)),
            "merged": lambda: found.update(merged=checksum(lake.spark, pair.merged.table)),
        },
        rounds=5,
        say=say,
    )
    if found["ours"] != found["merged"]:
        raise RuntimeError(f"the tables differ: {found}")
    say("both ways made the same rows")
    return rounds


# ── beside publishes ───────────────────────────────────────────────────────────────────────
def publishes(stack: ExitStack, lake: Lake, form: Form, say: Callable[[str], None]) -> tuple[Mapping[str, Sequence[float]], str]:
    """Time the commit step of small epochs, alone and while upkeep of the same table goes on."""
    name, rows = "beside", max(1000, form.rows // 2)
    feed = BulkFeed(lake.feed(name), keys=rows, seed=1)
    feed.scan()
    live = stack.enter_context(Live(lake.pipeline(name, name), lake.spark))
    live.epoch()

    sent: list[int] = []

    def some() -> list[float]:
        sent.clear()
        times = []
        for _ in range(form.publishes):
            feed.advance(1_000)
            published = live.epoch()  # one that is refused ends the benchmark
            times.append(published.timings["publish"] * 1000)
            sent.append(published.attempts)
        return times

    some()
    told = {"alone": some()}
    stop, cycles = threading.Event(), list[str]()
    keeper = threading.Thread(target=keep, args=(lake, lake.table(name), stop, cycles))
    keeper.start()
    try:
        told["beside upkeep"] = some()
    finally:
        stop.set()
        keeper.join()
    if not cycles:
        raise RuntimeError("no cycle of upkeep ended while epochs were published")
    again = sum(attempts > 1 for attempts in sent)
    company = (
        f"{len(cycles)} settles and compactions meanwhile; no publish was refused, {again} were sent again after upkeep's commit"
    )
    say(f"{form.publishes} epochs were published, {company}")
    return told, company


def keep(lake: Lake, table: str, stop: threading.Event, cycles: list[str]) -> None:
    while not stop.is_set():
        settle(lake.spark, table)
        cycles.append("settle")
        compact(lake.spark, table)
        cycles.append("compact")


# ── the result ─────────────────────────────────────────────────────────────────────────────
def report(
    form_name: str,
    form: Form,
    pair: Pair,
    settling: Rounds,
    done: Settled,
    against: Rounds,
    cycles: str,
    reading: Rounds,
    beside: Mapping[str, Sequence[float]],
    company: str,
) -> Result:
    figures = [
        Figure.of("settle", settling.seconds("settle"), "s"),
        Figure.of("the same keys looked up by bare pyarrow", settling.seconds("floor"), "s"),
        Figure.of("settle / bare pyarrow", settling.ratio("settle", "floor"), "×", "at most 3"),
        Figure.of(f"{form.together} epochs with their upkeep", against.seconds("ours"), "s"),
        Figure.of(f"{form.together} × MERGE INTO", against.seconds("MERGE"), "s"),
        # A compaction is in few rounds, and pays for all of them: a median would not see it.
        Figure("MERGE INTO / ours, all rounds together", against.amortised("MERGE", "ours"), "×", goal="at least 5"),
        Figure.of("reading afterwards, ours", reading.seconds("ours"), "s"),
        Figure.of("reading afterwards, merged and compacted", reading.seconds("merged"), "s"),
        Figure.of("reading afterwards: ours / merged", reading.ratio("ours", "merged"), "×", "at most 1.2"),
    ]
    for name, times in beside.items():
        figures.append(Figure.of(f"commit step {name}: p50", Spread.of(times), "ms"))
        figures.append(Figure(f"commit step {name}: p95", percentile(times, 0.95), "ms"))
    slower = percentile(beside["beside upkeep"], 0.95) / percentile(beside["alone"], 0.95)
    figures.append(Figure("commit step, p95: beside upkeep / alone", slower, "×", goal="at most 2"))
    facts: dict[str, Any] = {
        "table": f"{form.rows:,} rows of six columns, int64 keys; epochs of {form.changes:,} changes of random keys",
        "settle": f"{done.equality_files} equality-delete files, {done.dead_rows:,} dead rows in {done.files_with_dead_rows} files",
        "all in": f"{form.together * form.rounds} epochs, ten seconds apart by the keeper's clock, and what `upkeep: auto` did meanwhile ({cycles}); "
        "against MERGE INTO without any upkeep",
        "MERGE INTO": str(pair.merged.setting),
        "commit step": f"{form.publishes} epochs of 1,000 changes into {max(1000, form.rows // 2):,} rows; {company}",
        "results": "equal: row count and two sums of 64-bit row hashes of both tables",
    }
    raw = {"settle": settling.as_json(), "all in": against.as_json(), "reading": reading.as_json(), "publishes": beside}
    quiet = settling.quiet and against.quiet and reading.quiet
    return Result("upkeep", "Upkeep", form_name, figures, quiet, against.foreign(), facts, raw)
