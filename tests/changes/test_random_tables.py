"""Random histories of real tables: after every commit, the changes lead from what was there to what is there."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from icefront.changes import changes
from icefront.proof.changelog import verify
from tests.changes.streaming import Streaming
from tests.changes.test_changes import MODES, create

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

_numbers = itertools.count()
IDS = st.integers(0, 12)


class Histories(RuleBasedStateMachine):
    """One table, changed by many hands."""

    spark: ClassVar[Any]

    @initialize(version=st.sampled_from([1, 2, 3]), partitioned=st.sampled_from(["", "n", "bucket(2, id)"]))
    def begin(self, version: int, partitioned: str) -> None:
        self.table = f"lake.t.random_{next(_numbers)}"
        self.version = version
        self.seen: list[int | None] = [None]
        create(
            self.spark,
            self.table,
            version=version,
            partitioned=partitioned,
            mode="copy-on-write" if version == 1 else "merge-on-read",
        )
        self.partitioned = bool(partitioned)
        self.columns = ["id", "v", "n"]
        self.sql(f"INSERT INTO {self.table} VALUES (1, 'a', 0), (2, 'b', 1), (2, 'b', 1), (3, NULL, NULL)")

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)
        self.compare()

    def compare(self) -> None:
        """What the last commit did, as it was and as net changes since some earlier one."""
        newest = self.spark.sql(f"SELECT snapshot_id FROM {self.table}.history ORDER BY made_current_at DESC LIMIT 1").collect()[
            0
        ][0]
        if newest == self.seen[-1]:
            return
        for begin, net in ((self.seen[-1], False), (self.seen[len(self.seen) // 2], True)):
            found = changes(self.spark, self.table, begin, newest, net=net)
            assert verify(self.spark, self.table, begin, newest, found, 3) == [], (begin, newest, net)
        self.seen.append(newest)

    # ── rows ───────────────────────────────────────────────────────────────────────────────
    @rule(first=IDS, count=st.integers(1, 4))
    def insert(self, first: int, count: int) -> None:
        more = ", ".join("NULL" for _ in self.columns[3:])
        rows = ", ".join(f"({i}, 'i{i}', {i % 2}{', ' + more if more else ''})" for i in range(first, first + count))
        self.sql(f"INSERT INTO {self.table} VALUES {rows}")

    @rule(rest=st.integers(0, 3), value=st.sampled_from(["x", "y"]))
    def update(self, rest: int, value: str) -> None:
        self.sql(f"UPDATE {self.table} SET v = '{value}' WHERE id % 4 = {rest}")

    @rule(key=IDS)
    def delete(self, key: int) -> None:
        self.sql(f"DELETE FROM {self.table} WHERE id = {key}")

    @rule(keys=st.sets(IDS, min_size=1, max_size=4))
    def merge(self, keys: set[int]) -> None:
        source = " UNION ALL ".join(f"SELECT {key} AS id" for key in sorted(keys))
        self.sql(
            f"MERGE INTO {self.table} t USING ({source}) s ON t.id = s.id WHEN MATCHED AND t.id % 3 = 0 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET t.v = 'merged' WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (s.id, 'new', 0)"
        )

    @precondition(lambda self: self.version > 1 and not self.partitioned)
    @rule(gone=st.sets(IDS, max_size=3), new=st.sets(IDS, max_size=3))
    def stream(self, gone: set[int], new: set[int]) -> None:
        """Upserts by equality deletes."""
        if gone or new:
            rows = [{"id": key, "v": "streamed", "n": 1} for key in sorted(new)]
            Streaming(self.spark, self.table).commit(rows, [{"id": key} for key in sorted(gone | new)])
            self.spark.sql(f"REFRESH TABLE {self.table}")
            self.compare()

    # ── everything else ────────────────────────────────────────────────────────────────────
    @precondition(lambda self: self.version > 1)
    @rule(mode=st.sampled_from(sorted(MODES)))
    def change_mode(self, mode: str) -> None:
        told = ", ".join(f"'{name}'='{value}'" for name, value in MODES[mode].items())
        self.spark.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ({told})")

    @rule()
    def compact(self) -> None:
        self.sql(f"CALL lake.system.rewrite_data_files(table => '{self.table}', options => map('rewrite-all', 'true'))")

    @rule()
    def rewrite_manifests(self) -> None:
        self.sql(f"CALL lake.system.rewrite_manifests('{self.table}')")

    @precondition(lambda self: len(self.columns) < 5)
    @rule()
    def add_column(self) -> None:
        self.columns.append(f"c{len(self.columns)}")
        self.spark.sql(f"ALTER TABLE {self.table} ADD COLUMN {self.columns[-1]} string")

    @precondition(lambda self: self.version < 3)
    @rule()
    def upgrade(self) -> None:
        self.version += 1
        self.spark.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('format-version'='{self.version}')")

    @precondition(lambda self: len(self.seen) > 3)
    @rule()
    def roll_back(self) -> None:
        before = self.seen[-2]
        self.spark.sql(f"CALL lake.system.rollback_to_snapshot('{self.table}', {before})")
        found = changes(self.spark, self.table, self.seen[-1], before)
        assert verify(self.spark, self.table, self.seen[-1], before, found, 3) == []
        del self.seen[-1]


def test_random_histories(spark: Any) -> None:
    Histories.spark = spark
    checks = settings(
        # Without shrinking: every step costs a second or two.
        max_examples=20,
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        print_blob=True,
    )
    run_state_machine_as_test(Histories, settings=checks)
