"""A writer the way Flink's is: rows, equality deletes and position deletes in one commit, through Iceberg's Java API."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyroaring import BitMap64

from icefront.iceberg.java import Gateway

Row = Mapping[str, Any]
POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class Streaming:
    """Commits to one table; a file per list of rows. `partition` is that of all files of a commit, by partition field id."""

    def __init__(self, spark: Any, table: str) -> None:
        found = Gateway(spark).load(table)
        assert found is not None
        self.table = found

    def commit(
        self,
        rows: Sequence[Row] = (),
        deletes: Sequence[Row] = (),
        positions: Sequence[tuple[str, int]] = (),
        *,
        keys: Sequence[str] = ("id",),
        spec: int = 0,
        partition: Mapping[str, Any] | None = None,
    ) -> str:
        """Commit; return the path of the data file."""
        self.table.refresh()
        schema = Schema.model_validate_json(self.table.schema_json())
        ids = [schema.find_field(key).field_id for key in keys]
        where = {"spec-id": spec, "partition": dict(partition or {})}
        update = self.table.table.newRowDelta()
        path = ""
        if rows:
            path, node = self._file("DATA", rows, schema_to_pyarrow(schema, include_field_ids=True), where)
            update.addRows(node)
        if deletes:
            arrow = schema_to_pyarrow(schema.select(*keys), include_field_ids=True)
            update.addDeletes(self._file("EQUALITY_DELETES", deletes, arrow, where | {"equality-ids": ids})[1])
        if positions:
            listed = [{"file_path": file or path, "pos": at} for file, at in positions]
            update.addDeletes(self._file("POSITION_DELETES", listed, POSITIONS, where)[1])
        update.commit()
        return path

    def upsert(
        self,
        rows: Sequence[Row],
        gone: Sequence[Row] = (),
        *,
        takes_back: bool = False,
        everywhere: bool = False,
        key: str = "id",
    ) -> None:
        """Commit rows, each to its partition, with equality deletes for their keys and those of `gone`.

        The deletes are of the same partition, or hold `everywhere`. With `takes_back` every data file begins with a row that the
        commit itself deletes by position, as when a key comes twice between two checkpoints.
        """
        self.table.refresh()
        schema = Schema.model_validate_json(self.table.schema_json())
        update = self.table.table.newRowDelta()
        parts: dict[str, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
        for row in rows:
            parts[self._partition(schema, row)][0].append(row)
        for row in (*rows, *gone):
            parts["{}" if everywhere else self._partition(schema, row)][1].append({key: row[key]})
        for told, (new, old) in parts.items():
            where = {"spec-id": self.table.table.spec().specId(), "partition": json.loads(told)}
            if new:
                written = [new[0], *new] if takes_back else new
                path, node = self._file("DATA", written, schema_to_pyarrow(schema, include_field_ids=True), where)
                update.addRows(node)
                if takes_back:
                    update.addDeletes(self._taken_back(path, where))
            if old:
                where = where | ({"spec-id": self.unpartitioned(), "partition": {}} if everywhere else {})
                arrow = schema_to_pyarrow(schema.select(key), include_field_ids=True)
                equality = where | {"equality-ids": [schema.find_field(key).field_id]}
                update.addDeletes(self._file("EQUALITY_DELETES", old, arrow, equality)[1])
        update.commit()

    def unpartitioned(self) -> int | None:
        """The spec under which deletes hold everywhere, if the table ever had one; format 1 leaves fields in it that say nothing."""
        self.table.refresh()
        return next((i for i in self._specs() if self.table.table.specs().get(i).isUnpartitioned()), None)

    def _specs(self) -> dict[int, PartitionSpec]:
        return {i: PartitionSpec.model_validate_json(text) for i, text in self.table.specs_json().items()}

    def _partition(self, schema: Schema, row: Row) -> str:
        """A row's partition by field id, as JSON."""
        told: dict[str, Any] = {}
        for field in self._specs()[self.table.table.spec().specId()].fields:
            source = schema.find_field(field.source_id)
            if not isinstance(field.transform, VoidTransform):
                told[str(field.field_id)] = field.transform.transform(source.field_type)(row.get(source.name))
        return json.dumps({name: value for name, value in told.items() if value is not None})

    def _taken_back(self, path: str, where: Mapping[str, Any]) -> Any:
        """The delete of a file's first row: by position, or as a vector where the format asks for it."""
        if self.table.metadata().formatVersion() < 3:
            return self._file("POSITION_DELETES", [{"file_path": path, "pos": 0}], POSITIONS, where)[1]
        vector = b"\xd1\xd3\x39\x64" + BitMap64([0]).serialize()
        blob = struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        told = {"referenced-data-file": path, "cardinality": "1"}
        listed = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
        footer = json.dumps({"blobs": [listed | {"length": len(blob), "properties": told}], "properties": {}}).encode()
        file = b"PFA1" + blob + b"PFA1" + footer + struct.pack("<i", len(footer)) + bytes(4) + b"PFA1"
        puffin = f"{path}.puffin"
        Path(urlsplit(puffin).path).write_bytes(file)
        described = {
            **where,
            "content": "POSITION_DELETES",
            "file-path": puffin,
            "file-format": "PUFFIN",
            "file-size-in-bytes": len(file),
            "record-count": 1,
            "referenced-data-file": path,
            "content-offset": 4,
            "content-size-in-bytes": len(blob),
        }
        return self._described(described)

    def append(self, rows: pa.Table, **options: Any) -> str:
        """Commit one data file, written to Parquet as the options say; return its path."""
        self.table.refresh()
        arrow = schema_to_pyarrow(Schema.model_validate_json(self.table.schema_json()), include_field_ids=True)
        path, node = self._written("DATA", rows.cast(arrow), {"spec-id": 0, "partition": {}}, **options)
        self.table.table.newAppend().appendFile(node).commit()
        return path

    def _file(self, content: str, rows: Sequence[Row], arrow: pa.Schema, told: Mapping[str, Any]) -> tuple[str, Any]:
        return self._written(content, pa.Table.from_pylist([dict(row) for row in rows], arrow), told)

    def _written(self, content: str, rows: pa.Table, told: Mapping[str, Any], **options: Any) -> tuple[str, Any]:
        path = f"{self.table.table.location()}/data/{uuid.uuid4()}.parquet"
        local = Path(urlsplit(path).path)
        local.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, local, **options)
        described = {
            **told,
            "content": content,
            "file-path": path,
            "file-format": "PARQUET",
            "file-size-in-bytes": local.stat().st_size,
            "record-count": rows.num_rows,
        }
        return path, self._described(described)

    def _described(self, described: Mapping[str, Any]) -> Any:
        gateway = self.table.gateway
        return gateway.file_parser.fromJson(gateway.mapper.readTree(json.dumps(described)), self.table.table.specs())
