from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from icefront.core.errors import ConfigError
from icefront.settings import load_pipeline

Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the working directory, so that errors name files shortly."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    def write(text: str, name: str = "orders.yaml") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def refused(write: Write) -> Callable[..., str]:
    """Load a pipeline file that must be refused, and return the error's text."""

    def refused(text: str, name: str = "orders.yaml") -> str:
        with pytest.raises(ConfigError) as caught:
            load_pipeline(write(text, name))
        assert caught.value.exit_code == 2
        return str(caught.value)

    return refused
