"""What every bilinear similarity s(q, x) = q' M x can do, however M was learnt."""

from __future__ import annotations

from typing import Any

from ..validation import check_items
from .base import SimilarityEstimator, TripletDecisions
from .scoring import BilinearModel, row_products


class BilinearEstimator(BilinearModel, SimilarityEstimator):
    """Base of all estimators of a bilinear similarity. Subclasses provide `_matrix`."""

    def _frozen_score(self) -> Any:
        matrix = self.get_bilinear_matrix()
        return lambda a, b: row_products(a @ matrix, b)

    def get_bilinear_matrix(self) -> Any:
        """Copy of M in s(q, x) = q' M x: CSR if it was learnt from sparse items, else an array."""
        return self._matrix().copy()

    def transform_query(self, queries: Any) -> Any:
        """Map queries q to M'q, so that plain inner products with items are the learnt similarity.

        An index of the items never has to be rebuilt when M changes: only queries are transformed.

        Returns
        -------
        array (n_queries, d'), or CSR if both the queries and M are sparse
        """
        engine = self._fitted()
        left = check_items(queries, "queries", dtype=engine.dtype)
        if left.shape[1] != engine.shape[0]:
            raise ValueError(f"queries: expected {engine.shape[0]} features, got {left.shape[1]}")
        return self._transform(left.values)

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        from ..metrics import sparsity

        return sparsity(self._matrix())


class Bilinear(TripletDecisions, BilinearEstimator):
    """A bilinear similarity with a given matrix: nothing is learnt.

    Parameters
    ----------
    matrix : array or CSR matrix of shape (d, d')
        Do not change it in place.
    dtype : "float32" or "float64", optional
    preprocessor : array, CSR matrix or pair of them, optional
        Items behind row numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> Bilinear(np.diag([2.0, 1.0])).pair_score([[[1.0, 1.0], [1.0, 3.0]]])
    array([5.])
    """

    _kept: tuple[tuple[Any, ...], Any] | None = None

    def __init__(self, matrix: Any, *, dtype: Any = None, preprocessor: Any = None) -> None:
        self.matrix = matrix
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _matrix(self) -> Any:
        key = (id(self.matrix), str(self.dtype))
        if self._kept is None or self._kept[0] != key:
            self._check_parameters()
            self._kept = (key, check_items(self.matrix, "matrix", dtype=self.dtype).values)
        return self._kept[1]

    def _learnt(self) -> Any:
        return self._matrix()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_kept", None)
        return state

    def _get_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._matrix()
