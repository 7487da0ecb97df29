"""Netting against a dict, and the way of changes between workers."""

from __future__ import annotations

import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType

from icefront.core.errors import ConfigError, Stopped
from icefront.core.ports import LOGICAL, OP, ORDER, WALL
from icefront.kernels.net import check_keys, from_blob, net, partition_by_key, to_blob

KEY_TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), st.integers(-2, 2)),
    "long": (pa.int64(), st.sampled_from([-(2**63), 0, 1, 2**63 - 1])),
    "decimal": (pa.decimal128(38, 2), st.sampled_from([Decimal("1.00"), Decimal("-1.00"), Decimal(10**30)])),
    "date": (pa.date32(), st.integers(0, 2)),
    "timestamp": (pa.timestamp("us", "UTC"), st.integers(0, 2)),
    "string": (pa.large_string(), st.sampled_from(["", "a", "aa", "é"])),
    "binary": (pa.large_binary(), st.sampled_from([b"", b"\0", b"\0\0"])),
    "fixed": (pa.binary(2), st.sampled_from([b"ab", b"\0\0"])),
    "uuid": (pa.uuid(), st.sampled_from([uuid.UUID(int=0).bytes, uuid.UUID(int=2**127).bytes])),
}
STAMPS = {WALL: pa.int64(), LOGICAL: pa.int32(), ORDER: pa.int64()}


@st.composite
def changes(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=3))
    count = draw(st.integers(0, 25))
    columns = {}
    for i, kind in enumerate(kinds):
        arrow, values = KEY_TYPES[kind]
        listed = draw(st.lists(values, min_size=count, max_size=count))
        columns[f"k{i}"] = _array(listed, arrow)
    columns["v"] = pa.array(range(count), pa.int64())
    columns["s"] = pa.array(draw(st.lists(st.none() | st.integers(0, 2), min_size=count, max_size=count)), pa.int64())
    columns[OP] = pa.array(draw(st.lists(st.sampled_from([1, -1]), min_size=count, max_size=count)), pa.int8())
    for name in (WALL, LOGICAL):
        columns[name] = pa.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), STAMPS[name])
    columns[ORDER] = pa.array(draw(st.permutations(range(count))), pa.int64())
    table = pa.table(columns)
    cut = draw(st.integers(0, count))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]), list(columns)[: len(kinds)]


def _array(values: list[Any], arrow: pa.DataType) -> pa.Array:
    if isinstance(arrow, pa.UuidType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(values, pa.binary(16)))
    if pa.types.is_date32(arrow):
        return pa.array(values, pa.int32()).cast(arrow)
    if pa.types.is_timestamp(arrow):
        return pa.array(values, pa.int64()).cast(arrow)
    return pa.array(values, arrow)


def place(change: dict[str, Any]) -> tuple[int, int, int]:
    return change[WALL], change[LOGICAL], change[ORDER]


