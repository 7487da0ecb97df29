"""Types for columns that nobody declared, from the JSON values seen.

| JSON | type |
|---|---|
| integers | long |
| numbers with a fraction or exponent, also among integers | double, if every one survives the way through a double |
| true, false | boolean |
| strings | string; dates are not guessed |
| objects, arrays, and any mixture | string: the JSON text |

Null says nothing: a column with nothing but nulls has no type yet and is left out until a value is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from icefront.core.errors import BadRow
from icefront.core.ports import Wish
from icefront.formats.columns import exact_as_double, is_readable, unreadable
from icefront.formats.place import Place, shorten

_EXACT_LIMIT = 2**53
_FRACTION = frozenset(b".eE")


class Sightings:
    """Values of undeclared columns as they are met, line by line. Of `strings` nothing more can be learned."""

    def __init__(self, place: Place) -> None:
        self.strings: set[str] = set()
        self._place = place
        self._types: dict[str, str] = {}
        self._first: dict[str, int] = {}
        self._not_long: dict[str, tuple[int, bytes]] = {}
        self._not_double: dict[str, tuple[int, bytes]] = {}

    def see(self, column: str, json: bytes, index: int) -> None:
        known = self._types.get(column)
        if known == "long" and len(json) < 16 and json.isdigit():
            return  # most values
        seen = self._classify(column, json, index)
        if seen is None:
            return
        if known is None:
            self._first[column] = index
        self._types[column] = seen if known is None else join(known, seen)
        if self._types[column] == "string":
            self.strings.add(column)

    def _classify(self, column: str, json: bytes, index: int) -> str | None:
        match json[0]:
            case 0x22 | 0x7B | 0x5B:  # " { [
                return "string"
            case 0x6E:  # n
                return None
            case 0x74 | 0x66:  # t f
                return "boolean"
        if _FRACTION.isdisjoint(json):
            self._check_integer(column, json, index)
            return "long"
        if not _surely_exact(json) and column not in self._not_double and not exact_as_double(json.decode()):
            self._not_double[column] = index, json
        return "double"

    def _check_integer(self, column: str, json: bytes, index: int) -> None:
        number = int(json) if len(json) < 40 else 2**64
        if not -(2**63) <= number < 2**63:
            self._not_long.setdefault(column, (index, json))
        if abs(number) > _EXACT_LIMIT and column not in self._not_double and not exact_as_double(json.decode()):
            self._not_double[column] = index, json

    def wishes(self, where: Callable[[int], str]) -> dict[str, Wish]:
        """Return a type for each column that showed a value, in doubt where a number is not exact as that. `where` names a line."""
        for column in self._types:
            if not is_readable(column):
                raise self._place.bad(self._first[column], unreadable(column), "rename it in the source")
        return {c: Wish(c, kind, where(self._first[c]), doubt=self._doubt(c, kind)) for c, kind in self._types.items()}

    def _doubt(self, column: str, kind: str) -> BadRow | None:
        troubles = {"long": self._not_long, "double": self._not_double}.get(kind, {})
        if column not in troubles:
            return None
        index, json = troubles[column]
        return self._place.bad(
            index,
            f"column {column}: {shorten(json)} is not exact as {kind}, which its values suggest",
            f'declare the column: columns: {{{column}: "decimal(p,s)"}}, or string',
        )


def undoubted(wishes: dict[str, Wish]) -> dict[str, Wish]:
    """Return the wishes, or raise the first doubt."""
    for wish in wishes.values():
        if wish.doubt:
            raise wish.doubt
    return wishes


def _surely_exact(json: bytes) -> bool:
    """Fifteen digits and a point always survive a double; an exponent may not."""
    return len(json) <= 16 and b"e" not in json and b"E" not in json


def join(one: str, other: str) -> str:
    """Return the type that holds the values of both."""
    if one == other:
        return one
    return "double" if {one, other} == {"long", "double"} else "string"


def unite(wishes: Iterable[Wish]) -> tuple[Wish, ...]:
    """Make one wish per column of those of several chunks, splits or files; the first sighting is kept as its place.

    A long here and a double there make a double; should an integer then not survive, decoding it stops.
    """
    united: dict[str, Wish] = {}
    for wish in wishes:
        known = united.setdefault(wish.column, wish)
        kind = _wider(known.type, wish.type) if wish.widens else join(known.type, wish.type)
        doubt = None if kind == "string" else known.doubt or wish.doubt
        united[wish.column] = replace(known, type=kind, doubt=doubt)
    return tuple(united.values())


def _wider(one: str, other: str) -> str:
    """Of two widenings of one type: only decimals have several, `decimal(precision, scale)` of one scale."""
    return max(one, other, key=lambda kind: int(kind[8:].split(",")[0]) if kind.startswith("decimal(") else 0)
