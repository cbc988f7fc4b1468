"""What every learnt similarity can do: score pairs, decide triplets, search, and explain itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

#: Bytes of scores (or transformed rows) kept at a time.
_CHUNK_BYTES = 64 * 2**20

#: Up to this many neighbours, inserting into a short list beats sorting everything.
_FEW = 128


class SearchResult(NamedTuple):
    """Best items of each query: row numbers and scores, best first, shape (n_queries, k)."""

    indices: np.ndarray
    scores: np.ndarray


def chunks(n: int, bytes_per_row: int) -> list[slice]:
    """Cut n rows into slices of bounded memory."""
    size = max(1, _CHUNK_BYTES // max(1, bytes_per_row))
    return [slice(begin, min(n, begin + size)) for begin in range(0, n, size)]


def row_products(a: Any, b: Any) -> np.ndarray:
    """Inner products of corresponding rows, dense or sparse."""
    if sp.issparse(a):
        return np.asarray(a.multiply(b).sum(axis=1)).ravel()
    if sp.issparse(b):
        return np.asarray(b.multiply(a).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", a, b)


def all_products(a: Any, b: Any) -> np.ndarray:
    """Inner products of all rows of a with all rows of b, as an array."""
    scores = a @ b.T
    return scores.toarray() if sp.issparse(scores) else np.asarray(scores)


def top_k(scores: np.ndarray, k: int) -> SearchResult:
    """Best k columns of each row, best first, ties by the lower index."""
    from .._kernels.ranking import nearest

    if k <= _FEW:
        indices = nearest(scores, np.full(len(scores), -1), k)
    else:
        indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return SearchResult(indices, np.take_along_axis(scores, indices, axis=1))


class BilinearModel:
    """s(q, x) = q' M x. Needs ``_matrix()``: the matrix to read with, dense or CSR."""

    def _matrix(self) -> Any:
        raise AttributeError("provided by the learner")

    def _transform(self, rows: Any) -> Any:
        return rows @ self._matrix()

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        return row_products(self._transform(queries), items)

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        return all_products(self._transform(queries), items)


class EuclideanModel:
    """s(q, x) = - ||e(q) - e(x)||^2 with a linear map e, the identity unless `_embed` is overridden.

    In float64: norms and products of data far from zero nearly cancel.
    """

    def _embed(self, rows: Any) -> Any:
        return rows

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        difference = self._embed(queries.astype(np.float64) - items)
        return -row_products(difference, difference)

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        queries, items = queries.astype(np.float64), items.astype(np.float64)
        if not (sp.issparse(queries) or sp.issparse(items)):
            centre = items.mean(axis=0)  # distances do not change, and cancel less
            queries, items = queries - centre, items - centre
        queries, items = self._embed(queries), self._embed(items)
        q, x = row_products(queries, queries), row_products(items, items)
        return np.minimum(0.0, 2 * all_products(queries, items) - q[:, None] - x)


ScoreFunction = Callable[[Any, Any], float]
