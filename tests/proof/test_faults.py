"""What another program meets in the table: a conflict is tried again, anything else is told at once and as it was."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from icefront.proof import faults
from icefront.proof.scene import Broken

ICEBERG = "org.apache.iceberg.exceptions"


class Raised(Exception):
    """What py4j makes of a Java exception and its cause."""

    def __init__(self, name: str, cause: Raised | None = None) -> None:
        super().__init__(name)
        self.java_exception: Any = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getName=lambda: name), getCause=lambda: cause and cause.java_exception
        )


def scene(*answers: Raised) -> Any:
    """A scene whose session fails with these, one after the other, and then succeeds."""
    left = list(answers)

    def sql(_statement: str) -> Any:
        if left:
            raise left.pop(0)
        return SimpleNamespace(collect=list)

    spark = SimpleNamespace(catalog=SimpleNamespace(refreshTable=lambda _: None), sql=sql)
    lake, checker = SimpleNamespace(spark=spark), SimpleNamespace(frontier=(1, 0))
    return SimpleNamespace(checker=checker, lake=lake, table="t", left=left, rivals=[])


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait, but note for how long one would have."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.mark.parametrize("name", ["CommitFailedException", "ValidationException"])
def test_a_conflict_is_tried_again_later_each_time(name: str, waits: list[float]) -> None:
    conflict = Raised(f"{ICEBERG}.{name}")
    assert faults._by_another_program(scene(conflict, Raised("java.lang.RuntimeException", conflict)), "CALL …") == []
    assert waits == [0.1, 0.2]


def test_what_is_no_conflict_is_told_at_once() -> None:
    met = scene(Raised(f"{ICEBERG}.NotFoundException"), Raised(f"{ICEBERG}.CommitFailedException"))
    with pytest.raises(Broken, match=r"attempt 1: Raised: .*NotFoundException"):
        faults._by_another_program(met, "CALL …")
    assert len(met.left) == 1


def test_a_rival_that_comes_first_every_time_leaves_the_blow_undone() -> None:
    met = scene(*[Raised(f"{ICEBERG}.CommitFailedException")] * 9)
    met.rivals.append("a run")
    assert faults._by_another_program(met, "CALL …") is None


def test_conflicts_without_end_are_told_with_the_last_of_them() -> None:
    with pytest.raises(Broken, match=r"attempt 6: Raised: .*CommitFailedException"):
        faults._by_another_program(scene(*[Raised(f"{ICEBERG}.CommitFailedException")] * 9), "CALL …")
