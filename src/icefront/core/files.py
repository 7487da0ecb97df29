"""Closed files and staged epochs: what workers report and what the driver notes durably."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from icefront.core.epochs import Epoch
from icefront.core.errors import NewerFormat, StagedMismatch
from icefront.core.marks import Position, canonical
from icefront.core.timestamps import Timestamp

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

NOTE_FORMAT = 1


class FileKind(StrEnum):
    DATA = "DATA"
    EQUALITY_DELETES = "EQUALITY_DELETES"


@dataclass(frozen=True, slots=True)
class ClosedFile:
    """A complete file with all that a manifest entry needs.

    `partition` maps partition field id → value in Iceberg's single-value JSON form. Bounds map
    field id → upper-case hex of Iceberg's binary single-value form. `sha256` covers all the rest.
    """

    kind: FileKind
    table: str
    epoch_id: str
    split: int
    attempt: str
    path: str
    size: int
    records: int
    schema_id: int
    spec_id: int
    sort_order_id: int | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, str] = field(default_factory=dict)
    upper_bounds: Mapping[int, str] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    equality_ids: tuple[int, ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self._facts().encode()).hexdigest()

    def _facts(self) -> str:
        return canonical(asdict(self))

    def to_json(self) -> str:
        return canonical({**asdict(self), "sha256": self.sha256})

    @classmethod
    def from_json(cls, text: str) -> ClosedFile:
        raw = json.loads(text)
        noted = raw.pop("sha256")
        for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
            raw[name] = {int(k): v for k, v in raw[name].items()}
        for name in ("split_offsets", "equality_ids"):
            raw[name] = tuple(raw[name])
        file = cls(**{**raw, "kind": FileKind(raw["kind"])})
        if file.sha256 != noted:
            raise StagedMismatch(
                f"the record of {file.path} has hash {file.sha256}, noted was {noted}",
                "the note is damaged: delete the state file, the epoch will be written again",
            )
        return file


def deduplicate(files: Iterable[ClosedFile]) -> tuple[ClosedFile, ...]:
    """Drop repeated reports of one path; the same path with other facts stops."""
    seen: dict[str, ClosedFile] = {}
    for file in files:
        known = seen.setdefault(file.path, file)
        if known.sha256 != file.sha256:
            raise StagedMismatch(
                f"{file.path} was reported twice, with hash {known.sha256} and with {file.sha256}",
                "a path is never written twice: look for a second program that writes into this table's folder",
            )
    return tuple(seen.values())


@dataclass(frozen=True, slots=True)
class Staged:
    """An epoch's closed files, noted durably once every split has reported; not yet visible.

    `settings` fingerprints what the files depend on: staged under other settings, they are dropped
    and written again. `fresh` says that equality deletes were omitted, which only the pipeline's
    very first epoch may do. `columns` are the fields that names stood for when the files were written: a schema's
    number tells nothing when expiry has removed it, and another one may have it by then.
    """

    pipeline: str
    target: str
    epoch: Epoch
    epoch_id: UUID
    position: Position
    files: tuple[ClosedFile, ...]
    schema_id: int
    settings: str
    fresh: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return canonical(
            {
                "format": NOTE_FORMAT,
                "pipeline": self.pipeline,
                "target": self.target,
                "lower": str(self.epoch.lower),
                "upper": str(self.epoch.upper),
                "epoch": str(self.epoch_id),
                "position": self.position.value(),
                "files": [f.to_json() for f in self.files],
                "schema_id": self.schema_id,
                "settings": self.settings,
                "fresh": self.fresh,
                "counts": dict(self.counts),
                "columns": dict(self.columns),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Staged:
        raw = json.loads(text)
        if raw["format"] > NOTE_FORMAT:
            raise NewerFormat(
                f"a staged note has format {raw['format']}, this Icefront reads up to {NOTE_FORMAT}",
                "upgrade Icefront on this machine",
            )
        return cls(
            pipeline=raw["pipeline"],
            target=raw["target"],
            epoch=Epoch(Timestamp.parse(raw["lower"]), Timestamp.parse(raw["upper"])),
            epoch_id=UUID(raw["epoch"]),
            position=Position.of(raw["position"]),
            files=tuple(ClosedFile.from_json(f) for f in raw["files"]),
            schema_id=raw["schema_id"],
            settings=raw["settings"],
            fresh=raw["fresh"],
            counts=raw["counts"],
            columns=raw.get("columns", {}),
        )


def column_ids(schema: Schema) -> dict[str, int]:
    """Say which field each column's name stands for, those of columns within columns too."""
    return {name: schema.find_field(name).field_id for name in schema.column_names}
