"""The checker finds each thing that must not be: in tables made up for it, and in nothing that is as it should be."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from icefront.proof.checker import FOREIGN, FOREIGN_ROWS, Checker, Kind, Subject, Violation, by_datafusion, second_engine
from icefront.proof.oracle import replay
from tests.proof.test_logs import said

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
NAME = "202604022058072107140000000000000-56087568dba1e6b8-1-72-{:08x}-orders-1.ndjson"
ORIGIN = "0.0000000000"


class Story:
    """A pipeline's table as its writer would make it, told by hand: each epoch brings one new row, which the feed says too."""

    def __init__(self, folder: Path) -> None:
        self.feed = folder / "feed"
        self.feed.mkdir()
        self.state = folder / "state.db"
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        self.catalog.create_namespace("t")
        self.table: Table = self.catalog.create_table("t.orders", COLUMNS)
        self.frontier = ORIGIN
        self.marked = {"writer": "one#1", "epoch": str(uuid4())}
        self.said = 0
        subject = Subject("orders", ("id",), self.look, self.read, lambda at: replay(self.feed, "orders", ["id"], at), self.state)
        self.checker = Checker(subject)

    def load(self) -> Table:
        return self.catalog.load_table("t.orders")

    def look(self) -> Table | None:
        return self.load() if self.catalog.table_exists("t.orders") else None

    def read(self, snapshot: int) -> Iterable[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.load().scan(snapshot_id=snapshot).to_arrow().to_pylist()
        return rows

    def say(self, value: str = "x") -> int:
        """Let the feed say one more row, at a timestamp that is its number."""
        self.said += 1
        line = {"after": {"id": self.said, "v": value}, "key": [self.said], "updated": f"{self.said}.0000000000"}
        (self.feed / NAME.format(self.said)).write_text(json.dumps(line))
        return self.said

    def epoch(
        self,
        *,
        frontier: str | None = None,
        lower: str | None = None,
        epoch_id: str = "",
        value: str = "x",
        writer: str = "one#1",
    ) -> str:
        """Say a row and publish it; what is given differs from what a right writer would do."""
        row = self.say()
        upper = frontier or f"{row}.0000000001"
        epoch_id = epoch_id or str(uuid4())
        summary = self.summary(upper, writer) | {"icefront.epoch-id": epoch_id, "icefront.lower": lower or self.frontier}
        self.commit([row], value, summary)
        self.mark(upper, writer=writer, epoch=epoch_id)
        return epoch_id

    def claim(self, writer: str, **entries: str) -> None:
        claimed = {"icefront.claim": "true", "icefront.epoch-id": self.marked["epoch"]}
        claimed |= {f"icefront.{name}": value for name, value in entries.items()}
        self.commit([], "", self.summary(self.frontier, writer) | claimed)
        self.mark(self.frontier, writer=writer)

    def summary(self, frontier: str, writer: str = "one#1") -> dict[str, str]:
        return {"icefront.pipeline": "orders", "icefront.frontier": frontier, "icefront.writer": writer}

    def commit(self, ids: list[int], value: str | None, summary: dict[str, str]) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [value] * len(ids)}, schema=COLUMNS)
        self.load().append(rows, snapshot_properties=summary)

    def mark(self, frontier: str, **marked: str) -> None:
        """Write the mark; what is not given is as it was."""
        self.frontier = frontier
        self.marked |= marked
        with self.load().transaction() as transaction:
            transaction.set_properties({"icefront.mark.orders": json.dumps({"frontier": frontier, **self.marked})})

    def foreign(self, key: int, named: int | None = None, value: str | None = None) -> None:
        self.commit([key], value, {FOREIGN_ROWS: str(named or key)})

    def stage(self, path: Path, size: int, upper: str = "9.0000000000") -> None:
        self.note(
            json.dumps({"lower": "0.0000000000", "upper": upper, "files": [json.dumps({"path": f"file://{path}", "size": size})]})
        )

    def note(self, text: str) -> None:
        with sqlite3.connect(self.state) as database:
            database.execute("CREATE TABLE IF NOT EXISTS notes (note TEXT)")
            database.execute("DELETE FROM notes")
            database.execute("INSERT INTO notes VALUES (?)", (text,))

    def files(self) -> list[Path]:
        found = self.load().inspect.files().to_pylist()
        return sorted(Path(urlsplit(row["file_path"]).path) for row in found)

    def kinds(self, **given: Any) -> list[str]:
        return [str(violation.kind) for violation in self.checker.check(**given)]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


