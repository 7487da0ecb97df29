"""What a proof has done and seen: the numbers that are shown while it runs, and in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Protocol

from icefront.core.errors import IcefrontError
from icefront.proof.checker import Violation


def needed(minutes: float) -> int:
    """Say how often every kind has to be struck: once in three minutes, then once for every ten."""
    return 0 if minutes < 3 else max(1, int(minutes / 10))


@dataclass(slots=True)
class Report:
    """What was done and seen so far."""

    seed: int
    minutes: float
    catalog: str
    kinds: Mapping[str, str]
    """Every kind with a line about it."""
    struck: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    scenes: int = 0
    lives: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    """How often a life was cut short: a run lost the catalog by what the proxy did."""
    epochs: int = 0
    changes: int = 0
    snapshots: int = 0
    rows: int = 0
    upkeep: int = 0
    """Commits of upkeep by the runs themselves."""
    blind: int = 0
    """At how many looks the state file was damaged or gone: files that were staged since the look before were not seen."""
    late: Counter[bool] = field(default_factory=Counter)
    """How many requests came late to the catalog, and were applied then or refused."""
    violations: list[Violation] = field(default_factory=list)
    doubtful: list[Violation] = field(default_factory=list)
    """What must not be either, and may have another reason than the table: what ended the proof."""
    during: str = ""
    """The life that is being played, or in which something was found."""
    engines: list[str] = field(default_factory=list)
    why_not: str = ""
    """Why the second engine was not run."""
    seconds: float = 0.0
    interrupted: bool = False
    error: IcefrontError | None = None
    """What ended it that is not the table's: a full disk, a catalog that is away."""
    uri: str | None = None
    left: list[str] = field(default_factory=list)
    """The namespaces that stay in the user's own catalog."""

    @property
    def missing(self) -> Sequence[str]:
        """Name the kinds that were not struck often enough."""
        return [kind for kind in self.kinds if self.struck[kind] < needed(self.minutes)]

    @property
    def never(self) -> Sequence[str]:
        """Name the kinds that were not struck at all; under three minutes none has to be."""
        return [kind for kind in self.kinds if not self.struck[kind]]

    @property
    def command(self) -> str:
        where = f" --catalog rest --uri {quote(self.uri)}" if self.uri else ""
        return f"icefront prove --minutes {self.minutes:g} --seed {self.seed}{where}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "command": self.command,
            "catalog": self.catalog,
            "minutes": self.minutes,
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "error": self.error.fact if self.error else None,
            "engines": self.engines,
            "second_engine_not_run": self.why_not or None,
            "namespaces_left": self.left,
            "scenes": self.scenes,
            "lives": self.lives,
            "lives_cut_short": dict(sorted(self.cut.items())),
            "epochs": self.epochs,
            "changes": self.changes,
            "snapshots_checked": self.snapshots,
            "rows_compared": self.rows,
            "upkeep_commits": self.upkeep,
            "looks_without_staged_files": self.blind,
            "late_requests": {"applied": self.late[True], "refused": self.late[False]},
            "needed_of_each_kind": needed(self.minutes),
            "faults": {kind: self.struck[kind] for kind in self.kinds},
            "not_struck_enough": list(self.missing),
            "failpoints": dict(sorted(self.places.items())),
            "violations": [violation.to_dict() for violation in self.violations],
            "doubtful": [violation.to_dict() for violation in self.doubtful],
            "found_during": self.during if self.violations or self.doubtful else None,
        }


class Display(Protocol):
    """Where it is shown."""

    def moved(self, report: Report) -> None:
        """Show how far it is."""
        ...

    def lived(self, report: Report, what: str) -> None:
        """Say how one life went."""
        ...
