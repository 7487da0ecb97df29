"""Random upkeep of real tables beside publishes and other programs: no row is lost, none comes back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from icefront.apply import apply_changes
from icefront.iceberg.java import JAVA_ERRORS, java_class
from icefront.iceberg.live import DeleteKind
from icefront.iceberg.rewriting import Rewriter
from icefront.upkeep import settle as settling
from icefront.upkeep.compact import compact
from icefront.upkeep.expire import expire
from icefront.upkeep.settle import settle
from tests import engines
from tests.changes.streaming import Streaming
from tests.changes.test_changes import create
from tests.upkeep.test_settle import by_pyiceberg, deletes, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

_numbers = itertools.count()
KEYS = st.sets(st.integers(0, 9), max_size=4)
BETWEEN = ("publish", "delete", "compact", "compact by others", "finish the compaction", "expire")
PARTITIONS = ("", "n", "bucket(2, id)")


class Upheld(RuleBasedStateMachine):
    """One table: `rows` is what it must show, `late` a compaction that was planned and is not committed yet."""

    spark: ClassVar[Any]
    lake_folder: ClassVar[Path]
    patch: ClassVar[pytest.MonkeyPatch]

    @initialize(version=st.sampled_from([2, 3]), partitioned=st.sampled_from(PARTITIONS), parts=st.booleans())
    def begin(self, version: int, partitioned: str, *, parts: bool) -> None:
        self.table = f"lake.t.upheld_{next(_numbers)}"
        self.version = version
        self.batches = itertools.count()
        self.columns = 0
        self.rows: dict[int, tuple[str, int]] = {}
        self.late: Callable[[], None] | None = None
        self.patch.setattr(settling, "COMMIT_BYTES", 1 if parts else 1 << 34)
        create(self.spark, self.table, version=version)
        if partitioned:
            # Icefront's own tables begin unpartitioned: that is what global equality deletes need.
            self.spark.sql(f"ALTER TABLE {self.table} ADD PARTITION FIELD {partitioned}")
        self.publish(new={1, 2, 3, 4}, gone=set())

    def check(self) -> None:
        seen = sorted(row[:3] for row in rows(self.spark, self.table).elements())
        assert seen == sorted((key, *rest) for key, rest in self.rows.items())

    def call(self, procedure: str, *arguments: str) -> None:
        self.spark.sql(f"CALL lake.system.{procedure}({', '.join((f'table => {self.table!r}', *arguments))})")

    # ── rows ───────────────────────────────────────────────────────────────────────────────
    @rule(new=KEYS, gone=KEYS, settled=st.booleans())
    def publish(self, new: set[int], gone: set[int], *, settled: bool = False) -> None:
        number = next(self.batches)
        changes: list[tuple[int, str | None, int | None, str]] = [(key, f"v{number}", key % 2, "c") for key in sorted(new)]
        changes += [(key, None, None, "d") for key in sorted(gone - new)]
        frame = self.spark.createDataFrame(changes, "id bigint, v string, n int, op string")
        how: Any = "settled" if settled else "immediate"
        apply_changes(frame, self.table, keys=["id"], query="q", batch=number, op="op", publish=how)
        assert not settled or deletes(self.spark, self.table)[DeleteKind.EQUALITY] == 0, "none of it, and none of before"
        for key, value, n, _ in changes:
            self.rows.pop(key, None)
            if value is not None and n is not None:
                self.rows[key] = (value, n)
        self.check()

    @rule(key=st.integers(0, 9))
    def delete(self, key: int) -> None:
        """Another program deletes, by position where it does not drop whole files."""
        self.spark.sql(f"DELETE FROM {self.table} WHERE id = {key}")
        self.rows.pop(key, None)
        summary = self.spark.sql(f"SELECT summary FROM {self.table}.snapshots ORDER BY committed_at DESC").first()[0]
        if "deleted-data-files" in summary:
            self.late = None  # see what is not covered in the guarantees
        self.check()

    @precondition(lambda self: self.columns < 3)
    @rule()
    def add_a_column(self) -> None:
        self.columns += 1
        self.spark.sql(f"ALTER TABLE {self.table} ADD COLUMN c{self.columns} string")
        self.check()

    # ── upkeep ─────────────────────────────────────────────────────────────────────────────
    @rule()
    def settle(self) -> None:
        settle(self.spark, self.table)
        assert deletes(self.spark, self.table)[DeleteKind.EQUALITY] == 0
        self.check()

    @rule(what=st.sampled_from(BETWEEN), new=KEYS, gone=KEYS)
    def settle_with_something_between(self, what: str, new: set[int], gone: set[int]) -> None:
        """What happens after dead rows were found and before that is committed; once."""
        happens = [what]
        commit = settling._commit

        def first(*arguments: Any) -> Any:
            if happens:
                self.do(happens.pop(), new, gone)
            return commit(*arguments)

        with self.patch.context() as patched:
            patched.setattr(settling, "_commit", first)
            settle(self.spark, self.table)
        self.check()

    def do(self, what: str, new: set[int], gone: set[int]) -> None:
        match what:
            case "settle":
                self.settle()
            case "publish":
                self.publish(new, gone)
            case "delete":
                self.delete(min(new | gone, default=1))
            case "compact":
                self.compact(applies=bool(gone))
            case "compact by others":
                self.compact_by_others(into_a_new_spec=bool(new))
            case "finish the compaction":
                self.finish_the_compaction()
            case "expire":
                self.publish(new, gone)
                self.expire(left=1, ours=bool(gone))

    @rule(applies=st.booleans())
    def compact(self, *, applies: bool) -> None:
        compact(self.spark, self.table, everything=True, applies=applies)
        self.check()

    @rule(what=st.sampled_from(("settle", *BETWEEN)), new=KEYS, gone=KEYS, applies=st.booleans())
    def compact_with_something_between(self, what: str, new: set[int], gone: set[int], *, applies: bool) -> None:
        """What happens after files were rewritten and before that is committed; once."""
        happens = [what]
        commit = Rewriter.commit

        def first(*arguments: Any, **options: Any) -> Any:
            if happens:
                self.do(happens.pop(), new, gone)
            return commit(*arguments, **options)

        with self.patch.context() as patched:
            patched.setattr(Rewriter, "commit", first)
            compact(self.spark, self.table, everything=True, applies=applies)
        self.check()

    @rule(into_a_new_spec=st.booleans())
    def compact_by_others(self, *, into_a_new_spec: bool) -> None:
        if into_a_new_spec:
            self.spark.sql(f"ALTER TABLE {self.table} ADD PARTITION FIELD bucket({2 + next(_numbers)}, id)")
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        self.check()

    @precondition(lambda self: self.late is None)
    @rule()
    def plan_a_compaction(self) -> None:
        """All live rows in one file, as others' compactions write it: with the sequence number of now."""
        stream = Streaming(self.spark, self.table)
        java = stream.table.table
        tasks = java.newScan().planFiles().iterator()
        old = []
        while tasks.hasNext():
            old.append(tasks.next().file())
        at = java.currentSnapshot()
        rewrite = java.newRewrite().validateFromSnapshot(at.snapshotId()).dataSequenceNumber(at.sequenceNumber())
        for file in old:
            rewrite.deleteFile(file)
        arrow = schema_to_pyarrow(Schema.model_validate_json(stream.table.schema_json()), include_field_ids=True)
        now = [{"id": key, "v": v, "n": n} for key, (v, n) in self.rows.items()]
        if now and old:
            rewrite.addFile(stream._file("DATA", now, arrow, {"spec-id": 0, "partition": {}})[1])
            self.late = rewrite.commit

    @precondition(lambda self: self.late is not None)
    @rule()
    def finish_the_compaction(self) -> None:
        commit, self.late = self.late, None
        if commit is not None:
            try:
                commit()
            except JAVA_ERRORS as error:
                if not java_class(error).endswith("ValidationException"):
                    raise
        self.check()

    @rule(left=st.integers(1, 2), ours=st.booleans())
    def expire(self, left: int, *, ours: bool) -> None:
        if ours:
            expire(self.spark, self.table, keep=timedelta(), at_least=left, orphans_after=None)
        else:
            self.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00'", f"retain_last => {left}")
        self.check()

    def teardown(self) -> None:
        """A second engine sees the same: one that reads equality deletes, and one that does not and needs the settle."""
        if not hasattr(self, "rows"):
            return
        wanted = sorted((key, *rest) for key, rest in self.rows.items())
        if self.version == 2:
            read, _ = engines.read(self.lake_folder, self.table)
            assert sorted((row["id"], row["v"], row["n"]) for row in read) == wanted
        settle(self.spark, self.table)
        assert sorted(row[:3] for row in by_pyiceberg(self.lake_folder, self.table).elements()) == wanted


