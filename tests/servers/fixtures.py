"""Fixtures for the servers: started at first use, one per run, their logs attached to the report of a test that failed with them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.servers.process import Server
from tests.servers.rest import RestCatalog
from tests.servers.spark_cluster import SparkCluster


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with RestCatalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, (Server, SparkCluster)):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
