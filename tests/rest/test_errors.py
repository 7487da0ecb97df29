"""A catalog that cannot be used ends a run with a sentence, a next step and an exit code; secrets stay secret."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from typer.testing import Result

from icefront.api import Pipeline
from icefront.core.errors import ConnectionFailed, Stopped
from icefront.core.files import Staged
from icefront.core.protocol import Published
from icefront.iceberg.java import Gateway, translate
from icefront.proof.proxy import FaultProxy
from icefront.settings import Catalog
from tests.cli.projects import Kept, Shop, icefront
from tests.rest.channel import Channel
from tests.servers.process import reserve_port
from tests.sinks.test_iceberg_sink import claim, make, publish

pytestmark = [pytest.mark.spark, pytest.mark.process]
Run = Callable[..., Result]
HUSH = "sesame-hush"

_names = (f"bad_{number}" for number in itertools.count())


@pytest.fixture
def run(known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a pipeline into a catalog with these properties, by the command line, in the shared session."""

    def session(pipeline: Pipeline) -> Any:
        for name, catalog in pipeline.settings.project.catalogs.items():
            for key, value in catalog.spark_conf(name).items():
                known.conf.set(key, value)
        return Kept(known)

    def by_command_line(**properties: str) -> Result:
        name = next(_names)
        Shop.make(tmp_path, sink={"iceberg": {"table": f"{name}.shop.orders"}})
        (tmp_path / "icefront.yaml").write_text(json.dumps({"catalogs": {name: properties}}))
        return icefront("run", "orders.yaml", "--until", "caught-up")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUSH", HUSH)
    monkeypatch.setattr(Pipeline, "session", session)
    return by_command_line


def told(result: Result, code: int, fact: str, step: str) -> None:
    assert result.exit_code == code, result.stderr
    assert fact in result.stderr
    assert step in result.stderr.partition("→")[2]
    assert "Traceback" not in result.stderr
    assert HUSH not in result.stdout + result.stderr


def test_a_catalog_that_refuses_connections(run: Run) -> None:
    with reserve_port() as nobody:
        uri = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        told(run(type="rest", uri=uri), 3, "the catalog did not answer: ", "check that it runs and can be reached")


def test_a_host_that_nobody_knows(run: Run) -> None:
    result = run(type="rest", uri="http://no-such-host.invalid", credential="me:${env:HUSH}")
    told(result, 3, "UnknownHostException: no-such-host.invalid", "check the host name in the catalog's `uri`")


def test_https_to_a_catalog_that_speaks_http(run: Run, proxy: FaultProxy) -> None:
    result = run(type="rest", uri=proxy.uri.replace("http:", "https:"))
    told(result, 3, "SSLException", "check whether the catalog's `uri` begins with http:// or https://")


def test_a_catalog_that_refuses_us(run: Run, proxy: FaultProxy) -> None:
    proxy.arm("403-before", where=lambda _: True, times=99)
    result = run(type="rest", uri=proxy.uri, token="${env:HUSH}")
    told(result, 3, "the catalog refused us: ForbiddenException", "check the catalog's credential")


def test_an_address_where_there_is_no_catalog(run: Run, proxy: FaultProxy) -> None:
    told(run(type="rest", uri=f"{proxy.uri}/not/here"), 2, "cannot be opened: BadRequestException", "check catalogs.bad_")


def test_a_type_that_iceberg_does_not_know(run: Run) -> None:
    told(run(type="shelf", uri="x"), 2, "Unknown catalog type: shelf", "check catalogs.bad_")


def test_a_database_without_a_driver(run: Run) -> None:
    uri = "jdbc:nowhere://me:${env:HUSH}@127.0.0.1/lake?password=${env:HUSH}"
    told(run(type="jdbc", uri=uri, warehouse="file:/tmp"), 3, "No suitable driver", "give Spark the database's JDBC driver")


@pytest.mark.parametrize("kind", ["sqlite", "rest"])
def test_a_table_whose_metadata_file_is_gone_is_not_taken_for_a_table_that_does_not_exist(
    known: Any, channel: Callable[..., Channel], tmp_path: Path, kind: str
) -> None:
    if kind == "sqlite":
        catalog = Catalog(type="sqlite", path=tmp_path)
        catalog.create_folder()
        name = next(_names)
        conf = {**catalog.spark_conf(name), f"spark.sql.catalog.{name}.cache-enabled": "false"}
        for key, value in conf.items():
            known.conf.set(key, value)
        table = f"{name}.t.x"
    else:
        table = f"near.{channel().name}"
    sink = make(known, table)
    publish(sink, claim(sink), 10, {1: "a"})
    file = Path(sink._live().metadata().metadataFileLocation().removeprefix("file:"))
    file.rename(file.with_suffix(".away"))
    with pytest.raises(Stopped, match=r"metadata\.json") as stopped:
        make(known, table)
    assert "restore it" in stopped.value.next_step
    file.with_suffix(".away").rename(file)
    assert Gateway(known).load(table) is not None


def test_a_java_error_inside_the_fence_is_an_attempt_that_failed(
    channel: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = channel()
    table.claim()
    check, errors = table.sink._check_layout, [Py4JError("cut off")]

    def fails_once(staged: Staged) -> None:
        if errors:
            raise errors.pop()
        check(staged)

    monkeypatch.setattr(table.sink, "_check_layout", fails_once)
    outcome = table.publish({1: "a"})
    assert isinstance(outcome, Published)
    assert outcome.attempts == 2


def test_a_jvm_that_is_gone_is_a_connection_that_failed() -> None:
    error = translate(Py4JNetworkError("Error while sending or receiving"))
    assert isinstance(error, ConnectionFailed)
    assert "JVM does not answer any more" in error.fact