@pytest.fixture
def upheld(spark: Any, lake_folder: Path, monkeypatch: pytest.MonkeyPatch) -> type[Upheld]:
    Upheld.spark, Upheld.lake_folder, Upheld.patch = spark, lake_folder, monkeypatch
    return Upheld


@pytest.mark.parametrize(
    ("version", "partitioned", "parts"), [pytest.param(2, "n", False, marks=pytest.mark.long), (3, "", True)]
)
def test_upkeep_by_every_hand(upheld: type[Upheld], version: int, partitioned: str, parts: Any) -> None:
    """The short form: what the random ones are made of, once each, where they meet."""
    table = upheld()
    table.begin(version=version, partitioned=partitioned, parts=parts)
    table.plan_a_compaction()
    # Deletes alone, twice: a compaction of all older files would drop the first, were there no data file beside it.
    table.publish(new=set(), gone={1})
    table.publish(new=set(), gone={2})
    table.finish_the_compaction()
    table.publish(new={2, 5, 6}, gone={3})
    table.delete(key=5)
    table.settle_with_something_between(what="publish", new={6, 7}, gone={2})
    table.plan_a_compaction()
    table.publish(new={7}, gone={4})
    table.settle()
    table.finish_the_compaction()
    table.add_a_column()
    table.publish(new={1, 2, 8}, gone=set())
    table.publish(new={2}, gone={8})
    table.settle_with_something_between(what="expire", new={9}, gone={1})
    table.settle_with_something_between(what="compact by others", new={9}, gone=set())
    table.publish(new={9}, gone={2}, settled=True)
    table.publish(new={1}, gone={6})
    table.compact(applies=False)
    table.publish(new={2}, gone={1})
    table.compact_with_something_between(what="publish", new={3}, gone={2}, applies=False)
    table.compact_with_something_between(what="settle", new=set(), gone=set(), applies=False)
    table.publish(new={4}, gone={3})
    table.compact_with_something_between(what="compact by others", new={4}, gone=set(), applies=True)
    table.compact(applies=True)
    table.teardown()


def random_upkeep(upheld: type[Upheld], examples: int, steps: int) -> None:
    checks = settings(
        # Without shrinking: every step costs seconds.
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        print_blob=True,
    )
    run_state_machine_as_test(upheld, settings=checks)


def test_some_random_upkeep(upheld: type[Upheld]) -> None:
    random_upkeep(upheld, 2, 6)


@pytest.mark.long
def test_much_random_upkeep(upheld: type[Upheld]) -> None:
    random_upkeep(upheld, 25, 12)
