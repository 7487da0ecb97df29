"""How things are measured: interleaved rounds, paired ratios, the CPU time of our process tree and of everybody else.

    round 0 (dropped)   a, b
    round 1             b, a      ─▶ a/b of each round ─▶ median, least, greatest
    round 2             a, b
    …

The machines are small and noisy. Contenders take turns in one process tree, so that a slow minute slows all of them, and what counts
is the ratio within a round. A round in which somebody else used more than a fifth of the machine is repeated.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

FOREIGN_LIMIT = 0.2
ROUNDS = 5
EXTRA = 4


# ── CPU ────────────────────────────────────────────────────────────────────────────────────
def tree() -> list[psutil.Process]:
    """This process and all below it: the JVM, Spark's Python daemon, its workers."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def tree_cpu() -> float:
    """CPU seconds of the tree so far. A worker that ended is counted by whoever waited for it."""
    total = 0.0
    for process in tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of the children waited for
    return total


def machine_cpu() -> float:
    """CPU seconds that anything used on this machine; what a hypervisor stole is foreign too."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


@dataclass(frozen=True)
class Sample:
    """One action: its wall time, the CPU time of our tree, and the share of the machine that others used meanwhile."""

    seconds: float
    cpu: float
    foreign: float


class Watch:
    """Measures what happens between entering and leaving."""

    sample: Sample

    def __enter__(self) -> Self:
        self._ours, self._all, self._begun = tree_cpu(), machine_cpu(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._begun
        ours, everything = tree_cpu() - self._ours, machine_cpu() - self._all
        share = max(0.0, everything - ours) / (seconds * (os.cpu_count() or 1))
        self.sample = Sample(seconds, ours, share)


# ── rounds ─────────────────────────────────────────────────────────────────────────────────
Round = Mapping[str, Sample]


@dataclass(frozen=True)
class Rounds:
    """The rounds that count, and whether others left us alone in all of them."""

    kept: Sequence[Round]
    repeated: int
    quiet: bool

    def seconds(self, name: str) -> Spread:
        return Spread.of([r[name].seconds for r in self.kept])

    def ratio(self, over: str, under: str) -> Spread:
        """Compare two contenders within each round."""
        return Spread.of([r[over].seconds / r[under].seconds for r in self.kept])

    def amortised(self, over: str, under: str) -> float:
        """Compare what two contenders took in all rounds together: where one of them has rounds that pay for others."""
        return sum(r[over].seconds for r in self.kept) / sum(r[under].seconds for r in self.kept)

    def cpu(self, name: str) -> float:
        return statistics.median(r[name].cpu for r in self.kept)

    def foreign(self) -> Spread:
        return Spread.of([disturbance(r) for r in self.kept])

    def as_json(self) -> list[dict[str, dict[str, float]]]:
        return [{name: {k: round(v, 4) for k, v in vars(s).items()} for name, s in r.items()} for r in self.kept]


@dataclass(frozen=True)
class Spread:
    """A median with its range."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def times(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.least * factor, self.greatest * factor)

    def per(self, amount: float) -> Spread:
        """Turn seconds for `amount` things into things per second."""
        return Spread(amount / self.median, amount / self.greatest, amount / self.least)


def disturbance(one: Round) -> float:
    """The share of the machine that others used over a whole round."""
    seconds = sum(s.seconds for s in one.values())
    return sum(s.foreign * s.seconds for s in one.values()) / seconds


def play(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = ROUNDS,
    extra: int = EXTRA,
    before: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _: None,
) -> Rounds:
    """Let contenders take turns for `rounds` rounds, the first dropped, with up to `extra` in place of disturbed ones.

    `before` prepares a round and is not measured. Every second round goes backwards: nobody always profits from going first.
    """
    names = list(contenders)
    quiet: list[Round] = []
    disturbed: list[Round] = []
    for number in range(rounds + extra):
        before()
        one = {name: _measured(contenders[name]) for name in (names if number % 2 == 0 else reversed(names))}
        others = disturbance(one)
        figures = ", ".join(f"{name} {one[name].seconds:.2f} s" for name in names)
        say(f"round {number}: {figures}; foreign CPU {others:.0%}{' (dropped)' if number == 0 else ''}")
        if number == 0:
            continue
        (quiet if others <= FOREIGN_LIMIT else disturbed).append(one)
        if len(quiet) == rounds - 1:
            break
    missing = rounds - 1 - len(quiet)
    if missing > 0:
        say(
            f"foreign CPU was above {FOREIGN_LIMIT:.0%} in {len(disturbed)} rounds, also when repeated: read these figures with care"
        )
    kept = [*quiet, *sorted(disturbed, key=disturbance)[: max(0, missing)]]
    return Rounds(kept, len(disturbed), missing <= 0)


def _measured(action: Callable[[], object]) -> Sample:
    with Watch() as watch:
        action()
    return watch.sample


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ── memory ─────────────────────────────────────────────────────────────────────────────────
def proportional_bytes(process: psutil.Process) -> int:
    """Memory of one process, pages it shares divided among those who do: summing is then right."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:  # it ended meanwhile
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass
class Memory:
    """The tree's peak between entering and leaving, sampled by a thread; and what each program had of it."""

    interval: float = 0.2
    peak: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)
    samples: int = 0

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.interval):
            now: dict[str, int] = {}
            for name, size in self._look():
                now[name] = now.get(name, 0) + size
            self.samples += 1
            if sum(now.values()) > self.peak:
                self.peak, self.at_peak = sum(now.values()), now

    @staticmethod
    def _look() -> Iterator[tuple[str, int]]:
        me = os.getpid()
        for process in tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                name = "driver" if process.pid == me else "JVM" if process.name() == "java" else "workers"
                yield name, proportional_bytes(process)
