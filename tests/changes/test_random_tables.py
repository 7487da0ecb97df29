"""Random histories of real tables: after every commit, the changes lead from what was there to what is there."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from icefront.apply import apply_changes
from icefront.changelog import changes
from icefront.iceberg import history, kinship
from icefront.iceberg.view import View
from icefront.proof.changelog import verify
from tests.changes.opinion import agrees, can_tell
from tests.changes.streaming import Streaming
from tests.changes.test_changes import MODES, create

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

_numbers = itertools.count()
IDS = st.integers(0, 12)
SOME = st.sets(IDS, max_size=3)
COLUMNS = "id bigint, v string, n int, d float, s struct<a: int, l: array<struct<b: string>>>"
PARTITIONS = ("n", "bucket(2, id)", "truncate(1, v)")
# No widening of `n`: Spark itself cannot go back to before that in a table that was once partitioned by it.
SCHEMAS = {
    "add": "ADD COLUMN c{0} string",
    "add to the struct": "ADD COLUMN s.c{0} int",
    "add to structs of the list": "ADD COLUMN s.l.element.c{0} int",
    "drop": "DROP COLUMN d",
    "drop of the struct": "DROP COLUMN s.l",
    "rename": "RENAME COLUMN d TO d{0}",
    "rename in the struct": "RENAME COLUMN s.a TO a{0}",
    "reorder": "ALTER COLUMN n FIRST",
    "reorder in the struct": "ALTER COLUMN s.l FIRST",
    "widen a float": "ALTER COLUMN d TYPE double",
    "widen in the struct": "ALTER COLUMN s.a TYPE bigint",
}
BREAKS = {
    "drop": {"rename", "widen a float"},
    "rename": {"drop", "widen a float"},
    "drop of the struct": {"add to structs of the list", "reorder in the struct"},
    "rename in the struct": {"widen in the struct"},
}
"""What cannot be said any more after a change, since it would name a column that is not there."""


@pytest.fixture(autouse=True)
def however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask of each step what is else only asked where that saves much."""
    monkeypatch.setattr(kinship, "LITTLE", 0)


