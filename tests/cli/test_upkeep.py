"""`icefront upkeep`: what it prints and how it exits. What it does is tested where it is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from icefront.api import CycleRecord, Expired, Pipeline
from tests.cli.projects import TARGET, Shop, icefront

BEGUN = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
DONE = CycleRecord("orders", TARGET, "settle", BEGUN, BEGUN + timedelta(seconds=3), "done", "10 of them", {"dead_rows": 5})
FAILED = CycleRecord("orders", TARGET, "expire", BEGUN, BEGUN, "failed", "too many", {"error": "it was away"})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    spark = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr("icefront.cli.running.start_session", lambda *_, **__: spark)
    return Shop.make(tmp_path)


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> list[CycleRecord]:
    """Upkeep that does these cycles."""
    cycles: list[CycleRecord] = []

    def upkeep(_: Pipeline, __: Any, *, on_cycle: Callable[[CycleRecord], None], **___: Any) -> None:
        for cycle in cycles:
            on_cycle(cycle)

    monkeypatch.setattr(Pipeline, "upkeep", upkeep)
    return cycles


def test_every_cycle_is_a_line(shop: Shop, due: list[CycleRecord]) -> None:
    due.append(DONE)
    told = icefront("upkeep", shop.file, "--once")
    assert (told.exit_code, told.stdout) == (0, f"{TARGET}  settle 2026-03-04 12:00:00 done in 3 s: 10 of them\n")
    (line,) = icefront("upkeep", shop.file, "--once", "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["event"], found["pipeline"], found["target"], found["kind"]) == ("upkeep", "orders", TARGET, "settle")
    assert (found["seconds"], found["facts"]) == (3.0, {"dead_rows": 5})


def test_what_failed_is_told_and_gives_an_exit_code(shop: Shop, due: list[CycleRecord]) -> None:
    due += [DONE, FAILED]
    told = icefront("upkeep", shop.file, "--once")
    assert told.exit_code == 5
    assert "expire 2026-03-04 12:00:00 failed in 0 s (it was away): too many" in told.stdout
    assert "1 of 2 cycles failed" in told.stderr


def test_nothing_to_do_is_said(shop: Shop, due: list[CycleRecord]) -> None:
    told = icefront("upkeep", shop.file, "--once")
    assert told.exit_code == 0
    assert "orders: nothing is due" in told.stderr
    due.append(FAILED)
    shop.write(upkeep="off")
    told = icefront("upkeep", shop.file, "--once")
    assert told.exit_code == 0
    assert "orders: upkeep is off" in told.stderr


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), {"keep": None, "at_least": None, "orphans_after": timedelta(days=3)}),
        (
            ("--keep", "7d", "--at-least", "2", "--orphans", "off"),
            {"keep": timedelta(days=7), "at_least": 2, "orphans_after": None},
        ),
    ],
)
def test_expire_leaves_to_the_table_what_nobody_asks_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], asked: dict[str, Any]
) -> None:
    heard: dict[str, Any] = {}

    def expire(_: Any, table: str, **given: Any) -> Expired:
        heard.update(given)
        return Expired(table, 1, 2, 3, 4, 5, 6, 7.0)

    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr("icefront.cli.upkeeping.start_project", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("icefront.api.expire", expire)
    assert icefront("expire", TARGET, *options).exit_code == 0
    assert {name: heard[name] for name in asked} == asked
