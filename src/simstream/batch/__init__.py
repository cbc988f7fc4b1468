"""Batch learners of a distance: scikit-learn transformers that see all labelled items at once.

Each file holds an estimator and its solver, a pure function of arrays.
"""

from .itml import ITML
from .lmnn import LMNN
from .mcml import MCML
from .mtlmnn import MultiTaskLMNN
from .rca import RCA
from .sdca import SDCA

__all__ = ["ITML", "LMNN", "MCML", "RCA", "SDCA", "MultiTaskLMNN"]
