"""Which files tell the changes, and which deletes apply to them: the specification's rules, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.types import LongType, PrimitiveType

from icefront.iceberg.bounds import Metric
from icefront.iceberg.live import DataEntry, DeleteEntry, DeleteKind, Entries, Ids, Listing, Metrics, Ref
from icefront.iceberg.statediff import Facts, FileChange, plan

UNKNOWN = Metrics()
FACTS = Facts(frozenset({0}), {1: LongType()})
FILE = DataEntry("f", "parquet", 1, ("a",), sequence=5, records=10, size=100)
VECTOR = DeleteEntry(DeleteKind.VECTOR, "puffin", 4, 40, "puffin", 1, ("a",), sequence=5, referenced="f")
POSITION = DeleteEntry(DeleteKind.POSITION, "pos", None, 40, "parquet", 1, ("a",), sequence=5)
EQUALITY = DeleteEntry(DeleteKind.EQUALITY, "eq", None, 40, "parquet", 1, ("a",), sequence=6, equality_ids=(1,))
GLOBAL = replace(EQUALITY, path="global", spec_id=0, partition=())


class Snapshot:
    """Manifests by path, each with what it lists; and the metrics that all data files have."""

    def __init__(self, **manifests: Sequence[DataEntry] | Sequence[DeleteEntry]) -> None:
        self.metrics = UNKNOWN
        self.manifests = manifests

    def files(self) -> dict[str, Ref]:
        return {path: self.ref(path, listed) for path, listed in self.manifests.items()}

    def ref(self, path: str, listed: Sequence[Any]) -> Ref:
        """A manifest, as old as the youngest that it lists; most are younger, by rewriting."""
        return Ref(path, 0, 1, max(entry.sequence for entry in listed), not isinstance(listed[0], DeleteEntry), None)


def listing(files: Sequence[Any], metrics: Metrics, ids: Ids) -> Listing:
    columns = zip(*(astuple(file) for file in files), strict=True)
    paths, formats, specs, partitions, sequences, records, sizes, row_ids = map(list, columns)
    said = {i: metrics.of(i) for i in ids}
    measured = {i: Metric(*(pa.concat_arrays([c] * len(files)) for c in (m.lower, m.upper, m.nulls))) for i, m in said.items()}
    return Listing(specs[0], paths, formats, partitions, sequences, records, sizes, row_ids, measured)


def diff(old: Snapshot, new: Snapshot, opened: list[str] | None = None) -> list[FileChange]:
    def read(manifests: Sequence[Ref], ids: Ids) -> Sequence[Entries]:
        if opened is not None:
            opened.extend(m.path for m in manifests)
        return [one(m, (old.manifests | new.manifests)[m.path], ids) for m in manifests]

    def one(manifest: Ref, listed: Sequence[Any], ids: Ids) -> Entries:
        return Entries(data=listing(listed, new.metrics, ids)) if manifest.has_data else Entries(deletes=listed)

    return plan(old.files(), new.files(), read, FACTS)


def applied(file: DataEntry, *deletes: DeleteEntry, metrics: Metrics = UNKNOWN) -> set[str]:
    """The deletes that apply to a file that is new."""
    new = Snapshot(d=[file], x=list(deletes))
    new.metrics = metrics
    (change,) = diff(Snapshot(), new)
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


def test_partitions_of_floats_are_told_apart_by_every_bit() -> None:
    """NaN is one partition, whatever object it is; the zeros are two."""
    nan, zero = (replace(FILE, partition=(value,)) for value in (float("nan"), 0.0))
    assert applied(nan, replace(POSITION, partition=(float("nan"),))) == {"pos"}
    assert applied(zero, replace(POSITION, partition=(0.0,))) == {"pos"}
    assert applied(zero, replace(POSITION, partition=(-0.0,))) == set()


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
    assert applied(FILE, replace(GLOBAL, metrics=metrics(mine)), metrics=metrics(theirs)) == ({"global"} if may else set())


def metrics(told: tuple[int, int, int] | None) -> Metrics:
    if told is None:
        return Metrics()
    kind: PrimitiveType = LongType()
    return Metrics({1: to_bytes(kind, told[0])}, {1: to_bytes(kind, told[1])}, {1: told[2]})


def test_bounds_from_before_a_widening_are_read_as_they_were_written() -> None:
    narrow = Metrics({1: (1).to_bytes(4, "little")}, {1: (3).to_bytes(4, "little")}, {1: 0})
    assert applied(FILE, replace(GLOBAL, metrics=metrics((2, 9, 0))), metrics=narrow) == {"global"}
    assert applied(FILE, replace(GLOBAL, metrics=metrics((4, 9, 0))), metrics=narrow) == set()


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


OLDER: dict[str, list[DeleteEntry]] = {
    "no deletes": [],
    "equality deletes": [EQUALITY, GLOBAL],
    "vectors": [VECTOR, replace(VECTOR, path="other", referenced="f1", sequence=6)],
    "position deletes": [POSITION],
}


@pytest.mark.parametrize("deletes", OLDER.values(), ids=OLDER)
def test_an_append_opens_only_its_own_manifest(deletes: list[DeleteEntry]) -> None:
    """Deletes that the table has are older than what is appended, and cannot hold for it."""
    opened: list[str] = []
    many: dict[str, Any] = {f"m{i}": [replace(FILE, path=f"f{i}")] for i in range(9)}
    many |= {f"x{i}": [delete] for i, delete in enumerate(deletes)}
    new = replace(FILE, path="n", sequence=7)
    (change,) = diff(Snapshot(**many), Snapshot(**many, new=[new]), opened)
    assert (change, set(opened)) == (FileChange(new, None, ()), {"new"})


@pytest.mark.parametrize(
    ("sequence", "deletes", "opened"),
    [
        (5, {"pos", "eq"}, {"new", "p", "e"}),
        (6, set(), {"new", "e"}),
        (7, set(), {"new"}),
        (0, {"pos", "eq"}, {"new", "p", "e"}),
    ],
)
def test_a_file_that_came_with_an_older_number_has_the_deletes_from_then_on(
    sequence: int, deletes: set[str], opened: set[str]
) -> None:
    """As one that a rewrite made of older ones. Position deletes hold for files of their own number, equality deletes do not."""
    found: list[str] = []
    shared: dict[str, Any] = {"m": [FILE], "p": [POSITION], "e": [EQUALITY]}
    (change,) = diff(Snapshot(**shared), Snapshot(**shared, new=[replace(FILE, path="n", sequence=sequence)]), found)
    assert {d.path for d in change.after or ()} == deletes
    assert set(found) == opened


def test_one_old_file_among_young_ones_is_enough_to_look() -> None:
    shared: dict[str, Any] = {"m": [FILE], "p": [POSITION]}
    young, old = replace(FILE, path="y", sequence=7), replace(FILE, path="o")
    found = diff(Snapshot(**shared), Snapshot(**shared, new=[young, old]))
    assert found == [FileChange(young, None, ()), FileChange(old, None, (POSITION,))]


# ── in columns, and one by one ─────────────────────────────────────────────────────────────
def by_the_book(old: Snapshot, new: Snapshot) -> list[FileChange]:
    """The specification's rules, read for each file and each delete by itself."""
    (files_before, deletes_before), (files_after, deletes_after) = (live(snapshot) for snapshot in (old, new))
    found = []
    for path in files_before.keys() | files_after.keys():
        file = files_after.get(path) or files_before[path]
        before = on(file, deletes_before) if path in files_before else None
        after = on(file, deletes_after) if path in files_after else None
        if before != after:
            found.append(FileChange(file, before, after))
    return found


