"""Types for columns that nobody declared."""

from __future__ import annotations

import pytest

from icefront.core.epochs import Epoch
from icefront.core.errors import BadRow
from icefront.core.ports import Wish
from icefront.core.timestamps import Timestamp
from icefront.formats.changefeed import Place, columns, infer, unite

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


def test_inferences_of_several_chunks_unite():
    one = [Wish("a", "long", "f:1"), Wish("b", "boolean", "f:1")]
    other = [Wish("a", "double", "f:9"), Wish("b", "long", "f:9"), Wish("c", "long", "f:9")]
    assert unite([*one, *other]) == (Wish("a", "double", "f:1"), Wish("b", "string", "f:1"), Wish("c", "long", "f:9"))


def test_widenings_of_several_chunks_unite_to_the_widest():
    some = [Wish("a", f"decimal({p}, 2)", f"f:{p}", widens="decimal(4, 2)") for p in (6, 12, 9)]
    assert unite(some) == (Wish("a", "decimal(12, 2)", "f:6", widens="decimal(4, 2)"),)


EPOCH = Epoch(Timestamp(10), Timestamp(20))


def test_only_rows_of_the_epoch_are_looked_at():
    lines = b"""{"after": {"dropped": 1, "a": "x"}, "updated": "9.0000000000"}
{"after": 5, "updated": "20.0000000000"}
{"after": {"a": 12345678901234567.89}, "mvcc_timestamp": "30.0000000000"}
{"after": {"a": 1}, "updated": "10.0000000000"}"""
    assert infer(lines, AT, epoch=EPOCH) == {"a": Wish("a", "long", "f.ndjson:8")}
    flat = b'{"__crdb__": {"updated": "9.0000000000"}, "b": 1}\n{"__crdb__": {"updated": "10.0000000000"}, "a": 1}'
    assert infer(flat, AT, "bare", epoch=EPOCH) == {"a": Wish("a", "long", "f.ndjson:6")}


def test_a_row_that_does_not_say_when_it_happened_counts():
    assert infer(b'{"after": {"a": 1}}', AT, epoch=EPOCH).keys() == {"a"}
    with pytest.raises(BadRow):
        infer(b'{"after": {"a": 1}, "updated": "9.0000000000"', AT, epoch=EPOCH)


def test_columns_are_inferred_by_their_present_names():
    lines = b'{"after": {"a": 1}}\n{"after": {"b": 1.5}}\n{"after": {"c": true}}'
    assert infer(lines, AT, renames={"b": "a"}).keys() == {"b", "c"}
    assert infer(lines, AT, renames={"b": "a"})["b"] == Wish("b", "double", "f.ndjson:5")
    assert infer(lines, AT, renames={"c": "b", "b": "a"})["c"] == Wish("c", "string", "f.ndjson:5")


def test_ignored_columns_need_not_be_exact():
    line = b'{"after": {"a": 12345678901234567.89, "b": 1}}'
    assert infer(line, AT, ignored=["a"]).keys() == {"b"}


def test_columns_are_those_with_a_value_in_some_line_that_can_be_read():
    lines = [b'{"after": {"a": 1, "b": null}}', b"nonsense", b'{"after": null}', b"", b'{"after": {"c": "x"}}', b"[" * 9999]
    assert columns(lines) == {"a", "c"}
    assert columns([b'{"__crdb__": {}, "a": 1}'], "bare") == {"a"}