class Histories(RuleBasedStateMachine):
    """One table, changed by many hands."""

    spark: ClassVar[Any]

    @initialize(
        version=st.sampled_from([1, 2, 3]),
        partitioned=st.sampled_from(["", *PARTITIONS]),
        mode=st.sampled_from(sorted(MODES)),
        seed=st.integers(0, 1000),
    )
    def begin(self, version: int, partitioned: str, mode: str, seed: int) -> None:
        self.table = f"lake.t.random_{next(_numbers)}"
        self.version = version
        self.partitions = {partitioned} - {""}
        self.random = Random(seed)
        self.seen: list[int | None] = [None]
        self.schemas = set(SCHEMAS)
        self.branched = False
        self.batches = itertools.count()
        self.ours = True
        mode = "copy-on-write" if version == 1 else mode
        create(self.spark, self.table, version=version, partitioned=partitioned, mode=mode, columns=COLUMNS)
        self.sql("INSERT INTO T (id, v, n) VALUES (1, 'a', 0), (2, 'b', 1), (2, 'b', 1), (3, NULL, NULL)")

    def sql(self, statement: str) -> None:
        """Run a statement in which T is the table, then compare."""
        self.spark.sql(statement.replace(" T ", f" {self.table} "))
        self.compare()

    def call(self, procedure: str, *arguments: object) -> None:
        self.spark.sql(f"CALL lake.system.{procedure}({', '.join((repr(self.table), *map(str, arguments)))})")
        self.compare()

    def main(self) -> Any:
        self.spark.sql(f"REFRESH TABLE {self.table}")
        return self.spark.sql(f"SELECT snapshot_id FROM {self.table}.refs WHERE name = 'main'").first()[0]

    def parent(self, snapshot: Any) -> Any:
        found = self.spark.sql(f"SELECT parent_id FROM {self.table}.snapshots WHERE snapshot_id = {snapshot or 0}").first()
        return found and found[0]

    def compare(self) -> None:
        """What the last commit did; then from or to some snapshot of before, step by step or as net changes."""
        newest, last = self.main(), self.seen[-1]
        if newest == last:
            return
        self.lead(last, newest, net=False)
        if can_tell(self.spark, self.table, last, newest):
            agrees(self.spark, self.table, last, newest)
        other = self.random.choice(self.seen)
        begin, end = (other, newest) if other is None or self.random.random() < 0.7 else (newest, other)
        self.lead(begin, end, net=self.random.random() < 0.5)
        self.seen.append(newest)

    def lead(self, begin: Any, end: Any, *, net: bool) -> None:
        if self.brings_back_a_column(begin, end):
            return
        keys = self.random.choice([[], ["id"]])
        found = changes(self.spark, self.table, begin, end, keys=keys, net=net)
        assert verify(self.spark, self.table, begin, end, found, 3) == [], (begin, end, net, keys)

    def brings_back_a_column(self, begin: Any, end: Any) -> bool:
        """Whether a column that was dropped is there again: its values come back with the column, not with changes of rows."""
        if begin is None:
            return False
        metadata = View.of(self.spark, self.table).metadata
        first, last = (history.schema_of(metadata, history.find(self.table, metadata, name)) for name in (begin, end))
        return first.schema_id > last.schema_id and not last.field_ids <= first.field_ids

    # ── rows ───────────────────────────────────────────────────────────────────────────────
    @rule(first=IDS, count=st.integers(1, 4))
    def insert(self, first: int, count: int) -> None:
        nested = json.dumps({"a": first, "l": [{"b": "x"}, None, {"b": None}]})
        kind = self.spark.table(self.table).schema["s"].dataType.simpleString()
        rows = ", ".join(f"({i}L, 'i{i}', {i % 2}, from_json('{nested}', '{kind}'))" for i in range(first, first + count))
        self.sql(f"INSERT INTO T (id, v, n, s) VALUES {rows}")

    @rule(rest=st.integers(0, 3), value=st.sampled_from(["x", "y"]))
    def update(self, rest: int, value: str) -> None:
        self.sql(f"UPDATE T SET v = '{value}' WHERE id % 4 = {rest}")

    @rule(rest=st.integers(0, 3))
    def move(self, rest: int) -> None:
        """Update what rows are partitioned by."""
        self.sql(f"UPDATE T SET n = n + 1, id = id + 1 WHERE id % 4 = {rest}")

    @rule(key=IDS)
    def delete(self, key: int) -> None:
        self.sql(f"DELETE FROM T WHERE id = {key}")

    @rule(keys=st.sets(IDS, min_size=1, max_size=4))
    def merge(self, keys: set[int]) -> None:
        source = " UNION ALL ".join(f"SELECT {key} AS id" for key in sorted(keys))
        self.sql(
            f"MERGE INTO T t USING ({source}) s ON t.id = s.id WHEN MATCHED AND t.id % 3 = 0 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET t.v = 'merged' WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (s.id, 'new', 0)"
        )

    @rule(first=IDS)
    def overwrite(self, first: int) -> None:
        """Rows that were there come back in another file; with partitions only those that the new rows are in."""
        self.sql(f"INSERT OVERWRITE T SELECT * FROM {self.table} WHERE id >= {first}")

    @precondition(lambda self: self.version > 1)
    @rule(gone=SOME, new=SOME, takes_back=st.booleans(), everywhere=st.booleans())
    def stream(self, gone: set[int], new: set[int], *, takes_back: bool, everywhere: bool) -> None:
        """Upserts by equality deletes, as streaming writers make them."""
        stream = Streaming(self.spark, self.table)
        if gone or new:
            rows = [{"id": key, "v": "streamed", "n": key % 2} for key in sorted(new)]
            old = [{"id": key, "v": "i", "n": key % 2} for key in sorted(gone)]
            stream.upsert(rows, old, takes_back=takes_back, everywhere=everywhere and stream.unpartitioned() is not None)
            self.compare()

    @precondition(lambda self: self.version > 1 and self.ours)
    @rule(gone=SOME, new=SOME)
    def apply(self, gone: set[int], new: set[int]) -> None:
        """Upserts by Icefront itself."""
        rows = [(key, "applied", "c") for key in sorted(new)] + [(key, None, "d") for key in sorted(gone - new)]
        if rows:
            frame = self.spark.createDataFrame(rows, "id bigint, v string, op string")
            apply_changes(frame, self.table, keys=["id"], query="q", batch=next(self.batches), op="op", adopt=True)
            self.compare()

    # ── files and metadata ─────────────────────────────────────────────────────────────────
    @precondition(lambda self: self.version > 1)
    @rule(mode=st.sampled_from(sorted(MODES)))
    def change_mode(self, mode: str) -> None:
        told = ", ".join(f"'{name}'='{value}'" for name, value in MODES[mode].items())
        self.sql(f"ALTER TABLE T SET TBLPROPERTIES ({told})")

    @rule()
    def compact(self) -> None:
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    @precondition(lambda self: self.version > 1)
    @rule()
    def compact_deletes(self) -> None:
        self.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")

    @rule()
    def rewrite_manifests(self) -> None:
        self.call("rewrite_manifests")

    @rule(left=st.integers(1, 3))
    def expire(self, left: int) -> None:
        self.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00'", f"retain_last => {left}")
        there = {row[0] for row in self.spark.sql(f"SELECT snapshot_id FROM {self.table}.snapshots").collect()}
        self.seen = [None, *(snapshot for snapshot in self.seen if snapshot in there)]
        self.lead(None, self.seen[-1], net=False)

    @precondition(lambda self: self.version < 3)
    @rule()
    def upgrade(self) -> None:
        self.version += 1
        self.sql(f"ALTER TABLE T SET TBLPROPERTIES ('format-version'='{self.version}')")

    @precondition(lambda self: self.schemas)
    @rule(number=st.integers(0, 1000))
    def change_schema(self, number: int) -> None:
        change = sorted(self.schemas)[number % len(self.schemas)]
        self.schemas -= BREAKS.get(change, set()) | {change}
        self.sql(f"ALTER TABLE T {SCHEMAS[change].format(len(self.schemas))}")

    @rule(field=st.sampled_from(PARTITIONS))
    def change_partitioning(self, field: str) -> None:
        self.sql(f"ALTER TABLE T {'DROP' if field in self.partitions else 'ADD'} PARTITION FIELD {field}")
        self.partitions ^= {field}

    # ── other states ───────────────────────────────────────────────────────────────────────
    @precondition(lambda self: len(self.seen) > 3)
    @rule()
    def roll_back(self) -> None:
        self.ours = False  # who writes exactly once does not go on after that
        parent = self.parent(self.seen[-1])
        if parent in self.seen[1:]:
            self.call("rollback_to_snapshot", parent)

    @precondition(lambda self: len(self.seen) > 3)
    @rule(number=st.integers(0, 1000))
    def jump(self, number: int) -> None:
        """Let main be any state of before: an older one, or one that was rolled back."""
        self.ours = False
        self.call("set_current_snapshot", self.seen[1:][number % (len(self.seen) - 1)])

    @precondition(lambda self: not self.branched)
    @rule()
    def branch(self) -> None:
        self.branched = True
        self.sql("ALTER TABLE T CREATE OR REPLACE BRANCH side")

    @precondition(lambda self: self.branched)
    @rule(key=IDS)
    def write_to_the_branch(self, key: int) -> None:
        self.spark.sql(f"INSERT INTO {self.table}.branch_side (id, v, n) VALUES ({key}, 'side', 0)")
        self.spark.sql(f"DELETE FROM {self.table}.branch_side WHERE id = {key + 1}")
        self.lead("main", "side", net=False)
        self.lead("side", "main", net=True)

    @precondition(lambda self: self.branched)
    @rule()
    def take_the_branch(self) -> None:
        """Let main be what the branch is: by going on, or by a jump."""
        self.branched = self.ours = False
        side = self.spark.sql(f"SELECT snapshot_id FROM {self.table}.refs WHERE name = 'side'").first()[0]
        if self.parent(self.parent(side)) == self.seen[-1]:
            self.call("fast_forward", "'main'", "'side'")
        else:
            self.call("set_current_snapshot", side)


