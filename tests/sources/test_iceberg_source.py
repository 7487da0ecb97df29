"""The timeline of a table's snapshots, its batches and its schemas, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType
from structlog.testing import capture_logs

from icefront.core.epochs import Epoch
from icefront.core.errors import FrontierGap, Overcompacted, SchemaRefused, SourceChanged, Stopped
from icefront.core.marks import START, Position
from icefront.core.ports import OP, ORDER, WALL, Report
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.iceberg.live import DataEntry
from icefront.iceberg.statediff import FileChange
from icefront.iceberg.view import View
from icefront.kernels.datafiles import Layout
from icefront.sources import iceberg_reader
from icefront.sources.iceberg import IcebergSource
from icefront.sources.iceberg_reader import SMALLEST, IcebergReader, Piece, _piece, plan
from icefront.sources.iceberg_timeline import Place, batches
from tests.replica.metadata import TableMetadata, made

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType(), required=False), identifier_field_ids=[1]
)
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@dataclass
class Followed:
    """A table made by PyIceberg, or metadata alone; remembers what was tagged."""

    table: Table | None = None
    metadata: TableMetadata | None = None
    kept: list[int] = field(default_factory=list)
    refuses: bool = False
    is_ahead: bool = False

    def look(self) -> View:
        if self.metadata is not None:
            return View("lake.t.source", self.metadata, {})
        assert self.table is not None
        self.table.refresh()
        return View("lake.t.source", self.table.metadata, {})

    def keep(self, tag: str, snapshot: int) -> bool:
        assert tag == "tag"
        if self.refuses:
            raise Stopped("the catalog refused us", "")
        if not self.is_ahead:
            self.kept.append(snapshot)
        return not self.is_ahead


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("t")
    return catalog.create_table("t.source", SCHEMA)


def append(table: Table, *ids: int) -> None:
    table.append(pa.table([list(ids), [f"v{i}" for i in ids]], schema=ROWS))


def source(followed: Followed, **options: Any) -> IcebergSource:
    return IcebergSource(followed, tag="tag", **options)


def frontiers(source: IcebergSource, position: Position = START) -> list[str]:
    return [str(cut.frontier) for cut in source.observe(position, []).cuts]


def advance(
    source: IcebergSource, position: Position = START, lower: Timestamp = ORIGIN
) -> tuple[Position, Timestamp, list[Any]]:
    """Read the next epoch; return where it leads to and its changes."""
    upper = source.observe(position, []).cuts[0].frontier
    epoch = Epoch(lower, upper)
    reader = source.reader("", ["id"])
    told: list[Any] = []
    for split in source.splits("", epoch, position):
        for item in reader.read(split, epoch, SCHEMA):
            if isinstance(item, Report):
                assert not item.wishes
            else:
                told += [(row[OP], row["id"], row["v"], row[WALL], row[ORDER]) for row in item.to_pylist()]
    return source.reached(epoch, position, ()), upper, sorted(told)


# ── keys ───────────────────────────────────────────────────────────────────────────────────
def test_identifier_fields_are_named_in_full(tmp_path: Path) -> None:
    """A member of a struct is not the column that has its name."""
    member = NestedField(4, "id", LongType(), required=True)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "s", StructType(member), required=True),
        NestedField(3, "a", LongType(), required=True),
        identifier_field_ids=[3, 4],
    )
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("t")
    assert source(Followed(catalog.create_table("t.nested", schema))).keys("") == ["s.id", "a"]
    assert source(Followed(catalog.create_table("t.flat", SCHEMA))).keys("") == ["id"]


# ── the timeline ───────────────────────────────────────────────────────────────────────────
def test_each_snapshot_is_an_epoch_at_its_sequence_number(table: Table) -> None:
    append(table, 1, 2)
    append(table, 3)
    follower = source(Followed(table))
    assert frontiers(follower) == ["2.0000000001"]
    position, lower, told = advance(follower)
    assert told == [(1, 1, "v1", 2, 1), (1, 2, "v2", 2, 1), (1, 3, "v3", 2, 1)]
    append(table, 4)
    table.delete("id = 2")
    assert frontiers(follower, position) == ["3.0000000001", "4.0000000001"]
    position, lower, told = advance(follower, position, lower)
    assert told == [(1, 4, "v4", 3, 1)]
    position, lower, told = advance(follower, position, lower)
    # The rewritten file carried 1 over: it is not told again.
    assert told == [(-1, 2, None, 4, 0)]
    assert frontiers(follower, position) == []
    assert lower == Timestamp(4, 1)


def test_the_first_state_is_cut_into_batches_that_are_found_again(table: Table) -> None:
    for number in range(4):
        append(table, number)
    followed = Followed(table)
    first = source(followed, batch_bytes=1)
    assert frontiers(first) == [f"4.{n:010d}" for n in (1, 2, 3, 4)]
    position, lower, told = advance(first)
    ids = [row[1] for row in told]
    assert Place.of(position) == Place(str(table.metadata.table_uuid), Timestamp(4, 1), table.metadata.current_snapshot_id, 0, 1)
    append(table, 99)
    # Another process goes on after the last batch, with another idea of how large batches are.
    again = source(followed, batch_bytes=1 << 30)
    assert frontiers(again, position) == ["4.0000000002", "5.0000000001"]
    position, lower, told = advance(again, position, lower)
    assert sorted(ids + [row[1] for row in told]) == [0, 1, 2, 3]
    assert [row[1] for row in advance(again, position, lower)[2]] == [99]


def test_a_table_without_snapshots_begins_empty(table: Table) -> None:
    follower = source(Followed(table))
    position, lower, told = advance(follower)
    assert (str(lower), told) == ("0.0000000001", [])
    append(table, 1)
    append(table, 2)
    assert frontiers(follower, position) == ["1.0000000001", "2.0000000001"]
    assert [row[1] for row in advance(follower, position, lower)[2]] == [1]


def test_beginning_at_the_latest_tells_no_rows_and_one_split(table: Table) -> None:
    append(table, 1)
    follower = source(Followed(table), start="latest")
    epoch = Epoch(ORIGIN, follower.observe(START, []).cuts[0].frontier)
    (split,) = follower.splits("", epoch, START)
    report = follower.reader("", ["id"]).infer(split, epoch)
    assert [(wish.column, wish.type) for wish in report.wishes] == [("id", "long"), ("v", "string")]
    assert advance(follower)[2] == []


def test_keys_are_the_identifier_fields(table: Table) -> None:
    assert source(Followed(table)).keys("") == ["id"]


def test_an_epoch_that_the_table_does_not_show(table: Table) -> None:
    append(table, 1)
    follower = source(Followed(table))
    follower.observe(START, [])
    with pytest.raises(FrontierGap, match="shows nothing up to 7"):
        follower.splits("", Epoch(Timestamp(5), Timestamp(7)), START)


def snapshot(number: int, parent: int | None, sequence: int) -> Snapshot:
    return Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": sequence,
            "timestamp-ms": 1000 * number,
            "manifest-list": "none",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
    )


def follow(metadata: TableMetadata, at: int | None, frontier: str) -> list[tuple[str, int | None]]:
    place = Place(str(metadata.table_uuid), Timestamp.parse(frontier), at, 0)
    follower = source(Followed(metadata=metadata))
    follower.observe(place.position(), [])
    stages = follower._stages(place.position())
    return [(str(stage.after.frontier), stage.after.snapshot) for stage in stages]


def test_a_rollback_takes_the_last_number_and_then_counts_on() -> None:
    chain = [snapshot(1, None, 1), snapshot(2, 1, 2), snapshot(3, 2, 3)]
    back = made(chain, current=1, last=3)
    assert follow(back, 3, "3.0000000001") == [("3.0000000002", 1)]
    # Whoever had not seen all of it is led to where the others are.
    assert follow(back, 2, "2.0000000001") == [("3.0000000001", 1)]
    assert follow(made([*chain, snapshot(4, 1, 4)], current=4, last=4), 1, "3.0000000002") == [("4.0000000001", 4)]


@pytest.mark.parametrize("numbers", [(1, 2, 3), (0, 0, 0)], ids=["numbered", "format 1"])
def test_a_stage_knows_whether_it_leads_back(numbers: tuple[int, int, int]) -> None:
    chain = [snapshot(i, i - 1 or None, number) for i, number in enumerate(numbers, 1)]
    for seen, current, is_back in ((3, 1, True), (1, 3, False), (None, 3, False)):
        follower = source(Followed(metadata=made(chain, current=current, last=max(numbers))))
        place = Place(str(follower.metadata.table_uuid), Timestamp(3, 1), seen, 0)
        assert {stage.is_back for stage in follower._stages(place.position())} == {is_back}


def test_format_1_counts_what_was_told() -> None:
    chain = [snapshot(1, None, 0), snapshot(2, 1, 0), snapshot(3, 2, 0)]
    metadata = made(chain, current=3, last=None)
    assert follow(metadata, 1, "0.0000000001") == [("0.0000000002", 2), ("0.0000000003", 3)]


def test_staged_snapshots_and_other_branches_do_not_count() -> None:
    chain = [snapshot(1, None, 1), snapshot(2, 1, 2), snapshot(3, 1, 3)]
    assert follow(made(chain, current=3, last=3), 1, "1.0000000001") == [("3.0000000001", 3)]
    assert follow(made(chain, current=1, last=3), 1, "1.0000000001") == []


def test_what_expired_between_comes_in_one_step() -> None:
    assert follow(made([snapshot(1, None, 1), snapshot(4, 3, 4)], current=4, last=4), 1, "1.0000000001") == [("4.0000000001", 4)]


def test_a_table_that_was_emptied() -> None:
    assert follow(made([snapshot(1, None, 1)], current=None, last=1), 1, "1.0000000001") == [("1.0000000002", None)]
    assert follow(made([snapshot(1, None, 1)], current=None, last=1), None, "1.0000000002") == []


def test_an_expired_snapshot_and_a_recreated_table() -> None:
    metadata = made([snapshot(4, None, 4)], current=4, last=4)
    with pytest.raises(Overcompacted, match="up to snapshot 1, which has expired: the oldest that is left is 4"):
        follow(metadata, 1, "1.0000000001")
    with pytest.raises(SourceChanged, match="written from table other"):
        source(Followed(metadata=metadata)).observe(Place("other", Timestamp(1, 1), 1, 0).position(), [])


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60), st.integers(0, 30))
def test_batches_hold_every_file_once_and_end_the_same_wherever_one_begins(sizes: Sequence[int], limit: int, begin: int) -> None:
    found = list(batches(sizes, 0, limit))
    assert [i for files in found for i in files] == list(range(len(sizes)))
    assert all(len(files) <= 1 or sum(sizes[i] for i in files) <= limit for files in found)
    assert len(found) >= 1
    if begin < len(found):
        assert list(batches(sizes, found[begin].start, limit)) == found[begin:]


def change(number: int, size: int) -> FileChange:
    return FileChange(DataEntry(f"{number:06}", "parquet", 0, (), sequence=1, records=1, size=size), None, ())


def test_splits_hold_every_file_once_up_to_their_size() -> None:
    found = [change(i, size) for i, size in enumerate([10, 20, 40, 5, SMALLEST, 1])]
    piece = Piece(Timestamp(1), 7, 0, 0, tuple(reversed(found)))
    splits = plan([piece, Piece(Timestamp(2), 8, 0, 0), Piece(Timestamp(3), 9, 0, 1)], SMALLEST, 1)
    assert [(s.number, s.bytes) for s in splits] == [(0, 75), (1, SMALLEST), (2, 1), (3, 0)]
    told = [_piece(split) for split in splits]
    assert [c.file.path for p in told for c in p.changes] == [c.file.path for c in found]
    assert [p.snapshot for p in told] == [7, 7, 7, 9], "a stage with neither rows nor another schema has none"


def test_planning_looks_at_each_file_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many one split has: it was copied for each of its files."""
    copied: list[int] = []

    def watched(made: Any, **told: Any) -> Any:
        copied.append(len(told.get("changes", ())))
        return replace(made, **told)

    monkeypatch.setattr(iceberg_reader, "replace", watched)
    plan([Piece(Timestamp(1), 7, 0, 0, tuple(change(i, 1) for i in range(500)))], SMALLEST, 1)
    assert sum(copied) <= 500


