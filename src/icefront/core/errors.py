"""Every error that Icefront raises on purpose, in one tree.

    IcefrontError
    ├── ConfigError        a file or an option is wrong            exit 2
    ├── ConnectionFailed   a server or store cannot be reached     exit 3
    ├── FencedOut          another writer owns the target          exit 4
    └── Stopped            going on could lose or double changes   exit 5
        ├── BadRow             a record that cannot be decoded
        ├── SchemaRefused      a schema change that the policy stops
        ├── FrontierGap        an epoch does not start at the frontier
        ├── RolledBack         the target lost snapshots that its mark remembers
        ├── Replaced           the target is not the one the mark was written for
        ├── NotOurs            the target has rows but no mark of this pipeline
        ├── SourceChanged      the source is not the one the mark was written for
        ├── Overcompacted      the source no longer has what comes next
        ├── NewerFormat        a mark or state file of a newer Icefront
        ├── ClockBehind        the target's last commit is of the future
        ├── FilesGone          files that the target names are not there
        ├── CommitUncertain    commits kept failing; nothing is known to be wrong
        └── StagedMismatch     a closed file changed, vanished or was reported twice unlike

An error is one sentence of fact with both values, then `next_step`: what to do.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

UNEXPECTED = 1
"""The exit code of a program that ends with an error that is none of these."""


class IcefrontError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1

    def __init__(self, fact: str, next_step: str = "") -> None:
        super().__init__(fact, next_step)
        self.fact = fact
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.fact}\n  → {self.next_step}" if self.next_step else self.fact


class ConfigError(IcefrontError):
    """A file or an option is wrong."""

    exit_code = 2


class ConnectionFailed(IcefrontError):
    """A server or store cannot be reached; the same call may work later."""

    exit_code = 3


class FencedOut(IcefrontError):
    """Another writer owns the target. Never restart automatically after this."""

    exit_code = 4

    @classmethod
    def by(
        cls,
        owner: object,
        target: str,
        ours: object,
        next_step: str = "another run of this pipeline took over: let it work, and do not restart this one automatically",
    ) -> Self:
        """Say who owns the target, and which writer was refused."""
        return cls(f"{target} is owned by writer {owner}; this run is {ours}", next_step)


class Stopped(IcefrontError):
    """Going on could lose or double changes."""

    exit_code = 5


class BadRow(Stopped):
    """A record that cannot be decoded into the target's columns."""


class SchemaRefused(Stopped):
    """The source's schema changed in a way that the policy stops on."""


class FrontierGap(Stopped):
    """Publishing would skip or repeat changes."""


class RolledBack(Stopped):
    """The target's current branch no longer contains what its mark remembers."""


class Replaced(Stopped):
    """The target was dropped, recreated or truncated under the same name."""


class NotOurs(Stopped):
    """The target has rows but no mark of this pipeline."""


class SourceChanged(Stopped):
    """The source is not the one that the mark was written for."""


class Overcompacted(Stopped):
    """The source no longer holds the changes that come next."""


class NewerFormat(Stopped):
    """A mark, note or state file was written by a newer Icefront."""


class ClockBehind(Stopped):
    """The target's last commit is of the future, by this machine's clock: it takes no commit of ours before that time."""


class FilesGone(Stopped):
    """Files that the target names are not there: others may have rewritten them and expired what knew them."""

    paths: frozenset[str] = frozenset()

    @classmethod
    def of(cls, target: str, paths: Collection[str]) -> Self:
        more = f", and {len(paths) - 1} more" if len(paths) > 1 else ""
        error = cls(
            f"a file that {target} names is not there: {min(paths)}{more}",
            "run it again: others may have rewritten it; if it is missed again, restore it from a copy, and look for what removes files",
        )
        error.paths = frozenset(paths)
        return error


class CommitUncertain(Stopped):
    """Commit attempts kept failing; the staged files stay and the next run resumes."""


class StagedMismatch(Stopped):
    """A closed file changed, vanished, or was reported twice with different facts."""
