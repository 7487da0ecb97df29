"""Bad input: a clear error that says where, and nothing changed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from icefront.core import files
from icefront.core.errors import BadRow, IcefrontError, NewerFormat, NotOurs, Overcompacted, SchemaRefused, SourceChanged, Stopped
from icefront.core.files import NOTE_FORMAT
from icefront.core.timestamps import Timestamp
from icefront.state.store import StateStore
from icefront.testing.feeds import BEGIN
from tests.lakes import Lake, orders, snapshots
from tests.state.staging import staged

pytestmark = pytest.mark.spark
SECOND = 1_000_000_000
DAY = "2026-04-02"


class Scribe:
    """Writes a small feed by hand, good lines and bad ones."""

    def __init__(self, root: Path) -> None:
        self.folder = root / DAY
        self.folder.mkdir(parents=True)
        self.count = 0

    def at(self, second: float) -> Timestamp:
        return Timestamp(BEGIN.wall + round(second * SECOND))

    def data(self, second: float, *lines: str, extension: str = ".ndjson", schema_id: int = 1) -> Path:
        self.count += 1
        name = f"{self.at(second).name()}-56087568dba1e6b8-1-72-{self.count:08x}-orders-{schema_id:x}{extension}"
        path = self.folder / name
        text = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if extension.endswith(".gz") else text)
        return path

    def row(self, second: float, key: int, **columns: Any) -> str:
        cells = {"id": key, "status": '"new"', **columns}
        after = ", ".join(f'"{name}": {value}' for name, value in cells.items())
        return f'{{"after": {{{after}}}, "key": [{key}], "updated": "{self.at(second)}"}}'

    def says(self, line: str, second: float) -> str:
        return line.replace("%s", str(self.at(second)))

    def resolved(self, second: float) -> Path:
        path = self.folder / f"{self.at(second).name()}.RESOLVED"
        path.write_text(f'{{"resolved": "{self.at(second)}"}}')
        return path


@pytest.fixture
def scribe(lake: Lake) -> Scribe:
    scribe = Scribe(lake.feed)
    scribe.data(0, scribe.row(0.5, 1), scribe.row(0.5, 2))
    scribe.resolved(1)
    return scribe


def settings(table: str, **more: Any) -> Any:
    return {**orders(table), "columns": {"id": "bigint", "status": "string"}, **more}


def shown(lake: Lake, table: str) -> tuple[Any, ...]:
    return sorted(map(str, lake.rows(table))), lake.epochs(table), lake.schema(table)


def refuses(lake: Lake, table: str, kind: type[IcefrontError], words: str, **more: Any) -> IcefrontError:
    """Run over the good beginning, then over what `more` describes: the error is clear and nothing changed."""
    break_it: Callable[[], object] = more.pop("break_it")
    pipeline = lake.pipeline(**settings(table, **more))
    lake.run(pipeline)
    before = shown(lake, table)
    break_it()
    with pytest.raises(kind, match=words) as caught:
        lake.run(pipeline)
    assert shown(lake, table) == before
    assert caught.value.next_step, "an error says what to do next"
    return caught.value


def test_a_malformed_line_is_named_by_file_and_line(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(1.1, scribe.row(1.5, 3), scribe.row(1.6, 4), '{"after": {"id": 5, "sta')
        scribe.resolved(2)

    refuses(lake, table, BadRow, r"\.ndjson:3", break_it=break_it)


def test_a_value_of_the_wrong_type_names_column_and_value(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(
            1.1, scribe.row(1.4, 3), scribe.says('{"after": {"id": "seven", "status": "x"}, "key": [7], "updated": "%s"}', 1.5)
        )
        scribe.resolved(2)

    error = refuses(lake, table, BadRow, r"\.ndjson:2", break_it=break_it)
    assert "id" in error.fact
    assert "seven" in error.fact


def test_an_unknown_column_stops_when_the_policy_says_so(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(1.1, scribe.row(1.4, 3), scribe.row(1.5, 4, extra=5))
        scribe.resolved(2)

    refuses(
        lake,
        table,
        SchemaRefused,
        r"\.ndjson:2.*extra.*schema\.add_column is stop",
        break_it=break_it,
        schema={"add_column": "stop"},
    )


def test_an_unknown_column_is_left_out_or_added_as_the_policy_says(lake: Lake, table: str, scribe: Scribe) -> None:
    scribe.data(1.1, scribe.row(1.4, 3), scribe.row(1.5, 4, extra=5))
    scribe.resolved(2)
    lake.run(lake.pipeline(**settings(table, schema={"add_column": "ignore"})))
    assert lake.schema(table).column_names == ["id", "status"]
    assert len(lake.rows(table)) == 4
    other = f"{table}_b"
    lake.run(lake.pipeline("other", **settings(other)))
    assert {r["id"]: r["extra"] for r in lake.rows(other)} == {1: None, 2: None, 3: None, 4: 5}


def test_a_column_that_was_declared_before_it_first_appeared_has_its_declared_type(
    lake: Lake, table: str, scribe: Scribe
) -> None:
    lake.run(lake.pipeline(**settings(table)))
    scribe.data(1.1, scribe.row(1.4, 3, d='"2026-04-02"'))
    scribe.resolved(2)
    lake.run(lake.pipeline(**settings(table, columns={"id": "bigint", "status": "string", "d": "date"})))
    assert {r["id"]: r["d"] for r in lake.rows(table)} == {1: None, 2: None, 3: date(2026, 4, 2)}


def test_a_number_that_asks_for_a_declaration_arrives_once_there_is_one(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(1.1, scribe.row(1.4, 3, d="1.5"), scribe.row(1.5, 4, d="12345678901234567.89"))
        scribe.resolved(2)

    error = refuses(lake, table, BadRow, r"\.ndjson:2: column d: .* is not exact as double", break_it=break_it)
    assert 'columns: {d: "decimal(p,s)"}' in error.next_step
    lake.run(lake.pipeline(**settings(table, columns={"id": "bigint", "status": "string", "d": "decimal(20,2)"})))
    assert {r["id"]: r["d"] for r in lake.rows(table) if r["id"] > 2} == {3: Decimal("1.50"), 4: Decimal("12345678901234567.89")}


def test_a_declaration_that_the_table_contradicts_is_refused_and_changes_nothing(lake: Lake, table: str, scribe: Scribe) -> None:
    lake.run(lake.pipeline(**settings(table)))
    before = shown(lake, table), len(list(snapshots(lake.spark, table)))
    with pytest.raises(SchemaRefused, match=r"column status of .* is string, and `columns` declares status as decimal\(12,4\)"):
        lake.run(lake.pipeline(**settings(table, columns={"id": "bigint", "status": "decimal(12,4)"})))
    assert (shown(lake, table), len(list(snapshots(lake.spark, table)))) == before


def test_a_bad_row_in_the_very_first_epoch_leaves_no_rows_and_once_corrected_all_arrive(
    lake: Lake, table: str, scribe: Scribe
) -> None:
    path = scribe.data(0.2, scribe.row(0.6, 3), '{"after": {"id": 4, "sta')
    pipeline = lake.pipeline(**settings(table))
    with pytest.raises(BadRow, match=r"\.ndjson:2") as caught:
        lake.run(pipeline)
    assert caught.value.next_step
    if lake.spark.catalog.tableExists(table):
        assert (lake.rows(table), lake.epochs(table)) == ([], [])
    path.write_text(scribe.row(0.6, 3) + "\n" + scribe.row(0.6, 4) + "\n")
    lake.run(pipeline)
    assert {r["id"] for r in lake.rows(table)} == {1, 2, 3, 4}
    assert len(lake.epochs(table)) == 1


def test_a_delete_without_a_key_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(1.1, scribe.says('{"after": null, "updated": "%s"}', 1.5))
        scribe.resolved(2)

    refuses(lake, table, BadRow, r"\.ndjson:1.*missing key", break_it=break_it)


def test_a_null_key_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        scribe.data(1.1, scribe.says('{"after": {"id": null, "status": "x"}, "key": [null], "updated": "%s"}', 1.5))
        scribe.resolved(2)

    refuses(lake, table, BadRow, r"\.ndjson:1.*null in key column id", break_it=break_it)


def test_a_huge_row_arrives_whole(lake: Lake, table: str, scribe: Scribe) -> None:
    text = "ä" * 12_000_000
    scribe.data(1.1, scribe.row(1.4, 3), scribe.row(1.5, 4, status=f'"{text}"'))
    scribe.resolved(2)
    lake.run(lake.pipeline(**settings(table)))
    lengths = lake.spark.sql(f"SELECT id, length(status) FROM {table} ORDER BY id").collect()
    assert [tuple(r) for r in lengths] == [(1, 3), (2, 3), (3, 3), (4, 12_000_000)]


def test_a_truncated_gzip_file_is_named(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        path = scribe.data(1.1, *(scribe.row(1.5, k) for k in range(3, 500)), extension=".ndjson.gz")
        path.write_bytes(path.read_bytes()[:-20])
        scribe.resolved(2)

    refuses(lake, table, BadRow, r"\.ndjson\.gz", break_it=break_it)


def test_a_feed_whose_resolved_timestamps_went_back_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    scribe.data(1.1, scribe.row(1.5, 3))
    last = scribe.resolved(2)
    both = rf"newest resolved timestamp .* is {scribe.at(1)}, the target has changes up to {scribe.at(2)}"
    refuses(lake, table, Stopped, both, break_it=last.unlink)


def test_a_feed_whose_next_files_were_cleaned_away_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        for path in lake.feed.rglob("*.*"):
            if path.is_file():
                path.unlink()
        scribe.data(2.1, scribe.row(2.5, 3))
        scribe.resolved(3)

    both = f"frontier is {scribe.at(1).next()}, the source can only be read from {scribe.at(3).next()}"
    refuses(lake, table, Overcompacted, both, break_it=break_it)


def test_a_deleted_file_that_still_had_changes_to_come_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    path = scribe.data(0.2, scribe.row(0.6, 3), scribe.row(1.5, 4))

    def break_it() -> None:
        path.unlink()
        scribe.data(1.1, scribe.row(1.6, 5))
        scribe.resolved(2)

    refuses(lake, table, Overcompacted, "held changes after", break_it=break_it)


def test_whichever_file_is_deleted_that_still_had_changes_to_come_it_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    scribe.data(0.2, scribe.row(0.6, 3), scribe.row(1.5, 4))
    path = scribe.data(0.3, scribe.row(0.6, 5), scribe.row(1.5, 6))

    def break_it() -> None:
        path.unlink()
        scribe.resolved(2)

    refuses(lake, table, Overcompacted, "1 of 2 files .*held changes after", break_it=break_it)


def test_a_feed_that_was_emptied_or_unmounted_is_not_caught_up(lake: Lake, table: str, scribe: Scribe) -> None:
    def break_it() -> None:
        for path in [path for path in lake.feed.rglob("*") if path.is_file()]:
            path.unlink()

    error = refuses(lake, table, Overcompacted, "shows no RESOLVED file", break_it=break_it)
    assert "mounted" in error.next_step


def test_another_feed_under_the_same_pipeline_stops(lake: Lake, table: str, scribe: Scribe) -> None:
    lake.run(lake.pipeline(**settings(table)))
    moved = lake.folder / "moved"
    lake.feed.rename(moved)
    with pytest.raises(SourceChanged, match="moved"):
        lake.run(lake.pipeline(**settings(table), source={"changefeed": {"path": "moved/"}}))


@pytest.mark.parametrize(
    ("begins", "kind", "words"),
    [(0.0, Stopped, "newest resolved timestamp"), (5.0, Overcompacted, "can only be read from")],
    ids=["at its own beginning", "later"],
)
def test_a_feed_that_was_wiped_and_begun_anew_in_the_same_folder_stops(
    lake: Lake, table: str, scribe: Scribe, begins: float, kind: type[Stopped], words: str
) -> None:
    """As when the source table was dropped and made anew, and its new feed took the old one's place."""
    scribe.resolved(2)

    def break_it() -> None:
        for path in [path for path in lake.feed.rglob("*") if path.is_file()]:
            path.unlink()
        scribe.data(begins + 0.1, scribe.row(begins + 0.3, 7))
        scribe.resolved(begins + 0.5)

    refuses(lake, table, kind, words, break_it=break_it)