# ── keeping ────────────────────────────────────────────────────────────────────────────────
def test_the_tag_is_set_before_reading_and_moves_on_release(table: Table) -> None:
    append(table, 1)
    followed = Followed(table)
    follower = source(followed)
    position, lower, _ = advance(follower)
    first = table.metadata.current_snapshot_id
    assert followed.kept == [first]
    follower.release(position)
    append(table, 2)
    position, lower, _ = advance(follower, position, lower)
    assert followed.kept == [first]
    follower.release(position)
    assert followed.kept == [first, table.metadata.current_snapshot_id]


@pytest.mark.parametrize(
    ("how", "said"),
    [("refuses", "the catalog refused us"), ("is_ahead", "the tag is on a younger snapshot, and is not moved back")],
)
def test_a_snapshot_that_the_tag_does_not_hold_is_read_and_told_once(table: Table, how: str, said: str) -> None:
    append(table, 1)
    followed = Followed(table)
    setattr(followed, how, True)
    follower = source(followed)
    with capture_logs() as logs:
        position, lower, told = advance(follower)
        append(table, 2)
        position, _, _ = advance(follower, position, lower)
        follower.release(position)
    assert [row[1] for row in told] == [1]
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "cannot be tagged" in warning["event"]
    assert warning["error"] == said


