"""The second opinion: replaying a feed in the plainest way, and comparing typed values."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.errors import BadRow
from icefront.proof.oracle import Said, compare, compare_appended, replay, replay_appended, replay_files
from icefront.testing.feeds import Feed, encode

NAME = "202004022058072107140000000000000-56087568dba1e6b8-1-72-00000000-t-1.ndjson"


def replayed(*lines: str, frontier: str | None = None, name: str = NAME) -> dict[Any, Any]:
    return next(replay_files([(name, io.BytesIO("\n".join(lines).encode()))], "t", ["id"], [frontier]))


def message(key: int, updated: str, value: str | None) -> str:
    after = "null" if value is None else f'{{"id": {key}, "v": "{value}"}}'
    return f'{{"after": {after}, "key": [{key}], "updated": "{updated}"}}'


# ── replaying ──────────────────────────────────────────────────────────────────────────────
def test_the_documented_messages_are_replayed():
    rows = replayed(
        '{"after": {"id": 4, "name": "Danny"}, "key": [4], "updated": "1585861087210714000.0000000000"}',
        '{"after": null, "key": [5], "updated": "1585861087210714000.0000000001"}',
        '{"after": {"id": 5, "name": "Petee"}, "key": [5], "updated": "1585861087210714000.0000000000"}',
        '{"resolved": "1585861087210714000.0000000000"}',
    )
    assert rows == {(4,): {"id": 4, "name": "Danny"}}


def test_the_last_version_wins_in_any_order_and_however_often_it_comes():
    lines = [message(1, "5.0000000000", "old"), message(1, "5.0000000002", "new"), message(1, "5.0000000001", None)]
    assert replayed(*lines, *lines)[1,]["v"] == "new"
    assert replayed(*reversed(lines))[1,]["v"] == "new"


def test_only_what_is_before_the_frontier_counts():
    lines = [message(1, "5.0000000000", "old"), message(1, "6.0000000000", "new")]
    assert replayed(*lines, frontier="6.0000000000")[1,]["v"] == "old"
    assert replayed(*lines, frontier="6.0000000001")[1,]["v"] == "new"
    assert replayed(*lines, frontier="5.0000000000") == {}


@given(
    said=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.sampled_from(["x", "y", None])), max_size=12),
    frontiers=st.lists(st.integers(0, 11), min_size=1, max_size=5).map(sorted),
)
def test_several_frontiers_are_replayed_in_one_reading_as_each_of_them_alone(
    said: list[tuple[int, int, str | None]], frontiers: list[int]
):
    lines = [message(key, f"{wall}.0000000000", value) for key, wall, value in said]
    file, printed = "\n".join(lines).encode(), [f"{frontier}.0000000000" for frontier in frontiers]
    found = replay_files([(NAME, io.BytesIO(file))], "t", ["id"], printed)
    assert list(found) == [replayed(*lines, frontier=frontier) for frontier in printed]
    inserts = [line for line, (_, _, value) in zip(lines, said, strict=True) if value is not None]
    in_one = replay_appended([(NAME, io.BytesIO("\n".join(inserts).encode()))], "t", printed)
    for counted, frontier in zip(in_one, printed, strict=True):
        alone = appended(*inserts, frontier=frontier)
        assert sorted(map(repr, counted)) == sorted(map(repr, alone))


def test_numbers_stay_exact():
    rows = replayed('{"after": {"id": 9007199254740993, "v": 0.1234567890123456789}, "key": [1], "updated": "5.0000000000"}')
    assert rows[9007199254740993,]["v"] == Decimal("0.1234567890123456789")


def test_the_bare_envelope_is_understood():
    rows = replayed('{"id": 1, "v": "x", "__crdb__": {"updated": "5.0000000000", "key": [1]}}')
    assert rows == {(1,): {"id": 1, "v": "x"}}


def test_a_bare_row_may_have_columns_that_are_named_as_an_envelope_s_members():
    rows = replayed('{"id": 1, "after": null, "resolved": true, "__crdb__": {"updated": "5.0000000000", "key": [1]}}')
    assert rows == {(1,): {"id": 1, "after": None, "resolved": True}}


def test_lines_that_only_announce_a_resolved_timestamp_say_nothing_in_either_envelope():
    resolved = ('{"resolved": "9.0000000000"}', '{"__crdb__": {"resolved": "9.0000000000"}}')
    assert replayed(message(1, "5.0000000000", "x"), *resolved) == {(1,): {"id": 1, "v": "x"}}


@pytest.mark.parametrize(
    "delete",
    [
        '{"after": null, "before": {"id": 1, "v": "x"}, "updated": "6.0000000000"}',
        '{"after": null, "before": {"id": 1, "v": "x"}, "key": null, "updated": "6.0000000000"}',
        '{"after": null, "before": {"id": 2, "v": "x"}, "key": [1], "updated": "6.0000000000"}',
        '{"after": null, "key": [1], "mvcc_timestamp": "6.0000000000"}',
        '{"__crdb__": {"updated": "6.0000000000", "key": [1]}}',
    ],
)
def test_a_delete_is_named_by_its_key_or_else_by_the_row_before(delete: str):
    lines = (message(1, "5.0000000000", "x"), message(2, "5.0000000000", "y"), delete)
    assert replayed(*lines) == {(2,): {"id": 2, "v": "y"}}


@pytest.mark.parametrize(
    ("delete", "words"),
    [
        ('{"after": null, "updated": "6.0000000000"}', "the key \\[\\] has not the 1 values"),
        ('{"after": null, "before": {"v": 1}, "updated": "6.0000000000"}', "no value for key column 'id'"),
        ('{"after": null, "key": [1, 2], "updated": "6.0000000000"}', "the key \\[1, 2\\] has not the 1 values of \\(id\\)"),
    ],
)
def test_a_delete_that_names_no_row_is_told_with_its_place(delete: str, words: str):
    with pytest.raises(BadRow, match=f"{NAME}:1: {words}"):
        replayed(delete)


def test_other_tables_and_other_files_do_not_matter():
    assert replayed(message(1, "5.0000000000", "x"), name=NAME.replace("-t-1", "-tt-1")) == {}
    assert replayed("garbage", name="_SUCCESS") == {}


def test_compressed_files_are_replayed():
    text = (message(1, "5.0000000000", "x") + "\n").encode()
    for suffix, packed in ((".gz", gzip.compress(text)), (".zst", pa.compress(text, codec="zstd", asbytes=True))):
        assert list(replay_files([(NAME + suffix, io.BytesIO(packed))], "t", ["id"])) == [{(1,): {"id": 1, "v": "x"}}]


def test_a_line_that_is_no_message_is_named():
    with pytest.raises(BadRow, match=f"{NAME}:2"):
        replayed(message(1, "5.0000000000", "x"), "{")


@pytest.mark.parametrize("codec", ["", "gzip", "zstd"])
def test_it_agrees_with_a_feed_that_knows_what_it_said(codec: str, tmp_path: Path):
    feed = Feed(tmp_path, seed=11, codec=codec)
    feed.scan(10)
    for _ in range(6):
        feed.advance(60)
        feed.restart()
    feed.lag()
    for resolved in feed.resolved:
        for table in feed.tables:
            expected = {key: encode(dict(row)) for key, row in feed.state(table.name, resolved.next()).items()}
            found = replay(tmp_path, table.name, table.keys, str(resolved.next()))
            assert {key: encode(dict(row)) for key, row in found.items()} == expected


# ── comparing ──────────────────────────────────────────────────────────────────────────────
def schema(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", kind, required=False))


def same(must: Any, does: Any, kind: IcebergType) -> bool:
    return not compare({(1,): {"id": 1, "v": must}}, [{"id": 1, "v": does}], schema(kind), ["id"])


UTC = dt.UTC
LIST = ListType(3, IntegerType(), element_required=False)
STRUCT = StructType(NestedField(3, "a", LongType(), required=False), NestedField(4, "b", StringType(), required=False))
MAP = MapType(3, StringType(), 4, LongType(), value_required=False)


@pytest.mark.parametrize(
    ("must", "does", "kind"),
    [
        (None, None, StringType()),
        (True, True, BooleanType()),
        (2**63 - 1, 2**63 - 1, LongType()),
        ("7", 7, LongType()),
        (Decimal("1.50"), Decimal("1.5"), DecimalType(5, 2)),
        ("1.50", Decimal("1.50"), DecimalType(5, 2)),
        (3, Decimal("3.00"), DecimalType(5, 2)),
        (Decimal("0.1"), 0.1, DoubleType()),
        (Decimal("0.1"), 0.10000000149011612, FloatType()),
        ("NaN", float("nan"), DoubleType()),
        ("-Infinity", float("-inf"), DoubleType()),
        ("text", "text", StringType()),
        ({"b": [1, None], "a": Decimal("2.50")}, '{"a": 2.50, "b": [1, null]}', StringType()),
        ([1], "[1]", StringType()),
        (3, "3", StringType()),
        (True, "true", StringType()),
        ({"a": [True, 1, {}]}, '{"a": [true, 1.0, {}]}', StringType()),
        (Decimal("-0.0"), -0.0, DoubleType()),
        (Decimal("-0.0"), -0.0, FloatType()),
        (0, 0.0, DoubleType()),
        (Decimal("-0.00"), Decimal("0.00"), DecimalType(5, 2)),
        ("2026-01-02", dt.date(2026, 1, 2), DateType()),
        ("12:30:00.5", dt.time(12, 30, 0, 500_000), TimeType()),
        ("2026-01-02T03:04:05.123456Z", dt.datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), TimestamptzType()),
        ("2026-01-02T05:04:05+02:00", dt.datetime(2026, 1, 2, 3, 4, 5, 0, UTC), TimestamptzType()),
        ("2026-01-02 03:04:05+00", dt.datetime(2026, 1, 2, 3, 4, 5, 0, UTC), TimestamptzType()),
        ("2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, 0, UTC).astimezone().replace(tzinfo=None), TimestamptzType()),
        ("2026-01-02T03:04:05.12", dt.datetime(2026, 1, 2, 3, 4, 5, 120_000), TimestampType()),  # noqa: DTZ001
        ("1969-12-31T23:59:59.5Z", dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC), TimestamptzType()),
        ("6F1D4D54-7E0E-5F0C-9A54-1CEF20407A11", UUID("6f1d4d54-7e0e-5f0c-9a54-1cef20407a11"), UUIDType()),
        ("6f1d4d54-7e0e-5f0c-9a54-1cef20407a11", UUID("6f1d4d54-7e0e-5f0c-9a54-1cef20407a11").bytes, UUIDType()),
        ("\\x00ff", b"\x00\xff", BinaryType()),
        ("\\x", bytearray(), BinaryType()),
        ([1, None], [1, None], LIST),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x"}, STRUCT),
        ({"x": 1, "y": None}, [("y", None), ("x", 1)], MAP),
        ({"x": 1}, {"x": 1}, MAP),
    ],
)
def test_equal_values_in_other_clothes_are_equal(must: Any, does: Any, kind: IcebergType):
    assert same(must, does, kind)


@pytest.mark.parametrize(
    ("must", "does", "kind"),
    [
        (None, "", StringType()),
        ("x", None, StringType()),
        (1, True, BooleanType()),
        (2**63 - 1, 2**63 - 2, LongType()),
        (9007199254740993, 9007199254740992, LongType()),
        (Decimal("1.501"), Decimal("1.50"), DecimalType(5, 2)),
        (Decimal("0.1"), 0.2, DoubleType()),
        ("NaN", None, DoubleType()),
        ("a", "A", StringType()),
        ({"a": 1}, '{"a": 2}', StringType()),
        ({"a": 1}, "not json", StringType()),
        ({"a": True}, '{"a": 1}', StringType()),
        (True, "1", StringType()),
        (1, "true", StringType()),
        ([0], "[false]", StringType()),
        ({}, "[]", StringType()),
        ([{"a": [1]}], '[{"a": [true]}]', StringType()),
        (True, 1.0, DoubleType()),
        (True, Decimal("1.00"), DecimalType(5, 2)),
        (Decimal("-0.0"), 0.0, DoubleType()),
        (0, -0.0, DoubleType()),
        (Decimal("-0.0"), 0.0, FloatType()),
        ("3", 3.0, StringType()),
        ("2026-01-02", dt.date(2026, 1, 3), DateType()),
        ("2026-01-02T03:04:05.123456Z", dt.datetime(2026, 1, 2, 3, 4, 5, 123455, UTC), TimestamptzType()),
        ("2026-01-02T03:04:05.1234567Z", dt.datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), TimestamptzType()),
        ("yesterday", dt.datetime(2026, 1, 2, tzinfo=UTC), TimestamptzType()),
        ("\\x00", b"\x01", BinaryType()),
        ("00", b"\x00", BinaryType()),
        ([1], [1, None], LIST),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, STRUCT),
        ({"x": 1}, [], MAP),
    ],
)
def test_other_values_are_told_apart(must: Any, does: Any, kind: IcebergType):
    assert not same(must, does, kind)


def test_all_that_is_wrong_is_reported_with_both_values():
    expected = {(n,): {"id": n, "v": str(n)} for n in range(4)}
    rows = [{"id": 0, "v": "0"}, {"id": 1, "v": "one"}, {"id": 9, "v": "9"}, {"id": 0, "v": "0"}, {"id": 3, "v": "3"}]
    difference = compare(expected, rows, schema(StringType()), ["id"])
    assert difference
    assert difference.rows == 5
    assert difference.counts == {"missing": 1, "extra": 1, "repeated": 1, "differing": 1}
    assert difference.missing == [{"id": 2, "v": "2"}]
    assert difference.extra == [{"id": 9, "v": "9"}]
    assert difference.repeated == [(0,)]
    (wrong,) = difference.differing
    assert (wrong.key, wrong.column, wrong.expected, wrong.actual) == ((1,), "v", "1", "one")


def test_counts_go_on_after_the_examples_shown():
    difference = compare({}, [{"id": n, "v": None} for n in range(100)], schema(StringType()), ["id"])
    assert difference.counts["extra"] == 100
    assert len(difference.extra) == 20


@pytest.mark.parametrize("shown", [1, 20, 70, 1000])
def test_as_many_examples_are_shown_as_are_asked_for(shown: int):
    expected = {(n,): {"id": n, "v": "x"} for n in range(300)}
    rows = [{"id": n, "v": "y"} for n in range(100, 300)] + [{"id": n, "v": None} for n in range(290, 400)]
    found = compare(expected, rows, schema(StringType()), ["id"], shown)
    kinds: list[list[Any]] = [found.missing, found.extra, found.repeated, found.differing]
    assert [len(kind) for kind in kinds] == [min(shown, n) for n in (100, 100, 10, 200)]
    said = [Said({"id": n, "v": "x"}, 1, 1) for n in range(100)]
    more = [{"id": n, "v": "x"} for n in range(10, 100)] + [{"id": n, "v": "x"} for n in range(50, 130)]
    found = compare_appended(said, more, schema(StringType()), shown)
    assert [len(kind) for kind in (found.missing, found.extra, found.repeated)] == [min(shown, n) for n in (10, 30, 50)]


def test_values_for_columns_that_the_table_lacks_are_reported():
    difference = compare({(1,): {"id": 1, "v": "x", "w": 1, "n": None}}, [{"id": 1, "v": "x"}], schema(StringType()), ["id"])
    assert difference.absent == {"w"}


def test_rows_from_before_a_column_was_added_have_null_there():
    assert not compare({(1,): {"id": 1}}, [{"id": 1, "v": None}], schema(StringType()), ["id"])


# ── appending ──────────────────────────────────────────────────────────────────────────────
def appended(*lines: str, frontier: str | None = None) -> list[Said]:
    return next(replay_appended([(NAME, io.BytesIO("\n".join(lines).encode()))], "t", [frontier]))


def test_every_change_is_a_row_and_a_repetition_is_counted_apart():
    first, second, third = message(1, "5.0000000000", "x"), message(1, "6.0000000000", "x"), message(2, "5.0000000000", "y")
    found = appended(first, second, third, first, first, frontier="7.0000000000")
    assert found == [Said({"id": 1, "v": "x"}, 2, 4), Said({"id": 2, "v": "y"}, 1, 1)]
    assert appended(first, second, frontier="6.0000000000") == [Said({"id": 1, "v": "x"}, 1, 1)]


def test_equal_rows_at_one_timestamp_are_two_changes_where_their_keys_say_so():
    lines = [f'{{"after": {{"v": "x"}}, "key": [{key}], "updated": "5.0000000000"}}' for key in (1, 2, 2)]
    assert appended(*lines) == [Said({"v": "x"}, 2, 3)]


def test_a_delete_has_no_place_in_a_table_that_is_appended_to():
    with pytest.raises(BadRow, match=f"{NAME}:1: a delete"):
        appended(message(1, "5.0000000000", None))
    assert appended(message(1, "5.0000000000", None), frontier="5.0000000000") == []


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        (0, {"missing": 2}),
        (1, {"missing": 1}),
        (2, {}),
        (3, {}),
        (4, {"repeated": 1}),
    ],
)
def test_a_row_is_there_at_least_once_per_change_and_at_most_as_often_as_the_feed_says_it(times: int, counts: dict[str, int]):
    difference = compare_appended([Said({"id": 1, "v": "x"}, 2, 3)], [{"id": 1, "v": "x"}] * times, schema(StringType()))
    assert {kind: count for kind, count in difference.counts.items() if count} == counts
    assert bool(difference) == bool(counts)


def test_appended_rows_are_the_same_in_any_order_and_in_other_clothes():
    said = [Said({"id": "1", "v": {"b": [1, None], "a": Decimal("2.50")}}, 1, 1), Said({"id": 1, "v": None}, 1, 1)]
    rows: list[Any] = [{"id": 1, "v": None}, {"id": 1, "v": '{"a": 2.5, "b": [1.0, null]}'}]
    assert not compare_appended(said, rows, schema(StringType()))
    for kind, must, does in ((LIST, [1, None], [1, None]), (STRUCT, {"a": 1}, {"a": 1, "b": None}), (MAP, {"x": 1}, [("x", 1)])):
        assert not compare_appended([Said({"id": 1, "v": must}, 1, 1)], [{"id": 1, "v": does}], schema(kind))


def test_text_that_only_looks_like_the_same_json_is_another_row():
    difference = compare_appended([Said({"id": 1, "v": "1.0"}, 1, 1)], [{"id": 1, "v": "1.00"}], schema(StringType()))
    assert (difference.counts["missing"], difference.counts["extra"]) == (1, 1)
    assert difference.missing == [{"id": 1, "v": "1.0"}]
    assert difference.extra == [{"id": 1, "v": "1.00"}]


def test_an_appended_row_with_true_is_not_one_with_1():
    said = [Said({"id": 1, "v": {"a": True}}, 1, 1), Said({"id": 1, "v": {"a": 1}}, 1, 1)]
    assert not compare_appended(said, [{"id": 1, "v": '{"a": 1}'}, {"id": 1, "v": '{"a": true}'}], schema(StringType()))
    difference = compare_appended(said, [{"id": 1, "v": '{"a": 1}'}] * 2, schema(StringType()))
    assert (difference.counts["missing"], difference.counts["repeated"]) == (1, 1)


def test_one_row_in_two_spellings_of_the_feed_is_one_kind_of_row():
    said = [Said({"id": 1, "v": Decimal("1.0")}, 1, 1), Said({"id": 1, "v": Decimal("1.00")}, 1, 2)]
    row = {"id": 1, "v": Decimal("1.00")}
    assert compare_appended(said, [row], schema(DecimalType(5, 2))).counts["missing"] == 1
    assert not compare_appended(said, [row] * 2, schema(DecimalType(5, 2)))
    assert not compare_appended(said, [row] * 3, schema(DecimalType(5, 2)))
    assert compare_appended(said, [row] * 4, schema(DecimalType(5, 2))).counts["repeated"] == 1


def test_appended_values_for_columns_that_the_table_lacks_are_reported():
    difference = compare_appended([Said({"id": 1, "w": 1}, 1, 1)], [{"id": 1, "v": None}], schema(StringType()))
    assert difference.absent == {"w"}
