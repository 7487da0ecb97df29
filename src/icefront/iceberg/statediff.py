"""Which files tell the changes from one snapshot to another, planned from metadata alone (rule R1 of the changelog).

    file only in the new snapshot     ─▶ its live rows are inserts
    file only in the old snapshot     ─▶ the rows that were live in it are deletes
    file in both, other deletes on it ─▶ rows that died are deletes, rows that came back are inserts

Manifests that both snapshots have are looked into only when deletes changed, or when rows have to be told dead from alive: not for files
that came, as far as those are younger than the deletes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from itertools import repeat
from typing import Any

import numpy as np
from pyiceberg.types import PrimitiveType

from icefront.iceberg import kinship
from icefront.iceberg.bounds import Ranges, may_meet, ranges
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Ids, Listing, Read, Ref
from icefront.iceberg.manifests import Partition

Key = tuple[str, int | None]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Moves(Flag):
    """What rows of a file may do."""

    LEAVE = auto()
    COME = auto()
    EITHER = LEAVE | COME


@dataclass(slots=True, unsafe_hash=True)
class FileChange:
    """One data file whose rows changed. None: it is not in that snapshot; else the deletes that apply to it there."""

    file: DataEntry
    before: tuple[DeleteEntry, ...] | None
    after: tuple[DeleteEntry, ...] | None
    kin: int = 0
    """Of a rewrite: files that were probably rewritten into one another have the same number."""
    vectors: Moves = Moves.EITHER
    """What one vector in the place of another makes of rows; all that can be, as long as nobody has looked into them: see `bitmaps`."""

    @property
    def bytes(self) -> int:
        """Estimate what reading it costs: the file, and each delete once."""
        deletes = {d.key: d.length for d in (*(self.before or ()), *(self.after or ()))}
        return self.file.size + sum(deletes.values())

    @property
    def is_foreign(self) -> bool:
        """Say whether only Iceberg's own reader reads it: rows, or deletes on them, that are not Parquet."""
        deletes = (*(self.before or ()), *(self.after or ()))
        written = {d.format for d in deletes if d.kind is not DeleteKind.VECTOR}
        return {self.file.format, *written} != {"parquet"}

    @property
    def may_lose(self) -> bool:
        """Say whether rows may leave: the file is gone, or has a delete that it had not."""
        return self.before is not None and (self.after is None or self._may(Moves.LEAVE, self.after, self.before))

    @property
    def may_gain(self) -> bool:
        """Say whether rows may come: the file is new, or lost a delete."""
        return self.after is not None and (self.before is None or self._may(Moves.COME, self.before, self.after))

    @property
    def replaced(self) -> tuple[DeleteEntry, DeleteEntry] | None:
        """Return the vector that the file had and the one that took its place, if that is so."""
        if not self.before or not self.after:
            return None
        was, now = ([d for d in side if d.kind is DeleteKind.VECTOR] for side in (self.before, self.after))
        return (was[0], now[0]) if was and now and was[0].key != now[0].key else None

    def _may(self, what: Moves, these: Iterable[DeleteEntry], those: Iterable[DeleteEntry]) -> bool:
        only = _keys(these) - _keys(those)
        if what not in self.vectors and self.replaced is not None:
            only -= _keys(self.replaced)
        return bool(only)


def meets(found: Sequence[FileChange]) -> bool:
    """Say whether rows of a step may be on both sides. Of a file that Iceberg reads they are, if it is in both states."""
    if any(c.is_foreign and c.before is not None and c.after is not None for c in found):
        return True
    return any(c.may_lose for c in found) and any(c.may_gain for c in found)


@dataclass(frozen=True)
class Facts:
    """What planning must know of the table: its unpartitioned specs, and the types of columns by field id."""

    unpartitioned: frozenset[int]
    types: Mapping[int, PrimitiveType]


