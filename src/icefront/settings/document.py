"""A YAML file as plain data, together with the line and column of every key and value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from icefront.core.errors import ConfigError
from icefront.settings.problems import Loc, Problem

_TAG = "tag:yaml.org,2002:"
# A date stays text: no setting is one, and `2024-01-01` as a table property means its letters.
_TEXT = frozenset({f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value")})
_NUMBERS = frozenset({f"{_TAG}{name}" for name in ("int", "float", "bool", "null")})
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Where settings were written, and what was written there before ``${…}`` was filled in.

    Equal to any other `Places`: where a setting was written is no part of its value.
    """

    data: Any = None
    file: str | None = None
    keys: Mapping[Loc, Spot] = field(default_factory=dict)
    values: Mapping[Loc, Spot] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    def __hash__(self) -> int:
        return 0

    def written(self, loc: Loc) -> Loc:
        """Turn a place in the model into the path as written.

        The model has steps that the file leaves out: one sink stands for a list of one, a catalog's
        properties stand beside its type.
        """
        path: list[str | int] = []
        node = self.data
        for step, part in enumerate(loc, 1):
            if _has(node, part):
                node = node[part]
            elif part in {"properties", 0} and step < len(loc):
                continue
            else:
                node = None
            path.append(part)
        return tuple(path)

    def value(self, path: Loc) -> Any:
        node = self.data
        for part in path:
            try:
                node = node[part]
            except (LookupError, TypeError):
                return None
        return node

    def spot(self, path: Loc, *, key: bool) -> Spot | None:
        """Find where `path` was written; a key that is missing is shown at the mapping that lacks it."""
        if self.file is None:
            return None
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        while path:
            if found := first.get(path) or second.get(path):
                return found
            path, first, second = path[:-1], self.keys, self.values
        return self.values.get((), Spot(1, 1))


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data, and the problems that the text alone shows."""

    data: Any
    places: Places
    problems: tuple[tuple[Loc, Problem, Spot], ...]


def shown(path: Path) -> str:
    """Name a file the way people would type it from here."""
    relative = os.path.relpath(path)
    return str(path.absolute()) if relative.startswith("..") else relative


def read_document(path: Path) -> Document:
    """Read a YAML 1.2 file. Raises ConfigError when it cannot be read as one."""
    name = shown(path)
    root = _compose(name, _text(name, path))
    if root is None:
        raise ConfigError(f"{name}:1:1: the file is empty", "`icefront init` writes a sample to start from")
    reader = _Reader()
    data = reader.read(root, (), ())
    return Document(data, Places(data, name, reader.keys, reader.values), tuple(reader.problems))


def _text(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        step = f"in that folder there are: {', '.join(near)}" if near else "`icefront init` writes a sample to start from"
        raise ConfigError(f"{name}: there is no such file", step) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}", "name a YAML file that this user may read") from None


def _compose(name: str, text: str) -> Node | None:
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        if error.context == "expected a single document in the stream":
            raise ConfigError(f"{name}:{where}: a second document begins here", "write one file per pipeline") from None
        what = f"{error.problem} ({error.context})" if error.context else str(error.problem)
        raise ConfigError(f"{name}:{where}: not valid YAML: {what}", "check indentation, quotes and brackets there") from None
    except YAMLError as error:
        what = str(error).splitlines()[0]
        raise ConfigError(f"{name}:1:1: not valid YAML: {what}", "remove control characters from the file") from None
    return root


class WrittenFloat(float):
    """A number that remembers its spelling: the property value ``1.10`` is not ``1.1``."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, value: float, text: str) -> Self:
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __reduce__(self) -> tuple[type[WrittenFloat], tuple[float, str]]:
        return WrittenFloat, (float(self), self.text)


class _Reader:
    """Nodes in, plain data out; notes where everything stood."""

    def __init__(self) -> None:
        self.keys: dict[Loc, Spot] = {}
        self.values: dict[Loc, Spot] = {}
        self.problems: list[tuple[Loc, Problem, Spot]] = []
        self._numbers = YAML(typ="safe", pure=True).constructor
        self._left = 100_000

    def read(self, node: Node, path: Loc, above: tuple[Node, ...]) -> Any:
        self.values.setdefault(path, _spot(node))
        self._left -= 1
        if node in above or len(above) > _DEEPEST or self._left < 0:
            self._note(path, "an alias repeats what contains it, or too much", "write the value out", node)
            return None
        match node:
            case MappingNode():
                return self._mapping(node, path, (*above, node))
            case SequenceNode():
                return [self.read(child, (*path, i), (*above, node)) for i, child in enumerate(node.value)]
            case ScalarNode():
                return self._scalar(node, path)
        raise TypeError(f"not a YAML node: {node!r}")

    def _mapping(self, node: MappingNode, path: Loc, above: tuple[Node, ...]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._note(path, "a key must be text", "write `key: value`", key)
                continue
            inner = (*path, key.value)
            if key.value in data:
                first = self.keys[inner]
                self._note(inner, f"written twice, first at {first.line}:{first.column}", "keep one of them", key)
                continue
            self.keys[inner] = _spot(key)
            if isinstance(value, ScalarNode) and not value.value and not value.style:
                # Nothing was written: YAML puts the empty value at the next key, people look at this one.
                self.values[inner] = _spot(key)
            data[key.value] = self.read(value, inner, above)
        return data

    def _scalar(self, node: ScalarNode, path: Loc) -> Any:
        if node.tag in _TEXT:
            return node.value
        if node.tag in _NUMBERS:
            value = self._numbers.construct_object(node)
            return WrittenFloat(value, node.value) if isinstance(value, float) else value
        self._note(path, f"the tag {node.tag} means nothing here", "write the value without a tag", node)
        return None

    def _note(self, path: Loc, fact: str, step: str, node: Node) -> None:
        self.problems.append((path, Problem(fact, step), _spot(node)))


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)


def _spot(node: Node) -> Spot:
    return Spot(node.start_mark.line + 1, node.start_mark.column + 1)
