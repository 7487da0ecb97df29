"""The checks can fail: with one rule of the protocol broken, the very scenarios of the matrix go red."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from icefront.core.errors import FencedOut, FrontierGap
from icefront.core.ports import Wish
from icefront.core.protocol import Published
from icefront.core.timestamps import Timestamp
from icefront.iceberg.partitions import PartitionField
from icefront.proof.checker import Checker, Kind, Subject
from icefront.proof.harness import KILLED, PATIENCE, PROGRAM, Driver, Unexpected
from icefront.proof.proxy import FaultProxy
from icefront.settings import Catalog
from icefront.sinks.iceberg import IcebergSink
from tests import sabotage
from tests.process.forked import forked
from tests.process.matrix import Watched
from tests.process.test_guarantees import PROMISED, TESTS
from tests.process.test_matrix_drivers import take_over
from tests.process.test_matrix_zombies import overtake_and_wake
from tests.servers.rest import RestCatalog
from tests.sinks.test_iceberg_sink import claim, make, publish, stage

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
REDS: Mapping[str, str] = {
    "commit-transaction": "test_iceberg_by_itself_removes_what_a_landed_commit_needs",
    "squash-two-epochs": "test_a_broken_protocol_makes_it_red_and_its_folder_is_kept",
    "fence-off": "test_fence_off",
    "writer-unchecked": "test_writer_unchecked",
    "reuse-paths": "test_path_reused",
    "release-before-publish": "test_release_before_publish",
    "fence-says-no": "test_a_fence_that_returns_false",
    "delete-on-unknown-outcome": "test_delete_on_unknown_outcome",
    "lower-unchecked": "test_lower_unchecked",
    "change-unfenced": "test_change_unfenced",
}
"""The test that each switch makes red; the first two are in other files."""


def test_every_switch_is_thrown_by_a_test_that_every_run_runs() -> None:
    assert REDS.keys() == sabotage.SWITCHES.keys() - {"nothing"}
    assert set(REDS.values()) <= PROMISED, "what is promised is run, see `test_guarantees`"
    functions = (node for path in TESTS.rglob("test_*.py") for node in ast.parse(path.read_text()).body)
    tests = {node.name: node for node in functions if isinstance(node, ast.FunctionDef) and node.name in REDS.values()}
    assert [switch for switch, test in REDS.items() if not throws(tests[test], switch)] == []


def throws(test: ast.FunctionDef, switch: str) -> bool:
    """Whether a test names a switch in what it does: many a one is called by it, and says it."""
    done = test.body[ast.get_docstring(test) is not None :]
    return bool(re.search(switch.replace("-", "[-_]"), "\n".join(map(ast.unparse, done))))


@pytest.mark.parametrize(
    ("body", "thrown"),
    [("pass", False), ("'Throw fence-off.'", False), ("'It does.'; sabotaged('fence-off')", True), ("fence_off()", True)],
)
def test_a_test_that_only_says_so_throws_no_switch(body: str, *, thrown: bool) -> None:
    (test,) = ast.parse(f"def test_fence_off():\n    {body}").body
    assert isinstance(test, ast.FunctionDef)
    assert throws(test, "fence-off") is thrown


@pytest.fixture
def sabotaged(tmp_path: Path) -> Callable[..., Watched]:
    """Make a project whose runs have one switch thrown."""
    return lambda name, **options: Watched(tmp_path / name, program=sabotage.program(name), **options)


def found(project: Watched) -> set[str]:
    """What the checker says, now that the scenario went red."""
    project.checker.check()
    return {violation.kind for violation in project.checker.violations}


# ── zombies ────────────────────────────────────────────────────────────────────────────────
def test_fence_off(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("fence-off")
    with pytest.raises(Unexpected, match="it ended with 0 instead of 4"):
        overtake_and_wake(project, ["publish.before-commit"], nullcontext)
    assert found(project) >= {Kind.GAP, Kind.EPOCH_TWICE}


def test_writer_unchecked(sabotaged: Callable[..., Watched]) -> None:
    """The first publishes on, though the second has claimed the table; no row is wrong, since the frontier is still checked."""
    project = sabotaged("writer-unchecked")
    with pytest.raises(Unexpected, match="it ended with 0 instead of 4"):
        take_over(project)
    assert found(project) == {Kind.WRITER}


def test_path_reused(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("reuse-paths")
    with pytest.raises(AssertionError, match=rf"{Kind.CHANGED}: \S+\.parquet: "):
        overtake_and_wake(project, ["write.before"], nullcontext)


# ── one run ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("failpoints", "code", "where"),
    [
        (f"publish.before=delay:{PATIENCE:.0f},release.after=kill", KILLED, "the source: "),
        # By the time of the look all is published, and the run's log alone still tells.
        ("publish.before=delay:1", 0, "the source, by its run's log: "),
    ],
)
def test_release_before_publish(sabotaged: Callable[..., Watched], failpoints: str, code: int, where: str) -> None:
    project = sabotaged("release-before-publish")
    project.run(failpoints, code=code)
    with pytest.raises(AssertionError, match=f"{Kind.RELEASED}: {where}"):
        project.check()


@pytest.mark.long
def test_two_epochs_squashed(sabotaged: Callable[..., Watched]) -> None:
    project = sabotaged("squash-two-epochs")
    project.run()
    with pytest.raises(AssertionError, match=f"{Kind.ROWS}: snapshot .* repeated"):
        project.check()


# ── the commit channel ─────────────────────────────────────────────────────────────────────
@pytest.fixture
def run_on_rest(sabotaged: Callable[..., Watched], rest_catalog: RestCatalog) -> Iterator[Callable[..., Watched]]:
    """Run a project with one switch thrown, on a REST catalog whose commits meet these faults."""
    with ExitStack() as proxies:

        def run(switch: str, *faults: str) -> Watched:
            proxy = proxies.enter_context(FaultProxy(rest_catalog.uri))
            table = f"lake.t.{switch}_{'_'.join(faults)}".replace("-", "_")
            project = sabotaged(switch, rest=proxy.uri, table=table)
            for number, fault in enumerate(faults):
                project.feed.advance(20)
                proxy.arm(fault, nth=4 + number)  # the first three create the table, claim it and publish what it begins with
            with project.start() as driver:
                driver.wait()
            assert proxy.struck == dict.fromkeys(faults, 1)
            return project

        yield run


def test_without_sabotage_the_same_faults_are_survived(run_on_rest: Callable[..., Watched]) -> None:
    project = run_on_rest("nothing", "403-after", "twice-second", "lost")
    project.check_caught_up()
    project.feed.advance(20)
    project.run(program=[*PROGRAM, "--log", "json", "-v"])  # the very program, which goes on from there
    project.check_caught_up()
    with Driver(
        [*PROGRAM, "verify", project.file.name, "--every-snapshot", "--json"], project.folder, os.environ, forked
    ) as verify:
        compared = json.loads(verify.expect(0).stdout)
    assert all(point["equal"] for point in compared)
    table = project.load()
    assert table is not None
    operations = [snapshot.summary.operation.value for snapshot in table.metadata.snapshots if snapshot.summary]
    # A claim, and a first epoch that has nothing to delete; the second run's claim.
    assert operations == ["append", "append", *["overwrite"] * 4, "append", "overwrite"]
    assert len(compared) == len(operations)


@pytest.mark.long
def test_iceberg_cleans_up_after_a_landed_commit(run_on_rest: Callable[..., Watched]) -> None:
    """It landed, and its answer said that it was refused."""
    with pytest.raises(AssertionError, match=f"{Kind.REMOVED}: "):
        run_on_rest("commit-transaction", "403-after").check()


def test_a_fence_that_returns_false(run_on_rest: Callable[..., Watched]) -> None:
    """It landed, and its repetition was refused by the fence."""
    with pytest.raises(AssertionError, match=f"{Kind.REMOVED}: "):
        run_on_rest("fence-says-no", "twice-second").check()


def test_delete_on_unknown_outcome(run_on_rest: Callable[..., Watched]) -> None:
    with pytest.raises(AssertionError, match=f"{Kind.REMOVED}: |{Kind.UNREADABLE}: .*NotFound"):
        run_on_rest("delete-on-unknown-outcome", "lost").check()


# ── in one process ─────────────────────────────────────────────────────────────────────────
@pytest.mark.spark
def test_lower_unchecked(spark: Any, table: str, lake_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of ours leaves a gap for the fence to find, so here an epoch is skipped by hand; all else is checked as ever."""
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    late = stage(sink, replace(mark, frontier=Timestamp(20)), 30, {3: "c"})
    with pytest.raises(FrontierGap):
        sink.publish(late, mark)
    sabotage.lower_unchecked(monkeypatch.setattr)
    first, again = sink.publish(late, mark), sink.publish(late, mark)
    assert isinstance(first, Published)
    assert isinstance(again, Published)
    assert again.snapshot == first.snapshot, "it was published twice"
    assert {violation.kind for violation in checker(spark, table, lake_folder, tmp_path).check()} == {Kind.GAP, Kind.ROWS}


def add_a_column(sink: IcebergSink) -> None:
    sink.prepare([Wish("late", "string", "feed:1")])


def partition_otherwise(sink: IcebergSink) -> None:
    sink._wanted = replace(sink._wanted, partition_by=(PartitionField("bucket", "id", 2),))
    sink._align_partitioning()


@pytest.mark.spark
@pytest.mark.parametrize("change", [add_a_column, partition_otherwise])
def test_change_unfenced(
    spark: Any,
    table: str,
    lake_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[IcebergSink], None],
) -> None:
    """Overtaken, the first still changes the table, which the mark then says is its own; publishes are fenced as ever."""
    first = make(spark, table)
    publish(first, claim(first), 10, {1: "a"})
    claim(make(spark, table))
    looking = checker(spark, table, lake_folder, tmp_path)
    with pytest.raises(FencedOut):
        change(first)
    assert not looking.check()
    sabotage.change_unfenced(monkeypatch.setattr)
    change(first)
    assert {violation.kind for violation in looking.check()} == {Kind.WRITER}


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
