"""check, status and epochs, without a JVM: tables are made as a run would leave them."""

import json
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StructType
from typer.testing import Result

from icefront.api import Pipeline
from icefront.core.errors import Overcompacted
from icefront.core.timestamps import ORIGIN
from icefront.iceberg import summary
from icefront.state.store import StateStore
from tests.cli.projects import SCHEMA, TARGET, Shop, icefront


@pytest.fixture
def shop(tmp_path):
    return Shop.make(tmp_path)


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch):
    """Whoever starts a session here fails."""

    def refuse(*_, **__):
        raise AssertionError("a command that only looks started Spark")

    monkeypatch.setattr("icefront.spark.session.start", refuse)


def status_of(shop: Shop, *options: str) -> tuple[Result, dict[str, Any]]:
    result = icefront("status", shop.file, "--json", *options)
    return result, json.loads(result.stdout)[0]


def facts(result: Result) -> list[str]:
    return [finding["fact"] for finding in json.loads(result.stdout) if finding["level"] == "error"]


# ── check ──────────────────────────────────────────────────────────────────────────────────
def test_check_refuses_identifier_fields_within_structs(shop):
    member = NestedField(3, "id", LongType(), required=True)
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StructType(member), required=True)]
    shop.table(Schema(*fields, identifier_field_ids=[3]))
    followed = {"source": {"iceberg": {"table": TARGET}}, "sink": {"iceberg": {"table": "lake.shop.copy"}}}
    shop.write(**followed, keys=None)
    (fact,) = facts(icefront("check", shop.file, "--json"))
    assert re.search(rf"orders\.yaml:\d+:\d+: .*identifier field s\.id of {TARGET} is a member of a struct", fact)
    shop.write(**followed, keys=["id"])
    assert facts(icefront("check", shop.file, "--json")) == []


# ── status ─────────────────────────────────────────────────────────────────────────────────
def test_a_pipeline_that_never_ran_is_waiting(shop):
    result, status = status_of(shop)
    assert result.exit_code == 0
    assert (status["state"], status["frontier"], status["lag_seconds"], status["positions_behind"]) == ("waiting", None, None, 4)
    assert "the table does not exist yet" in status["reason"]


def test_looking_creates_nothing(shop):
    for command in ("status", "epochs", "check"):
        assert icefront(command, shop.file).exit_code == 0
    assert not (shop.folder / ".icefront").exists()


@pytest.mark.parametrize("command", ["status", "epochs"])
def test_a_corrupt_state_file_is_told_and_left_where_it_is(shop, command):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    state = shop.folder / ".icefront" / "state.db"
    state.write_bytes(b"garbage" * 1000)
    before = sorted(p.name for p in state.parent.iterdir())
    result = icefront(command, shop.file)
    assert result.exit_code == 0
    assert "is corrupt" in " ".join((result.stdout + result.stderr).split())
    assert sorted(p.name for p in state.parent.iterdir()) == before
    assert state.read_bytes() == b"garbage" * 1000


def test_a_target_at_the_newest_resolved_timestamp_is_caught_up(shop):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    result, status = status_of(shop, "--max-lag", "1s")
    assert result.exit_code == 0
    assert (status["state"], status["lag_seconds"], status["positions_behind"], status["records"]) == ("caught-up", 0.0, 0, 3)
    assert status["frontier"] == str(shop.feed.resolved[-1].next())
    assert status["frontier_time"].startswith("2026-04-02 20:58:37")


def test_lag_is_the_source_s_newest_resolved_timestamp_minus_the_frontier(shop):
    mark = shop.publish(shop.table(), ORIGIN, shop.feed.resolved[1].next())
    result, status = status_of(shop)
    assert result.exit_code == 0
    assert (status["state"], status["lag_seconds"], status["positions_behind"]) == ("behind", 20.0, 2)
    assert (status["epoch_id"], status["writer"]) == (str(mark.epoch_id), "run#1")


@pytest.mark.parametrize(("limit", "code"), [("30s", 0), ("20s", 0), ("19s", 6)])
def test_max_lag_decides_the_exit_code(shop, limit, code):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[1].next())
    assert icefront("status", shop.file, "--max-lag", limit).exit_code == code


