"""Schemas that grow: what is planned, and what is refused."""

from __future__ import annotations

import pytest

from icefront.core.errors import SchemaRefused
from icefront.core.ports import Wish
from icefront.iceberg.evolution import Policy, new_schema, plan


def test_names_that_differ_only_in_case_are_refused():
    with pytest.raises(SchemaRefused, match="Note and note differ only in case"):
        new_schema({"id": "long", "Note": "string", "note": "string"}, ["id"])
    schema = new_schema({"id": "long", "note": "string"}, ["id"])
    with pytest.raises(SchemaRefused, match=r"feed:3: column NOTE differs from the table's note only in case"):
        plan(schema, [Wish("NOTE", "string", "feed:3")], Policy())
    assert plan(schema, [Wish("NOTE", "string", "feed:3")], Policy(add_column="ignore")) == []
