"""Which files tell the changes from one snapshot to another, planned from metadata alone (rule R1 of the changelog).

    file only in the new snapshot     ─▶ its live rows are inserts
    file only in the old snapshot     ─▶ the rows that were live in it are deletes
    file in both, other deletes on it ─▶ rows that died are deletes, rows that came back are inserts

Manifests that both snapshots have are looked into only when deletes changed, or when rows have to be told dead from alive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, PrimitiveType

from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Entries, Metrics, Partition

Key = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One data file whose rows changed. None: it is not in that snapshot; else the deletes that apply to it there."""

    file: DataEntry
    before: tuple[DeleteEntry, ...] | None
    after: tuple[DeleteEntry, ...] | None

    @property
    def bytes(self) -> int:
        """Estimate what reading it costs: the file, and each delete once."""
        deletes = {d.key: d.length for d in (*(self.before or ()), *(self.after or ()))}
        return self.file.size + sum(deletes.values())

    @property
    def may_lose(self) -> bool:
        """Say whether rows may leave: the file is gone, or has a delete that it had not."""
        return self.before is not None and (self.after is None or bool(_keys(self.after) - _keys(self.before)))

    @property
    def may_gain(self) -> bool:
        """Say whether rows may come: the file is new, or lost a delete."""
        return self.after is not None and (self.before is None or bool(_keys(self.before) - _keys(self.after)))


@dataclass(frozen=True)
class Facts:
    """What planning must know of the table: its unpartitioned specs, and the types of columns by field id."""

    unpartitioned: frozenset[int]
    types: Mapping[int, PrimitiveType]


def plan(
    old: Mapping[str, ManifestFile], new: Mapping[str, ManifestFile], read: Callable[[ManifestFile], Entries], facts: Facts
) -> list[FileChange]:
    """Compare two snapshots, each given as its manifests by path."""
    gone, come = _only(old, new, read), _only(new, old, read)
    # A rewritten manifest lists what another one listed: only what is on one side counts.
    removed = [e for path, e in gone.data.items() if path not in come.data]
    added = [e for path, e in come.data.items() if path not in gone.data]
    changed = [gone.deletes.get(key) or come.deletes[key] for key in gone.deletes.keys() ^ come.deletes.keys()]
    if not (removed or added or changed):
        return []
    shared = [m for path, m in new.items() if path in old]
    ties = [entry for m in shared if m.content == ManifestContent.DELETES for entry in read(m).deletes]
    before, after = (_Deletes([*side.deletes.values(), *ties], facts) for side in (gone, come))
    changes = [FileChange(f, before.on(f), None) for f in removed] + [FileChange(f, None, after.on(f)) for f in added]
    if changed:
        kept = [e for path, e in come.data.items() if path in gone.data]
        kept += [entry for m in shared if m.content == ManifestContent.DATA for entry in read(m).data]
        touching = _Deletes(changed, facts)
        for file in kept:
            if touching.on(file):
                change = FileChange(file, before.on(file), after.on(file))
                if _keys(change.before) != _keys(change.after):
                    changes.append(change)
    return changes


def _keys(deletes: Iterable[DeleteEntry] | None) -> set[Key]:
    return {delete.key for delete in deletes or ()}


@dataclass(frozen=True)
class _Side:
    data: dict[str, DataEntry]
    deletes: dict[Key, DeleteEntry]


def _only(mine: Mapping[str, ManifestFile], other: Mapping[str, ManifestFile], read: Callable[[ManifestFile], Entries]) -> _Side:
    """Read the manifests that the other snapshot has not."""
    entries = [read(m) for path, m in mine.items() if path not in other]
    return _Side({d.path: d for e in entries for d in e.data}, {d.key: d for e in entries for d in e.deletes})


class _Deletes:
    """Finds the deletes that apply to a file (the specification's scan planning rules)."""

    def __init__(self, deletes: Sequence[DeleteEntry], facts: Facts) -> None:
        self._facts = facts
        self._vectors: dict[str, DeleteEntry] = {}
        self._of_file: dict[str, list[DeleteEntry]] = defaultdict(list)
        self._of_partition: dict[tuple[int, Partition], list[DeleteEntry]] = defaultdict(list)
        self._everywhere: list[DeleteEntry] = []
        for delete in deletes:
            if delete.kind is DeleteKind.VECTOR and delete.referenced is not None:
                self._vectors[delete.referenced] = delete
            elif delete.kind is DeleteKind.EQUALITY and delete.spec_id in facts.unpartitioned:
                self._everywhere.append(delete)
            elif delete.kind is DeleteKind.POSITION and delete.referenced is not None:
                self._of_file[delete.referenced].append(delete)
            else:
                self._of_partition[delete.spec_id, delete.partition].append(delete)

    def on(self, file: DataEntry) -> tuple[DeleteEntry, ...]:
        """Return the deletes that apply to a file, in a settled order."""
        vector = self._vectors.get(file.path)
        if vector is not None and vector.sequence < file.sequence:
            vector = None
        found = [d for d in self._candidates(file) if self._applies(d, file) and not (vector and d.kind is DeleteKind.POSITION)]
        found += [vector] if vector else []
        return tuple(sorted(found, key=lambda d: (d.path, d.offset or 0)))

    def _candidates(self, file: DataEntry) -> Iterator[DeleteEntry]:
        yield from self._everywhere
        yield from self._of_file.get(file.path, ())
        yield from self._of_partition.get((file.spec_id, file.partition), ())

    def _applies(self, delete: DeleteEntry, file: DataEntry) -> bool:
        if delete.kind is DeleteKind.POSITION:
            return file.sequence <= delete.sequence
        return file.sequence < delete.sequence and all(
            _may_meet(self._facts.types.get(field), field, delete.metrics, file.metrics) for field in delete.equality_ids
        )


def _may_meet(kind: PrimitiveType | None, field: int, one: Metrics, other: Metrics) -> bool:
    """Say whether two files can have an equal value in a column: by bounds, or as nulls. What is unknown may be."""
    sides = [(m.lower.get(field), m.upper.get(field), m.nulls.get(field)) for m in (one, other)]
    if kind is None or isinstance(kind, FloatType | DoubleType) or any(None in side for side in sides):
        return True  # of floats, bounds leave NaN out
    if all(nulls for _, _, nulls in sides):
        return True
    (low, high), (other_low, other_high) = ([_value(kind, bound) for bound in side[:2] if bound is not None] for side in sides)
    return bool(low <= other_high and other_low <= high)


def _value(kind: PrimitiveType, bound: bytes) -> Any:
    """Read a bound; one of a file that was written before its column was widened is as narrow as it was then."""
    return from_bytes(IntegerType() if isinstance(kind, LongType) and len(bound) == 4 else kind, bound)
