"""Planning in Spark: of a table with very many manifests, what workers read is what the driver would have read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefront.changelog import changes
from icefront.iceberg import history, live
from icefront.iceberg.live import Entries, Ids, Manifests, Ref
from icefront.iceberg.view import View
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create

pytestmark = pytest.mark.spark


@pytest.fixture
def busy(spark: Any, table: str) -> str:
    """A table with data, position deletes and equality deletes in manifests of their own."""
    create(spark, table, version=2, **{"commit.manifest-merge.enabled": "false"})
    writer = Streaming(spark, table)
    for i in range(4):
        writer.commit([{"id": i, "v": f"{i}"}, {"id": i + 10}], deletes=[{"id": i - 1}], positions=[("", 1)])
    return table


def test_many_manifests_are_read_in_spark(spark: Any, busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = View.of(spark, busy)
    steps = history.steps(view.metadata, None, view.metadata.current_snapshot(), net=False)
    expected = view.plan(steps)
    asked: list[int] = []

    def elsewhere(manifests: Sequence[Ref], ids: Ids) -> Iterable[Entries]:
        asked.append(len(manifests))
        assert view.elsewhere is not None
        return view.elsewhere(manifests, ids)

    watched = replace(view, elsewhere=elsewhere)
    assert watched.plan(steps) == expected
    assert asked == [], "a small table needs no job"
    monkeypatch.setattr(live, "MANY_MANIFESTS", 0)
    assert watched.plan(steps) == expected
    assert sum(asked) == len(view.manifests().of(view.metadata.current_snapshot())), "each is read once"


@pytest.mark.parametrize("version", [2, 3])
def test_an_append_opens_only_its_own_manifest(spark: Any, table: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever deletes the table has: they are older."""
    create(spark, table, version=version, **{"commit.manifest-merge.enabled": "false"})
    spark.sql(f"INSERT INTO {table} SELECT id, 'v', 0 FROM range(9)")
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    Streaming(spark, table).commit(deletes=[{"id": 4}])
    spark.sql(f"INSERT INTO {table} VALUES (4, 'back', 0)")
    view = View.of(spark, table)
    *_, step = history.steps(view.metadata, None, view.metadata.current_snapshot(), net=False)
    opened: list[str] = []
    read = live.entries

    def watched(io: Any, ref: Ref, ids: Ids) -> Entries:
        opened.append(ref.path)
        return read(io, ref, ids)

    monkeypatch.setattr(live, "entries", watched)
    (change,) = view.plan([step])[step.ordinal]
    old, new = (view.manifests().of(snapshot) for snapshot in (step.parent, step.snapshot))
    assert (change.before, change.after) == (None, ())
    assert len([ref for ref in old.values() if not ref.has_data]) == 2
    assert opened == list(new.keys() - old.keys())


def test_every_task_gets_its_own_files_and_no_others(spark: Any, busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tasks there are, they read the same."""
    expected = sorted(map(str, changes(spark, busy).collect()))
    monkeypatch.setattr("icefront.spark.changes.PARTITION_BYTES", 1_000)
    found = changes(spark, busy)
    assert sorted(map(str, found.collect())) == expected


def test_of_what_nobody_can_read_no_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is down may take its time to say so, for each manifest: the others answer when nobody wants them any more."""
    asked: list[str] = []
    unwanted = threading.Event()

    class Cancelled(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 — as it is there
            super().shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
            if cancel_futures:
                unwanted.set()

    def down(_io: Any, ref: Ref) -> bytes:
        asked.append(ref.path)
        if ref.path == "0":
            raise OSError("the store is down")
        unwanted.wait(60)
        return b""

    monkeypatch.setattr(live, "_bytes", down)
    monkeypatch.setattr(live, "ThreadPoolExecutor", Cancelled)
    refs = [Ref(str(i), 1, 0, 1, has_data=True, first_row_id=None) for i in range(200)]
    with pytest.raises(OSError, match="down"):
        list(Manifests(PyArrowFileIO({})).entries(refs))
    assert len(asked) <= live._THREADS + 1


def test_planning_leaves_no_garbage_that_is_not_collected(spark: Any, busy: str) -> None:
    gc.collect()
    for _ in range(100):
        view = View.of(spark, busy)
        view.plan(history.steps(view.metadata, None, view.metadata.current_snapshot(), net=False))
    assert gc.isenabled()
    assert gc.collect() < 3000
