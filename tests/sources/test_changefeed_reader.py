"""Bytes into whole lines, lines into the epoch's changes."""

from __future__ import annotations

import gzip
import random
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow, Overcompacted
from icefront.core.marks import START
from icefront.core.ports import ORDER, Report
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.sources.changefeed import Changefeed
from icefront.sources.changefeed_reader import ChangefeedReader, guess_keys
from icefront.sources.changefeed_splits import Part
from icefront.sources.changefeed_store import LocalStore
from icefront.testing.feeds import FeedWriter
from tests.sources.drive import read, schema_of

AT = Timestamp(1_585_861_087_210_714_000)
SCHEMA = schema_of({"id": "long", "v": "string"})


def line(key: int, at: Timestamp, value: str = "x") -> str:
    return f'{{"after": {{"id": {key}, "v": "{value}"}}, "key": [{key}], "updated": "{at}"}}\n'


def feed(root: Path, *texts: str | bytes, codec: str = "") -> Changefeed:
    writer = FeedWriter(root, codec)
    for number, text in enumerate(texts):
        content = text.encode() if isinstance(text, str) else text
        writer.data(AT, f"56087568dba1e6b8-1-72-{number:08x}", "t", 1, content, AT.wall)
    writer.resolved(AT.plus(10), AT.wall)
    source = Changefeed(str(root), keys={"t": ["id"]})
    source.observe(START, ["t"])
    return source


def all_of(source: Changefeed, epoch: Epoch) -> tuple[list[int], Report]:
    changes, reports = read(source, "t", epoch, START, SCHEMA)
    assert len(reports) == 1
    return (changes["id"].to_pylist() if changes is not None else []), reports[0]


# ── lines ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("seed", range(200))
def test_every_line_is_read_by_exactly_one_range_wherever_the_cuts_fall(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    lines = [b"x" * rng.choice((0, 1, 2, 7, 30)) + b"%d\n" % i for i in range(rng.randrange(1, 12))]
    if rng.random() < 0.3:
        lines[-1] = lines[-1].rstrip(b"\n")
    text = b"".join(lines)
    (tmp_path / "f").write_bytes(text)
    cuts = sorted({rng.randrange(1, len(text) + 1) for _ in range(rng.randrange(6))})
    bounds = list(zip([0, *cuts], [*cuts, None], strict=True))
    reader = ChangefeedReader(LocalStore(str(tmp_path)), "t", (), chunk_bytes=rng.choice((1, 3, 10, 1000)))
    read_lines: list[bytes] = []
    for begin, end in bounds:
        for chunk in reader._chunks(Part("f", "", 0, begin, end, 0)):
            assert text[chunk.offset : chunk.offset + len(chunk.text)] == chunk.text
            assert chunk.offset == 0 or text[chunk.offset - 1 : chunk.offset] == b"\n"
            read_lines += chunk.text.splitlines(keepends=True)
    assert read_lines == lines


def test_a_line_larger_than_a_chunk_makes_the_chunk_grow(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"a" * 50 + b"\n" + b"b\n")
    reader = ChangefeedReader(LocalStore(str(tmp_path)), "t", (), chunk_bytes=8)
    assert [c.text for c in reader._chunks(Part("f", "", 0, 0, None, 0))] == [b"a" * 50 + b"\nb\n"]


def test_a_line_without_end_is_refused_with_its_place(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"a\n" * 3 + b"b" * 1000)
    reader = ChangefeedReader(LocalStore(str(tmp_path)), "t", (), chunk_bytes=8, line_limit=64)
    with pytest.raises(BadRow, match=r"f:4: this line is longer than 64 bytes"):
        list(reader._chunks(Part("f", "", 0, 0, None, 0)))


# ── changes ────────────────────────────────────────────────────────────────────────────────
def test_changes_below_are_dropped_and_those_beyond_wait(tmp_path: Path):
    stamps = [Timestamp(AT.wall, n) for n in range(6)]
    source = feed(tmp_path, "".join(line(n, at) for n, at in enumerate(stamps)))
    ids, report = all_of(source, Epoch(stamps[2], stamps[4]))
    assert ids == [2, 3]
    assert report.counts == {"read": 6, "below": 2, "inside": 2, "beyond": 2}
    (seen,) = report.seen["files"].values()  # type: ignore[attr-defined]
    assert seen["max"] == str(stamps[5])
    assert seen["rows"] == 6


def test_many_chunks_give_the_same_changes(tmp_path: Path):
    source = feed(tmp_path, "".join(line(n, AT) for n in range(50)))
    reader = ChangefeedReader(source.store, "t", ("id",), chunk_bytes=200)
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    *tables, report = reader.read(split, epoch, SCHEMA)
    assert len(tables) > 5
    changes = pa.concat_tables(tables)
    assert changes["id"].to_pylist() == list(range(50))
    assert changes[ORDER].to_pylist() == sorted(changes[ORDER].to_pylist())
    assert isinstance(report, Report)
    assert report.counts["inside"] == 50


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_are_read_in_chunks(codec: str, tmp_path: Path):
    source = feed(tmp_path, "".join(line(n, AT) for n in range(500)), codec=codec)
    ids, _ = all_of(source, Epoch(ORIGIN, AT.next()))
    assert ids == list(range(500))


def test_several_gzip_members_are_one_file(tmp_path: Path):
    writer = FeedWriter(tmp_path)
    packed = gzip.compress(line(1, AT).encode()) + gzip.compress(line(2, AT).encode())
    path = writer.data(AT, "56087568dba1e6b8-1-72-00000000", "t", 1, packed, AT.wall)
    path.rename(f"{path}.gz")
    writer.resolved(AT, AT.wall)
    source = Changefeed(str(tmp_path), keys={"t": ["id"]})
    assert all_of(source, Epoch(ORIGIN, AT.next()))[0] == [1, 2]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_cut_compressed_file_is_named(codec: str, tmp_path: Path):
    source = feed(tmp_path, "".join(line(n, AT) for n in range(500)), codec=codec)
    (path,) = tmp_path.rglob("*.ndjson.*")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadRow, match=path.name):
        all_of(source, Epoch(ORIGIN, AT.next()))


