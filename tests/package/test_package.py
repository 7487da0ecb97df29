"""The package as users get it: a wheel with all its parts, and a README that tells the truth."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from icefront.cli.app import app
from icefront.settings import load_pipeline

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_wheel_has_types_schemas_the_jar_lock_and_the_entry_point(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("icefront-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = [archive.read(n).decode() for n in names if n.endswith("entry_points.txt")]
        (metadata,) = [archive.read(n).decode() for n in names if n.endswith("METADATA")]
    assert {"icefront/py.typed", "icefront/spark/jars.lock", "icefront/schemas/pipeline.schema.json"} <= names
    assert not [n for n in names if n.startswith(("tests", "bench"))]
    assert "icefront = icefront.cli:main" in points
    assert {"Provides-Extra: spark", "Provides-Extra: prove"} <= set(metadata.splitlines())


def test_the_pipeline_in_the_readme_loads(tmp_path: Path) -> None:
    (text,) = snippets("yaml")
    path = tmp_path / "orders.yaml"
    path.write_text(text)
    assert load_pipeline(path).pipeline == "orders"


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_in_the_readme_parses(snippet: str) -> None:
    ast.parse(snippet)


def test_every_command_in_the_readme_exists() -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    named = set(re.findall(r"^icefront (\w+)", "\n".join(snippets("sh")), re.MULTILINE))
    assert named
    assert named <= commands
    targets = set(re.findall(r"^make (\w+)", "\n".join(snippets("sh")), re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_importing_icefront_starts_nothing_and_imports_no_spark() -> None:
    code = "import sys, icefront; icefront.Pipeline; assert 'pyspark' not in sys.modules, 'pyspark was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_icefront_offers_is_still_there_when_all_of_it_was_imported() -> None:
    """A module of the same name would take the place of a function as soon as it is imported."""
    code = (
        "import types, icefront\n"
        "for name in 2 * icefront.__all__:\n"
        "    assert not isinstance(getattr(icefront, name), types.ModuleType), name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
