"""Secrets: named in files as ``${env:NAME}`` or ``${file:path}``, filled in at load, never printed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from icefront.settings.problems import Loc, Problem

_REFERENCE = re.compile(r"(\$?)\$\{([^}]*)(\}?)")
# The last words of a property's name tell: `token` holds one, `token-refresh-enabled` does not.
_SECRET_NAME = re.compile(
    r"(^|[._-])(credentials?|token|password|passwd|secret|(secret|account|private|access-secret)[._-](access[._-])?key)$|sas-token",
    re.IGNORECASE,
)
_PASSWORD_INSIDE = re.compile(r"://[^/@\s]*:[^/@\s]+@|[?&;]password=", re.IGNORECASE)
_STEP = "write ${env:NAME} or ${file:path} in its place"
_TELLTALE = 4
_known: set[str] = set()


class Secret:
    """A text that never prints. `reveal` is the only way to it; in what libraries say it is `masked`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        _known.update(part for part in (value, *value.split(":")) if len(part) >= _TELLTALE)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _as_secret, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"\$\{(env|file):"}


def masked(text: str) -> str:
    """Return a text without the secrets of this process: libraries quote them in their messages."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


class Filled(str):
    """A text into which at least one ``${…}`` was filled: as a property it becomes a `Secret`."""

    __slots__ = ()


def reveal(properties: Mapping[str, str | Secret]) -> dict[str, str]:
    """Return plain text, for the call that needs it."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in properties.items()}


def has_reference(value: object) -> bool:
    return isinstance(value, str) and any(match[1] != "$" for match in _REFERENCE.finditer(value))


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def has_password(uri: str) -> bool:
    return _PASSWORD_INSIDE.search(uri) is not None


def property_value(name: str, value: object) -> str | Secret:
    """Check one property of a catalog, a table, a store or Spark; anything filled in is a secret."""
    match value:
        case Secret():
            return value
        case Filled():
            return Secret(str(value))
        case bool():
            text = str(value).lower()
        case int() | float():
            text = str(getattr(value, "text", value))
        case str():
            text = value
        case Mapping():
            raise Problem("expected one value, got a mapping", f"names of properties are written whole, e.g. {name}.size: 1")
        case _:
            raise Problem("expected text, a number, true or false", "remove the key, or give it a value")
    if is_secret_name(name) or has_password(text):
        raise Problem("a secret is written here in plain text", _STEP, hides=False)
    return text


def fill_in(data: Any, folder: Path) -> tuple[Any, list[tuple[Loc, Problem]]]:
    """Replace every ``${…}`` in `data`; ``$${`` stands for ``${``. Problems name the reference, never a value."""
    problems: list[tuple[Loc, Problem]] = []

    def walk(node: Any, path: Loc) -> Any:
        match node:
            case dict():
                return {key: walk(value, (*path, key)) for key, value in node.items()}
            case list():
                return [walk(value, (*path, i)) for i, value in enumerate(node)]
            case str():
                return _fill_text(node, folder, lambda problem: problems.append((path, problem)))
            case _:
                return node

    return walk(data, ()), problems


def _fill_text(text: str, folder: Path, note: Callable[[Problem], None]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        try:
            return _resolve(match, folder)
        except Problem as problem:
            note(problem)
            return ""

    filled = _REFERENCE.sub(replacement, text)
    return Filled(filled) if has_reference(text) else filled


def _resolve(reference: re.Match[str], folder: Path) -> str:
    kind, _, name = reference[2].partition(":")
    if not reference[3]:
        raise Problem("a ${ has no closing }", "write ${env:NAME} or ${file:path}; a plain ${ is written $${", hides=False)
    if kind not in {"env", "file"} or not name:
        raise Problem(f"{reference[0]} is neither ${{env:NAME}} nor ${{file:path}}", "write one of the two", hides=False)
    if kind == "env":
        if name not in os.environ:
            raise Problem(f"the environment variable {name} is not set", f"set it: export {name}=…", hides=False)
        return os.environ[name]
    path = folder / Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Problem(f"the file {path} cannot be read: {why}", "create it, or name another", hides=False) from None


def _as_secret(value: object) -> Secret:
    match value:
        case Secret():
            return value
        case Filled():
            return Secret(str(value))
        case _:
            raise Problem("a secret is written here in plain text", _STEP, hides=False)
