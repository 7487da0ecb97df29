"""Plain lines, decoded by columns: the same changes, wishes and errors as the way that knows all lines, to the letter."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
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
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.epochs import Epoch
from icefront.core.errors import IcefrontError
from icefront.core.timestamps import Timestamp
from icefront.formats import changefeed
from icefront.formats.changefeed import ALL_TIME, Decoder, Place
from icefront.formats.chunks import Chunk
from icefront.formats.plain import PlainLines, plain_lines

EXAMPLES = int(os.environ.get("ICEFRONT_FUZZ", "400"))
WHEN = "1585861087210714000.0000000007"
UUID = "0e4d1b5c-9d6b-4b9e-8f5a-0123456789ab"


@pytest.fixture(autouse=True, scope="module")
def however_few():
    """Here a single line is tried, which is not worth while otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainLines, "least", 1)
        yield


def schema(columns: dict[str, IcebergType], required: Sequence[str] = ()) -> Schema:
    return Schema(*(NestedField(i, name, kind, required=name in required) for i, (name, kind) in enumerate(columns.items(), 1)))


DOGS = schema({"id": LongType(), "name": StringType()})


def line(after: str | None, key: str = "[1]", when: str = WHEN) -> str:
    return f'{{"after": {"null" if after is None else after}, "key": {key}, "updated": "{when}"}}'


def row(cells: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {cells[name]}" for name in sorted(cells)) + "}"


def outcome(decoder: Decoder, text: bytes, epoch: Epoch = ALL_TIME) -> Any:
    """Everything that a caller can see of it. Numbers are compared as text: NaN is itself then, and -0 is not 0."""
    try:
        decoded = decoder.decode(text, Place("f"), 100, epoch)
    except IcefrontError as refused:
        return str(refused)
    decoded.changes.validate(full=True)
    changes = decoded.changes
    return changes.schema, repr(changes.to_pylist()), decoded.wishes, decoded.tally, decoded.lines


def taken(of: Schema, text: bytes, keys: Sequence[str] = ("id",), epoch: Epoch = ALL_TIME) -> bool:
    """Assert that both ways give the same, and say whether the plain one has taken the lines."""
    both, careful = Decoder(of, keys), Decoder(of, keys)
    careful._plain = None
    assert outcome(both, text, epoch) == outcome(careful, text, epoch)
    plain = Decoder(of, keys)._plain
    return plain is not None and bool(text) and plain.decode(Chunk(text, Place("f"), 100), epoch) is not None


def takes(of: Schema, *lines: str, keys: Sequence[str] = ("id",)) -> bool:
    return taken(of, "\n".join(lines).encode("utf-8", "surrogatepass"), keys)


PLAIN = line('{"id": 1, "name": "x"}')


@pytest.mark.parametrize("end", ["", "\n"])
def test_upserts_and_deletes_are_taken(end):
    assert takes(DOGS, PLAIN, line(None, "[7]"), line('{"id": 2, "name": null}', "[2]"), line(None, "[8]") + end)
    assert takes(DOGS, PLAIN + end)
    assert takes(DOGS, line(None), line(None, "[-5]") + end)


def test_mvcc_timestamps_beside_updated_are_taken():
    lines = [text.replace('"updated"', '"mvcc_timestamp": "5.0000000000", "updated"') for text in (PLAIN, line(None, "[7]"))]
    assert takes(DOGS, *lines)
    assert not takes(DOGS, *lines, PLAIN)
    assert not takes(DOGS, PLAIN.replace('"updated"', '"mvcc_timestamp"'))
    assert not takes(DOGS, PLAIN.replace('"updated"', '"mvcc_timestamp": "\\q", "updated"'))


