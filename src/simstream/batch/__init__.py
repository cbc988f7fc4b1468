"""Batch learners, which see all their data at once.

ITML, LDA, LMNN, MCML, NCA, RCA and MultiTaskLMNN learn a distance from labelled items, as scikit-learn
transformers. SDCA learns a bilinear similarity from triplets, OrdinalEmbedding places for items without
features. Each file holds an estimator and its solver, a pure function.
"""

from .itml import ITML
from .lda import LDA
from .lmnn import LMNN
from .mcml import MCML
from .mtlmnn import MultiTaskLMNN
from .nca import NCA
from .rca import RCA
from .sdca import SDCA

__all__ = ["ITML", "LDA", "LMNN", "MCML", "NCA", "RCA", "SDCA", "MultiTaskLMNN"]