# ── as it should be ────────────────────────────────────────────────────────────────────────
def test_upkeep_is_looked_at_like_an_epoch(story: Story):
    story.epoch()
    story.commit([], "x", {"icefront.upkeep": "settle"})
    assert story.kinds() == []
    assert story.checker.snapshots == 2
    story.load().delete("id = 1", snapshot_properties={"icefront.upkeep": "settle"})
    assert story.kinds() == [Kind.ROWS], "upkeep that loses a row"


def test_another_engine_with_nothing_to_compare_has_not_compared(story: Story):
    assert [v.kind for v in story.checker.check_with("another", lambda _: [])] == [Kind.UNREADABLE]


def test_a_table_that_is_right_has_no_violations_and_each_snapshot_is_compared_once(story: Story):
    for _ in range(3):
        story.epoch()
        assert story.kinds(released=[story.frontier]) == []
    assert (story.checker.snapshots, story.checker.rows, len(story.checker.epochs)) == (3, 1 + 2 + 3, 3)
    assert story.kinds() == []
    assert story.checker.snapshots == 3


def test_claims_foreign_commits_and_expired_history_are_no_violations(story: Story):
    story.epoch()
    story.claim("one#1")
    story.foreign(FOREIGN + 1)
    story.epoch()
    assert story.kinds() == []
    story.load().maintenance.expire_snapshots().by_id(story.load().history()[0].snapshot_id).commit()
    story.epoch()
    assert story.kinds() == []
    assert story.checker.snapshots == 3


def test_what_was_found_is_told_once(story: Story):
    story.epoch(value="wrong")
    assert story.kinds() == [Kind.ROWS]
    assert story.kinds() == []
    assert len(story.checker.violations) == 1


# ── rows ───────────────────────────────────────────────────────────────────────────────────
def test_a_value_that_the_feed_does_not_say_is_found_with_both_sides(story: Story):
    story.epoch(value="wrong")
    (found,) = story.checker.check()
    assert found.kind == Kind.ROWS
    assert "1 differing" in found.found
    assert "expected='x', actual='wrong'" in found.found
    assert story.frontier in found.where


def test_a_lost_row_and_a_doubled_row_are_found(story: Story):
    story.say()
    story.epoch()
    (missing,) = story.checker.check()
    assert "1 missing" in missing.found
    story.commit([2], "x", {})
    (doubled,) = story.checker.check()
    assert "1 missing, 1 repeated" in doubled.found, "while another program's snapshot is the newest"
    story.epoch()
    (doubled,) = story.checker.check()
    assert "1 missing, 1 repeated" in doubled.found


def test_an_older_snapshot_is_compared_at_its_own_frontier(story: Story):
    story.epoch(value="wrong")
    story.epoch()
    found = story.checker.check()
    assert [violation.kind for violation in found] == [Kind.ROWS, Kind.ROWS]
    assert "at 1.0000000001" in found[0].where


@pytest.mark.parametrize("named", [FOREIGN + 1, FOREIGN + 2])
def test_a_foreign_writer_s_row_that_is_lost_or_doubled_is_found(story: Story, named: int):
    story.foreign(FOREIGN + 1, named)
    story.foreign(FOREIGN + 1)
    story.epoch()
    assert story.kinds() == [Kind.FOREIGN]


