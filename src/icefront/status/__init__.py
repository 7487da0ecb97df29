"""The view model: what pipelines have done and where they stand, read without a JVM. Printing is for others."""

from icefront.status.checking import Finding, Level, check
from icefront.status.epochs import EpochRow, epochs
from icefront.status.look import Look, find_pipelines
from icefront.status.machine import examine
from icefront.status.targets import State, TargetStatus, lags, status
from icefront.status.upkeep import UpkeepStatus, cycle_dict

__all__ = [
    "EpochRow",
    "Finding",
    "Level",
    "Look",
    "State",
    "TargetStatus",
    "UpkeepStatus",
    "check",
    "cycle_dict",
    "epochs",
    "examine",
    "find_pipelines",
    "lags",
    "status",
]
