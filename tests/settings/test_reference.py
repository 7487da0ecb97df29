"""The committed schemas and the page are what the model says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icefront.settings import PipelineSettings, Project
from icefront.settings.reference import generated, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(generated()))
def test_the_committed_file_is_freshly_generated(name):
    committed = (ROOT / name).read_text(encoding="utf-8")
    assert committed == generated()[name], "run `python -m icefront.settings.reference`"


def test_the_schemas_know_every_key_and_no_other():
    for name, model in (("pipeline", PipelineSettings), ("project", Project)):
        schema = json.loads(generated()[f"src/icefront/schemas/{name}.schema.json"])
        assert sorted(schema["properties"]) == sorted(model.known_keys())
        assert schema["additionalProperties"] is False


def test_every_key_is_explained():
    page = generated()["docs/configuration.md"]
    assert "| None |" not in page
    for key in ("pipeline", "every", "partition_by", "renames", "storage", "master", "schema"):
        assert f"| `{key}` |" in page


def test_the_generator_writes_what_it_generates(tmp_path):
    main(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*") if p.is_file()} == set(generated())
