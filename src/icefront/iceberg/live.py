"""What is live in a snapshot: its data files and its deletes, as manifests tell.

Read by PyIceberg from metadata alone. Manifests never change, so each is read once however many snapshots share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.snapshots import Snapshot

Partition = tuple[Any, ...]
Bounds = Mapping[int, bytes]
_FORMAT_3 = {name: at for at, name in enumerate(("first_row_id", "referenced_data_file", "content_offset", "content_size"), 16)}
_PATH = 2147483546  # the reserved field id of `file_path` in position deletes


class DeleteKind(StrEnum):
    VECTOR = "deletion vector"
    POSITION = "position delete"
    EQUALITY = "equality delete"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a manifest says about columns, by field id; an absent one is unknown."""

    lower: Bounds = field(default_factory=dict)
    upper: Bounds = field(default_factory=dict)
    nulls: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataEntry:
    """A live data file."""

    path: str
    format: str
    spec_id: int
    partition: Partition
    sequence: int
    records: int
    size: int
    metrics: Metrics = Metrics()


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """A live delete: a file, or one vector of a file."""

    kind: DeleteKind
    path: str
    offset: int | None
    length: int
    format: str
    spec_id: int
    partition: Partition
    sequence: int
    referenced: str | None = None
    equality_ids: tuple[int, ...] = ()
    metrics: Metrics = Metrics()

    @property
    def key(self) -> tuple[str, int | None]:
        """What tells deletes apart: several vectors share one file."""
        return self.path, self.offset


@dataclass(frozen=True, slots=True)
class Entries:
    """What one manifest lists as live: of one kind, as manifests are."""

    data: Sequence[DataEntry] = ()
    deletes: Sequence[DeleteEntry] = ()


class Manifests:
    """Reads manifests, each once."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._read: dict[str, Entries] = {}

    def of(self, snapshot: Snapshot | None) -> dict[str, ManifestFile]:
        """Return a snapshot's manifests by path; none of no snapshot."""
        return {m.manifest_path: m for m in snapshot.manifests(self._io)} if snapshot else {}

    def entries(self, manifest: ManifestFile) -> Entries:
        if manifest.manifest_path not in self._read:
            self._read[manifest.manifest_path] = self._entries(manifest)
        return self._read[manifest.manifest_path]

    def _entries(self, manifest: ManifestFile) -> Entries:
        with AvroFile[ManifestEntry](
            self._io.new_input(manifest.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[3],  # PyIceberg's own way leaves out what format 3 added
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        ) as found:
            live = [(e.data_file, _sequence(e, manifest)) for e in found if e.status != ManifestEntryStatus.DELETED]
        spec = manifest.partition_spec_id
        if manifest.content == ManifestContent.DATA:
            return Entries(data=[_data(file, sequence, spec) for file, sequence in live])
        return Entries(deletes=[_delete(file, sequence, spec) for file, sequence in live])


def _sequence(entry: ManifestEntry, manifest: ManifestFile) -> int:
    """Return the data sequence number; an entry without one has its manifest's. Format 1 knows none: 0."""
    return int(manifest.sequence_number or 0) if entry.sequence_number is None else int(entry.sequence_number)


def _data(file: DataFile, sequence: int, spec: int) -> DataEntry:
    return DataEntry(
        path=file.file_path,
        format=file.file_format.value.lower(),
        spec_id=spec,
        partition=_partition(file),
        sequence=sequence,
        records=file.record_count,
        size=file.file_size_in_bytes,
        metrics=_metrics(file),
    )


def _delete(file: DataFile, sequence: int, spec: int) -> DeleteEntry:
    kind = DeleteKind.EQUALITY
    if file.content == DataFileContent.POSITION_DELETES:
        kind = DeleteKind.VECTOR if file.file_format == FileFormat.PUFFIN else DeleteKind.POSITION
    return DeleteEntry(
        kind=kind,
        path=file.file_path,
        offset=_format_3(file, "content_offset"),
        length=_format_3(file, "content_size") or file.file_size_in_bytes,
        format=file.file_format.value.lower(),
        spec_id=spec,
        partition=_partition(file),
        sequence=sequence,
        referenced=_format_3(file, "referenced_data_file") or _only_path(file),
        equality_ids=tuple(file.equality_ids or ()),
        metrics=_metrics(file),
    )


def _format_3(file: DataFile, name: str) -> Any:
    return file[_FORMAT_3[name]]


def _only_path(file: DataFile) -> str | None:
    """Position deletes whose bounds are one path hold for that file only. Longer paths are cut off in bounds, and then differ."""
    lower, upper = (file.lower_bounds or {}).get(_PATH), (file.upper_bounds or {}).get(_PATH)
    return lower.decode() if lower is not None and lower == upper else None


def _partition(file: DataFile) -> Partition:
    return tuple(file.partition[i] for i in range(len(file.partition)))


def _metrics(file: DataFile) -> Metrics:
    return Metrics(file.lower_bounds or {}, file.upper_bounds or {}, file.null_value_counts or {})
