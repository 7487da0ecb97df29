"""Random rows of random types against a naive reading: the standard library's json, with decimals for numbers."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
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
from icefront.core.ports import LOGICAL, OP, ORDER, WALL
from icefront.formats.changefeed import Decoder, Place, infer
from icefront.formats.chunks import PIECE
from icefront.formats.columns import exact_as_double

AT = Place("f", 1)
Case = tuple[IcebergType, Callable[[Any], Any], st.SearchStrategy[str]]


class Text(str):
    """A number as it stands in JSON."""

    __slots__ = ()


def naive(line: str) -> Any:
    return json.loads(line, parse_float=Text, parse_int=Text)


def read_double(value: Any) -> float:
    return float(value)


def read_bytes(value: Any) -> bytes:
    return bytes.fromhex(value[2:])


def read_stamp(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(value)


def read_utc(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(value).astimezone(dt.UTC)


def quoted(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return values.map(lambda v: json.dumps(str(v)))


def iso(moment: dt.datetime) -> str:
    return moment.isoformat()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
STAMPS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
SINGLES = st.floats(allow_nan=False, allow_infinity=False, width=32)
PRIMITIVES: list[Case] = [
    (BooleanType(), bool, st.sampled_from(["true", "false"])),
    (IntegerType(), int, st.integers(-(2**31), 2**31 - 1).map(str)),
    (LongType(), int, st.integers(-(2**63), 2**63 - 1).map(str)),
    (DoubleType(), read_double, st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    (FloatType(), read_double, SINGLES.map(lambda f: repr(struct.unpack("<f", struct.pack("<f", f))[0]))),
    (DecimalType(12, 2), Decimal, st.decimals(-(10**9), 10**9, places=2).map(str)),
    (DecimalType(38, 10), Decimal, st.decimals(-(10**27), 10**27, places=10).map(lambda d: json.dumps(str(d)))),
    (StringType(), str, TEXTS.map(json.dumps)),
    (StringType(), str, TEXTS.map(lambda t: json.dumps(t, ensure_ascii=False))),
    (DateType(), dt.date.fromisoformat, quoted(st.dates())),
    (TimeType(), dt.time.fromisoformat, quoted(st.times())),
    (TimestampType(), read_stamp, quoted(STAMPS.map(iso))),
    (TimestamptzType(), read_utc, quoted(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=ZONES).map(iso))),  # noqa: DTZ001
    (UUIDType(), uuid.UUID, quoted(st.uuids())),
    (BinaryType(), read_bytes, st.binary(max_size=9).map(lambda b: json.dumps(f"\\x{b.hex()}"))),
    (FixedType(3), read_bytes, st.binary(min_size=3, max_size=3).map(lambda b: json.dumps(f"\\x{b.hex()}"))),
]


def nested(case: Case) -> list[Case]:
    kind, read, values = case
    maybe = st.one_of(st.just("null"), values)

    def inner(value: Any) -> Any:
        return None if value is None else read(value)

    return [
        (
            ListType(90, kind, element_required=False),
            lambda items: [inner(i) for i in items],
            st.lists(maybe, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        ),
        (
            MapType(91, StringType(), 92, kind, value_required=False),
            lambda items: [(k, inner(v)) for k, v in items.items()],
            st.dictionaries(TEXTS, maybe, max_size=3).map(
                lambda d: "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in d.items()) + "}"
            ),
        ),
        (
            StructType(NestedField(93, "a b", kind), NestedField(94, "n", LongType())),
            lambda members: {"a b": inner(members.get("a b")), "n": None if members.get("n") is None else int(members["n"])},
            st.tuples(maybe, st.integers(-9, 9)).map(lambda m: f'{{"n": {m[1]}, "a b": {m[0]}}}'),
        ),
    ]


CASES = st.sampled_from(PRIMITIVES + [case for primitive in PRIMITIVES for case in nested(primitive)])


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[Case], list[str]]:
    columns = draw(st.lists(CASES, min_size=1, max_size=4))
    lines = []
    for number in range(draw(st.integers(1, 6))):
        cells = [draw(st.one_of(st.none(), st.just("null"), case[2])) for case in columns]
        row = ", ".join([f'"id": {number}', *(f'"c{i}": {cell}' for i, cell in enumerate(cells) if cell is not None)])
        after = draw(st.sampled_from([f"{{{row}}}"] * 4 + ["null"]))
        lines.append(f'{{"after": {after}, "key": [{number}], "updated": "{draw(st.integers(0, 2**63 - 1))}.{number:010d}"}}')
    return columns, lines


def expected(columns: list[Case], lines: list[str]) -> list[dict[str, Any]]:
    changes = []
    for number, line in enumerate(lines):
        message = naive(line)
        after = message["after"] or {}
        wall, logical = message["updated"].split(".")
        values = {f"c{i}": after.get(f"c{i}") for i in range(len(columns))}
        changes.append(
            {
                "id": int(message["key"][0]),
                **{name: None if v is None else columns[int(name[1:])][1](v) for name, v in values.items()},
                OP: 1 if message["after"] else -1,
                WALL: int(wall),
                LOGICAL: int(logical),
                ORDER: 100 + number,
            }
        )
    return changes


@settings(max_examples=250, deadline=None)
@given(feeds())
def test_every_row_reads_as_the_naive_way_reads_it(feed):
    columns, lines = feed
    schema = Schema(
        NestedField(1, "id", LongType()), *(NestedField(i + 2, f"c{i}", kind) for i, (kind, _, _) in enumerate(columns))
    )
    decoded = Decoder(schema, ["id"]).decode("\n".join(lines).encode(), AT, 100)
    assert decoded.wishes == ()
    decoded.changes.validate(full=True)
    assert decoded.changes.to_pylist() == expected(columns, lines)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([kind for kind, _, _ in PRIMITIVES]), st.one_of(TEXTS.map(json.dumps), st.decimals(allow_nan=False).map(str))
)
def test_any_json_value_is_taken_exactly_or_named(kind, cell):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))
    line = f'{{"after": {{"id": 1, "v": {cell}}}, "updated": "1.0000000000"}}'.encode()
    try:
        decoded = Decoder(schema, ["id"]).decode(line, AT, 0)
    except BadRow as refused:
        assert refused.fact.startswith("f:1: ")  # noqa: PT017 - refusing is one of two right answers
        return
    if decoded.wishes:
        assert decoded.wishes[0].widens == str(kind)
    elif isinstance(kind, DecimalType):
        assert decoded.changes["v"][0].as_py() == Decimal(cell.strip('"'))
    elif isinstance(kind, LongType | IntegerType):
        assert str(decoded.changes["v"][0].as_py()) == cell.replace("-0", "0")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(2**63), 2**63 - 1).map(str), min_size=1)
)
def test_an_inferred_number_is_exact_or_refused(cells):
    lines = "\n".join(f'{{"after": {{"v": {cell}}}}}' for cell in cells).encode()
    whole = all(set(cell) <= set("-0123456789") for cell in cells)
    if whole or all(exact_as_double(cell) for cell in cells):
        assert infer(lines, AT, "wrapped")["v"].type == ("long" if whole else "double")
    else:
        with pytest.raises(BadRow, match="is not exact as double"):
            infer(lines, AT, "wrapped")


def test_a_chunk_of_many_pieces_reads_as_one():
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "note", StringType()))
    note = "x" * 1000
    lines = [f'{{"after": {{"id": {i}, "note": "{note}"}}, "updated": "{i}.0000000000"}}' for i in range(3 * PIECE // 1000)]
    lines[7] = ""
    changes = Decoder(schema, ["id"]).decode("\n".join(lines).encode(), AT, 5).changes
    kept = [i for i in range(len(lines)) if i != 7]
    assert changes["id"].to_pylist() == kept
    assert changes[ORDER].to_pylist() == [i + 5 for i in kept]
    assert changes["note"].type == pa.large_string()
    lines[-1] = "nonsense"
    with pytest.raises(BadRow, match=f"^f:{len(lines)}: "):
        Decoder(schema, ["id"]).decode("\n".join(lines).encode(), AT, 5)
    lines[-1] = lines[-2].replace('"note"', '"new"')
    (wish,) = Decoder(schema, ["id"]).decode("\n".join(lines).encode(), AT, 5).wishes
    assert wish.where == f"f:{len(lines)}"


@pytest.mark.parametrize("name", ["_op", "_wall", "_logical", "_order"])
def test_a_column_may_be_called_like_anything_of_ours(name: str) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, name, StringType()))
    line = json.dumps({"after": {"id": 1, name: "mine"}, "key": [1], "updated": "1585861087210714000.0000000007"})
    decoded = Decoder(schema, ("id",)).decode(f"{line}\n".encode(), Place("f"), 0)
    assert decoded.changes.to_pylist()[0] == {"id": 1, name: "mine", OP: 1, WALL: 1585861087210714000, LOGICAL: 7, ORDER: 0}