def plan(old: Mapping[str, Ref], new: Mapping[str, Ref], read: Read, facts: Facts) -> list[FileChange]:
    """Compare two snapshots, each given as its manifests by path."""
    gone, come = ([m for path, m in mine.items() if path not in other] for mine, other in ((old, new), (new, old)))
    if not gone and not come:
        return []
    shared = [m for path, m in new.items() if path in old]
    lost, fresh = (_listed(_of_deletes(ms), read) for ms in (gone, come))
    # A rewritten manifest lists what another one listed: only what is on one side counts.
    changed = [lost.get(key) or fresh[key] for key in lost.keys() ^ fresh.keys()]
    lasting = _of_deletes(shared)
    if not changed and not _of_data(gone):
        # Nothing but files that came: an append does not look into what is older than they are.
        lasting = _reaching(lasting, _of_data(come), read)
    ties = _listed(lasting, read)
    before, after = (
        _State(_of_data(ms), Deletes([*side.values(), *ties.values()], facts)) for ms, side in ((gone, lost), (come, fresh))
    )
    ids = before.deletes.ids | after.deletes.ids
    stayed: list[tuple[Listing, Places]] = []
    if before.manifests:
        changes, stayed = _rewritten(before, after, read, facts)
    else:
        # Of each manifest as it comes, while others are read.
        came = (e.data for e in read(after.manifests, ids) if e.data is not None)
        changes = [FileChange(f, None, on) for files in came for f, on in after.deletes.on(files, range(len(files)))]
    if changed:
        touching = Deletes(changed, facts)
        kept = [(files, touching.places(files, places)) for files, places in stayed]
        for manifest in _touched(touching, _of_data(shared), read):
            (files,) = (e.data for e in read([manifest], ids) if e.data is not None)
            kept.append((files, touching.places(files, range(len(files)))))
        for files, touched in kept:
            for (file, was), (_, now) in zip(before.deletes.on(files, touched), after.deletes.on(files, touched), strict=True):
                if _keys(was) != _keys(now):
                    changes.append(FileChange(file, was, now))
    return changes


def _rewritten(before: _State, after: _State, read: Read, facts: Facts) -> tuple[list[FileChange], list[tuple[Listing, Places]]]:
    """Compare what manifests listed with what those in their place list; return also the files that are in both as they were."""
    ids = before.deletes.ids | after.deletes.ids
    left, came = ([e.data for e in read(state.manifests, ids) if e.data is not None] for state in (before, after))
    # Files are on both sides only where a manifest was rewritten.
    both = (left, came) if left and came else ((), ())
    left_paths, came_paths = ({path for listing in side for path in listing.paths} for side in both)
    sides = _Side(before.manifests, left, left_paths - came_paths), _Side(after.manifests, came, came_paths - left_paths)
    kin = _kin(*sides, read, facts)
    changes = [
        FileChange(f, on, None, kin.get(f.path, 0))
        for files in left
        for f, on in before.deletes.on(files, _without(files, came_paths))
    ]
    changes += [
        FileChange(f, None, on, kin.get(f.path, 0))
        for files in came
        for f, on in after.deletes.on(files, _without(files, left_paths))
    ]
    renumbered = _renumbered(left, came, left_paths & came_paths)
    if renumbered:
        was = {f.path: on for files in left for f, on in before.deletes.on(files, _within(files, renumbered))}
        now = [(f, on) for files in came for f, on in after.deletes.on(files, _within(files, renumbered))]
        changes += [FileChange(f, was[f.path], on) for f, on in now if _keys(was[f.path]) != _keys(on)]
    return changes, [(files, _within(files, left_paths - renumbered)) for files in came]


def lie_apart(
    found: Sequence[FileChange],
    manifests: Callable[[], Iterable[Ref]],
    read: Read,
    types: Mapping[int, PrimitiveType],
) -> bool:
    """Say whether no row that left can be equal to one that came, by the ranges of columns of some types.

    It is so where updates set a time, for example. Only asked where that saves much, and can be so: rows left files that stay, and came
    in new ones.
    """
    left, came = ({c.file.path for c in found if c.may_lose}, {c.file.path for c in found if c.before is None})
    if (
        any(c.after is None or c.is_foreign or (c.before is not None and c.may_gain) for c in found)
        or any(d.kind is DeleteKind.EQUALITY for c in found for d in (*(c.before or ()), *(c.after or ())))
        or not 0 < len(left) * len(came) <= kinship.PAIRS
        or sum(c.bytes for c in found) < kinship.LITTLE
    ):
        return False
    both = left | came
    refs = _of_data(manifests())
    listed = zip(refs, read(refs, _NO_IDS), strict=True)
    holding = [ref for ref, e in listed if e.data is not None and not both.isdisjoint(e.data.paths)]
    listings = [e.data for e in read(holding, frozenset(types)) if e.data is not None]
    sides = [kinship.Side.of(listings, paths, types) for paths in (left, came)]
    return [set(side.paths) for side in sides] == [left, came] and kinship.strangers(*sides)


