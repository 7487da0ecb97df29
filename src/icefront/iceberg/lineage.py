"""Row lineage (format 3): which steps it tells of.

Every row has an id that it keeps, and the sequence number of the commit that last changed it: a row that has both on both sides of a
step was carried over.
"""

from __future__ import annotations

from collections.abc import Sequence

from icefront.iceberg.history import Step
from icefront.iceberg.live import DeleteEntry, DeleteKind
from icefront.iceberg.statediff import FileChange, Key

ROW_ID, SEQUENCE = "_row_id", "_last_updated_sequence_number"
ROW_ID_FIELD, SEQUENCE_FIELD = 2147483540, 2147483539  # reserved by the specification


def tells(step: Step, found: Sequence[FileChange]) -> bool:
    """Say whether all rows that a step may move have ids that mean something."""
    return step.has_lineage and all(_has_ids(change) for change in found)


def _has_ids(change: FileChange) -> bool:
    if change.is_foreign or change.file.first_row_id is None:
        return False
    if change.before is None or change.after is None:
        return True
    # Who writes an equality delete does not know the rows that it replaces: their successors have new ids, and nothing would match.
    return _equality(change.before) == _equality(change.after)


def _equality(deletes: Sequence[DeleteEntry]) -> set[Key]:
    return {delete.key for delete in deletes if delete.kind is DeleteKind.EQUALITY}


def rewrites(found: Sequence[FileChange]) -> bool:
    """Say whether rows may have moved to other files: without a file that went and one that came there is nothing to save."""
    return any(change.after is None for change in found) and any(change.before is None for change in found)
