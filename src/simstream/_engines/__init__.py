"""Engines: a learnt matrix together with the clock of its stream, and the loop around the kernels.

An engine is what a learner keeps between calls. All engines have the same shape: `learn` advances the
stream, `matrix` reads the current (or averaged) matrix, `state` and `from_state` save and restore the raw
numbers. What is learnt lives here; what it is called and how it is checked lives in the estimators.
"""

from .base import DivergedError, Engine
from .device import check_device, device_block_size, find_device
from .entrywise import DenseEngine, FactoredEngine, default_block_size, first_matrix
from .geometry import FEWEST_ITEMS, Geometry, check_geometry
from .lists import DenseListsEngine, SparseListsEngine
from .low_rank import (
    GroupGramEngine,
    GroupRowsEngine,
    LowRankEngine,
    NuclearEngine,
    RetractionEngine,
)
from .pairs import LogDetEngine, LogDetStep, SpectralEngine
from .single import Single
from .sparse import SparseEngine, entrywise_engine
from .sparse_tasks import SparseTasksEngine, tasks_engine
from .tasks import DenseTasksEngine, TasksEngine

__all__ = [
    "FEWEST_ITEMS",
    "DenseEngine",
    "DenseListsEngine",
    "DenseTasksEngine",
    "DivergedError",
    "Engine",
    "FactoredEngine",
    "Geometry",
    "GroupGramEngine",
    "GroupRowsEngine",
    "LogDetEngine",
    "LogDetStep",
    "LowRankEngine",
    "NuclearEngine",
    "RetractionEngine",
    "Single",
    "SparseEngine",
    "SparseListsEngine",
    "SparseTasksEngine",
    "SpectralEngine",
    "TasksEngine",
    "check_device",
    "check_geometry",
    "default_block_size",
    "device_block_size",
    "entrywise_engine",
    "find_device",
    "first_matrix",
    "tasks_engine",
]