def test_a_foreign_writer_s_row_whose_values_changed_is_found(story: Story):
    story.foreign(FOREIGN + 1, value="ours")
    story.epoch()
    (found,) = story.checker.check()
    assert (found.kind, "'v': 'ours'" in found.found) == (Kind.FOREIGN, True)


def test_a_row_that_another_program_loses_is_found_before_our_next_snapshot(story: Story):
    story.epoch()
    story.epoch()
    assert story.kinds() == []
    story.load().delete("id = 2")
    (found,) = story.checker.check()
    assert (found.kind, "1 missing" in found.found) == (Kind.ROWS, True)


def test_a_snapshot_of_the_foreign_writer_s_that_only_appends_costs_no_reading(story: Story):
    story.epoch()
    story.foreign(FOREIGN + 1)
    assert story.kinds() == []
    assert story.checker.snapshots == 1


@pytest.mark.parametrize(("ids", "label"), [([1], {}), ([1, FOREIGN + 1], {FOREIGN_ROWS: str(FOREIGN + 1)})])
def test_a_row_of_ours_that_another_program_adds_is_found_before_our_next_snapshot(
    story: Story, ids: list[int], label: dict[str, str]
):
    story.epoch()
    story.commit(ids, None, label)
    (found,) = story.checker.check()
    assert (found.kind, "1 repeated" in found.found) == (Kind.ROWS, True)


# ── snapshots ──────────────────────────────────────────────────────────────────────────────
def test_a_frontier_that_goes_back_is_found(story: Story):
    story.epoch()
    story.epoch()
    assert story.kinds() == []
    story.epoch(frontier="2.0000000000")
    assert Kind.BACK in story.kinds()


def test_a_gap_between_two_epochs_is_found(story: Story):
    story.epoch()
    story.epoch(lower="1.0000000009")
    assert story.kinds() == [Kind.GAP]


def test_an_epoch_that_is_published_twice_is_found(story: Story):
    epoch_id = story.epoch()
    story.epoch(epoch_id=epoch_id)
    assert story.kinds() == [Kind.EPOCH_TWICE]


def test_a_branch_that_was_rolled_back_is_found(story: Story):
    story.epoch()
    first = story.load().current_snapshot()
    assert first is not None
    before = (story.frontier, story.marked["epoch"])
    story.epoch()
    assert story.kinds() == []
    with story.load().manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(first.snapshot_id)
    story.mark(before[0], epoch=before[1])
    assert story.kinds() == [Kind.BACK]


def test_a_table_that_is_gone_is_found(story: Story):
    story.epoch()
    assert story.kinds() == []
    story.catalog.drop_table("t.orders")
    (found,) = story.checker.check()
    assert (found.kind, found.found) == (Kind.REMOVED, "no table")


def test_no_table_before_there_was_one_is_no_violation(story: Story):
    story.catalog.drop_table("t.orders")
    assert story.kinds() == []


def test_a_mark_that_is_not_where_the_branch_is_is_found(story: Story):
    story.epoch()
    story.mark("9.0000000000")
    assert story.kinds() == [Kind.MARK]


@pytest.mark.parametrize("marked", [{"writer": "two#2"}, {"epoch": str(uuid4())}])
@pytest.mark.parametrize("last", [Story.epoch, lambda story: story.claim("one#1"), lambda story: story.foreign(FOREIGN + 1)])
def test_a_mark_of_another_writer_or_epoch_than_the_last_is_found(
    story: Story, last: Callable[[Story], Any], marked: dict[str, str]
):
    story.epoch()
    last(story)
    assert story.kinds() == []
    story.mark(story.frontier, **marked)
    (found,) = story.checker.check()
    assert (found.kind, found.found) == (Kind.MARK, *marked.values())


def test_a_claim_that_moves_the_mark_to_another_epoch_is_found(story: Story):
    story.epoch()
    story.marked["epoch"] = str(uuid4())
    story.claim("two#2")
    assert story.kinds() == [Kind.MARK]


