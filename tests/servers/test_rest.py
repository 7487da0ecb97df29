from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.servers import rest as module
from tests.servers.rest import RestCatalog

pytestmark = pytest.mark.process

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))


@pytest.fixture
def namespace() -> str:
    return f"shop_{uuid.uuid4().hex[:8]}"


def client(server: RestCatalog) -> Catalog:
    return load_catalog("lake", **server.properties)


def test_the_server_answers_the_first_question_of_every_client(rest_catalog: RestCatalog):
    assert set(rest_catalog.config()) >= {"defaults", "overrides"}


def test_a_table_made_by_one_client_is_read_by_another(rest_catalog: RestCatalog, namespace: str):
    one, other = client(rest_catalog), client(rest_catalog)
    one.create_namespace(namespace)
    made = one.create_table(f"{namespace}.orders", SCHEMA, properties={"format-version": "3"})
    loaded = other.load_table(f"{namespace}.orders")
    assert loaded.metadata.table_uuid == made.metadata.table_uuid
    assert loaded.metadata.format_version == 3


def test_of_two_commits_on_one_snapshot_the_second_is_refused(rest_catalog: RestCatalog, namespace: str):
    rows = pa.table(
        {"id": pa.array([1], pa.int64()), "name": ["a"]},
        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]),
    )
    catalog = client(rest_catalog)
    catalog.create_namespace(namespace)
    first = catalog.create_table(f"{namespace}.orders", SCHEMA, properties={"commit.retry.num-retries": "0"})
    second = catalog.load_table(f"{namespace}.orders")
    first.append(rows)
    with pytest.raises(CommitFailedException):
        second.append(rows)
    assert len(catalog.load_table(f"{namespace}.orders").metadata.snapshots) == 1


def test_tables_and_port_survive_a_kill(tmp_path, namespace: str):
    with RestCatalog(tmp_path) as server:
        catalog, uri = client(server), server.uri
        catalog.create_namespace(namespace)
        catalog.create_table(f"{namespace}.orders", SCHEMA)
        server.kill()
        assert not server.running
        server.start()
        assert server.uri == uri
        assert client(server).list_tables(namespace) == [(namespace, "orders")]


def test_a_paused_server_does_not_answer_until_it_is_resumed(tmp_path):
    with RestCatalog(tmp_path) as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.config()
        server.resume()
        assert server.config()


def test_nobody_else_can_take_the_port_while_the_server_is_down(tmp_path):
    with RestCatalog(tmp_path) as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        server.start()
        assert server.config()


@pytest.mark.parametrize("code", [0, 7])
def test_one_is_started_for_a_command_that_is_given_its_address_and_its_folder_stays_where_that_failed(tmp_path: Path, code: int):
    asks = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + '/v1/config'); print(sys.argv[1]); sys.exit(int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-m", module.__name__, sys.executable, "-c", asks, "URI", str(code)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    stays = [str(folder) for folder in tmp_path.glob("icefront-rest-*") if folder.joinpath("catalog.db").exists()]
    assert [folder for folder in stays if f"stay in {folder}" in done.stderr] == stays
    assert len(stays) == (code != 0)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{done.stdout.strip()}/v1/config")
