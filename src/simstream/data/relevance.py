"""Draw triplets and lists from relevance judgements: which items are relevant to which query."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..validation import check_index_tuples, check_integer, tuples_by_rows
from .mining import NearSampler, scaled


class RelevanceSampler(NearSampler):
    """Draw triplets (query, relevant, not relevant), or lists, from relevance judgements.

    The query is uniform over those judged, so that each counts as much as in a mean over queries, however
    many items are relevant to it. The relevant item is drawn in proportion to its grade, the other one
    uniformly over all items not judged relevant to the query. Near draws, the state and the stream are as in
    `TripletSampler`.

    Parameters
    ----------
    relevance : (n, 2) integers, or ids
        Row of the query and row of the relevant item, or their ids where `queries` and `items` are `Items`
        with ids. Of several judgements of the same two, the last counts.
        Clicks are judgements too: the rows of the query and of the item clicked.
    n_items : int, optional
        Number of items; None where `items` are given.
    random_state : None, int or numpy Generator
    grades : array of shape (n,), optional
        How relevant each is, 1 if not given. Judgements with a grade of 0 or less say that an item is not
        relevant.
    same_rows : bool
        Whether queries are items: row i of both is the same thing, which is never drawn as its own negative.
    queries, items : arrays or CSR matrices, optional
        What the model scores; only for near draws. With `same_rows`, `items` is enough.
    negatives, positives, share, model, candidates, refresh
        As in `TripletSampler`.

    Attributes
    ----------
    left_out : list of int
        Rows of the queries judged from which nothing can be drawn: no item is relevant to them, or all are.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS, RelevanceSampler
    >>> rng = np.random.default_rng(0)
    >>> queries, items = rng.normal(size=(20, 8)), rng.normal(size=(100, 8))
    >>> relevance = [[q, i] for q in range(20) for i in (q, 99 - q)]
    >>> learner = OASIS(preprocessor=(queries, items))
    >>> sampler = RelevanceSampler(
    ...     relevance, random_state=0, queries=queries, items=items, model=learner, negatives="near"
    ... )
    >>> for _ in range(3):
    ...     learner = learner.partial_fit(sampler.draw(1000))
    >>> query, relevant, *others = sampler.draw_lists(1, 5)[0].tolist()
    >>> relevant in (query, 99 - query), len(set(others) - {query, 99 - query})
    (True, 5)
    """

    def __init__(
        self,
        relevance: Any,
        n_items: int | None = None,
        random_state: Any = None,
        *,
        grades: Any = None,
        same_rows: bool = False,
        queries: Any = None,
        items: Any = None,
        negatives: Any = "random",
        positives: Any = "random",
        share: float = 0.5,
        model: Any = None,
        candidates: int = 8,
        refresh: int = 1000,
    ) -> None:
        if items is None and n_items is None:
            raise ValueError("n_items: expected the number of items (or items), got None")
        self._n_items = (
            int(items.shape[0] if hasattr(items, "shape") else len(items))
            if n_items is None
            else check_integer("n_items", n_items)
        )
        if same_rows and queries is None:
            queries = items
        self.same_rows = same_rows
        relevance = judged_by_rows(relevance, queries, items)
        rows, grade = judged_rows(relevance, grades, self._n_items, same_rows, queries)
        self._rng = np.random.default_rng(random_state)
        self._group(rows, grade)
        self._set_mining(
            negatives,
            positives,
            share,
            queries,
            items,
            (None, self._n_items),
            model,
            candidates,
            refresh,
        )

    def _group(self, rows: np.ndarray, grade: np.ndarray) -> None:
        """Sort what was judged by query; see the comments for the arrays that are kept."""
        judged = np.unique(rows[:, 0])
        relevant = rows[grade > 0]
        excluded = relevant  # from the negatives
        if self.same_rows:
            itself = np.column_stack([judged, judged])
            excluded = np.unique(np.concatenate([relevant, itself]), axis=0)
        n_excluded = np.bincount(np.searchsorted(judged, excluded[:, 0]), minlength=len(judged))
        n_relevant = np.bincount(np.searchsorted(judged, relevant[:, 0]), minlength=len(judged))
        usable = (n_relevant > 0) & (n_excluded < self._n_items)
        self.left_out: list[int] = judged[~usable].tolist()
        if not usable.any():
            raise ValueError(
                "relevance: expected a query with a relevant item and with one that is not, got none in "
                f"{len(judged)} queries of {self._n_items} items"
            )
        # Queries drawn, in order; all arrays below are by their place in it.
        self._drawn = judged[usable]
        self._n_possible = self._n_items - n_excluded[usable]
        # Relevant items by query, where those of each query begin and end, and the sums of their grades.
        keep = np.isin(relevant[:, 0], self._drawn)
        self._relevant = relevant[keep, 1]
        self._ends = np.cumsum(n_relevant[usable])
        self._begins = self._ends - n_relevant[usable]
        self._sums = np.concatenate([[0.0], np.cumsum(grade[grade > 0][keep])])
        # The place of a negative is its row minus the number of excluded items before it. Each excluded item
        # is here as the number of negatives before it, in one ascending array for all queries.
        excluded = excluded[np.isin(excluded[:, 0], self._drawn)]
        counts = n_excluded[usable]
        self._first_excluded = np.cumsum(counts) - counts
        query = np.searchsorted(self._drawn, excluded[:, 0])
        within = np.arange(len(excluded)) - self._first_excluded[query]
        self._before = query * self._n_items + excluded[:, 1] - within

    def _draw_anchors(self, u: np.ndarray) -> np.ndarray:
        return self._drawn[scaled(u, len(self._drawn))]

    def _draw_positives(self, anchors: np.ndarray, u: np.ndarray) -> np.ndarray:
        query = np.searchsorted(self._drawn, anchors)
        begin, end = self._begins[query], self._ends[query]
        target = self._sums[begin] + u * (self._sums[end] - self._sums[begin])
        place = np.searchsorted(self._sums, target, side="right") - 1
        return self._relevant[np.clip(place, begin, end - 1)]

    def _n_negatives(self, anchors: np.ndarray) -> np.ndarray:
        return self._n_possible[np.searchsorted(self._drawn, anchors)]

    def _negatives_at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        query = np.searchsorted(self._drawn, anchors)
        passed = np.searchsorted(self._before, query * self._n_items + places, side="right")
        return places + passed - self._first_excluded[query]

    def _fewest_negatives(self) -> tuple[int, str]:
        fewest = int(np.argmin(self._n_possible))
        return int(self._n_possible[fewest]), f"query {self._drawn[fewest]}"


def judged_by_rows(relevance: Any, queries: Any, items: Any) -> Any:
    """Judgements by rows, where queries or items have ids; as they are where neither has.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Items
    >>> judged_by_rows([(0, "b", 2.0), (1, "a", 1.0)], None, Items(np.eye(2), ids=["a", "b"])).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]]
    """
    if not any(getattr(side, "has_ids", False) for side in (queries, items)):
        return relevance
    names = relevance if hasattr(relevance, "dtype") else np.array(relevance, object)
    if names.ndim != 2 or names.shape[1] not in (2, 3):
        raise ValueError(
            f"relevance: expected rows of query and item, and maybe a grade, got shape {names.shape}"
        )
    rows = tuples_by_rows(names[:, :2], queries, items, "relevance")
    if names.shape[1] == 2:
        return rows
    return np.column_stack([rows.astype(np.float64), names[:, 2].astype(np.float64)])


def judged_rows(
    relevance: Any, grades: Any, n_items: int, same_rows: bool, queries: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Judgements sorted by query and item, the last of each two, and their grades."""
    rows = np.asarray(relevance)
    if same_rows:
        n_queries = n_items
    elif queries is not None:
        n_queries = int(queries.shape[0] if hasattr(queries, "shape") else len(queries))
    else:  # any row there is
        n_queries = int(rows.max()) + 1 if rows.size and rows.dtype.kind in "iu" else 1
    rows = check_index_tuples(rows, (max(n_queries, 1), n_items), ("query", "item"))
    grade = np.ones(len(rows))
    if grades is not None:
        given = np.asarray(grades)
        if given.shape != (len(rows),) or given.dtype.kind not in "biuf":
            raise ValueError(
                f"grades: expected a number for each of {len(rows)} judgements, got shape {given.shape} "
                f"and dtype {given.dtype}"
            )
        grade = given.astype(np.float64)
        if not np.isfinite(grade).all():
            raise ValueError(
                f"grades: expected finite numbers, got {grade[~np.isfinite(grade)][0]}"
            )
        if not (grade > 0).any():
            raise ValueError("grades: expected one above 0, which says relevant, got none")
    key = rows[:, 0] * n_items + rows[:, 1]
    last = len(rows) - 1 - np.unique(key[::-1], return_index=True)[1]  # in ascending order of keys
    return rows[last], grade[last]
