"""Engines: a learnt matrix together with the clock of its stream, and the loop around the kernels.

An engine is what a learner keeps between calls. All engines have the same shape: `learn` advances the
stream, `matrix` reads the current (or averaged) matrix, `state` and `from_state` save and restore the raw
numbers. What is learnt lives here; what it is called and how it is checked lives in the estimators.
"""

from .base import DivergedError, Engine
from .dense import DenseEngine, default_block_size
from .entrywise import entrywise_engine, first_matrix
from .factored import FactoredEngine
from .frozen_tasks import FrozenTasks
from .identity import IdentityEngine
from .logdet import LogDetEngine, LogDetStep
from .low_rank import GroupGramEngine, GroupRowsEngine
from .low_rank_nuclear import NuclearEngine
from .low_rank_retraction import RetractionEngine
from .sparse import SparseEngine
from .sparse_tasks import SparseTasksEngine, tasks_engine
from .spectral import SpectralEngine
from .tasks import DenseTasksEngine, TasksEngine

#: Name in model files -> engine.
ENGINES: dict[str, type[Engine]] = {
    engine.kind: engine
    for engine in (
        DenseEngine,
        SparseEngine,
        FactoredEngine,
        IdentityEngine,
        LogDetEngine,
        SpectralEngine,
        DenseTasksEngine,
        SparseTasksEngine,
        GroupRowsEngine,
        GroupGramEngine,
        NuclearEngine,
        RetractionEngine,
    )
}

__all__ = [
    "ENGINES",
    "DenseEngine",
    "DivergedError",
    "Engine",
    "FactoredEngine",
    "FrozenTasks",
    "IdentityEngine",
    "LogDetEngine",
    "LogDetStep",
    "SparseEngine",
    "SpectralEngine",
    "TasksEngine",
    "default_block_size",
    "entrywise_engine",
    "first_matrix",
    "tasks_engine",
]