def _renumbered(left: Iterable[Listing], came: Iterable[Listing], shared: set[str]) -> set[str]:
    """Name files that have another sequence number than before, as those that were taken over from a branch: other deletes apply."""
    if not shared:
        return set()
    was, now = (
        {path: number for files in side for path, number in zip(files.paths, files.sequences, strict=True) if path in shared}
        for side in (left, came)
    )
    return {path for path, number in now.items() if was[path] != number}


@dataclass(frozen=True, slots=True)
class _State:
    """Data manifests that only one of two snapshots has, and the deletes that may hold there for a file that changed."""

    manifests: Sequence[Ref]
    deletes: Deletes


@dataclass(frozen=True, slots=True)
class _Side:
    """Manifests, what they list, and which of those files are in this state alone."""

    manifests: Sequence[Ref]
    listings: Sequence[Listing]
    paths: set[str]

    @property
    def bytes(self) -> int:
        return sum(size for f in self.listings for path, size in zip(f.paths, f.sizes, strict=True) if path in self.paths)


def _kin(left: _Side, came: _Side, read: Read, facts: Facts) -> Mapping[str, int]:
    """Find out which of the files that left were rewritten into which of those that came."""
    pairs = len(left.paths) * len(came.paths)
    if not 1 < pairs <= kinship.PAIRS or left.bytes + came.bytes < kinship.LITTLE:
        return {}
    ids = frozenset(sorted(facts.types)[: kinship.COLUMNS])
    sides = (
        kinship.Side.of((e.data for e in read(s.manifests, ids) if e.data is not None), s.paths, facts.types)
        for s in (left, came)
    )
    return kinship.kin(*sides)


_NO_IDS: Ids = frozenset()
Places = Sequence[int]


def _of_data(manifests: Iterable[Ref]) -> Sequence[Ref]:
    return [m for m in manifests if m.has_data]


def _of_deletes(manifests: Iterable[Ref]) -> Sequence[Ref]:
    return [m for m in manifests if not m.has_data]


def _listed(manifests: Sequence[Ref], read: Read) -> dict[Key, DeleteEntry]:
    return {d.key: d for e in read(manifests, _NO_IDS) for d in e.deletes}


def _reaching(deletes: Sequence[Ref], data: Sequence[Ref], read: Read) -> Sequence[Ref]:
    """Return manifests whose deletes may hold for one of the files, by sequence numbers alone.

    No delete is younger than its manifest, and none holds for a file that is younger than itself; a position delete or vector may for
    one of its own age. Files that came may be old: a rewrite keeps their number.
    """
    if not deletes:
        return ()
    least = min((number for e in read(data, _NO_IDS) if e.data is not None for number in e.data.sequences), default=None)
    return [m for m in deletes if least is not None and m.sequence >= least]


def _touched(touching: Deletes, manifests: Sequence[Ref], read: Read) -> Iterator[Ref]:
    """Return manifests that list a file to which one of the deletes applies. To find that out, metrics are read only if those want them."""
    for manifest, found in zip(manifests, read(manifests, touching.ids), strict=True):
        if found.data is not None and touching.places(found.data, range(len(found.data))):
            yield manifest


def _within(files: Listing, paths: set[str]) -> Places:
    return [i for i, path in enumerate(files.paths) if path in paths] if paths else ()


def _without(files: Listing, paths: set[str]) -> Places:
    return [i for i, path in enumerate(files.paths) if path not in paths] if paths else range(len(files))


def _keys(deletes: Iterable[DeleteEntry] | None) -> set[Key]:
    return {delete.key for delete in deletes or ()}


EVERYWHERE = -1
"""The partition spec of a delete that no table has yet, and that holds for all of it."""


