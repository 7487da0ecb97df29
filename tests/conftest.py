"""What all tests share: their order, one Spark session per test run, a table name of one's own."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from icefront.settings import secrets
from tests.servers.fixtures import pytest_runtest_makereport, rest_catalog, spark_cluster

__all__ = ["pytest_runtest_makereport", "rest_catalog", "spark_cluster"]

TESTS = Path(__file__).parent
LONGEST = (
    # quick
    "simulator/test_seeds.py",
    # with processes or a session
    "process/test_prove.py",
    "process/test_matrix_zombies.py",
    "process/test_matrix_kills.py",
    "process/test_sabotage.py",
    "process/test_matrix_storage.py",
    "rest/test_commits.py",
    "process/test_matrix_workers.py",
    "process/test_matrix_company.py",
    "upkeep/test_compact.py",
    "cli/test_processes.py",
    "upkeep/test_settle_processes.py",
    "changes/test_changes.py",
    "changes/test_public_cases.py",
    "upkeep/test_expire.py",
    "changes/test_random_tables.py",
    "changes/test_edges.py",
    "changes/test_formats.py",
    "replica/test_replica.py",
    "process/test_matrix_drivers.py",
    "process/test_matrix_settled.py",
    "upkeep/test_settle.py",
    "replica/test_kills.py",
    "process/test_matrix_cluster.py",
    "process/test_cluster.py",
    "servers/test_spark_cluster.py",
    "process/test_matrix_input.py",
    "upkeep/test_random_upkeep.py",
    "upkeep/test_commands.py",
    "rest/test_late.py",
    "rest/test_sqlite_catalog.py",
    "upkeep/test_settled_epochs.py",
    "replica/test_cursor.py",
    "changes/test_command.py",
    "changes/test_lineage.py",
    "upkeep/test_many_epochs.py",
)
"""Files that take longest begin first, so that no worker is left alone with one at the end."""

_numbers = itertools.count()
# The same examples in every run, so that a red run is about the change at hand; `make test-all` goes looking for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("searching", derandomize=False, deadline=None)
settings.load_profile("searching" if "ICEFRONT_SEARCH" in os.environ else "repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Let no test's secrets be masked in what another test reads."""
    before = set(secrets._known)
    yield
    secrets._known.intersection_update(before)


@pytest.fixture(scope="session", autouse=True)
def read_by_spark() -> Iterator[None]:
    """Once all tests of this process are over, Spark reads every table of the failure matrix that has caught up, at every snapshot."""
    yield
    matrix = sys.modules.get("tests.process.matrix")
    if matrix is not None and matrix.CAUGHT_UP:
        from tests.process.by_spark import in_one_session  # noqa: PLC0415 — it imports Spark

        found = in_one_session(matrix.CAUGHT_UP.values())
        assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


# Tables of a handful of rows: to compile code for their queries takes longer than to do without.
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def quick() -> dict[str, str]:
    """Return this for a session whose JVM starts fast, and has room for all the code that it compiles in a long life."""
    from icefront.proof.harness import quick_jvm  # noqa: PLC0415 — it imports Spark

    conf = {**SMALL, **quick_jvm()}
    conf["spark.driver.extraJavaOptions"] += " -XX:ReservedCodeCacheSize=256m"
    return conf


def lean() -> dict[str, str]:
    """Return the same for processes, as their environment."""
    conf = quick()
    settings = (f"--conf {shlex.quote(f'{key}={value}')}" for key, value in conf.items())
    return {**os.environ, "SPARK_HOME": conf["spark.home"], "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"])}


@pytest.fixture(scope="session")
def spark(lake_folder: Path) -> Iterator[Any]:
    """The session of this test run, with an embedded catalog `lake`."""
    from icefront.settings import Catalog  # noqa: PLC0415 — only tests that need Spark pay for it
    from icefront.spark.session import start  # noqa: PLC0415

    catalog = Catalog(type="sqlite", path=lake_folder)
    session = start("tests", "local[2]", {**quick(), **catalog.spark_conf("lake")})
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    yield session
    session.stop()


@pytest.fixture
def table() -> str:
    """The name of a table that no other test uses."""
    return f"lake.t.table_{next(_numbers)}"


@pytest.fixture
def lake(spark: Any, tmp_path: Path, lake_folder: Path) -> Any:
    """A project in a folder of its own, on the shared session and catalog."""
    from tests.lakes import Lake  # noqa: PLC0415 — it imports Spark

    return Lake(spark, tmp_path, lake_folder)
