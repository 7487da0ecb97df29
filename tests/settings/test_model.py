"""The files become one frozen model; built in Python it is the same."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DecimalType, LongType, NestedField, TimestamptzType

from icefront.core.epochs import Minting
from icefront.core.errors import ConfigError
from icefront.settings import (
    Catalog,
    Changefeed,
    Compact,
    Duration,
    Expire,
    IcebergSink,
    PartitionBy,
    PipelineSettings,
    Project,
    Sink,
    Source,
    Upkeep,
    find_project,
    load_pipeline,
    load_project,
)
from icefront.settings.reference import PIPELINE_EXAMPLE, PROJECT_EXAMPLE, TABLES_EXAMPLE
from icefront.upkeep.need import Compacting, Expiring, Quiet, Settling

SMALL = "pipeline: a\nsource: {changefeed: {path: feed}}\nsink: {iceberg: {table: lake.a.b}}\n"


def targets(settings: PipelineSettings, *tables: str) -> list[tuple[str, str]]:
    return [(target.source_table, target.name) for target in settings.targets_for(tables)]


def pipeline(**more: object) -> PipelineSettings:
    return PipelineSettings.of({"pipeline": "a", "source": {"changefeed": {"path": "/feed"}}, **more})


def to(table: str) -> dict[str, object]:
    return {"sink": {"iceberg": {"table": table}}}


# ── loading ────────────────────────────────────────────────────────────────────────────────
def test_the_full_example_loads(write, folder):
    write(PROJECT_EXAMPLE, "icefront.yaml")
    settings = load_pipeline(write(PIPELINE_EXAMPLE))
    assert settings.pipeline == "orders"
    assert settings.source.kind == "changefeed"
    assert settings.source.changefeed == Changefeed(path=str(folder / "feed"))
    assert settings.keys == ("id",)
    assert settings.columns == {"id": LongType(), "amount": DecimalType(12, 2), "created_at": TimestamptzType()}
    assert settings.minting == Minting()
    assert settings.write.target_file_size.bytes == 128 * 2**20
    assert settings.commit.retries == 5
    (target,) = settings.targets_for(["orders"])
    assert target.sink.partition_by == (PartitionBy("day", "created_at"),)
    assert (target.sink.catalog, target.sink.identifier) == ("lake", ("shop", "orders"))


def test_the_tables_example_loads(write):
    settings = load_pipeline(write(TABLES_EXAMPLE))
    assert targets(settings, "orders", "items") == [
        ("orders", "lake.shop.orders"),
        ("orders", "lake.audit.orders"),
        ("items", "lake.shop.items"),
    ]


def test_the_smallest_pipeline_has_every_default(write):
    settings = load_pipeline(write(SMALL))
    assert settings.minting == Minting()
    assert settings.mode is None
    assert settings.schema_policy.add_column == "evolve"
    assert (settings.upkeep, settings.bad_rows, settings.write.publish) == (Upkeep(), "stop", "immediate")
    (target,) = settings.targets_for(["b"])
    assert (target.sink.format_version, target.sink.deletes, target.sink.shared) == (3, "global", False)


def test_without_a_project_file_the_defaults_lie_beside_the_pipeline_file(write, folder):
    project = load_pipeline(write(SMALL, "deep/orders.yaml")).project
    assert project.catalogs == {"lake": Catalog(type="sqlite", path=folder / "deep/.icefront")}
    assert project.state == folder / "deep/.icefront/state.db"
    assert project.spark.master == "local[*]"


def test_the_project_file_is_found_above_and_its_paths_are_its_own(write, folder):
    write("state: s.db\nsources: {shop: {changefeed: {path: feed}}}\n", "icefront.yaml")
    settings = load_pipeline(write(SMALL.replace("{changefeed: {path: feed}}", "shop"), "deep/er/orders.yaml"))
    assert settings.project.state == folder / "s.db"
    assert settings.source.changefeed == Changefeed(path=str(folder / "feed"))
    assert settings.file == folder / "deep/er/orders.yaml"


def test_the_search_for_a_project_ends_at_the_root_of_the_repository(write, folder):
    write("state: s.db\n", "icefront.yaml")
    (folder / "repository/.git").mkdir(parents=True)
    assert find_project(folder / "repository/orders.yaml") is None
    assert find_project(folder) == folder / "icefront.yaml"
    assert load_project(folder / "repository").state == folder / "repository/.icefront/state.db"


def test_other_keys_of_the_project_keep_the_default_catalog(write, folder):
    write("spark: {master: 'local[2]'}\n", "icefront.yaml")
    assert load_project().catalogs["lake"].path == folder / ".icefront"


def test_settings_built_in_python_equal_those_from_the_file(write, folder):
    loaded = load_pipeline(write(SMALL + "epochs: {every: 5s}\nschema: {add_column: stop}\n"))
    built = PipelineSettings.of(
        {
            "file": folder / "orders.yaml",
            "pipeline": "a",
            "source": Source(changefeed=Changefeed(path="feed")),
            "sink": Sink(iceberg=IcebergSink(table="lake.a.b")),
            "epochs": {"every": Duration.parse("5s")},
            "schema": {"add_column": "stop"},
        }
    )
    assert built == loaded


def test_settings_are_frozen_and_can_be_pickled(write):
    settings = load_pipeline(write(PIPELINE_EXAMPLE))
    with pytest.raises(ValueError, match="frozen"):
        settings.pipeline = "other"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_what_a_model_dumps_it_reads_again(write):
    settings = load_pipeline(write(PIPELINE_EXAMPLE))
    dumped = settings.model_dump(mode="json", exclude={"project", "file"})
    again = PipelineSettings.of({**dumped, "project": settings.project, "file": settings.file})
    assert again == settings


# ── upkeep ─────────────────────────────────────────────────────────────────────────────────
def test_upkeep_is_auto_or_off_as_a_whole_or_by_kind(write):
    loaded = [load_pipeline(write(f"{SMALL}upkeep: {text}\n")).upkeep for text in ("auto", "off", "{settle: off, expire: auto}")]
    auto, off, some = loaded
    assert (auto, auto.in_run) == (Upkeep(), True)
    assert (off.settle, off.compact, off.expire, off.in_run) == (None, None, None, False)
    assert (some.settle, some.compact, some.expire) == (None, Compact(), Expire())


def test_conditions_become_the_terms_of_upkeep(write):
    text = """\
        upkeep:
          settle: {files: 3, rows: 50, reads: 1.5, age: 1h, every: 2s}
          compact: {files: 4, dead: 12.5%, max_bytes: 1GiB, sort: off, every: 1m}
          expire: {keep: 1d, at_least: 2, at_most: 9, orphans: off}
          quiet_hours: ["22:00-06:00", "9:30-24:00"]
          by: other
        """
    upkeep = load_pipeline(write(SMALL + dedent(text))).upkeep
    terms = upkeep.terms
    assert terms.settle == Settling(3, 50, 1.5, timedelta(hours=1), timedelta(seconds=2))
    assert terms.compact == Compacting(4, 0.125, 2**30, "off", timedelta(minutes=1))
    assert terms.expire == Expiring(timedelta(days=1), 2, 9, None, timedelta(minutes=10))
    assert terms.quiet == (Quiet(22 * 60, 6 * 60), Quiet(9 * 60 + 30, 0))
    assert not upkeep.in_run
    assert Upkeep.of(upkeep.model_dump(mode="json")) == upkeep


# ── YAML 1.2 ───────────────────────────────────────────────────────────────────────────────
def test_off_and_no_are_text_and_spellings_of_numbers_are_kept(write):
    write("catalogs: {lake: {type: glue, a: off, b: 1.10, c: true, d: 7, e: 2024-01-01, f: no}}\n", "icefront.yaml")
    properties = load_project().catalogs["lake"].properties
    assert properties == {"a": "off", "b": "1.10", "c": "true", "d": "7", "e": "2024-01-01", "f": "no"}
    assert not load_pipeline(write(SMALL + "upkeep: off\n")).upkeep.terms.on


def test_aliases_are_followed(write):
    settings = load_pipeline(write(SMALL + "keys: &k [id]\nschema: {renames: {}}\n"))
    assert settings.keys == ("id",)


# ── targets ────────────────────────────────────────────────────────────────────────────────
def test_one_table_needs_no_name():
    assert targets(pipeline(**to("lake.a.b")), "orders") == [("orders", "lake.a.b")]
    assert targets(pipeline(**to("lake.a.b"))) == []


def test_several_tables_ask_for_a_choice(write):
    settings = load_pipeline(write(SMALL))
    with pytest.raises(ConfigError) as caught:
        settings.targets_for(["orders", "items"])
    assert str(caught.value) == (
        "orders.yaml:2:9: source: the source holds 2 tables: items, orders\n"
        "  → choose one with source.changefeed.table, or list them under tables"
    )


def test_the_source_s_table_option_is_the_choice():
    settings = PipelineSettings.of(
        {"pipeline": "a", "source": {"changefeed": {"path": "/feed", "table": "items"}}, **to("lake.a.{table}")}
    )
    assert targets(settings, "orders", "items") == [("items", "lake.a.items")]
    assert targets(settings) == [("items", "lake.a.items")]


def test_a_table_s_own_entry_wins_then_the_first_pattern_that_fits():
    settings = pipeline(
        tables={"*": to("lake.rest.{table}"), "shop.*": to("lake.late.{table}"), "shop.orders": to("lake.shop.orders")},
    )
    assert targets(settings, "shop.orders", "shop.items", "crm.people") == [
        ("shop.orders", "lake.shop.orders"),
        ("crm.people", "lake.rest.people"),
        ("shop.items", "lake.rest.items"),
    ]


def test_a_table_that_nothing_fits_is_left_out():
    assert targets(pipeline(tables={"shop.*": to("lake.a.{table}")}), "crm.people") == []


def test_named_tables_are_there_before_their_first_change():
    assert targets(pipeline(tables={"orders": to("lake.a.b")})) == [("orders", "lake.a.b")]


def test_two_tables_cannot_share_a_target(write):
    text = """\
        pipeline: a
        source: {changefeed: {path: feed}}
        tables:
          "*": {sink: {iceberg: {table: "lake.a.{table}"}}}
        """
    settings = load_pipeline(write(text))
    with pytest.raises(ConfigError) as caught:
        settings.targets_for(["crm.x", "shop.x"])
    assert caught.value.fact == "orders.yaml:4:33: tables.*.sink.iceberg.table: crm.x and shop.x would both go to lake.a.x"


def test_one_table_cannot_go_to_one_target_twice():
    settings = pipeline(sink=[{"iceberg": {"table": "lake.a.b"}}, {"iceberg": {"table": "lake.a.{table}"}}])
    with pytest.raises(ConfigError, match=r"b would go twice to lake\.a\.b"):
        settings.targets_for(["b"])


def test_a_source_table_whose_name_does_not_fit_is_named():
    with pytest.raises(ConfigError, match=r'for source table "a b": "lake.a.a b" has a part "a b"'):
        pipeline(tables={"*": to("lake.a.{table}")}).targets_for(["a b"])


def test_tables_inherit_mode_order_and_schema_policy():
    settings = pipeline(
        mode="append",
        sequence_by="ts",
        schema={"add_column": "stop"},
        tables={
            "a": to("lake.a.a"),
            "b": {**to("lake.a.b"), "mode": "upsert", "keys": ["id"], "sequence_by": "at", "schema": {"add_column": "ignore"}},
        },
    )
    a, b = settings.targets_for([])
    assert (a.mode, a.sequence_by, a.schema_policy.add_column, a.keys) == ("append", "ts", "stop", None)
    assert (b.mode, b.sequence_by, b.schema_policy.add_column, b.keys) == ("upsert", "at", "ignore", ("id",))


def test_the_mode_follows_the_key_unless_it_is_said():
    (unsaid,) = pipeline(**to("lake.a.b")).targets_for(["b"])
    assert (unsaid.mode_with(["id"]), unsaid.mode_with(None), unsaid.mode_with([])) == ("upsert", "append", "append")
    (keyless,) = pipeline(keys=[], **to("lake.a.b")).targets_for(["b"])
    assert keyless.mode_with(["id"]) == "append"
    (keyed,) = pipeline(keys=["id"], **to("lake.a.b")).targets_for(["b"])
    assert keyed.mode_with(None) == "upsert"
    (said,) = pipeline(mode="append", keys=["id"], **to("lake.a.b")).targets_for(["b"])
    assert said.mode_with(["id"]) == "append"


def test_every_resolved_means_one_epoch_per_cut():
    assert pipeline(epochs={"every": "resolved"}, **to("lake.a.b")).minting.every is None
    minting = pipeline(epochs={"every": "1m", "max_changes": 7, "in_flight": 1, "heartbeat": "1h"}, **to("lake.a.b")).minting
    assert minting == Minting(60 * 10**9, 7, 1, 3600 * 10**9)


# ── catalogs ───────────────────────────────────────────────────────────────────────────────
def test_the_embedded_catalog_is_one_file_for_spark_and_pyiceberg():
    catalog = Catalog(type="sqlite", path=Path("/data/lake"))
    assert catalog.spark_conf("lake") == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": "jdbc:sqlite:/data/lake/catalog.db?journal_mode=WAL&busy_timeout=10000&transaction_mode=IMMEDIATE",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": "file:///data/lake/warehouse",
    }
    assert catalog.pyiceberg_properties("lake") == {
        "type": "sql",
        "uri": "sqlite:////data/lake/catalog.db",
        "warehouse": "file:///data/lake/warehouse",
    }


def test_the_embedded_catalog_works_in_a_new_folder(tmp_path):
    catalog = Catalog(type="sqlite", path=tmp_path / "not/yet there")
    catalog.create_folder()
    lake = load_catalog("lake", **catalog.pyiceberg_properties("lake"))
    lake.create_namespace("shop")
    lake.create_table("shop.orders", Schema(NestedField(1, "id", LongType(), required=True)))
    assert lake.load_table("shop.orders").location() == f"file://{tmp_path}/not/yet there/warehouse/shop/orders"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        Catalog(type="sqlite", path=tmp_path / "file").create_folder()


def test_the_embedded_catalog_takes_another_warehouse():
    catalog = Catalog.of({"type": "sqlite", "path": "/c", "warehouse": "s3://lake", "s3.endpoint": "http://h"})
    assert catalog.spark_conf("x")["spark.sql.catalog.x.warehouse"] == "s3://lake"
    assert catalog.pyiceberg_properties("x")["warehouse"] == "s3://lake"
    assert catalog.pyiceberg_properties("x")["s3.endpoint"] == "http://h"


def test_any_other_catalog_passes_its_properties_on():
    catalog = Catalog.of(
        {"type": "nessie", "uri": "http://n", "ref": "main", "spark.io-impl": "S3FileIO", "pyiceberg.type": "rest", "s3.x": True}
    )
    assert catalog.spark_conf("n") == {
        "spark.sql.catalog.n": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.n.type": "nessie",
        "spark.sql.catalog.n.uri": "http://n",
        "spark.sql.catalog.n.ref": "main",
        "spark.sql.catalog.n.s3.x": "true",
        "spark.sql.catalog.n.io-impl": "S3FileIO",
    }
    assert catalog.pyiceberg_properties("n") == {"type": "rest", "uri": "http://n", "ref": "main", "s3.x": "true"}


def test_a_rest_catalog_is_not_waited_for_for_ever():
    conf = Catalog.of({"type": "rest", "uri": "http://h", "rest.client.socket-timeout-ms": 5000}).spark_conf("r")
    assert conf["spark.sql.catalog.r.rest.client.connection-timeout-ms"] == "10000"
    assert conf["spark.sql.catalog.r.rest.client.socket-timeout-ms"] == "5000"


def test_a_catalog_of_a_class_has_no_type_in_spark():
    conf = Catalog.of({"type": "custom", "catalog-impl": "com.example.Catalog"}).spark_conf("c")
    assert "spark.sql.catalog.c.type" not in conf


def test_a_jdbc_catalog_is_an_sql_catalog_in_pyiceberg():
    properties = Catalog.of({"type": "jdbc", "uri": "jdbc:postgresql://h/db"}).pyiceberg_properties("c")
    assert properties == {"type": "sql", "uri": "postgresql://h/db"}


def test_the_project_gives_spark_all_its_settings_and_conf_wins():
    project = Project.of(
        {"spark": {"master": "local[2]", "conf": {"spark.sql.catalog.lake.type": "x", "spark.ui.enabled": False}}}
    )
    conf = project.spark_conf()
    assert conf["spark.master"] == "local[2]"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.sql.catalog.lake.type"] == "x"


def test_partition_fields_become_iceberg_transforms():
    cases: dict[str, tuple[object, str]] = {
        "day(created_at)": (DayTransform(), "created_at_day"),
        "days(created_at)": (DayTransform(), "created_at_day"),
        "bucket(16, id)": (BucketTransform(16), "id_bucket"),
        "truncate( 4 , name )": (TruncateTransform(4), "name_trunc"),
        "region": (IdentityTransform(), "region"),
        "identity(region)": (IdentityTransform(), "region"),
        "a.b": (IdentityTransform(), "a.b"),
    }
    for text, (transform, name) in cases.items():
        field = PartitionBy.parse(text)
        assert (field.iceberg(), field.name) == (transform, name)
        assert PartitionBy.parse(str(field)) == field