def test_a_target_that_never_began_lags_when_there_is_something_to_do(shop):
    assert icefront("status", shop.file, "--max-lag", "1d").exit_code == 6


def test_without_a_file_all_pipelines_of_the_folder_are_shown(shop, monkeypatch):
    (shop.folder / "second.yaml").write_text(shop.file.read_text().replace('pipeline: "orders"', 'pipeline: "second"'))
    monkeypatch.chdir(shop.folder)
    found = json.loads(icefront("status", "--json").stdout)
    assert [status["pipeline"] for status in found] == ["orders", "second"]


def test_a_folder_without_pipelines_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = icefront("status")
    assert result.exit_code == 2
    assert "has no pipeline file" in result.stderr


def test_rows_without_a_mark_are_not_ours(shop):
    table = shop.table()
    shop.publish(table, ORIGIN, shop.feed.resolved[0].next())
    with table.transaction() as transaction:
        transaction.remove_properties(summary.mark_property("orders"))
    _, status = status_of(shop)
    assert status["state"] == "stopped"
    assert "--adopt" in status["next_step"]


def test_a_rolled_back_table_is_stopped(shop):
    table = shop.table()
    shop.publish(table, ORIGIN, shop.feed.resolved[0].next())
    first = table.refresh().metadata.current_snapshot_id
    shop.publish(table, shop.feed.resolved[0].next(), shop.feed.resolved[1].next())
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    _, status = status_of(shop)
    assert status["state"] == "stopped"
    assert "its mark says" in status["reason"]


def test_another_source_than_the_mark_s_is_stopped(shop):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[0].next())
    shop.write(source={"changefeed": {"path": "feed/", "id": "another"}})
    _, status = status_of(shop)
    assert status["state"] == "stopped"
    assert "another" in status["reason"]


def test_a_catalog_that_does_not_answer_exits_with_3(shop):
    (shop.folder / "icefront.yaml").write_text('catalogs: {lake: {type: rest, uri: "http://127.0.0.1:9"}}\n')
    result, status = status_of(shop)
    assert (result.exit_code, status["state"]) == (3, "unreachable")
    assert "cannot be read" in result.stderr


def test_a_missing_feed_is_told_and_the_other_targets_are_not_lost(shop):
    shop.write(source={"changefeed": {"path": "nowhere/"}})
    result, status = status_of(shop)
    assert (result.exit_code, status["state"]) == (0, "stopped")
    assert "does not exist" in status["reason"]


@pytest.mark.parametrize("pattern", ["*", "*.RESOLVED"])
def test_an_emptied_feed_is_stopped_and_not_caught_up(shop, pattern):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    for path in [path for path in (shop.folder / "feed").rglob(pattern) if path.is_file()]:
        path.unlink()
    _, status = status_of(shop)
    assert status["state"] == "stopped"
    assert f"changes up to {shop.feed.resolved[-1]}" in status["reason"]
    assert "shows no RESOLVED file" in status["reason"]
    assert "is the folder mounted" in status["next_step"]
    checked = icefront("check", shop.file, "--json")
    assert checked.exit_code == 5
    assert any("shows no RESOLVED file" in fact for fact in facts(checked))


def test_a_run_over_an_emptied_feed_stops_though_no_table_is_to_be_seen(shop):
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    for path in [path for path in (shop.folder / "feed").rglob("*") if path.is_file()]:
        path.unlink()
    with pytest.raises(Overcompacted, match="shows no RESOLVED file"):
        Pipeline.load(shop.file).run(spark, until="caught-up")


def test_a_feed_that_has_not_begun_is_waited_for_whatever_its_targets_are_called(shop):
    for path in [path for path in (shop.folder / "feed").rglob("*") if path.is_file()]:
        path.unlink()
    for table in (TARGET, "lake.shop.{table}"):
        shop.write(sink={"iceberg": {"table": table}})
        _, status = status_of(shop)
        assert (status["state"], status["target"]) == ("waiting", "")


