"""Starting the Spark session of a command that needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from icefront import api
from icefront.api import Pipeline
from icefront.cli import show
from icefront.core.errors import ConfigError
from icefront.settings import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(pipeline: Pipeline, *, quiet: bool) -> SparkSession:
    """Start the session that the pipeline's project describes, and show that this takes some seconds."""
    return _started(pipeline.session, quiet=quiet)


def start_project(project: Project, name: str, *, quiet: bool) -> SparkSession:
    """Start the session of a project for a command without a pipeline."""
    return _started(lambda: api.start_session(project, name), quiet=quiet)


def _started(start: Callable[[], SparkSession], *, quiet: bool) -> SparkSession:
    try:
        with show.waiting("starting Spark", quiet=quiet):
            return start()
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "py4j"}:
            raise
        raise ConfigError(
            "PySpark is not installed", 'pip install "icefront[spark]"; `icefront doctor` shows what else is missing'
        ) from error
