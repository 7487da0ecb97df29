"""Marks: what a target remembers, and its durable JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from icefront.core.errors import NewerFormat, Stopped
from icefront.core.timestamps import Timestamp

MARK_FORMAT = 1
POSITION_LIMIT = 4096


def canonical(value: object) -> str:
    """Print JSON in one way only, so that equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Position:
    """A source's own coordinates, as canonical JSON of at most 4 kB.

    Low-water: nothing before it is needed again. Only its source knows what is inside.
    """

    text: str

    def __post_init__(self) -> None:
        size = len(self.text.encode())
        if size > POSITION_LIMIT:
            raise ValueError(f"position is {size} bytes, the limit is {POSITION_LIMIT}")

    @classmethod
    def of(cls, value: Mapping[str, object]) -> Position:
        return cls(canonical(value))

    def value(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.text)
        return loaded


START = Position("{}")
"""The position of a source that has not been read."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which source this is, as far as it can tell: one that was recreated under the same name is another where it has an id of its own."""

    text: str

    @classmethod
    def of(cls, value: Mapping[str, object]) -> Identity:
        return cls(canonical(value))


@dataclass(frozen=True, slots=True)
class Writer:
    """One run of a pipeline. Generations grow by one with each claim."""

    id: str
    generation: int

    def __str__(self) -> str:
        return f"{self.id}#{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Writer:
        name, _, generation = text.rpartition("#")
        return cls(name, int(generation))


@dataclass(frozen=True, slots=True)
class Mark:
    """What a target remembers: everything before `frontier` is in it, once."""

    pipeline: str
    frontier: Timestamp
    epoch_id: UUID
    position: Position
    source: Identity
    writer: Writer
    branch: str = "main"

    def claimed_by(self, writer: Writer) -> Mark:
        """Return the mark with a new owner; what is published stays as it is."""
        return replace(self, writer=writer)

    def to_json(self) -> str:
        return canonical(
            {
                "format": MARK_FORMAT,
                "pipeline": self.pipeline,
                "frontier": str(self.frontier),
                "epoch": str(self.epoch_id),
                "position": self.position.value(),
                "source": json.loads(self.source.text),
                "writer": str(self.writer),
                "branch": self.branch,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Mark:
        try:
            return cls._read(json.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            raise Stopped(
                f"a mark cannot be read ({error!r}): {text[:200]}", "restore the table property icefront.mark.<pipeline>"
            ) from error

    @classmethod
    def _read(cls, raw: dict[str, Any]) -> Mark:
        found = raw["format"]
        if found > MARK_FORMAT:
            raise NewerFormat(
                f"the mark has format {found}, this Icefront reads up to {MARK_FORMAT}",
                "upgrade Icefront on this machine; an older one must not write here",
            )
        return cls(
            pipeline=raw["pipeline"],
            frontier=Timestamp.parse(raw["frontier"]),
            epoch_id=UUID(raw["epoch"]),
            position=Position.of(raw["position"]),
            source=Identity.of(raw["source"]),
            writer=Writer.parse(raw["writer"]),
            branch=raw["branch"],
        )
