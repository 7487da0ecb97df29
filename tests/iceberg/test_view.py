"""Tables as their metadata says: what PyIceberg cannot read is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icefront.core.errors import ConfigError
from icefront.iceberg.view import _parsed


def metadata(kind: Any) -> str:
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}, {"id": 2, "name": "c", "required": False, "type": kind}]
    return json.dumps(
        {
            "format-version": 3,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "file:/nowhere",
            "last-sequence-number": 0,
            "last-updated-ms": 0,
            "last-column-id": 9,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "next-row-id": 0,
        }
    )


@pytest.mark.parametrize(
    "kind",
    [
        "variant",
        "geometry(srid:4326)",
        "geography(srid:4326, spherical)",
        {"type": "list", "element-id": 3, "element": "variant", "element-required": False},
        {"type": "struct", "fields": [{"id": 3, "name": "m", "required": False, "type": "variant"}]},
    ],
    ids=str,
)
def test_a_column_of_a_type_that_cannot_be_read_is_named(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"column c of lake\.t\.source has type .*, which is not supported") as raised:
        _parsed("lake.t.source", metadata(kind))
    assert json.dumps(kind) in raised.value.fact


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns", "unknown"])
def test_other_types_of_format_3_are_read(kind: str) -> None:
    assert str(_parsed("lake.t.source", metadata(kind)).schema().find_type("c")) == kind
