"""Durations, sizes, partition fields and types: what is printed is read back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema, assign_fresh_schema_ids
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

from icefront.core.errors import ConfigError
from icefront.iceberg.types import parse_type, print_type
from icefront.settings import Duration, PartitionBy, Size
from icefront.settings.problems import Problem

relaxed = settings(deadline=None)
AMOUNTS = st.integers(1, 2**63 - 1)


@relaxed
@given(AMOUNTS)
def test_a_duration_is_read_as_it_is_printed(amount):
    assert Duration.parse(str(Duration(amount))) == Duration(amount)


@relaxed
@given(AMOUNTS)
def test_a_size_is_read_as_it_is_printed(amount):
    assert Size.parse(str(Size(amount))) == Size(amount)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("500ms", 5 * 10**8),
        ("10s", 10**10),
        ("5m", 3 * 10**11),
        ("2h", 72 * 10**11),
        ("1d", 864 * 10**11),
        ("1.5s", 15 * 10**8),
        (" 7 us ", 7000),
    ],
)
def test_durations(text, nanoseconds):
    assert Duration.parse(text).nanoseconds == nanoseconds


def test_durations_print_in_their_largest_whole_unit():
    assert [str(Duration.parse(text)) for text in ("90s", "60s", "1.5s", "24h")] == ["90s", "1m", "1500ms", "1d"]


def test_a_timedelta_is_a_duration():
    assert Duration.accept(timedelta(seconds=1.5)) == Duration.parse("1500ms")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MiB", 128 * 2**20),
        ("64MB", 64 * 10**6),
        ("1gib", 2**30),
        ("1KB", 1000),
        ("1.5kB", 1500),
        ("12B", 12),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text, size):
    assert Size.parse(text).bytes == size


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1", "1 s s", "0s", "1.0000000001s", "0.1ns", "99999999999999999999d", "1,5s", "١s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(Problem):
        Duration.parse(text)


@relaxed
@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_problem(text):
    for kind in (Duration, Size, PartitionBy):
        try:
            value = kind.parse(text)
        except Problem:
            continue
        assert kind.parse(str(value)) == value


PRIMITIVES = st.sampled_from(
    [
        BinaryType(),
        BooleanType(),
        DateType(),
        DoubleType(),
        FloatType(),
        IntegerType(),
        LongType(),
        StringType(),
        TimestampNanoType(),
        TimestampType(),
        TimestamptzNanoType(),
        TimestamptzType(),
        TimeType(),
        UUIDType(),
    ]
) | st.one_of(
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))),
    st.integers(1, 10**6).map(FixedType),
)
NAMES = st.text(st.characters(exclude_characters="`", codec="utf-8"), min_size=1, max_size=8)


def struct(fields: dict[str, IcebergType]) -> StructType:
    return StructType(*(NestedField(i, name, type_, required=False) for i, (name, type_) in enumerate(fields.items(), 1)))


TYPES = st.recursive(
    PRIMITIVES,
    lambda inner: st.one_of(
        inner.map(lambda t: ListType(1, t, element_required=False)),
        st.tuples(inner, inner).map(lambda kv: MapType(1, kv[0], 2, kv[1], value_required=False)),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(struct),
    ),
    max_leaves=6,
)


def numbered(type_: IcebergType) -> IcebergType:
    """Give ids in one way, so that only the shape is compared."""
    return assign_fresh_schema_ids(Schema(NestedField(1, "x", type_, required=False))).fields[0].field_type


@relaxed
@given(TYPES)
def test_a_type_is_read_as_it_is_printed(type_):
    assert numbered(parse_type(print_type(type_))) == numbered(type_)


@relaxed
@given(st.text("abcdefgilmnorstuz<>()[],: 0123456789`", max_size=20))
def test_any_text_is_a_type_or_an_error(text):
    try:
        parsed = parse_type(text)
    except ConfigError:
        return
    assert numbered(parse_type(print_type(parsed))) == numbered(parsed)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("bigint", LongType()),
        ("BIGINT", LongType()),
        ("int8", LongType()),
        ("integer", IntegerType()),
        ("smallint", IntegerType()),
        ("text", StringType()),
        ("varchar(20)", StringType()),
        ("character varying(20)", StringType()),
        ("jsonb", StringType()),
        ("bytes", BinaryType()),
        ("bytea", BinaryType()),
        ("bool", BooleanType()),
        ("real", FloatType()),
        ("float", FloatType()),
        ("double precision", DoubleType()),
        ("float8", DoubleType()),
        ("timestamp with time zone", TimestamptzType()),
        ("timestamptz(6)", TimestamptzType()),
        ("timestamp without time zone", TimestampType()),
        ("numeric(12, 2)", DecimalType(12, 2)),
        ("decimal(5)", DecimalType(5, 0)),
        ("fixed(16)", FixedType(16)),
    ],
)
def test_sql_names_are_understood(text, type_):
    assert parse_type(text) == type_


def test_nested_types():
    parsed = parse_type("map<string, array<struct<a: int, `b c`: decimal(4,1)>>>")
    assert print_type(parsed) == "map<string, list<struct<a: int, `b c`: decimal(4,1)>>>"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("bigintt", 'type "bigintt" is not known (did you mean "bigint"?)'),
        ("strng", 'type "strng" is not known (did you mean "string"?)'),
        ("list<strng>", 'type "strng" is not known (did you mean "string"?)'),
        ("", 'type "" ends too early'),
        ("decimal", 'type "decimal" has no precision and scale'),
        ("decimal(39,2)", 'type "decimal(39,2)" has precision 39 and scale 2'),
        ("decimal(4,5)", 'type "decimal(4,5)" has precision 4 and scale 5'),
        ("decimal(a,2)", 'type "decimal(a,2)" has "a" where a number is expected'),
        ("fixed", 'type "fixed" has no length'),
        ("fixed[0]", 'type "fixed[0]" has length 0'),
        ("list", 'type "list" does not say what the list holds'),
        ("map<int>", 'type "map<int>" has ">" where "," is expected'),
        ("list<int", 'type "list<int" has its end where ">" is expected'),
        ("int int", 'type "int int" has "int" after its end'),
        ("uuid(3)", 'type "uuid(3)" has arguments, uuid takes none'),
        ("timestamp(9)", 'type "timestamp(9)" has 9 digits of a second, timestamp has 6'),
        ("struct<a: int, a: int>", 'type "struct<a: int, a: int>" names the field "a" twice'),
        ("list<" * 40 + "int" + ">" * 40, None),
        ("in!t", 'type "in!t" has "!", which no type has'),
    ],
)
def test_a_wrong_type_is_named(text, fact):
    with pytest.raises(ConfigError) as caught:
        parse_type(text)
    assert caught.value.fact == fact or (fact is None and "nested deeper than 32" in caught.value.fact)
    assert caught.value.next_step