def test_the_rows_at_a_change_of_schema_are_compared(story: Story):
    story.epoch()
    story.claim("one#1", change="schema")
    assert story.kinds() == []
    assert story.checker.snapshots == 2
    story.load().delete("id = 1")
    assert story.kinds() == [Kind.ROWS]
    story.claim("one#1", change="partitioning")
    assert story.kinds() == [Kind.ROWS]


def test_an_epoch_or_a_change_by_a_writer_that_does_not_own_the_table_is_found(story: Story):
    story.claim("one#1")
    story.epoch()
    story.claim("two#2")
    story.epoch(writer="two#2")
    story.claim("two#2", change="schema")
    assert story.kinds() == []
    story.foreign(FOREIGN + 1)
    story.epoch(writer="one#1")
    assert story.kinds() == [Kind.WRITER], "across the commits of others, too"
    story.claim("one#1", change="schema")
    (found,) = story.checker.check()
    assert (found.kind, found.expected, found.found) == (Kind.WRITER, "the owner two#2", "one#1")
    story.epoch(writer="two#2")
    assert story.kinds() == [], "it is the owner still"


def test_a_claim_by_a_writer_that_is_not_of_a_later_generation_than_the_owner_is_found(story: Story):
    story.claim("one#1")
    story.epoch()
    story.claim("two#2")
    story.epoch(writer="two#2")
    assert story.kinds() == []
    story.claim("one#1")
    (found,) = story.checker.check()
    assert (found.kind, found.expected, found.found) == (Kind.WRITER, "the owner two#2, or one of a later generation", "one#1")
    story.epoch(writer="one#1")
    assert story.kinds() == [Kind.WRITER], "it owns nothing by that"
    story.claim("three#2")
    assert story.kinds() == [Kind.WRITER]
    story.claim("ten#10")
    story.claim("ten#10")
    story.epoch(writer="ten#10")
    assert story.kinds() == [], "a generation is a number"


def test_a_table_that_was_made_anew_has_had_no_owner(story: Story):
    story.claim("two#2")
    story.epoch(writer="two#2")
    assert story.kinds() == []
    story.catalog.drop_table("t.orders")
    assert story.kinds() == [Kind.REMOVED]
    story.catalog.create_table("t.orders", COLUMNS)
    story.frontier = ORIGIN
    story.claim("one#1")
    assert Kind.WRITER not in story.kinds()


def test_who_owned_the_table_before_the_first_look_is_not_guessed(story: Story):
    story.claim("one#1")
    story.epoch()
    story.load().maintenance.expire_snapshots().by_id(story.load().history()[0].snapshot_id).commit()
    story.epoch()
    assert story.kinds() == []


@pytest.mark.parametrize("broken", ["frontier", "files"])
def test_a_claim_that_changes_something_is_found(story: Story, broken: str):
    story.epoch()
    frontier = "9.0000000000" if broken == "frontier" else story.frontier
    claim = story.summary(frontier) | {"icefront.claim": "true", "icefront.epoch-id": str(uuid4())}
    rows = COLUMNS.empty_table() if broken == "frontier" else pa.table({"id": [7], "v": ["x"]}, schema=COLUMNS)
    story.load().append(rows, snapshot_properties=claim)
    story.mark(frontier)
    assert set(story.kinds()) == {Kind.CLAIM}


