"""Where a replica begins, what keeps its place in the source's history, and what stops it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from icefront.core.errors import ConfigError, Overcompacted, SourceChanged, Stopped
from icefront.iceberg.followed import FollowedTable
from tests.lakes import Lake
from tests.replica.replicas import COPY_ON_WRITE, Replica

pytestmark = pytest.mark.spark


@pytest.fixture
def replica(lake: Lake, table: str) -> Replica:
    return Replica(lake, table)


def expire(replica: Replica) -> None:
    replica.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00'", "retain_last => 1")


# ── the beginning ──────────────────────────────────────────────────────────────────────────
def test_the_first_state_comes_in_batches(replica: Replica) -> None:
    replica.create(version=2)
    for number in range(5):
        replica.sql(f"INSERT INTO T SELECT id, concat('v', id), 1 FROM range({10 * number}, {10 * number + 10})")
    replica.sql("DELETE FROM T WHERE id % 10 = 0")
    result = replica.follow({"batch": "1kB"})
    loaded = [at.get("loaded") for _, at in replica.epochs()]
    assert loaded == [*range(1, len(loaded)), None]
    assert len(loaded) == result.epochs >= 5
    assert [at["frontier"] for _, at in replica.epochs()] == [f"6.{n:010d}" for n in range(1, len(loaded) + 1)]
    replica.check_caught_up()


def test_an_empty_table_has_a_replica_at_once(replica: Replica) -> None:
    replica.create()
    assert replica.follow().epochs == 1
    assert [f.name for f in replica.lake.schema(replica.target).fields] == ["id", "v", "n"]
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.sql("INSERT INTO T VALUES (2, 'b', 2)")
    assert replica.follow().epochs == 2
    assert replica.check_caught_up() == 3


@pytest.mark.parametrize("start", ["latest", "snapshot", "timestamp"])
def test_only_what_changes_from_then_on(replica: Replica, start: str) -> None:
    replica.create(mode=COPY_ON_WRITE)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    (first,) = replica.history()
    committed = replica.spark.sql(f"SELECT committed_at FROM {replica.source}.snapshots").first()[0]
    told = {"latest": "latest", "snapshot": {"snapshot": first}, "timestamp": {"timestamp": str(committed.astimezone(UTC))}}
    if start == "latest":
        assert replica.follow({"start": "latest"}).epochs == 1
    replica.sql("UPDATE T SET v = 'changed' WHERE id = 2")
    replica.sql("INSERT INTO T VALUES (3, 'c', 3)")
    replica.follow({"start": told[start]})
    assert sorted((row["id"], row["v"]) for row in replica.lake.rows(replica.target)) == [(2, "changed"), (3, "c")]
    assert replica.epochs()[0][1]["snapshot"] == first


def test_a_start_that_is_not_there(replica: Replica) -> None:
    replica.create()
    with pytest.raises(Overcompacted, match=r"snapshot 12 of .* is not there: the table has none"):
        replica.follow({"start": {"snapshot": 12}})
    early = datetime(2001, 1, 1, tzinfo=UTC).isoformat()
    with pytest.raises(Overcompacted, match="had no snapshot at 2001-01-01"):
        replica.follow({"start": {"timestamp": early}})


def test_a_source_that_is_not_there(replica: Replica) -> None:
    with pytest.raises(ConfigError, match=f"table {replica.source} does not exist"):
        replica.follow()


# ── keys and modes ─────────────────────────────────────────────────────────────────────────
def test_an_upsert_needs_identifier_fields_or_keys(replica: Replica) -> None:
    replica.create(identifier=None)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    with pytest.raises(ConfigError, match="has no identifier fields, and no keys are named") as refused:
        replica.follow(mode="upsert")
    assert f"ALTER TABLE {replica.source} SET IDENTIFIER FIELDS" in refused.value.next_step
    replica.follow(keys=["id"])
    replica.sql("DELETE FROM T WHERE id = 1")
    replica.follow(keys=["id"])
    assert replica.check_caught_up() == 2


def test_a_member_of_a_struct_is_no_key(replica: Replica) -> None:
    replica.create(columns="id bigint, s struct<id: bigint NOT NULL> NOT NULL", identifier="s.id")
    replica.sql("INSERT INTO T VALUES (1, named_struct('id', 1)), (1, named_struct('id', 2))")
    place = r"replica\.yaml:\d+:\d+: "
    with pytest.raises(
        ConfigError, match=f"{place}.*identifier field s.id of {replica.source} is a member of a struct"
    ) as refused:
        replica.follow()
    assert "`keys: [id]`; or write `mode: append`" in str(refused.value)
    with pytest.raises(ConfigError, match=f"{place}keys: key s.id of {replica.source} is a member of a struct"):
        replica.follow(keys=["s.id"])
    replica.follow(mode="append")
    assert replica.check_caught_up() == 1


def test_appending_stops_at_a_delete(replica: Replica) -> None:
    replica.create(identifier=None)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (1, 'a', 1)")
    replica.follow()
    replica.sql("INSERT INTO T VALUES (2, 'b', 2)")
    replica.follow()
    assert replica.check_caught_up() == 2
    replica.sql("DELETE FROM T WHERE id = 2")
    with pytest.raises(Stopped, match=r"a delete .* but the mode is append"):
        replica.follow()


def test_several_tables_each_with_its_own_cursor(replica: Replica, lake: Lake) -> None:
    other = Replica(lake, f"{replica.source}_other").create(version=2, mode=COPY_ON_WRITE)
    replica.create()
    for number in range(3):
        replica.sql(f"INSERT INTO T VALUES ({number}, 'a', 1)")
    other.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    tables = {each.source: {"sink": {"iceberg": {"table": f"{lake_of(each)}.{{table}}_replica"}}} for each in (replica, other)}
    pipeline = lake.pipeline("replica", source={"iceberg": {}}, tables=tables)
    lake.run(pipeline)
    other.sql("UPDATE T SET v = 'changed' WHERE id = 1")
    replica.sql("DELETE FROM T WHERE id = 1")
    result = lake.run(pipeline)
    assert {event.target for event in result.published} == {replica.target, other.target}
    assert {target: str(frontier) for target, frontier in result.frontiers.items()} == {
        replica.target: "4.0000000001",
        other.target: "2.0000000001",
    }
    assert (replica.check_caught_up(), other.check_caught_up()) == (2, 2)


def test_of_several_tables_the_one_that_lost_its_place_is_named(replica: Replica, lake: Lake) -> None:
    other = Replica(lake, f"{replica.source}_other")
    for each in (replica, other):
        each.create(mode=COPY_ON_WRITE)
        each.sql("INSERT INTO T VALUES (1, 'a', 1)")
    tables = {each.source: {"sink": {"iceberg": {"table": f"{lake_of(each)}.{{table}}_replica"}}} for each in (replica, other)}
    pipeline = lake.pipeline("replica", source={"iceberg": {}}, tables=tables)
    lake.run(pipeline)
    assert [each.tag() for each in (replica, other)] == [each.refs()["main"] for each in (replica, other)]
    (tag,) = [name for name in other.refs() if name != "main"]
    other.sql(f"ALTER TABLE T DROP TAG `{tag}`")
    for each in (replica, other):
        each.sql("UPDATE T SET v = 'b'")
        expire(each)
    with pytest.raises(Overcompacted, match=f"{other.source} .*which has expired"):
        lake.run(pipeline)
    # By itself the first one goes on: its place was kept.
    lake.run(lake.pipeline("replica", source={"iceberg": {}}, tables={replica.source: tables[replica.source]}))
    assert replica.check_caught_up() == 2


def lake_of(replica: Replica) -> str:
    return replica.source.rpartition(".")[0]


# ── what keeps the place ───────────────────────────────────────────────────────────────────
def test_a_tag_keeps_the_place_and_moves(replica: Replica) -> None:
    replica.create(mode=COPY_ON_WRITE)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    replica.follow()
    (first,) = replica.history()
    assert replica.tag() == first
    for number in range(3):
        replica.sql(f"UPDATE T SET n = {number} WHERE id = 1")
    replica.sql("DELETE FROM T WHERE id = 2")
    expire(replica)
    assert first in replica.refs().values()
    # What is between has expired: the difference comes in one step.
    assert replica.follow().epochs == 1
    assert replica.tag() == replica.refs()["main"]
    assert replica.rows(replica.target, replica.epochs()[-1][0]) == replica.rows(replica.source, replica.refs()["main"])


@pytest.mark.parametrize("moment", ["before it looks", "between its look and its commit"])
def test_an_overtaken_run_does_not_move_the_tag_back(replica: Replica, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """What its successor has yet to read could expire: the tag alone keeps it."""
    replica.create(mode=COPY_ON_WRITE)
    for number in range(3):
        replica.sql(f"INSERT INTO T VALUES ({number}, 'a', 1)")
    first, second, third = replica.history()
    zombie, successor = (FollowedTable(replica.spark, replica.source, {}) for _ in range(2))
    zombie.keep("place", first)

    def overtake() -> None:
        successor.keep("place", third)
        replica.sql("INSERT INTO T VALUES (7, 'later', 1)")

    if moment == "before it looks":
        overtake()
    else:
        with_tag = zombie._gateway.with_tag

        def come_between(*told: Any) -> Any:
            monkeypatch.undo()
            made = with_tag(*told)
            overtake()
            return made

        monkeypatch.setattr(zombie._gateway, "with_tag", come_between)
    assert not zombie.keep("place", second)
    assert replica.refs()["place"] == third
    assert len(replica.history()) == 4


@pytest.mark.parametrize("version", [1, 2])
def test_a_tag_goes_forward_whatever_the_format_and_whatever_expired_between(replica: Replica, version: int) -> None:
    """Snapshots of format 1 have no number."""
    replica.spark.sql(f"CREATE TABLE {replica.source} (id bigint) USING iceberg TBLPROPERTIES ('format-version'='{version}')")
    for number in range(4):
        replica.sql(f"INSERT INTO T VALUES ({number})")
    first, second, third, last = replica.history()
    table = FollowedTable(replica.spark, replica.source, {})
    for place in (first, second, third):
        assert table.keep("place", place)
        assert replica.refs()["place"] == place
    assert not table.keep("place", second)
    assert replica.refs()["place"] == third
    expire(replica)
    table.keep("place", last)
    assert replica.refs()["place"] == last


def test_a_branch_that_has_the_tags_name_is_told_and_left_alone(replica: Replica) -> None:
    replica.create()
    for number in range(2):
        replica.sql(f"INSERT INTO T VALUES ({number}, 'a', 1)")
    first, second = replica.history()
    replica.sql(f"ALTER TABLE T CREATE BRANCH place AS OF VERSION {first}")
    with pytest.raises(ConfigError, match=f"{replica.source} has a branch place, where the reader's tag is to be"):
        FollowedTable(replica.spark, replica.source, {}).keep("place", second)
    assert replica.refs()["place"] == first


def test_a_source_that_was_replaced_by_an_empty_table_while_the_tag_was_behind(replica: Replica) -> None:
    """A run that is killed before its release leaves the tag where it was."""
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    (first,) = replica.history()
    (tag,) = [name for name in replica.refs() if name != "main"]
    replica.sql("INSERT INTO T VALUES (2, 'b', 2)")
    replica.follow()
    replica.sql(f"ALTER TABLE T CREATE OR REPLACE TAG `{tag}` AS OF VERSION {first}")
    replica.sql("CREATE OR REPLACE TABLE T (id bigint NOT NULL, v string, n int) USING iceberg")
    replica.follow(keys=["id"])
    assert replica.rows(replica.target, replica.epochs()[-1][0]).total() == 0
    replica.sql("INSERT INTO T VALUES (7, 'new', 7)")
    replica.follow(keys=["id"])
    assert replica.check_caught_up() == 4


def test_the_tag_goes_back_with_main(replica: Replica) -> None:
    replica.create(mode=COPY_ON_WRITE)
    for number in range(2):
        replica.sql(f"INSERT INTO T VALUES ({number}, 'a', 1)")
    first, second = replica.history()
    table = FollowedTable(replica.spark, replica.source, {})
    table.keep("place", second)
    replica.spark.sql(f"CALL lake.system.rollback_to_snapshot('{replica.source}', {first})")
    table.keep("place", first)
    assert replica.refs()["place"] == first


def test_a_load_that_was_stopped_goes_on_with_the_state_that_it_began_with(replica: Replica) -> None:
    """Also when all of that state's files were rewritten since, and whatever no tag holds has expired."""
    replica.create(version=2)
    for number in range(12):
        replica.sql(f"INSERT INTO T SELECT id, concat('v', id), 1 FROM range({10 * number}, {10 * number + 10}, 1, 1)")
    begun = replica.refs()["main"]
    stop = Event()
    replica.lake.run(replica.pipeline({"batch": "1kB"}), stop=stop, on_epoch=lambda _: stop.set())
    reached = len(replica.epochs())
    assert [at["loaded"] for _, at in replica.epochs()] == [*range(1, reached + 1)]
    assert replica.tag() == begun
    replica.sql("UPDATE T SET v = 'later' WHERE id % 2 = 0")
    replica.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    replica.sql("DELETE FROM T WHERE id = 5")
    expire(replica)
    assert set(replica.refs().values()) == {begun, replica.refs()["main"]}
    replica.follow({"batch": "1kB"})
    assert [at.get("loaded") for _, at in replica.epochs()] == [*range(1, 12), None, None]
    assert replica.tag() == replica.refs()["main"]
    assert replica.check_caught_up() == 2


