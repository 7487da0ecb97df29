"""The checks can fail: with one rule of the protocol broken, the very scenarios of the matrix go red."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from icefront.core.errors import FrontierGap
from icefront.core.protocol import Published
from icefront.core.timestamps import Timestamp
from icefront.proof.checker import Checker, Kind, Subject
from icefront.proof.harness import KILLED, Unexpected
from icefront.proof.proxy import FaultProxy
from icefront.settings import Catalog
from tests import sabotage
from tests.process.matrix import Watched
from tests.process.test_matrix_drivers import start_at_once
from tests.process.test_matrix_zombies import overtake_and_wake
from tests.servers.rest import RestCatalog
from tests.sinks.test_iceberg_sink import claim, make, publish, stage

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def sabotaged(tmp_path: Path) -> Callable[..., Watched]:
    """Make a project whose runs have one switch thrown."""
    return lambda name, **options: Watched(tmp_path, program=sabotage.program(name), **options)


def found(project: Watched) -> set[str]:
    """What the checker says, now that the scenario went red."""
    project.checker.check()
    return {violation.kind for violation in project.checker.violations}


def test_without_sabotage_the_same_program_passes(tmp_path: Path) -> None:
    project = Watched(tmp_path, program=sabotage.program("nothing"))
    project.run()
    project.check_caught_up()


# ── zombies ────────────────────────────────────────────────────────────────────────────────
def test_fence_off(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("fence-off")
    with pytest.raises(Unexpected, match="it ended with 0 instead of 4"):
        overtake_and_wake(project, ["publish.before-commit"], nullcontext)
    assert found(project) >= {Kind.GAP, Kind.EPOCH_TWICE}


def test_writer_unchecked(sabotaged: Callable[..., Watched]) -> None:
    """Nobody is refused for who it is, though the frontier is still checked."""
    with pytest.raises(AssertionError, match=r"they ended with \[[05], [05]\]"):
        start_at_once(sabotaged("writer-unchecked"), 2)


def test_path_reused(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("reuse-paths")
    with pytest.raises(AssertionError, match=rf"{Kind.CHANGED}: \S+\.parquet: "):
        overtake_and_wake(project, ["write.before"], nullcontext)


# ── one run ────────────────────────────────────────────────────────────────────────────────
def test_release_before_publish(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("release-before-publish")
    project.run("publish.before=delay:60,release.after=kill", code=KILLED)
    with pytest.raises(AssertionError, match=f"{Kind.RELEASED}: the source: "):
        project.check()


def test_two_epochs_squashed(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("squash-two-epochs")
    project.run()
    with pytest.raises(AssertionError, match=f"{Kind.ROWS}: snapshot .* repeated"):
        project.check()


# ── the commit channel ─────────────────────────────────────────────────────────────────────
def test_a_fence_that_returns_false(sabotaged: Callable[..., Watched], rest_catalog: RestCatalog) -> None:
    """The commit landed, and its repetition was refused: Iceberg cleans up what the table refers to."""
    with FaultProxy(rest_catalog.uri) as proxy:
        project = sabotaged("fence-says-no", rest=proxy.uri, table="lake.t.fence_says_no")
        proxy.arm("twice-second", nth=4)
        with project.start() as driver:
            driver.wait()
        assert proxy.struck
        with pytest.raises(AssertionError, match=f"{Kind.UNREADABLE}: .*FileNotFoundError"):
            project.check()


def test_delete_on_unknown_outcome(sabotaged: Callable[..., Watched], rest_catalog: RestCatalog) -> None:
    with FaultProxy(rest_catalog.uri) as proxy:
        project = sabotaged("delete-on-unknown-outcome", rest=proxy.uri, table="lake.t.delete_on_unknown_outcome")
        proxy.arm("lost", nth=4)
        with project.start() as driver:
            driver.wait()
        assert proxy.struck
        with pytest.raises(AssertionError):
            project.check()
        assert found(project) & {Kind.REMOVED, Kind.UNREADABLE}


# ── in one process ─────────────────────────────────────────────────────────────────────────
@pytest.mark.spark
def test_lower_unchecked(spark: Any, table: str, lake_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of ours leaves a gap for the fence to find, so here an epoch is skipped by hand."""
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    late = stage(sink, replace(mark, frontier=Timestamp(20)), 30, {3: "c"})
    with pytest.raises(FrontierGap):
        sink.publish(late, mark)
    sabotage.lower_unchecked(monkeypatch.setattr)
    assert isinstance(sink.publish(late, mark), Published)
    assert {violation.kind for violation in checker(spark, table, lake_folder, tmp_path).check()} == {Kind.GAP, Kind.ROWS}


def checker(spark: Any, table: str, lake: Path, folder: Path) -> Checker:
    """Look at a table for which the source said one row at 5, one at 15 and one at 25."""
    said = {5: {"id": 1, "v": "a"}, 15: {"id": 2, "v": "b"}, 25: {"id": 3, "v": "c"}}
    catalog = Catalog(type="sqlite", path=lake).pyiceberg_properties("lake")
    return Checker(
        Subject(
            pipeline="p",
            keys=("id",),
            load=lambda: load_catalog("lake", **catalog).load_table(table.removeprefix("lake.")),
            read=lambda at: [row.asDict() for row in spark.sql(f"SELECT * FROM {table} VERSION AS OF {at}").collect()],
            expected=lambda frontier: {(row["id"],): row for at, row in said.items() if at < float(frontier)},
            state=folder / "state.db",
        )
    )
