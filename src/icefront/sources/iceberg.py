"""An Iceberg table as a source: its snapshots are a timeline, and each tells what it changed.

    metadata ─ timeline ─▶ stages ─ state differences ─▶ file changes ─▶ splits ─▶ rows (in workers)

The position at a frontier is {"table": uuid, "frontier": …, "snapshot": id}, and "loaded": the number of files told so far while the
first state is being loaded. Only what main leads to counts: staged snapshots and other branches are nobody's state yet.

A tag of the reader's own keeps the snapshot of its position from expiry: made before the first epoch is read, moved when the target is
past it. A table that may not be written goes without; if its snapshot expires, the pipeline stops.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import structlog
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefront.core.epochs import Cut, Epoch
from icefront.core.errors import ConnectionFailed, FrontierGap, IcefrontError, Stopped
from icefront.core.marks import Identity, Position
from icefront.core.ports import Observation, Report, Split
from icefront.core.timestamps import ORIGIN
from icefront.iceberg import history, statediff
from icefront.iceberg.history import Step
from icefront.iceberg.statediff import FileChange
from icefront.iceberg.view import View
from icefront.sources.iceberg_reader import IcebergReader, Piece, plan
from icefront.sources.iceberg_timeline import INITIAL, Place, Stage, Start, Timeline

log = structlog.get_logger(__name__)

BATCH_BYTES = 4 << 30
MOVE_EVERY = 16


class Table(Protocol):
    """What a source asks of the catalog."""

    def look(self) -> View:
        """Return the table as it is now."""
        ...

    def keep(self, tag: str, snapshot: int) -> bool:
        """Let a tag point to a snapshot: make it, or move it, but not to an older one. False where it stays on a younger one."""
        ...


class IcebergSource:
    """The snapshots of one table, for one target."""

    def __init__(
        self,
        table: Table,
        *,
        tag: str,
        start: Start = INITIAL,
        batch_bytes: int = BATCH_BYTES,
        split_bytes: int = 64 << 20,
        parallelism: int = 1,
    ) -> None:
        """Look at a table; nothing is read yet. The first state is told in batches of about `batch_bytes`."""
        self._table = table
        self._tag = tag
        self._start = start
        self._batch_bytes = batch_bytes
        self._split_bytes = split_bytes
        self._parallelism = parallelism
        self._seen: View | None = None
        self._planned: dict[Epoch, Place] = {}
        self._asked: int | None = None
        self._unmoved = 0
        self._complaint = ""
        self._loading: tuple[int, Sequence[FileChange]] | None = None
        self._load_began: tuple[float, int] | None = None

    # ── who and what ───────────────────────────────────────────────────────────────────────
    @property
    def _view(self) -> View:
        if self._seen is None:
            self._seen = self._table.look()
        return self._seen

    @property
    def _timeline(self) -> Timeline:
        return Timeline(self._view.table, self.metadata, self._batch_bytes)

    @property
    def metadata(self) -> TableMetadata:
        """Return the table's metadata as it was last looked at."""
        return self._view.metadata

    def lag(self, position: Position) -> float | None:
        """Say by how many seconds the table's newest snapshot is younger than that of a position."""
        place, newest = Place.of(position), self.metadata.current_snapshot()
        reached = self.metadata.snapshot_by_id(place.snapshot) if place and place.snapshot is not None else None
        return max(0.0, (newest.timestamp_ms - reached.timestamp_ms) / 1000) if newest and reached else None

    def identity(self) -> Identity:
        """Name the table by its uuid: one that was dropped and made anew is another."""
        return Identity.of({"iceberg": self._timeline.uuid})

    def tables(self, after: Position) -> Sequence[str]:
        del after
        return [self._view.table]

    def keys(self, table: str) -> Sequence[str] | None:
        """Name the table's identifier fields in the order of its columns, members of structs in full: `s.id` is not `id`."""
        del table
        schema = self.metadata.schema()
        columns = [f.name for f in schema.fields]
        paths = [history.path(schema.fields, i) for i in schema.identifier_field_ids]
        return [".".join(path) for path in sorted(paths, key=lambda path: columns.index(path[0]))] or None

    def sample(self, table: str) -> Collection[str]:
        del table
        return [f.name for f in self.metadata.schema().fields]

    # ── observing ──────────────────────────────────────────────────────────────────────────
    def observe(self, after: Position, tables: Sequence[str]) -> Observation:
        """Return a cut for each stage that comes next. A position whose snapshot has expired is overcompacted."""
        del tables
        self._seen = self._table.look()
        return Observation(tuple(Cut(stage.after.frontier, self._changes(stage)) for stage in self._stages(after)), ORIGIN)

    def _stages(self, start: Position) -> Sequence[Stage]:
        timeline, place = self._timeline, Place.of(start)
        if place is None:
            base = timeline.base(self._start) if self._start == INITIAL else None
            return list(timeline.begin(self._start, self._sizes(base) if base else ()))
        state = timeline.state(place) if place.loaded is not None else None
        return list(timeline.follow(place, self._sizes(state) if state else ()))

    def _changes(self, stage: Stage) -> int:
        """Estimate a stage's changes from what its snapshot says of itself."""
        snapshot = stage.snapshot
        if snapshot is not None and stage.files is not None:
            return sum(self._files(snapshot)[i].file.records for i in stage.files)
        if stage.before is None or snapshot is None or snapshot.summary is None or Step(0, stage.parent, snapshot).is_silent:
            return 0
        told = snapshot.summary.additional_properties
        names = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
        return sum(int(told.get(name, 0)) for name in names)

    # ── reading ────────────────────────────────────────────────────────────────────────────
    def splits(self, table: str, epoch: Epoch, start: Position) -> Sequence[Split]:
        del table
        stages = [s for s in self._stages(start) if epoch.lower <= s.at and s.after.frontier <= epoch.upper]
        if not stages or stages[-1].after.frontier != epoch.upper:
            ends = stages[-1].after.frontier if stages else "nothing"
            raise FrontierGap(f"{self._view.table} shows {ends} up to {epoch.upper}", "run it again")
        self._keep_first(Place.of(start) or stages[0].after)
        self._planned[epoch] = stages[-1].after
        if stages[-1].files is not None:
            self._tell_progress(stages[-1])
        return plan([self._piece(stage) for stage in stages], self._split_bytes, self._parallelism)

    def reader(
        self, table: str, keys: Sequence[str], ignored: Collection[str] = (), renames: Mapping[str, str] = {}
    ) -> IcebergReader:
        """Make a reader. Renames are known by field id: those that were declared are not needed."""
        del table, renames
        view = self._view
        return IcebergReader(view.table, view.layout, view.io_properties, view.metadata.location, tuple(keys), frozenset(ignored))

    def reached(self, epoch: Epoch, start: Position, reports: Sequence[Report]) -> Position:
        del start, reports
        return self._planned.pop(epoch).position()

    def _piece(self, stage: Stage) -> Piece:
        before = stage.before.schema if stage.before else None
        changes = tuple(self._file_changes(stage))
        return Piece(stage.at, stage.after.snapshot, before, stage.after.schema, changes, is_back=stage.is_back)

    def _file_changes(self, stage: Stage) -> Sequence[FileChange]:
        if stage.files is not None and stage.snapshot is not None:
            files = self._files(stage.snapshot)
            return [files[i] for i in stage.files]
        # A reader that begins with changes only is told none of its first state.
        return self._difference(stage.parent, stage.snapshot) if stage.before else ()

    def _difference(self, parent: Snapshot | None, snapshot: Snapshot | None) -> Sequence[FileChange]:
        view = self._view
        try:
            if snapshot is None:
                manifests = view.manifests()
                found: Sequence[FileChange] = statediff.plan(manifests.of(parent), {}, manifests.entries, view.facts)
            else:
                found = view.plan([Step(0, parent, snapshot)]).get(0, ())
        except OSError as error:
            raise self._unreadable(error) from error
        for change in found:
            if change.is_foreign:
                raise Stopped(
                    f"the rows of {change.file.path} in {view.table}, or deletes on them, are not Parquet, and a pipeline reads only that",
                    "rewrite the table's files as Parquet and begin anew; `icefront changes` reads other formats",
                )
        return found

    # ── the first state ────────────────────────────────────────────────────────────────────
    def _files(self, snapshot: Snapshot) -> Sequence[FileChange]:
        """Return a state's files with the deletes on them, in an order that never changes."""
        if self._loading is None or self._loading[0] != snapshot.snapshot_id:
            files = self._difference(None, snapshot)
            self._loading = snapshot.snapshot_id, sorted(files, key=lambda change: change.file.path)
        return self._loading[1]

    def _sizes(self, snapshot: Snapshot) -> Sequence[int]:
        return [change.bytes for change in self._files(snapshot)]

    def _tell_progress(self, stage: Stage) -> None:
        """Say how much of the first state is told, and how long the rest takes at the speed of this run."""
        assert stage.snapshot is not None
        assert stage.files is not None
        sizes = self._sizes(stage.snapshot)
        done, total = sum(sizes[: stage.files.start]), sum(sizes)
        now = time.monotonic()
        began, before = self._load_began = self._load_began or (now, done)
        rate = (done - before) / (now - began) if done > before else None
        log.info(
            "initial load",
            table=self._view.table,
            snapshot=stage.snapshot.snapshot_id,
            files=f"{stage.files.start} of {len(sizes)}",
            bytes=f"{done} of {total}",
            seconds_left=round((total - done) / rate) if rate else None,
        )

    # ── keeping ────────────────────────────────────────────────────────────────────────────
    def release(self, position: Position) -> None:
        """Move the reader's tag to what the target has. Each move is a commit, so while there is more to read not every time."""
        place = Place.of(position)
        if place is not None and place.loaded is None:
            self._loading = None
        self._unmoved += 1
        if place is not None and (place.snapshot == self.metadata.current_snapshot_id or self._unmoved >= MOVE_EVERY):
            self._keep(place.snapshot)

    def _keep_first(self, place: Place) -> None:
        """Ask for the tag before anything is read, and look again: a snapshot that had expired by then is told before it is read.

        One that the tag does not hold may still expire; then reading stops.
        """
        if self._asked is None and place.snapshot is not None:
            self._keep(place.snapshot)
            Timeline(self._view.table, self._table.look().metadata, self._batch_bytes).state(place)

    def _keep(self, snapshot: int | None) -> None:
        if snapshot is None or snapshot == self._asked:
            return
        try:
            complaint = "" if self._table.keep(self._tag, snapshot) else "the tag is on a younger snapshot, and is not moved back"
        except IcefrontError as error:
            complaint = error.fact
        if complaint and complaint != self._complaint:
            log.warning(
                "the snapshot that is read cannot be tagged: snapshots that expire before they are read stop the pipeline",
                table=self._view.table,
                tag=self._tag,
                error=complaint,
            )
            self._complaint = complaint
        self._asked = snapshot
        self._unmoved = 0

    def _unreadable(self, error: OSError) -> IcefrontError:
        return ConnectionFailed(
            f"metadata of {self._view.table} cannot be read: {error}",
            "if its snapshots were expired or its files removed meanwhile, run again; else check the store",
        )
