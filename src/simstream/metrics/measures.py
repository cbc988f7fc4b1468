"""Measures of a similarity: of rankings, of k-nearest-neighbour votes, of triplets, and its sparsity.

Rankings and votes are computed from scores in chunks of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from .._kernels.ranking import majority, map_rows, nearest, rank_rows
from ..validation import check_choice, check_integer, check_items, check_number

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
    return _report(*_given(scores, relevant, exclude), k, normalizer, None)


def ranking_per_query(
    scores: Any,
    relevant: Any,
    *,
    exclude: Any = None,
    k: int | Sequence[int] = (1, 5, 10),
    normalizer: str = "relevant",
) -> dict[str, np.ndarray]:
    """All ranking measures of each single query, to compare two rankings query by query.

    Parameters
    ----------
    scores, relevant, exclude, k, normalizer
        See `ranking_report_from_scores`.

    Returns
    -------
    dict of str to (n_queries,) array
        The measures of `ranking_report`; NaN for queries without a relevant candidate.

    See Also
    --------
    paired_interval : How certain is the mean difference?

    Examples
    --------
    >>> values = ranking_per_query([[0.9, 0.5], [0.1, 0.2]], [[1, 0], [1, 0]], k=1)
    >>> values["P@1"].tolist(), values["mAP"].tolist()
    ([1.0, 0.0], [1.0, 0.5])
    """
    per_query, used = _per_query(*_given(scores, relevant, exclude), k, normalizer, None)
    told = {name: np.full(used.size, np.nan) for name in per_query}
    for name, values in per_query.items():
        told[name][used] = values
    return told


def _given(
    scores: Any, relevant: Any, exclude: Any
) -> tuple[Callable[[slice], tuple[np.ndarray, np.ndarray]], tuple[int, ...]]:
    """Scores and relevance as a function of a range of queries, and the shape of the scores."""
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

    return chunk, scores.shape


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
    """The means of all measures, and how many queries they are means of."""
    per_query, used = _per_query(chunk, shape, k, normalizer, chunk_size)
    report = {name: float(values.mean()) for name, values in per_query.items()}
    return report | {"n_queries": int(used.sum()), "n_left_out": int((~used).sum())}


def _per_query(
    chunk: Callable[[slice], tuple[np.ndarray, np.ndarray]],
    shape: tuple[int, ...],
    k: int | Sequence[int],
    normalizer: str,
    chunk_size: int | None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """All measures of the queries with relevant candidates, and which queries these are.

    They come from a function that returns the (scores, grades) of a range of queries. Grades: 1 is relevant,
    0 is not relevant, -1 is not a candidate.
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
    return per_query, used


# -- k nearest neighbours ------------------------------------------------------------------------


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
    n_neighbors = check_integer("n_neighbors", n_neighbors)
    classes, codes = np.unique(labels, return_inverse=True)
    scored = (model, queries, items)
    return classes[_votes(scored, codes, "n_neighbors", [n_neighbors], exclude_self, chunk_size)[0]]


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
    codes = np.unique(np.concatenate([labels, pool_labels]), return_inverse=True)[1]
    truth, pool_codes = np.split(codes, [labels.size])

    scored = (model, queries, items)
    votes = _votes(scored, pool_codes, "k_values", lengths, exclude_self, chunk_size)
    wrong = votes != truth  # (n_k, n_queries)
    if not class_averaged:
        return wrong.mean(axis=1)
    return np.mean([wrong[:, truth == one].mean(axis=1) for one in np.unique(truth)], axis=0)


def _votes(
    scored: tuple[Any, Any, Any],
    codes: np.ndarray,
    name: str,
    lengths: list[int],
    exclude_self: bool,
    chunk_size: int | None,
) -> np.ndarray:
    """The class that the nearest k items of each query vote for, for each k: shape (n_k, n_queries).

    `scored` is a model, queries and items; `codes` are the items' classes, and `name` is the parameter that
    `lengths` come from.
    """
    model, queries, items = scored
    score = _scorer(model)
    n_queries, n_items = queries.shape[0], items.shape[0]
    if exclude_self and n_queries != n_items:
        raise ValueError(
            f"exclude_self: expected queries and items to be the same list, got {n_queries} queries "
            f"and {n_items} items"
        )
    n_candidates, largest, n_classes = n_items - bool(exclude_self), max(lengths), codes.max() + 1
    if largest > n_candidates:
        raise ValueError(f"{name}: expected at most the {n_candidates} candidates, got {largest}")
    skip = np.arange(n_queries) if exclude_self else np.full(n_queries, -1)

    def chunk(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        return _score(score, queries[rows], items), skip[rows]

    def vote(scores: np.ndarray, skip: np.ndarray) -> np.ndarray:
        # Sorted, so that the k nearest are the first k of a longer list.
        voters = codes[nearest(scores, skip, largest)]
        return np.array([majority(np.ascontiguousarray(voters[:, :k]), n_classes) for k in lengths])

    blocks = map_rows(vote, chunk, n_queries, n_items, _chunk_rows(chunk_size, n_items))
    return np.concatenate(blocks, axis=1)


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


# -- triplets and matrices -----------------------------------------------------------------------


def triplet_accuracy(model: Any, triplets: Any) -> float:
    """Return the share of (anchor, positive, negative) triplets that a model orders correctly.

    Parameters
    ----------
    model : object
        Has a method ``triplet_margin(triplets) -> (n,)`` or ``decision_function``, positive where the
        anchor is more similar to the positive than to the negative. Exactly 0 counts as wrong.
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
    """Return the share of entries of a matrix that are zero, that is, with ``|M_ij| <= tol``.

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
        if not csr.has_canonical_format:  # an entry may be stored in several parts
            csr = csr.copy()
            csr.sum_duplicates()
        values = csr.data[:, None]
    non_zero = 0
    # In chunks: M may be so big that there is no room for a copy.
    n_rows = _chunk_rows(None, values.shape[1])
    for start in range(0, values.shape[0], n_rows):
        part = np.abs(values[start : start + n_rows])
        if np.isnan(part).any():
            raise ValueError("M: expected numbers, got NaN")
        non_zero += int(np.count_nonzero(part > tol))
    return 1.0 - non_zero / (M.shape[0] * M.shape[1])


# -- scores in chunks ----------------------------------------------------------------------------


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
