"""Similarities that need no training: what every learner has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines.base import Engine, State, saved_dtype, saved_flag, saved_shape
from .._kernels.steps import LOSS, MISTAKES, ROUNDS, VIOLATIONS
from ..data.comparisons import Comparisons
from ..similarity.base import Similarity
from ..similarity.bilinear import Bilinear
from ..similarity.cosine import Cosine
from ..similarity.learner import delegated, delegated_property
from ..similarity.mahalanobis import Mahalanobis, Spectrum
from .base import OnlineLearner
from .pairs import PairLearner


class _IdentityEngine(Engine):
    """The identity matrix, which never changes: learning only keeps count.

    Parameters
    ----------
    shape, dtype : of the matrix
    is_sparse : bool
        Whether the matrix is read as CSR.
    """

    kind = "identity"

    def __init__(self, shape: tuple[int, int], dtype: Any, is_sparse: bool) -> None:
        super().__init__(shape, dtype)
        self.is_sparse = is_sparse

    @classmethod
    def for_items(cls, tuples: Comparisons) -> _IdentityEngine:
        """An engine for these items, which must have the same features on both sides."""
        tuples.check_one_space("items")
        return cls(tuples.shape, tuples.left.dtype, tuples.is_sparse)

    @property
    def version(self) -> float:
        """The matrix never changes."""
        return 0.0

    def learn(self, step: Similarity, tuples: Comparisons, block_size: int) -> None:
        """Count what a similarity makes of triplets."""
        margins = step._margins(tuples)
        self.clock[ROUNDS] += len(margins)
        self.clock[LOSS] += np.maximum(0.0, 1.0 - margins).sum()
        self.clock[MISTAKES] += (margins <= 0).sum()
        self.clock[VIOLATIONS] += (margins < 1).sum()

    def matrix(self) -> sp.csr_matrix:
        return sp.identity(self.shape[0], self.dtype, "csr")

    def state(self) -> State:
        scalars = {
            "shape": list(self.shape),
            "is_sparse": self.is_sparse,
            "dtype": str(self.dtype),
        }
        return scalars, {"clock": self.clock}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> _IdentityEngine:
        shape, dtype = saved_shape(scalars), saved_dtype(scalars)
        self = cls(shape, dtype, saved_flag(scalars, "is_sparse"))
        self._restore_clock(arrays)
        return self


class _InnerProduct(Bilinear):
    """q'x, without a product with the identity."""

    _is_sparse = True

    def _transform(self, rows: Any) -> Any:
        return rows

    def _new_cosine(self, matrix: Any, shift: Any) -> Cosine:
        return Cosine(matrix.tocsr())  # the identity is its own root

    def get_bilinear_matrix(self) -> Any:
        return self.matrix.copy() if self._is_sparse else self.matrix.toarray()


class Dot(OnlineLearner):
    """The inner product s(q, x) = q'x: M is the identity. On rows of length one this is the cosine.

    Parameters
    ----------
    dtype : "float32" or "float64", optional
    normalise : bool
        The cosine q'x / sqrt(q'q x'x), whatever the lengths of the rows.
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> from simstream import Dot
    >>> Dot().learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]).pair_score([[[1.0, 2.0], [3.0, 4.0]]])
    array([11.])
    """

    _engine_types = (_IdentityEngine,)

    def __init__(
        self, *, dtype: Any = None, normalise: bool = False, preprocessor: Any = None
    ) -> None:
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _new_engine(self, tuples: Comparisons) -> Engine:
        return _IdentityEngine.for_items(tuples)

    def _step(self) -> Any:
        return self._similarity()

    def _has_weights(self) -> bool:
        return True  # nothing is learnt, whatever they are

    def _changing(self) -> None:
        return  # what was read stays as it is

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        engine.learn(self._step(), tuples, 1)  # whatever their weights are

    def _similarity_of(self, engine: Any) -> Bilinear:
        similarity = _InnerProduct._of(engine.matrix())
        similarity._is_sparse = engine.is_sparse
        return similarity

    get_bilinear_matrix = delegated(Bilinear.get_bilinear_matrix)
    transform_query = delegated(Bilinear.transform_query)
    sparsity_ = delegated_property(Bilinear, "sparsity_")


class _EuclideanDistance(Mahalanobis):
    """||q - x||^2, without a product with the identity."""

    decision_function = Similarity.decision_function  # type: ignore[assignment]
    predict = Similarity.predict  # type: ignore[assignment]
    score = Similarity.score  # type: ignore[assignment]

    def _embed(self, rows: Any) -> Any:
        return rows

    @property
    def sparsity_(self) -> float:
        return 1.0 - 1.0 / self.shape_[0]


class Euclidean(PairLearner):
    """Minus the squared Euclidean distance, s(q, x) = -||q - x||^2.

    A distance is not bilinear: there is no matrix M with q'Mx = s(q, x), and no `transform_query`.

    Parameters
    ----------
    dtype : "float32" or "float64", optional
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> from simstream import Euclidean
    >>> Euclidean().learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]).pair_score([[[1.0, 2.0], [3.0, 4.0]]])
    array([-8.])
    """

    natural_tuples = "triplets"
    _engine_types = (_IdentityEngine,)
    _read = OnlineLearner._read
    learn_one = OnlineLearner.learn_one  # type: ignore[assignment]
    predict_one = OnlineLearner.predict_one  # type: ignore[assignment]
    decision_function = OnlineLearner.decision_function
    predict = OnlineLearner.predict
    score = OnlineLearner.score

    def __init__(self, *, dtype: Any = None, preprocessor: Any = None) -> None:
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _new_engine(self, tuples: Comparisons) -> Engine:
        return _IdentityEngine.for_items(tuples)

    def _step(self) -> Any:
        return self._similarity()

    def _has_weights(self) -> bool:
        return True  # nothing is learnt, whatever they are

    def _changing(self) -> None:
        return  # what was read stays as it is

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        engine.learn(self._step(), tuples, 1)  # whatever their weights are

    def _similarity_of(self, engine: Any) -> Mahalanobis:
        d = engine.shape[0]
        spectrum = Spectrum(np.ones(d), engine.matrix().astype(np.float64), engine.dtype)
        return _EuclideanDistance._of(spectrum, self._calibrated)
