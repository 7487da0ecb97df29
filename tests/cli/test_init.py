"""`icefront init`: a project that is right as it is, and nothing overwritten."""

import json

import pytest

from tests.cli.projects import icefront


def test_the_sample_project_checks_out(tmp_path):
    made = icefront("init", tmp_path / "shop")
    assert made.exit_code == 0
    assert "icefront run orders.yaml --until caught-up" in made.stdout
    findings = json.loads(icefront("check", tmp_path / "shop" / "orders.yaml", "--json").stdout)
    assert {finding["level"] for finding in findings} == {"ok"}


def test_the_readme_is_short(tmp_path):
    icefront("init", tmp_path)
    assert len((tmp_path / "README.md").read_text().splitlines()) <= 12


@pytest.mark.parametrize("name", ["icefront.yaml", "orders.yaml", "README.md", "feed"])
def test_nothing_is_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    result = icefront("init", tmp_path)
    assert result.exit_code == 2
    assert f"{name} exists already" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    result = icefront("init", tmp_path / "file" / "shop")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
