"""What the tests of the failure matrix share: a project that a checker watches, and what makes a run reach each failpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import StaticTable, Table

from icefront.core.files import Staged
from icefront.core.marks import Mark
from icefront.core.protocol import recoverable
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg import summary
from icefront.proof.checker import Checker, Subject, by_datafusion
from icefront.proof.harness import PROGRAM, Driver, Project, released, wait_until
from icefront.proof.oracle import Row, replay
from icefront.settings import Catalog
from icefront.state.store import StateStore
from icefront.testing.feeds import ORDERS
from tests.process.forked import forked

EVER_WIDER = replace(
    ORDERS, versions=tuple({**ORDERS.versions[0], **{f"extra_{i}": "small" for i in range(n)}} for n in range(64))
)
"""Orders whose every schema version has one column more."""
PARTITIONINGS: Mapping[str, Sequence[str]] = {"": [], "bucket[2]": ["bucket(2, id)"], "month": ["month(created_at)"]}
"""By the transforms that a table then has."""
AFTER_ITS_COMMIT = ("publish.after", "note.before", "note.after", "release.before", "release.after")
"""Failpoints at which the epoch in a run's hands is published."""
SEEDS = (21, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3)))
"""One for every test run, and those over which `make test-all` repeats a row."""


CAUGHT_UP: dict[Path, Watched] = {}
"""Projects whose tables are whole, by folder: Spark reads all of them in one session when the tests are over, see `by_spark`."""


