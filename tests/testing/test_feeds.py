"""The made-up feeds: named and written as CockroachDB does, the same from the same seed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from icefront.core.timestamps import Timestamp
from icefront.proof.oracle import replay
from icefront.sources.changefeed_names import DataName, ResolvedName, parse_name
from icefront.testing.feeds import BEGIN, BulkFeed, Feed, lines_of


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}


def play(root: Path, seed: int = 1, **options) -> Feed:
    feed = Feed(root, seed=seed, **options)
    feed.scan(10)
    for n in range(5):
        feed.advance(50)
        if n == 2:
            feed.restart()
            feed.alter("orders")
    feed.lag()
    return feed


def test_a_seed_gives_the_same_directory_with_the_same_times(tmp_path: Path):
    play(tmp_path / "a")
    play(tmp_path / "b")
    play(tmp_path / "c", seed=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


@pytest.mark.parametrize("codec", ["", "gzip", "zstd"])
@pytest.mark.parametrize("partition", ["daily", "hourly", "flat"])
def test_every_file_has_a_name_that_the_source_understands(partition: str, codec: str, tmp_path: Path):
    play(tmp_path, partition=partition, codec=codec)
    names = [parse_name(p.name) for p in tmp_path.rglob("*") if p.is_file()]
    assert names
    assert all(isinstance(n, DataName | ResolvedName) for n in names)


def test_a_name_is_a_lower_bound_of_what_the_file_holds(tmp_path: Path):
    play(tmp_path)
    for name, line in lines_of(tmp_path):
        parsed = parse_name(name)
        assert isinstance(parsed, DataName)
        assert Timestamp.parse(json.loads(line)["updated"]) >= parsed.timestamp


def test_whatever_a_resolved_file_covers_was_written_before_it(tmp_path: Path):
    feed = play(tmp_path)
    first_seen: dict[tuple[str, str], int] = {}
    for path in sorted(tmp_path.rglob("*.ndjson"), key=lambda p: p.stat().st_mtime_ns):
        for line in path.read_text().splitlines():
            message = json.loads(line)
            first_seen.setdefault((str(message["key"]), message["updated"]), path.stat().st_mtime_ns)
    for resolved in feed.resolved:
        (path,) = tmp_path.rglob(f"{resolved.name()}.RESOLVED")
        assert json.loads(path.read_text()) == {"resolved": str(resolved)}
        for (_, updated), written in first_seen.items():
            assert Timestamp.parse(updated) > resolved or written < path.stat().st_mtime_ns


def test_it_shows_what_makes_feeds_hard(tmp_path: Path):
    feed = play(tmp_path)
    lines = [line for _, line in lines_of(tmp_path)]
    messages = [json.loads(line) for line in lines]
    assert len(set(lines)) < len(lines)  # repeated messages
    assert any(m["after"] is None for m in messages)
    assert {name.split("-")[2] for name, _ in lines_of(tmp_path)} == {"1", "2", "3"}  # several nodes
    assert len({name.split("-")[1] for name, _ in lines_of(tmp_path)}) == 3  # several sessions
    assert any(re.search(r"-orders-2\.ndjson$", name) for name, _ in lines_of(tmp_path))
    beyond = [s for s in feed.said if s.at > feed.resolved[-1]]
    assert beyond
    reborn = {s.key for s in feed.said if s.row is None} & set(feed.state("orders"))
    assert reborn


def test_no_temporary_files_are_left(tmp_path: Path):
    play(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


def test_bulk_changes_are_whole_messages_of_six_columns(tmp_path: Path):
    feed = BulkFeed(tmp_path, keys=500, rows_per_file=200)
    feed.scan()
    feed.advance(1000)
    assert feed.resolved == [BEGIN, BEGIN.plus(10)]
    messages = [json.loads(line) for _, line in lines_of(tmp_path)]
    assert len(messages) == 1500
    deletes = [m for m in messages if m["after"] is None]
    assert 50 < len(deletes) < 150
    assert all(set(m["after"]) == {"id", "customer_id", "amount", "status", "note", "created_at"} for m in messages if m["after"])
    size = sum(p.stat().st_size for p in tmp_path.rglob("*.ndjson")) / 1500
    assert 150 <= size <= 205
    assert len({(str(m["key"]), m["updated"]) for m in messages}) == 1500
    assert 400 < len(replay(tmp_path, "orders", ["id"], str(feed.resolved[-1].next()))) <= 500
