"""A source and sinks in memory, so that the loop can be watched without Spark: rows are (key, value), time is a number."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.schema import Schema

from icefront.core.epochs import Cut, Epoch
from icefront.core.errors import IcefrontError
from icefront.core.files import ClosedFile, FileKind, Staged
from icefront.core.marks import Identity, Mark, Position
from icefront.core.ports import Observation, Report, Split, Wish
from icefront.core.protocol import Outcome, Publication, claiming, publishing
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.pipeline import Route
from icefront.testing.memory import MemoryTable, Row, drive

_attempts = itertools.count()


def at(number: int) -> Timestamp:
    return Timestamp(number, 0)


def _number(position: Position) -> int:
    return int(position.value().get("at", 0))


@dataclass
class MemorySource:
    """Changes by table: (time, key, value or None). It is complete up to the last of `cuts`."""

    changes: dict[str, list[tuple[int, int, int | None]]]
    cuts: list[int]
    earliest: int = 0
    released: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    failing: list[IcefrontError] = field(default_factory=list)
    answers_first: int = 0
    name: str = "memory"

    def identity(self) -> Identity:
        return Identity(self.name)

    def tables(self, after: Position) -> Sequence[str]:
        del after
        return sorted(self.changes)

    def keys(self, table: str) -> Sequence[str] | None:
        del table
        return ["key"]

    def observe(self, after: Position, tables: Sequence[str]) -> Observation:
        del tables
        if self.failing and not self.answers_first:
            raise self.failing.pop()
        self.answers_first = max(0, self.answers_first - 1)
        self.asked.append(_number(after))
        cuts = tuple(Cut(at(cut), 1) for cut in self.cuts if cut > _number(after))
        return Observation(cuts, at(self.earliest) if self.earliest else ORIGIN)

    def splits(self, table: str, epoch: Epoch, start: Position) -> Sequence[Split]:
        del start
        return [Split(0, 1, table)] if self.inside(table, epoch) else []

    def inside(self, table: str, epoch: Epoch) -> list[tuple[int, int, int | None]]:
        return [change for change in self.changes[table] if at(change[0]) in epoch]

    def reader(self, *_: Any) -> Any:
        raise NotImplementedError

    def sample(self, table: str) -> Collection[str]:
        del table
        return ()

    def reached(self, epoch: Epoch, start: Position, reports: Sequence[Report]) -> Position:
        del start, reports
        return Position.of({"at": epoch.upper.wall})

    def release(self, position: Position) -> None:
        self.released.append(_number(position))


@dataclass
class MemorySink:
    """One table in memory; `failing` is raised by the publish that the number counts down to."""

    table: MemoryTable
    exists: bool = True
    failing: dict[int, IcefrontError] = field(default_factory=dict)
    publishes: int = 0
    claims: int = 0

    @property
    def target(self) -> str:
        return self.table.name

    def open(self) -> Schema | None:
        return Schema() if self.exists else None

    def recall(self) -> Mark | None:
        return self.table.mark

    def claim(self, run: str, source: Identity, *, adopt: bool) -> Mark:
        self.claims += 1
        return drive(claiming("p", self.target, run, source, adopt=adopt, retries=2), self.table)

    def prepare(self, wishes: Sequence[Wish]) -> Schema:
        del wishes
        self.exists = True
        return Schema()

    def is_empty(self) -> bool:
        return not any(ancestor.adds_files for ancestor in self.table.head().ancestors)

    def writer(self, epoch: Epoch, schema: Schema, *, fresh: bool) -> Any:
        raise NotImplementedError

    def settings(self) -> str:
        return "settings"

    def present(self, staged: Staged) -> bool:
        return all(file.path in self.table.storage.files for file in staged.files)

    def publish(self, staged: Staged, onto: Mark) -> Outcome:
        self.publishes += 1
        if self.publishes in self.failing:
            raise self.failing[self.publishes]
        return drive(publishing(Publication(staged, onto), retries=2), self.table)


@dataclass
class MemoryJob:
    """Writes an epoch's files into the sink's storage."""

    source: MemorySource
    sink: MemorySink
    table: str
    failing: IcefrontError | None = None
    written: list[Epoch] = field(default_factory=list)

    def infer(self, epoch: Epoch, splits: Sequence[Split]) -> Sequence[Wish]:
        del epoch, splits
        return ()

    def write(
        self, epoch: Epoch, schema: Schema, splits: Sequence[Split], *, fresh: bool, ignored: Collection[str]
    ) -> tuple[Sequence[ClosedFile], Sequence[Report]]:
        del schema, ignored
        if self.failing:
            raise self.failing
        self.written.append(epoch)
        last: Mapping[int, int | None] = {key: value for _, key, value in sorted(self.source.inside(self.table, epoch))}
        upserts = [(key, value) for key, value in last.items() if value is not None]
        deletes = [] if fresh else [(key, 0) for key in last]
        return list(self._files(epoch, upserts, deletes)), [Report(split.number, {}, {"read": len(last)}) for split in splits]

    def _files(self, epoch: Epoch, upserts: Sequence[Row], deletes: Sequence[Row]) -> Iterator[ClosedFile]:
        for kind, rows in ((FileKind.DATA, upserts), (FileKind.EQUALITY_DELETES, deletes)):
            if rows:
                path = f"{self.sink.target}/{epoch}/{kind}/{next(_attempts)}"
                self.sink.table.storage.write(path, rows)
                yield ClosedFile(kind, self.sink.target, str(epoch), 0, "a", path, len(rows), len(rows), 0, 0)


class MemoryNotes:
    """Staged notes that survive a run."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Staged]] = {}
        self.done: list[tuple[str, int]] = []

    def stage(self, staged: Staged) -> None:
        self.kept.setdefault(staged.target, []).append(staged)

    def staged(self, pipeline: str, target: str) -> Sequence[Staged]:
        del pipeline
        return tuple(self.kept.get(target, ()))

    def published(self, staged: Staged, snapshot: int, timings: Mapping[str, float]) -> None:
        del snapshot, timings
        self.kept[staged.target].remove(staged)
        self.done.append((staged.target, staged.epoch.upper.wall))

    def drop(self, pipeline: str, target: str, epoch_ids: Sequence[str]) -> None:
        del pipeline
        self.kept[target] = [s for s in self.kept.get(target, ()) if str(s.epoch_id) not in epoch_ids]


def route(source: MemorySource, table: str, *, exists: bool = True) -> tuple[Route, MemorySink, MemoryJob]:
    sink = MemorySink(MemoryTable(f"lake.{table}"), exists)
    job = MemoryJob(source, sink, table)
    return Route(table, sink, job), sink, job