class Watched(Project):
    """A project and a checker that remembers all it has seen of the table. The catalog is embedded, or with `rest` a server.

    Snapshots are read by Spark, if there is a `session` on the same catalog. Otherwise by DataFusion at once; and by Spark once all tests
    are over, if the table has caught up with the feed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 21,
        catalog: Path | None = None,
        rest: str | None = None,
        program: Sequence[str] = PROGRAM,
        settled: bool = False,
        session: Any = None,
        **options: Any,
    ) -> None:
        self.catalog = catalog or folder / ".icefront"
        self._lake = {"type": "rest", "uri": rest} if rest else {"type": "sqlite", "path": str(self.catalog)}
        options.setdefault("feed_table", EVER_WIDER)
        options.setdefault("begin", forked)
        if settled:
            options["settings"] = {**options.get("settings", {}), "write": {"publish": "settled"}}
        super().__init__(folder, seed=seed, catalog=self._lake, program=[*program, "--log", "json", "-v"], **options)
        self._drivers: list[Driver] = []
        self._declared = ""
        self._session = session
        subject = Subject(
            pipeline="orders",
            keys=("id",),
            load=self.load,
            read=self.read,
            expected=lambda frontier: replay(folder / "feed", "orders", ["id"], frontier),
            state=self.state,
            settled=settled,
        )
        self.checker = Checker(subject)
        self.feed.scan(20)
        self.feed.advance(20)

    @property
    def state(self) -> Path:
        return self.folder / ".icefront" / "state.db"

    def start(self, *arguments: Any, **options: Any) -> Driver:
        self._drivers.append(super().start(*arguments, **options))
        return self._drivers[-1]

    def load(self) -> Table | None:
        if self._lake["type"] == "sqlite" and not (self.catalog / "catalog.db").exists():
            return None
        properties = Catalog.model_validate(self._lake).pyiceberg_properties("lake")
        try:
            return load_catalog("lake", **properties).load_table(self.table.removeprefix("lake."))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def read(self, snapshot: int) -> Iterable[Row]:
        """Travel in time; for DataFusion by a copy of the metadata whose current snapshot is another: it reads the newest only."""
        if self._session is not None:
            self._session.catalog.refreshTable(self.table)
            found = self._session.sql(f"SELECT * FROM {self.table} VERSION AS OF {snapshot}").collect()
            return [row.asDict(recursive=True) for row in found]
        table = self.load()
        assert table is not None
        metadata = json.loads(Path(urlsplit(table.metadata_location).path).read_text())
        found = next(s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot)
        metadata |= {"current-snapshot-id": snapshot, "current-schema-id": found["schema-id"], "refs": {}}
        copy = self.folder / "then.metadata.json"
        copy.write_text(json.dumps(metadata))
        return by_datafusion(StaticTable.from_metadata(copy.as_uri()))

    def check(self) -> None:
        """All that was ever published is right, and no file of it was touched."""
        found = self.checker.check(self.released(), [driver.stderr for driver in self._drivers])
        assert not found, "\n".join(map(str, found))
        assert not self.checker.blind, "the state file could not be read, and staged files were not looked at"

    def released(self) -> Sequence[str]:
        """What the runs said that they released, read before the table is."""
        return [frontier for driver in self._drivers for frontier in released(driver.stderr)]

    def check_caught_up(self) -> None:
        """The same, and nothing is missing: the table is at the end of the feed, and the feed was released up to there."""
        self.check()
        wanted = self.feed.resolved[-1].next()
        assert self.checker.frontier == (wanted.wall, wanted.logical)
        assert max(map(Timestamp.parse, self.released()), default=ORIGIN) == wanted, "the source was not released up to there"
        assert self.checker.snapshots
        if self._session is None and self._lake["type"] == "sqlite" and self.program[: len(PROGRAM)] == [*PROGRAM]:
            CAUGHT_UP[self.folder] = self

    def provoke(self, failpoint: str) -> None:
        """Give the next run what makes it pass this failpoint."""
        step = failpoint.partition(".")[0]
        if step in {"schema", "partitioning"} and self.load() is None:
            self.run()  # a new table has what it should have from the beginning
        match step:
            case "schema":
                self.feed.alter("orders")
            case "partitioning":
                self.configure({"partition_by": self._another_partitioning()})
            case "heartbeat":
                # What was said ahead of its time is through after two periods.
                self.feed.advance(0)
                self.feed.advance(0)
                self.feed.advance(0)
                return
        if failpoint in AFTER_ITS_COMMIT:
            # Another epoch, and one at a time: what comes after the one that is published is not begun yet, and can be refused.
            self.configure(epochs={"every": "resolved", "in_flight": 1})
            self.feed.advance(20)
        self.feed.advance(20)

    def passing(self, failpoint: str) -> int:
        """Say at which passing the next run is there with an epoch of its own.

        Before that it publishes what it finds staged; and with its first release it releases what it finds published.
        """
        match failpoint.partition(".")[0]:
            case "publish":
                return 1 + sum(bool(staged.files) for staged in self.staged())
            case "heartbeat":
                return 1 + sum(not staged.files for staged in self.staged())
            case "note":
                return 1 + len(self.staged())
            case "release":
                return 2
            case _:
                return 1

    def staged(self) -> Sequence[Staged]:
        """The epochs that the next run finds staged and publishes first."""
        mark, noted = self.recall(), self.noted()
        return recoverable(mark, noted, noted[-1].settings) if mark and noted else ()

    def noted(self) -> Sequence[Staged]:
        """All notes of staged epochs, also those that the next run drops."""
        with StateStore(self.state, only_look=True) as notes:
            return notes.staged("orders", self.table)

    def _another_partitioning(self) -> Sequence[str]:
        """Choose one that the table does not have now, and that is not declared: a run that is paused may be about to make it."""
        table = self.load()
        assert table is not None
        now = ",".join(str(field.transform) for field in table.spec().fields)
        self._declared = next(name for name in PARTITIONINGS if name not in {now, self._declared})
        return PARTITIONINGS[self._declared]

    def files(self) -> Mapping[Path, int]:
        """The data and delete files that lie in the warehouse, with their times of writing."""
        return {path: path.stat().st_mtime_ns for path in self.catalog.glob("warehouse/**/data/**/*.parquet")}

    def metadata(self) -> str:
        """The place of the table's metadata: whatever changes the table changes this."""
        table = self.load()
        assert table is not None
        return table.metadata_location

    def committed(self) -> set[Path]:
        """The data and delete files that some snapshot refers to."""
        table = self.load()
        assert table is not None
        return {Path(urlsplit(file).path) for file in table.inspect.all_files()["file_path"].to_pylist()}

    def recall(self) -> Mark | None:
        """What the table remembers of the pipeline; None when there is no table, or nobody has claimed it yet."""
        table = self.load()
        text = table.properties.get(summary.mark_property("orders")) if table else None
        return Mark.from_json(text) if text else None

    def mark(self) -> Mark:
        """What the table remembers of the pipeline."""
        mark = self.recall()
        assert mark is not None
        return mark

    def owner(self) -> str:
        """The writer that the mark names."""
        return str(self.mark().writer)


