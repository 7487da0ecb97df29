"""Which files tell the changes, and which deletes apply to them: the specification's rules, case by case."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import LongType, PrimitiveType

from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Entries, Metrics
from icefront.iceberg.statediff import Facts, FileChange, plan

FACTS = Facts(frozenset({0}), {1: LongType()})
FILE = DataEntry("f", "parquet", 1, ("a",), sequence=5, records=10, size=100)
VECTOR = DeleteEntry(DeleteKind.VECTOR, "puffin", 4, 40, "puffin", 1, ("a",), sequence=5, referenced="f")
POSITION = DeleteEntry(DeleteKind.POSITION, "pos", None, 40, "parquet", 1, ("a",), sequence=5)
EQUALITY = DeleteEntry(DeleteKind.EQUALITY, "eq", None, 40, "parquet", 1, ("a",), sequence=6, equality_ids=(1,))
GLOBAL = replace(EQUALITY, path="global", spec_id=0, partition=())


class Snapshot:
    """Manifests by path, each with what it lists."""

    def __init__(self, **manifests: list[DataEntry] | list[DeleteEntry]) -> None:
        self.entries = {
            path: Entries(
                data=[e for e in listed if isinstance(e, DataEntry)], deletes=[e for e in listed if isinstance(e, DeleteEntry)]
            )
            for path, listed in manifests.items()
        }

    def files(self) -> dict[str, Any]:
        kinds = {path: ManifestContent.DELETES if found.deletes else ManifestContent.DATA for path, found in self.entries.items()}
        return {path: SimpleNamespace(manifest_path=path, content=kind) for path, kind in kinds.items()}


def diff(old: Snapshot, new: Snapshot, opened: list[str] | None = None) -> list[FileChange]:
    def read(manifest: Any) -> Entries:
        if opened is not None:
            opened.append(manifest.manifest_path)
        return (old.entries | new.entries)[manifest.manifest_path]

    return plan(old.files(), new.files(), read, FACTS)


def applied(file: DataEntry, *deletes: DeleteEntry) -> set[str]:
    """The deletes that apply to a file that is new."""
    (change,) = diff(Snapshot(), Snapshot(d=[file], x=list(deletes)))
    assert change.before is None
    assert change.after is not None
    return {delete.path for delete in change.after}


@pytest.mark.parametrize(("delete", "least"), [(VECTOR, 5), (POSITION, 5), (EQUALITY, 6), (GLOBAL, 6)])
def test_a_delete_applies_to_what_was_there_before_it(delete: DeleteEntry, least: int) -> None:
    """Position deletes and vectors also to files of their own commit: those hold rows that they mean."""
    assert applied(FILE, replace(delete, sequence=least)) == {delete.path}
    assert applied(FILE, replace(delete, sequence=least - 1)) == set()


@pytest.mark.parametrize("delete", [POSITION, EQUALITY])
def test_a_delete_of_another_partition_or_spec_does_not_apply(delete: DeleteEntry) -> None:
    assert applied(FILE, replace(delete, partition=("b",))) == set()
    assert applied(FILE, replace(delete, spec_id=2)) == set()


def test_an_equality_delete_without_partition_applies_everywhere() -> None:
    assert applied(replace(FILE, spec_id=7, partition=("z",)), GLOBAL) == {"global"}
    assert applied(replace(FILE, spec_id=0, partition=()), replace(POSITION, spec_id=0, partition=())) == {"pos"}


def test_position_deletes_that_name_a_file_apply_to_that_file_only() -> None:
    assert applied(FILE, replace(POSITION, referenced="f")) == {"pos"}
    assert applied(FILE, replace(POSITION, referenced="g")) == set()


def test_a_vector_replaces_position_deletes_and_leaves_equality_deletes() -> None:
    assert applied(FILE, VECTOR, POSITION, GLOBAL) == {"puffin", "global"}
    assert applied(FILE, replace(VECTOR, referenced="g"), POSITION) == {"pos"}


@pytest.mark.parametrize(
    ("mine", "theirs", "may"),
    [
        ((1, 5, 0), (6, 9, 0), False),
        ((1, 5, 0), (5, 9, 0), True),
        ((1, 5, 1), (6, 9, 1), True),
        ((1, 5, 1), (6, 9, 0), False),
        ((1, 5, 0), None, True),
    ],
)
def test_equality_deletes_are_pruned_by_bounds(mine: Any, theirs: Any, *, may: bool) -> None:
    deletes, file = replace(GLOBAL, metrics=metrics(mine)), replace(FILE, metrics=metrics(theirs))
    assert applied(file, deletes) == ({"global"} if may else set())


def metrics(told: tuple[int, int, int] | None) -> Metrics:
    if told is None:
        return Metrics()
    kind: PrimitiveType = LongType()
    return Metrics({1: to_bytes(kind, told[0])}, {1: to_bytes(kind, told[1])}, {1: told[2]})


def test_bounds_from_before_a_widening_are_read_as_they_were_written() -> None:
    narrow = Metrics({1: (1).to_bytes(4, "little")}, {1: (3).to_bytes(4, "little")}, {1: 0})
    assert applied(replace(FILE, metrics=narrow), replace(GLOBAL, metrics=metrics((2, 9, 0)))) == {"global"}
    assert applied(replace(FILE, metrics=narrow), replace(GLOBAL, metrics=metrics((4, 9, 0)))) == set()


# ── two snapshots ──────────────────────────────────────────────────────────────────────────
def test_files_that_come_and_go_have_the_deletes_of_their_own_side() -> None:
    gone, new = replace(FILE, path="g", sequence=4), replace(FILE, path="n", sequence=6)
    found = diff(Snapshot(a=[gone], x=[POSITION]), Snapshot(b=[new], y=[replace(VECTOR, referenced="n", sequence=6)]))
    assert [(c.file.path, c.before, c.after and c.after[0].path) for c in found] == [
        ("g", (POSITION,), None),
        ("n", None, "puffin"),
    ]


def test_rewritten_manifests_change_nothing() -> None:
    other = replace(FILE, path="o")
    assert diff(Snapshot(a=[FILE], b=[other], x=[POSITION]), Snapshot(ab=[FILE, other], y=[POSITION])) == []


def test_a_new_delete_touches_the_files_that_it_applies_to() -> None:
    other = replace(FILE, path="o", partition=("b",))
    (change,) = diff(Snapshot(a=[FILE, other]), Snapshot(a=[FILE, other], x=[POSITION]))
    assert change == FileChange(FILE, (), (POSITION,))


def test_a_delete_that_is_gone_brings_rows_back() -> None:
    assert diff(Snapshot(a=[FILE], x=[POSITION]), Snapshot(a=[FILE])) == [FileChange(FILE, (POSITION,), ())]


def test_a_vector_that_takes_over_from_position_deletes_touches_its_file() -> None:
    old, new = Snapshot(a=[FILE], x=[POSITION]), Snapshot(a=[FILE], x=[POSITION], y=[VECTOR])
    assert diff(old, new) == [FileChange(FILE, (POSITION,), (VECTOR,))]


def test_position_deletes_beside_a_vector_touch_nothing() -> None:
    old, new = Snapshot(a=[FILE], x=[VECTOR]), Snapshot(a=[FILE], x=[VECTOR], y=[POSITION])
    assert diff(old, new) == []


def test_an_append_opens_only_its_own_manifest() -> None:
    opened: list[str] = []
    many = {f"m{i}": [replace(FILE, path=f"f{i}")] for i in range(9)}
    (change,) = diff(Snapshot(**many), Snapshot(**many, new=[replace(FILE, path="n")]), opened)
    assert (change.file.path, opened) == ("n", ["new"])
