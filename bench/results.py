"""Results as files: one JSON per benchmark, and a table made of them in docs/benchmarks.md."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Spread
from icefront.spark import jars
from icefront.spark.java import require_java

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PACKAGES = ("icefront", "pyspark", "pyarrow", "polars", "pyiceberg", "msgspec", "numpy")


@dataclass(frozen=True)
class Figure:
    """One number with its range; `goal` is what the project asks of it, in words."""

    what: str
    value: float
    unit: str
    least: float | None = None
    greatest: float | None = None
    goal: str = ""

    @classmethod
    def of(cls, what: str, spread: Spread, unit: str, goal: str = "") -> Figure:
        return cls(what, spread.median, unit, spread.least, spread.greatest, goal)

    def row(self) -> str:
        span = "" if self.least is None or self.greatest is None else f"{_show(self.least)} – {_show(self.greatest)}"
        return f"| {self.what} | {_show(self.value)} {self.unit} | {span} | {self.goal}{' (**missed**)' if self.misses else ''} |"

    @property
    def misses(self) -> bool:
        """Say whether the goal is a bound, and the median is on its wrong side."""
        match self.goal.replace(",", " ").split():
            case ["at", "least", bound, *_]:
                return self.value < float(bound)
            case ["at", "most", bound, *_]:
                return self.value > float(bound)
            case _:
                return False


@dataclass(frozen=True)
class Result:
    """What a benchmark found. `facts` says under which conditions, `raw` holds the rounds."""

    name: str
    title: str
    form: str
    figures: Sequence[Figure]
    quiet: bool
    foreign: Spread
    facts: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        content = {**asdict(self), "date": f"{datetime.now(UTC):%Y-%m-%d}", "hardware": hardware(), "versions": versions()}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return path


def hardware() -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return {"processor": models[0] if models else platform.processor(), "cores": os.cpu_count(), "memory": memory}


def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    iceberg = next(jar.coordinates for jar in jars.locked(jars.RUNTIME) if "iceberg" in jar.coordinates)
    return {"python": platform.python_version(), "java": require_java().version, "iceberg": iceberg, **found}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _show(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# ── the page ───────────────────────────────────────────────────────────────────────────────
def write_page() -> None:
    """Put the newest results between the two markers of the documentation's page."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page()}\n{END}{after}")


def page() -> str:
    saved = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join(section(result) for result in saved) or "Nothing has been measured yet."


def section(result: Mapping[str, Any]) -> str:
    machine, used = result["hardware"], result["versions"]
    others = result["foreign"]
    conditions = (
        f"{result['date']}, {result['form']} form; {machine['processor']}, {machine['cores']} cores, {machine['memory']}; Spark "
        f"{used['pyspark']}, Java {used['java']}, Python {used['python']}. Foreign CPU {others['median']:.0%} (at most "
        f"{others['greatest']:.0%} in a round)."
    )
    lines = [
        f"### {result['title']}",
        "",
        conditions,
        *([] if result["quiet"] else ["", "**Others used more than a fifth of the machine: read these figures with care.**"]),
        "",
        "| what | median | range | goal |",
        "|---|---|---|---|",
        *(Figure(**figure).row() for figure in result["figures"]),
        "",
        *(f"- {name}: {value}" for name, value in result["facts"].items()),
        "",
    ]
    return "\n".join(lines)
