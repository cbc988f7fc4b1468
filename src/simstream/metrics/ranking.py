"""Ranking measures, computed in chunks of queries from the ranks of the relevant items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from .._kernels.ranking import map_rows, rank_rows
from ..validation import check_choice, check_integer, check_items

_CHUNK = 2**23  # scores held at a time: 64 MB in float64


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
) -> dict[str, Any]:
    """Rank a pool of items for each query and report all ranking measures.

    Parameters
    ----------
    model : object
        Has a method ``score_items(queries, items) -> (n_queries, n_items)``, or is such a function.
    queries : (n_queries, d) array or CSR matrix
    query_labels : (n_queries,) array
        An item is relevant to a query if their labels are equal.
    items, item_labels : like `queries` and `query_labels`, optional
        The pool. If omitted, the pool of a query is the *other* queries.
    k : int or sequence of int, default (1, 5, 10)
        Cutoffs for P@k, mAP@k, recall@k and nDCG@k. May be empty.
    normalizer : {"relevant", "hits"}, default "relevant"
        What AP@k is divided by: min(k, R), or the number of relevant items among the first k.
    chunk_size : int, optional
        Number of queries scored at a time. Limits memory without changing the result; by default the
        scores in memory stay below 64 MB.

    Returns
    -------
    dict
        ``mAP``, ``MRR``, ``nDCG``; for each k ``P@k``, ``mAP@k``, ``recall@k``, ``nDCG@k``;
        ``random_P``, the expected P@k of a random order; ``n_queries``, the number of queries
        averaged, and ``n_left_out``, the number of queries with no relevant item in the pool.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.2, 0.8]])
    >>> report = ranking_report(lambda q, x: q @ x.T, X, [0, 0, 1, 1], k=2)
    >>> report["mAP"], report["P@2"], report["n_queries"]
    (1.0, 0.5, 4)
    """
    score = _scorer(model)
    queries, labels = _labelled(queries, query_labels, "queries", "query_labels")
    leave_one_out = items is None
    if (item_labels is None) != leave_one_out:
        given = "only item_labels" if leave_one_out else "only items"
        raise ValueError(f"items and item_labels: expected both or neither, got {given}")
    pool, pool_labels = queries, labels
    if not leave_one_out:
        pool, pool_labels = _labelled(items, item_labels, "items", "item_labels")
    # Small integers compare faster than strings.
    codes = np.unique(np.concatenate([labels, pool_labels]), return_inverse=True)[1]
    query_codes, pool_codes = np.split(codes.astype(np.int32), [labels.size])

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        grades = (query_codes[rows, None] == pool_codes).view(np.int8)
        if leave_one_out:
            own = np.arange(rows.start, rows.stop)
            grades[own - rows.start, own] = -1
        return _score(score, queries[rows], pool), grades

    return _report(chunk, (labels.size, pool_labels.size), k, normalizer, chunk_size)


def ranking_report_from_scores(
    scores: Any,
    relevant: Any,
    *,
    exclude: Any = None,
    k: int | Sequence[int] = (1, 5, 10),
    normalizer: str = "relevant",
) -> dict[str, Any]:
    """Report all ranking measures for given scores and any notion of relevance.

    Parameters
    ----------
    scores : (n_queries, n_items) array
        Higher = more similar.
    relevant : (n_queries, n_items) array of bool or 0/1
    exclude : (n_queries, n_items) array of bool or 0/1, optional
        True where an item is not a candidate for a query, for example ``np.eye(n, dtype=bool)``.
    k, normalizer
        See `ranking_report`, also for the result.

    Examples
    --------
    >>> report = ranking_report_from_scores([[0.9, 0.5, 0.1]], [[True, False, True]], k=2)
    >>> report["P@2"], round(report["mAP"], 4)
    (0.5, 0.8333)
    """
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"scores: expected a non-empty matrix, got shape {scores.shape}")
    relevant = np.asarray(relevant)
    nothing = np.broadcast_to(False, scores.shape)
    exclude = nothing if exclude is None else np.asarray(exclude)
    for name, mask in (("relevant", relevant), ("exclude", exclude)):
        if mask.shape != scores.shape:
            raise ValueError(
                f"{name}: expected the shape of scores {scores.shape}, got {mask.shape}"
            )
        if mask.dtype != bool and not np.isin(mask, (0, 1)).all():
            raise ValueError(f"{name}: expected booleans or 0/1, got other values")

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        grades = relevant[rows].astype(np.int8)
        grades[exclude[rows].astype(bool)] = -1
        return _as_floats(scores[rows]), grades

    return _report(chunk, scores.shape, k, normalizer, None)


def mean_average_precision(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    chunk_size: int | None = None,
) -> float:
    """Return mAP: AP over the whole pool, averaged over queries. Parameters as in `ranking_report`.

    Examples
    --------
    >>> mean_average_precision(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"])
    0.5
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("mAP", None, data, chunk_size=chunk_size)


def mean_average_precision_at_k(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    k: int = 10,
    normalizer: str = "relevant",
    chunk_size: int | None = None,
) -> float:
    """Return mAP@k: AP of the first k items, averaged over queries. Parameters as in `ranking_report`.

    Examples
    --------
    >>> mean_average_precision_at_k(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"], k=1)
    0.0
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("mAP", k, data, normalizer=normalizer, chunk_size=chunk_size)


def precision_at_k(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    k: int = 10,
    chunk_size: int | None = None,
) -> float:
    """Return P@k: the share of relevant items among the first k. Parameters as in `ranking_report`.

    Examples
    --------
    >>> precision_at_k(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"], k=2)
    0.5
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("P", k, data, chunk_size=chunk_size)


def recall_at_k(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    k: int = 10,
    chunk_size: int | None = None,
) -> float:
    """Return recall@k: the share of relevant items that are among the first k.

    Parameters as in `ranking_report`.

    Examples
    --------
    >>> recall_at_k(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"], k=2)
    1.0
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("recall", k, data, chunk_size=chunk_size)


def mean_reciprocal_rank(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    chunk_size: int | None = None,
) -> float:
    """Return MRR: the mean of 1 / rank of the first relevant item. Parameters as in `ranking_report`.

    Examples
    --------
    >>> mean_reciprocal_rank(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"])
    0.5
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("MRR", None, data, chunk_size=chunk_size)


def ndcg(
    model: Any,
    queries: Any,
    query_labels: Any,
    items: Any = None,
    item_labels: Any = None,
    *,
    k: int | None = None,
    chunk_size: int | None = None,
) -> float:
    """Return nDCG of the first k items, or of the whole pool. Parameters as in `ranking_report`.

    Examples
    --------
    >>> round(ndcg(lambda q, x: q @ x.T, [[1]], ["a"], [[3], [2]], ["b", "a"]), 4)
    0.6309
    """
    data = (model, queries, query_labels, items, item_labels)
    return _measure("nDCG", k, data, chunk_size=chunk_size)


def _measure(name: str, k: int | None, data: tuple[Any, ...], **options: Any) -> float:
    if k is None:
        return ranking_report(*data, k=(), **options)[name]
    return ranking_report(*data, k=check_integer("k", k), **options)[f"{name}@{k}"]


def _report(
    chunk: Callable[[slice], tuple[np.ndarray, np.ndarray]],
    shape: tuple[int, ...],
    k: int | Sequence[int],
    normalizer: str,
    chunk_size: int | None,
) -> dict[str, Any]:
    """All measures, from a function that returns the (scores, grades) of a range of queries.

    Grades: 1 is relevant, 0 is not relevant, -1 is not a candidate.
    """
    n_queries, n_items = shape
    check_choice("normalizer", normalizer, ("relevant", "hits"))
    lengths = sorted({check_integer("k", one) for one in np.atleast_1d(k)})
    cutoffs = np.array([*lengths, max([n_items, *lengths])])  # the last one is the whole list
    discounts = np.zeros(n_items + 1)
    discounts[1:] = 1 / np.log2(np.arange(2, n_items + 2))

    def measure(scores: np.ndarray, grades: np.ndarray) -> tuple[np.ndarray, ...]:
        return rank_rows(scores, grades, cutoffs, discounts)

    blocks = map_rows(measure, chunk, n_queries, n_items, _chunk_rows(chunk_size, n_items))
    n_relevant, n_candidates, first_rank, sums = map(np.concatenate, zip(*blocks, strict=True))
    used = n_relevant > 0
    if not used.any():
        raise ValueError(
            f"queries: expected at least one with a relevant candidate, got none among {n_queries}"
        )
    n_relevant = n_relevant[used]
    hits, precisions, gains = sums[used].transpose(1, 0, 2)
    attainable = np.minimum(cutoffs, n_relevant[:, None])
    # Without hits the sum of precisions is 0, so the divisor does not matter.
    average = precisions / (attainable if normalizer == "relevant" else np.maximum(hits, 1))
    gains = gains / np.cumsum(discounts)[attainable]
    per_query = {
        "mAP": average[:, -1],
        "MRR": 1 / first_rank[used],
        "nDCG": gains[:, -1],
        "random_P": n_relevant / n_candidates[used],
    }
    for column, length in enumerate(lengths):
        per_query[f"P@{length}"] = hits[:, column] / length
        per_query[f"mAP@{length}"] = average[:, column]
        per_query[f"recall@{length}"] = hits[:, column] / n_relevant
        per_query[f"nDCG@{length}"] = gains[:, column]
    report = {name: float(values.mean()) for name, values in per_query.items()}
    return report | {"n_queries": int(used.sum()), "n_left_out": int((~used).sum())}


def _chunk_rows(chunk_size: int | None, n_items: int) -> int:
    if chunk_size is None:
        return max(1, _CHUNK // n_items)
    return check_integer("chunk_size", chunk_size)


def _scorer(model: Any) -> Callable[[Any, Any], Any]:
    score = getattr(model, "score_items", model)
    if not callable(score):
        raise TypeError(
            f"model: expected a method score_items or a function, got {type(model).__name__}"
        )
    return score


def _score(score: Callable[[Any, Any], Any], queries: Any, items: Any) -> np.ndarray:
    scores = score(queries, items)
    scores = scores.toarray() if sparse.issparse(scores) else np.asarray(scores)
    expected = (queries.shape[0], items.shape[0])
    if scores.shape != expected:
        raise ValueError(f"scores of the model: expected shape {expected}, got {scores.shape}")
    return _as_floats(scores)


def _as_floats(scores: np.ndarray) -> np.ndarray:
    """Scores for the kernels: contiguous, float32 or float64, without NaN (infinity is allowed)."""
    scores = np.ascontiguousarray(scores)
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    if np.isnan(scores.min()):  # one NaN makes the minimum NaN: no second array is needed
        raise ValueError(f"scores: expected numbers, got {np.isnan(scores).sum()} NaN")
    return scores


def _labelled(rows: Any, labels: Any, name: str, labels_name: str) -> tuple[Any, np.ndarray]:
    rows, labels = check_items(rows, name).values, np.asarray(labels)
    if labels.shape != (rows.shape[0],):
        raise ValueError(
            f"{labels_name}: expected one for each of the {rows.shape[0]} {name}, "
            f"got shape {labels.shape}"
        )
    return rows, labels