def naive(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in sorted(rows, key=place):
        last[tuple(change[k] for k in keys)] = change
    return sorted(last.values(), key=lambda c: int(c["v"]))


def naive_sequenced(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in sorted(rows, key=place):
        key = tuple(change[k] for k in keys)
        known = last.get(key)
        unsequenced_delete = change[OP] < 0 and change["s"] is None
        if known is None or unsequenced_delete or (change["s"] is not None) * (change["s"] or 0) >= _sequence(known, change):
            last[key] = change
    return sorted(last.values(), key=lambda c: int(c["v"]))


def _sequence(known: dict[str, Any], change: dict[str, Any]) -> int:
    if known["s"] is None:
        return 0
    return known["s"] if change["s"] is not None else 99


@settings(max_examples=100, deadline=None)
@given(changes())
def test_the_last_change_of_each_key_remains(given_changes):
    table, keys = given_changes
    assert net(table, keys).to_pylist() == naive(table.to_pylist(), keys)


@settings(max_examples=100, deadline=None)
@given(changes())
def test_with_a_sequence_the_greatest_remains_and_deletes_cut(given_changes):
    table, keys = given_changes
    assert net(table, keys, sequence_by="s").to_pylist() == naive_sequenced(table.to_pylist(), keys)


@settings(max_examples=60, deadline=None)
@given(changes(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(given_changes, random):
    table, keys = given_changes
    order = list(range(table.num_rows))
    random.shuffle(order)
    shuffled = net(table.take(pa.array(order, pa.int64())), keys).to_pylist()
    assert sorted(shuffled, key=lambda c: int(c["v"])) == net(table, keys).to_pylist()


@settings(max_examples=60, deadline=None)
@given(changes(), st.integers(1, 7))
def test_equal_keys_meet_in_one_bucket_and_nothing_is_lost(given_changes, n):
    table, keys = given_changes
    buckets = [bucket.to_pylist() for bucket in partition_by_key(table, keys, n)]
    homes: dict[tuple[Any, ...], int] = {}
    for number, bucket in enumerate(buckets):
        assert [c["v"] for c in bucket] == sorted(c["v"] for c in bucket)
        for change in bucket:
            assert homes.setdefault(tuple(change[k] for k in keys), number) == number
    assert len(buckets) == n
    assert sorted(c["v"] for b in buckets for c in b) == list(range(table.num_rows))


def test_netting_local_results_again_gives_the_same():
    table = pa.table({"k": [1, 1, 2, 2], OP: [1, -1, -1, 1], WALL: [5, 3, 2, 2], LOGICAL: [0, 0, 1, 0], ORDER: [0, 1, 2, 3]})
    split = pa.concat_tables([net(table.slice(0, 1), ["k"]), net(table.slice(1), ["k"])])
    assert net(split, ["k"]).to_pylist() == net(table, ["k"]).to_pylist()
    assert net(table, ["k"])[ORDER].to_pylist() == [0, 2]


def test_buckets_are_the_same_in_every_process():
    code = (
        "import pyarrow as pa; from icefront.kernels.net import partition_by_key\n"
        "t = pa.table({'k': [f'key-{i}' for i in range(50)], 'b': [True, False] * 25})\n"
        "print([p['k'].to_pylist() for p in partition_by_key(t, ['k', 'b'], 3)])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s}, capture_output=True, check=True).stdout
        for s in "12"
    }
    assert len(runs) == 1


def test_many_key_columns_do_not_overflow():
    count, width = 3000, 8
    columns = {f"k{i}": pa.array([(n * (i + 7)) % count for n in range(count)]) for i in range(width)}
    stamps = {OP: [1] * count, WALL: [0] * count, LOGICAL: [0] * count, ORDER: list(range(count))}
    assert net(pa.table({**columns, **stamps}), list(columns)).num_rows == count


def test_a_null_key_is_refused():
    table = pa.table({"k": pa.array([1, None]), OP: [1, 1], WALL: [0, 0], LOGICAL: [0, 0], ORDER: [0, 1]})
    for kernel in (lambda: net(table, ["k"]), lambda: partition_by_key(table, ["k"], 2)):
        with pytest.raises(Stopped, match="1 changes have a null in key column k"):
            kernel()


SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "x", DoubleType()),
    NestedField(3, "tags", ListType(4, StringType(), element_required=False)),
)


@pytest.mark.parametrize("keys", [[], ["id", "id"], ["nope"], ["x"], ["tags"]])
def test_keys_that_cannot_be_compared_are_a_configuration_error(keys):
    with pytest.raises(ConfigError):
        check_keys(SCHEMA, keys)


def test_ordinary_keys_pass():
    check_keys(SCHEMA, ["id"])


def test_a_table_survives_the_blob():
    table = pa.table({"k": pa.array([b"\0" * 16, None], pa.uuid()), "s": pa.array(["x", None], pa.large_string())})
    table = table.replace_schema_metadata({"a": "b"})
    assert from_blob(to_blob(table)).equals(table, check_metadata=True)
    assert from_blob(to_blob(table.slice(0, 0))).equals(table.slice(0, 0))