def test_a_file_that_vanished_after_the_listing_is_named(tmp_path: Path):
    source = feed(tmp_path, line(1, AT))
    (path,) = tmp_path.rglob("*.ndjson")
    splits = source.splits("t", Epoch(ORIGIN, AT.next()), START)
    path.unlink()
    with pytest.raises(Overcompacted, match=path.name):
        list(source.reader("t", ["id"]).read(splits[0], Epoch(ORIGIN, AT.next()), SCHEMA))


def test_a_bad_line_is_named_by_its_number_also_in_the_middle_of_a_file(tmp_path: Path):
    lines = [line(n, AT) for n in range(100)]
    lines[70] = '{"after": {"id": 70, "v": "x"}, "key": [70], "updated": "never"}\n'
    feed(tmp_path, "".join(lines))
    (path,) = tmp_path.rglob("*.ndjson")
    reader = ChangefeedReader(LocalStore(str(tmp_path)), "t", ("id",), chunk_bytes=1000)
    source = Changefeed(str(tmp_path), keys={"t": ["id"]}, split_bytes=2000)
    epoch = Epoch(ORIGIN, AT.next())
    splits = source.splits("t", epoch, START)
    assert len(splits) > 3
    with pytest.raises(BadRow, match=f"{path.name}:71: "):
        list(chain.from_iterable(reader.read(split, epoch, SCHEMA) for split in splits))


def test_wishes_of_a_whole_split_are_collected_and_no_more_changes_come(tmp_path: Path):
    rows = [line(n, AT) for n in range(30)]
    rows[5] = f'{{"after": {{"id": 5, "v": "x", "new": 1}}, "key": [5], "updated": "{AT}"}}\n'
    rows[25] = f'{{"after": {{"id": 25, "v": "x", "other": "y", "new": 1.5}}, "key": [25], "updated": "{AT}"}}\n'
    source = feed(tmp_path, "".join(rows))
    reader = ChangefeedReader(source.store, "t", ("id",), chunk_bytes=200)
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    *tables, report = reader.read(split, epoch, SCHEMA)
    assert sum(t.num_rows for t in tables if not isinstance(t, Report)) <= 5
    assert isinstance(report, Report)
    assert {w.column: w.type for w in report.wishes} == {"new": "double", "other": "string"}


def test_bad_rows_and_unknown_columns_of_other_epochs_are_passed_over(tmp_path: Path):
    """The table's column has been dropped since, and what comes next is not yet resolved."""
    old = f'{{"after": {{"id": 1, "v": "x", "dropped": 7}}, "key": [1], "updated": "{AT}"}}\n'
    coming = f'{{"after": {{"id": "strange"}}, "key": [3], "updated": "{AT.plus(20)}"}}\n'
    source = feed(tmp_path, old + line(2, AT.plus(5)) + coming)
    ids, report = all_of(source, Epoch(AT.next(), AT.plus(10).next()))
    assert ids == [2]
    assert report.wishes == ()
    assert report.counts == {"read": 3, "below": 1, "inside": 1, "beyond": 1}
    (seen,) = report.seen["files"].values()  # type: ignore[attr-defined]
    assert (seen["max"], seen["rows"]) == (str(AT.plus(20)), 3)


