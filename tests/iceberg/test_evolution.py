"""Schemas that grow: what is planned, and what is refused."""

from __future__ import annotations

import pytest
from pyiceberg.types import StringType

from icefront.core.errors import SchemaRefused
from icefront.core.ports import Wish
from icefront.iceberg.evolution import Add, Policy, Rename, new_schema, plan


def test_names_that_differ_only_in_case_are_refused():
    with pytest.raises(SchemaRefused, match="Note and note differ only in case"):
        new_schema({"id": "long", "Note": "string", "note": "string"}, ["id"])
    schema = new_schema({"id": "long", "note": "string"}, ["id"])
    with pytest.raises(SchemaRefused, match=r"feed:3: column NOTE differs from the table's note only in case"):
        plan(schema, [Wish("NOTE", "string", "feed:3")], Policy())
    assert plan(schema, [Wish("NOTE", "string", "feed:3")], Policy(add_column="ignore")) == []


@pytest.mark.parametrize("column", ["memo", "remark"])
def test_a_column_that_was_renamed_more_than_once_keeps_its_values(column: str):
    """While no run looked, note became memo, and memo remark."""
    schema = new_schema({"id": "long", "note": "string"}, ["id"])
    policy = Policy(renames={"remark": "memo", "memo": "note"})
    assert plan(schema, [Wish(column, "string", "feed:3")], policy) == [Rename("note", column)]


def test_names_that_lead_round_in_a_circle_lead_to_nothing():
    schema = new_schema({"id": "long", "note": "string"}, ["id"])
    policy = Policy(renames={"memo": "remark", "remark": "memo"})
    assert plan(schema, [Wish("memo", "string", "feed:3")], policy) == [Add("memo", StringType())]
