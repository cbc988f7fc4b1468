"""Learning with several processes or machines, by Ray: ``pip install 'simstream[distributed]'``.

Nothing here is imported by the rest of the library, and Ray itself only when a cluster is used.
"""

from __future__ import annotations

from .cluster import Cluster, WorkerLostError
from .evaluation import EvaluationWorkers
from .mixing import MixedLearner, Mixing
from .sharded import ShardedLearner

__all__ = [
    "Cluster",
    "EvaluationWorkers",
    "MixedLearner",
    "Mixing",
    "ShardedLearner",
    "WorkerLostError",
]
