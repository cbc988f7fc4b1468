"""A centre and a term of the items alone: s(q, x) = (q - m)'M(x - m) + w'(x - m), dense and sparse."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..metrics import sparsity
from ..validation import check_centre, check_vector
from .base import all_products, row_products


class _Query(NamedTuple):
    """M'(q - m) + w of queries as rows + weights @ vectors: sparse rows stay sparse."""

    rows: Any
    weights: np.ndarray
    vectors: np.ndarray


class Shift(NamedTuple):
    """What a bilinear similarity adds to the products with its matrix."""

    query_mean: np.ndarray
    item_mean: np.ndarray
    item_term: np.ndarray
    #: u of M = matrix - m u', where the mean is folded in; None for M = matrix.
    folded: np.ndarray | None = None

    @classmethod
    def of(
        cls, centre: Any, item_term: Any, folded: Any, shape: tuple[int, int], dtype: Any
    ) -> Shift | None:
        """Check what was given to a similarity of that shape; None if nothing was."""
        if centre is None and item_term is None and folded is None:
            return None
        if folded is not None and centre is None:
            raise ValueError("folded: expected None without a centre, got a vector")
        d, d_items = shape
        means = np.zeros(d, dtype), np.zeros(d_items, dtype)
        if centre is not None:
            means = check_centre(centre, shape, dtype)
        term = np.zeros(d_items, dtype)
        if item_term is not None:
            term = check_vector("item_term", item_term, d_items, dtype)
        if folded is not None:
            folded = check_vector("folded", folded, d_items, dtype)
        return cls(*means, term, folded)

    def parameters(self) -> dict[str, Any]:
        """The parameters of a similarity that mean this: None for what is zero."""
        centre, folded = None, None
        if self.query_mean.any() or self.item_mean.any():
            one = np.array_equal(self.query_mean, self.item_mean)
            centre = self.query_mean if one else (self.query_mean, self.item_mean)
            folded = self.folded
        term = self.item_term if self.item_term.any() else None
        return {"centre": centre, "item_term": term, "folded": folded}

    def of_queries(self, matrix: Any, queries: Any) -> _Query:
        """M'(q - m) + w, as `score_all` takes it."""
        mean, constant = self.query_mean, self.item_term
        weights = [np.ones(queries.shape[0], matrix.dtype)]
        if sp.issparse(queries):
            constant = constant - mean @ matrix
            if self.folded is not None:
                constant = constant + (mean @ mean) * self.folded
        else:
            queries = queries - mean
        vectors = [constant]
        if self.folded is not None:
            weights.append(-(queries @ mean))
            vectors.append(self.folded)
        return _Query(queries @ matrix, np.stack(weights, axis=1), np.stack(vectors))

    def transform(self, matrix: Any, queries: Any) -> np.ndarray:
        """M'(q - m) + w as the rows of an array."""
        rows, weights, vectors = self.of_queries(matrix, queries)
        return np.asarray(rows + weights @ vectors)

    def score_rows(self, matrix: Any, queries: Any, items: Any) -> np.ndarray:
        """Similarity of corresponding rows."""
        rows, weights, vectors = self.of_queries(matrix, queries)
        added = (weights * self._on_items(vectors, items)).sum(axis=1)
        return row_products(rows, items) - rows @ self.item_mean + added

    def score_all(self, queries: _Query, items: Any) -> np.ndarray:
        """Similarity of every query, given by `of_queries`, with every item."""
        rows, weights, vectors = queries
        added = weights @ self._on_items(vectors, items).T
        return all_products(rows, items) - (rows @ self.item_mean)[:, None] + added

    def _on_items(self, vectors: np.ndarray, items: Any) -> np.ndarray:
        """Inner products of the vectors with x - m: one row per item."""
        return np.asarray(items @ vectors.T) - vectors @ self.item_mean

    def full_matrix(self, matrix: Any) -> Any:
        """M itself, a copy."""
        if self.folded is None:
            return matrix.copy()
        dense = matrix.toarray() if sp.issparse(matrix) else matrix
        return dense - np.outer(self.query_mean, self.folded)

    def sparsity(self, matrix: Any) -> float:
        """Share of the entries of M that are zero, without making M."""
        if self.folded is None:
            return sparsity(matrix)
        stored = sp.coo_matrix(matrix)
        folded = self.query_mean[stored.row] * self.folded[stored.col]
        n = np.count_nonzero(self.query_mean) * np.count_nonzero(self.folded)
        n += np.count_nonzero(stored.data - folded) - np.count_nonzero(folded)
        return 1.0 - n / (matrix.shape[0] * matrix.shape[1])
