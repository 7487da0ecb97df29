"""Planning changes of a table with very many files, against Iceberg's own `planFiles` of the snapshot.

No data is there: entries of data files are made up and committed through Iceberg's Java API, a thousand to a manifest, with metrics of
six columns. Both sides read the same manifests from metadata alone. Iceberg finds a snapshot's files and the deletes on them, ours the
files that tell what the snapshot changed. Iceberg's tasks are counted in the JVM: none of them goes through py4j.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.lake import Lake
from bench.measure import Rounds, play
from bench.results import Figure, Result
from icefront.iceberg.history import Step
from icefront.iceberg.java import Gateway
from icefront.iceberg.view import View

MEMORY = {"spark.driver.memory": "4g"}
IDS = range(1, 7)
ROWS = 1000
PER_MANIFEST = 1000


@dataclass(frozen=True)
class Form:
    manifests: int
    rounds: int = 5


FORMS = {"tiny": Form(2, rounds=3), "short": Form(100), "long": Form(100, rounds=9)}


class Fabricated:
    """A table whose files nobody wrote."""

    def __init__(self, lake: Lake, manifests: int) -> None:
        self.name = lake.table("planned")
        lake.spark.sql(
            f"CREATE TABLE {self.name} (id bigint, customer_id bigint, amount decimal(12,2), status string, note string, "
            f"created_at timestamp) USING iceberg TBLPROPERTIES ('format-version'='3', 'commit.manifest-merge.enabled'='false')"
        )
        self.gateway = Gateway(lake.spark)
        found = self.gateway.load(self.name)
        assert found is not None
        self.table = found.table
        for number in range(manifests):
            self.append(range(number * PER_MANIFEST, (number + 1) * PER_MANIFEST))

    def append(self, files: Sequence[int]) -> int:
        update = self.table.newFastAppend()
        for file in self._parsed([self._file(i) for i in files]):
            update.appendFile(file)
        return self._committed(update)

    def delete(self, **described: Any) -> int:
        update = self.table.newRowDelta()
        (file,) = self._parsed([{"spec-id": 0, "partition": {}, "file-size-in-bytes": 5000, "record-count": 100, **described}])
        update.addDeletes(file)
        return self._committed(update)

    def path(self, number: int, ending: str = "parquet") -> str:
        return (
            f"{self.table.location()}/data/{number:05d}-{number * 7919 % 1000003}-0b5e7c1c-8a35-4d0e-9d1a-1f4cf0c1a7f2.{ending}"
        )

    def _file(self, number: int) -> dict[str, Any]:
        first, last = number * ROWS, (number + 1) * ROWS - 1
        return {
            "spec-id": 0,
            "content": "DATA",
            "file-path": self.path(number),
            "file-format": "PARQUET",
            "partition": {},
            "file-size-in-bytes": 50_000 + number % 1000,
            "record-count": ROWS,
            "column-sizes": pairs(dict.fromkeys(IDS, 4000 + number % 1000)),
            "value-counts": pairs(dict.fromkeys(IDS, ROWS)),
            "null-value-counts": pairs(dict.fromkeys(IDS, 0)),
            "lower-bounds": pairs(dict(zip(IDS, bounds(first, 0, "done"), strict=True))),
            "upper-bounds": pairs(dict(zip(IDS, bounds(last, 1000002, "sent"), strict=True))),
            "split-offsets": [4],
        }

    def _parsed(self, described: Sequence[Mapping[str, Any]]) -> list[Any]:
        tree = self.gateway.mapper.readTree(json.dumps(described))
        specs, parse = self.table.specs(), self.gateway.file_parser.fromJson
        return [parse(tree.get(i), specs) for i in range(len(described))]

    def _committed(self, update: Any) -> int:
        update.commit()
        self.table.refresh()
        return int(self.table.currentSnapshot().snapshotId())


def pairs(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def bounds(number: int, customer: int, status: str) -> list[str]:
    """Bounds of the six columns, as JSON has them."""
    values = (long(number), long(customer), b"\x01\x86", status.encode(), f"note {number * 31}".encode(), long(number * 10**6))
    return [value.hex().upper() for value in values]


def long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def steps(table: Fabricated, manifests: int) -> Mapping[str, tuple[int | None, int]]:
    """Make the snapshots whose changes are planned: each step is the snapshot before it and itself."""
    files = manifests * PER_MANIFEST
    base = int(table.table.currentSnapshot().snapshotId())
    appended = table.append([files])
    first, last = files // 2 * ROWS + ROWS // 2, (files // 2 + 20) * ROWS + ROWS // 2
    deleted = table.delete(
        content="EQUALITY_DELETES",
        **{"file-path": table.path(files + 1), "file-format": "PARQUET", "equality-ids": [1]},
        **{"value-counts": pairs({1: 100}), "null-value-counts": pairs({1: 0})},
        **{"lower-bounds": pairs({1: long(first).hex().upper()}), "upper-bounds": pairs({1: long(last).hex().upper()})},
    )
    vector = table.delete(
        content="POSITION_DELETES",
        **{"file-path": table.path(files + 2, "puffin"), "file-format": "PUFFIN", "referenced-data-file": table.path(7)},
        **{"content-offset": 4, "content-size-in-bytes": 40},
    )
    return {
        "a small append": (base, appended),
        "the first load": (None, base),
        "an equality delete": (appended, deleted),
        "a deletion vector": (deleted, vector),
    }


def measure(form_name: str, say: Callable[[str], None]) -> Result:
    form = FORMS[form_name]
    with Lake.open(MEMORY) as lake:
        table = Fabricated(lake, form.manifests)
        made = steps(table, form.manifests)
        say(f"{form.manifests * PER_MANIFEST:,} files are made up")
        view = View.of(lake.spark, table.name)
        counted = lake.spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables.size  # noqa: SLF001
        found: dict[str, int] = {}

        def ours(name: str, before: int | None, after: int) -> None:
            parent, snapshot = (view.metadata.snapshot_by_id(i) if i else None for i in (before, after))
            assert snapshot is not None
            found[name] = len(view.plan([Step(0, parent, snapshot)])[0])

        def iceberg(after: int) -> None:
            tasks = table.table.newScan().useSnapshot(after).planFiles()
            found["planFiles"] = counted(tasks)
            tasks.close()

        contenders: dict[str, Callable[[], object]] = {}
        for name, (before, after) in made.items():
            contenders[f"{name}, ours"] = partial(ours, name, before, after)
            contenders[f"{name}, planFiles"] = partial(iceberg, after)
        rounds = play(contenders, rounds=form.rounds, say=say)
        expected = {
            "a small append": 1,
            "the first load": form.manifests * PER_MANIFEST,
            "an equality delete": 21,
            "a deletion vector": 1,
        }
        if {name: found[name] for name in expected} != expected:
            raise RuntimeError(f"{found} files were found, not {expected}")
    return report(form_name, form, rounds, list(made))


def report(form_name: str, form: Form, rounds: Rounds, names: Sequence[str]) -> Result:
    figures: list[Figure] = []
    for name in names:
        figures += [Figure.of(f"{name}: {who}", rounds.seconds(f"{name}, {who}"), "s") for who in ("ours", "planFiles")]
        ratio = rounds.ratio(f"{name}, ours", f"{name}, planFiles")
        figures.append(Figure.of(f"{name}: ours / planFiles", ratio, "×", "at most 1"))
    facts = {
        "table": f"{form.manifests * PER_MANIFEST:,} made-up data files in {form.manifests} manifests, metrics of six columns",
        "planFiles": "of the snapshot, counted in the JVM; ours finds what the snapshot changed",
        "an equality delete": "for every partition, of keys that 21 files may hold by their bounds",
    }
    return Result(
        "planning", "Planning changes", form_name, figures, rounds.quiet, rounds.foreign(), facts, {"rounds": rounds.as_json()}
    )
