"""What commands say about a replica, and the proof that it is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from icefront.cli import app
from icefront.core.errors import ConfigError
from icefront.proof import replicas
from icefront.settings import PipelineSettings
from icefront.settings.document import read_document
from tests.lakes import Lake
from tests.replica.replicas import Replica

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "replicas.md"


@pytest.fixture
def replica(lake: Lake, table: str) -> Replica:
    return Replica(lake, table).create()


def said(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.mark.spark
def test_status_check_and_epochs_tell_snapshots(replica: Replica) -> None:
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    pipeline = replica.pipeline()
    file = replica.lake.folder / "replica.yaml"
    (status,) = said("status", file)
    assert (status["state"], status["positions_behind"], status["changes_behind"]) == ("waiting", 1, 2)
    replica.lake.run(pipeline)
    (status,) = said("status", file)
    assert (status["state"], status["frontier_time"], status["lag_seconds"]) == ("caught-up", "sequence 1", 0.0)
    assert status["reason"].startswith("every snapshot of the source is published")
    replica.sql("UPDATE T SET v = 'c' WHERE id = 2")
    (status,) = said("status", file)
    assert (status["state"], status["positions_behind"]) == ("behind", 1)
    assert status["reason"].startswith("1 epoch behind")
    assert status["lag_seconds"] > 0
    facts = [finding["fact"] for finding in said("check", file)]
    assert any(fact.startswith(f"{replica.source}: format 3, 2 snapshots") for fact in facts), facts
    assert any("a run goes on from sequence 1, 1 epoch behind" in fact for fact in facts), facts
    (epoch,) = said("epochs", file)
    assert epoch["upper_time"] == "sequence 1"


@pytest.mark.spark
def test_verify_compares_a_replica_with_its_source_at_its_frontier(replica: Replica) -> None:
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (2, 'b', 2)")
    pipeline = replica.pipeline()
    assert [point.snapshot for point in replicas.points(pipeline)] == [None]
    replica.lake.run(pipeline)
    replica.sql("ALTER TABLE T RENAME COLUMN v TO title")
    replica.sql("DELETE FROM T WHERE id = 2")
    replica.lake.run(pipeline)
    replica.sql("INSERT INTO T VALUES (3, 'c', 3)")
    compared = list(replicas.verify(pipeline, replica.spark, replicas.points(pipeline, every_snapshot=True)))
    assert [(c.equal, c.expected, c.rows) for c in compared] == [(True, 2, 2), (True, 1, 1)]
    replica.spark.sql(f"INSERT INTO {replica.target} VALUES (9, 'not ours', 9)")
    (now,) = replicas.verify(pipeline, replica.spark, replicas.points(pipeline))
    assert (now.equal, now.difference.counts["extra"]) == (False, 1)
    assert now.difference.extra == [{"id": 9, "title": "not ours", "n": 9}]


@pytest.mark.spark
def test_of_rows_with_one_key_a_replica_holds_one_or_none(replica: Replica) -> None:
    """As documented: a deleted row is told by its key, and takes its namesakes with it."""
    replica.sql("INSERT INTO T VALUES (1, 'a', 1), (1, 'b', 2), (2, 'c', 3)")
    pipeline = replica.pipeline()
    replica.lake.run(pipeline)
    assert sorted(row["id"] for row in replica.lake.rows(replica.target)) == [1, 2]
    replica.sql("DELETE FROM T WHERE v = 'a'")
    replica.lake.run(pipeline)
    assert [row["id"] for row in replica.lake.rows(replica.target)] == [2]
    (now,) = replicas.verify(pipeline, replica.spark, replicas.points(pipeline))
    assert (now.equal, now.expected, now.rows) == (False, 2, 1)
    assert now.difference.missing == [{"id": 1, "v": "b", "n": 2}]


@pytest.mark.spark
def test_a_replica_that_began_later_is_not_its_source(replica: Replica) -> None:
    replica.sql("INSERT INTO T VALUES (1, 'a', 1)")
    pipeline = replica.pipeline({"start": "latest"})
    replica.lake.run(pipeline)
    with pytest.raises(ConfigError, match=r"source\.iceberg\.start is not initial"):
        list(replicas.verify(pipeline, replica.spark, replicas.points(pipeline)))


@pytest.mark.parametrize("number", [0, 1])
def test_the_documentation_s_pipelines_are_valid(number: int, tmp_path: Path) -> None:
    snippets = re.findall(r"^```yaml\n(.*?)^```", DOCUMENTATION.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    file = tmp_path / "replica.yaml"
    file.write_text(snippets[number])
    document = read_document(file)
    assert PipelineSettings.of(document.data).targets_for(())
