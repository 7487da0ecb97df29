"""When upkeep is done: settle, compact and expire, each by conditions of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WrapSerializer

from icefront.settings.part import Found, Int, Part
from icefront.settings.problems import Problem, describe
from icefront.settings.values import Duration, Hours, Share, Size
from icefront.upkeep.expire import YOUNGEST_ORPHAN
from icefront.upkeep.need import AT_LEAST, Compacting, Expiring, Quiet, Settling, Terms

_MINUTE = 60 * 10**9
_KINDS = ("settle", "compact", "expire")


def _conditions(value: Any) -> Any:
    """Write `auto` as no conditions of one's own, and `off` as nothing."""
    match value:
        case "auto":
            return {}
        case "off":
            return None
        case Mapping() | Part():
            return value
        case _:
            raise Problem(f"must be auto, off or a mapping of conditions, got {describe(value)}", "write one of these")


def _orphans(value: Any) -> Any:
    if value == "off":
        return None
    age = Duration.accept(value)
    if _span(age) < YOUNGEST_ORPHAN:
        raise Problem(f"{age} is too young: files that are being written look like orphans", "write at least 1h, or off")
    return age


def _wanted(value: Any) -> Any:
    if value == "off":
        return dict.fromkeys(_KINDS, "off")
    if value == "auto":
        return {}
    if not isinstance(value, Mapping | Part):
        raise Problem(f"must be auto, off or a mapping, got {describe(value)}", "write one of these")
    return value


_OFF = WrapSerializer(lambda value, write: "off" if value is None else write(value))
_AUTO_OR_OFF = Literal["auto", "off"]


class Settle(Part):
    """When equality deletes become deletion vectors; one condition is enough."""

    files: Int = Field(default=10, ge=1, description="So many unsettled delete files: about as many epochs.")
    rows: Int = Field(default=1_000_000, ge=1, description="So many deletes in them.")
    reads: float = Field(
        default=2.0,
        ge=1,
        description="A full scan would read so many times the table's bytes, since each data file loads the deletes that may name rows of it.",
    )
    age: Duration = Field(default=Duration(10 * _MINUTE), description="A delete is unsettled for so long.")
    every: Duration = Field(default=Duration(_MINUTE), description="At most once in so long.")


class Compact(Part):
    """When small files and dead rows are written anew; one condition is enough."""

    files: Int = Field(
        default=20, ge=2, description="So many files in one partition that are smaller than an eighth of the target size."
    )
    dead: Share = Field(
        default=Share(0.3),
        description="This share of the rows is deleted by vectors or position deletes: in the table, in so many `files`, or in files that are "
        "a tenth of its bytes.",
    )
    max_bytes: Size = Field(default=Size(8 * 2**30), description="One cycle rewrites about so much; the rest comes next time.")
    sort: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto`: sort by key where at least four files are made, so that later deletes touch few files. `off`: only pack files together.",
    )
    every: Duration = Field(default=Duration(10 * _MINUTE), description="At most once in so long.")


class Expire(Part):
    """Which snapshots and files go."""

    keep: Duration | None = Field(
        default=None,
        description="Snapshots that are younger stay. Default: the table's own `history.expire.max-snapshot-age-ms`, else `5d`.",
    )
    at_least: Int | None = Field(
        default=None,
        ge=1,
        description="So many snapshots stay, however old. Default: the table's own `history.expire.min-snapshots-to-keep`, else `10`.",
    )
    at_most: Int = Field(
        default=2_000,
        ge=1,
        description="More snapshots than that do not stay, however young: each commit writes the list of them anew. Tags stay.",
    )
    orphans: Annotated[
        Duration | None,
        BeforeValidator(_orphans, json_schema_input_type=Duration | Literal["off"]),
        _OFF,
    ] = Field(
        default=Duration(3 * 24 * 60 * _MINUTE),
        description="Once a day, remove files of this age that no snapshot knows; or `off`. Staged files stay.",
    )
    every: Duration = Field(default=Duration(10 * _MINUTE), description="At most once in so long.")

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        least, most = data.get("at_least", AT_LEAST), data.get("at_most", 2_000)
        if isinstance(least, int) and isinstance(most, int) and least > most:
            key = "at_most" if "at_most" in data else "at_least"
            yield (key,), Problem(f"at least {least} snapshots stay, and at most {most}", "let at_most be the larger one")


class Upkeep(Part):
    """What keeps targets fast to read, after the publish and never in its way."""

    settle: Annotated[Settle | None, BeforeValidator(_conditions, json_schema_input_type=_AUTO_OR_OFF | Settle), _OFF] = Field(
        default_factory=Settle, description="Turn equality deletes into deletion vectors: `auto`, `off` or conditions."
    )
    compact: Annotated[Compact | None, BeforeValidator(_conditions, json_schema_input_type=_AUTO_OR_OFF | Compact), _OFF] = Field(
        default_factory=Compact, description="Write small files and dead rows anew: `auto`, `off` or conditions."
    )
    expire: Annotated[Expire | None, BeforeValidator(_conditions, json_schema_input_type=_AUTO_OR_OFF | Expire), _OFF] = Field(
        default_factory=Expire, description="Remove old snapshots and files: `auto`, `off` or conditions."
    )
    quiet_hours: tuple[Hours, ...] = Field(
        default=(),
        description='Hours of the day, UTC, in which no cycle starts: `["08:00-18:00"]`; `22:00-06:00` goes over midnight.',
    )
    by: Literal["run", "other"] = Field(
        default="run",
        description="Who does it. `run`: the run itself, in the background. `other`: a process of its own, `icefront upkeep`.",
    )

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        written = data.get("quiet_hours")
        covered: set[int] = set()
        for text in written if isinstance(written, list | tuple) else ():
            try:
                covered |= Hours.accept(text).minutes
            except Problem:
                return
        if len(covered) == 24 * 60:
            yield ("quiet_hours",), Problem("they cover the whole day", "leave some of it free, or write upkeep: off")

    @property
    def in_run(self) -> bool:
        """Say whether a run does it."""
        return self.by == "run" and self.terms.on

    @property
    def terms(self) -> Terms:
        """Return the conditions in upkeep's own terms."""
        settle, compact, expire = self.settle, self.compact, self.expire
        return Terms(
            Settling(settle.files, settle.rows, settle.reads, _span(settle.age), _span(settle.every)) if settle else None,
            Compacting(compact.files, compact.dead.part, compact.max_bytes.bytes, compact.sort, _span(compact.every))
            if compact
            else None,
            Expiring(
                _span(expire.keep) if expire.keep else None,
                expire.at_least,
                expire.at_most,
                _span(expire.orphans) if expire.orphans else None,
                _span(expire.every),
            )
            if expire
            else None,
            tuple(Quiet(hours.begin, hours.end) for hours in self.quiet_hours),
        )


Wanted = Annotated[Upkeep, BeforeValidator(_wanted, json_schema_input_type=_AUTO_OR_OFF | Upkeep)]
"""`auto`, `off`, or a mapping."""


def _span(duration: Duration) -> timedelta:
    return timedelta(microseconds=duration.nanoseconds / 1000)