# ── upkeep ─────────────────────────────────────────────────────────────────────────────────
def test_status_tells_how_a_table_reads_and_what_upkeep_does_next(shop):
    shop.write(upkeep={"settle": "off", "compact": {"files": 2}, "expire": {"keep": "1d"}})
    table = shop.table()
    ends = [ORIGIN, *(resolved.next() for resolved in shop.feed.resolved)]
    for lower, upper in pairwise(ends):
        shop.publish(table, lower, upper, rows=2)
    told = status_of(shop)[1]["upkeep"]
    assert (told["by"], told["unsettled_files"], told["small_files"], told["snapshots"]) == ("run", 0, 4, 4)
    kinds = {kind["kind"]: kind["state"] for kind in told["kinds"]}
    assert kinds == {"settle": "off", "compact": "due", "expire": "fine", "orphans": "fine"}
    assert told["next"]["kind"] == "compact"
    assert told["next"]["why"] == "4 small files in one partition, 2 are enough"
    text = icefront("status", shop.file).stdout
    assert f"{TARGET}: upkeep: nothing unsettled; a scan reads 1 times the table; 4 small files in one partition" in text
    assert "next: compact, due, by the next run: 4 small files" in text


def test_status_tells_the_last_cycles(shop):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    with StateStore(shop.folder / ".icefront" / "state.db") as notes:
        notes.cycle_ended(notes.cycle_started("orders", TARGET, "settle", "10 of them"), "failed", {"error": "it was away"})
        notes.cycle_started("orders", TARGET, "compact", "20 small files")
    last = status_of(shop)[1]["upkeep"]["last"]
    assert [(cycle["kind"], cycle["outcome"]) for cycle in last] == [("compact", None), ("settle", "failed")]
    text = icefront("status", shop.file).stdout
    assert "begun, not ended: 20 small files; settle " in text
    assert "(it was away): 10 of them" in text


def test_status_tells_that_upkeep_is_off_and_that_a_table_cannot_be_measured(shop):
    shop.write(upkeep="off")
    table = shop.table()
    shop.publish(table, ORIGIN, shop.feed.resolved[-1].next(), rows=3)
    assert "next: nothing, it is off" in icefront("status", shop.file).stdout
    for manifest in (shop.folder / ".icefront").rglob("*.avro"):
        manifest.unlink()
    told = status_of(shop)[1]
    assert told["state"] == "caught-up"
    assert "its manifests cannot be read" in told["upkeep"]["trouble"]


# ── epochs ─────────────────────────────────────────────────────────────────────────────────
def test_epochs_lists_bounds_changes_files_and_snapshots_oldest_first(shop):
    table = shop.table()
    ends = [ORIGIN, *(resolved.next() for resolved in shop.feed.resolved[:3])]
    for lower, upper in pairwise(ends):
        shop.publish(table, lower, upper, rows=2)
    rows = json.loads(icefront("epochs", shop.file, "--json").stdout)
    assert [(row["lower"], row["upper"]) for row in rows] == [(str(a), str(b)) for a, b in pairwise(ends)]
    assert rows[0]["changes"] == {"upserts": 2, "deletes": 0, "inside": 2}
    assert rows[0]["data_files"] == 1
    assert rows[-1]["snapshot_id"] == table.refresh().metadata.current_snapshot_id


def test_epochs_can_be_limited_to_the_newest(shop):
    table = shop.table()
    shop.publish(table, ORIGIN, shop.feed.resolved[0].next())
    shop.publish(table, shop.feed.resolved[0].next(), shop.feed.resolved[1].next())
    rows = json.loads(icefront("epochs", shop.file, "--json", "--limit", 1).stdout)
    assert [row["upper"] for row in rows] == [str(shop.feed.resolved[1].next())]


def test_epochs_before_the_first_run_are_none(shop):
    assert json.loads(icefront("epochs", shop.file, "--json").stdout) == []
    assert "no epoch is published yet" in icefront("epochs", shop.file).stdout


# ── check ──────────────────────────────────────────────────────────────────────────────────
def test_a_good_pipeline_has_no_error(shop):
    shop.publish(shop.table(), ORIGIN, shop.feed.resolved[0].next())
    result = icefront("check", shop.file, "--json")
    assert (result.exit_code, facts(result)) == (0, [])
    assert "a run goes on from 2026-04-02 20:58:07.210714Z, 3 resolved timestamps behind" in result.stdout


def test_a_missing_feed_is_a_configuration_error(shop):
    shop.write(source={"changefeed": {"path": "nowhere/"}})
    result = icefront("check", shop.file)
    assert result.exit_code == 2
    assert "nowhere does not exist" in result.stderr


