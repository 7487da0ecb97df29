"""The pipeline files that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from icefront.core.errors import ConfigError
from icefront.status import find_pipelines


def named_or_all(paths: Sequence[Path]) -> Sequence[Path]:
    """Take the files that were named, or all pipeline files of this folder."""
    if paths:
        return paths
    found = find_pipelines(Path.cwd())
    if not found:
        raise ConfigError(f"{Path.cwd()} has no pipeline file", "name one, or make a project with `icefront init`")
    return [path.relative_to(Path.cwd()) for path in found]