@pytest.mark.parametrize(
    "odd",
    [
        *(f'{{"key": [1], "updated": "{WHEN}"}}', '{"resolved": "5.0000000000"}', "", " ", "null", "{}", "5", "[]", "nonsense"),
        *(f"{PLAIN} {PLAIN}", f"{PLAIN}{PLAIN}", f"{PLAIN} null {PLAIN}", f" {PLAIN}", f"{PLAIN} ", f"{PLAIN}\r", f"{PLAIN},"),
        *(PLAIN.replace(": ", ":"), PLAIN.replace(', "key"', ',\n"key"'), PLAIN[:-1], f"\ufeff{PLAIN}"),
        *(
            PLAIN.replace(WHEN, wrong)
            for wrong in ("", "5", "x.0000000000", f"-{WHEN[1:]}", f"{WHEN[:-1]}\\n", "9" * 19 + WHEN[19:])
        ),
        PLAIN.replace(f', "updated": "{WHEN}"', ""),
        PLAIN.replace(f'"{WHEN}"', "null"),
    ],
    ids=repr,
)
def test_a_line_of_another_shape_is_left_alone(odd):
    assert not takes(DOGS, PLAIN, odd, PLAIN)
    assert not takes(DOGS, odd, PLAIN)
    assert not takes(DOGS, PLAIN, f"{odd}\n")


@pytest.mark.parametrize(
    "after",
    [
        *('{"id": 1, "id": 2, "name": "x"}', '{"id": 1, "name": "x", "name": "y"}', '{"id": 1, "name": "x", "new": 5}'),
        *('{"id": 1}', '{"name": "x"}', '{"id": null, "name": "x"}', '{"name": "x", "id": 1}', "{}", "[]", '"x"', "5"),
        *('{"id": 1, "name": {"a": 1}}', '{"id": 1, "name": 5}', '{"id": 1, "name": [1]}', '{"id": 1, "name": true}'),
        *('{"id": 1.0, "name": "x"}', '{"id": 1e3, "name": "x"}', '{"id": 01, "name": "x"}', '{"id": +1, "name": "x"}'),
        *(
            '{"id": 0x1, "name": "x"}',
            '{"id": 9223372036854775808, "name": "x"}',
            '{"id": "1", "name": "x"}',
            '{"id": , "name": "x"}',
        ),
        *('{"id":  1, "name": "x"}', '{"id": 1 , "name": "x"}', '{"id": 1, "name": "x" }', '{"id": 1, "name":"x"}'),
        *('{"id": 1; "name": "x"}', '{"id"; 1, "name": "x"}', '{"id":, 1 "name": "x"}'),
        *('{"id": 1, "name": "\\ud800"}', '{"id": 1, "name": "\\q"}', '{"id": 1, "name": "\t"}', '{"id": 1, "name": "\0"}'),
        *('{"id": 1, "name": "\1"}', '{"id": 1, "name": "\2"}', '{"id": 1, "name": "\3"}', '{"id": 1, "name": "\ud800"}'),
        *('{"id": 1, "name": "\r"}', '{"id": 1, "\\u006eame": "x"}', '{"id": 1, "name": "x"}, "before": {"id": 1, "name": "y"}'),
    ],
    ids=repr,
)
def test_an_odd_row_is_left_alone(after):
    assert not takes(DOGS, PLAIN, line(after), PLAIN)


@pytest.mark.parametrize(
    "text", ['\\"', "\\\\", '\\\\\\"', "\\n", "\\u0000", "\\u0001", "\\ud83c\\udf81", "\\/", "é🎁", "\x7f", "null", ""]
)
def test_any_text_is_taken(text):
    assert takes(DOGS, line(f'{{"id": 1, "name": "{text}"}}'), PLAIN, line('{"id": 2, "name": null}', "[2]"))


def test_names_that_make_up_for_one_another_are_left_alone():
    assert not takes(DOGS, PLAIN.replace('"id"', '""'), PLAIN.replace('"id"', '"idid"'))


def test_bytes_that_are_no_text_are_left_alone():
    for wrong in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"):
        assert not taken(DOGS, f"{PLAIN}\n{PLAIN}".encode().replace(b'"x"', b'"' + wrong + b'"'))


@pytest.mark.parametrize("key", ["[]", "[1, 2]", "[null]", "null", '["1"]', "[1.0]", "[01]", "1", '"x"', "[[1]]", "[2]", "[ 1]"])
@pytest.mark.parametrize("after", [None, '{"id": 1, "name": "x"}'])
def test_an_odd_key_is_left_alone(key, after):
    plain = after is None and key == "[2]"
    assert takes(DOGS, PLAIN, line(after, key), PLAIN) == plain
    assert takes(DOGS, line(after, key)) == plain


def test_a_delete_without_a_key_is_left_alone():
    gone = line(None).replace('"key": [1], ', "")
    assert not takes(DOGS, PLAIN, gone, PLAIN)
    assert not takes(DOGS, PLAIN, gone.replace('"updated"', '"before": {"id": 3, "name": "x"}, "updated"'), PLAIN)