def test_an_expired_place_stops_naming_both_snapshots(replica: Replica) -> None:
    replica.create(mode=COPY_ON_WRITE)
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    (first,) = replica.history()
    (tag,) = [name for name in replica.refs() if name != "main"]
    replica.sql(f"ALTER TABLE T DROP TAG `{tag}`")
    replica.sql("UPDATE T SET v = 'b'")
    expire(replica)
    last = replica.refs()["main"]
    with pytest.raises(Overcompacted, match=f"up to snapshot {first}, which has expired: the oldest that is left is {last}"):
        replica.follow()


def test_a_table_made_anew_is_another_source(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    replica.sql("DROP TABLE T PURGE")
    replica.create()
    replica.sql("INSERT INTO T VALUES (5, 'other', 1)")
    with pytest.raises(SourceChanged, match="the target was written from table"):
        replica.follow()


def test_a_source_that_may_not_be_tagged_is_followed_all_the_same(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_table: FollowedTable, _tag: str, _snapshot: int) -> bool:
        raise Stopped("the catalog refused us: Forbidden", "")

    monkeypatch.setattr(FollowedTable, "keep", refused)
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    with capture_logs() as logs:
        replica.follow()
    replica.sql("INSERT INTO T VALUES (2, 'b', 2)")
    replica.follow()
    assert replica.tag() is None
    assert replica.check_caught_up() == 2
    assert any("cannot be tagged" in entry["event"] for entry in logs)


def test_a_position_of_another_kind_stops(replica: Replica) -> None:
    replica.create()
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    replica.follow()
    mark = json.loads(replica.spark.sql(f"SHOW TBLPROPERTIES {replica.target} ('icefront.mark.replica')").first()[1])
    text = json.dumps(mark | {"position": {"resolved": "1.0000000000"}}).replace("'", "")
    replica.spark.sql(f"ALTER TABLE {replica.target} SET TBLPROPERTIES ('icefront.mark.replica'='{text}')")
    with pytest.raises(Stopped, match="is not a position in an Iceberg table"):
        replica.follow()