def test_a_history_by_every_hand(spark: Any) -> None:
    """The short form: what the random ones are made of, once each, through all formats."""
    Histories.spark = spark
    hands = Histories()
    hands.begin(version=1, partitioned="n", mode="copy-on-write", seed=1)
    hands.insert(first=4, count=4)
    hands.update(rest=2, value="x")
    hands.change_partitioning(field="n")
    hands.upgrade()
    hands.stream(gone={3}, new={1, 5}, takes_back=True, everywhere=True)
    hands.change_partitioning(field="bucket(2, id)")
    hands.change_mode(mode="merge-on-read")
    hands.merge(keys={2, 3, 6})
    for _ in SCHEMAS:
        if hands.schemas:
            hands.change_schema(number=-1)
    hands.apply(gone={1}, new={2, 7})
    hands.branch()
    hands.write_to_the_branch(key=5)
    hands.take_the_branch()
    hands.upgrade()
    hands.delete(key=7)
    hands.stream(gone={2}, new={4, 9}, takes_back=True, everywhere=False)
    hands.compact_deletes()
    hands.move(rest=0)
    hands.roll_back()
    hands.jump(number=3)
    hands.overwrite(first=2)
    hands.rewrite_manifests()
    hands.compact()
    hands.expire(left=2)
    hands.insert(first=1, count=2)


@pytest.mark.long
def test_random_histories(spark: Any) -> None:
    Histories.spark = spark
    checks = settings(
        # Without shrinking: every step costs seconds.
        max_examples=20,
        stateful_step_count=10,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        print_blob=True,
    )
    run_state_machine_as_test(Histories, settings=checks)