@contextmanager
def ready_for(failpoint: str, project: Watched, folder: Path) -> Iterator[Watched]:
    """A project whose next run passes this failpoint: this one, or a new one where there may be no table yet.

    The next test goes on with this one; a new one has a successor here.
    """
    struck = Watched(folder) if failpoint.startswith("table.") and project.load() is not None else project
    struck.provoke(failpoint)
    yield struck
    if struck is not project:
        struck.run()
        struck.check_caught_up()


# ── what steps leave behind ────────────────────────────────────────────────────────────────
def _epochs_with_files(project: Watched) -> Iterable[object]:
    return {path.name.removeprefix("orders-")[: len(str(UUID(int=0)))] for path in project.files()}


def _current(what: Callable[[Table], object]) -> Callable[[Watched], Iterable[object]]:
    def look(project: Watched) -> Iterable[object]:
        table = project.load()
        return [what(table)] if table else []

    return look


def _owner(project: Watched) -> Iterable[object]:
    mark = project.recall()
    return [mark.writer] if mark else []


def _published(*, changes: bool) -> Callable[[Watched], Iterable[object]]:
    """Epochs in the table, those with changes or those without."""

    def look(project: Watched) -> Iterable[object]:
        table = project.load()
        for snapshot in table.metadata.snapshots if table else ():
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.LOWER in said and ("added-data-files" in said) is changes:
                yield snapshot.snapshot_id

    return look


def _history(project: Watched) -> Iterable[object]:
    with StateStore(project.state, only_look=True) as notes:
        return [record.epoch_id for record in notes.epochs("orders", limit=10_000)]


EFFECTS: Mapping[str, Callable[[Watched], Iterable[object]]] = {
    "table": _current(lambda table: table.metadata.table_uuid),
    "claim": _owner,
    "partitioning": _current(lambda table: table.spec().spec_id),
    "write": _epochs_with_files,
    "schema": _current(lambda table: table.schema().schema_id),
    "stage": lambda project: [staged.epoch_id for staged in project.noted()],
    "publish": _published(changes=True),
    "heartbeat": _published(changes=False),
    "note": _history,
    "release": lambda project: enumerate(project.released()),
}
"""What shows that a step was done: each time something new. To observe a feed leaves nothing behind; to release it, a line in the log."""


# ── strikes in workers ─────────────────────────────────────────────────────────────────────
HOOKED = {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent / "hooks"), os.environ.get("PYTHONPATH")]))}
"""What makes a Python process load our `sitecustomize`."""


class Strike:
    """Lets the first attempt to write files fail, hang or come late, or every one report them twice, when they are complete."""

    def __init__(self, action: str, folder: Path) -> None:
        self._mark, self._wake = folder / "struck", folder / "awake"
        self.environment = {**HOOKED, "MATRIX_STRIKE": action, "MATRIX_MARK": str(self._mark), "MATRIX_WAKE": str(self._wake)}

    def worker(self) -> int:
        """Wait until it has struck; return the process id of the worker."""
        wait_until(lambda: self._mark.exists() and self._mark.read_text(), what="no worker came to write files")
        return int(self._mark.read_text())

    def wake(self) -> None:
        """Let a `late` attempt go on: it writes all its files once more."""
        self._wake.touch()
