"""What is live in a snapshot: its data files and its deletes, as manifests tell.

Read from metadata alone. Manifests never change, so each is read once however many snapshots share it. Data files stay columns until
somebody wants one of them: a table may have hundred thousands, of which a snapshot touches a few.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from itertools import accumulate, compress, repeat
from typing import Any, TypeVar, overload

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, DataFileContent, ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.table.snapshots import Snapshot

from icefront.core.errors import ConnectionFailed, FilesGone
from icefront.iceberg.bounds import Metric
from icefront.iceberg.manifests import Manifest, Partition

Bounds = Mapping[int, bytes]
T = TypeVar("T")
_LIST_FIRST_ROW_ID = 15
_PATH = 2147483546  # the reserved field id of `file_path` in position deletes
_DELETED = 2
# Field ids of manifest entries, by the specification.
_STATUS, _SEQUENCE, _CONTENT, _FILE_PATH, _FORMAT, _RECORDS, _SIZE = 0, 3, 134, 100, 101, 103, 104
_NULLS, _LOWER, _UPPER, _EQUALITY_IDS = 110, 125, 128, 135
_FIRST_ROW_ID, _REFERENCED, _OFFSET, _LENGTH = 142, 143, 144, 145
_DATA = (_STATUS, _SEQUENCE, _FILE_PATH, _FORMAT, _RECORDS, _SIZE, _FIRST_ROW_ID)
_METRICS = (_LOWER, _UPPER, _NULLS)
_DELETES = (
    _STATUS,
    _SEQUENCE,
    _CONTENT,
    _FILE_PATH,
    _FORMAT,
    _RECORDS,
    _SIZE,
    _EQUALITY_IDS,
    _REFERENCED,
    _OFFSET,
    _LENGTH,
    *_METRICS,
)
_THREADS = 8
MANY_MANIFESTS, MANY_BYTES = 512, 64 << 20
"""With more than that the driver lets others read manifests."""


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

    def of(self, column: int) -> Metric:
        said = (self.lower, pa.large_binary()), (self.upper, pa.large_binary()), (self.nulls, pa.int64())
        return Metric(*(pa.array([values.get(column)], kind) for values, kind in said))


@dataclass(slots=True, unsafe_hash=True)
class DataEntry:
    """A live data file. Nobody changes it; it is not frozen because those take five times as long to make."""

    path: str
    format: str
    spec_id: int
    partition: Partition
    sequence: int
    records: int
    size: int
    first_row_id: int | None = None
    """Of the row at position 0, if it has not an id of its own; None: the snapshot was made before format 3."""


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
    records: int = 0

    @property
    def key(self) -> tuple[str, int | None]:
        """What tells deletes apart: several vectors share one file."""
        return self.path, self.offset


@dataclass(frozen=True)
class Listing:
    """Live data files of one manifest, in columns. `metrics` are of the table's columns that were asked for, by field id."""

    spec_id: int
    paths: Sequence[str]
    formats: Sequence[str]
    partitions: Sequence[Partition]
    sequences: Sequence[int]
    records: Sequence[int]
    sizes: Sequence[int]
    first_row_ids: Sequence[int | None]
    metrics: Mapping[int, Metric] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.partitions)

    def some(self, places: Sequence[int]) -> list[DataEntry]:
        """Return the files at some places."""
        columns: Sequence[Sequence[Any]] = (
            self.paths,
            self.formats,
            self.partitions,
            self.sequences,
            self.records,
            self.sizes,
            self.first_row_ids,
        )
        if len(places) < len(self):
            columns = tuple([column[i] for i in places] for column in columns)
        paths, formats, partitions, *numbers = columns
        return list(map(DataEntry, paths, formats, repeat(self.spec_id), partitions, *numbers))


