"""What a project needs of this machine: the doctor's checks over its folders and catalogs."""

from __future__ import annotations

from collections.abc import Sequence

from icefront.settings import Project
from icefront.spark import doctor


def examine(project: Project) -> Sequence[doctor.Finding]:
    """Look at Java, packages, jars, and the folders and catalogs that the project names."""
    folders = {"state": project.state.parent}
    for name, catalog in project.catalogs.items():
        if catalog.path is not None:
            folders[f"catalog {name}"] = catalog.path
    catalogs = {name: catalog.pyiceberg_properties(name) for name, catalog in project.catalogs.items()}
    return doctor.examine(folders=folders, catalogs=catalogs)
