"""Batch learners of a distance: scikit-learn transformers that see all labelled items at once."""

from .itml import ITML
from .lmnn import LMNN
from .mcml import MCML
from .mtlmnn import MultiTaskLMNN
from .rca import RCA

__all__ = ["ITML", "LMNN", "MCML", "RCA", "MultiTaskLMNN"]
