"""A writer the way Flink's is: rows, equality deletes and position deletes in one commit, through Iceberg's Java API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

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

    def _file(self, content: str, rows: Sequence[Row], arrow: pa.Schema, told: Mapping[str, Any]) -> tuple[str, Any]:
        path = f"{self.table.table.location()}/data/{uuid.uuid4()}.parquet"
        local = Path(urlsplit(path).path)
        local.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], arrow), local)
        described = {
            **told,
            "content": content,
            "file-path": path,
            "file-format": "PARQUET",
            "file-size-in-bytes": local.stat().st_size,
            "record-count": len(rows),
        }
        gateway = self.table.gateway
        return path, gateway.file_parser.fromJson(gateway.mapper.readTree(json.dumps(described)), self.table.table.specs())
