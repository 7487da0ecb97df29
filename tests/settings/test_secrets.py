"""Secrets are named in files, filled in at load, and never printed."""

from __future__ import annotations

import json
import pickle

import pytest

from icefront.core.errors import ConfigError
from icefront.settings import Catalog, Secret, load_pipeline, load_project, reveal

PIPELINE = """\
pipeline: orders
source:
  changefeed:
    path: "s3://${env:BUCKET}/feed"
    storage: {s3.endpoint: "http://127.0.0.1:9000", s3.secret-access-key: "${env:KEY}", s3.access-key-id: "${file:id.txt}"}
sink:
  iceberg: {table: lake.shop.orders}
"""
HUSH = "hush-hush-4711"


@pytest.fixture
def settings(write, monkeypatch):
    monkeypatch.setenv("BUCKET", "feeds")
    monkeypatch.setenv("KEY", HUSH)
    write(f"{HUSH}-id\n", "id.txt")
    return load_pipeline(write(PIPELINE))


def test_references_are_filled_in(settings):
    feed = settings.source.changefeed
    assert feed.path == "s3://feeds/feed"
    assert reveal(feed.storage) == {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.secret-access-key": HUSH,
        "s3.access-key-id": f"{HUSH}-id",
    }


def test_a_secret_never_prints(settings):
    for text in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump()), f"{settings}"):
        assert HUSH not in text
        assert "***" in text
    secret = Secret(HUSH)
    assert (str(secret), repr(secret), f"{secret}") == ("***", "Secret('***')", "***")
    assert json.loads(settings.model_dump_json())["source"]["changefeed"]["storage"]["s3.secret-access-key"] == "***"


def test_a_secret_survives_pickling_and_compares_by_value():
    assert pickle.loads(pickle.dumps(Secret(HUSH))) == Secret(HUSH)
    assert Secret(HUSH) != Secret("other")
    assert Secret(HUSH) != HUSH
    assert len({Secret("a"), Secret("a")}) == 1


def test_catalog_credentials_reach_spark_and_pyiceberg_and_nothing_else(write, monkeypatch):
    monkeypatch.setenv("LAKE_CREDENTIAL", HUSH)
    write('catalogs: {lake: {type: rest, uri: "http://h", credential: "${env:LAKE_CREDENTIAL}"}}\n', "icefront.yaml")
    project = load_project()
    assert HUSH not in repr(project) + project.model_dump_json()
    assert project.spark_conf()["spark.sql.catalog.lake.credential"] == HUSH
    assert project.catalogs["lake"].pyiceberg_properties("lake")["credential"] == HUSH


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("${env:NOT_SET}", "the environment variable NOT_SET is not set"),
        ("${NOT_SET}", "${NOT_SET} is neither ${env:NAME} nor ${file:path}"),
        ("${env:}", "${env:} is neither ${env:NAME} nor ${file:path}"),
        ("${vault:x}", "${vault:x} is neither ${env:NAME} nor ${file:path}"),
        ("${env:KEY", "a ${ has no closing }"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named_with_its_place(refused, reference, expected):
    text = refused(f'pipeline: a\nsource: {{changefeed: {{path: "{reference}"}}}}\nsink: {{iceberg: {{table: lake.a.b}}}}\n')
    assert text.startswith(f"orders.yaml:2:29: source.changefeed.path: {expected}")


def test_a_missing_secret_file_is_named(refused, folder):
    text = refused("pipeline: a\nsource: {changefeed: {path: '${file:no.txt}'}}\nsink: {iceberg: {table: lake.a.b}}\n")
    assert text.startswith(f"orders.yaml:2:29: source.changefeed.path: the file {folder / 'no.txt'} cannot be read: No such file")


def test_what_was_filled_in_is_not_shown_by_an_error(refused, monkeypatch):
    monkeypatch.setenv("KEY", HUSH)
    text = refused("""\
        pipeline: "${env:KEY} x"
        source: {changefeed: {path: feed, envelope: "${env:KEY}", poll: "${env:KEY}"}}
        sink: {iceberg: {table: "${env:KEY}.a.b", partition_by: ["${env:KEY}(x)"], format_version: "${env:KEY}"}}
        columns: {id: "${env:KEY}"}
        epochs: {max_changes: "${env:KEY}"}
        """)
    assert HUSH not in text
    assert text.count("filled in from ${…} and not shown") == 8


def test_a_named_source_and_catalog_keep_their_secret_in_errors(refused, monkeypatch):
    monkeypatch.setenv("KEY", HUSH)
    text = refused("pipeline: a\nsource: '${env:KEY}'\nsink: {iceberg: {table: '${env:KEY}.b.c'}}\n")
    assert HUSH not in text


@pytest.mark.parametrize(
    "name",
    [
        "credential",
        "token",
        "s3.secret-access-key",
        "jdbc.password",
        "fs.s3a.secret.key",
        "adls.sas-token.acc",
        "adls.account-key",
    ],
)
def test_a_secret_in_plain_text_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        Catalog.of({"type": "glue", name: HUSH})
    assert caught.value.fact == f"{name}: a secret is written here in plain text"
    assert HUSH not in str(caught.value)


@pytest.mark.parametrize("name", ["token-refresh-enabled", "warehouse", "s3.endpoint", "oauth2-server-uri", "scope", "secretary"])
def test_other_properties_are_no_secrets(name):
    assert Catalog.of({"type": "glue", name: "x"}).properties == {name: "x"}


@pytest.mark.parametrize("uri", ["postgresql://user:hush@host/db", "jdbc:postgresql://h/db?user=u&password=hush"])
def test_a_password_inside_an_address_is_refused(uri):
    with pytest.raises(ConfigError, match="a secret is written here in plain text") as caught:
        Catalog.of({"type": "jdbc", "uri": uri})
    assert "hush" not in str(caught.value)


def test_a_password_in_the_feed_s_address_is_refused(refused):
    text = refused("pipeline: a\nsource: {changefeed: {path: 's3://a:hush@b/c'}}\nsink: {iceberg: {table: lake.a.b}}\n")
    assert text.startswith("orders.yaml:2:29: source.changefeed.path: a password is written into the address")
    assert "hush" not in text


def test_a_doubled_dollar_is_a_plain_one(write):
    write("catalogs: {lake: {type: glue, prefix: 'a$${env:X}b'}}\n", "icefront.yaml")
    assert load_project().catalogs["lake"].properties == {"prefix": "a${env:X}b"}


def test_what_a_variable_holds_is_not_filled_in_again(write, monkeypatch):
    monkeypatch.setenv("A", "${env:B}")
    monkeypatch.setenv("B", HUSH)
    write("catalogs: {lake: {type: glue, prefix: '${env:A}'}}\n", "icefront.yaml")
    assert reveal(load_project().catalogs["lake"].properties) == {"prefix": "${env:B}"}


def test_python_may_hand_over_a_secret_or_name_one(monkeypatch):
    monkeypatch.setenv("KEY", HUSH)
    handed = Catalog(type="glue", properties={"token": Secret(HUSH)})
    named = Catalog.of({"type": "glue", "token": "${env:KEY}"})
    assert handed == named