def test_nulls_in_required_columns_are_left_alone():
    of = schema({"id": LongType(), "n": IntegerType(), "name": StringType()}, required=("id", "n", "name"))
    assert takes(of, line('{"id": 1, "n": 5, "name": "x"}'), line(None, "[7]"))
    assert not takes(of, line('{"id": 1, "n": 5, "name": null}'), line(None, "[7]"))
    assert not takes(of, line('{"id": 1, "n": null, "name": "x"}'), line(None, "[7]"))


VALUES: dict[IcebergType, tuple[list[str], list[str]]] = {
    BooleanType(): (["true", "false", "null"], ["1", '"true"', "True"]),
    IntegerType(): (["0", "-0", "-5", "2147483647", "null"], ["2147483648", "1.0", "1e3", "00", "-", "NaN"]),
    LongType(): (["9223372036854775807", "-9223372036854775808"], ["9223372036854775808", "1.0", "1e3", "-01"]),
    DecimalType(12, 2): (
        ["0", "1.5", "-1.50", "1.500", "0.00", "-0.0", "9999999999.99", "null"],
        [
            *("1e2", "1e-40", "1E+2", "15e-1", "0e5", "1e-400", "1.505", "12345678901.5", "99999999999", '"1.5"', '"\\u0031.5"'),
            *(".5", "1.", "+1", "01", "NaN", '"NaN"', "Infinity", "0x1", "1" * 50, "0." + "0" * 50 + "1"),
        ],
    ),
    DoubleType(): (
        ["0", "0.1", "7", "-1.5e3", "1E2", "1e-400", "5e-324", "9007199254740991", "null", "0." + "0" * 400 + "1"],
        [
            *("9007199254740993", "9007199254740992", "1e300", "1e400", "-0", "-0.0", '"NaN"', '"Infinity"', "NaN", "Infinity"),
            *("-Infinity", "Inf", "inf", "9" * 400, "1.", ".5", "0x1p3"),
        ],
    ),
    FloatType(): (["0.5", "0.1", "1", "16777216", "null"], ["0.1234567891", "1e300", "16777217", "-0", '"NaN"', "NaN"]),
    StringType(): (['""', '"x"', "null"], ["5", "{}", "[1]", "true"]),
    DateType(): (['"2026-04-02"', "null"], ['"2026-4-2"', '""', "5"]),
    TimeType(): (['"20:58:07.210714"', '"00:00:00"', "null"], ['"24:00:00"', '"x"']),
    TimestampType(): (['"2026-04-02T20:58:07.210714000"', "null"], ['"2026-04-02T20:58:07.2107141"', '"x"']),
    TimestamptzType(): (['"2026-04-02T20:58:07+02:00"', "null"], ['"2026-04-02T20:58:07.2107141Z"', '"x"']),
    TimestampNanoType(): (['"2026-04-02T20:58:07.210714123"', "null"], ['"x"']),
    UUIDType(): ([f'"{UUID}"', "null"], ['"x"', f'"{UUID[:-1]}x"']),
    BinaryType(): (['"\\\\x0a"', '"\\\\x"', "null"], ['"0a"', '"\\\\x0"', '"\\x0a"']),
    FixedType(3): (['"\\\\x0a0b0c"', "null"], ['"\\\\x0a"']),
}
CELLS = [
    (kind, cell, plain)
    for kind, cells in VALUES.items()
    for plain, some in ((True, cells[0]), (False, cells[1]))
    for cell in some
]


@pytest.mark.parametrize(("kind", "cell", "plain"), CELLS, ids=[f"{kind}-{cell[:20]}" for kind, cell, _ in CELLS])
def test_a_value_is_taken_exactly_or_left_alone(kind, cell, plain):
    of = schema({"id": LongType(), "v": kind})
    good = VALUES[kind][0][0]
    assert takes(of, *(line(row({"id": "1", "v": text})) for text in (good, cell, good))) == plain
    assert takes(of, line(row({"id": "1", "v": cell}))) == plain


