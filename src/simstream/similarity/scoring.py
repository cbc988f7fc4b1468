"""Products of rows, and the best of many scores, in chunks of bounded memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._kernels.ranking import nearest

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
    if k <= _FEW:
        indices = nearest(scores, np.full(len(scores), -1), k)
    else:
        indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return SearchResult(indices, np.take_along_axis(scores, indices, axis=1))