@dataclass(frozen=True, slots=True)
class Entries:
    """What one manifest lists as live: of one kind, as manifests are."""

    data: Listing | None = None
    deletes: Sequence[DeleteEntry] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    """A manifest as a snapshot lists it: what its entries inherit. Plain values: cheap to pickle."""

    path: str
    bytes: int
    spec_id: int
    sequence: int
    has_data: bool
    first_row_id: int | None

    @classmethod
    def of(cls, manifest: ManifestFile) -> Ref:
        # Format 1 knows no sequence numbers: 0.
        return cls(
            manifest.manifest_path,
            manifest.manifest_length,
            manifest.partition_spec_id,
            int(manifest.sequence_number or 0),
            manifest.content == ManifestContent.DATA,
            manifest[_LIST_FIRST_ROW_ID],
        )


Ids = frozenset[int]
"""Columns whose ranges are wanted, by field id."""
Read = Callable[[Sequence[Ref], Ids], Iterable[Entries]]


class Manifests:
    """Reads manifests, each once: in threads, and where there are very many by `elsewhere`."""

    def __init__(self, io: FileIO, elsewhere: Read | None = None, before: Manifests | None = None) -> None:
        """What was read `before` is not read again; what nobody asks for from then on is forgotten with it."""
        self._io = io
        self._elsewhere = elsewhere
        self._before: Mapping[tuple[Ref, Ids], Entries] = before.known if before else {}
        # Snapshots may list one manifest with other row ids: those from before format 3 with none, branches each with their own.
        self.known: dict[tuple[Ref, Ids], Entries] = {}

    def of(self, snapshot: Snapshot | None) -> dict[str, Ref]:
        """Return a snapshot's manifests by path; none of no snapshot."""
        if snapshot is None:
            return {}
        try:
            with AvroFile[ManifestFile](
                self._io.new_input(snapshot.manifest_list),
                MANIFEST_LIST_FILE_SCHEMAS[3],  # PyIceberg's own way leaves out what format 3 added
                read_types={-1: ManifestFile, 508: PartitionFieldSummary},
                read_enums={517: ManifestContent},
            ) as found:
                return {m.manifest_path: Ref.of(m) for m in found}
        except FileNotFoundError as error:
            raise missing(snapshot.manifest_list) from error

    def entries(self, manifests: Sequence[Ref], ids: Ids = frozenset()) -> Iterator[Entries]:
        """Return what manifests list, of data files also the ranges of some columns: each as soon as it is read, while others are."""
        self.known |= {(m, ids): self._before[m, ids] for m in manifests if (m, ids) in self._before}
        missing = [m for m in manifests if (m, ids) not in self.known]
        fetched = zip(missing, self._fetch(missing, ids), strict=True)
        for manifest in manifests:
            while (manifest, ids) not in self.known:
                which, found = next(fetched)
                self.known[which, ids] = found
            yield self.known[manifest, ids]

    def _fetch(self, manifests: Sequence[Ref], ids: Ids) -> Iterator[Entries]:
        many = len(manifests) > MANY_MANIFESTS or sum(m.bytes for m in manifests) > MANY_BYTES
        if many and self._elsewhere is not None:
            yield from self._elsewhere(manifests, ids)
        elif len(manifests) < 2:
            yield from (entries(self._io, manifest, ids) for manifest in manifests)
        else:
            # Many threads wait for storage; more than there are cores would get in one another's way where they decode.
            with ThreadPoolExecutor(_THREADS) as readers, ThreadPoolExecutor(os.cpu_count()) as decoders:
                try:
                    read = [readers.submit(_bytes, self._io, manifest) for manifest in manifests]
                    yield from decoders.map(lambda data, manifest: _decoded(data.result(), manifest, ids), read, manifests)
                finally:
                    # Where one cannot be read, or nobody wants the others any more, they are not waited for.
                    readers.shutdown(wait=False, cancel_futures=True)


# ── one manifest ───────────────────────────────────────────────────────────────────────────
def entries(io: FileIO, ref: Ref, ids: Ids) -> Entries:
    """Read what a manifest lists as live."""
    return _decoded(_bytes(io, ref), ref, ids)


