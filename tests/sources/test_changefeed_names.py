"""File names, as documented and as written by CockroachDB's own sink."""

from __future__ import annotations

import pytest

from icefront.core.errors import ConfigError, Stopped
from icefront.core.timestamps import Timestamp
from icefront.sources.changefeed_names import DataName, ResolvedName, day_of, is_day, parse_name

AT = Timestamp(1585861087210714000, 0)
STAMP = "202004022058072107140000000000000"


def test_the_documented_data_file_name_is_understood():
    name = parse_name(f"{STAMP}-56087568dba1e6b8-1-72-00000000-test_table-1.ndjson")
    assert name == DataName(AT, "test_table", 1, "")


def test_the_documented_resolved_file_name_is_understood():
    assert parse_name(f"{STAMP}.RESOLVED") == ResolvedName(AT)


def test_a_logical_part_is_in_the_name():
    assert parse_name("197001010000000000000050000000003.RESOLVED") == ResolvedName(Timestamp(5, 3))


@pytest.mark.parametrize(
    "topic", ["orders", "orders-2024", "a-1", "shop.public.orders", "orders+family", "x-1-2-00000000-y-3", "Größe"]
)
@pytest.mark.parametrize(("suffix", "codec"), [("", ""), (".gz", "gzip"), (".zst", "zstd")])
def test_a_topic_may_hold_anything_that_a_table_name_may(topic: str, suffix: str, codec: str):
    name = parse_name(f"{STAMP}-56087568dba1e6b8-3-72-0000001f-{topic}-1.ndjson{suffix}")
    assert name == DataName(AT, topic, 1, codec)


def test_schema_ids_are_hexadecimal():
    name = parse_name(f"{STAMP}-56087568dba1e6b8-1-72-00000000-orders-1f.ndjson")
    assert isinstance(name, DataName)
    assert name.schema_id == 31


def test_a_versioned_uniquer_is_let_through():
    for extra in ("$001-", f"{STAMP}-", f"$001-{STAMP}-"):
        name = parse_name(f"{STAMP}-{extra}56087568dba1e6b8-1-72-00000000-orders-1.ndjson")
        assert name == DataName(AT, "orders", 1, "")


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS",
        ".hidden",
        f".{STAMP}-56087568dba1e6b8-1-72-00000000-orders-1.ndjson.tmp",
        f"{STAMP}-56087568dba1e6b8-1-72-00000000-orders-1.ndjson.tmp",
        f".{STAMP}.RESOLVED.crc",
        f"{STAMP}.RESOLVED.tmp",
        "20200402.RESOLVED",
        "my-own.ndjson",
        "README.md",
        "209913322058072107140000000000000.RESOLVED",
    ],
)
def test_other_files_are_not_ours(name: str):
    assert parse_name(name) is None


@pytest.mark.parametrize("name", [f"{STAMP}-something-new-orders-1.ndjson", f"{STAMP}-orders.ndjson.gz"])
def test_a_name_that_only_begins_like_ours_stops_rather_than_loses_changes(name: str):
    with pytest.raises(Stopped, match="begins like a changefeed file"):
        parse_name(name)


def test_other_formats_are_refused_by_name():
    with pytest.raises(ConfigError, match="parquet"):
        parse_name(f"{STAMP}-56087568dba1e6b8-1-72-00000000-orders-1.parquet")


def test_folders_are_days():
    assert day_of(AT) == "2020-04-02"
    assert is_day("2020-04-02")
    assert not is_day("2020-04-02T")
    assert not is_day("metadata")


@pytest.mark.parametrize(
    "at", [Timestamp(0), Timestamp(5, 3), AT, Timestamp(1_709_164_800_000_000_001, 2**31 - 1), Timestamp(2**63 - 1)]
)
def test_names_are_read_as_the_core_prints_them(at: Timestamp):
    assert parse_name(f"{at.name()}.RESOLVED") == ResolvedName(at) == ResolvedName(Timestamp.parse_name(at.name()))
