"""Measures of a similarity: of rankings, of k-nearest-neighbour votes, of triplets, and its sparsity.

Rankings and votes are computed from scores in blocks of queries and items; `sweep` does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from .._kernels.ranking import majority, sum_at_cutoffs
from ..data.blocks import ArrayBlocks, ChosenRows, RowBlocks
from ..data.relevance import judged_by_rows, judged_rows
from ..validation import check_choice, check_integer, check_number
from .sweep import (
    DEFAULT_MEMORY,
    Nearest,
    Pool,
    RankedQueries,
    Relevance,
    RelevantLabels,
    RelevantLists,
    Runner,
    Scorer,
    as_scores,
    chunk_rows,
    edges_of_sizes,
    item_type,
    pool_of,
    ranked_queries,
)

#: What AP@k may be divided by.
NORMALIZERS = ("relevant", "all", "hits")


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
    normalizer : {"relevant", "all", "hits"}, default "relevant"
        What AP@k is divided by. "relevant" is min(k, R), R being the number of relevant items, so that a
        perfect ranking has 1. "all" is R, as trec_eval (map_cut) and ranx do. "hits" is the number of
        relevant items among the first k.
    chunk_size : int, optional
        Number of queries scored at a time by a function, or by an object that has nothing but
        ``score_items``. Limits memory without changing the result; by default the scores in memory stay below
        64 MB. Models of simstream are always scored in blocks of the same size: see `measure_ranking`.

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
    data = (model, queries, items, query_labels, item_labels)
    return _ranked_by_labels(*data, k, normalizer, chunk_size).means()


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
    return _measured(*_given(scores, relevant, exclude), k, normalizer).means()


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
    return _measured(*_given(scores, relevant, exclude), k, normalizer).per_query


def _given(
    scores: Any, relevant: Any, exclude: Any
) -> tuple[Iterable[RankedQueries], Relevance, np.ndarray, int]:
    """What `_measured` takes, from scores that are known."""
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
    excluded = exclude.astype(bool)
    rows, items = np.nonzero(relevant.astype(bool) & ~excluded)
    n_queries, n_items = scores.shape
    offsets = edges_of_sizes(np.bincount(rows, minlength=n_queries))
    relevance = RelevantLists(offsets, items.astype(item_type(n_items)))

    def of_rows(rows: np.ndarray, _: Any) -> np.ndarray:
        part = slice(rows[0, 0], rows[-1, 0] + 1)
        found = as_scores(scores[part])
        if excluded[part].any():
            found = np.where(excluded[part], np.nan, found)
        return found.copy() if found.base is not None else found

    # The queries are row numbers, and all items are one block.
    numbers = ArrayBlocks(np.arange(n_queries)[:, None])
    scorer = Scorer(_itself, _itself, of_rows, is_pure=False)
    nothing_more = ArrayBlocks(np.empty((n_items, 0)))
    pool = Pool(scorer, numbers, nothing_more, None, chunk_rows(None, n_items), n_items, False)
    n_candidates = n_items - excluded.sum(axis=1)
    return ranked_queries(pool, relevance), relevance, n_candidates, n_items


def _itself(rows: Any) -> Any:
    return rows


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
    >>> X, y = [[4], [3], [2]], ["a", "a", "b"]
    >>> mean_average_precision_at_k(lambda q, x: q @ x.T, [[1]], ["a"], X, y, k=1, normalizer="all")
    0.5
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


# -- what all of them share ----------------------------------------------------------------------


class RankingMeasures(NamedTuple):
    """Measures of every query; see `measure_ranking`.

    Examples
    --------
    >>> found = measure_ranking(lambda q, x: q @ x.T, [[1]], [[3], [2]], relevance=[[0, 1]], k=1)
    >>> found.means()["mAP"], found.per_query["P@1"].tolist()
    (0.5, [0.0])
    """

    #: The measures by name; NaN for queries without a relevant candidate.
    per_query: dict[str, np.ndarray]
    #: The share of queries that k-NN misclassifies, by the number of neighbours.
    knn_errors: dict[int, float]

    def means(self) -> dict[str, Any]:
        """Means over the queries with a relevant candidate, and the numbers of both kinds of queries."""
        used = ~np.isnan(self.per_query["mAP"])
        report = {name: float(values[used].mean()) for name, values in self.per_query.items()}
        return report | {"n_queries": int(used.sum()), "n_left_out": int((~used).sum())}


def measure_ranking(
    model: Any,
    queries: Any,
    items: Any = None,
    *,
    query_labels: Any = None,
    item_labels: Any = None,
    relevance: Any = None,
    k: int | Sequence[int] = (1, 5, 10),
    normalizer: str = "relevant",
    neighbors: Iterable[int] = (),
    memory: int = DEFAULT_MEMORY,
    runner: Runner | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RankingMeasures:
    """Rank items for each query and measure every ranking, over more items than memory holds if need be.

    The ranks are exact, however many items there are: the scores of the relevant items are taken in a first
    pass, and what lies above them is counted in a second one. The result does not depend on `memory` nor on
    the number of processes, to the last digit.

    Parameters
    ----------
    model : object
        As in `ranking_report`.
    queries : (n_queries, d) array, CSR matrix or RowBlocks
    items : like `queries`, optional
        The pool, as an array or as a file opened by `simstream.data.open_rows`. If omitted, the pool of a
        query is the *other* queries.
    query_labels, item_labels : arrays, optional
        An item is relevant to a query if their labels are equal. If the queries are the pool, `query_labels`.
    relevance : (n, 2) or (n, 3) array, optional
        Instead of labels, judgements: the row of a query, that of an item (or their ids, where they are
        `simstream.Items` with ids) and maybe a grade, above 0 if the item is relevant. nDCG counts an item by
        its grade. The last judgement of the same two counts.
    k, normalizer
        As in `ranking_report`.
    neighbors : iterable of int
        Numbers of neighbours of k-NN errors; needs labels.
    memory : int, default 512 MB
        Bytes of arrays that are held at a time, in each process. Labels, queries and the model come on top,
        and arrays given as items; of a file, four bytes for each item.
    runner : default None
        Where the items are scored: in this process, or by `simstream.distributed.EvaluationWorkers`.
    progress : function, optional
        Called with a number of items that are done and that of all; they count once for each pass.

    Returns
    -------
    RankingMeasures

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.2, 0.8]])
    >>> found = measure_ranking(lambda q, x: q @ x.T, X, query_labels=[0, 0, 1, 1], neighbors=[1])
    >>> found.means()["mAP"], found.knn_errors
    (1.0, {1: 0.0})
    """
    lengths = [check_integer("neighbors", one) for one in neighbors]
    options: Any = {"memory": memory, "runner": runner, "progress": progress}
    if relevance is None:
        data = (model, queries, items, query_labels, item_labels)
        return _ranked_by_labels(*data, k, normalizer, None, lengths, **options)
    if query_labels is not None or item_labels is not None or lengths:
        raise ValueError("relevance: expected no labels and no neighbors beside it, got some")
    pool = pool_of(model, queries, items, None, memory)
    n_queries = len(pool.queries)
    judged = _judged(judged_by_rows(relevance, queries, queries if items is None else items), pool)
    used = np.flatnonzero(judged.sizes)
    if 0 < len(used) < len(pool.queries):  # nothing is to be known of the others
        own = None if pool.own is None else pool.own[used]
        pool = pool._replace(queries=ChosenRows(pool.queries, used), own=own)
        judged = judged.chosen(used)
    else:
        used = np.arange(len(pool.queries))
    found = ranked_queries(pool, judged, runner=runner, progress=progress)
    n_candidates = np.full(len(used), pool.n_candidates)
    measured = _measured(found, judged, n_candidates, len(pool.items), k, normalizer)
    per_query = {name: np.full(n_queries, np.nan) for name in measured.per_query}
    for name, values in measured.per_query.items():
        per_query[name][used] = values
    return measured._replace(per_query=per_query)


def _ranked_by_labels(
    model: Any,
    queries: Any,
    items: Any,
    query_labels: Any,
    item_labels: Any,
    k: int | Sequence[int],
    normalizer: str,
    chunk_size: int | None,
    neighbors: Sequence[int] = (),
    *,
    memory: int = DEFAULT_MEMORY,
    runner: Runner | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RankingMeasures:
    """Measures where relevant items are those of the query's class."""
    pool = pool_of(model, queries, items, chunk_size, memory)
    labels = _labels_of(pool.queries, query_labels, "queries", "query_labels")
    is_own = pool.own is not None
    if (item_labels is None) != is_own:
        given = "only item_labels" if is_own else "only items"
        raise ValueError(f"items and item_labels: expected both or neither, got {given}")
    pool_labels = labels
    if not is_own:
        pool_labels = _labels_of(pool.items, item_labels, "items", "item_labels")
    query_codes, item_codes = _codes(labels, pool_labels)
    relevance = RelevantLabels(query_codes, item_codes, is_own)
    _check_neighbors("neighbors", neighbors, pool)
    most = max(neighbors, default=0)
    found = ranked_queries(pool, relevance, n_nearest=most, runner=runner, progress=progress)
    n_candidates = np.full(len(pool.queries), pool.n_candidates)
    wrong: dict[int, list[np.ndarray]] = {n: [] for n in neighbors}

    def with_votes() -> Iterator[RankedQueries]:
        for part in found:
            for n, votes in zip(
                neighbors, _votes(part.nearest, item_codes, neighbors), strict=True
            ):
                wrong[n].append(votes != query_codes[part.begin : part.end])
            yield part

    measured = _measured(with_votes(), relevance, n_candidates, len(pool.items), k, normalizer)
    return measured._replace(
        knn_errors={n: float(np.concatenate(parts).mean()) for n, parts in wrong.items()}
    )


