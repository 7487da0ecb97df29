"""Opening what a pipeline names, only to look: through PyIceberg, and nothing is created by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from uuid import UUID

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icefront.api import Pipeline
from icefront.core.errors import ConfigError, ConnectionFailed
from icefront.core.marks import START, Mark
from icefront.core.ports import Source
from icefront.core.protocol import Head
from icefront.iceberg import summary
from icefront.iceberg.view import View
from icefront.settings import PipelineSettings, Target
from icefront.settings.keys import key_columns
from icefront.sources.changefeed import Changefeed
from icefront.sources.iceberg import IcebergSource

_PIPELINE_KEY = re.compile(r"^pipeline\s*:", re.MULTILINE)


def find_pipelines(folder: Path) -> Sequence[Path]:
    """Name the pipeline files of a folder: YAML files with a `pipeline:` at the top level."""
    files = sorted(p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"} and p.is_file())
    return [p for p in files if _PIPELINE_KEY.search(p.read_text(encoding="utf-8", errors="replace"))]


class Look:
    """One pipeline's source, targets and tables, each opened once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._catalogs: dict[str, Catalog | None] = {}
        self._following: dict[str, IcebergSource] = {}

    @property
    def settings(self) -> PipelineSettings:
        return self.pipeline.settings

    @cached_property
    def source(self) -> Changefeed:
        return self.pipeline.source()

    @property
    def follows(self) -> bool:
        """Say whether the source is a table, whose every snapshot is an epoch."""
        return self.settings.source.iceberg is not None

    def count(self, cuts: int) -> str:
        """Put a number of cuts into words."""
        return f"{cuts or 'no'} {'epoch' if self.follows else 'resolved timestamp'}{'' if cuts == 1 else 's'}"

    def source_of(self, target: Target) -> Source:
        """Return the source as this target reads it."""
        return self.following(target) if self.follows else self.source

    def following(self, target: Target) -> IcebergSource:
        """Return the table that a target follows, as it reads it."""
        if target.name not in self._following:
            self._following[target.name] = self.pipeline.following(target, _Followed(self, target.source_table))
        return self._following[target.name]

    @cached_property
    def source_tables(self) -> Sequence[str]:
        return [target.source_table for target in self.targets] if self.follows else self.source.tables(START)

    @cached_property
    def targets(self) -> Sequence[Target]:
        return self.settings.targets_for(() if self.follows else self.source_tables) or [t for t, _ in self.begun()]

    def begun(self) -> Iterator[tuple[Target, Mark]]:
        """Name the targets, with their marks, of a feed that shows no table now: it was cleaned up, emptied or unmounted."""
        try:
            named = () if self.settings.tables else self.settings.targets_for([""])
        except ConfigError:
            return  # they are called after the source's table, which nobody knows
        for target in named:
            table = self.table(target)
            if table and (mark := read_mark(table.metadata, self.settings.pipeline)):
                yield target, mark

    def keys(self, target: Target) -> Sequence[str]:
        """Name the key columns in the order in which the source says their values."""
        return key_columns(self.settings, target, self.source_of(target).keys(target.source_table))

    def table(self, target: Target) -> Table | None:
        """Load a target's table; None when it does not exist. Raises ConnectionFailed when the catalog does not answer."""
        return self.load(target.name)

    def load(self, table: str) -> Table | None:
        """Load a table by its full name; None when it does not exist."""
        name, *identifier = table.split(".")
        try:
            catalog = self._catalog(name)
            return catalog.load_table(tuple(identifier)) if catalog else None
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            # PyIceberg passes on whatever its HTTP, SQL or cloud library raises.
            said = str(error).partition("\n")[0][:300] or type(error).__name__
            raise ConnectionFailed(
                f'catalog "{name}" ({self.settings.project.catalogs[name].type}) cannot be read: {said}',
                f"check catalogs.{name} in icefront.yaml, and that the catalog runs",
            ) from error

    def _catalog(self, name: str) -> Catalog | None:
        """Open a catalog; None for an embedded one that no run has made yet: looking must not create it."""
        if name not in self._catalogs:
            settings = self.settings.project.catalogs[name]
            embedded = settings.type == "sqlite" and settings.path is not None
            if embedded and settings.path is not None and not (settings.path / "catalog.db").exists():
                return None
            properties = settings.pyiceberg_properties(name)
            if embedded:
                properties = {"init_catalog_tables": "false"} | properties
            self._catalogs[name] = load_catalog(name, **properties)
        return self._catalogs[name]


class _Followed:
    """`sources.iceberg.Table`, only to look at."""

    def __init__(self, look: Look, name: str) -> None:
        self._look = look
        self._name = name

    def look(self) -> View:
        table = self._look.load(self._name)
        if table is None:
            raise ConfigError(f"table {self._name} does not exist", "correct the source's table, or create it first")
        return View(self._name, table.metadata, table.io.properties)

    def keep(self, tag: str, snapshot: int) -> bool:
        raise NotImplementedError(f"{self._name} is only looked at: {tag} stays where it is, not at {snapshot}")


# ── what a table shows ─────────────────────────────────────────────────────────────────────
def entries(snapshot: Snapshot) -> dict[str, str]:
    """Return a snapshot's summary; writers may leave it out."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Walk the current branch, newest first, as far as it has not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = metadata.current_snapshot_id
    while at is not None and (snapshot := by_id.get(at)) is not None:
        yield snapshot
        at = snapshot.parent_snapshot_id


def read_mark(metadata: TableMetadata, pipeline: str) -> Mark | None:
    text = metadata.properties.get(summary.mark_property(pipeline))
    return Mark.from_json(text) if text else None


def read_head(metadata: TableMetadata, pipeline: str) -> Head:
    """Read the table's state as the protocol sees it."""
    branch = list(ancestors(metadata))
    mine = {snapshot.snapshot_id for snapshot in branch}
    others = (entries(s).get(summary.EPOCH_ID) for s in metadata.snapshots if s.snapshot_id not in mine)
    return Head(
        mark=read_mark(metadata, pipeline),
        ancestors=tuple(summary.ancestor(s.snapshot_id, entries(s)) for s in branch),
        whole=not branch or branch[-1].parent_snapshot_id is None,
        elsewhere=frozenset(UUID(text) for text in others if text),
    )


def other_pipelines(metadata: TableMetadata, pipeline: str) -> Sequence[str]:
    prefix = summary.mark_property("")
    names = sorted(key.removeprefix(prefix) for key in metadata.properties if key.startswith(prefix))
    return [name for name in names if name != pipeline]