def test_an_unreachable_catalog_is_a_connection_error(shop):
    (shop.folder / "icefront.yaml").write_text('catalogs: {lake: {type: rest, uri: "http://127.0.0.1:9"}}\n')
    assert icefront("check", shop.file).exit_code == 3


def test_a_declared_type_that_the_table_contradicts_names_both(shop):
    shop.table()
    shop.write(columns={"id": "bigint", "status": "bigint"})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 5
    assert facts(result) == ["column status is string in the table, long in the pipeline file"]


def test_a_declared_column_that_the_table_lacks_follows_the_policy(shop):
    shop.table()
    shop.write(columns={"note": "string"})
    assert icefront("check", shop.file).exit_code == 0
    shop.write(columns={"note": "string"}, schema={"add_column": "stop"})
    result = icefront("check", shop.file, "--json")
    assert facts(result) == ["the table has no column note (string); schema.add_column is stop"]


def test_a_key_that_the_table_lacks_is_named(shop):
    shop.table(Schema(NestedField(1, "order_id", LongType(), required=False)))
    result = icefront("check", shop.file, "--json")
    assert facts(result) == ["the table has no column id, which the keys name; it has order_id"]


def test_a_floating_point_key_is_refused(shop):
    shop.table(Schema(NestedField(1, "id", DoubleType(), required=False)))
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 2
    assert "cannot be a key" in facts(result)[0]


def test_a_table_that_is_not_written_as_parquet_is_refused(shop):
    shop.table(properties={"write.format.default": "orc"})
    result = icefront("check", shop.file, "--json")
    assert (result.exit_code, facts(result)) == (2, ["the table's write.format.default is orc; Icefront writes parquet"])


def test_a_partition_column_that_does_not_exist_is_named_with_the_closest(shop):
    shop.table()
    shop.write(sink={"iceberg": {"table": "lake.shop.orders", "partition_by": ["stauts"]}})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 2
    assert facts(result) == ['partition_by names column stauts, which the table does not have (did you mean "status"?)']


def test_scoped_deletes_and_another_partitioning_than_the_table_has_are_refused(shop):
    shop.table()
    shop.write(sink={"iceberg": {"table": "lake.shop.orders", "partition_by": ["bucket(4, id)"], "deletes": "scoped"}})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 2
    assert facts(result) == [
        "lake.shop.orders is partitioned by nothing, `partition_by` says bucket(4, id), and deletes are scoped to one partition"
    ]


def test_scoped_deletes_of_a_table_that_is_to_be_partitioned_by_more_than_keys_are_refused(shop):
    shop.write(sink={"iceberg": {"table": "lake.shop.orders", "partition_by": ["status"], "deletes": "scoped"}})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 2
    assert "status" in facts(result)[-1]
    assert "no key, and deletes are scoped to one partition" in facts(result)[-1]


def test_a_table_of_another_pipeline_is_not_ours(shop):
    shop.table(properties={summary.mark_property("theirs"): "{}"})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 5
    assert facts(result) == ["the table is written by pipeline theirs; this pipeline is orders"]


def test_a_mark_of_a_newer_icefront_stops(shop):
    mark = shop.mark(shop.feed.resolved[0].next()).to_json().replace('"format":1', '"format":99')
    shop.table(SCHEMA, {summary.mark_property("orders"): mark})
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 5
    assert facts(result) == ["the mark has format 99, this Icefront reads up to 1"]


def test_a_feed_without_resolved_timestamps_is_a_warning(shop):
    for file in (shop.folder / "feed").rglob("*.RESOLVED"):
        file.unlink()
    result = icefront("check", shop.file, "--json")
    assert result.exit_code == 0
    assert any(f["level"] == "warning" and "no resolved timestamp" in f["fact"] for f in json.loads(result.stdout))


# ── doctor ─────────────────────────────────────────────────────────────────────────────────
def test_the_doctor_names_what_is_missing_and_the_fix(shop, monkeypatch):
    monkeypatch.chdir(shop.folder)
    monkeypatch.setenv("JAVA_HOME", str(shop.folder))
    result = icefront("doctor", "--json")
    java = next(f for f in json.loads(result.stdout) if f["name"] == "Java")
    assert (result.exit_code, java["level"]) == (2, "missing")
    assert java["fix"]
