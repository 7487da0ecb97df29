"""One fault proxy in front of the shared REST catalog, and one session that knows it: `far` is behind the proxy, `near` is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from icefront.proof.proxy import FaultProxy
from icefront.settings import Catalog
from tests.rest.channel import Channel
from tests.servers.rest import RestCatalog

_numbers = itertools.count()


@pytest.fixture(scope="session")
def far(rest_catalog: RestCatalog) -> Iterator[FaultProxy]:
    with FaultProxy(rest_catalog.uri) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def known(spark: Any, far: FaultProxy, rest_catalog: RestCatalog) -> Any:
    """The shared session, with the catalogs `far`, `near`, and `hasty`: far, but it does not wait long for answers."""
    catalogs = {
        "far": {"uri": far.uri},
        "near": {"uri": rest_catalog.uri, "cache-enabled": "false"},
        "hasty": {"uri": far.uri, "rest.client.socket-timeout-ms": "3000"},
    }
    for name, properties in catalogs.items():
        for key, value in Catalog(type="rest", properties=properties).spark_conf(name).items():
            spark.conf.set(key, value)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS near.t")
    return spark


@pytest.fixture
def proxy(far: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy, with nothing armed and nothing counted yet."""
    far.disarm()
    far.struck.clear()
    far.strikes.clear()
    yield far
    far.disarm()


@pytest.fixture
def channel(known: Any, proxy: FaultProxy, rest_catalog: RestCatalog) -> Callable[..., Channel]:
    """Make a channel to a table of its own, or another one to the same table."""
    name = f"t.table_{next(_numbers)}"

    def make(catalog: str = "far", **wanted: Any) -> Channel:
        return Channel(known, rest_catalog, catalog, name, wanted)

    return make
