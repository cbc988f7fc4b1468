"""k-nearest-neighbour classification, and its error as a function of k."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._kernels.ranking import majority, map_rows, nearest
from ..validation import check_integer, check_items
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
    """Predict the most frequent label among the items nearest to each query.

    Parameters
    ----------
    model, queries, items, item_labels, chunk_size
        See `ranking_report`.
    n_neighbors : int, default 1
        Number of nearest items that vote. A tie between classes goes to the one with the nearest
        neighbour; of two items with the same score, the lower index is nearer.
    exclude_self : bool, default False
        Leave-one-out: queries and items are the same list, and item i is no neighbour of query i.

    Examples
    --------
    >>> pool, labels = [[4], [3], [2], [1]], ["dog", "cat", "cat", "dog"]
    >>> print(knn_predict(lambda q, x: q @ x.T, [[1], [-1]], pool, labels, n_neighbors=2))
    ['dog' 'dog']
    """
    queries = check_items(queries, "queries").values
    items, labels = _labelled(items, item_labels, "items", "item_labels")
    classes, codes = np.unique(labels, return_inverse=True)
    n_neighbors = check_integer("n_neighbors", n_neighbors)

    def vote(near: np.ndarray) -> np.ndarray:
        return majority(codes[near], classes.size)

    blocks = _vote(
        model, queries, items, ("n_neighbors", n_neighbors), vote, exclude_self, chunk_size
    )
    return classes[np.concatenate(blocks)]


def knn_error_curve(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any,
    item_labels: Any,
    k_values: Iterable[int] = range(1, 26),
    class_averaged: bool = False,
    exclude_self: bool = False,
    chunk_size: int | None = None,
) -> np.ndarray:
    """Return the share of queries that k-NN misclassifies, for each k.

    Neighbours vote as in `knn_predict`; they are searched once, for the largest k.

    Parameters
    ----------
    model, queries, query_labels, items, item_labels, chunk_size
        See `ranking_report`. A query is always misclassified if no item has its class.
    k_values : iterable of int, default 1 to 25
        Numbers of neighbours; at most the number of candidates.
    class_averaged : bool, default False
        Return the mean over classes of the error within each class: all classes count the same,
        whatever their size. For balanced classes this is the plain error.
    exclude_self : bool, default False
        Leave-one-out: queries and items are the same list, and item i is no neighbour of query i.

    Returns
    -------
    (n_k,) array
        Errors in the order of `k_values`.

    Examples
    --------
    >>> pool, labels = [[4], [3], [2], [1]], ["dog", "cat", "cat", "dog"]
    >>> queries, truth = [[1], [2], [3]], ["cat", "cat", "dog"]
    >>> print(knn_error_curve(lambda q, x: q @ x.T, queries, truth, pool, labels, (1, 3)))
    [0.66666667 0.33333333]
    >>> print(
    ...     knn_error_curve(
    ...         lambda q, x: q @ x.T, queries, truth, pool, labels, (1, 3), class_averaged=True
    ...     )
    ... )
    [0.5 0.5]
    """
    queries, labels = _labelled(queries, query_labels, "queries", "query_labels")
    items, pool_labels = _labelled(items, item_labels, "items", "item_labels")
    lengths = _check_k_values(k_values)
    classes, codes = np.unique(np.concatenate([labels, pool_labels]), return_inverse=True)
    truth, pool_codes = np.split(codes, [labels.size])

    def vote(near: np.ndarray) -> np.ndarray:
        # Sorted, so that the k nearest are the first k of a longer list.
        voters = pool_codes[near]
        return np.array(
            [majority(np.ascontiguousarray(voters[:, :k]), classes.size) for k in lengths]
        )

    blocks = _vote(
        model, queries, items, ("k_values", max(lengths)), vote, exclude_self, chunk_size
    )
    wrong = np.concatenate(blocks, axis=1) != truth  # (n_k, n_queries)
    if not class_averaged:
        return wrong.mean(axis=1)
    return np.mean([wrong[:, truth == one].mean(axis=1) for one in np.unique(truth)], axis=0)


def _vote(
    model: Any,
    queries: Any,
    items: Any,
    number: tuple[str, int],
    vote: Callable[[np.ndarray], np.ndarray],
    exclude_self: bool,
    chunk_size: int | None,
) -> list[np.ndarray]:
    """Results of `vote(nearest items, nearest first)` for chunks of queries.

    `number` is the largest number of neighbours, with its parameter's name for the error message.
    """
    score = _scorer(model)
    n_queries, n_items = queries.shape[0], items.shape[0]
    if exclude_self and n_queries != n_items:
        raise ValueError(
            f"exclude_self: expected queries and items to be the same list, got {n_queries} queries "
            f"and {n_items} items"
        )
    name, largest = number
    n_candidates = n_items - bool(exclude_self)
    if largest > n_candidates:
        raise ValueError(f"{name}: expected at most the {n_candidates} candidates, got {largest}")
    skip = np.arange(n_queries) if exclude_self else np.full(n_queries, -1)

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        return _score(score, queries[rows], items), skip[rows]

    def result(scores: np.ndarray, skip: np.ndarray) -> np.ndarray:
        return vote(nearest(scores, skip, largest))

    return map_rows(result, chunk, n_queries, n_items, _chunk_rows(chunk_size, n_items))


def knn_error_best_k(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any,
    item_labels: Any,
    k_values: Iterable[int] = range(1, 26),
    class_averaged: bool = False,
    exclude_self: bool = False,
    chunk_size: int | None = None,
) -> tuple[float, int]:
    """Return the smallest k-NN error over all k, and the smallest k that reaches it.

    On test data this is optimistic, because k is chosen on the data it is reported for; on training
    data with ``exclude_self=True`` it is a criterion for tuning. For the best k over several runs,
    average their `knn_error_curve` first and take the smallest mean. Parameters: those of
    `knn_error_curve`.

    Examples
    --------
    >>> pool, labels = [[4], [3], [2], [1]], ["dog", "cat", "cat", "dog"]
    >>> knn_error_best_k(lambda q, x: q @ x.T, [[1]], ["cat"], pool, labels, range(1, 5))
    (0.0, 3)
    """
    k_values = _check_k_values(k_values)
    errors = knn_error_curve(
        model,
        queries,
        query_labels,
        items,
        item_labels,
        k_values,
        class_averaged=class_averaged,
        exclude_self=exclude_self,
        chunk_size=chunk_size,
    )
    error, k = min(zip(errors, k_values, strict=True))
    return float(error), k


def _check_k_values(k_values: Iterable[int]) -> list[int]:
    if not isinstance(k_values, Iterable):
        raise TypeError(f"k_values: expected a sequence of integers, got {k_values!r}")
    lengths = [check_integer("k_values", k) for k in k_values]
    if not lengths:
        raise ValueError("k_values: expected at least one, got none")
    return lengths