def test_a_feed_that_is_not_there_is_a_configuration_error(lake: Lake, table: str) -> None:
    with pytest.raises(IcefrontError, match="nowhere") as caught:
        lake.run(lake.pipeline(**settings(table), source={"changefeed": {"path": "nowhere/"}}))
    assert caught.value.exit_code in {2, 3}


def test_keys_that_differ_from_the_feeds_own_are_refused(lake: Lake, table: str, scribe: Scribe) -> None:
    with pytest.raises(IcefrontError, match="keys are status"):
        lake.run(lake.pipeline(**settings(table, keys=["status"])))


def test_a_table_with_rows_and_no_mark_is_not_ours(lake: Lake, table: str, scribe: Scribe) -> None:
    lake.spark.sql(f"CREATE TABLE {table} (id BIGINT, status STRING) USING iceberg")
    lake.spark.sql(f"INSERT INTO {table} VALUES (1, 'theirs'), (9, 'theirs')")
    pipeline = lake.pipeline(**settings(table))
    with pytest.raises(NotOurs, match="--adopt"):
        lake.run(pipeline)
    assert len(lake.rows(table)) == 2
    lake.run(pipeline, adopt=True)
    assert {r["id"]: r["status"] for r in lake.rows(table)} == {1: "new", 2: "new", 9: "theirs"}


