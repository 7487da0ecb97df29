"""What a compaction decides about equality deletes: which it may leave, and when its commit would do harm to one.

To look every row up in deletes that nobody has settled yet would cost several times what it costs to rewrite the rows. Instead rows may be
rewritten as if those deletes were not there, in files that are older than the oldest of them: so they hold for the new files as they did
for the old ones. What is published while rows are rewritten holds for the new files in any case.

    sequence   ── 3 ── 4 ── 5 ──┬── 6 ────── 7 ── 8
               files that come  │  the oldest delete
                   new files: 5 ┘  files from 6 on stay: the delete does not hold for them, and would
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from icefront.iceberg.live import DeleteEntry, DeleteKind

Key = tuple[str, int | None]


def written_as_of(deletes: Iterable[int], planned: int) -> int:
    """Choose the sequence number of new files by those of the equality deletes that are left; without any, that of the plan."""
    return min((number - 1 for number in deletes), default=planned)


def comes(file: int, number: int) -> bool:
    """Say whether a file of some sequence number may become part of new ones of `number`."""
    return file <= number


@dataclass(frozen=True, slots=True)
class Terms:
    """How rows are rewritten: files of which number, without which deletes, into which columns, perhaps into other partitions."""

    number: int
    columns: frozenset[int]
    moves: bool
    left: frozenset[Key] = frozenset()

    def harm(self, before: Iterable[DeleteEntry], after: Iterable[DeleteEntry], everywhere: Collection[int]) -> str | None:
        """Say what would become of equality deletes that hold for the new files, given those of the table before and after the commit.

        Iceberg drops deletes with a rewrite that are older than all other data, and does not count the new files; others may have taken
        out a delete that was left. One of a partition finds no row that moved into another partitioning, or finds others. One by a
        column that new files do not have takes all their rows for null.
        """
        holding = {d.key: d for d in after if self._holds(d)}
        if (self.left | {d.key for d in before if self._holds(d)}) - holding.keys():
            return "a delete that holds for new files would be gone"
        if any(not self.columns.issuperset(d.equality_ids) for d in holding.values()):
            return "a delete is by a column that new files do not have"
        if self.moves and any(d.spec_id not in everywhere for d in holding.values()):
            return "a delete is of a partition that rows leave or come to"
        return None

    def _holds(self, delete: DeleteEntry) -> bool:
        return delete.kind is DeleteKind.EQUALITY and delete.sequence > self.number