def _bytes(io: FileIO, ref: Ref) -> bytes:
    try:
        with io.new_input(ref.path).open() as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise missing(ref.path) from error


def missing(path: str) -> FileNotFoundError:
    """Make the error of a file that is not there; stores say it each in words of their own."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


@contextmanager
def readable(table: str) -> Iterator[None]:
    """Say which table it is whose manifests cannot be read, and why not."""
    try:
        yield
    except FileNotFoundError as error:
        raise FilesGone.of(table, [error.filename]) from error
    except OSError as error:
        raise ConnectionFailed(
            f"the manifests of {table} cannot be read: {error}", "see whether its storage is up, then try again"
        ) from error


def _decoded(data: bytes, ref: Ref, ids: Ids) -> Entries:
    manifest = Manifest(data)
    if ref.has_data:
        return Entries(data=_listing(manifest, ref, ids))
    return Entries(deletes=list(_deletes(manifest, ref)))


def _listing(manifest: Manifest, ref: Ref, ids: Ids) -> Listing:
    """Read data files. Who asks for ranges looks for few files among many: what else is told of them can wait."""
    columns, partitions = manifest.entries((_STATUS, _SEQUENCE, *_METRICS) if ids else _DATA)
    live = columns[_STATUS].cast(pl.Int32) != _DELETED
    if not live.all():
        partitions = list(compress(partitions, live.to_list()))
    lists = _Lists(_some(columns, live), len(partitions))
    rest = _Undecoded(manifest, live, ref)
    told: Sequence[Sequence[Any]] = [Later(partial(rest.column, i)) for i in range(5)] if ids else _files(lists, ref)
    paths, formats, records, sizes, row_ids = told
    return Listing(
        spec_id=ref.spec_id,
        paths=paths,
        formats=formats,
        partitions=partitions,
        sequences=_inherited(lists[_SEQUENCE], ref),
        records=records,
        sizes=sizes,
        first_row_ids=row_ids,
        metrics=_metrics(lists.columns, ids, len(partitions)) if ids else {},
    )


def _files(lists: _Lists, ref: Ref) -> Sequence[Sequence[Any]]:
    """Return paths, formats, numbers of rows, sizes and where row ids begin."""
    records = lists[_RECORDS]
    row_ids = first_row_ids(ref.first_row_id, lists[_FIRST_ROW_ID], records)
    return lists[_FILE_PATH], _lowered(lists[_FORMAT]), records, lists[_SIZE], row_ids


class _Undecoded:
    """Columns of a manifest that are decoded, all of them, when somebody looks at the first one."""

    def __init__(self, manifest: Manifest, live: pl.Series, ref: Ref) -> None:
        self._source: tuple[Manifest, pl.Series, Ref] | None = (manifest, live, ref)
        self._columns: Sequence[Sequence[Any]] = ()

    def column(self, place: int) -> Sequence[Any]:
        if self._source is not None:
            manifest, live, ref = self._source
            columns, _ = manifest.entries(_DATA)
            self._columns = _files(_Lists(_some(columns, live), int(live.sum())), ref)
            self._source = None  # its bytes are not needed any more
        return self._columns[place]


def _some(columns: Mapping[int, pl.Series], which: pl.Series) -> Mapping[int, pl.Series]:
    return columns if which.all() else {i: column.filter(which) for i, column in columns.items()}


class Later(Sequence[T]):
    """A list that is not made before somebody looks at it."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make

    @cached_property
    def _values(self) -> Sequence[T]:
        return self._make()

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._values[at]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)

    def __reduce__(self) -> tuple[type[list[T]], tuple[Sequence[T]]]:
        """Travel as the list."""
        return list, (self._values,)


@dataclass(frozen=True, slots=True)
class _Lists:
    """Columns as lists; one that is not there is all None."""

    columns: Mapping[int, pl.Series]
    count: int

    def __getitem__(self, field: int) -> list[Any]:
        return self.columns[field].to_list() if field in self.columns else [None] * self.count


