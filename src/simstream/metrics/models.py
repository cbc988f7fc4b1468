"""Measures of a model: its k-NN classes, its triplet accuracy, the sparsity of its matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ..validation import check_integer, check_items, check_number
from .ranking import _chunk_rows, _labelled, _score, _scorer


def knn_predict(
    model: Any,
    queries: Any,
    items: Any,
    item_labels: Any,
    n_neighbors: int = 1,
    chunk_size: int | None = None,
    exclude_self: bool = False,
) -> np.ndarray:
    """Predict the label most frequent among the items nearest to every query.

    Parameters
    ----------
    model, queries, items, item_labels, chunk_size
        See `ranking_report`.
    n_neighbors : int, default 1
        Number of nearest items that vote. Equal counts go to the class of the nearest neighbour
        among the tied classes; of two items with the same score the lower index is nearer.
    exclude_self : bool, default False
        Queries and items are the same list, and query i must not see item i (leave-one-out).

    Examples
    --------
    >>> pool, labels = [[4], [3], [2], [1]], ["dog", "cat", "cat", "dog"]
    >>> print(knn_predict(lambda q, x: q @ x.T, [[1], [-1]], pool, labels, n_neighbors=2))
    ['dog' 'dog']
    """
    from ..kernels.ranking import majority, map_rows, nearest

    score = _scorer(model)
    queries = check_items(queries, "queries").values
    items, labels = _labelled(items, item_labels, "items", "item_labels")
    n_queries, n_items = queries.shape[0], labels.size
    if exclude_self and n_queries != n_items:
        raise ValueError(
            f"exclude_self: expected the items as queries, got {n_queries} queries, {n_items} items"
        )
    n_candidates = n_items - bool(exclude_self)
    n_neighbors = check_integer("n_neighbors", n_neighbors)
    if n_neighbors > n_candidates:
        raise ValueError(
            f"n_neighbors: expected at most the {n_candidates} candidates, got {n_neighbors}"
        )
    classes, codes = np.unique(labels, return_inverse=True)
    skip = np.arange(n_queries) if exclude_self else np.full(n_queries, -1)

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        return _score(score, queries[rows], items), skip[rows]

    def winners(scores: np.ndarray, skip: np.ndarray) -> np.ndarray:
        return majority(codes[nearest(scores, skip, n_neighbors)], classes.size)

    blocks = map_rows(winners, chunk, n_queries, n_items, _chunk_rows(chunk_size, n_items))
    return classes[np.concatenate(blocks)]


def triplet_accuracy(model: Any, triplets: Any) -> float:
    """Return the share of (anchor, positive, negative) triplets that a model decides rightly.

    Parameters
    ----------
    model : object
        Has ``triplet_margin(triplets) -> (n,)`` or a ``decision_function`` like it, above 0 where the anchor is more similar to the
        positive than to the negative. Exactly 0 is not right.
    triplets : (n, 3) or (n, 3, d) array

    Examples
    --------
    >>> class Closer:
    ...     def decision_function(self, triplets):
    ...         anchor, positive, negative = np.transpose(triplets)
    ...         return abs(anchor - negative) - abs(anchor - positive)
    >>> triplet_accuracy(Closer(), [[0, 1, 2], [0, 3, 1]])
    0.5
    """
    if len(triplets) == 0:
        raise ValueError("triplets: expected at least one, got none")
    margin = getattr(model, "triplet_margin", None) or model.decision_function
    values = np.asarray(margin(triplets))
    if values.shape != (len(triplets),):
        raise ValueError(f"decision values: expected {len(triplets)}, got shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError(f"decision values: expected numbers, got {np.isnan(values).sum()} NaN")
    return float(np.mean(values > 0))


def sparsity(M: Any, tol: float = 1e-12) -> float:
    """Return the share of zeros, that is of entries with ``|M_ij| <= tol``, in a matrix.

    Parameters
    ----------
    M : (d, d') array or sparse matrix
    tol : float, default 1e-12

    Examples
    --------
    >>> sparsity(np.eye(4))
    0.75
    """
    check_number("tol", tol, exclusive=False)
    M = M if sparse.issparse(M) else np.asarray(M)
    if M.ndim != 2 or 0 in M.shape:
        raise ValueError(f"M: expected a non-empty matrix, got shape {M.shape}")
    values = M
    if sparse.issparse(M):
        csr = M.tocsr()
        if not csr.has_canonical_format:  # an entry may be stored in parts
            csr = csr.copy()
            csr.sum_duplicates()
        values = csr.data[:, None]
    non_zero = 0
    # In parts: M may be so big that there is no room for a second one like it.
    n_rows = _chunk_rows(None, values.shape[1])
    for start in range(0, values.shape[0], n_rows):
        part = np.abs(values[start : start + n_rows])
        if np.isnan(part).any():
            raise ValueError("M: expected numbers, got NaN")
        non_zero += int(np.count_nonzero(part > tol))
    return 1.0 - non_zero / (M.shape[0] * M.shape[1])