@pytest.mark.parametrize(
    "name", ["after", "key", "updated", "mvcc_timestamp", "resolved", "a.b", "f0", "é", "", " ", "0", "x: null"]
)
@pytest.mark.parametrize("kind", [StringType(), LongType()])
def test_columns_may_have_any_name(name, kind):
    of = schema({"id": LongType(), name: kind})
    full, null = (line(row({"id": "1", name: cell})) for cell in ("5" if isinstance(kind, LongType) else '"5"', "null"))
    assert takes(of, full, line(None, "[7]"), full)
    assert takes(of, full, null)
    takes(of, null, line(None, "[7]"), full)
    assert not takes(of, null, f'{{"key": [1], "updated": "{WHEN}"}}')


@pytest.mark.parametrize("name", ['a"b', "a\\b", 'x"after', "a\nb", "a\0b"])
def test_tables_with_names_that_are_written_with_escapes_are_left_alone(name):
    of = schema({"id": LongType(), name: StringType()})
    assert plain_lines({field.name: field for field in of.fields}, ["id"], schema_to_pyarrow(of)) is None


def test_keys_may_mix_texts_with_a_number():
    of = schema({"id": LongType(), "t": UUIDType(), "n": LongType()})
    text = row({"id": "1", "t": f'"{UUID}"', "n": "5"})
    assert takes(of, line(text, f'[1, "{UUID}"]'), line(None, f'[2, "{UUID}"]'), keys=("id", "t"))
    assert takes(of, line(text, f'["{UUID}", 1]'), line(None, f'["{UUID}", 2]'), keys=("t", "id"))
    assert not takes(of, line(text, "[1, 5]"), line(None, "[1, 6]"), keys=("id", "n"))
    assert Decoder(of, ("id", "n"))._plain is None
    assert not takes(of, line(text, "[]"), keys=())


def test_nested_columns_ignored_ones_and_other_envelopes_are_left_alone():
    nested = schema({"id": LongType(), "l": ListType(9, LongType(), element_required=False)})
    assert Decoder(nested, ["id"])._plain is None
    assert Decoder(DOGS, ["id"], "bare")._plain is None
    assert Decoder(DOGS, ["id"], ignored=["x"])._plain is None
    assert not taken(DOGS, b"")
    assert not taken(DOGS, b"\n")


def test_only_lines_of_the_epoch_become_changes():
    lines = [line(f'{{"id": {i}, "name": "x"}}' if i % 3 else None, f"[{i}]", f"{i}.0000000000") for i in range(20)]
    for epoch in (Epoch(Timestamp(5), Timestamp(9)), Epoch(Timestamp(50), Timestamp(51)), Epoch(Timestamp(3), Timestamp(4))):
        assert taken(DOGS, "\n".join(lines).encode(), epoch=epoch)


def test_a_key_that_is_not_the_rows_is_left_to_the_other_way_wherever_it_stands():
    assert not takes(DOGS, PLAIN, line('{"id": 1, "name": "x"}', "[2]"), PLAIN)
    assert not takes(DOGS, PLAIN, PLAIN, line('{"id": 1, "name": "x"}', "[2]"))


def test_few_lines_are_not_tried(monkeypatch):
    monkeypatch.setattr(PlainLines, "least", len(PLAIN) + 1)
    assert not takes(DOGS, PLAIN)
    assert takes(DOGS, f"{PLAIN}\n")


def test_one_huge_line_is_taken():
    assert takes(DOGS, line(f'{{"id": 1, "name": "{"x" * 9_000_000}"}}'))


def plain_of(of: Schema) -> PlainLines:
    plain = Decoder(of, ["id"])._plain
    assert plain is not None
    return plain


def test_after_odd_lines_some_are_not_tried_and_a_success_forgets_that(monkeypatch):
    plain, tried = plain_of(DOGS), []
    real = PlainLines._changes

    def noted(self, chunk, epoch):
        tried.append(chunk.order)
        return real(self, chunk, epoch)

    monkeypatch.setattr(PlainLines, "_changes", noted)
    for number in range(200):
        plain.decode(Chunk(b"{}\n", Place("f"), number), ALL_TIME)
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199]
    good = Chunk(PLAIN.encode(), Place("f"))
    assert [plain.decode(good, ALL_TIME) is None for _ in range(66)] == [True] * 64 + [False] * 2
    assert plain.decode(Chunk(b"{}\n", Place("f")), ALL_TIME) is None
    assert [plain.decode(good, ALL_TIME) is None for _ in range(3)] == [True, False, False]


