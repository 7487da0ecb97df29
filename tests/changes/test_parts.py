"""How a step is split into tasks: what a rewrite read and what it wrote stay together."""

from __future__ import annotations

from icefront.iceberg.live import DataEntry
from icefront.iceberg.statediff import FileChange
from icefront.spark.changes import PARTITION_BYTES, _packed

QUARTER = PARTITION_BYTES // 4


def file(path: str, size: int, partition: str = "a") -> DataEntry:
    return DataEntry(path, "parquet", 1, (partition,), sequence=1, records=10, size=size)


def gone(path: str, size: int = QUARTER, partition: str = "a") -> FileChange:
    return FileChange(file(path, size, partition), (), None)


def new(path: str, size: int = QUARTER, partition: str = "a") -> FileChange:
    return FileChange(file(path, size, partition), None, ())


def paths(*found: FileChange) -> list[list[str]]:
    return [[change.file.path for _, changes in task for change in changes] for task in _packed({0: found}, 1)]


def test_files_that_only_come_fill_one_task_after_the_other() -> None:
    assert paths(*(new(f"n{i}") for i in range(6))) == [["n0", "n1", "n2", "n3"], ["n4", "n5"]]


def test_rewritten_files_are_read_with_those_that_replace_them() -> None:
    old = [gone(f"o{i}") for i in range(4)]
    assert paths(*old, new("n0", 2 * QUARTER), new("n1", 2 * QUARTER)) == [["o0", "n0", "o1"], ["o2", "n1", "o3"]]


def test_rewritten_partitions_stay_apart() -> None:
    old = [gone(f"o{p}", 3 * QUARTER, p) for p in "ba"]
    assert paths(*old, new("n0", 3 * QUARTER, "b"), new("n1", 3 * QUARTER + 9, "a")) == [["oa", "n1"], ["ob", "n0"]]


def test_what_a_task_cannot_hold_is_split_all_the_same() -> None:
    tasks = paths(*(gone(f"o{i}") for i in range(9)), new("n", 9 * QUARTER))
    assert sorted(path for task in tasks for path in task) == ["n", *(f"o{i}" for i in range(9))]
    assert len(tasks) > 1


def test_small_steps_share_a_task() -> None:
    steps = {i: [gone(f"o{i}", 100), new(f"n{i}", 100)] for i in range(3)}
    (task,) = _packed(steps, 1)
    assert [(ordinal, [c.file.path for c in found]) for ordinal, found in task] == [(i, [f"o{i}", f"n{i}"]) for i in range(3)]
