"""What is wrong with a setting, in one sentence and a next step.

Validators raise `Problem`; pydantic's own findings are put into the same words. A loader knows where each
setting was written and turns problems into one ConfigError; a constructor call has no positions to add.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Loc = tuple[str | int, ...]
HIDDEN = "the value, filled in from ${…} and not shown, is not valid here"


class Problem(ValueError):
    """One finding. `on_key` says that the key is at fault and not its value."""

    def __init__(self, fact: str, step: str = "", *, on_key: bool = False, hides: bool = True) -> None:
        super().__init__(fact)
        self.fact = fact
        self.step = step
        self.on_key = on_key
        self.hides = hides

    def hidden(self) -> Problem:
        """Return this problem without the value in it."""
        return Problem(HIDDEN, "check what the variable or file holds", on_key=self.on_key) if self.hides else self


def closest(word: str, options: Iterable[str]) -> str:
    """Suggest the nearest option, or list them where they are few."""
    known = sorted(options)
    lowered = {option.lower(): option for option in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1)
    if near:
        return f' (did you mean "{lowered[near[0]]}"?)'
    return f" (known: {', '.join(known)})" if 0 < len(known) <= 12 else ""


def unknown_key(key: str, known: Iterable[str]) -> Problem:
    return Problem(f"unknown key{closest(key, known)}", "see docs/configuration.md for the keys", on_key=True, hides=False)


def unavailable(what: str, step: str, *, on_key: bool = False) -> Problem:
    return Problem(f"{what} is not available in this version", step, on_key=on_key, hides=False)


def failure(title: str, problems: Iterable[tuple[Loc, Problem]], error: ValidationError | None = None) -> ValidationError:
    """Gather problems, and those in `error`, into one error that pydantic passes on with its places."""
    found = [*problems, *(problems_in(error) if error else ())]
    return ValidationError.from_exception_data(title, [_detail(loc, problem) for loc, problem in found])


def problems_in(error: ValidationError) -> list[tuple[Loc, Problem]]:
    """Take an error apart, in our words."""
    return [(tuple(detail["loc"]), _explain(detail)) for detail in error.errors(include_url=False)]


def _detail(loc: Loc, problem: Problem) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("problem", "{problem}", {"problem": problem}), loc=loc, input=None)


def _explain(detail: ErrorDetails) -> Problem:
    context = detail.get("ctx", {})
    for carried in (context.get("problem"), context.get("error")):
        if isinstance(carried, Problem):
            return carried
    return _in_our_words(detail["type"], detail["input"], context, detail["msg"])


def _in_our_words(kind: str, value: Any, context: Mapping[str, Any], message: str) -> Problem:
    got = describe(value)
    match kind:
        case "missing":
            return Problem("required, but missing", "see docs/configuration.md for an example", on_key=True, hides=False)
        case "literal_error":
            options = _options(str(context["expected"]))
            near = closest(value, options) if isinstance(value, str) else ""
            return Problem(f"must be {_either(options)}, got {got}{near if 'did you mean' in near else ''}", "write one of these")
        case "greater_than_equal":
            return Problem(f"must be at least {context['ge']}, got {got}", "write a larger number")
        case "less_than_equal":
            return Problem(f"must be at most {context['le']}, got {got}", "write a smaller number")
        case "too_short" | "string_too_short":
            return Problem("must not be empty", "name at least one")
        case _:
            expected = _EXPECTED.get(kind)
            if expected is None:
                return Problem(f"{message}, got {got}")
            name, step = expected
            return Problem(f"expected {name}, got {got}", step)


_EXPECTED = {
    "string_type": ("text", "put it in quotes"),
    "int_type": ("a whole number", "write digits, without quotes or unit"),
    "int_from_float": ("a whole number", "write digits, without quotes or unit"),
    "bool_type": ("true or false", "write it without quotes"),
    "tuple_type": ("a list", "write [a, b]"),
    "list_type": ("a list", "write [a, b]"),
    "dict_type": ("a mapping", "write {key: value}"),
    "mapping_type": ("a mapping", "write {key: value}"),
    "model_type": ("a mapping", "write {key: value}"),
    "model_attributes_type": ("a mapping", "write {key: value}"),
}


def describe(value: object) -> str:
    """Say what was written, shortly."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}…"'
        case int() | float():
            return str(getattr(value, "text", value))
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _options(expected: str) -> list[str]:
    """Take pydantic's ``'a', 'b' or 'c'`` apart."""
    return [part.strip(" '") for part in expected.replace(" or ", ",").split(",") if part.strip()]


def _either(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"
