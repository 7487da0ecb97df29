"""Reading the files: a pipeline file, and the icefront.yaml that it belongs to."""

from __future__ import annotations

from pathlib import Path

from icefront.settings.document import read_document
from icefront.settings.part import build
from icefront.settings.pipeline import PipelineSettings
from icefront.settings.project import Project

PROJECT_FILE = "icefront.yaml"


def find_project(start: Path) -> Path | None:
    """Look for icefront.yaml in the folder of `start`, then upwards; a git repository's root is the last place."""
    folder = start.absolute() if start.is_dir() else start.absolute().parent
    for place in (folder, *folder.parents):
        if (place / PROJECT_FILE).is_file():
            return place / PROJECT_FILE
        if (place / ".git").exists():
            return None
    return None


def load_project(start: Path | str = ".") -> Project:
    """Load the project that `start` (a pipeline file, a folder, or an icefront.yaml) belongs to, or the default one."""
    start = Path(start)
    found = find_project(start)
    if found is None:
        return Project.of({}, folder=start if start.is_dir() else start.absolute().parent)
    document = read_document(found)
    return build(Project, document.data, document.places, found.parent, found=document.problems)


def load_pipeline(path: Path | str) -> PipelineSettings:
    """Load a pipeline file with its project. Raises ConfigError listing everything that is wrong in a file."""
    path = Path(path)
    document = read_document(path)
    hidden = {"project": load_project(path), "file": path.absolute()}
    return build(PipelineSettings, document.data, document.places, path.absolute().parent, found=document.problems, hidden=hidden)
