"""Similarities that need no training: what every learner has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import Engine, IdentityEngine
from ..data.comparisons import Comparisons
from ..similarity.mahalanobis import MahalanobisEstimator, Spectrum
from .base import TripletLearner
from .bilinear_base import BilinearLearner


class _Untrained(TripletLearner):
    """Learning changes nothing; rounds, losses and mistakes are still counted."""

    _engine_kinds: tuple[str, ...] = ("identity",)

    def __init__(self, *, dtype: Any = None, preprocessor: Any = None) -> None:
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _new_engine(self, tuples: Comparisons) -> Engine:
        left, right = tuples.left, tuples.right
        if left.shape[1] != right.shape[1]:
            raise ValueError(
                f"{type(self).__name__}: expected one feature space, got {left.shape[1]} features on the "
                f"left and {right.shape[1]} on the right"
            )
        return IdentityEngine((left.shape[1], right.shape[1]), left.dtype, tuples.is_sparse)

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        engine.count(self._margins(tuples))


class Dot(_Untrained, BilinearLearner):
    """The inner product s(q, x) = q'x: M is the identity. On rows of length one this is the cosine.

    Parameters
    ----------
    dtype : "float32" or "float64", optional
    preprocessor : array, CSR matrix or pair of them, optional
        Items behind row numbers.

    Examples
    --------
    >>> from simstream import Dot
    >>> Dot().learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]).pair_score([[[1.0, 2.0], [3.0, 4.0]]])
    array([11.])
    """

    init = "identity"
    block_size = None
    head_bytes = None

    def _transform(self, rows: Any) -> Any:
        return rows


class Euclidean(MahalanobisEstimator, _Untrained):
    """Minus the squared Euclidean distance, s(q, x) = -||q - x||^2.

    A distance is not bilinear: there is no matrix M with q'Mx = s(q, x), and no `transform_query`.

    Parameters
    ----------
    dtype : "float32" or "float64", optional
    preprocessor : array, CSR matrix or pair of them, optional
        Items behind row numbers.

    Examples
    --------
    >>> from simstream import Euclidean
    >>> Euclidean().learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]).pair_score([[[1.0, 2.0], [3.0, 4.0]]])
    array([-8.])
    """

    def _spectrum(self) -> Spectrum:
        engine = self._fitted()
        d = engine.shape[0]
        return Spectrum(np.ones(d), sp.identity(d, format="csr"), engine.dtype)

    def _embed(self, rows: Any) -> Any:
        return rows  # without a product with the identity

    @property
    def sparsity_(self) -> float:
        """Share of zeros of the identity."""
        return 1.0 - 1.0 / self._fitted().shape[0]
