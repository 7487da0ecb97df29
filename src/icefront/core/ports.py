"""The two ports: what a source and a sink must be able to do, and the values that pass between.

A source says what changed between two timestamps. A sink makes that visible once and remembers, in
the same atomic step, how far it has got. Any source works with any sink.

`Reader` and `EpochWriter` are pickled into Spark's Python workers; everything else stays in the
driver. Change batches are Arrow tables: the target's columns by name, then the four columns below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from icefront.core.epochs import Cut, Epoch
from icefront.core.errors import BadRow
from icefront.core.files import ClosedFile, Staged
from icefront.core.marks import Identity, Mark, Position
from icefront.core.protocol import Outcome
from icefront.core.timestamps import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

# Names that no column has: each begins with a control character.
OP = "\1op"  # int8: 1 upsert, -1 delete (only the key columns are set then)
WALL = "\1wall"  # int64: the change's timestamp
LOGICAL = "\1logical"  # int32
ORDER = "\1order"  # int64: order within the source, for changes of one key at one timestamp
CHANGE_COLUMNS = (OP, WALL, LOGICAL, ORDER)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a source showed: the cuts after the position it was asked about, in order.

    `earliest` is the least timestamp that can still be read: a target behind it is overcompacted.
    """

    cuts: tuple[Cut, ...]
    earliest: Timestamp


@dataclass(frozen=True, slots=True)
class Split:
    """The part of an epoch that one Spark task reads. Only the source's reader knows `work`."""

    number: int
    bytes: int
    work: str


@dataclass(frozen=True, slots=True)
class Wish:
    """A schema change that reading asks for: a new column, or a wider type for an existing one.

    `type` is an Iceberg type as text. `where` says where it was seen first, e.g. file:line. A source that knows what a new column
    was called before says so in `former`. `doubt` is raised when the column would get a type that not all its values survive.
    """

    column: str
    type: str
    where: str
    widens: str | None = None
    former: str | None = None
    doubt: BadRow | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Report:
    """What reading one split found besides changes.

    With wishes, the split's changes are incomplete: the schema evolves and the epoch is read again.
    `seen` is the source's own and comes back to it in `reached`.
    """

    split: int
    seen: Mapping[str, object] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    wishes: tuple[Wish, ...] = ()


class Reader(Protocol):
    """Runs in workers: one split in, Arrow tables of changes out, then one report."""

    def infer(self, split: Split, epoch: Epoch) -> Report:
        """Report every column of the split as a wish: what a table made for it would have."""
        ...

    def read(self, split: Split, epoch: Epoch, schema: Schema) -> Iterator[pa.Table | Report]:
        """Yield the split's changes inside `epoch`, typed by `schema`; the report comes last."""
        ...


class Source(Protocol):
    """Where changes come from."""

    def identity(self) -> Identity: ...

    def tables(self, after: Position) -> Sequence[str]:
        """Name the tables that have changes after `after`."""
        ...

    def keys(self, table: str) -> Sequence[str] | None:
        """Name the table's key columns where the source itself knows them."""
        ...

    def observe(self, after: Position, tables: Sequence[str]) -> Observation:
        """Look for new cuts. Cheap: called at every poll."""
        ...

    def splits(self, table: str, epoch: Epoch, start: Position) -> Sequence[Split]:
        """Plan the reading of an epoch; none means that it has no changes."""
        ...

    def reader(self, table: str, keys: Sequence[str], ignored: Collection[str] = (), renames: Mapping[str, str] = {}) -> Reader:
        """Make a reader for workers. `ignored` columns are left out without a wish for them.

        `renames` maps a column's name to the one it had before, by which older changes call it.
        """
        ...

    def sample(self, table: str) -> Collection[str]:
        """Name the columns that the first rows have: cheap, and only a hint."""
        ...

    def reached(self, epoch: Epoch, start: Position, reports: Sequence[Report]) -> Position:
        """Return the position at the epoch's end, given what its splits reported."""
        ...

    def release(self, position: Position) -> None:
        """Every target is past this: nothing before it will be asked for again."""
        ...


class EpochWriter(Protocol):
    """Runs in workers: netted changes in, closed files out."""

    def write(self, changes: Iterable[pa.Table], split: int, attempt: str) -> Iterator[ClosedFile]: ...


class Sink(Protocol):
    """One target: one table, topic or index."""

    @property
    def target(self) -> str: ...

    def open(self) -> Schema | None:
        """Load the target and return its schema; None when it waits for the first epoch's columns."""
        ...

    def recall(self) -> Mark | None:
        """Read what the target remembers; disturbs nobody."""
        ...

    def claim(self, run: str, source: Identity, *, adopt: bool) -> Mark:
        """Refuse older writers from now on, and return the mark to go on from."""
        ...

    def prepare(self, wishes: Sequence[Wish]) -> Schema:
        """Create or evolve the target; return the schema that changes are to have."""
        ...

    def is_empty(self) -> bool:
        """Say whether nothing was ever written: only then may the first epoch omit deletes."""
        ...

    def writer(self, epoch: Epoch, schema: Schema, *, fresh: bool) -> EpochWriter:
        """Make a writer for workers, of changes that have this schema: the target's own may be another by then."""
        ...

    def settings(self) -> str:
        """Fingerprint everything that written files depend on."""
        ...

    def present(self, staged: Staged) -> bool:
        """Say whether every staged file still exists, by name and size, and still means what it meant."""
        ...

    def publish(self, staged: Staged, onto: Mark) -> Outcome: ...
