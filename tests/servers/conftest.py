from tests.servers.fixtures import pytest_runtest_makereport, rest_catalog, spark_cluster

__all__ = ["pytest_runtest_makereport", "rest_catalog", "spark_cluster"]