def test_each_epoch_meets_what_is_wrong_in_it(tmp_path: Path):
    bad = f'{{"after": {{"id": "strange"}}, "key": [3], "updated": "{AT.plus(5)}"}}\n'
    source = feed(tmp_path, line(1, AT) + bad)
    assert all_of(source, Epoch(ORIGIN, AT.next()))[0] == [1]
    with pytest.raises(BadRow, match="ndjson:2: column id"):
        all_of(source, Epoch(AT.next(), AT.plus(10).next()))


def test_a_bad_line_of_a_compressed_file_is_named_by_its_number(tmp_path: Path):
    lines = [line(n, AT) for n in range(100)]
    lines[70] = '{"after": {"id": 70, "v": [}, "key": [70]}\n'
    source = feed(tmp_path, "".join(lines), codec="gzip")
    reader = ChangefeedReader(source.store, "t", ("id",), chunk_bytes=1000)
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    with pytest.raises(BadRow, match=r"ndjson\.gz:71: "):
        list(reader.read(split, epoch, SCHEMA))
    with pytest.raises(BadRow, match=r"ndjson\.gz:71: "):
        reader.infer(split, epoch)


def test_old_names_of_renamed_columns_are_read(tmp_path: Path):
    source = feed(tmp_path, line(1, AT) + line(2, AT).replace('"v"', '"old"'))
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    reader = source.reader("t", ["id"], renames={"v": "old"})
    changes, report = reader.read(split, epoch, SCHEMA)
    assert isinstance(changes, pa.Table)
    assert isinstance(report, Report)
    assert (changes["v"].to_pylist(), report.wishes) == (["x", "x"], ())
    assert {w.column for w in reader.infer(split, epoch).wishes} == {"id", "v"}


def test_inferring_leaves_out_other_epochs_and_ignored_columns(tmp_path: Path):
    source = feed(tmp_path, line(1, AT) + line(2, AT.plus(5)).replace('"v"', '"new"'))
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    assert {w.column for w in source.reader("t", ["id"]).infer(split, epoch).wishes} == {"id", "v"}
    assert {w.column for w in source.reader("t", ["id"], ["id"]).infer(split, epoch).wishes} == {"v"}


def test_inferring_in_the_middle_of_a_file_names_the_file_and_a_bad_line_by_its_number(tmp_path: Path):
    lines = [line(n, AT) for n in range(100)]
    lines[-1] = "nonsense"
    feed(tmp_path, "".join(lines))
    source = Changefeed(str(tmp_path), keys={"t": ["id"]}, split_bytes=2000)
    epoch = Epoch(ORIGIN, AT.next())
    _, *middle, last = source.splits("t", epoch, START)
    reader = source.reader("t", ["id"])
    assert {w.where.endswith(".ndjson") for split in middle for w in reader.infer(split, epoch).wishes} == {True}
    with pytest.raises(BadRow, match="ndjson:100: "):
        reader.infer(last, epoch)


def test_inferring_wishes_for_every_column(tmp_path: Path):
    source = feed(tmp_path, line(1, AT), line(2, AT))
    epoch = Epoch(ORIGIN, AT.next())
    (split,) = source.splits("t", epoch, START)
    report = source.reader("t", ["id"]).infer(split, epoch)
    assert {w.column: w.type for w in report.wishes} == {"id": "long", "v": "string"}
    assert all(".ndjson:1" in w.where for w in report.wishes)


# ── keys ───────────────────────────────────────────────────────────────────────────────────
def test_key_columns_are_found_by_their_values():
    rows = [
        b'{"after": {"a": %d, "b": "k%d", "c": 1}, "key": ["k%d", %d], "updated": "1.0000000000"}' % (n, n, n, n)
        for n in range(3)
    ]
    assert guess_keys(rows) == ["b", "a"]


def test_columns_that_always_agree_with_the_key_are_ambiguous():
    rows = [b'{"after": {"a": %d, "b": %d}, "key": [%d], "updated": "1.0000000000"}' % (n, n, n) for n in range(9)]
    assert guess_keys(rows) is None


def test_a_column_taken_by_one_place_is_no_candidate_for_another():
    rows = [
        b'{"after": {"a": 1, "b": 1}, "key": [1, 1], "updated": "1.0000000000"}',
        b'{"after": {"a": 2, "b": 1}, "key": [2, 1], "updated": "1.0000000000"}',
    ]
    assert guess_keys(rows) == ["a", "b"]


def test_equal_looking_values_of_other_types_are_no_match():
    rows = [b'{"after": {"a": "1", "b": 1.0, "c": 1}, "key": [1], "updated": "1.0000000000"}']
    assert guess_keys(rows) == ["c"]


def test_deletes_and_foreign_lines_tell_nothing():
    rows = [b'{"after": null, "key": [1]}', b'{"resolved": "1.0"}', b"not json", b"[]", b"[" * 100_000]
    assert guess_keys(rows) is None
    assert guess_keys([]) is None
