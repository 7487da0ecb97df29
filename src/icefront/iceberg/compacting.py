"""What a compaction decides about equality deletes that nobody has settled yet, when it leaves them to themselves.

To look every row up in them would cost several times what it costs to rewrite the rows. Instead rows are rewritten as if those deletes
were not there, and the new files are older than the oldest of them: so they hold for the new files as they did for the old ones.

    sequence   ── 3 ── 4 ── 5 ──┬── 6 ────── 7 ── 8
               files that come  │  the oldest delete on one of them
                   new files: 5 ┘  files from 6 on stay: the delete does not hold for them, and would
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def written_as_of(deletes: Iterable[Collection[int]], planned: int) -> int:
    """Choose the sequence number of new files by those of the equality deletes on each old one; without any, that of the plan."""
    return min((number - 1 for on in deletes for number in on), default=planned)


def comes(file: int, number: int) -> bool:
    """Say whether a file of some sequence number may become part of new ones of `number`."""
    return file <= number