def live(snapshot: Snapshot) -> tuple[dict[str, DataEntry], list[DeleteEntry]]:
    entries = [entry for listed in snapshot.manifests.values() for entry in listed]
    deletes = {d.key: d for d in entries if isinstance(d, DeleteEntry)}
    return {f.path: f for f in entries if isinstance(f, DataEntry)}, list(deletes.values())


def on(file: DataEntry, deletes: Sequence[DeleteEntry]) -> tuple[DeleteEntry, ...]:
    found = [d for d in deletes if applies(d, file)]
    if any(d.kind is DeleteKind.VECTOR for d in found):
        found = [d for d in found if d.kind is not DeleteKind.POSITION]
    return tuple(sorted(found, key=lambda d: (d.path, d.offset or 0)))


def applies(delete: DeleteEntry, file: DataEntry) -> bool:
    together = (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
    match delete.kind:
        case DeleteKind.VECTOR:
            return delete.referenced == file.path and file.sequence <= delete.sequence
        case DeleteKind.POSITION:
            return file.sequence <= delete.sequence and (
                together if delete.referenced is None else delete.referenced == file.path
            )
        case DeleteKind.EQUALITY:
            return file.sequence < delete.sequence and (together or delete.spec_id == 0)


FILES = st.builds(
    DataEntry,
    path=st.sampled_from("fghi"),
    format=st.just("parquet"),
    spec_id=st.just(1),
    partition=st.sampled_from([("a",), ("b",)]),
    sequence=st.integers(1, 4),
    records=st.just(10),
    size=st.just(100),
)
DELETES = st.builds(
    lambda like, sequence, partition, referenced: replace(
        like,
        path=f"{like.path}{sequence}{partition}{referenced}",
        sequence=sequence,
        partition=() if like.spec_id == 0 else partition,
        referenced=referenced if like.kind is DeleteKind.POSITION else like.referenced and "f",
    ),
    st.sampled_from([VECTOR, POSITION, EQUALITY, GLOBAL]),
    st.integers(1, 4),
    st.sampled_from([("a",), ("b",)]),
    st.sampled_from([None, "f", "g"]),
)


@st.composite
def two_snapshots(draw: Any) -> tuple[Snapshot, Snapshot]:
    """Two snapshots that share some manifests; a file is the same wherever it is listed, and has one vector at most."""
    files = draw(st.lists(FILES, unique_by=lambda f: f.path))
    deletes = draw(st.lists(DELETES, unique_by=lambda d: d.path if d.kind is not DeleteKind.VECTOR else d.kind, max_size=5))
    sides: list[dict[str, list[Any]]] = [{}, {}]
    for entry in (*files, *deletes):
        kind = "d" if isinstance(entry, DataEntry) else "x"
        name, there = draw(st.sampled_from([("1", (0, 1)), ("2", (0, 1)), ("old", (0,)), ("new", (1,)), ("moved", (0, 1))]))
        for side in there:
            sides[side].setdefault(f"{kind}{name}{side if name == 'moved' else ''}", []).append(entry)
    return Snapshot(**sides[0]), Snapshot(**sides[1])


@given(two_snapshots())
def test_columns_tell_what_the_rules_say_file_by_file(drawn: tuple[Snapshot, Snapshot]) -> None:
    found, expected = (sorted(changes, key=lambda c: c.file.path) for changes in (diff(*drawn), by_the_book(*drawn)))
    assert found == expected


@pytest.mark.parametrize(
    ("change", "foreign"),
    [
        (FileChange(FILE, None, (VECTOR, POSITION, EQUALITY)), False),
        (FileChange(replace(FILE, format="orc"), None, ()), True),
        (FileChange(FILE, (replace(POSITION, format="avro"),), None), True),
        (FileChange(FILE, (), (replace(EQUALITY, format="orc"),)), True),
    ],
)
def test_what_is_not_parquet_is_foreign(change: FileChange, *, foreign: bool) -> None:
    assert change.is_foreign is foreign


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_under_another_sequence_number_has_other_deletes(*, kept: bool) -> None:
    """As one that was taken over from a branch: a delete that named rows of it is older than it is now."""
    was, now = replace(FILE, sequence=3), replace(FILE, sequence=9)
    after = Snapshot(m1=[now], x=[EQUALITY]) if kept else Snapshot(m1=[now])
    assert diff(Snapshot(m0=[was], x=[EQUALITY]), after) == [FileChange(now, (EQUALITY,), ())]
    assert diff(Snapshot(m0=[was]), Snapshot(m1=[now])) == []