def _codes(labels: np.ndarray, pool_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels of queries and of items as small integers, which compare faster than strings."""
    if labels is pool_labels:
        codes = np.unique(labels, return_inverse=True)[1].astype(np.int32)
        return codes, codes
    both = np.unique(np.concatenate([labels, pool_labels]), return_inverse=True)[1]
    query_codes, item_codes = np.split(both.astype(np.int32), [labels.size])
    return query_codes, item_codes


def _judged(relevance: Any, pool: Pool) -> RelevantLists:
    """Judgements as lists of relevant items; an item is no candidate for itself."""
    given = np.asarray(relevance)
    if given.ndim != 2 or given.shape[1] not in (2, 3) or given.dtype.kind not in "iuf":
        raise ValueError(
            "relevance: expected rows of query and item, and maybe a grade, got shape "
            f"{given.shape} and dtype {given.dtype}"
        )
    rows = given[:, :2].astype(np.int64)
    if not np.array_equal(rows, given[:, :2]):
        raise ValueError("relevance: expected row numbers of queries and items, got other numbers")
    n_queries, n_items = len(pool.queries), len(pool.items)
    graded = given.shape[1] == 3
    rows, grades = judged_rows(
        rows, given[:, 2] if graded else None, n_items, pool.own is not None, pool.queries
    )
    keep = grades > 0
    if pool.own is not None:
        keep &= rows[:, 0] != rows[:, 1]
    rows, grades = rows[keep], grades[keep]
    offsets = edges_of_sizes(np.bincount(rows[:, 0], minlength=n_queries))
    return RelevantLists(offsets, rows[:, 1].astype(item_type(n_items)), grades if graded else None)


def _measured(
    found: Iterable[RankedQueries],
    relevance: Relevance,
    n_candidates: np.ndarray,
    n_items: int,
    k: int | Sequence[int],
    normalizer: str,
) -> RankingMeasures:
    """All measures of all queries, from the ranks of their relevant items."""
    check_choice("normalizer", normalizer, NORMALIZERS)
    lengths = sorted({check_integer("k", one) for one in np.atleast_1d(k)})
    n_queries = len(relevance.sizes)
    used = relevance.sizes > 0
    if not used.any():
        raise ValueError(
            f"queries: expected at least one with a relevant candidate, got none among {n_queries}"
        )
    cutoffs = np.array([*lengths, max([n_items, *lengths])])  # the last one is the whole list
    attainable = np.minimum(cutoffs, relevance.sizes[:, None])
    first_rank = np.ones(n_queries, np.int64)
    ideal = np.ones((n_queries, len(cutoffs)))
    sums = np.zeros((n_queries, 3, len(cutoffs)))
    discounts = 1 / np.log2(np.arange(2, relevance.sizes.max() + 2))  # of the first ranks
    best = np.append(0.0, np.cumsum(discounts))
    for begin, end, offsets, ranks, grades, _ in found:
        gains = 1 / np.log2(ranks + 1.0)
        if grades is None:
            ideal[begin:end] = best[attainable[begin:end]]
        else:
            gains *= grades
            for row, (low, high) in enumerate(pairwise(offsets.tolist()), begin):
                from_best = np.sort(grades[low:high])[::-1] * discounts[: high - low]
                ideal[row] = np.append(0.0, np.cumsum(from_best))[attainable[row]]
        sum_at_cutoffs(offsets, ranks, gains, cutoffs, sums[begin:end])
        has_one = used[begin:end]
        first_rank[begin:end][has_one] = ranks[offsets[:-1][has_one]]
    hits, precisions, gain = sums.transpose(1, 0, 2)
    n_relevant = np.maximum(relevance.sizes, 1)
    # Without hits the sum of precisions is 0, so the divisor does not matter.
    divisors = {"relevant": attainable, "all": n_relevant[:, None], "hits": hits}[normalizer]
    average = precisions / np.maximum(divisors, 1)
    ndcg_at = np.divide(gain, ideal, out=np.zeros_like(gain), where=ideal > 0)
    per_query = {
        "mAP": average[:, -1],
        "MRR": 1 / first_rank,
        "nDCG": ndcg_at[:, -1],
        "random_P": n_relevant / np.maximum(n_candidates, 1),
    }
    for column, length in enumerate(lengths):
        per_query[f"P@{length}"] = hits[:, column] / length
        per_query[f"mAP@{length}"] = average[:, column]
        per_query[f"recall@{length}"] = hits[:, column] / n_relevant
        per_query[f"nDCG@{length}"] = ndcg_at[:, column]
    return RankingMeasures(
        {name: np.where(used, values, np.nan) for name, values in per_query.items()}, {}
    )


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
    pool = pool_of(model, queries, items, chunk_size, exclude_self=exclude_self)
    labels = _labels_of(pool.items, item_labels, "items", "item_labels")
    n_neighbors = check_integer("n_neighbors", n_neighbors)
    classes, codes = np.unique(labels, return_inverse=True)
    return classes[_voted(pool, codes, "n_neighbors", [n_neighbors])[0]]


def knn_predict_proba(
    model: Any,
    queries: Any,
    items: Any,
    item_labels: Any,
    n_neighbors: int = 1,
    chunk_size: int | None = None,
) -> np.ndarray:
    """Return the share of each class among the items nearest to each query.

    Parameters
    ----------
    model, queries, items, item_labels, n_neighbors, chunk_size
        See `knn_predict`.

    Returns
    -------
    array of shape (n_queries, n_classes)
        Columns are the sorted distinct labels of the items. The largest share of a row is that of the class
        that `knn_predict` answers: where several have as many neighbours, it is larger by 10^-9.

    Examples
    --------
    >>> pool, labels = [[4], [3], [2], [1]], ["dog", "cat", "cat", "dog"]
    >>> knn_predict_proba(lambda q, x: q @ x.T, [[1], [-1]], pool, labels, n_neighbors=3).round(3)
    array([[0.667, 0.333],
           [0.667, 0.333]])
    """
    pool = pool_of(model, queries, items, chunk_size)
    labels = _labels_of(pool.items, item_labels, "items", "item_labels")
    n_neighbors = check_integer("n_neighbors", n_neighbors)
    _check_neighbors("n_neighbors", [n_neighbors], pool)
    classes, codes = np.unique(labels, return_inverse=True)
    votes = np.zeros((len(pool.queries), len(classes)))
    for part in ranked_queries(pool, None, n_nearest=n_neighbors):
        rows = np.arange(part.begin, part.end)
        np.add.at(votes, (rows[:, None], codes[part.nearest.items]), 1)
        winners = _votes(part.nearest, codes, [n_neighbors])[0]
        most = votes[rows].max(axis=1, keepdims=True)
        votes[rows, winners] += 1e-9 * n_neighbors * ((votes[rows] == most).sum(axis=1) > 1)
    return votes / votes.sum(axis=1, keepdims=True)


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
    pool = pool_of(model, queries, items, chunk_size, exclude_self=exclude_self)
    labels = _labels_of(pool.queries, query_labels, "queries", "query_labels")
    pool_labels = _labels_of(pool.items, item_labels, "items", "item_labels")
    lengths = _check_k_values(k_values)
    truth, pool_codes = _codes(labels, pool_labels)
    wrong = _voted(pool, pool_codes, "k_values", lengths) != truth  # (n_k, n_queries)
    if not class_averaged:
        return wrong.mean(axis=1)
    return np.mean([wrong[:, truth == one].mean(axis=1) for one in np.unique(truth)], axis=0)


def _voted(pool: Pool, codes: np.ndarray, name: str, lengths: list[int]) -> np.ndarray:
    """The class that the nearest k items of each query vote for, for each k: shape (n_k, n_queries).

    `codes` are the items' classes, and `name` is the parameter that `lengths` come from.
    """
    _check_neighbors(name, lengths, pool)
    parts = ranked_queries(pool, None, n_nearest=max(lengths))
    return np.concatenate([_votes(part.nearest, codes, lengths) for part in parts], axis=1)


def _votes(nearest: Nearest, codes: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """The votes of the first k of some neighbours, for each k; the nearest come first."""
    if not len(lengths):
        return np.empty((0, len(nearest.items)), codes.dtype)
    voters, n_classes = codes[nearest.items], codes.max() + 1
    return np.array([majority(np.ascontiguousarray(voters[:, :k]), n_classes) for k in lengths])


def _check_neighbors(name: str, lengths: Sequence[int], pool: Pool) -> None:
    n_candidates, largest = pool.n_candidates, max(lengths, default=0)
    if largest > n_candidates:
        raise ValueError(f"{name}: expected at most the {n_candidates} candidates, got {largest}")


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
    n_rows = chunk_rows(None, values.shape[1])
    for start in range(0, values.shape[0], n_rows):
        part = np.abs(values[start : start + n_rows])
        if np.isnan(part).any():
            raise ValueError("M: expected numbers, got NaN")
        non_zero += int(np.count_nonzero(part > tol))
    return 1.0 - non_zero / (M.shape[0] * M.shape[1])


# -- scores in chunks ----------------------------------------------------------------------------


def _labels_of(rows: RowBlocks, labels: Any, name: str, labels_name: str) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (len(rows),):
        raise ValueError(
            f"{labels_name}: expected one for each of the {len(rows)} {name}, got shape {labels.shape}"
        )
    return labels