# ── schemas ────────────────────────────────────────────────────────────────────────────────
def columns(*fields: NestedField, number: int = 0) -> Schema:
    return Schema(*fields, schema_id=number)


def column(number: int, name: str, kind: Any = None, **options: Any) -> NestedField:
    return NestedField(number, name, kind or LongType(), required=False, **options)


def wished(before: Schema, after: Schema, target: Schema, *others: Schema, is_back: bool = False) -> list[tuple[Any, ...]]:
    schemas = {s.schema_id: s.model_dump_json() for s in (before, after, *others)}
    reader = IcebergReader("lake.t.source", Layout(schemas, 3), {}, "", ("id",))
    piece = Piece(Timestamp(1), 7, before.schema_id, after.schema_id, is_back=is_back)
    return [(wish.column, wish.type, wish.widens, wish.former) for wish in reader._wishes(piece, target)]


ID = column(1, "id")
BEFORE = columns(ID, column(2, "a"))


@pytest.mark.parametrize(
    ("after", "target", "wishes"),
    [
        (columns(ID, column(2, "a"), number=1), columns(ID, column(5, "a")), []),
        (columns(ID, column(2, "a"), column(3, "b"), number=1), columns(ID, column(5, "a")), [("b", "long", None, None)]),
        (columns(ID, column(2, "b"), number=1), columns(ID, column(5, "a")), [("b", "long", None, "a")]),
        (columns(ID, column(2, "b"), number=1), columns(ID, column(5, "b")), []),
        (columns(ID, number=1), columns(ID, column(5, "a")), []),
        (columns(ID, column(2, "a"), number=1), columns(ID, column(5, "a", IntegerType())), [("a", "long", "int", None)]),
        (columns(ID, column(2, "a", IntegerType()), number=1), columns(ID, column(5, "a")), []),
    ],
    ids=["the same", "added", "renamed", "renamed by an earlier attempt", "dropped", "wider", "narrower than the target"],
)
def test_what_a_schema_change_asks_for(after: Schema, target: Schema, wishes: list[Any]) -> None:
    assert wished(BEFORE, after, target) == wishes