def test_an_odd_line_among_pieces_that_are_plain(monkeypatch):
    monkeypatch.setattr(changefeed, "LARGE", 1000)
    lines = [line(f'{{"id": {i}, "name": "x"}}', f"[{i}]") for i in range(100)]
    for odd in ("", '{"resolved": "5.0000000000"}', line('{"id": 1, "name": 5}'), line('{"id": 1, "new": 5}'), "nonsense"):
        for at in (0, 50, 99):
            takes(DOGS, *lines[:at], odd, *lines[at:])


# ── random lines ──────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "b", "note", "after", "key", "updated", "é", "a.b", "f0", "z"])
GOOD = {kind: st.sampled_from(cells[0]) for kind, cells in VALUES.items()} | {
    StringType(): st.text(max_size=5).map(json.dumps) | st.text(max_size=5).map(lambda t: json.dumps(t, ensure_ascii=False)),
    DoubleType(): st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(2**60), 2**60).map(str),
    FloatType(): st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    DecimalType(12, 2): st.decimals(-(10**9), 10**9, places=2).map(str)
    | st.decimals(allow_nan=False, allow_infinity=False).map(str),
    LongType(): st.integers(-(2**63), 2**63 - 1).map(str),
}
ODD_CELLS = st.sampled_from([cell for cells in VALUES.values() for some in cells for cell in some])
ODD_LINES = st.sampled_from(
    ["", " ", "\r", "null", "{}", "[]", '{"resolved": "5.0"}', f'{{"key": [1], "updated": "{WHEN}"}}', f"{PLAIN} null", "}{"]
)
KEYS: list[dict[str, IcebergType]] = [
    {"id": LongType()},
    {"id": StringType()},
    {"id": IntegerType()},
    {"id": DecimalType(12, 2)},
    {"id": LongType(), "k": UUIDType()},
    {"id": StringType(), "k": StringType()},
    {"id": LongType(), "k": LongType()},
]


@st.composite
def feeds(draw: st.DrawFn) -> tuple[Schema, tuple[str, ...], bytes]:
    def rarely(often: int = 25) -> bool:
        return not draw(st.integers(0, often))

    keyed = draw(st.sampled_from(KEYS))
    others = draw(st.dictionaries(NAMES, st.sampled_from(list(VALUES)), max_size=3))
    kinds = keyed | others
    required = [name for name in kinds if rarely(5)]
    mvcc = '"mvcc_timestamp": "5.0000000000", ' if rarely(5) else ""
    oddly = rarely(1)

    def strangely() -> bool:
        return oddly and rarely()

    def cell(name: str) -> str:
        if strangely():
            return str(draw(ODD_CELLS))
        return "null" if name in others and rarely(5) else str(draw(GOOD[kinds[name]]))

    def message() -> str:
        if strangely():
            return str(draw(ODD_LINES))
        cells = {name: cell(name) for name in kinds if not strangely()}
        if strangely():
            cells[draw(NAMES)] = draw(ODD_CELLS)
        after = None if rarely(3) else row(cells)
        parts = [cells.get(name, "null") for name in keyed]
        key = draw(ODD_CELLS) if strangely() else f"[{', '.join(parts if not strangely() else [*parts, '1'])}]"
        when = draw(st.sampled_from(["", "5", "٣" * 19])) if strangely() else f"{draw(st.integers(0, 2**63 - 1))}.0000000003"
        text = line(after, key, when)
        if mvcc and not strangely():
            text = text.replace('"updated": "', f'{mvcc}"updated": "')
        return text.replace(": ", ":") if strangely() else text

    lines = [message() for _ in range(draw(st.integers(0, 5)))]
    ends = "\r\n" if strangely() else "\n"
    text = (ends.join(lines) + draw(st.sampled_from(["", ends]))).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 1, 2])) if strangely() else 0):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=2)) + text[at + draw(st.integers(0, 2)) :]
    return schema(kinds, required), tuple(keyed), text


EPOCHS = st.sampled_from([ALL_TIME, ALL_TIME, Epoch(Timestamp(2**62), Timestamp(2**63 - 5))])


@settings(max_examples=EXAMPLES, deadline=None)
@given(feeds(), EPOCHS)
def test_both_ways_give_the_same(feed, epoch):
    of, keys, text = feed
    taken(of, text, keys, epoch)
