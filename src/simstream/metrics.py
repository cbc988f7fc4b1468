"""How good is a similarity: ranking measures, k-NN classification, triplet accuracy, sparsity.

A ranking measure takes queries with labels and a pool of items with labels, sorts the pool by
decreasing score (ties: lower index first) and looks at where the items of the query's class ended up.
With rel_j = 1 if the j-th ranked item is relevant and R the number of relevant items,

    P@k     = (1/k) sum_{j<=k} rel_j             a pool smaller than k: the missing ones count 0
    recall@k = (1/R) sum_{j<=k} rel_j
    AP      = (1/R) sum_j rel_j P@j
    AP@k    = (1/min(k, R)) sum_{j<=k} rel_j P@j   normalizer="hits": divided by the hits among k
    RR      = 1 / rank of the first relevant item
    nDCG@k  = sum_{j<=k} rel_j / log2(1 + j), divided by its largest possible value

averaged over the queries with R > 0. A model is anything with ``score_items(queries, items)`` that
returns an (n_queries, n_items) array, higher = more similar, or a function that does the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy import sparse

__all__ = [
    "knn_predict",
    "mean_average_precision",
    "mean_average_precision_at_k",
    "mean_reciprocal_rank",
    "ndcg",
    "precision_at_k",
    "ranking_report",
    "ranking_report_from_scores",
    "recall_at_k",
    "sparsity",
    "triplet_accuracy",
]

_CHUNK_SCORES = 2**23  # scores held at a time: 64 MB in float64
_BLOCK_SCORES = 2**17  # scores one thread works on at a time: 1 MB, about a core's own cache


def ranking_report(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    k: int | Sequence[int] = (1, 5, 10),
    normalizer: str = "relevant",
    chunk_size: int | None = None,
) -> dict[str, float | int]:
    """Rank a pool of items for every query and report all ranking measures.

    Parameters
    ----------
    model : object
        Has ``score_items(queries, items) -> (n_queries, n_items)``, or is a function like it.
    queries : (n_queries, d) array or sparse matrix
    query_labels : (n_queries,) array
        An item is relevant for a query if their labels are equal.
    items, item_labels : like `queries` and `query_labels`, optional
        The pool. Left out, the pool of a query is the *other* queries.
    k : int or sequence of int, default (1, 5, 10)
        Lengths of the list for P@k, mAP@k, recall@k and nDCG@k. May be empty.
    normalizer : {"relevant", "hits"}, default "relevant"
        What mAP@k divides by: min(k, R), or the number of relevant items among the first k.
    chunk_size : int, optional
        Queries scored at a time; the default keeps their scores below 64 MB. Bounds memory, does
        not change the result.

    Returns
    -------
    dict
        ``mAP``, ``MRR``, ``nDCG``; for each k ``P@k``, ``mAP@k``, ``recall@k``, ``nDCG@k``;
        ``random_P``, what P@k is on average for a random order; ``n_queries``, the number of
        queries averaged, and ``n_left_out``, those for which nothing in the pool is relevant.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.2, 0.8]])
    >>> report = ranking_report(lambda queries, items: queries @ items.T, X, [0, 0, 1, 1], k=2)
    >>> report["mAP"], report["P@2"], report["n_queries"]
    (1.0, 0.5, 4)
    """
    score = _scorer(model)
    queries = _rows(queries, "queries")
    labels = _labels(query_labels, queries.shape[0], "query_labels", "queries")
    pool_is_queries = items is None
    if pool_is_queries:
        if item_labels is not None:
            raise ValueError("item_labels were given without items: expected both or neither")
        items, pool_labels = queries, labels
    else:
        if item_labels is None:
            raise ValueError("items were given without item_labels: expected both or neither")
        items = _rows(items, "items")
        pool_labels = _labels(item_labels, items.shape[0], "item_labels", "items")
    # Small integers compare faster than strings, and mean the same.
    codes = np.unique(np.concatenate([labels, pool_labels]), return_inverse=True)[1]
    codes = codes.astype(np.int32)
    query_codes, item_codes = codes[: labels.size], codes[labels.size :]

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        grades = (query_codes[rows, None] == item_codes).view(np.int8)
        if pool_is_queries:
            own = np.arange(rows.start, rows.stop)
            grades[own - rows.start, own] = -1
        return _score_chunk(score, queries[rows], items), grades

    return _report(chunk, queries.shape[0], items.shape[0], chunk_size, k, normalizer)


def ranking_report_from_scores(
    scores: Any,
    relevant: Any,
    *,
    exclude: Any = None,
    k: int | Sequence[int] = (1, 5, 10),
    normalizer: str = "relevant",
) -> dict[str, float | int]:
    """Report all ranking measures of given scores, for any notion of relevance.

    Parameters
    ----------
    scores : (n_queries, n_items) array
        Higher = more similar.
    relevant : (n_queries, n_items) array of bool or 0/1
    exclude : (n_queries,) array of int or (n_queries, n_items) array of bool, optional
        What is no candidate: one item per query (-1: none), or a mask. The scores there are
        ignored.
    k, normalizer
        See `ranking_report`.

    Returns
    -------
    dict
        See `ranking_report`.

    Examples
    --------
    >>> report = ranking_report_from_scores([[0.9, 0.5, 0.1]], [[True, False, True]], k=2)
    >>> report["P@2"], round(report["mAP"], 4)
    (0.5, 0.8333)
    """
    scores = np.asarray(scores)
    relevant = np.asarray(relevant)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"scores must be a non-empty (n_queries, n_items) array, got {scores.shape}")
    if relevant.shape != scores.shape:
        raise ValueError(f"relevant must have the shape of scores {scores.shape}, got {relevant.shape}")
    n_queries, n_items = scores.shape
    if exclude is not None:
        exclude = np.asarray(exclude)
        is_mask = exclude.dtype == bool and exclude.shape == scores.shape
        if not is_mask:
            if exclude.dtype.kind not in "iu" or exclude.shape != (n_queries,):
                raise ValueError(
                    f"exclude must be {n_queries} integers or a boolean mask of shape {scores.shape}, "
                    f"got {exclude.dtype} of shape {exclude.shape}"
                )
            if exclude.min() < -1 or exclude.max() >= n_items:
                raise ValueError(
                    f"exclude must hold items 0 to {n_items - 1} or -1, "
                    f"got {exclude.min()} to {exclude.max()}"
                )

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        grades = relevant[rows].astype(np.int8)
        if not np.isin(relevant[rows], (0, 1)).all():
            raise ValueError("relevant must be boolean or 0/1, got other values")
        if exclude is not None:
            if is_mask:
                grades[exclude[rows]] = -1
            else:
                some = np.flatnonzero(exclude[rows] >= 0)
                grades[some, exclude[rows][some]] = -1
        return _as_floats(scores[rows]), grades

    return _report(chunk, n_queries, n_items, None, k, normalizer)


def mean_average_precision(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    chunk_size: int | None = None,
) -> float:
    """Return mAP, the mean over queries of AP on the whole list. Parameters: `ranking_report`.

    Examples
    --------
    >>> dot = lambda queries, items: queries @ items.T
    >>> mean_average_precision(dot, [[1.0]], ["cat"], [[3.0], [2.0], [1.0]], ["dog", "cat", "dog"])
    0.5
    """
    data = (model, queries, query_labels, items, item_labels)
    return ranking_report(*data, k=(), chunk_size=chunk_size)["mAP"]
