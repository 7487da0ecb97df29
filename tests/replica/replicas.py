"""What the tests of replicas share: a source table, a pipeline that follows it, and the comparison at every frontier."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefront.api import Pipeline
from icefront.pipeline import Result
from icefront.settings import load_pipeline
from tests.changes.oracle import spelled
from tests.lakes import Lake

COPY_ON_WRITE, MERGE_ON_READ = "copy-on-write", "merge-on-read"


@dataclass(frozen=True)
class Replica:
    """A source table and its replica on the shared session."""

    lake: Lake
    source: str

    @property
    def target(self) -> str:
        return f"{self.source}_replica"

    @property
    def spark(self) -> Any:
        return self.lake.spark

    # ── the source ─────────────────────────────────────────────────────────────────────────
    def create(
        self,
        *,
        mode: str = MERGE_ON_READ,
        version: int = 3,
        partitioned: str = "",
        columns: str = "id bigint NOT NULL, v string, n int",
        identifier: str | None = "id",
    ) -> Replica:
        told = {"format-version": version} | {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
        properties = ", ".join(f"'{k}'='{v}'" for k, v in told.items())
        by = f" PARTITIONED BY ({partitioned})" if partitioned else ""
        self.spark.sql(f"CREATE TABLE {self.source} ({columns}) USING iceberg{by} TBLPROPERTIES ({properties})")
        if identifier:
            self.spark.sql(f"ALTER TABLE {self.source} SET IDENTIFIER FIELDS {identifier}")
        return self

    def sql(self, statement: str) -> None:
        """Run a statement in which T is the source table."""
        self.spark.sql(re.sub(r"\bT\b", self.source, statement))

    def call(self, procedure: str, *arguments: object) -> None:
        told = ", ".join(str(a) for a in (f"'{self.source.removeprefix('lake.')}'", *arguments))
        self.spark.sql(f"CALL lake.system.{procedure}({told})")

    def history(self) -> list[int]:
        """The snapshots that were current, oldest first."""
        self.spark.catalog.refreshTable(self.source)
        rows = self.spark.sql(f"SELECT snapshot_id FROM {self.source}.history ORDER BY made_current_at").collect()
        return [row[0] for row in rows]

    def refs(self) -> dict[str, int]:
        self.spark.catalog.refreshTable(self.source)
        return {row["name"]: row["snapshot_id"] for row in self.spark.sql(f"SELECT * FROM {self.source}.refs").collect()}

    def tag(self) -> int | None:
        return next((snapshot for name, snapshot in self.refs().items() if name.startswith("icefront-")), None)

    # ── the replica ────────────────────────────────────────────────────────────────────────
    def pipeline(
        self, source: Mapping[str, Any] | None = None, sink: Mapping[str, Any] | None = None, **settings: Any
    ) -> Pipeline:
        told = {
            "source": {"iceberg": {"table": self.source, **(source or {})}},
            "sink": {"iceberg": {"table": self.target, **(sink or {})}},
            **settings,
        }
        return self.lake.pipeline("replica", **told)

    def follow(self, source: Mapping[str, Any] | None = None, **settings: Any) -> Result:
        """Run until caught up."""
        return self.lake.run(self.pipeline(source, **settings))

    def epochs(self) -> list[tuple[int, dict[str, Any]]]:
        """The replica's epochs with the positions they lead to, oldest first."""
        self.spark.catalog.refreshTable(self.target)
        rows = self.spark.sql(
            f"SELECT snapshot_id, summary FROM {self.target}.snapshots ORDER BY committed_at, snapshot_id"
        ).collect()
        return [(r[0], json.loads(r[1]["icefront.position"])) for r in rows if "icefront.lower" in r[1]]

    def rows(self, table: str, snapshot: int | None) -> Counter[Any]:
        if snapshot is None:
            return Counter()
        frame = self.spark.read.option("versionAsOf", snapshot).table(table)
        return Counter(
            frozenset((name, spelled(value)) for name, value in row.asDict(recursive=True).items() if value is not None)
            for row in frame.collect()
        )

    def check(self) -> int:
        """At every epoch's end the replica is the source at that snapshot; returns how many epochs there are."""
        found = [(snapshot, at) for snapshot, at in self.epochs() if "loaded" not in at]
        for snapshot, at in found:
            difference = self.rows(self.source, at["snapshot"])
            difference.subtract(self.rows(self.target, snapshot))
            assert not any(difference.values()), f"{at}: missing {+difference}, too many {-difference}"
        assert found
        return len(found)

    def check_caught_up(self) -> int:
        """The same, and the last epoch leads to what the source is now."""
        count = self.check()
        assert self.epochs()[-1][1]["snapshot"] == self.refs().get("main")
        return count


def load(path: Any) -> Pipeline:
    return Pipeline(load_pipeline(path))