def test_a_note_of_a_newer_icefront_stops_the_run(
    lake: Lake, table: str, scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_it() -> None:
        with StateStore(lake.folder / "state.db") as notes, monkeypatch.context() as newer:
            newer.setattr(files, "NOTE_FORMAT", NOTE_FORMAT + 1)
            notes.stage(staged(1, target=table))

    refuses(lake, table, NewerFormat, f"format {NOTE_FORMAT + 1}, this Icefront reads up to {NOTE_FORMAT}", break_it=break_it)


def test_a_table_that_somebody_recreated_with_rows_is_not_ours(lake: Lake, table: str, scribe: Scribe) -> None:
    pipeline = lake.pipeline(**settings(table))
    lake.run(pipeline)
    lake.spark.sql(f"DROP TABLE {table}")
    lake.spark.sql(f"CREATE TABLE {table} (id BIGINT, status STRING) USING iceberg")
    lake.spark.sql(f"INSERT INTO {table} VALUES (5, 'theirs')")
    with pytest.raises(NotOurs):
        lake.run(pipeline)


def test_deleting_the_state_between_runs_loses_nothing(lake: Lake, table: str, scribe: Scribe) -> None:
    pipeline = lake.pipeline(**settings(table))
    lake.run(pipeline)
    for path in lake.folder.glob("state.db*"):
        path.unlink()
    scribe.data(1.1, scribe.row(1.5, 3))
    scribe.resolved(2)
    assert lake.run(pipeline).epochs == 1
    assert sorted(r["id"] for r in lake.rows(table)) == [1, 2, 3]


def test_append_mode_keeps_every_change_and_stops_at_a_delete(lake: Lake, table: str, scribe: Scribe) -> None:
    scribe.data(1.1, scribe.row(1.5, 1), scribe.row(1.6, 1))
    scribe.resolved(2)
    append = {"mode": "append", "keys": []}

    def break_it() -> None:
        scribe.data(2.1, scribe.says('{"after": null, "key": [1], "updated": "%s"}', 2.5))
        scribe.resolved(3)

    refuses(lake, table, Stopped, "delete", break_it=break_it, **append)
    assert sorted(r["id"] for r in lake.rows(table)) == [1, 1, 1, 2]