class Forgetful(_FastAppendFiles):
    """Appends, and leaves out what was there before."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return []


@pytest.mark.parametrize("looks", [1, 2])
def test_a_claim_that_loses_a_file_and_does_not_say_so_is_found(story: Story, looks: int):
    story.epoch()
    (lost,) = story.files()
    if looks == 2:
        assert story.kinds() == []
    table = story.load()
    with table.transaction() as transaction:
        claimed = {"icefront.claim": "true", "icefront.epoch-id": story.marked["epoch"], **story.summary(story.frontier)}
        Forgetful(Operation.APPEND, transaction, table.io, snapshot_properties=claimed).commit()
    (found,) = story.checker.check()
    assert (found.kind, found.expected, found.found) == (
        Kind.CLAIM,
        f"file://{lost} 1 times, as before the claim",
        "0 times",
    )


def test_a_claim_on_what_has_expired_since_is_compared_with_nothing(story: Story):
    story.epoch()
    epoch = story.load().history()[0].snapshot_id
    story.claim("one#1")
    story.load().maintenance.expire_snapshots().by_id(epoch).commit()
    found = story.checker.check()
    assert not [one for one in found if one.kind == Kind.UNREADABLE or "as before the claim" in one.expected]


def test_a_release_above_the_frontier_is_found_and_one_at_the_frontier_is_not(story: Story):
    story.epoch()
    assert story.kinds(released=["1.0000000001"]) == []
    assert story.kinds(released=["1.0000000002"]) == [Kind.RELEASED]


def test_a_release_that_was_made_up_for_before_the_look_is_found_by_the_run_s_log(story: Story):
    story.epoch()
    published, released = said("published", story.frontier), said("released", story.frontier)
    assert story.kinds(released=[story.frontier], logs=[published + released]) == []
    (found,) = story.checker.check([story.frontier], [released + published])
    assert (found.kind, found.expected, found.found) == (Kind.RELEASED, f"at most {ORIGIN} by then", story.frontier)
    assert story.kinds(released=[story.frontier], logs=[released + published]) == [], "it is told once"


def test_a_release_before_anything_is_published_is_found(story: Story):
    assert story.kinds(released=["1.0000000001"]) == [Kind.RELEASED]


# ── files ──────────────────────────────────────────────────────────────────────────────────
def test_a_file_that_two_snapshots_add_is_found(story: Story):
    story.epoch()
    path = story.load().inspect.files()["file_path"][0].as_py()
    story.load().add_files([path], check_duplicate_files=False)
    assert story.kinds() == [Kind.ADDED_TWICE, Kind.ROWS]


def test_a_file_that_one_snapshot_adds_twice_is_found(story: Story):
    other = story.catalog.create_table("t.other", COLUMNS)
    other.append(pa.table({"id": [FOREIGN], "v": [None]}, schema=COLUMNS))
    snapshot = other.current_snapshot()
    assert snapshot is not None
    (file,) = (entry.data_file for m in snapshot.manifests(other.io) for entry in m.fetch_manifest_entry(other.io))
    with story.load().transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
        append.append_data_file(file)
    assert story.kinds() == [Kind.ADDED_TWICE, Kind.FOREIGN]


def test_an_equality_delete_in_a_table_that_is_published_settled_is_found(story: Story):
    other = story.catalog.create_table("t.other", COLUMNS)
    other.append(pa.table({"id": [1], "v": [None]}, schema=COLUMNS))
    (file,) = other.inspect.files().to_pylist()
    delete = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=file["file_path"],
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=file["file_size_in_bytes"],
        equality_ids=[1],
    )
    label = {FOREIGN_ROWS: ""}  # or it would be read, by an engine that refuses them
    with story.load().transaction() as transaction, transaction.update_snapshot(label).fast_append() as append:
        append.append_data_file(delete)
    assert story.kinds() == []
    story.checker = Checker(replace(story.checker.subject, settled=True))
    assert story.kinds() == [Kind.UNSETTLED]


def rewrite(path: Path) -> None:
    """The same bytes once more: a path that was written twice."""
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 1))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (Path.unlink, Kind.REMOVED),
        (rewrite, Kind.CHANGED),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), Kind.CHANGED),
    ],
)
def test_a_committed_file_that_is_removed_or_written_again_is_found(story: Story, harm: Callable[[Path], Any], kind: Kind):
    story.epoch()
    assert story.kinds() == []
    harm(story.files()[0])
    assert story.kinds() == [kind]


def manifest_list(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.manifest_list


def manifest(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(table.io)[0].manifest_path


def data_file(table: Table) -> str:
    (file,) = (task.file.file_path for task in table.scan().plan_files())
    return file


@pytest.mark.parametrize("named", [manifest_list, manifest, data_file])
@pytest.mark.parametrize("seen", [True, False])
def test_a_file_that_is_lost_is_found_by_its_name_whatever_cannot_be_read_without_it(
    story: Story, named: Callable[[Table], str], *, seen: bool
):
    story.epoch()
    if seen:
        assert story.kinds() == []
    path = named(story.load())
    Path(urlsplit(path).path).unlink()
    found = story.checker.check()
    assert path in {violation.where for violation in found if violation.kind is Kind.REMOVED}
    assert {violation.kind for violation in found} <= {Kind.REMOVED, Kind.UNREADABLE}
    assert story.kinds() == [], "it is told once"


def test_a_reader_that_misses_a_file_of_its_own_says_nothing_about_the_tables(story: Story):
    """PySpark looks for a socket in a folder."""
    story.epoch()

    def read(_: int) -> Iterable[dict[str, Any]]:
        raise RuntimeError("cannot open a socket") from FileNotFoundError(2, "No such file or directory", "a socket")

    story.checker.subject = replace(story.checker.subject, read=read)
    assert set(story.kinds()) == {Kind.UNREADABLE}


def test_a_log_that_cannot_be_read_hides_nothing_of_what_is_wrong_with_the_table(story: Story):
    story.epoch()
    story.epoch(lower="1.0000000009")
    torn = '{"event": "published", "fron\n{"event": "released", "frontier": "2.0000000000"}\n'
    assert [violation.kind for violation in story.checker.check(logs=[torn])] == [Kind.UNREADABLE, Kind.GAP]


def test_a_lost_metadata_file_of_the_table_is_a_file_that_is_gone(story: Story):
    story.epoch()
    lost = Path(urlsplit(story.load().metadata_location).path)
    lost.unlink()
    (found,) = story.checker.check()
    assert (found.kind, str(lost) in found.found) == (Kind.REMOVED, True)


def test_what_cannot_be_looked_at_hides_nothing_of_what_else_is_wrong(story: Story, tmp_path: Path):
    story.epoch()
    story.epoch(lower="1.0000000009")
    story.stage(tmp_path / "gone.parquet", 5)
    metadata = Path(urlsplit(story.load().metadata.metadata_log[0].metadata_file).path)
    metadata.unlink()

    def read(_: int) -> Iterable[dict[str, Any]]:
        raise ValueError("a worker that died")

    story.checker.subject = replace(story.checker.subject, read=read)
    assert story.kinds(released=["9.0000000000"]) == [
        Kind.UNREADABLE,
        Kind.GAP,
        Kind.UNREADABLE,
        Kind.REMOVED,
        Kind.REMOVED,
        Kind.RELEASED,
    ]
    assert "a worker that died" in story.checker.violations[0].found
    story.epoch()
    assert Kind.BACK not in story.kinds()


def test_a_file_that_cannot_be_looked_at_hides_none_that_is_gone(story: Story, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for number, name in enumerate(("folder", "gone.parquet"), 1):
        story.stage(tmp_path / name, 5)
        assert len(story.kinds()) == 1
        assert len(story.checker.violations) == number
    assert [violation.kind for violation in story.checker.violations] == [Kind.UNREADABLE, Kind.REMOVED]


def test_a_metadata_file_that_the_log_names_and_that_is_gone_is_found(story: Story):
    story.epoch()
    story.epoch()
    assert story.kinds() == []
    Path(urlsplit(story.load().metadata.metadata_log[0].metadata_file).path).unlink()
    assert story.kinds() == [Kind.REMOVED]


def test_a_metadata_file_that_a_commit_since_the_look_deleted_is_no_violation(story: Story):
    story.epoch()
    looked = story.load()
    oldest = Path(urlsplit(looked.metadata.metadata_log[0].metadata_file).path)
    story.table.transaction().set_properties({"write.metadata.previous-versions-max": "1"}).commit_transaction()
    story.epoch()
    oldest.unlink()
    tables = iter([looked])
    story.checker.subject = replace(story.checker.subject, load=lambda: next(tables, None) or story.load())
    assert story.kinds() == []


def test_a_table_that_cannot_be_read_is_a_violation_and_no_exception(story: Story):
    story.epoch()
    file = story.files()[0]
    file.write_bytes(b"x" * file.stat().st_size)
    (found,) = story.checker.check()
    assert found.kind == Kind.UNREADABLE
    assert "Parquet" in found.found


@pytest.mark.parametrize(
    ("harm", "kind"),
    [(Path.unlink, Kind.REMOVED), (rewrite, Kind.CHANGED), (lambda path: path.write_bytes(b"other"), Kind.CHANGED)],
)
def test_a_staged_file_that_is_removed_or_written_again_is_found(
    story: Story, tmp_path: Path, harm: Callable[[Path], Any], kind: Kind
):
    file = tmp_path / "staged.parquet"
    file.write_bytes(b"12345")
    story.stage(file, 5)
    assert story.kinds() == []
    harm(file)
    assert story.kinds() == [kind]


def test_a_staged_file_of_another_size_than_noted_is_found_at_once(story: Story, tmp_path: Path):
    file = tmp_path / "staged.parquet"
    file.write_bytes(b"12345")
    story.stage(file, 4)
    assert story.kinds() == [Kind.CHANGED]


def test_a_note_of_what_was_published_long_ago_may_name_files_that_are_gone(story: Story, tmp_path: Path):
    story.epoch()
    story.stage(tmp_path / "gone.parquet", 5, upper=story.frontier)
    assert story.kinds() == []
    story.stage(tmp_path / "gone.parquet", 5)
    assert story.kinds() == [Kind.REMOVED]


def test_what_the_frontier_has_passed_or_was_removed_on_purpose_may_go(story: Story, tmp_path: Path):
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    for file in (first, second):
        file.write_bytes(b"12345")
    story.stage(first, 5, upper="1.0000000001")
    assert story.kinds() == []
    story.stage(second, 5)
    story.epoch()
    first.unlink()
    assert story.kinds() == []
    story.checker.forgive([f"file://{second}"])
    second.unlink()
    assert story.kinds() == []


@pytest.mark.parametrize(("harm", "kind"), [(Path.unlink, Kind.REMOVED), (lambda path: path.write_bytes(b"54321"), Kind.CHANGED)])
@pytest.mark.parametrize("noted_again", [False, True])
def test_a_staged_file_is_remembered_while_its_note_is_away(
    story: Story, tmp_path: Path, harm: Callable[[Path], Any], kind: Kind, *, noted_again: bool
):
    file = tmp_path / "staged.parquet"
    file.write_bytes(b"12345")
    story.stage(file, 5)
    assert (story.kinds(), story.checker.blind) == ([], 0)
    story.state.unlink()
    assert (story.kinds(), story.checker.blind) == ([], 1)
    harm(file)
    if noted_again:
        story.stage(file, 5)
    assert story.kinds() == [kind]


def test_a_staged_file_whose_note_another_one_replaced_is_still_no_one_s_to_remove(story: Story, tmp_path: Path):
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    for file in (first, second):
        file.write_bytes(b"12345")
        story.stage(file, 5)
        assert story.kinds() == []
    first.unlink()
    assert story.kinds() == [Kind.REMOVED]


def test_a_state_file_that_was_not_made_yet_hides_nothing(story: Story):
    story.epoch()
    assert (story.kinds(), story.checker.blind) == ([], 0)


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_a_look_at_a_damaged_state_file_counts_as_one_without_staged_files(story: Story, tmp_path: Path, content: bytes):
    story.epoch()
    story.stage(tmp_path / "gone.parquet", 5, upper=story.frontier)
    assert (story.kinds(), story.checker.blind) == ([], 0)
    story.state.write_bytes(content)
    assert (story.kinds(), story.checker.blind) == ([], 1)


@pytest.mark.parametrize(
    "damaged",
    [
        "[]",
        "{",
        '{"lower": "0.0", "upper": "9.0"}',
        '{"lower": "0.0", "upper": 9, "files": []}',
        '{"lower": "0.0", "upper": "9.x", "files": []}',
        '{"upper": "9.0", "files": []}',
        '{"lower": "0.0", "upper": "9.0", "files": ["{}"]}',
        '{"lower": "0.0", "upper": "9.0", "files": [7]}',
        '{"lower": "0.0", "upper": "9.0", "files": "7"}',
    ],
)
def test_a_damaged_note_counts_as_a_look_without_staged_files(story: Story, damaged: str):
    story.epoch()
    story.note('{"lower": "0.0", "upper": "9.0", "files": []}')
    assert (story.kinds(), story.checker.blind) == ([], 0)
    story.note(damaged)
    assert (story.kinds(), story.checker.blind) == ([], 1)


def test_a_file_that_was_removed_on_purpose_and_is_committed_later_is_found(story: Story):
    story.epoch()
    path = story.files()[0]
    story.checker.forgive([f"file://{path}"])
    assert story.kinds() == []
    path.unlink()
    assert story.kinds() == [Kind.REMOVED]


# ── another engine ─────────────────────────────────────────────────────────────────────────
def test_the_second_engine_s_rows_are_compared_too(story: Story):
    story.foreign(FOREIGN + 1)
    story.epoch()
    assert story.kinds() == []
    assert story.checker.check_with("another", lambda table: table.scan().to_arrow().to_pylist()) == []
    (found,) = story.checker.check_with("another", lambda _: [{"id": 1, "v": "x"}])
    assert (found.kind, "by another" in found.where) == (Kind.FOREIGN, True)


def test_the_second_engine_is_installed_here_and_reads_what_it_is_given(story: Story):
    story.epoch()
    story.epoch()
    assert second_engine().name.startswith("DataFusion")
    assert story.kinds() == []
    assert story.checker.check_with("DataFusion", by_datafusion) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("raise ImportError('built for another Python')", "datafusion cannot be used: ImportError: built for another Python"),
        ("__version__ = '0.1'", "datafusion cannot be used: AttributeError"),
    ],
)
def test_a_second_engine_that_cannot_be_used_is_not_run_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, why: str
):
    (tmp_path / "datafusion.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datafusion", raising=False)
    engine = second_engine()
    sys.modules.pop("datafusion", None)  # ours; what was there before comes back by itself
    assert (engine.name, engine.why_not[: len(why)]) == ("", why)


# ── what is not the table's ────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), requests.ConnectionError("refused")])
def test_a_full_disk_and_a_lost_catalog_are_no_violations_of_the_table_s(story: Story, error: OSError):
    story.epoch()
    assert story.kinds() == []

    def load() -> Table:
        raise error

    story.checker.subject = replace(story.checker.subject, load=load)
    with pytest.raises(type(error)):
        story.checker.check()
    assert story.checker.violations == []


def test_what_was_seen_at_a_look_that_a_full_disk_ended_is_known(story: Story, tmp_path: Path):
    story.epoch(lower="0.0000000009")
    story.stage(tmp_path / "gone.parquet", 5)

    def read(_: int) -> Iterable[dict[str, Any]]:
        raise OSError(errno.ENOSPC, "No space left on device")

    story.checker.subject = replace(story.checker.subject, read=read)
    with pytest.raises(OSError, match="No space left"):
        story.checker.check()
    assert [violation.kind for violation in story.checker.violations] == [Kind.GAP, Kind.REMOVED]
    assert story.kinds() == [], "the next look is one of its own"


def test_a_violation_is_one_line_and_one_json_object():
    violation = Violation(Kind.GAP, "snapshot 7", "from 1", "from 2")
    assert str(violation) == "gap: snapshot 7: expected from 1, found from 2"
    assert violation.to_dict() == {"kind": "gap", "where": "snapshot 7", "expected": "from 1", "found": "from 2"}
