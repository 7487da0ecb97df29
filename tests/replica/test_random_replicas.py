"""Random histories of a table that is followed: the replica is the source at every snapshot that it reached."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.changes.streaming import Streaming
from tests.lakes import Lake
from tests.replica.replicas import COPY_ON_WRITE, MERGE_ON_READ, Replica

pytestmark = pytest.mark.spark


class History:
    """One table with unique ids, changed by many hands."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.random = Random(seed)
        self.replica = replica
        self.version = self.random.choice([1, 2, 3])
        self.name = "v"
        self.names = 0
        partitioned = self.random.choice(["", "n", "bucket(2, id)"])
        self.streams = not partitioned
        replica.create(version=self.version, mode=COPY_ON_WRITE if self.version == 1 else MERGE_ON_READ, partitioned=partitioned)
        self.upsert()

    def ids(self) -> list[int]:
        return sorted(self.random.sample(range(40), self.random.randint(1, 8)))

    def upsert(self) -> None:
        source = " UNION ALL ".join(f"SELECT CAST({i} AS bigint) id, 's{self.random.random()}' v, {i % 3} n" for i in self.ids())
        self.replica.sql(
            f"MERGE INTO T t USING ({source}) s ON t.id = s.id WHEN MATCHED AND t.id % 5 = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET t.{self.name} = s.v WHEN NOT MATCHED THEN INSERT (id, {self.name}, n) VALUES (s.id, s.v, s.n)"
        )

    def delete(self) -> None:
        self.replica.sql(f"DELETE FROM T WHERE id IN ({', '.join(map(str, self.ids()))})")

    def stream(self) -> None:
        if self.version == 1 or not self.streams:
            return
        new = [{"id": i, self.name: f"t{self.random.random()}", "n": 1} for i in self.ids()]
        gone = [{"id": i} for i in self.ids()]
        Streaming(self.replica.spark, self.replica.source).commit(new, [*gone, *({"id": row["id"]} for row in new)])
        self.replica.spark.sql(f"REFRESH TABLE {self.replica.source}")

    def change_mode(self) -> None:
        if self.version > 1:
            mode = self.random.choice([COPY_ON_WRITE, MERGE_ON_READ])
            told = ", ".join(f"'write.{kind}.mode'='{mode}'" for kind in ("delete", "update", "merge"))
            self.replica.sql(f"ALTER TABLE T SET TBLPROPERTIES ({told})")

    def compact(self) -> None:
        self.replica.call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def rename(self) -> None:
        self.names += 1
        self.replica.sql(f"ALTER TABLE T RENAME COLUMN {self.name} TO v{self.names}")
        self.name = f"v{self.names}"

    def upgrade(self) -> None:
        if self.version < 3:
            self.version += 1
            self.replica.sql(f"ALTER TABLE T SET TBLPROPERTIES ('format-version'='{self.version}')")

    def roll_back(self) -> None:
        current = self.replica.refs()["main"]
        parents = self.replica.spark.sql(f"SELECT snapshot_id, parent_id FROM {self.replica.source}.snapshots").collect()
        parent = next(row["parent_id"] for row in parents if row["snapshot_id"] == current)
        if parent is not None:
            self.replica.call("rollback_to_snapshot", parent)

    def go(self, steps: int) -> None:
        rows: list[Callable[[], None]] = [self.upsert, self.upsert, self.delete, self.stream, self.stream]
        others = [self.change_mode, self.compact, self.rename, self.upgrade, self.roll_back]
        self.replica.follow({"batch": "1kB"})
        for _ in range(steps):
            self.random.choice(rows)()
            self.random.choice(others)()
            if self.random.random() < 0.5:
                self.replica.follow()
        self.upsert()
        self.replica.follow()
        self.replica.check_caught_up()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_a_random_history(lake: Lake, table: str, seed: int) -> None:
    History(Replica(lake, table), seed).go(8)