class Deletes:
    """Finds the deletes that apply to files (the specification's scan planning rules)."""

    def __init__(self, deletes: Sequence[DeleteEntry], facts: Facts) -> None:
        self._facts = facts
        self._vectors: dict[str, DeleteEntry] = {}
        self._of_file: dict[str, list[DeleteEntry]] = defaultdict(list)
        self._of_partition: dict[tuple[int, Partition], list[DeleteEntry]] = defaultdict(list)
        self._everywhere: list[DeleteEntry] = []
        self._read: dict[tuple[int, int], Ranges] = {}
        self._numbers: dict[int, Numbers] = {}
        self.ids: Ids = frozenset(i for delete in deletes for i in delete.equality_ids)
        for delete in deletes:
            if delete.kind is DeleteKind.VECTOR and delete.referenced is not None:
                self._vectors[delete.referenced] = delete
            elif delete.kind is DeleteKind.EQUALITY and (delete.spec_id == EVERYWHERE or delete.spec_id in facts.unpartitioned):
                self._everywhere.append(delete)
            elif delete.kind is DeleteKind.POSITION and delete.referenced is not None:
                self._of_file[delete.referenced].append(delete)
            else:
                self._of_partition[delete.spec_id, _exact(delete.partition)].append(delete)

    def on(self, files: Listing, places: Places) -> Iterator[tuple[DataEntry, tuple[DeleteEntry, ...]]]:
        """Return some of the files with the deletes that apply to each, in a settled order."""
        found = self._found(files, places)
        if not found:
            return zip(files.some(places), repeat(()), strict=False)
        ordered = {place: tuple(sorted(deletes, key=lambda d: (d.path, d.offset or 0))) for place, deletes in found.items()}
        return zip(files.some(places), (ordered.get(place, ()) for place in places), strict=True)

    def places(self, files: Listing, places: Places) -> Places:
        """Say to which of the files a delete applies."""
        return sorted(self._found(files, places))

    def _found(self, files: Listing, places: Places) -> Mapping[int, list[DeleteEntry]]:
        """Find deletes by file: delete by delete, since most files have none."""
        found: dict[int, list[DeleteEntry]] = defaultdict(list)
        for delete, among in self._candidates(files, places):
            for place in self._applies(delete, files, among):
                found[place].append(delete)
        if self._vectors:
            for place in places:
                vector = self._vectors.get(files.paths[place])
                if vector is not None and vector.sequence >= files.sequences[place]:
                    found[place] = [vector, *(d for d in found[place] if d.kind is not DeleteKind.POSITION)]
        return found

    def _candidates(self, files: Listing, places: Places) -> Iterator[tuple[DeleteEntry, Places]]:
        """Return deletes other than vectors, each with the files that it may be meant for."""
        yield from ((delete, places) for delete in self._everywhere)
        if self._of_file:
            yield from ((d, (place,)) for place in places for d in self._of_file.get(files.paths[place], ()))
        partitions = {partition for spec, partition in self._of_partition if spec == files.spec_id}
        members: dict[Partition, list[int]] = defaultdict(list)
        if partitions:
            for place in places:
                if (partition := _exact(files.partitions[place])) in partitions:
                    members[partition].append(place)
        for partition, among in members.items():
            yield from ((delete, among) for delete in self._of_partition[files.spec_id, partition])

    def _applies(self, delete: DeleteEntry, files: Listing, places: Places) -> Places:
        """Return the files that are old enough; for an equality delete also those that may hold one of its values."""
        if delete.kind is DeleteKind.POSITION:
            return [place for place in places if files.sequences[place] <= delete.sequence]
        among = np.asarray(places, np.int64)
        older = among[self._sequences(files)[among] < delete.sequence]
        met = np.ones(len(older), bool)
        for field in delete.equality_ids:
            met &= may_meet(self._ranges(field, delete), self._ranges(field, files).at(older))
        found: Places = older[met].tolist()
        return found

    def _sequences(self, files: Listing) -> Numbers:
        if id(files) not in self._numbers:
            self._numbers[id(files)] = np.asarray(files.sequences, np.int64)
        return self._numbers[id(files)]

    def _ranges(self, field: int, what: DeleteEntry | Listing) -> Ranges:
        """Read what is known of a column, once for each delete and for each list of files."""
        if (key := (field, id(what))) not in self._read:
            metric = what.metrics[field] if isinstance(what, Listing) else what.metrics.of(field)
            self._read[key] = ranges(self._facts.types.get(field), metric)
        return self._read[key]


def _exact(partition: Partition) -> Partition:
    """Put text in place of floats, so that NaN is itself and -0.0 is not 0.0."""
    return tuple(repr(value) if isinstance(value, float) else value for value in partition)
