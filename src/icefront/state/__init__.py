"""Notes that must survive a crash; losing them loses no data."""

from icefront.state.records import Binding, EpochRecord, RunRecord
from icefront.state.store import StateStore

__all__ = ["Binding", "EpochRecord", "RunRecord", "StateStore"]
