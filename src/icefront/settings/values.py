"""Values that settings are made of: durations, sizes, shares, hours, partition fields, table names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from icefront.settings.problems import Problem, closest, describe

_TIME_UNITS = {"d": 86_400 * 10**9, "h": 3_600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SIZE_UNITS = {
    "TiB": 2**40,
    "TB": 10**12,
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
    "B": 1,
}
_SPOKEN_SIZES = {unit.lower(): unit for unit in _SIZE_UNITS}
_QUANTITY = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?\s*([A-Za-zµ]*)")
_MOST = 2**63 - 1
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
_HOURS = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")
_DAY = 24 * 60


class _Written:
    """A value that files write as text; the constructor of the model takes the value or the text."""

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def accept(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise Problem(f"expected {cls._expected()}, got {describe(value)}", cls._example())
        return cls.parse(value)

    @classmethod
    def _expected(cls) -> str:
        return "text"

    @classmethod
    def _example(cls) -> str:
        return ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.accept, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string"}


@dataclass(frozen=True, slots=True, order=True)
class Duration(_Written):
    """A stretch of time, to the nanosecond: ``500ms``, ``10s``, ``5m``, ``1d``."""

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_quantity(text, _TIME_UNITS, lambda unit: unit, "a duration", cls._example()))

    @classmethod
    def accept(cls, value: object) -> Self:
        if isinstance(value, timedelta):
            return cls(value // timedelta(microseconds=1) * 1000)
        return super(Duration, cls).accept(value)

    @classmethod
    def _expected(cls) -> str:
        return "a duration"

    @classmethod
    def _example(cls) -> str:
        return "write a number and a unit, e.g. 500ms, 10s, 5m, 2h or 1d"

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 10**9

    def __str__(self) -> str:
        return _spell(self.nanoseconds, _TIME_UNITS)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*(ns|us|ms|s|m|h|d)$|\$\{"}


@dataclass(frozen=True, slots=True, order=True)
class Size(_Written):
    """A number of bytes: ``128MiB``, ``64MB``."""

    bytes: int

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_quantity(text, _SIZE_UNITS, lambda unit: _SPOKEN_SIZES.get(unit.lower(), unit), "a size", cls._example()))

    @classmethod
    def _expected(cls) -> str:
        return "a size"

    @classmethod
    def _example(cls) -> str:
        return "write a number and a unit, e.g. 64MB, 128MiB or 1GiB"

    def __str__(self) -> str:
        return _spell(self.bytes, _SIZE_UNITS)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*([kKmMgGtT][iI]?)?[bB]$|\$\{"}


@dataclass(frozen=True, slots=True, order=True)
class Share(_Written):
    """A part of a whole: ``30%``, or the number 0.3."""

    part: float

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _PERCENT.fullmatch(text.strip())
        return cls._checked(float(match[1]) / 100 if match else None, text)

    @classmethod
    def accept(cls, value: object) -> Self:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls._checked(float(value), value)
        return super(Share, cls).accept(value)

    @classmethod
    def _checked(cls, part: float | None, written: object) -> Self:
        if part is None:
            raise Problem(f"expected a share, got {describe(written)}", cls._example())
        if not 0 < part <= 1:
            raise Problem(f"{describe(written)} is no share: it must be above 0 and at most 1", cls._example())
        return cls(part)

    @classmethod
    def _expected(cls) -> str:
        return "a share"

    @classmethod
    def _example(cls) -> str:
        return "write e.g. 30% or 0.3"

    def __str__(self) -> str:
        return f"{self.part * 100:.9g}%"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": ["string", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?\s*%$|\$\{"}


@dataclass(frozen=True, slots=True, order=True)
class Hours(_Written):
    """A stretch of every day, UTC, in minutes after midnight: ``22:00-06:00``."""

    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _HOURS.fullmatch(text.strip())
        if match is None:
            raise Problem(f"expected hours, got {describe(text)}", cls._example())
        hours, minutes = [int(match[1]), int(match[3])], [int(match[2]), int(match[4])]
        begin, end = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
        if max(minutes) > 59 or begin >= _DAY or end > _DAY:
            raise Problem(f"{describe(text)} has a time that no day has", cls._example())
        if begin == end % _DAY:
            raise Problem(f"{describe(text)} begins and ends at the same time", cls._example())
        return cls(begin, end % _DAY)

    @classmethod
    def _expected(cls) -> str:
        return "hours"

    @classmethod
    def _example(cls) -> str:
        return 'write e.g. "22:00-06:00", in UTC'

    @property
    def minutes(self) -> frozenset[int]:
        """The minutes of a day that lie in it."""
        length = (self.end - self.begin) % _DAY
        return frozenset((self.begin + minute) % _DAY for minute in range(length))

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in (self.begin, self.end))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"^[0-9]{1,2}:[0-9]{2}\s*-\s*[0-9]{1,2}:[0-9]{2}$|\$\{"}


def _quantity(text: str, units: dict[str, int], unit_named: Callable[[str], str], what: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise Problem(f"expected {what}, got {describe(text)}", example)
    unit = unit_named(match[3])
    if not unit:
        raise Problem(f"{describe(text)} has no unit", example)
    if unit not in units:
        raise Problem(f'{describe(text)} has an unknown unit "{match[3]}"{closest(match[3], units)}', example)
    fraction = match[2] or ""
    amount, rest = divmod(int(match[1] + fraction) * units[unit], int(10 ** len(fraction)))
    if rest or not 0 < amount <= _MOST:
        raise Problem(f"{describe(text)} is out of range: it must be a whole number of the smallest unit, above 0", example)
    return amount


def _spell(amount: int, units: dict[str, int]) -> str:
    for unit, factor in units.items():
        if amount % factor == 0:
            return f"{amount // factor}{unit}"
    raise AssertionError("the smallest unit divides everything")


_TIME_TRANSFORMS: dict[str, Callable[[], Transform[Any, Any]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_COUNTED_TRANSFORMS: dict[str, Callable[[int], Transform[Any, Any]]] = {"bucket": BucketTransform, "truncate": TruncateTransform}
_TRANSFORMS = (*_TIME_TRANSFORMS, *_COUNTED_TRANSFORMS, "identity")
_CALL = re.compile(r"\s*(?P<name>\w+)\s*\(\s*(?:(?P<number>-?[0-9]+)\s*,\s*)?(?P<column>[^\s(),]+)\s*\)\s*")
_COLUMN = re.compile(r"\s*[^\s(),]+\s*")
_PARTITION_EXAMPLE = 'write e.g. "day(created_at)", "bucket(16, id)", "truncate(4, name)" or "region"'


@dataclass(frozen=True, slots=True)
class PartitionBy(_Written):
    """One partition field: a transform of a column, e.g. ``day(created_at)``, ``bucket(16, id)``, ``region``."""

    transform: str
    column: str
    argument: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        if _COLUMN.fullmatch(text):
            return cls("identity", text.strip())
        call = _CALL.fullmatch(text)
        if call is None:
            raise Problem(f"{describe(text)} is not a partition field", _PARTITION_EXAMPLE)
        name = call["name"].lower()
        # Spark SQL says days(ts), Iceberg says day(ts).
        if name not in _TRANSFORMS and name.removesuffix("s") in _TIME_TRANSFORMS:
            name = name.removesuffix("s")
        if name not in _TRANSFORMS:
            raise Problem(f'transform "{call["name"]}" is not known{closest(name, _TRANSFORMS)}', _PARTITION_EXAMPLE)
        number = int(call["number"]) if call["number"] else None
        if name in _COUNTED_TRANSFORMS and (number is None or number < 1):
            raise Problem(f"{describe(text)} needs a number of at least 1 first", f'write e.g. "{name}(16, {call["column"]})"')
        if name not in _COUNTED_TRANSFORMS and number is not None:
            raise Problem(f"{describe(text)} has a number, {name} takes none", f'write "{name}({call["column"]})"')
        return cls(name, call["column"], number)

    @classmethod
    def _expected(cls) -> str:
        return "a partition field"

    @classmethod
    def _example(cls) -> str:
        return _PARTITION_EXAMPLE

    def iceberg(self) -> Transform[Any, Any]:
        """Return the transform itself."""
        if self.argument is not None:
            return _COUNTED_TRANSFORMS[self.transform](self.argument)
        return _TIME_TRANSFORMS.get(self.transform, IdentityTransform)()

    @property
    def name(self) -> str:
        """The field's name in the spec, as Iceberg's own builder would choose it."""
        suffix = {"identity": "", "truncate": "_trunc"}.get(self.transform, f"_{self.transform}")
        return f"{self.column}{suffix}"

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return (
            f"{self.transform}({self.column})" if self.argument is None else f"{self.transform}({self.argument}, {self.column})"
        )


_PART = re.compile(r"[\w-]+")
TABLE_PLACEHOLDER = "{table}"


def check_table_name(text: str) -> str:
    """Accept ``catalog.namespace.table``, with ``{table}`` where the source's table name goes."""
    parts = text.split(".")
    example = "write catalog.namespace.table, e.g. lake.shop.orders"
    if len(parts) < 3:
        raise Problem(f"{describe(text)} has {len(parts)} parts, a table's name has at least 3", example)
    for part in parts:
        if not _PART.fullmatch(part.replace(TABLE_PLACEHOLDER, "table")):
            raise Problem(f'{describe(text)} has a part "{part}": letters, digits, _ and - are allowed, and {{table}}', example)
    if TABLE_PLACEHOLDER in parts[0]:
        raise Problem(f"{describe(text)} leaves the catalog open", example)
    return text


def check_name(text: str) -> str:
    """Accept a pipeline's name: it becomes part of property names and of file paths."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text):
        raise Problem(
            f"{describe(text)} is not a name", "use letters, digits, _, . and -, at most 100, beginning with a letter or digit"
        )
    return text
