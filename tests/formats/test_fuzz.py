"""Whatever stands in a file: changes, wishes, or an error in our own words."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from typing import Any

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
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow, IcefrontError
from icefront.core.ports import LOGICAL, WALL
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.formats.changefeed import Decoder, Envelope, Place, columns, infer
from icefront.sources.changefeed_reader import guess_keys

EXAMPLES = int(os.environ.get("ICEFRONT_FUZZ", "300"))
KINDS: list[IcebergType] = [
    BinaryType(),
    BooleanType(),
    DateType(),
    DecimalType(9, 2),
    DecimalType(38, 10),
    DoubleType(),
    FixedType(3),
    FloatType(),
    IntegerType(),
    LongType(),
    StringType(),
    TimestampNanoType(),
    TimestampType(),
    TimestamptzType(),
    TimeType(),
    UUIDType(),
    ListType(90, DecimalType(9, 2), element_required=True),
    ListType(90, StringType(), element_required=False),
    MapType(91, StringType(), 92, FloatType(), value_required=False),
    StructType(NestedField(93, "a", DecimalType(9, 2)), NestedField(94, "b", BinaryType(), required=True)),
]
NUMBERS = st.sampled_from(
    [
        *("0", "-0", "-0.0", "1", "2147483648", "9223372036854775808", "1e400", "1e-400", "1E+2", "0.1", "1" * 50, "9" * 5000),
        *("1e99999999999999999999", "1e-99999999999999999999", "0e999999999999999999999999", "12345678901234567.89"),
    ]
)
TEXTS = st.sampled_from(
    [
        *('"NaN"', '"Infinity"', '"-Inf"', '""', '"null"', '"\\u0000"', '"\\ud83c\\udf81"', '"\\ud800"', '"é"', '"a\\nb"'),
        *('"2026-04-02"', '"2026-04-02T20:58:07.210714Z"', '"0000-01-01T00:00:00"', '"9999-12-31T23:59:59.9999999"'),
        *('"\\\\x0a"', '"\\\\x0a0b0c"', '"24:00:00"', '"20:58:07.1234560000"', '"294276-12-31"', '"-2026-04-02"'),
        '"0e4d1b5c-9d6b-4b9e-8f5a-0123456789ab"',
    ]
)
UUID = "0e4d1b5c-9d6b-4b9e-8f5a-0123456789ab"
GOOD: dict[type[IcebergType], st.SearchStrategy[str]] = {
    BinaryType: st.binary(max_size=3).map(lambda b: json.dumps(f"\\x{b.hex()}")),
    BooleanType: st.sampled_from(["true", "false"]),
    DateType: st.dates().map(lambda d: f'"{d}"'),
    DecimalType: st.sampled_from(["1.5", "-99.99", "1E+1", '"0.25"', "100.00"]),
    DoubleType: st.sampled_from(["0.1", "7", '"NaN"', '"-Inf"', "1e300"]),
    FixedType: st.just('"\\\\x0a0b0c"'),
    FloatType: st.sampled_from(["0.5", "1", '"Infinity"', "0.1", "1e300"]),
    IntegerType: st.integers(-9, 2**31).map(str),
    LongType: st.integers(-9, 99).map(str),
    StringType: st.text(max_size=3).map(json.dumps) | st.sampled_from(['{"a": 1}', "5", "[1]", "true"]),
    TimestampNanoType: st.just('"2026-04-02T20:58:07.210714123"'),
    TimestampType: st.sampled_from(['"2026-04-02T20:58:07.210714"', '"2026-04-02T20:58:07.210714000"']),
    TimestamptzType: st.just('"2026-04-02T20:58:07+02:00"'),
    TimeType: st.sampled_from(['"20:58:07.210714"', '"00:00:00"']),
    UUIDType: st.just(f'"{UUID}"'),
    ListType: st.sampled_from(["[]", "[1.5, 2]", '["a"]', "[null]"]),
    MapType: st.sampled_from(["{}", '{"a": 0.5}', '{"a": null}']),
    StructType: st.sampled_from(['{"a": 1.5, "b": "\\\\x0a"}', '{"b": "\\\\x"}']),
}
ATOMS = st.one_of(st.sampled_from(["null", "true", "false"]), NUMBERS, TEXTS, st.text(max_size=5).map(json.dumps))
NAMES = st.sampled_from(["id", "v", "was", "gone", "new", "x", "a", "after", "updated", "__crdb__", "é"])


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in pairs) + "}"


VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(NAMES, inner), max_size=3).map(_object),
    ),
    max_leaves=4,
)
GOOD_STAMPS = st.one_of(
    st.builds("{}.{:010d}".format, st.integers(8, 22), st.integers(0, 2)),
    st.builds("{}.{:010d}".format, st.integers(10**18, 2**63 - 1), st.integers(0, 2**31 - 1)),
)
BAD_STAMPS = st.sampled_from(["", "5", "x.0000000000", "9" * 19 + ".0000000000", "5.9999999999", "5.0000000000\n", "٣" * 19])


def rarely(draw: st.DrawFn, usual: st.SearchStrategy[Any], strange: st.SearchStrategy[Any]) -> Any:
    return draw(usual if draw(st.integers(0, 15)) else strange)


@st.composite
def messages(draw: st.DrawFn, kinds: dict[str, IcebergType], keys: tuple[str, ...], envelope: Envelope) -> str:
    def cell(name: str) -> str:
        return str(rarely(draw, GOOD[type(kinds[name])], VALUES))

    cells = [(rarely(draw, st.just(name), NAMES), cell(name)) for name in kinds if name in keys or draw(st.integers(0, 5))]
    if not draw(st.integers(0, 9)):
        cells.append((draw(NAMES), draw(VALUES)))
    key = rarely(draw, st.just(f"[{', '.join(cell(k) for k in keys)}]"), VALUES)
    stamp = rarely(draw, GOOD_STAMPS.map(json.dumps), st.one_of(BAD_STAMPS.map(json.dumps), VALUES))
    meta = [("key", key), (rarely(draw, st.just("updated"), st.just("mvcc_timestamp")), stamp)]
    if not draw(st.integers(0, 9)):
        meta.append((draw(st.sampled_from(["before", "mvcc_timestamp", "resolved", "updated", "x"])), draw(VALUES)))
    if rarely(draw, st.just(envelope), st.sampled_from(["wrapped", "bare"])) == "wrapped":
        after = rarely(draw, st.just(_object(cells)), VALUES) if draw(st.integers(0, 3)) else "null"
        return _object([("after", after), *draw(st.permutations(meta))])
    return _object([("__crdb__", _object(meta)), *(cells if draw(st.integers(0, 5)) else [])])


@st.composite
def feeds(draw: st.DrawFn) -> tuple[Decoder, Envelope, bytes]:
    kinds: dict[str, IcebergType] = {"id": draw(st.sampled_from([LongType(), StringType(), IntegerType(), DecimalType(4, 2)]))}
    kinds |= {name: draw(st.sampled_from(KINDS)) for name in draw(st.sampled_from(["v", "vx"]))}
    keys = draw(st.sampled_from([("id",), ("id",), ("id", "v"), ()]))
    envelope: Envelope = draw(st.sampled_from(["wrapped", "wrapped", "wrapped", "bare", "row"]))
    fields = [NestedField(i, name, kind, required=not draw(st.integers(0, 5))) for i, (name, kind) in enumerate(kinds.items(), 1)]
    decoder = Decoder(Schema(*fields), keys, envelope, draw(st.sampled_from([(), ("gone",)])), {"v": "was"})
    renamed = {"was" if name == "v" and not draw(st.integers(0, 3)) else name: kind for name, kind in kinds.items()}
    junk = st.sampled_from(["", " ", "\r", "null", "[]", "{}", "}{", '{"resolved": "5.0"}'])
    names = renamed if "v" not in keys else kinds
    lines = [rarely(draw, messages(names, keys, envelope), junk) for _ in range(draw(st.integers(0, 4)))]
    text = rarely(draw, st.just("\n"), st.sampled_from(["\r\n", " \n", " "])).join(lines).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=2)) + text[at + draw(st.integers(0, 2)) :]
    return decoder, envelope, text


EPOCHS = st.sampled_from(
    [Epoch(ORIGIN, Timestamp(2**63 - 1)), Epoch(Timestamp(10), Timestamp(20, 1)), Epoch(Timestamp(40), Timestamp(41))]
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(feeds(), EPOCHS)
def test_any_text_gives_changes_wishes_or_an_error_in_our_words(feed: tuple[Decoder, Envelope, bytes], epoch: Epoch):
    decoder, envelope, text = feed
    try:
        decoded = decoder.decode(text, Place("f"), 0, epoch)
    except IcefrontError:
        pass
    else:
        decoded.changes.validate(full=True)
        assert all(Timestamp(c[WALL], c[LOGICAL]) in epoch for c in rows_of(decoded.changes))
        assert decoded.wishes or decoded.tally.inside == decoded.changes.num_rows
        assert decoded.lines == len(text.split(b"\n")) - (not text.split(b"\n")[-1])
    with suppress(IcefrontError):
        infer(text, Place("f"), envelope, epoch=epoch, renames={"v": "was"})
    columns(text.split(b"\n"), envelope)
    guess_keys(text.split(b"\n"))


def rows_of(changes: Any) -> list[dict[str, Any]]:
    return list(changes.select([WALL, LOGICAL]).to_pylist())


def told(decoder: Decoder, text: bytes, epoch: Epoch) -> Any:
    """Decode with a decoder that has learned nothing yet."""
    try:
        decoded = pickle.loads(pickle.dumps(decoder)).decode(text, Place("f"), 0, epoch)
    except BadRow as refused:
        return refused.fact
    return decoded.wishes or decoded.changes.to_pylist()


def is_outside(line: bytes, envelope: Envelope, epoch: Epoch) -> bool:
    """Read when a line happened, in a naive way; one that is not quite right does not say."""
    try:
        message = json.loads(line, object_pairs_hook=_each_once)
        json.dumps(message, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        meta = message if envelope == "wrapped" else message["__crdb__"]
        stamps: list[Any] = [meta.get("updated"), meta.get("mvcc_timestamp")]
        return isinstance(stamps[1], str | None) and Timestamp.parse(stamps[stamps[0] is None]) not in epoch
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)


@settings(max_examples=EXAMPLES, deadline=None)
@given(feeds(), EPOCHS)
def test_lines_of_other_epochs_change_nothing(feed: tuple[Decoder, Envelope, bytes], epoch: Epoch):
    decoder, envelope, text = feed
    empty = b'{"resolved": 0}' if envelope == "wrapped" else b'{"__crdb__": {"resolved": 0}}'
    kept = [empty if is_outside(line, envelope, epoch) else line for line in text.split(b"\n")]
    assert repr(told(decoder, text, epoch)) == repr(told(decoder, b"\n".join(kept), epoch))
