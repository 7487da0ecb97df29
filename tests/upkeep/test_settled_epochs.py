"""`write: {publish: settled}`: no snapshot of the table ever has an equality delete, and each holds what the feed says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from structlog.testing import capture_logs

from icefront.changelog import changes
from icefront.core.errors import ConnectionFailed, FilesGone, IcefrontError, Stopped
from icefront.core.files import FileKind
from icefront.core.protocol import FencedOff, Published
from icefront.iceberg.java import JavaTable
from icefront.iceberg.live import DeleteKind
from icefront.iceberg.view import View
from icefront.proof.oracle import compare, replay
from icefront.spark import settle as settle_job
from icefront.testing.feeds import ORDERS, Feed
from icefront.upkeep.compact import compact
from tests.lakes import Lake, orders
from tests.sinks.test_iceberg_sink import claim, make, publish, stage, state
from tests.upkeep.test_settle import deletes, rewrite

pytestmark = pytest.mark.spark
SETTLED: dict[str, Any] = {"write": {"publish": "settled"}}


def summary(metadata: TableMetadata, number: int) -> Mapping[str, str]:
    snapshot = metadata.snapshot_by_id(number)
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


def check_by_pyiceberg(lake: Lake, table: str) -> int:
    """Compare every epoch with the feed, by an engine that refuses equality deletes."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake.catalog}/catalog.db")
    found = StaticTable.from_metadata(catalog.load_table(table.partition(".")[2]).metadata_location)
    epochs = lake.epochs(table)
    for snapshot, frontier in epochs:
        assert summary(found.metadata, snapshot)["total-equality-deletes"] == "0"
        rows = found.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        assert not compare(replay(lake.feed, "orders", ["id"], frontier), rows, lake.schema(table), ["id"])
    return len(epochs)


@pytest.mark.parametrize(
    ("version", "partition_by"),
    [
        (2, []),
        pytest.param(2, ["bucket(4, id)", "status"], marks=pytest.mark.long),
        pytest.param(3, [], marks=pytest.mark.long),
        (3, ["bucket(4, id)", "status"]),
    ],
)
def test_every_snapshot_is_readable_without_equality_deletes(
    lake: Lake, table: str, version: int, partition_by: list[str]
) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=41 + version, deletes=0.3, repeats=0.2, beyond=0.3)
    feed.scan(50)
    for _ in range(4):
        feed.advance(60)
    iceberg = {"partition_by": partition_by, "format_version": version}
    pipeline = lake.pipeline(**orders(table, iceberg=iceberg, **SETTLED))
    lake.run(pipeline)
    feed.restart()
    feed.advance(60)
    lake.run(pipeline)
    assert check_by_pyiceberg(lake, table) == lake.check_every_snapshot(table, "orders") == 6
    kinds = deletes(lake.spark, table)
    assert set(kinds) == {DeleteKind.VECTOR if version == 3 else DeleteKind.POSITION}
    operations = Counter(row[0] for row in lake.spark.sql(f"SELECT operation FROM {table}.snapshots").collect())
    assert operations["overwrite"] == 5, "one snapshot each, and no other commits"


def test_what_was_published_immediately_is_settled_with_the_next_epoch(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=45, deletes=0.3)
    feed.scan(40)
    feed.advance(60)
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table)))
    assert deletes(lake.spark, table)[DeleteKind.EQUALITY] == 2
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table, **SETTLED)))
    assert set(deletes(lake.spark, table)) == {DeleteKind.VECTOR}
    assert lake.check_every_snapshot(table, "orders") == 4
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table)))
    assert deletes(lake.spark, table)[DeleteKind.EQUALITY] == 1, "and back again"
    assert lake.check_every_snapshot(table, "orders") == 5


