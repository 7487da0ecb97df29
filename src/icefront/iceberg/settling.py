"""What there is to settle: data files that equality deletes may name rows of, found from metadata alone.

equality deletes of a snapshot ─▶ files older than one of them, in its partition, with keys in its range
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Listing
from icefront.iceberg.statediff import Deletes, Facts


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

    @property
    def bytes(self) -> int:
        """Estimate what settling it costs: the file, and each delete once."""
        return self.file.size + sum(d.length for d in self.deletes)


@dataclass(frozen=True, slots=True)
class Debt:
    """What a snapshot owes: its equality deletes, and the files that they may touch."""

    equality: tuple[DeleteEntry, ...] = ()
    files: tuple[Unsettled, ...] = ()


def debt(data: Iterable[Listing], deletes: Sequence[DeleteEntry], facts: Facts) -> Debt:
    """Find what is to be settled. Files that no equality delete can touch are left out."""
    equality = tuple(d for d in deletes if d.kind is DeleteKind.EQUALITY)
    if not equality:
        return Debt()
    every = Deletes(deletes, facts)
    found = (Unsettled(file, on) for files in data for file, on in every.on(files, every.places(files, range(len(files)))))
    return Debt(equality, tuple(sorted((u for u in found if u.equality), key=_place)))


def _place(unsettled: Unsettled) -> tuple[int, str, str]:
    """Order files so that those of one partition, which share deletes, are settled together."""
    return unsettled.file.spec_id, repr(unsettled.file.partition), unsettled.file.path
