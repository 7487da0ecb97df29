"""Values of rows as commands print them: JSON that strict parsers take, and tables whose lines are rows."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from icefront.cli import show
from icefront.cli.changing import rows_of
from icefront.cli.values import cell, json_text, on_one_line

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123000)  # noqa: DTZ001 — a local time is meant


def strict(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({date(2026, 1, 31): 1}, [{"key": "2026-01-31", "value": 1}]),
        ({(1, "a"): None}, [{"key": [1, "a"], "value": None}]),
        ({"a": {1: 2}}, {"a": [{"key": 1, "value": 2}]}),
        ([float("nan"), float("inf"), float("-inf"), -0.0], ["NaN", "Infinity", "-Infinity", -0.0]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"\x00\xff"), "AP8="),
        (Decimal("1.10"), "1.10"),
        (MOMENT, "2026-01-31T12:00:00.123000"),
        (MOMENT.replace(tzinfo=UTC), "2026-01-31T12:00:00.123000Z"),
        (MOMENT.replace(microsecond=0, tzinfo=timezone(timedelta(hours=-5))), "2026-01-31T17:00:00Z"),
        ("a\tb\x9b\u2028", "a\tb\x9b\u2028"),
        (True, True),
    ],
    ids=repr,
)
def test_every_value_is_json(value: Any, said: Any) -> None:
    assert strict(json_text(value)) == said
    assert json_text(value).isprintable()


def test_maps_and_times_of_a_table_are_told_by_their_types() -> None:
    """An empty map has no key to go by; keys of some types cannot be keys of a dictionary."""
    columns = {
        "by_day": pa.array([[(date(2026, 1, 31), 1)], []], pa.map_(pa.date32(), pa.int32())),
        "by_list": pa.array([[([1], 1)], None], pa.map_(pa.list_(pa.int32()), pa.int32())),
        "by_name": pa.array([[("a", [MOMENT])], []], pa.map_(pa.string(), pa.list_(pa.timestamp("us", "UTC")))),
        "place": pa.array([{"at": MOMENT}, None], pa.struct([("at", pa.timestamp("us"))])),
    }
    assert strict(json_text(rows_of(pa.table(columns)))) == [
        {
            "by_day": [{"key": "2026-01-31", "value": 1}],
            "by_list": [{"key": [1], "value": 1}],
            "by_name": {"a": ["2026-01-31T12:00:00.123000Z"]},
            "place": {"at": "2026-01-31T12:00:00.123000"},
        },
        {"by_day": [], "by_list": None, "by_name": {}, "place": None},
    ]


def test_cells_are_plain() -> None:
    values = [None, "a", 1, True, float("nan"), b"\x00", {"a": "x\ny"}]
    assert [cell(value) for value in values] == ["null", "a", "1", "true", "NaN", "AA==", '{"a": "x\\ny"}']


def test_control_characters_are_shown() -> None:
    assert on_one_line("a\tb\nc\rd\x1b[31m\x7f\x9b\u2028e") == "a\\tb\\nc\\rd\\u001b[31m\\u007f\\u009b\\u2028e"
    assert on_one_line("é → \u00a0日本 \\n") == "é → \u00a0日本 \\n"


def test_a_row_is_a_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_rows(("id", "a\tb"), [("1", "x\ty\nz\x1b[31m"), ("2", "[red]z[/red]")])
    assert capsys.readouterr().out == "id\ta\\tb\n1\tx\\ty\\nz\\u001b[31m\n2\t[red]z[/red]\n"


def test_a_terminal_is_told_nothing_by_values(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(show, "console", lambda: Console(file=screen, width=80, force_terminal=True, highlight=False))
    show.print_rows(("id", "[bold]name[/bold]"), [("1", "[red]x[/red]\x1b]0;title\x07")])
    printed = screen.getvalue()
    assert "[bold]name[/bold]" in printed
    assert "[red]x[/red]\\u001b]0;title\\u0007" in printed
    assert "\x07" not in printed