def _lowered(formats: Sequence[str]) -> list[str]:
    known = {written: written.lower() for written in set(formats)}
    return [known[written] for written in formats]


def _inherited(sequences: list[int | None], ref: Ref) -> list[int]:
    """Return data sequence numbers; an entry without one has its manifest's."""
    return [ref.sequence if sequence is None else sequence for sequence in sequences]


def _metrics(columns: Mapping[int, pl.Series], ids: Ids, count: int) -> dict[int, Metric]:
    """Take some columns' metrics out of the lists of pairs that entries have."""
    found: dict[int, list[pa.Array]] = {i: [] for i in ids}
    for metric, kind in zip(_METRICS, (pa.large_binary(), pa.large_binary(), pa.int64()), strict=True):
        if metric not in columns or not count:
            for values in found.values():
                values.append(pa.nulls(count, kind))
            continue
        lists = columns[metric].to_arrow()
        starts = lists.offsets.to_numpy()
        files = np.repeat(np.arange(count), np.diff(starts))
        pairs = lists.values.slice(starts[0], starts[-1] - starts[0])
        keys, said = pairs.field(0).to_numpy(), pairs.field(1)
        for i, values in found.items():
            places = np.full(count, -1)
            at = np.flatnonzero(keys == i)
            places[files[at]] = at
            values.append(said.take(pa.array(places, mask=places < 0)))
    return {i: Metric(*values) for i, values in found.items()}


def first_row_ids(manifest: int | None, said: Sequence[int | None], records: Sequence[int]) -> list[int | None]:
    """Return where each live file's row ids begin, given what its entry says and its number of rows.

    Files without one share the manifest's range, in the order in which they are listed. Without such a range no file has ids.
    """
    if manifest is None:
        return [None] * len(said)
    if said.count(None) == len(said):
        ids: list[int | None] = [*accumulate(records, initial=manifest)]
        return ids[:-1]
    taken = (0 if first is not None else count for first, count in zip(said, records, strict=True))
    ends = accumulate(taken, initial=manifest)
    return [next_id if first is None else first for first, next_id in zip(said, ends, strict=False)]


def _deletes(manifest: Manifest, ref: Ref) -> Iterator[DeleteEntry]:
    columns, partitions = manifest.entries(_DELETES)
    lists = _Lists(columns, manifest.count)
    sequences = _inherited(lists[_SEQUENCE], ref)
    rows = zip(*(lists[i] for i in _DELETES if i not in {_SEQUENCE, *_METRICS}), strict=True)
    metrics = zip(*(map(_mapping, lists[i]) for i in _METRICS), strict=True)
    for row, partition, sequence, said in zip(rows, partitions, sequences, metrics, strict=True):
        status, content, path, written, records, size, equality_ids, referenced, offset, length = row
        if status != _DELETED:
            yield DeleteEntry(
                kind=_kind(content, written.lower()),
                path=path,
                offset=offset,
                length=length or size,
                format=written.lower(),
                spec_id=ref.spec_id,
                partition=partition,
                sequence=sequence,
                referenced=referenced or _only_path(Metrics(*said)),
                equality_ids=tuple(equality_ids or ()),
                metrics=Metrics(*said),
                records=records,
            )


def _mapping(pairs: Iterable[Mapping[str, Any]] | None) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}


def _kind(content: int, written: str) -> DeleteKind:
    if content == DataFileContent.EQUALITY_DELETES:
        return DeleteKind.EQUALITY
    return DeleteKind.VECTOR if written == "puffin" else DeleteKind.POSITION


def _only_path(metrics: Metrics) -> str | None:
    """Position deletes whose bounds are one path hold for that file only. Longer paths are cut off in bounds, and then differ."""
    lower, upper = metrics.lower.get(_PATH), metrics.upper.get(_PATH)
    return lower.decode() if lower is not None and lower == upper else None
