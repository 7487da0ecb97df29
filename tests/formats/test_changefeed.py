"""Changefeed lines as CockroachDB's documentation prints them, and what becomes of them."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
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
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow, ConfigError
from icefront.core.ports import LOGICAL, OP, ORDER, WALL, Wish
from icefront.core.timestamps import Timestamp
from icefront.formats import stamps
from icefront.formats.changefeed import Decoded, Decoder, Envelope, Place
from icefront.formats.stamps import Tally

AT = Place("feed/2026-04-02/orders-1.ndjson", 11)
UPDATED = '"updated": "1585861087210714000.0000000007"'


def schema(*columns: tuple[str, IcebergType], required: tuple[str, ...] = ()) -> Schema:
    return Schema(*(NestedField(i, name, kind, required=name in required) for i, (name, kind) in enumerate(columns, 1)))


DOGS = schema(("id", LongType()), ("name", StringType()))


def decode(
    of: Schema, *lines: str, keys: tuple[str, ...] = ("id",), envelope: Envelope = "wrapped", order: int = 0
) -> list[dict[str, Any]]:
    decoded = Decoder(of, keys, envelope).decode("\n".join(lines).encode(), AT, order)
    assert decoded.wishes == ()
    return list(decoded.changes.to_pylist())


def wishes(of: Schema, *lines: str) -> tuple[Wish, ...]:
    return Decoder(of, ["id"]).decode("\n".join(lines).encode(), AT, 0).wishes


def refused(of: Schema, *lines: str, keys: tuple[str, ...] = ("id",), envelope: Envelope = "wrapped") -> str:
    with pytest.raises(BadRow) as caught:
        Decoder(of, keys, envelope).decode("\n".join(lines).encode(), AT, 0)
    assert caught.value.next_step
    return caught.value.fact


def row(**cells: str) -> str:
    columns = ", ".join(f'"{name}": {text}' for name, text in {"id": "1", **cells}.items())
    return f'{{"after": {{{columns}}}, "key": [{cells.get("id", "1")}], {UPDATED}}}'


def value(kind: IcebergType, json: str) -> Any:
    return decode(schema(("id", LongType()), ("v", kind)), row(v=json))[0]["v"]


def unfit(kind: IcebergType, json: str) -> str:
    return refused(schema(("id", LongType()), ("v", kind)), row(), row(v=json))


def test_an_upsert_gives_its_row_and_its_timestamp():
    (change,) = decode(DOGS, f'{{"after": {{"id": 1, "name": "Petee"}}, "key": [1], {UPDATED}}}', order=500)
    assert change == {"id": 1, "name": "Petee", OP: 1, WALL: 1585861087210714000, LOGICAL: 7, ORDER: 500}


def test_a_delete_takes_its_key_from_the_key():
    (change,) = decode(DOGS, f'{{"after": null, "key": [1], {UPDATED}}}')
    assert (change["id"], change["name"], change[OP]) == (1, None, -1)


def test_the_table_can_be_written_without_casts():
    changes = Decoder(DOGS, ["id"]).decode(row(name='"x"').encode(), AT, 0).changes
    assert changes.schema.types[:2] == schema_to_pyarrow(DOGS).types
    assert changes.column_names == ["id", "name", OP, WALL, LOGICAL, ORDER]
    assert changes.schema.types[2:] == [pa.int8(), pa.int64(), pa.int32(), pa.int64()]
    assert changes.schema.field("id").metadata[b"PARQUET:field_id"] == b"1"


def test_no_lines_give_no_changes():
    assert decode(DOGS, "") == []


def test_keys_of_several_columns_and_types_come_in_primary_key_order():
    of = schema(
        ("id", LongType()), ("tenant", UUIDType()), ("day", DateType()), ("amount", DecimalType(9, 2)), ("n", StringType())
    )
    keys = ("day", "tenant", "id", "amount")
    line = f'{{"after": null, "key": ["2026-04-02", "{uuid.UUID(int=5)}", 9, 1.50], {UPDATED}}}'
    (change,) = decode(of, line, keys=keys)
    assert (change["day"], change["tenant"], change["id"]) == (dt.date(2026, 4, 2), uuid.UUID(int=5), 9)
    assert (change["amount"], change["n"]) == (Decimal("1.50"), None)


def test_a_delete_without_a_key_takes_it_from_before():
    (change,) = decode(DOGS, f'{{"after": null, "before": {{"id": 3, "name": "x"}}, {UPDATED}}}')
    assert (change["id"], change["name"]) == (3, None)


@pytest.mark.parametrize("line", [f'{{"after": null, {UPDATED}}}', f'{{"after": null, "key": null, "before": null, {UPDATED}}}'])
def test_a_delete_with_neither_is_refused(line):
    assert refused(DOGS, row(name='"x"'), line) == f"{AT.path}:12: missing key: a delete without the values of (id)"


def test_a_key_of_other_length_is_refused():
    assert "the key [1, 2] has not the 1 values of (id)" in refused(DOGS, f'{{"after": null, "key": [1, 2], {UPDATED}}}')


@pytest.mark.parametrize(
    "line", [row(id="null"), f'{{"after": {{"name": "x"}}, {UPDATED}}}', f'{{"after": null, "key": [null], {UPDATED}}}']
)
def test_a_null_in_a_key_column_is_refused(line):
    assert f"{AT.path}:12: null in key column id" in refused(DOGS, row(), line)


def test_a_null_in_a_required_column_is_refused_but_not_in_a_delete():
    of = schema(("id", LongType()), ("name", StringType()), required=("id", "name"))
    delete = f'{{"after": null, "key": [1], {UPDATED}}}'
    assert decode(of, delete)[0]["name"] is None
    assert "orders-1.ndjson:13: required column name is null" in refused(of, delete, row(name='"x"'), row())


def test_a_missing_column_is_null():
    assert decode(DOGS, row()) == [{**decode(DOGS, row(name="null"))[0]}]


def test_mvcc_timestamp_serves_where_updated_is_missing():
    lines = f'{{"after": {{"id": 1}}, "mvcc_timestamp": "5.0000000002"}}\n{row()}'
    assert [c[WALL] for c in decode(DOGS, lines)] == [5, 1585861087210714000]


def test_a_line_without_a_timestamp_is_refused():
    assert f"{AT.path}:12: neither" in refused(DOGS, row(), '{"after": {"id": 1}}')


@pytest.mark.parametrize(
    "stamp", ["", "5", "5.1", "x.0000000000", "-5.0000000000", "99999999999999999999.0000000000", "5.9999999999"]
)
def test_a_strange_timestamp_is_refused(stamp):
    line = f'{{"after": {{"id": 1}}, "updated": "{stamp}"}}'
    assert f"{AT.path}:12:" in refused(DOGS, row(), line)


def test_blank_lines_are_skipped_and_still_count():
    changes = decode(DOGS, "", row(), "  ", "\r", row(), "")
    assert [c[ORDER] for c in changes] == [1, 4]


def test_windows_line_ends_are_legal():
    assert len(decode(DOGS, row() + "\r", row() + "\r", "")) == 2


def test_resolved_lines_carry_no_change():
    changes = decode(DOGS, row(), '{"resolved": "1585861087210714000.0000000000"}', row())
    assert [c[ORDER] for c in changes] == [0, 2]


def test_a_line_with_neither_after_nor_resolved_is_refused():
    assert f"{AT.path}:12: no change in this line" in refused(DOGS, row(), f"{{{UPDATED}}}")


def test_unknown_members_of_the_envelope_are_left_alone():
    assert len(decode(DOGS, f'{{"after": {{"id": 1}}, "topic": "dogs", "op": "c", {UPDATED}}}')) == 1


@pytest.mark.parametrize(
    "line", ['{"after": {"id": 1}', "nonsense", "null", "[1]", '{"after": 5}', '{"after": {"id": 1}} {"x": 1}']
)
def test_malformed_json_is_refused_with_its_line(line):
    assert refused(DOGS, row(), "", line, row()).startswith(f"{AT.path}:13: not a changefeed message")


def test_bytes_that_are_no_utf8_are_refused_with_their_line():
    for column in (b'"name": "\xff"', b'"name": {"a": "\xff"}'):
        lines = row().encode() + b'\n{"after": {"id": 1, ' + column + b"}, " + UPDATED.encode() + b"}"
        with pytest.raises(BadRow, match=r"orders-1\.ndjson:12: "):
            Decoder(DOGS, ["id"]).decode(lines, AT, 0)


def test_a_wrong_type_names_line_column_value_and_type():
    of = schema(("id", LongType()), ("paid", BooleanType()))
    fact = refused(of, row(paid="true"), row(paid='"yes"'))
    assert fact.startswith(f'{AT.path}:12: column paid: "yes" is no boolean')


def test_long_values_are_shortened_in_messages():
    assert len(unfit(LongType(), f'"{"x" * 5000}"')) < 300


def test_column_names_may_be_anything():
    of = schema(("id", LongType()), ("a b", LongType()), ("class", LongType()), ("é.x", LongType()), ("__id", LongType()))
    line = row(**{"a b": "1", "class": "2", "é.x": "3", "__id": "4"})
    (change,) = decode(of, line)
    assert [change[c] for c in ("a b", "class", "é.x", "__id")] == [1, 2, 3, 4]


# ── types ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

UUID = "0e4d1b5c-9d6b-4b9e-8f5a-0123456789ab"
NANOS = 1775163487210714123


@pytest.mark.parametrize(
    ("kind", "json", "expected"),
    [
        (BooleanType(), "true", True),
        (IntegerType(), "-2147483648", -(2**31)),
        (LongType(), "9223372036854775807", 2**63 - 1),
        (LongType(), "9007199254740993", 2**53 + 1),
        (DoubleType(), "0.1", 0.1),
        (DoubleType(), "7", 7.0),
        (DoubleType(), "9007199254740994", 2.0**53 + 2),
        (DoubleType(), '"Infinity"', float("inf")),
        (DoubleType(), '"-Infinity"', float("-inf")),
        (DoubleType(), '"Inf"', float("inf")),
        (FloatType(), "0.5", 0.5),
        (FloatType(), '"-Infinity"', float("-inf")),
        (DecimalType(19, 2), "12345678901234567.89", Decimal("12345678901234567.89")),
        (DecimalType(19, 2), '"12345678901234567.89"', Decimal("12345678901234567.89")),
        (DecimalType(12, 2), "1E+2", Decimal("100.00")),
        (DecimalType(12, 2), "1.500", Decimal("1.50")),
        (DecimalType(38, 0), "99999999999999999999999999999999999999", Decimal(10**38 - 1)),
        (StringType(), '"a\\u00e9\\n"', "aé\n"),
        (StringType(), '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
        (StringType(), "[1,2]", "[1,2]"),
        (StringType(), "12345678901234567.890", "12345678901234567.890"),
        (StringType(), "true", "true"),
        (StringType(), '"null"', "null"),
        (StringType(), "null", None),
        (DateType(), '"2026-04-02"', dt.date(2026, 4, 2)),
        (TimeType(), '"20:58:07.210714"', dt.time(20, 58, 7, 210714)),
        (TimeType(), '"20:58:07"', dt.time(20, 58, 7)),
        (TimestampType(), '"2026-04-02T20:58:07.210714"', dt.datetime(2026, 4, 2, 20, 58, 7, 210714)),  # noqa: DTZ001
        (TimestamptzType(), '"2026-04-02T20:58:07.210714Z"', dt.datetime(2026, 4, 2, 20, 58, 7, 210714, dt.UTC)),
        (TimestamptzType(), '"2026-04-02T20:58:07.210714000Z"', dt.datetime(2026, 4, 2, 20, 58, 7, 210714, dt.UTC)),
        (TimestamptzType(), '"2026-04-02T20:58:07+02:00"', dt.datetime(2026, 4, 2, 18, 58, 7, 0, dt.UTC)),
        (UUIDType(), f'"{UUID}"', uuid.UUID(UUID)),
        (UUIDType(), f'"{UUID.upper()}"', uuid.UUID(UUID)),
        (BinaryType(), '"\\\\x0a0b"', b"\x0a\x0b"),
        (BinaryType(), '"\\\\x"', b""),
        (FixedType(2), '"\\\\x0a0b"', b"\x0a\x0b"),
        (ListType(9, LongType(), element_required=False), "[1, null, 3]", [1, None, 3]),
        (ListType(9, DecimalType(4, 1), element_required=False), "[1.5, null]", [Decimal("1.5"), None]),
        (ListType(9, StringType(), element_required=False), '["a", {"b": 1}, null]', ["a", '{"b": 1}', None]),
        (MapType(9, StringType(), 10, DateType(), value_required=False), '{"a": "2026-04-02"}', [("a", dt.date(2026, 4, 2))]),
        (
            StructType(
                NestedField(9, "x y", DecimalType(4, 1)), NestedField(10, "z", ListType(11, UUIDType(), element_required=False))
            ),
            f'{{"x y": 1.5, "z": ["{UUID}"]}}',
            {"x y": Decimal("1.5"), "z": [uuid.UUID(UUID)]},
        ),
    ],
    ids=repr,
)
def test_a_value_is_exact(kind, json, expected):
    assert value(kind, json) == expected
    assert value(kind, "null") is None


def test_nan_is_a_double():
    assert repr(value(DoubleType(), '"NaN"')) == "nan"
    assert repr(value(FloatType(), '"NaN"')) == "nan"


@pytest.mark.parametrize(
    ("kind", "json", "expected"),
    [
        (TimestampNanoType(), '"2026-04-02T20:58:07.210714123"', NANOS),
        (TimestamptzNanoType(), '"2026-04-02T22:58:07.210714123+02:00"', NANOS),
    ],
)
def test_nanoseconds_are_kept_where_the_table_has_them(kind, json, expected):
    of = schema(("id", LongType()), ("v", kind))
    changes = Decoder(of, ["id"]).decode(row(v=json).encode(), AT, 0).changes
    assert changes["v"].cast(pa.int64()).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("kind", "json"),
    [
        (LongType(), "1.0"),
        (LongType(), "1e3"),
        (LongType(), '"1"'),
        (LongType(), "true"),
        (LongType(), "9223372036854775808"),
        (LongType(), "-9223372036854775809"),
        (IntegerType(), "9223372036854775808"),
        (BooleanType(), "1"),
        (DoubleType(), '"nan"'),
        (DoubleType(), '"1.5"'),
        (DoubleType(), "1e400"),
        (DoubleType(), "9007199254740993"),
        (DecimalType(12, 2), "1.505"),
        (DecimalType(12, 2), '"NaN"'),
        (DecimalType(12, 2), '"Infinity"'),
        (DecimalType(12, 2), "true"),
        (DecimalType(12, 2), '{"a": 1}'),
        (DecimalType(12, 2), '""'),
        (DecimalType(38, 0), "100000000000000000000000000000000000000"),
        (DateType(), '"infinity"'),
        (DateType(), '"2026-02-30"'),
        (DateType(), '"12026-04-02"'),
        (TimeType(), '"24:00:00"'),
        (TimeType(), '"20:58:07.2107141"'),
        (TimeType(), '"20:58"'),
        (TimestampType(), '"2026-04-02T20:58:07Z"'),
        (TimestampType(), '"2026-04-02T20:58:07.2107141"'),
        (TimestampType(), '"294276-12-31T23:59:59"'),
        (TimestamptzType(), '"2026-04-02T20:58:07"'),
        (TimestamptzType(), '"2026-04-02T20:58:07.2107141Z"'),
        (UUIDType(), '"0e4d1b5c9d6b4b9e8f5a0123456789ab"'),
        (UUIDType(), '"0e4d1b5c-9d6b-4b9e-8f5a-0123456789a "'),
        (UUIDType(), '"0e4d1b5c-9d6b-4b9e-8f5a-0123456789ag"'),
        (UUIDType(), '"0e4d1b5c-9d6b-4b9e-8f5a-0123456789é"'),
        (BinaryType(), '"0a0b"'),
        (BinaryType(), '"\\\\x0a0"'),
        (BinaryType(), '"\\\\x0a 0b "'),
        (FixedType(2), '"\\\\x0a0b0c"'),
        (ListType(9, LongType(), element_required=False), '["1"]'),
        (ListType(9, LongType(), element_required=True), "[1, null]"),
        (ListType(9, DecimalType(4, 1), element_required=False), "[1.55]"),
        (StructType(NestedField(9, "x", LongType())), '{"y": 1}'),
        (StructType(NestedField(9, "x", LongType(), required=True)), "{}"),
        (MapType(9, StringType(), 10, DateType(), value_required=False), '{"a": "no"}'),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(kind, json):
    fact = unfit(kind, json)
    assert fact.startswith(f"{AT.path}:12: column v: {json[:10]}")
    assert str(kind)[:6] in fact


def test_a_type_that_json_cannot_carry_is_a_configuration_error():
    with pytest.raises(ConfigError, match="cannot be read from JSON"):
        Decoder(schema(("id", LongType()), ("v", MapType(9, LongType(), 10, LongType()))), ["id"])


def test_a_key_that_is_no_column_is_a_configuration_error():
    with pytest.raises(ConfigError, match="key column nope"):
        Decoder(DOGS, ["nope"])


def test_a_single_that_is_printed_short_is_not_widened():
    of = schema(("id", LongType()), ("v", FloatType()))
    assert [c["v"] for c in decode(of, row(v="0.1"), row(v="0.10000000149011612"))] == [0.10000000149011612] * 2


# ── wishes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_column_becomes_a_wish_of_all_rows_types():
    lines = (row(), row(age="3", good="null"), row(age="3.5", tags="[1]"), row(good="true"))
    assert wishes(DOGS, *lines) == (
        Wish("age", "double", f"{AT.path}:12"),
        Wish("tags", "string", f"{AT.path}:13"),
        Wish("good", "boolean", f"{AT.path}:14"),
    )


def test_an_unknown_column_of_nulls_waits_for_a_value():
    decoder = Decoder(DOGS, ["id"])
    for _ in range(2):
        decoded = decoder.decode(row(age="null").encode(), AT, 0)
        assert decoded.wishes == ()
        assert decoded.changes.num_rows == 1
    assert decoder.decode(row(age="3").encode(), AT, 0).wishes == (Wish("age", "long", f"{AT.path}:11"),)


def test_a_bad_row_beside_an_unknown_column_is_refused():
    assert "column id" in refused(DOGS, row(age="3"), row(id='"x"'))


@pytest.mark.parametrize(
    ("kind", "json", "wider"),
    [
        (IntegerType(), "2147483648", "long"),
        (FloatType(), "0.123456789012", "double"),
        (FloatType(), "1e300", "double"),
        (DecimalType(4, 2), "100.00", "decimal(5, 2)"),
        (DecimalType(4, 2), "1234567.5", "decimal(9, 2)"),
    ],
)
def test_a_value_that_fits_a_wider_type_becomes_a_wish(kind, json, wider):
    of = schema(("id", LongType()), ("v", kind))
    assert wishes(of, row(), row(v="1"), row(v=json)) == (Wish("v", wider, f"{AT.path}:13", widens=str(kind)),)


def test_a_key_column_can_be_widened_by_a_delete():
    of = schema(("id", IntegerType()))
    (wish,) = wishes(of, f'{{"after": null, "key": [2147483648], {UPDATED}}}')
    assert (wish.type, wish.widens) == ("long", "int")


def test_strings_may_turn_into_json_and_back():
    decoder = Decoder(DOGS, ["id"])
    names = ['"plain"', '{"a": 1}', "5", '"plain"', "null"]
    seen = [decoder.decode(row(name=n).encode(), AT, 0).changes["name"][0].as_py() for n in names]
    assert seen == ["plain", '{"a": 1}', "5", "plain", None]


def test_a_string_key_may_be_a_number_in_a_delete():
    of = schema(("id", StringType()), ("name", StringType()))
    lines = (row(id='"x"'), f'{{"after": null, "key": [7], {UPDATED}}}', f'{{"after": null, "before": {{"id": 8}}, {UPDATED}}}')
    assert [c["id"] for c in decode(of, *lines)] == ["x", "7", "8"]


def test_a_decoder_can_be_pickled():
    decoder = pickle.loads(pickle.dumps(Decoder(DOGS, ["id"], "bare")))
    assert decoder.decode(b'{"id": 1, "name": "x", "__crdb__": {' + UPDATED.encode() + b"}}", AT, 0).changes.num_rows == 1


# ── envelopes without a wrap ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("envelope", ["bare", "row"])
def test_a_flat_row_has_its_timestamp_under_crdb(envelope):
    (change,) = decode(DOGS, f'{{"__crdb__": {{{UPDATED}}}, "id": 1, "name": "Petee"}}', envelope=envelope)
    assert (change["id"], change["name"], change[OP], change[LOGICAL]) == (1, "Petee", 1, 7)


@pytest.mark.parametrize("envelope", ["bare", "row"])
def test_a_flat_row_without_metadata_is_refused(envelope):
    assert "neither" in refused(DOGS, '{"id": 1, "name": "Petee"}', envelope=envelope)


def test_a_bare_row_of_nothing_but_metadata_and_a_key_is_a_delete():
    (change,) = decode(DOGS, f'{{"__crdb__": {{"key": [4], {UPDATED}}}}}', envelope="bare")
    assert (change["id"], change[OP]) == (4, -1)


def test_a_bare_row_of_nulls_may_be_a_delete_and_is_refused():
    line = f'{{"__crdb__": {{"key": [4], {UPDATED}}}, "id": 4, "name": null}}'
    assert "a delete and a row of nulls look the same" in refused(DOGS, line, envelope="bare")


def test_a_flat_resolved_line_carries_no_change():
    assert decode(DOGS, '{"__crdb__": {"resolved": "5.0000000000"}}', envelope="bare") == []


@pytest.mark.parametrize("blank", ["", "null"])
def test_an_empty_message_is_a_delete_without_a_key_in_envelope_row(blank):
    line = f'{{"__crdb__": {{{UPDATED}}}, "id": 1, "name": "x"}}'
    assert refused(DOGS, line, blank, line, envelope="row").startswith(f"{AT.path}:12:")


def test_a_flat_unknown_column_becomes_a_wish():
    line = f'{{"__crdb__": {{{UPDATED}}}, "id": 1, "name": "x", "age": 5}}'
    assert Decoder(DOGS, ["id"], "bare").decode(line.encode(), AT, 0).wishes == (Wish("age", "long", f"{AT.path}:11"),)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_a_column_whose_name_cannot_be_read_is_named(name: str):
    line = json.dumps({"after": {"id": 1, name: "x"}, "key": [1], "updated": "1585861087210714000.0000000000"})
    with pytest.raises(
        BadRow, match=r"orders-1.ndjson:11: column .* has a quote, a backslash or a control character in its name"
    ):
        decode(DOGS, line)
    with pytest.raises(ConfigError, match="rename it in the source, and in the table"):
        decode(schema(("id", LongType()), (name, StringType())), line)


def test_several_lines_of_one_chunk_may_show_that_a_string_column_holds_json():
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "doc", StringType()))
    line = '{{"after": {{"doc": {{"a": {0}}}, "id": {0}}}, "key": [{0}], "updated": "1.0000000000"}}\n'
    decoded = Decoder(schema, ["id"]).decode("".join(line.format(i) for i in range(3)).encode(), Place("f", 1), 0)
    assert decoded.changes["doc"].to_pylist() == ['{"a": 0}', '{"a": 1}', '{"a": 2}']


def test_ignored_columns_are_left_out_without_a_wish():
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    line = b'{"after": {"id": 1, "extra": [1, {"x": 2}]}, "key": [1], "updated": "1.0000000000"}'
    decoded = Decoder(schema, ["id"], ignored=["extra"]).decode(line, Place("f", 1), 0)
    assert decoded.wishes == ()
    assert decoded.changes["id"].to_pylist() == [1]


# ── the epoch chooses lines before anything in them counts ───────────────────────────────────────────────────────────

EPOCH = Epoch(Timestamp(10), Timestamp(20, 5))


def said(at: str, after: str = '{"id": 1}', more: str = "") -> str:
    key = json.dumps([json.loads(after).get("id", 1)])
    return f'{{"after": {after}, "key": {key}, "updated": "{at}"{more}}}'


BELOW, INSIDE, LAST, BEYOND = "9.2147483647", "10.0000000000", "20.0000000004", "20.0000000005"


def within(of: Schema, *lines: str, envelope: Envelope = "wrapped") -> Decoded:
    return Decoder(of, ["id"], envelope).decode("\n".join(lines).encode(), AT, 100, EPOCH)


def test_only_changes_inside_the_epoch_come_and_all_are_counted():
    decoded = within(DOGS, said(BELOW), said(INSIDE), said(BEYOND), said(LAST), said(BEYOND))
    assert [(c[WALL], c[LOGICAL], c[ORDER]) for c in decoded.changes.to_pylist()] == [(10, 0, 101), (20, 4, 103)]
    assert decoded.tally == Tally(below=1, inside=2, beyond=2, greatest=Timestamp(20, 5))
    assert decoded.lines == 5


@pytest.mark.parametrize("at", [BELOW, BEYOND])
@pytest.mark.parametrize(
    "line",
    [
        '{{"after": {{"id": 1, "dropped": 5}}, "key": [1], "updated": "{at}"}}',
        '{{"after": {{"id": "x"}}, "key": [1], "updated": "{at}"}}',
        '{{"after": {{"id": null}}, "key": [1], "updated": "{at}"}}',
        '{{"after": {{"id": 1, "n": 99999999999}}, "key": [1], "updated": "{at}"}}',
        '{{"after": {{"id": 1, "n": "x"}}, "key": [1], "updated": "{at}"}}',
        '{{"after": null, "key": [1, 2], "updated": "{at}"}}',
        '{{"after": null, "updated": "{at}"}}',
        '{{"after": 5, "updated": "{at}"}}',
        '{{"updated": "{at}"}}',
        '{{"after": {{"id": 99999999999999999999}}, "key": [1], "updated": "{at}"}}',
        '{{"after": {{"id": 1}}, "key": [1], "mvcc_timestamp": "{at}"}}',
    ],
)
def test_what_lines_of_other_epochs_wish_for_or_do_wrong_does_not_count(line: str, at: str):
    of = schema(("id", LongType()), ("n", IntegerType()))
    decoded = within(of, said(INSIDE), line.format(at=at), said(INSIDE, '{"id": 3}'))
    assert decoded.wishes == ()
    assert decoded.changes["id"].to_pylist() == [1, 3]
    assert decoded.changes[ORDER].to_pylist() == [100, 102]
    assert decoded.tally.below + decoded.tally.beyond == 1
    assert decoded.tally.greatest == max(Timestamp.parse(at), Timestamp(10))


def test_wishes_and_errors_inside_the_epoch_keep_their_lines():
    strange = [said(BELOW, '{"old": 1}'), said(BEYOND, '{"id": "x"}')]
    assert within(DOGS, *strange, said(INSIDE, '{"id": 1, "new": 2}')).wishes == (Wish("new", "long", f"{AT.path}:13"),)
    with pytest.raises(BadRow, match=r"orders-1\.ndjson:13: "):
        within(DOGS, *strange, said(INSIDE, '{"id": "x"}'))


@pytest.mark.parametrize(
    "line", ["nonsense", '{"after": {"id": 1}}', '{"after": {"id": 1}, "updated": 9}', said("never"), said(BELOW)[:-1]]
)
def test_a_line_that_does_not_say_when_it_happened_is_always_refused(line: str):
    with pytest.raises(BadRow, match=r"orders-1\.ndjson:12: "):
        within(DOGS, said(BELOW, '{"old": 1}'), line)


@pytest.mark.parametrize("envelope", ["bare", "row"])
def test_flat_lines_are_chosen_too(envelope: Envelope):
    flat = '{{"__crdb__": {{"updated": "{0}"}}, "id": {1}, "name": "x"}}'
    lines = [flat.format(INSIDE, 1), flat.format(BELOW, '"x"'), flat.format(BEYOND, '1, "new": 1'), flat.format(BEYOND, 4)]
    decoded = within(DOGS, *lines, envelope=envelope)
    assert decoded.changes["id"].to_pylist() == [1]
    assert decoded.tally == Tally(below=1, inside=1, beyond=2, greatest=Timestamp(20, 5))


def test_resolved_lines_are_not_counted():
    assert within(DOGS, '{"resolved": "5.0000000000"}', said(BELOW, '{"old": 1}')).tally.read == 1


# ── timestamps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_timestamps_of_any_width_are_read():
    texts = ["1585861087210714000.0000000007", "9223372036854775807.2147483647", "5.0000000000"]
    for some in (texts[:2], texts, [], texts[2:]):
        read = stamps.read(some)
        assert [str(Timestamp(int(w), int(n))) for w, n in zip(read.wall, read.logical, strict=True)] == some


@pytest.mark.parametrize(
    "texts",
    [
        ["1585861087210714000.000000000", "11585861087210714000.0000000007"],  # together as long as two that are right
        ["1585861087210714000.0000000007\n1585861087210714000.0000000007"],
        ["1585861087210714000,0000000007"],
        ["158586108721071400x.0000000007"],
        ["9223372036854775808.0000000000"],
        ["1585861087210714000.2147483648"],
    ],
)
def test_texts_that_are_almost_timestamps_are_none(texts: list[str]):
    with pytest.raises(ValueError, match="timestamp"):
        stamps.read(texts)


def test_several_values_in_a_line_and_one_over_two_lines_do_not_make_up_for_each_other():
    line = f'{row()}{row()}\n{{"after": {{"id": 1, "name": {{}}\n}}, "key": [1], {UPDATED}}}'
    assert "orders-1.ndjson:11: not a changefeed message" in refused(DOGS, line)


def test_a_strange_before_does_not_hide_what_is_wrong():
    of = schema(("id", LongType()), ("v", DoubleType()))
    assert "column v: 9007199254740993" in refused(of, f'{{"after": {{"id": 1, "v": 9007199254740993}}, "before": 5, {UPDATED}}}')
    assert "missing key" in refused(of, f'{{"after": null, "before": 5, {UPDATED}}}')


# ── renamed columns ───────────────────────────────────────────────────────────────────────────────────────────────────

PRICES = schema(("id", LongType()), ("price", DecimalType(9, 2)), ("name", StringType()))


def renamed(of: Schema, *lines: str, renames: dict[str, str], envelope: Envelope = "wrapped") -> Decoded:
    decoder = pickle.loads(pickle.dumps(Decoder(of, ["id"], envelope, renames=renames)))
    decoded: Decoded = decoder.decode("\n".join(lines).encode(), AT, 0)
    return decoded


def test_a_line_with_a_column_s_old_name_lands_in_the_new_one():
    lines = (
        row(amount="1.5", name='"a"'),
        row(price="2.5"),
        row(amount="null"),
        row(),
        f'{{"after": null, "key": [1], {UPDATED}}}',
    )
    decoded = renamed(PRICES, *lines, renames={"price": "amount"})
    assert decoded.wishes == ()
    assert decoded.changes["price"].to_pylist() == [Decimal("1.50"), Decimal("2.50"), None, None, None]
    assert decoded.changes["name"].to_pylist() == ["a", None, None, None, None]


def test_a_name_that_was_changed_twice_is_followed():
    decoded = renamed(PRICES, row(sum="1"), row(amount="2"), row(price="3"), renames={"price": "amount", "amount": "sum"})
    assert decoded.changes["price"].to_pylist() == [1, 2, 3]


def test_names_are_not_followed_while_the_table_has_the_old_column():
    both = schema(("id", LongType()), ("price", LongType()), ("amount", LongType()))
    old = schema(("id", LongType()), ("amount", LongType()))
    assert renamed(both, row(amount="1"), renames={"price": "amount"}).changes["amount"].to_pylist() == [1]
    assert renamed(old, row(amount="1"), row(price="2"), renames={"price": "amount"}).wishes == (
        Wish("price", "long", f"{AT.path}:12"),
    )


def test_a_row_with_both_names_is_refused():
    with pytest.raises(BadRow, match=r"orders-1\.ndjson:12: a row with both amount and price"):
        renamed(PRICES, row(amount="1"), row(amount="1", price="null"), renames={"price": "amount"})


def test_a_renamed_column_is_looked_at_as_closely_as_any_other():
    renames = {"price": "amount", "name": "title"}
    assert renamed(PRICES, row(title='{"a": 1}'), row(title='"b"'), renames=renames).changes["name"].to_pylist() == [
        '{"a": 1}',
        "b",
    ]
    assert renamed(PRICES, row(amount="99999999.5"), renames=renames).wishes == (
        Wish("price", "decimal(10, 2)", f"{AT.path}:11", widens="decimal(9, 2)"),
    )
    assert renamed(PRICES, row(amount="1", new="2"), renames=renames).wishes == (Wish("new", "long", f"{AT.path}:11"),)
    with pytest.raises(BadRow, match='column price: "x" does not fit'):
        renamed(PRICES, row(amount='"x"'), renames=renames)


def test_a_renamed_key_is_found_in_before():
    decoded = renamed(DOGS, f'{{"after": null, "before": {{"no": 3}}, {UPDATED}}}', renames={"id": "no"})
    assert decoded.changes["id"].to_pylist() == [3]


def test_a_flat_row_with_an_old_name_is_no_delete():
    line = f'{{"__crdb__": {{"key": [4], {UPDATED}}}, "title": "x", "id": 4}}'
    decoded = renamed(DOGS, line, renames={"name": "title"}, envelope="bare")
    assert decoded.changes.to_pylist()[0] | {"id": 4, "name": "x", OP: 1} == decoded.changes.to_pylist()[0]


def test_keys_that_are_not_the_rows_own_are_refused_before_a_delete_goes_by_them():
    of = schema(("id", LongType()), ("no", LongType()))
    line = f'{{"after": {{"id": 1, "no": 7}}, "key": [1], {UPDATED}}}'
    assert refused(of, line, keys=("no",)) == f"{AT.path}:11: the key [1] is not the row's (no)"
    assert decode(of, line)[0]["no"] == 7
