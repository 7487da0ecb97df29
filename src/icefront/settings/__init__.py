"""The YAML files as one frozen model: icefront.yaml and the pipeline files."""

from icefront.settings.load import find_project, load_pipeline, load_project
from icefront.settings.pipeline import (
    Commit,
    Epochs,
    IcebergSink,
    PipelineSettings,
    SchemaPolicy,
    Sink,
    TableSettings,
    Target,
    Write,
)
from icefront.settings.project import Catalog, Changefeed, IcebergSource, Project, Source, Spark
from icefront.settings.secrets import Secret, reveal
from icefront.settings.upkeep import Compact, Expire, Settle, Upkeep
from icefront.settings.values import Duration, PartitionBy, Size

__all__ = [
    "Catalog",
    "Changefeed",
    "Commit",
    "Compact",
    "Duration",
    "Epochs",
    "Expire",
    "IcebergSink",
    "IcebergSource",
    "PartitionBy",
    "PipelineSettings",
    "Project",
    "SchemaPolicy",
    "Secret",
    "Settle",
    "Sink",
    "Size",
    "Source",
    "Spark",
    "TableSettings",
    "Target",
    "Upkeep",
    "Write",
    "find_project",
    "load_pipeline",
    "load_project",
    "reveal",
]
