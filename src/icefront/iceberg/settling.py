"""What a settle decides: which files to look at, which rows a new delete names, in how many commits, what leaves with which.

equality deletes of a snapshot ─▶ files older than one of them, in its partition, with keys in its range
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from icefront.core.errors import Stopped
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Listing, Manifests, Metrics, readable
from icefront.iceberg.statediff import EVERYWHERE, Deletes, Facts

if TYPE_CHECKING:
    from icefront.core.files import ClosedFile
    from icefront.iceberg.view import View
    from icefront.kernels.datafiles import Mask
    from icefront.kernels.vectors import Positions


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A data file, and all deletes that apply to it, of which some are equality deletes."""

    file: DataEntry
    deletes: tuple[DeleteEntry, ...]

    @property
    def equality(self) -> tuple[DeleteEntry, ...]:
        return tuple(d for d in self.deletes if d.kind is DeleteKind.EQUALITY)

    @property
    def others(self) -> tuple[DeleteEntry, ...]:
        return tuple(d for d in self.deletes if d.kind is not DeleteKind.EQUALITY)

    def stands_for_all(self, version: int) -> bool:
        """Say whether a new delete takes the place of all that the file had: a vector must, position deletes of other files cannot go."""
        return version > 2 or all(d.referenced == self.file.path for d in self.others)


MOST_KEYS = 10_000_000
"""So many keys are looked up together: each worker holds them."""


@dataclass(frozen=True, slots=True)
class Debt:
    """What a snapshot owes: its equality deletes, and the files that they may touch. Younger deletes may be `left` for another time."""

    equality: tuple[DeleteEntry, ...] = ()
    files: tuple[Unsettled, ...] = ()
    left: int = 0


@dataclass(frozen=True, slots=True)
class NewDelete:
    """Dead rows of one data file, written: a vector in a Puffin file, or a position-delete file of its own."""

    of: Unsettled
    path: str
    size: int
    count: int
    offset: int | None = None
    length: int | None = None


def pending(file: ClosedFile, sequence: int) -> DeleteEntry:
    """Return an equality delete that holds for the whole table the way it would be if it were published with this sequence number.

    Whatever spec it was written in: the table may have lost that, and give its number to another one.
    """
    return DeleteEntry(
        kind=DeleteKind.EQUALITY,
        path=file.path,
        offset=None,
        length=file.size,
        format="parquet",
        spec_id=EVERYWHERE,
        partition=(),
        sequence=sequence,
        equality_ids=file.equality_ids,
        metrics=Metrics(_bytes(file.lower_bounds), _bytes(file.upper_bounds), file.null_value_counts),
        records=file.records,
    )


def _bytes(bounds: Mapping[int, str]) -> Mapping[int, bytes]:
    return {field: bytes.fromhex(text) for field, text in bounds.items()}


def owed(view: View, manifests: Manifests, unpublished: Sequence[DeleteEntry] = (), most: int | None = None) -> Debt:
    """Find what a table owes its readers; with equality deletes that are still to be published, what it would owe then.

    With `most`, the oldest deletes of about so many keys, beside those to be published: workers hold all keys that are looked up
    together.
    """
    with readable(view.table):
        return _owed(view, manifests, unpublished, most)


def _owed(view: View, manifests: Manifests, unpublished: Sequence[DeleteEntry], most: int | None) -> Debt:
    refs = manifests.of(view.metadata.current_snapshot()).values()
    known = [delete for e in manifests.entries([ref for ref in refs if not ref.has_data]) for delete in e.deletes]
    equality = [delete for delete in known if delete.kind is DeleteKind.EQUALITY]
    now = [*oldest(equality, most), *unpublished]
    if not now:
        return Debt()
    deletes = [*(delete for delete in known if delete.kind is not DeleteKind.EQUALITY), *now]
    ids = frozenset(i for delete in deletes for i in delete.equality_ids)
    found = manifests.entries([ref for ref in refs if ref.has_data], ids)
    return replace(
        debt((e.data for e in found if e.data is not None), deletes, view.facts), left=len(equality) + len(unpublished) - len(now)
    )


def oldest(equality: Sequence[DeleteEntry], most: int | None) -> Sequence[DeleteEntry]:
    """Choose the oldest deletes up to about so many keys, one at least."""
    if most is None or not equality:
        return equality
    ordered = sorted(equality, key=lambda delete: (delete.sequence, delete.path))
    ends = np.cumsum([delete.records for delete in ordered])
    return ordered[: max(1, int(np.searchsorted(ends, most, "right")))]


def check_formats(table: str, owed: Debt) -> None:
    """Stop where what is to be read is not Parquet."""
    files: list[DataEntry | DeleteEntry] = [unsettled.file for unsettled in owed.files]
    files += [d for u in owed.files for d in u.deletes if d.kind is not DeleteKind.VECTOR]
    for file in files:
        if file.format != "parquet":
            raise Stopped(
                f"{file.path} of {table} has the format {file.format}, and only Parquet can be settled",
                "rewrite the table's files as Parquet: CALL system.rewrite_data_files",
            )


def debt(data: Iterable[Listing], deletes: Sequence[DeleteEntry], facts: Facts) -> Debt:
    """Find what is to be settled. Files that no equality delete can touch are left out."""
    equality = tuple(d for d in deletes if d.kind is DeleteKind.EQUALITY)
    if not equality:
        return Debt()
    every = Deletes(deletes, facts)
    found = (Unsettled(file, on) for files in data for file, on in every.on(files, every.places(files, range(len(files)))))
    return Debt(equality, tuple(sorted((u for u in found if u.equality), key=_place)))


def parts(files: Sequence[Unsettled], limit: int) -> Iterator[Sequence[Unsettled]]:
    """Cut files into parts of so many bytes. Their deletes do not count: files that lie together share them, and they are read once."""
    part: list[Unsettled] = []
    size = 0
    for unsettled in files:
        if part and size + unsettled.file.size > limit:
            yield part
            part, size = [], 0
        part.append(unsettled)
        size += unsettled.file.size
    yield part


def dead(named: Mask, known: Mask, *, for_all: bool) -> Positions:
    """Return the rows that a new delete has to name, given those that equality deletes name, and those of its other deletes."""
    if not (named & ~known).any():
        return np.array([], np.int64)
    return np.flatnonzero(named | known) if for_all else np.flatnonzero(named & ~known)


def replaced(new: Iterable[NewDelete]) -> list[DeleteEntry]:
    """Name the deletes that new ones stand for from now on: the vector before, and position deletes of the same file alone."""
    return [
        old
        for delete in new
        if delete.offset is not None or delete.of.stands_for_all(2)
        for old in delete.of.others
        if old.kind is DeleteKind.VECTOR or old.referenced == delete.of.file.path
    ]


def dangling(data: Iterable[Listing], deletes: Sequence[DeleteEntry], facts: Facts) -> list[DeleteEntry]:
    """Find deletes that apply to no file any more."""
    every = Deletes(deletes, facts)
    used = {d.key for files in data for _, on in every.on(files, every.places(files, range(len(files)))) for d in on}
    return [delete for delete in deletes if delete.key not in used]


def _place(unsettled: Unsettled) -> tuple[int, str, str]:
    """Order files so that those of one partition, which share deletes, are settled together."""
    return unsettled.file.spec_id, repr(unsettled.file.partition), unsettled.file.path
