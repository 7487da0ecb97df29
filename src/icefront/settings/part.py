"""The base of every settings model: frozen, strict about keys, and with one kind of error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    Strict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from icefront.core.errors import ConfigError
from icefront.settings.document import Places, Spot
from icefront.settings.problems import Loc, Problem, describe, failure, problems_in, unavailable, unknown_key
from icefront.settings.secrets import Secret, fill_in, has_reference, property_value

Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]
Found = tuple[Loc, Problem]


class Part(BaseModel):
    """A group of settings. Built in Python or read from a file, it is the same value with the same errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, serialize_by_alias=True, arbitrary_types_allowed=True
    )

    HIDDEN: ClassVar[frozenset[str]] = frozenset()
    """Fields that no file may set."""
    UNAVAILABLE: ClassVar[Mapping[str, str]] = {}
    """Keys that are known but not built yet → what they are."""

    _places: Places = PrivateAttr(default_factory=Places)

    def __init__(self, /, **data: Any) -> None:
        filled, problems = fill_in(data, Path.cwd())
        places = Places(data)
        try:
            super().__init__(**filled)
        except ValidationError as error:
            raise config_error(places, _without_repeats(places, problems, error)) from None
        if problems:
            raise config_error(places, problems)
        self._places = places

    # Marks `__init__` as no constructor of its own: inside a larger model pydantic then validates this one itself
    # and gathers all errors, where a call would stop at the first.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def of(cls, data: Mapping[str, Any], *, folder: Path | None = None) -> Self:
        """Build from what a file would hold; relative paths start at `folder`."""
        return build(cls, dict(data), Places(dict(data)), folder or Path.cwd())

    def placed(self, places: Places) -> Self:
        """Remember where this was written, for errors that only show later."""
        self._places = places
        return self

    @classmethod
    def arrange(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Give the keys of a file the shape of the model."""
        return data

    @classmethod
    def known_keys(cls) -> list[str]:
        """The keys that a file may set."""
        return [field.alias or name for name, field in cls.model_fields.items() if name not in cls.HIDDEN]

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        """Find what no single field shows; runs on unchecked data, so that all problems are listed at once."""
        del data
        return ()

    @model_validator(mode="wrap")
    @classmethod
    def _list_all(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        del info
        if not isinstance(data, Mapping):
            return handler(data)
        arranged = cls.arrange(dict(data))
        known = {*cls.known_keys(), *cls.HIDDEN}
        problems = [*cls._odd_keys(arranged), *cls.cross_check(arranged)]
        try:
            made = handler({key: value for key, value in arranged.items() if key in known})
        except ValidationError as error:
            raise failure(cls.__name__, problems, error) from None
        if problems:
            raise failure(cls.__name__, problems)
        return made

    @classmethod
    def _odd_keys(cls, data: Mapping[str, Any]) -> Iterator[Found]:
        for key in data:
            if key in cls.UNAVAILABLE:
                yield (key,), unavailable(cls.UNAVAILABLE[key], f"use {' or '.join(cls.known_keys())}", on_key=True)
            elif key not in cls.HIDDEN and key not in cls.known_keys():
                yield (str(key),), unknown_key(str(key), cls.known_keys())


PartType = TypeVar("PartType", bound=Part)


def build(
    cls: type[PartType],
    data: Any,
    places: Places,
    folder: Path,
    *,
    found: Iterable[tuple[Loc, Problem, Spot]] = (),
    hidden: Mapping[str, Any] | None = None,
) -> PartType:
    """Fill in references, validate, and raise one ConfigError for everything that is wrong."""
    if not isinstance(data, Mapping):
        raise config_error(places, [((), Problem(f"expected a mapping, got {describe(data)}", "write `key: value` lines"))])
    filled, problems = fill_in(dict(data), folder)
    problems += [((key,), unknown_key(key, cls.known_keys())) for key in data if key in cls.HIDDEN and hidden is not None]
    try:
        made = cls.model_validate({**filled, **(hidden or {})}, context={"folder": folder})
    except ValidationError as error:
        problems = _without_repeats(places, problems, error)
    located = list(found)
    if problems or located:
        raise config_error(places, problems, located)
    return made.placed(places)


def _without_repeats(places: Places, problems: list[Found], error: ValidationError) -> list[Found]:
    """Add what validation found, except about values that could not even be filled in."""
    failed = {loc for loc, _ in problems}
    return [*problems, *((loc, problem) for loc, problem in problems_in(error) if places.written(loc) not in failed)]


def config_error(places: Places, problems: Iterable[Found], located: Iterable[tuple[Loc, Problem, Spot]] = ()) -> ConfigError:
    """Word all problems as one error, in the order in which they stand in the file."""
    rows: list[tuple[Spot | None, str, str]] = [
        (spot, _sentence(places, loc, problem, spot), problem.step) for loc, problem, spot in located
    ]
    for loc, given in problems:
        path = places.written(loc)
        problem = given.hidden() if has_reference(places.value(path)) else given
        spot = places.spot(path, key=problem.on_key)
        rows.append((spot, _sentence(places, path, problem, spot), problem.step))
    rows = list(dict.fromkeys(sorted(rows, key=lambda row: (row[0].line, row[0].column) if row[0] else (0, 0))))
    if len(rows) == 1:
        return ConfigError(rows[0][1], rows[0][2])
    return ConfigError("\n".join(f"{fact}\n  → {step}" if step else fact for _, fact, step in rows))


def _sentence(places: Places, path: Loc, problem: Problem, spot: Spot | None) -> str:
    where = [f"{places.file}:{spot.line}:{spot.column}"] if places.file and spot else [places.file] if places.file else []
    return ": ".join([*where, *([dotted(path)] if path else []), problem.fact])


def dotted(path: Loc) -> str:
    """Print a path: ``sink[1].iceberg.table``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def folder_of(info: ValidationInfo) -> Path:
    """Say where relative paths start: at the file that names them, or here."""
    folder: Path = (info.context or {}).get("folder") or Path.cwd()
    return folder


def _check_properties(value: Any) -> Mapping[str, str | Secret]:
    if not isinstance(value, Mapping):
        raise Problem(f"expected a mapping, got {describe(value)}", "write {name: value}")
    problems: list[Found] = []
    checked: dict[str, str | Secret] = {}
    for name, given in value.items():
        try:
            checked[str(name)] = property_value(str(name), given)
        except Problem as problem:
            problems.append(((str(name),), problem))
    if problems:
        raise failure("properties", problems)
    return checked


Properties = Annotated[
    Mapping[str, str | Secret],
    PlainValidator(_check_properties),
    PlainSerializer(lambda properties: {name: str(value) for name, value in properties.items()}),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
]
"""Names and values that are handed on; what came from ``${…}`` is a Secret."""
