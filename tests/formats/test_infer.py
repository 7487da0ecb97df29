"""Types for columns that nobody declared."""

from __future__ import annotations

import pytest

from icefront.core.errors import BadRow
from icefront.core.ports import Wish
from icefront.formats.changefeed import Place, infer, merge, unite

AT = Place("f.ndjson", 5)


def inferred(*cells: str) -> str | None:
    lines = "\n".join(f'{{"after": {{"v": {cell}}}, "key": [1]}}' for cell in cells)
    wish = infer(lines.encode(), AT, "wrapped").get("v")
    return wish.type if wish else None


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-9223372036854775808"], "long"),
        (["1.5", "null"], "double"),
        (["1", "1.5", "2"], "double"),
        (["1E+3"], "double"),
        (["0.1234567890123456"], "double"),
        (["true", "null", "false"], "boolean"),
        (['"2026-04-02"'], "string"),
        (['{"a": 1}', "[1]"], "string"),
        (["1", '"a"'], "string"),
        (["true", "1"], "string"),
        (["12345678901234567.89", '"NaN"'], "string"),
        (["null", "null"], None),
    ],
)
def test_values_suggest_a_type(cells, kind):
    assert inferred(*cells) == kind


@pytest.mark.parametrize(
    "cells", [["12345678901234567.89"], ["9223372036854775808"], ["9007199254740993", "0.5"], ["1e400"], ["1e-400"], ["1" * 500]]
)
def test_a_number_that_is_not_exact_asks_for_a_declaration(cells):
    with pytest.raises(BadRow, match=r"f\.ndjson:6: column v: .* is not exact as (double|long)") as caught:
        inferred("1", *cells)
    assert "decimal(p,s)" in caught.value.next_step


def test_a_wish_names_the_first_line_that_showed_a_value():
    lines = b'{"after": null}\n{"after": {"a": null}}\n\n{"after": {"a": 1, "b": 2}}\n{"after": {"a": 3}}'
    assert infer(lines, AT, "wrapped") == {"a": Wish("a", "long", "f.ndjson:8"), "b": Wish("b", "long", "f.ndjson:8")}


def test_flat_rows_are_inferred_without_their_metadata():
    assert infer(b'{"__crdb__": {"updated": "1.0"}, "a": 1}', AT, "bare") == {"a": Wish("a", "long", "f.ndjson:5")}


def test_a_line_that_is_no_message_is_refused():
    with pytest.raises(BadRow, match=r"^f\.ndjson:6: not a changefeed message"):
        infer(b'{"after": null}\n{"after": [', AT, "wrapped")


def test_inferences_of_several_chunks_merge():
    one = {"a": Wish("a", "long", "f:1"), "b": Wish("b", "boolean", "f:1")}
    other = {"a": Wish("a", "double", "f:9"), "b": Wish("b", "long", "f:9"), "c": Wish("c", "long", "f:9")}
    assert merge(one, other) == {"a": Wish("a", "double", "f:1"), "b": Wish("b", "string", "f:1"), "c": Wish("c", "long", "f:9")}


def test_widenings_of_several_chunks_unite_to_the_widest():
    some = [Wish("a", f"decimal({p}, 2)", f"f:{p}", widens="decimal(4, 2)") for p in (6, 12, 9)]
    assert unite(some) == (Wish("a", "decimal(12, 2)", "f:6", widens="decimal(4, 2)"),)