@pytest.mark.parametrize(
    ("after", "target", "fact"),
    [
        (columns(ID, column(3, "a"), number=1), columns(ID, column(5, "a")), "column a is another one than before"),
        (columns(ID, column(2, "b"), number=1), columns(ID, column(5, "a"), column(6, "b")), "a column of either name"),
        (columns(ID, column(3, "was"), number=1), columns(ID, column(5, "a")), "another one was called so before"),
        (
            columns(ID, column(2, "a"), column(3, "b", initial_default=5), number=1),
            columns(ID, column(5, "a")),
            "column b is new and 5 in all earlier rows",
        ),
    ],
    ids=["added anew", "renamed to what is there", "an old name", "with a default"],
)
def test_what_would_make_old_rows_differ_is_refused(after: Schema, target: Schema, fact: str) -> None:
    with pytest.raises(SchemaRefused, match=fact):
        wished(BEFORE, after, target, columns(ID, column(9, "was"), number=2))


def test_a_column_that_comes_back_with_its_values_is_refused_unless_the_target_has_them() -> None:
    """Rows that did not change are not read again. A schema that is there once more has its old number."""
    after = columns(ID, column(2, "a"), column(3, "n"), number=1)
    with pytest.raises(SchemaRefused, match="column n is back with what it held"):
        wished(BEFORE, after, columns(ID, column(5, "a")), is_back=True)
    assert wished(BEFORE, after, columns(ID, column(5, "a"), column(6, "n")), is_back=True) == []
    assert wished(BEFORE, after, columns(ID, column(5, "a"))) == [("n", "long", None, None)]
