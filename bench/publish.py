"""Publish latency, stage → visible, of small epochs on tables with 10, 100 and 1,000 snapshots.

The sink and the state store are driven directly; a real data file and a real equality-delete file are written for every epoch, before
the clock starts. Tables are grown by the same publishes, then take turns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from bench.lake import Lake
from bench.measure import Rounds, Spread, percentile, play
from bench.results import Figure, Result
from icefront.core.epochs import Epoch, epoch_id
from icefront.core.files import Staged, column_ids
from icefront.core.marks import Identity, Mark, Position
from icefront.core.ports import LOGICAL, OP, ORDER, WALL
from icefront.core.protocol import Published
from icefront.core.timestamps import Timestamp
from icefront.sinks.iceberg import IcebergSink, IcebergTarget
from icefront.state.store import StateStore

PIPELINE = "publish"
ROWS = 100


@dataclass(frozen=True)
class Form:
    """To how many snapshots tables grow, and how many publishes are measured on each."""

    snapshots: Sequence[int] = (10, 100, 1000)
    runs: int = 51


FORMS = {"tiny": Form((3, 6), 4), "short": Form(), "long": Form(runs=201)}


@dataclass
class Table:
    """A table of ours and where it is."""

    sink: IcebergSink
    notes: StateStore
    mark: Mark
    next: Staged | None = None
    snapshots: int = 1
    stages: list[float] = field(default_factory=list)

    @classmethod
    def create(cls, lake: Lake, name: str, notes: StateStore) -> Table:
        columns = (("id", "bigint"), ("v", "string"))
        sink = IcebergSink(lake.spark, IcebergTarget(PIPELINE, lake.table(name), ("id",), columns))
        sink.open()
        sink.prepare(())
        return cls(sink, notes, sink.claim(uuid.uuid4().hex, Identity.of({"bench": name}), adopt=False))

    def write(self) -> None:
        """Write the files of the next epoch."""
        upper = self.mark.frontier.wall + 1
        epoch = Epoch(self.mark.frontier, Timestamp(upper))
        fresh, schema = self.snapshots == 1, self.sink.prepare(())
        files = tuple(self.sink.writer(epoch, schema, fresh=fresh).write([_changes(upper)], 0, uuid.uuid4().hex[:8]))
        self.next = Staged(
            pipeline=PIPELINE,
            target=self.sink.target,
            epoch=epoch,
            epoch_id=epoch_id(PIPELINE, self.sink.target, epoch),
            position=Position.of({"at": upper}),
            files=files,
            schema_id=schema.schema_id,
            settings=self.sink.settings(),
            fresh=fresh,
            columns=column_ids(schema),
        )

    def publish(self) -> None:
        """Note the files durably, make them visible."""
        assert self.next is not None
        self.notes.stage(self.next)
        outcome = self.sink.publish(self.next, self.mark)
        if not isinstance(outcome, Published):
            raise TypeError(f"not published: {outcome}")
        self.mark = outcome.mark
        self.snapshots += 1

    def grow(self, snapshots: int) -> None:
        while self.snapshots < snapshots:
            self.write()
            self.publish()


def _changes(at: int) -> pa.Table:
    ids = [(at * 7919 + i) % 100_000 for i in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([f"{at}-{i}" for i in ids]),
            OP: pa.array([1] * ROWS, pa.int8()),
            WALL: pa.array([at] * ROWS, pa.int64()),
            LOGICAL: pa.array([0] * ROWS, pa.int32()),
            ORDER: pa.array(range(ROWS), pa.int64()),
        }
    )


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open() as lake, StateStore(lake.folder / "state.db") as notes:
        tables = {n: Table.create(lake, f"snapshots_{n}", notes) for n in form.snapshots}
        for count, table in tables.items():
            table.grow(count)
            say(f"a table has {table.snapshots} snapshots")

        def write() -> None:
            for table in tables.values():
                table.write()

        contenders = {f"{count:,}": table.publish for count, table in tables.items()}
        # One round takes less than a second: whether others disturbed us is judged over all of them.
        rounds = play(contenders, rounds=form.runs, extra=0, before=write)
    return report(form_name, form, rounds)


def report(form_name: str, form: Form, rounds: Rounds) -> Result:
    first = f"{form.snapshots[0]:,}"
    figures: list[Figure] = []
    for count in (f"{n:,}" for n in form.snapshots):
        times = [r[count].seconds * 1000 for r in rounds.kept]
        figures += [
            Figure.of(f"{count} snapshots: p50", Spread.of(times), "ms", "under 250 expected"),
            Figure(f"{count} snapshots: p95", percentile(times, 0.95), "ms"),
        ]
        if count != first:
            figures.append(Figure.of(f"{count} snapshots / {first} snapshots", rounds.ratio(count, first), "×", "at most 1.5"))
    facts = {
        "epoch": f"{ROWS} changes, one data file and one equality-delete file",
        "runs": f"{len(rounds.kept)} on each table, in turns; a table that had n snapshots has n + {len(rounds.kept) + 1} afterwards",
        "catalog": "embedded SQLite; the staged note is fsynced",
        "poll interval": "none: the sink is driven directly",
    }
    foreign = rounds.foreign()
    quiet = foreign.median <= 0.2
    return Result(
        "publish", "Publish latency, stage → visible", form_name, figures, quiet, foreign, facts, {"rounds": rounds.as_json()}
    )
