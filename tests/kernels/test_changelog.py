"""Carry-over and update images: a multiset of rows minus another, exactly."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from icefront.kernels import changelog
from icefront.kernels.changelog import Diff, cancel, changes, hashes
from icefront.kernels.codes import encode
from icefront.kernels.datafiles import project
from tests.kernels.test_codes_nested import KINDS, spelled

PLAIN: dict[str, tuple[Any, pa.DataType]] = {
    "long": (st.sampled_from([0, 1, 2**62, None]), pa.int64()),
    "decimal": (st.sampled_from([Decimal("1.00"), Decimal("1.01"), None]), pa.decimal128(20, 2)),
    "binary": (st.sampled_from([b"", b"\x00", b"a", None]), pa.binary()),
    "fixed": (st.sampled_from([b"ab", b"cd", None]), pa.binary(2)),
    "bool": (st.booleans() | st.none(), pa.bool_()),
    **KINDS,
}


@st.composite
def sides(draw: st.DrawFn) -> tuple[pa.Schema, list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(PLAIN)), min_size=1, max_size=3))
    schema = pa.schema([(f"c{i}", PLAIN[name][1]) for i, name in enumerate(names)])
    rows = st.lists(st.tuples(*(PLAIN[name][0] for name in names)), max_size=10)
    left, came = draw(rows), draw(rows)
    shared = draw(rows)
    return schema, draw(st.permutations(left + shared)), draw(st.permutations(came + shared))


def table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def multiset(rows: pa.Table) -> Counter[Any]:
    columns = [c.to_pylist() for c in rows.columns]
    return Counter(tuple(map(spelled, row)) for row in zip(*columns, strict=True))


@pytest.mark.parametrize("hashing", ["good", "all the same"])
@given(sides())
def test_what_is_on_both_sides_is_left_out_as_often_as_it_is(hashing: str, drawn: Any) -> None:
    schema, left, came = drawn
    diff = Diff(table(schema, left), table(schema, came))
    with pytest.MonkeyPatch.context() as patch:
        if hashing != "good":
            patch.setattr(changelog, "hashes", lambda rows: np.zeros(rows.num_rows, np.uint64))
        found = cancel(diff)
    assert multiset(found.left) == multiset(diff.left) - multiset(diff.came)
    assert multiset(found.came) == multiset(diff.came) - multiset(diff.left)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    st.randoms(),
)
def test_images_are_paired_by_key_whatever_the_order_of_rows(left: list[Any], came: list[Any], random: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    found = changes(Diff(table(schema, left), table(schema, came)), [("id",)])
    kinds = Counter(zip(found["id"].to_pylist(), found["_change_type"].to_pylist(), strict=True))
    for key in range(4):
        gone, new = sum(r[0] == key for r in left), sum(r[0] == key for r in came)
        both = min(gone, new)
        assert [kinds[key, kind] for kind in ("UPDATE_BEFORE", "UPDATE_AFTER", "DELETE", "INSERT")] == [
            both,
            both,
            gone - both,
            new - both,
        ]
    rows = list(zip(*(c.to_pylist() for c in found.columns), strict=True))
    assert Counter(r[:2] for r in rows if r[2] in {"DELETE", "UPDATE_BEFORE"}) == Counter(left)
    assert Counter(r[:2] for r in rows if r[2] in {"INSERT", "UPDATE_AFTER"}) == Counter(came)
    befores = [i for i, r in enumerate(rows) if r[2] == "UPDATE_BEFORE"]
    assert all(rows[i + 1][2] == "UPDATE_AFTER" and rows[i + 1][0] == rows[i][0] for i in befores)
    random.shuffle(left)
    random.shuffle(came)
    again = changes(Diff(table(schema, left), table(schema, came)), [("id",)])
    pairs = Counter((rows[i], rows[i + 1]) for i in befores)
    others = list(zip(*(c.to_pylist() for c in again.columns), strict=True))
    assert Counter((r, others[i + 1]) for i, r in enumerate(others) if r[2] == "UPDATE_BEFORE") == pairs


def test_without_keys_there_are_no_images() -> None:
    schema = pa.schema([("id", pa.int64())])
    found = changes(Diff(table(schema, [(1,)]), table(schema, [(1,), (2,)])))
    assert found["_change_type"].to_pylist() == ["DELETE", "INSERT", "INSERT"]


def test_nan_is_itself_and_zeros_differ() -> None:
    schema = pa.schema([("x", pa.float64())])
    found = cancel(Diff(table(schema, [(math.nan,), (0.0,)]), table(schema, [(-math.nan,), (-0.0,)])))
    assert (found.left["x"].to_pylist(), str(found.came["x"].to_pylist())) == ([0.0], "[-0.0]")


def test_members_of_structs_are_keys() -> None:
    """Of a struct that is null they are null. A name is a name, whatever is in it."""
    kind = pa.struct([("a.b", pa.struct([("id", pa.int64())])), ("x", pa.int64())])
    schema = pa.schema([("s", kind)])
    left, came = ([({"a.b": {"id": 1}, "x": x},), (None,)] for x in (1, 2))
    found = changes(Diff(table(schema, left[:1]), table(schema, came)), [("s", "a.b", "id")])
    assert found["_change_type"].to_pylist() == ["UPDATE_BEFORE", "UPDATE_AFTER", "INSERT"]
    ids = changelog.hashes(table(schema, left), [("s", "a.b", "id")])
    assert (ids == changelog.hashes(table(schema, came), [("s", "a.b", "id")])).all()
    assert ids[0] != ids[1]


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())], ids=str)
def test_columns_that_hold_nothing_are_equal(kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("u", kind)])
    found = cancel(Diff(table(schema, [(1, None), (2, None)]), table(schema, [(3, None), (2, None)])))
    assert changes(found, [("u",)])["_change_type"].to_pylist() == ["UPDATE_BEFORE", "UPDATE_AFTER"]


def test_nanoseconds_count() -> None:
    schema = pa.schema([("at", pa.timestamp("ns", "UTC"))])
    found = cancel(Diff(table(schema, [(1_000,), (1_001,)]), table(schema, [(1_001,), (1_002,)])))
    assert found.left["at"].cast(pa.int64()).to_pylist() == [1_000]
    assert found.came["at"].cast(pa.int64()).to_pylist() == [1_002]


# ── hashes ─────────────────────────────────────────────────────────────────────────────────
@given(sides(), st.data())
def test_rows_that_are_equal_have_equal_hashes(drawn: Any, data: st.DataObject) -> None:
    """Wherever they were cut out of, in whatever order their maps have their entries, whatever lies below their nulls."""
    schema, left, came = drawn
    cut = data.draw(st.integers(0, len(came)))
    one = table(schema, left)
    other = table(schema, [*left, *([tuple(map(turned, row)) for row in came])]).slice(len(left))
    other = soiled(pa.concat_tables([other.slice(0, cut), other.slice(cut)]))
    assert multiset(other) == multiset(table(schema, came))
    codes, _ = encode(pa.concat_tables([one, other]).columns)
    agree(codes.tolist(), [*hashes(one), *hashes(other)])


def agree(codes: list[int], found: list[Any]) -> None:
    known: dict[int, Any] = {}
    assert [known.setdefault(code, one) for code, one in zip(codes, found, strict=True)] == found


def turned(value: Any) -> Any:
    """A value whose maps, which are lists of pairs, have their entries in another order."""
    match value:
        case dict():
            return {name: turned(member) for name, member in value.items()}
        case list() if value and isinstance(value[0], tuple):
            return [(key, turned(item)) for key, item in reversed(value)]
        case list():
            return list(map(turned, value))
    return value


def soiled(rows: pa.Table) -> pa.Table:
    """The same rows; below the nulls of nested columns lies what lies in the row before."""
    return pa.table(
        [below_nulls(c.combine_chunks()) if pa.types.is_nested(c.type) else c for c in rows.columns], schema=rows.schema
    )


def below_nulls(column: pa.Array) -> pa.Array:
    valid = [i for i in range(len(column)) if column[i].is_valid]
    if not valid or not column.null_count:
        return column
    full = column.take(pa.array([max((v for v in valid if v <= i), default=valid[0]) for i in range(len(column))]))
    bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    buffers = [pa.py_buffer(bits), *full.buffers()[1 : full.type.num_buffers]]
    children = [full.field(i) for i in range(full.type.num_fields)] if pa.types.is_struct(full.type) else [elements(full)]
    return pa.Array.from_buffers(column.type, len(full), buffers, children=children)


def elements(column: pa.Array) -> pa.Array:
    if not pa.types.is_map(column.type):
        return column.values
    fields = [column.type.key_field, column.type.item_field]
    return pa.StructArray.from_arrays([column.keys, column.items], fields=fields)


def nested(first: NestedField, second: NestedField, element: NestedField, value: Any) -> Schema:
    """A schema without flat columns, in one of its versions."""
    return Schema(
        NestedField(1, "s", StructType(first, second), required=False),
        NestedField(2, "l", ListType(20, StructType(element), element_required=False), required=False),
        NestedField(3, "m", MapType(30, StringType(), 31, value, value_required=False), required=False),
    )


OLD = nested(
    NestedField(10, "a", IntegerType(), required=False),
    NestedField(11, "b", FloatType(), required=False),
    NestedField(21, "x", IntegerType(), required=False),
    IntegerType(),
)
NEW = nested(
    NestedField(11, "a", DoubleType(), required=False),
    NestedField(10, "b", LongType(), required=False),
    NestedField(21, "y", LongType(), required=False),
    LongType(),
)
NUMBERS = st.sampled_from([0, 1, None])
ROWS = st.tuples(
    st.none() | st.tuples(NUMBERS, st.sampled_from([0.0, -0.0, math.nan, None])),
    st.none() | st.lists(st.none() | NUMBERS.map(lambda x: (x,)), max_size=2),
    st.none() | st.dictionaries(st.sampled_from("ab"), NUMBERS).map(lambda d: list(d.items())),
)


@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(0, 7))
def test_rows_of_an_older_schema_have_the_hashes_of_the_newer(drawn: list[Any], start: int) -> None:
    """Members that were renamed, put elsewhere and widened since."""

    def shaped(names: tuple[str, str, str], *, swapped: bool) -> list[tuple[Any, ...]]:
        a, b, x = names
        return [
            (
                s and ({a: s[1], b: s[0]} if swapped else {a: s[0], b: s[1]}),
                None if items is None else [e and {x: e[0]} for e in items],
                m,
            )
            for s, items, m in drawn
        ]

    old = table(schema_to_pyarrow(OLD, include_field_ids=False), shaped(("a", "b", "x"), swapped=False))
    new = table(schema_to_pyarrow(NEW, include_field_ids=False), shaped(("a", "b", "y"), swapped=True))
    now = project(old.slice(start), OLD, NEW)
    assert multiset(now) == multiset(new.slice(start))
    assert hashes(now).tolist() == hashes(new)[start:].tolist()


MANY = {
    "struct": ([{"s": {"x": i}} for i in range(1000)], pa.struct({"s": pa.struct({"x": pa.int64()})})),
    "list": ([[1, i] for i in range(1000)], pa.list_(pa.int64())),
    "list of structs": ([[{"x": f"{i}"}] for i in range(1000)], pa.list_(pa.struct({"x": pa.string()}))),
    "map": ([[("a", i)] for i in range(1000)], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", MANY)
def test_rows_without_flat_columns_are_spread(kind: str) -> None:
    found = hashes(pa.table({"c": pa.array(*MANY[kind])}))
    assert len(set(found.tolist())) == 1000
    assert np.bincount((found % np.uint64(16)).astype(np.int64), minlength=16).min() > 30
