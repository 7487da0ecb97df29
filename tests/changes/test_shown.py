"""What `icefront changes` shows and how it ends, by the command line in the shared session."""

from __future__ import annotations

import json

import pytest
from typer.testing import Result

from icefront import api
from tests.cli.projects import Kept, icefront
from tests.lakes import Lake

pytestmark = pytest.mark.spark


@pytest.fixture
def notes(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with a branch from before a column was dropped and a tag from after, in a project of its own."""
    monkeypatch.chdir(lake.folder)
    monkeypatch.setattr(api, "start_session", lambda *_: Kept(lake.spark))
    for statement in (
        "CREATE TABLE T (id bigint, note string) USING iceberg",
        "INSERT INTO T VALUES (1, 'a'), (2, 'b')",
        "ALTER TABLE T CREATE BRANCH before",
        "ALTER TABLE T DROP COLUMN note",
        "INSERT INTO T VALUES (3)",
        "ALTER TABLE T CREATE TAG after",
    ):
        lake.spark.sql(statement.replace(" T ", f" {table} "))
    return table


def changes(*arguments: str) -> Result:
    return icefront("changes", *arguments)


def test_a_proof_that_fails_names_rows_with_and_without_what_they_lost_and_exits_with_7(notes: str) -> None:
    back = changes(notes, "--from", "after", "--to", "before", "--verify", "--json")
    assert back.exit_code == 7, back.stderr
    found = json.loads(back.stdout)
    assert [(row["_change_type"], row["id"]) for row in found["changes"]] == [("DELETE", 3)]
    assert len(found["differences"]) == 4, "both rows, without and with what they held"


def test_a_listing_for_people_ends_with_what_is_not_shown(notes: str) -> None:
    printed = changes(notes, "--net", "--limit", "2", "--to", "2100-01-01T00:00:00")
    assert printed.exit_code == 0, printed.stderr
    header, *rows = printed.stdout.splitlines()
    assert [row.split("\t")[header.split("\t").index("_change_type")] for row in rows[:2]] == ["INSERT", "INSERT"]
    assert rows[2].startswith("… and more")


def test_snapshots_that_are_not_there(notes: str) -> None:
    unknown = changes(notes, "--from", "yesterday")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert f'"yesterday" is no snapshot of {notes}' in unknown.stderr
    gone = changes(notes, "--from", "17")
    assert gone.exit_code == 5
    assert f"snapshot 17 of {notes} is not there" in gone.stderr