def test_a_large_backlog_is_settled_with_several_epochs(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hold all keys that are looked up together: the oldest come first, and no epoch adds to them."""
    feed = Feed(lake.feed, tables=[ORDERS], seed=49, deletes=0.3)
    feed.scan(40)
    for _ in range(3):
        feed.advance(60)
    lake.run(lake.pipeline(**orders(table)))
    monkeypatch.setattr("icefront.iceberg.settling.MOST_KEYS", 1)
    left = [deletes(lake.spark, table)[DeleteKind.EQUALITY]]
    for _ in range(3):
        feed.advance(60)
        lake.run(lake.pipeline(**orders(table, **SETTLED)))
        left.append(deletes(lake.spark, table)[DeleteKind.EQUALITY])
    assert left == [3, 2, 1, 0]
    assert lake.check_every_snapshot(table, "orders") == 7


def test_columns_that_appear_and_partitions_that_change(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=46, deletes=0.2)
    feed.scan(30)
    feed.advance(40)
    lake.run(lake.pipeline(**orders(table, **SETTLED)))
    feed.alter("orders")
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table, iceberg={"partition_by": ["bucket(2, id)"]}, **SETTLED)))
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table, iceberg={"partition_by": []}, **SETTLED)))
    assert check_by_pyiceberg(lake, table) == lake.check_every_snapshot(table, "orders") == 4


def test_a_table_that_becomes_format_3_shows_no_deleted_row_again(lake: Lake, table: str) -> None:
    """Readers pass over position deletes of a file once it has a vector."""
    feed = Feed(lake.feed, tables=[ORDERS], seed=47, deletes=0.4)
    feed.scan(60)
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table, iceberg={"format_version": 2}, **SETTLED)))
    lake.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    feed.advance(60)
    lake.run(lake.pipeline(**orders(table, **SETTLED)))
    assert check_by_pyiceberg(lake, table) == lake.check_every_snapshot(table, "orders") == 3


def test_changes_of_settled_epochs_are_those_of_others(lake: Lake, table: str) -> None:
    feed = Feed(lake.feed, tables=[ORDERS], seed=48, deletes=0.3)
    feed.scan(40)
    feed.advance(60)
    feed.advance(60)
    for name, write in ((table, SETTLED), (f"{table}_b", {})):
        settings = orders(name, **write)
        lake.run(lake.pipeline(name.rpartition(".")[2], **settings))

    def told(name: str) -> Counter[Any]:
        ours = {"_commit_snapshot_id", "_commit_timestamp"}
        found = changes(lake.spark, name, None, keys=["id"])
        return Counter(tuple(row) for row in found.select([c for c in found.columns if c not in ours]).collect())

    assert told(table) == told(f"{table}_b")


# ── beside others ──────────────────────────────────────────────────────────────────────────
class Looks:
    """Counts the files that are looked into, and lets something happen right after the first look, or right before it."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        happens: Callable[[], object] = lambda: None,
        *,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.files: list[int] = []
        find_dead = settle_job.find_dead

        def looked(spark: Any, work: Any, table: str, files: Any) -> Any:
            self.files.append(len(files))
            first = len(self.files) == 1
            if first:
                before()
            found = find_dead(spark, work, table, files)
            if first:
                happens()
            return found

        patch.setattr(settle_job, "find_dead", looked)


def test_rows_that_others_add_meanwhile_are_found_too(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An equality delete would reach them: they came before the epoch."""
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a", 3: "a"})
    looks = Looks(monkeypatch, lambda: spark.sql(f"INSERT INTO {table} VALUES (1, 'theirs'), (7, 'theirs')"))
    second = sink.publish(stage(sink, mark, 20, {1: "b", 2: None}), mark)
    assert isinstance(second, Published)
    assert second.attempts == 2
    assert looks.files == [1, 1], "what was found before is not looked for again"
    assert state(spark, table) == {1: "b", 3: "a", 7: "theirs"}


def test_a_compaction_between_makes_it_look_again(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(spark, table, publish="settled")
    mark = claim(sink)
    for number in (1, 2, 3):
        mark = publish(sink, mark, 10 * number, {number: "a", 9: f"a{number}"})
    looks = Looks(monkeypatch, lambda: compact(spark, table, everything=True))
    publish(sink, mark, 40, {1: "b", 9: "b"})
    assert len(looks.files) == 2
    assert state(spark, table) == {1: "b", 2: "a", 3: "a", 9: "b"}
    assert set(deletes(spark, table)) == {DeleteKind.VECTOR}


def test_a_foreign_delete_between_is_kept(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a", 3: "a"})
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    Looks(monkeypatch, lambda: spark.sql(f"DELETE FROM {table} WHERE id = 3"))
    publish(sink, mark, 20, {1: "b"})
    assert state(spark, table) == {1: "b", 2: "a"}


def test_a_writer_that_was_superseded_while_it_looked_changes_nothing(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    successor = make(spark, table, publish="settled")
    late = stage(sink, mark, 20, {1: "zombie"})
    Looks(monkeypatch, lambda: claim(successor))
    assert isinstance(sink.publish(late, mark), FencedOff)
    assert state(spark, table) == {1: "a", 2: "a"}


def by_planning(patch: pytest.MonkeyPatch, happens: Callable[[], object]) -> list[View]:
    """Let something happen once an attempt has begun, and before it reads which files there are. Return what attempts began with."""
    begun: list[View] = []

    def begin(*told: Any) -> View:
        begun.append(view := View.at(*told))
        if len(begun) == 1:
            happens()
        return view

    patch.setattr(settle_job, "View", SimpleNamespace(at=begin))
    return begun


@pytest.mark.parametrize("by", ["driver", "workers"])
@pytest.mark.parametrize(("overtaken", "patience"), [(False, 60.0), (True, 60.0), (True, 0.0)])
def test_files_that_are_gone_when_they_are_looked_into_are_looked_for_anew(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch, by: str, patience: float, *, overtaken: bool
) -> None:
    """Others have rewritten them since the attempt was planned. That is no failure, of which none is allowed here.

    However long the look took: who has been overtaken meanwhile is told so.
    """
    sink = make(spark, table, publish="settled", retries=0, patience=patience)
    successor = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    mark = publish(sink, mark, 20, {1: "b"})
    late = stage(sink, mark, 30, {1: "c"})

    def others() -> None:
        rewrite(spark, table)
        if overtaken:
            claim(successor)

    begun = Looks(monkeypatch, before=others).files if by == "workers" else by_planning(monkeypatch, others)
    outcome = sink.publish(late, mark)
    if overtaken:
        assert isinstance(outcome, FencedOff)
        assert (len(begun), state(spark, table)) == (1, {1: "b", 2: "a"})
    else:
        assert isinstance(outcome, Published)
        assert (len(begun), state(spark, table)) == (2, {1: "c", 2: "a"})


def test_a_catalog_that_is_away_when_files_are_gone_is_asked_again(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(spark, table, publish="settled", retries=0)
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    mark = publish(sink, mark, 20, {1: "b"})
    late = stage(sink, mark, 30, {1: "c"})
    refresh, asked = JavaTable.refresh, list[int]()

    def away_at_first(live: JavaTable) -> None:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionFailed("the catalog did not answer")
        refresh(live)

    def others() -> None:
        rewrite(spark, table)
        monkeypatch.setattr(JavaTable, "refresh", away_at_first)

    begun = Looks(monkeypatch, before=others).files
    with capture_logs() as logs:
        assert isinstance(sink.publish(late, mark), Published)
    assert asked
    (told,) = [entry["since"] for entry in logs if entry["event"] == "a commit could not be put together; looking anew"]
    assert told == "the catalog does not say whether the table has changed: the catalog did not answer"
    assert (len(begun), state(spark, table)) == (2, {1: "c", 2: "a"})


def test_a_writer_that_was_superseded_does_not_look_at_all(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor's run may have removed what it has staged: that is no file that the table lost."""
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    late = stage(sink, mark, 20, {1: "zombie"})
    claim(make(spark, table, publish="settled"))
    for file in late.files:
        Path(urlsplit(file.path).path).unlink()
    looks = Looks(monkeypatch)
    assert isinstance(sink.publish(late, mark), FencedOff)
    assert looks.files == []
    assert state(spark, table) == {1: "a", 2: "a"}


def causes(error: BaseException) -> list[BaseException]:
    """What an error came from, back to the first; a traceback shows just that."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        assert cause not in found, "causes go round in a circle"
        found.append(cause)
    return found


def ruin(file: Path) -> None:
    file.write_bytes(b"no Parquet file")


@pytest.mark.parametrize(
    ("harm", "said", "cause"),
    [
        (Path.unlink, r"^a file that .* names is not there: .*\.parquet", FilesGone),
        (ruin, "^Spark could not look for deleted rows", Py4JJavaError),
    ],
)
def test_what_cannot_be_looked_into_although_nobody_has_changed_the_table_stops(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], said: str, cause: type[Exception]
) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    data = [Path(urlsplit(row[0]).path) for row in spark.sql(f"SELECT file_path FROM {table}.files").collect()]

    def lose() -> None:
        for path in data:
            harm(path)

    looked = Looks(monkeypatch, before=lose)
    with pytest.raises(IcefrontError, match=said) as stopped:
        sink.publish(stage(sink, mark, 20, {1: "b"}), mark)
    assert len(looked.files) == 1
    assert stopped.value.exit_code == 5
    assert isinstance(causes(stopped.value)[-1], cause)


def test_a_file_that_was_staged_and_is_not_there_is_one_of_the_epoch_and_not_of_the_table(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    staged = stage(sink, mark, 20, {1: "b"})
    (keys,) = [Path(urlsplit(file.path).path) for file in staged.files if file.kind is FileKind.EQUALITY_DELETES]
    looked = Looks(monkeypatch, before=keys.unlink)
    with pytest.raises(Stopped, match=rf"^a file that was staged for .* is not there: .*{keys.name}") as stopped:
        sink.publish(staged, mark)
    assert "the epoch is written anew" in str(stopped.value)
    assert looked.files == [1]
    assert not sink.present(staged)
    publish(sink, mark, 20, {1: "b"})
    assert state(spark, table) == {1: "b", 2: "a"}


def test_a_lost_answer_publishes_once(spark: Any, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a", 2: "a"})
    swap = JavaTable._swap
    lost: list[int] = []

    def lose_the_first(live: JavaTable, transaction: Any) -> None:
        swap(live, transaction)
        if not lost:
            lost.append(1)
            live.gateway.mapper.readTree("{")  # any exception of Java's

    monkeypatch.setattr(JavaTable, "_swap", lose_the_first)
    publish(sink, mark, 20, {1: "b", 2: None})
    assert lost
    assert state(spark, table) == {1: "b"}
    epochs = [row[0] for row in spark.sql(f"SELECT summary['icefront.lower'] FROM {table}.snapshots").collect()]
    assert len([lower for lower in epochs if lower]) == 2


def test_deletes_of_nothing_add_nothing(spark: Any, table: str) -> None:
    sink = make(spark, table, publish="settled")
    mark = publish(sink, claim(sink), 10, {1: "a"})
    staged = stage(sink, mark, 20, {5: None})
    assert {file.kind for file in staged.files} == set(FileKind)
    done = sink.publish(staged, mark)
    assert isinstance(done, Published)
    assert done.mark.frontier == staged.epoch.upper
    assert summary(View.of(spark, table).metadata, done.snapshot)["total-data-files"] == "1"
    assert not deletes(spark, table)
