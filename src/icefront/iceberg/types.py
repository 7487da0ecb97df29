"""Iceberg types as text: what people write in `columns`, and what wishes carry.

    text ──parse_type──▶ IcebergType ──print_type──▶ text

Nested types get ids counted from 1 inside the type: whoever puts them into a schema assigns fresh ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from itertools import count

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

_ICEBERG: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ns": TimestampNanoType(),
    "timestamptz_ns": TimestamptzNanoType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "binary": BinaryType(),
}
# SQL's words, as PostgreSQL and CockroachDB mean them: int8 is eight bytes.
_SQL = {
    "boolean": "bool",
    "int": "integer int4 int32 int2 smallint tinyint",
    "long": "bigint int8 int64",
    "float": "real float4",
    "double": "float8 double_precision",
    "timestamp": "datetime timestamp_ntz timestamp_without_time_zone",
    "timestamptz": "timestamp_ltz timestamp_with_time_zone",
    "string": "text varchar char character character_varying json jsonb inet interval enum",
    "binary": "bytes bytea blob varbinary",
}
_SIMPLE = _ICEBERG | {alias: _ICEBERG[name] for name, aliases in _SQL.items() for alias in aliases.split()}
_LENGTHS = frozenset({"varchar", "char", "character", "character_varying", "varbinary", "string"})
_PRECISIONS = frozenset({"time", "timestamp", "timestamptz", "timestamp_without_time_zone", "timestamp_with_time_zone"})
_NESTED = {"list": "list", "array": "list", "map": "map", "struct": "struct", "row": "struct"}
_WITH_ARGUMENTS = {"decimal": "decimal(12,2)", "fixed": "fixed[16]", "list": "list<string>", "map": "map<string, bigint>"} | {
    "struct": "struct<name: string>"
}
_KNOWN = (*_SIMPLE, "decimal", "numeric", "fixed", *_NESTED)
_TOKEN = re.compile(r"\s*(?:(?P<word>\w[\w$-]*)|(?P<quoted>`[^`]+`)|(?P<mark>[<>()\[\],:]))")
_MARKS = frozenset("<>()[],:")
_PHRASES = {
    ("double", "precision"): "double_precision",
    ("character", "varying"): "character_varying",
    ("timestamp", "with", "time", "zone"): "timestamp_with_time_zone",
    ("timestamp", "without", "time", "zone"): "timestamp_without_time_zone",
}
_DEEPEST = 32


def parse_type(text: str) -> IcebergType:
    """Read a type, e.g. ``bigint``, ``decimal(12,2)``, ``list<struct<a: int>>``.

    Raises ConfigError naming the closest type. Iceberg's names are meant where SQL differs (`float` has four bytes).
    """
    parser = _Parser(text)
    parsed = parser.type(0)
    parser.end()
    return parsed


def print_type(type_: IcebergType) -> str:
    """Print a type so that `parse_type` reads it back; ids and requiredness inside are not kept."""
    match type_:
        case ListType():
            return f"list<{print_type(type_.element_type)}>"
        case MapType():
            return f"map<{print_type(type_.key_type)}, {print_type(type_.value_type)}>"
        case StructType():
            return f"struct<{', '.join(f'{_print_name(f.name)}: {print_type(f.field_type)}' for f in type_.fields)}>"
        case DecimalType():
            return f"decimal({type_.precision},{type_.scale})"
        case _:
            return str(type_)


def _print_name(name: str) -> str:
    return name if re.fullmatch(r"\w[\w$-]*", name) else f"`{name}`"


class _Parser:
    """Recursive descent over the tokens; one place that words every refusal."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._next = 0
        self._ids = count(1)

    def type(self, depth: int) -> IcebergType:
        if depth > _DEEPEST:
            raise self._refuse(f"is nested deeper than {_DEEPEST} levels")
        word = self._phrase()
        if kind := _NESTED.get(word):
            return self._nested(kind, depth)
        if word in {"decimal", "numeric"}:
            return self._decimal()
        if word == "fixed":
            return self._fixed()
        simple = _SIMPLE.get(word)
        if simple is None:
            raise self._unknown(word)
        if self._peek() == "(":
            self._skip_size(word)
        return simple

    def end(self) -> None:
        if (rest := self._peek()) is not None:
            raise self._refuse(f'has "{rest}" after its end')

    def _nested(self, kind: str, depth: int) -> IcebergType:
        if self._peek() != "<":
            raise self._refuse(f"does not say what the {kind} holds", f"write e.g. {_WITH_ARGUMENTS[kind]}")
        self._expect("<")
        nested = {"list": self._list, "map": self._map, "struct": self._struct}[kind](depth + 1)
        self._expect(">")
        return nested

    def _list(self, depth: int) -> IcebergType:
        return ListType(next(self._ids), self.type(depth), element_required=False)

    def _map(self, depth: int) -> IcebergType:
        key_id, value_id = next(self._ids), next(self._ids)
        key = self.type(depth)
        self._expect(",")
        return MapType(key_id, key, value_id, self.type(depth), value_required=False)

    def _struct(self, depth: int) -> IcebergType:
        fields: list[NestedField] = []
        while True:
            name = self._name()
            if any(f.name == name for f in fields):
                raise self._refuse(f'names the field "{name}" twice')
            self._expect(":")
            fields.append(NestedField(next(self._ids), name, self.type(depth), required=False))
            if self._peek() != ",":
                return StructType(*fields)
            self._expect(",")

    def _decimal(self) -> IcebergType:
        if self._peek() != "(":
            raise self._refuse("has no precision and scale", "write e.g. decimal(12,2): digits in all, digits after the point")
        self._expect("(")
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._refuse(
                f"has precision {precision} and scale {scale}",
                "the precision is 1 to 38, the scale at most the precision",
            )
        return DecimalType(precision, scale)

    def _fixed(self) -> IcebergType:
        opening = self._peek()
        if opening not in {"[", "("}:
            raise self._refuse("has no length", "write e.g. fixed[16]")
        self._expect(opening)
        length = self._number()
        self._expect("]" if opening == "[" else ")")
        if length < 1:
            raise self._refuse(f"has length {length}", "the length is at least 1")
        return FixedType(length)

    def _skip_size(self, word: str) -> None:
        """Read over a length or precision: Iceberg's strings have no length, its times have microseconds."""
        if word not in _LENGTHS | _PRECISIONS:
            raise self._refuse(f"has arguments, {word} takes none")
        self._expect("(")
        size = self._number()
        self._expect(")")
        if word in _PRECISIONS and size > 6:
            raise self._refuse(
                f"has {size} digits of a second, {word} has 6", "for nanoseconds write timestamp_ns or timestamptz_ns"
            )

    def _phrase(self) -> str:
        for words, name in _PHRASES.items():
            if tuple(t.lower() for t in self._tokens[self._next : self._next + len(words)]) == words:
                self._next += len(words)
                return name
        return self._name().lower()

    def _name(self) -> str:
        word = self._peek()
        if word is None:
            raise self._refuse("ends too early")
        if word in _MARKS:
            raise self._refuse(f'has "{word}" where a name is expected')
        self._next += 1
        return word.strip("`")

    def _number(self) -> int:
        token = self._name()
        if not re.fullmatch(r"[0-9]{1,9}", token):
            raise self._refuse(f'has "{token}" where a number is expected')
        return int(token)

    def _expect(self, mark: str) -> None:
        if (found := self._peek()) != mark:
            what = f'"{found}"' if found else "its end"
            raise self._refuse(f'has {what} where "{mark}" is expected')
        self._next += 1

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _scan(self) -> list[str]:
        return list(self._each_token())

    def _each_token(self) -> Iterator[str]:
        at, text = 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._refuse(f'has "{text[at:].strip()[0]}", which no type has')
            at = match.end()
            yield match["word"] or match["quoted"] or match["mark"]

    def _unknown(self, word: str) -> ConfigError:
        close = difflib.get_close_matches(word, _KNOWN, n=1)
        hint = f' (did you mean "{close[0]}"?)' if close else ""
        return ConfigError(f'type "{word}" is not known{hint}', "see docs/configuration.md for the types")

    def _refuse(self, why: str, next_step: str = "see docs/configuration.md for the types") -> ConfigError:
        return ConfigError(f'type "{self._text}" {why}', next_step)
