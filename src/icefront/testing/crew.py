"""Upkeep in the simulator: jobs that take turns with the writers, are killed at any step, and lose answers as they do.

Whatever a job commits must leave the rows as they are. It may be refused only because others touched the same files: publishes
do not, so publishes and upkeep never wait for one another. In the end a settle must get through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefront.core.protocol import Landed, NotLanded
from icefront.testing.commits import Conflict, Rewrite, RowDelta
from icefront.testing.memory import MemoryTable, Snapshot, Unreadable
from icefront.testing.upkeep import Do, Job, Refused, Swap, compact, expire, settle

if TYPE_CHECKING:
    from icefront.testing.simulator import Fault, Simulation

ONE_BY_ONE, AT_ONCE = 1, 1000
AT_MOST = 3
"""Jobs that are under way together."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A commit on its way to the catalog, which takes it only in the place of `base`."""

    change: RowDelta | Rewrite
    base: int | None

    def __str__(self) -> str:
        return str(self.change)


@dataclass(slots=True)
class Worker:
    """One job under way, and what it waits to do next."""

    kind: str
    name: str
    table: MemoryTable
    job: Job
    born: int
    effect: Do | Swap


class Crew:
    """Everybody who keeps the tables of a simulation up."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rng = rng = simulation.rng
        self._rules = simulation.rules.upkeep
        self.workers: list[Worker] = []
        self._limit = ONE_BY_ONE if rng.random() < 0.5 else AT_ONCE
        self._kinds = ["settle", "compact", *(["expire"] if rng.random() < 0.6 else [])]
        self._others_compact = rng.random() < 0.5
        """Whether compactions are other programs': those do not look which deletes they drop, and so only one may be under way."""
        self.share = 0.2 if simulation.long else (0.0, 0.1, 0.2)[int(rng.random() * 3)]
        """How many turns are upkeep's."""

    def turn(self) -> None:
        """Let a job take a step, or begin one."""
        rng, workers = self._rng, self.workers
        if workers and rng.random() < (0.5 if len(workers) < AT_MOST else 1.0):
            self._step(workers[int(rng.random() * len(workers))])
            return
        tables = self._simulation.world.tables
        table = tables[int(rng.random() * len(tables))]
        kind = self._kinds[int(rng.random() * len(self._kinds))]
        if self._has_work(kind, table):
            self._begin(kind, table)

    def _has_work(self, kind: str, table: MemoryTable) -> bool:
        if table.current is None:
            return False
        now = table.snapshots[table.current]
        if kind == "compact":
            # Not two of others at once: see what is not covered in the guarantees.
            return len(now.data) > 1 and not self.is_compacted_by_others(table)
        return bool(now.deletes) if kind == "settle" else len(table.snapshots) > 1

    def is_compacted_by_others(self, table: MemoryTable) -> bool:
        return self._others_compact and any(worker.kind == "compact" and worker.table is table for worker in self.workers)

    def _begin(self, kind: str, table: MemoryTable) -> Worker:
        simulation, rng = self._simulation, self._rng
        simulation.counts[f"{kind}s begun"] += 1
        name = f"{kind}-{simulation.counts[f'{kind}s begun']}"
        job: Job
        match kind:
            case "settle":
                job = settle(table, self._rules, name, self._limit)
            case "compact":
                applies = self._others_compact or rng.random() < 0.5
                job = compact(table, self._rules, name, self._some_files, looks=not self._others_compact, applies=applies)
            case _:
                job = expire(table, self._rules, 1 + int(rng.random() * 2.5), self._staged, self._age)
        worker = Worker(kind, name, table, job, len(table.storage.written), next(job))
        self.workers.append(worker)
        return worker

    def _some_files(self, now: Snapshot) -> Collection[str]:
        share = 0.7 if self._rng.random() < 0.5 else 1.0
        return tuple([path for path in now.data if self._rng.random() < share])

    def _staged(self) -> set[str]:
        return {file.path for note in self._simulation.world.notes.every() for file in note.files}

    def _age(self) -> Callable[[str], bool]:
        """Say what is old: what was written before anybody who is still at work began."""
        simulation = self._simulation
        written = simulation.world.storage.written
        begun = [writer.born for writer in (*simulation.live, *simulation.zombies)]
        if simulation.late or (simulation.lossy and begun):
            begun.append(0)
        since = min((*begun, *(worker.born for worker in self.workers)), default=len(written))
        return lambda path: written[path] < since

    # ── steps ──────────────────────────────────────────────────────────────────────────────
    def _step(self, worker: Worker) -> bool | None:
        """Take one step. Once the job has come to its end, return whether it got through."""
        effect = worker.effect
        answer: Any
        if worker.kind == "expire" and self._simulation.watches[worker.table.name].tainted:
            return self._end(worker, "gave up", done=False)  # what was rolled back stays until the pipeline has looked
        if isinstance(effect, Swap):
            fault = self._simulation.fault()
            answer = self._send(worker, effect.change, fault)
            if fault is not None and fault.crash:
                return self._end(worker, "killed", done=False)
            if answer is None:
                return None
        else:
            if self._rng.random() < self._simulation.faulty * 0.1:
                return self._end(worker, "killed", done=False)
            staged = self._staged() & worker.table.storage.files.keys() if worker.kind == "expire" else set()
            try:
                answer = effect.do()
            except Unreadable as gone:
                return self._end(worker, str(gone), done=False)
            self._simulation.note(worker.name, effect, "ok")
            if worker.kind == "expire":
                if not staged <= worker.table.storage.files.keys():
                    raise self._simulation.violation(f"{worker.name} deleted files that are staged")
                self._simulation.check(self._simulation.world.tables.index(worker.table))
        try:
            worker.effect = worker.job.send(answer)
        except StopIteration as end:
            return self._end(worker, "done" if end.value else "gave up", done=end.value)
        return None

    def _end(self, worker: Worker, how: str, *, done: bool) -> bool:
        self.workers.remove(worker)
        self._simulation.note(worker.name, "ends:", how)
        self._simulation.counts[f"{worker.kind}s {how if how in {'done', 'killed', 'gave up'} else 'failed'}"] += 1
        return done

    def _send(self, worker: Worker, change: RowDelta | Rewrite, fault: Fault | None) -> Landed | NotLanded | None:
        """Commit, if the fault lets it; None: it was not sent yet."""
        if fault is None:
            return self._land(worker.name, worker.table, change)
        self._simulation.count(worker.name, fault.name, change)
        if fault.late:
            self._simulation.put_off(worker.name, worker.table, Sent(change, worker.table.current))
        if fault.applied:
            landed = self._land(worker.name, worker.table, change)
            return landed if fault.answered or isinstance(landed, Refused) else NotLanded(fault.name)
        return None if fault.pause and not fault.late else NotLanded(fault.name)

    def land_late(self, name: str, table: MemoryTable, sent: Sent) -> None:
        """Let a commit arrive whose sender has long given up: the catalog compares what it was built on."""
        if table.current == sent.base:
            self._land(name, table, sent.change)

    def _land(self, name: str, table: MemoryTable, change: RowDelta | Rewrite) -> Landed | Refused:
        simulation = self._simulation
        kind = "settles" if isinstance(change, RowDelta) else "compactions"
        try:
            snapshot = change.apply(table)
        except Conflict as conflict:
            simulation.note(name, change, conflict)
            simulation.counts[f"{kind} refused"] += 1
            if not change.touched(table):
                raise simulation.violation(f"{name} was refused, but nobody touched its files: {conflict}") from conflict
            return Refused(str(conflict))
        simulation.note(name, change, f"snapshot {snapshot.id}")
        simulation.counts[kind] += 1
        simulation.counts["compactions that left deletes"] += isinstance(change, Rewrite) and change.leaves(table)
        simulation.check(simulation.world.tables.index(table))
        return Landed(snapshot.id)

    # ── the end ────────────────────────────────────────────────────────────────────────────
    def finish(self, table: MemoryTable) -> None:
        """Settle a table that nobody else touches: it must get through, and leave nothing to settle."""
        if not self.share:
            return
        self.workers.clear()
        self._limit = AT_ONCE
        worker = self._begin("settle", table)
        done: bool | None = None
        while done is None:
            done = self._step(worker)
        if not done or (table.current is not None and table.snapshots[table.current].deletes):
            raise self._simulation.violation(f"a settle of {table.name} by itself did not get through")
