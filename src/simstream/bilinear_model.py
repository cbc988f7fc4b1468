"""What every bilinear similarity s(q, x) = q' M x can do, however M was learnt."""

from __future__ import annotations

from typing import Any

from .base import SimilarityEstimator
from .similarity import BilinearModel, row_products
from .validation import check_items


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
        from .metrics import sparsity

        return sparsity(self._matrix())
