"""Starting the Spark session of a command that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefront.api import Pipeline
from icefront.cli import show
from icefront.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(pipeline: Pipeline, *, quiet: bool) -> SparkSession:
    """Start the session that the project describes, and show that this takes some seconds."""
    try:
        with show.waiting("starting Spark", quiet=quiet):
            return pipeline.session()
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "py4j"}:
            raise
        raise ConfigError(
            "PySpark is not installed", 'pip install "icefront[spark]"; `icefront doctor` shows what else is missing'
        ) from error
