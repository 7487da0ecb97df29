"""Schemas that grow: what is planned, and what is refused."""

from __future__ import annotations

import pytest
from pyiceberg.types import DateType, DecimalType, LongType, StringType

from icefront.core.errors import BadRow, SchemaRefused
from icefront.core.ports import Wish
from icefront.iceberg.evolution import Add, Policy, Rename, Widen, new_schema, plan


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


def test_a_new_column_gets_its_declared_type_whatever_its_values_look_like():
    schema = new_schema({"id": "long"}, ["id"])
    wishes = [Wish("d", "string", "feed:3"), Wish("d", "long", "feed:9"), Wish("e", "string", "feed:3")]
    assert plan(schema, wishes, Policy(), {"id": "bigint", "d": "date"}) == [Add("d", DateType()), Add("e", StringType())]


def test_a_number_that_is_not_exact_is_refused_unless_the_column_is_declared_or_left_out():
    schema = new_schema({"id": "long"}, ["id"])
    wish = Wish("d", "double", "feed:3", doubt=BadRow("feed:3: column d is not exact", "declare it"))
    with pytest.raises(BadRow, match="not exact"):
        plan(schema, [wish], Policy())
    assert plan(schema, [wish], Policy(), {"d": "decimal(20,2)"}) == [Add("d", DecimalType(20, 2))]
    assert plan(schema, [wish], Policy(add_column="ignore")) == []


def test_columns_that_the_table_has_narrower_than_declared_are_widened():
    schema = new_schema({"id": "int", "d": "decimal(12,2)", "n": "int", "other": "string"}, ["id"])
    declared = {"id": "bigint", "d": "decimal(14,2)", "n": "int"}
    assert plan(schema, (), Policy(), declared) == [Widen("id", LongType()), Widen("d", DecimalType(14, 2))]
    wish = Wish("d", "decimal(16,2)", "feed:3", widens="decimal(12,2)")
    assert plan(schema, [wish], Policy(), declared) == [Widen("id", LongType()), Widen("d", DecimalType(16, 2))]


def test_columns_that_the_source_made_wider_than_declared_stay():
    schema = new_schema({"id": "long", "d": "decimal(20,2)"}, ["id"])
    assert plan(schema, (), Policy(widen_type="stop"), {"id": "int", "d": "decimal(12,2)"}) == []


def test_ids_inside_nested_types_make_no_difference():
    schema = new_schema({"id": "long", "l": "list<struct<a: int, b: string>>", "m": "map<string, bigint>"}, ["id"])
    assert plan(schema, (), Policy(), {"m": "map<string, bigint>", "l": "list<struct<a: int, b: string>>"}) == []


@pytest.mark.parametrize(
    ("column", "found", "declared"),
    [
        ("id", "string", "long"),
        ("id", "long", "string"),
        ("d", "decimal(12,2)", "decimal(12,4)"),
        ("d", "struct<a: int>", "string"),
    ],
)
def test_a_declared_type_that_the_table_cannot_take_on_is_refused(column: str, found: str, declared: str):
    schema = new_schema({"key": "long", column: found}, ["key"])
    with pytest.raises(SchemaRefused) as caught:
        plan(schema, (), Policy(), {column: declared}, "lake.a.b")
    assert caught.value.fact == f"column {column} of lake.a.b is {found}, and `columns` declares {column} as {declared}"
    assert caught.value.next_step == "correct `columns`, or write to a new table"


def test_a_declared_widening_follows_the_policy():
    schema = new_schema({"id": "int"}, ["id"])
    with pytest.raises(SchemaRefused, match=r"is int, and `columns` declares id as long; schema\.widen_type is stop"):
        plan(schema, (), Policy(widen_type="stop"), {"id": "bigint"})


@pytest.mark.parametrize("former", [None, "note"])
def test_a_renamed_column_is_held_against_its_declaration_before_it_is_renamed(former: str | None):
    schema = new_schema({"id": "long", "note": "int"}, ["id"])
    policy = Policy() if former else Policy(renames={"memo": "note"})
    wish = Wish("memo", "long", "feed:3", former=former)
    assert plan(schema, [wish], policy, {"memo": "bigint"}) == [Rename("note", "memo")]
    with pytest.raises(SchemaRefused, match=r"column note of the table is int, and `columns` declares memo as string"):
        plan(schema, [wish], policy, {"memo": "string"})
