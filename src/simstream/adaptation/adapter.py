"""A search that learns from feedback and, as far as can be measured, is never worse than not learning."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from .._engines.base import ctrl_c_waits
from .._kernels.ranking import blended_ranks
from ..ids import rows_by_id
from ..online.listwise import ListwiseSoftmax
from ..similarity.base import Similarity, all_products, one_row, row_products, same_rows
from ..similarity.learner import new_generator
from ..validation import (
    Items,
    check_choice,
    check_feature_names,
    check_integer,
    check_items,
    check_unchanged,
)
from .changes import DenseChanges, SparseChanges, typical_length
from .judgements import grades_by_query, inverse_propensities, own_rows
from .report import MEASURES, AdaptationReport, measures_of_ranks
from .searched import Ranked, SearchedItems
from .state import AdapterState, default_candidates, query_digest
from .trust import DEGREES, Trust


class Adapter(Similarity):
    """Adapt the ranking of an existing vector search to judgements or clicks; the index stays as it is.

    The baseline is the inner product s(q, x) = q'x: the cosine, for vectors of unit length. A few candidates
    learn from the feedback. Every query is scored *before* it is learnt from, by the baseline and by each
    candidate, the latter with several degrees of trust: the baseline's score plus a share of what the
    candidate would change. `transform_query` and `search` use the candidate and the trust whose gain over the
    baseline has the best lower confidence bound, and the baseline itself as long as no bound is positive (see
    `Trust`). Where a query has relevant items that nothing was learnt about before, the gain is also measured
    on these alone: choices that could harm on new items are not used.

    Parameters
    ----------
    candidates : list of `ListwiseSoftmax`, optional
        With other values of eta, temperature and n_steps; the adapter sees to the rest. By default three
        that differ in eta, with a temperature that fits the spread of the scores.
    trust : sequence of float
        Shares of the learnt change to try, each above 0 and at most 1.
    measure : "nDCG@10", "mAP", "P@1" or "recall@10"
        What a gain is measured by.
    selection : "bound" or "weights"
        "bound" uses the best lower confidence bound. "weights" draws a candidate and a trust, or the
        baseline, by exponential weights after every query: its regret is bounded even on streams made to
        mislead.
    caution : float
        Standard errors between a mean gain and its lower bound.
    clearance : float
        Standard errors by which the rise of relevant items in the ranking must be above zero before anything
        but the baseline is used.
    tolerance : float
        Loss on new items that is accepted.
    half_life : float or None
        Queries after which a gain counts half, so that an adapter that has become worse steps back.
    n_near, n_random : int
        Negatives of each query: the nearest items that are not known to be relevant, and random ones.
    pool_size : int
        Items that are ranked for each query while learning: a random part of them if there are more.
    random_state : None, int or Generator
    dtype : "float32" or "float64"
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to in `pair_score` and `triplet_margin`.

    Examples
    --------
    Queries and items are related in a way that inner products do not show:

    >>> import numpy as np
    >>> from simstream import Adapter
    >>> items = np.random.default_rng(0).normal(size=(300, 16))
    >>> queries = np.roll(items, 8, axis=1) + 0.5 * items
    >>> judgements = [(row, row) for row in range(200)]
    >>> adapter = Adapter(random_state=0).fit(queries, items, judgements)
    >>> adapter.chosen_ is not None
    True
    >>> right = np.arange(200, 300)
    >>> found = adapter.search(queries[right], items, k=1).indices[:, 0]
    >>> baseline = np.argmax(queries[right] @ items.T, axis=1)
    >>> bool(np.mean(found == right) > np.mean(baseline == right))
    True
    """

    _state: AdapterState | None = None
    _searched: SearchedItems | None = None

    def __init__(
        self,
        candidates: Any = None,
        *,
        trust: Any = DEGREES,
        measure: str = "nDCG@10",
        selection: str = "bound",
        caution: float = 1.0,
        clearance: float = 2.5,
        tolerance: float = 0.005,
        half_life: float | None = 500,
        n_near: int = 32,
        n_random: int = 64,
        pool_size: int = 50_000,
        random_state: Any = None,
        dtype: Any = "float32",
        preprocessor: Any = None,
    ) -> None:
        self.candidates = candidates
        self.trust = trust
        self.measure = measure
        self.selection = selection
        self.caution = caution
        self.clearance = clearance
        self.tolerance = tolerance
        self.half_life = half_life
        self.n_near = n_near
        self.n_random = n_random
        self.pool_size = pool_size
        self.random_state = random_state
        self.dtype = dtype
        self.preprocessor = preprocessor

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal."""
        super().check_parameters()
        check_choice("measure", self.measure, MEASURES)
        check_choice("selection", self.selection, ("bound", "weights"))
        for name in ("n_near", "n_random", "pool_size"):
            check_integer(name, getattr(self, name))
        shares = np.asarray(self.trust, np.float64)
        if shares.ndim != 1 or not len(shares) or not ((shares > 0) & (shares <= 1)).all():
            raise ValueError(f"trust: expected shares above 0 and at most 1, got {self.trust!r}")
        self._new_trust(1)
        if self.candidates is None:
            return
        if not len(self.candidates):
            raise ValueError("candidates: expected at least one learner, got none")
        for learner in self.candidates:
            if not isinstance(learner, ListwiseSoftmax):
                raise TypeError(
                    f"candidates: expected ListwiseSoftmax learners, got {type(learner).__name__}"
                )
            plain = ListwiseSoftmax(learner.eta, learner.temperature, learner.n_steps)
            if repr(learner) != repr(plain):
                raise ValueError(
                    "candidates: expected only eta, temperature and n_steps, the adapter sees to the rest; "
                    f"got {learner!r}"
                )

    def _new_trust(self, n_candidates: int) -> Trust:
        return Trust(
            n_candidates * len(self.trust),
            caution=self.caution,
            clearance=self.clearance,
            tolerance=self.tolerance,
            half_life=self.half_life,
        )

    # -- items --------------------------------------------------------------------------------

    def set_items(self, items: Any, ids: Sequence[Hashable] | None = None) -> Adapter:
        """Take the items that are searched; `fit` and `partial_fit` do it too.

        They are not saved with the adapter. When there are new items, call it again with all of them: without
        ids, the earlier items must keep their rows. Do not change the object in place: given again, it is not
        read again.

        Parameters
        ----------
        items : array, sparse matrix, table or `Items`, of shape (n_items, d)
        ids : sequence of n_items different strings or integers, optional
            How feedback names the items: by row numbers if there are none. By default those of `Items`.

        Returns
        -------
        self
        """
        self.check_parameters()
        searched = self._searched
        if searched is not None and searched.are(items, ids, self.pool_size, self.dtype):
            return self
        checked = check_items(items, "items", dtype=self.dtype)
        if not abs(checked.values).max() > 0:
            raise ValueError("items: expected some that are not zero, got only zeros")
        state = self._state
        if state is not None and checked.shape[1] != state.n_features:
            raise ValueError(
                f"items: expected {state.n_features} features, as before, got {checked.shape[1]}"
            )
        if state is not None and checked.is_sparse != state.is_sparse:
            kinds = ("an array", "a CSR matrix")
            raise TypeError(
                f"items: expected {kinds[state.is_sparse]}, as before, got {kinds[checked.is_sparse]}"
            )
        learnt = set() if state is None else state.learnt
        names = checked.ids if ids is None else ids
        check_feature_names(self._feature_names, checked, "items")
        searched = SearchedItems(checked, names, self.pool_size, learnt, given=(items, ids))
        self._state, self._searched = state or self._begun(checked), searched
        if checked.feature_names is not None:
            self.feature_names_in_ = checked.feature_names
        self._state.changes.forget_rows()
        return self

    def _begun(self, items: Items) -> AdapterState:
        """Nothing learnt yet, for these items."""
        if self.candidates is None:
            learners = default_candidates(items)
        else:
            learners = [clone(learner) for learner in self.candidates]
        changes: DenseChanges | SparseChanges
        if items.is_sparse:
            changes = SparseChanges(learners, items.shape[1])
        else:
            changes = DenseChanges(learners, items)
        trusts = self._new_trust(len(learners)), self._new_trust(len(learners))
        rng = new_generator(self.random_state)
        return AdapterState(
            items.shape[1], typical_length(items), changes, trusts, rng, self._fixed()
        )

    def _items_to_search(self) -> SearchedItems:
        if self._searched is None:
            raise ValueError(
                "items: there are none to search yet; call set_items(items) or fit first"
            )
        return self._searched

    # -- learning -----------------------------------------------------------------------------

    def fit(
        self,
        queries: Any,
        items: Any,
        relevance: Any,
        *,
        query_ids: Sequence[Hashable] | None = None,
        item_ids: Sequence[Hashable] | None = None,
        own_items: Sequence[Hashable] | None = None,
    ) -> Adapter:
        """Forget what was learnt and learn from judgements, one query after the other.

        Parameters
        ----------
        queries : array, sparse matrix, table or `Items`, of shape (n_queries, d)
        items : array, sparse matrix, table or `Items`, of shape (n_items, d)
        relevance : sequence of (query, item) or (query, item, grade)
            Row numbers, or ids of `Items` (or `query_ids` and `item_ids`), in order of arrival. An item
            without a grade, or with a grade above 0, is relevant; one with another grade is not. How high a
            grade is counts in nDCG, not in what is learnt. The judgements of a query are taken together,
            where its first one is; of several on one item the last counts. Queries without a relevant item
            are skipped.
        query_ids, item_ids : sequences of different strings or integers, optional
        own_items : sequence of n_queries rows or ids of items, or None where there is none, optional
            Where queries are items themselves, the item that each of them is: it is neither ranked nor learnt
            from.

        Returns
        -------
        self
        """
        before = vars(self).copy()
        self._state = self._searched = None
        self.__dict__.pop("feature_names_in_", None)
        try:
            return self.partial_fit(
                queries,
                relevance,
                items=items,
                query_ids=query_ids,
                item_ids=item_ids,
                own_items=own_items,
            )
        except (TypeError, ValueError):
            self.__dict__ = before
            raise

    def partial_fit(
        self,
        queries: Any,
        relevance: Any,
        *,
        items: Any = None,
        query_ids: Sequence[Hashable] | None = None,
        item_ids: Sequence[Hashable] | None = None,
        own_items: Sequence[Hashable] | None = None,
    ) -> Adapter:
        """Go on learning from judgements of more queries; same input as `fit`.

        Without `items`, those of the last call stay.
        """
        before = vars(self).copy()
        try:
            if items is not None:
                self.set_items(items, item_ids)
            elif item_ids is not None:
                raise ValueError("item_ids: expected them together with items, got no items")
            searched = self._items_to_search()
            rows = self._read_queries(queries, "queries")
            n_queries = rows.shape[0]
            if query_ids is None and isinstance(queries, Items):
                query_ids = queries.ids
            query_rows = rows_by_id(query_ids, n_queries, "query_ids")
            judged = grades_by_query(relevance, query_rows, n_queries, searched)
            own = own_rows(own_items, n_queries, searched)
        except (TypeError, ValueError):
            self.__dict__ = before
            raise
        names = range(n_queries) if query_rows is None else list(query_rows)
        for row, grades in judged.items():
            grades.pop(own[row], None)
            self._learn(rows[row : row + 1], grades, name=names[row], own=own[row])
        return self

    def learn_one(
        self,
        query: Any,
        shown: Sequence[Hashable],
        clicked: Iterable[Hashable],
        *,
        propensities: Any = None,
        name: Hashable = None,
    ) -> Adapter:
        """Learn from one search: which items were shown, and which of them were clicked.

        Clicked items are relevant; items shown above the last click and not clicked are negatives. The gain
        is measured on the order of the shown items alone. A search without a click is skipped.

        Parameters
        ----------
        query : vector, or CSR matrix of one row
        shown : ids (or rows) of the items shown, from the top
        clicked : those of them that were clicked
        propensities : sequence of float, optional
            Probability that each of the shown items was looked at. The search counts by the mean inverse of
            its clicks, at most 10 times, because clicks far down are rare (Joachims, Swaminathan, Schnabel.
            Unbiased learning-to-rank with biased feedback. WSDM 2017).
        name : string or integer, optional
            What the report calls the query; the number of the query by default.

        Returns
        -------
        self
        """
        searched = self._items_to_search()
        row = self._read_queries(one_row(query), "query")
        order = [searched.row(item, "shown") for item in shown]
        if len(set(order)) < len(order):
            raise ValueError("shown: expected different items, got one of them twice")
        chosen = {searched.row(item, "clicked") for item in clicked}
        if not chosen <= set(order):
            raise ValueError("clicked: expected items that were shown, got others")
        weights = inverse_propensities(propensities, len(order))
        places = [place for place, item in enumerate(order) if item in chosen]
        last = max(places, default=-1)
        grades = {item: float(item in chosen) for item in order[: last + 1]}
        weight = float(np.mean([weights[place] for place in places])) if places else 1.0
        if isinstance(name, np.generic):
            name = name.item()
        self._learn(row, grades, shown=np.array(order, np.int64), name=name, weight=weight)
        return self

    def _learn(
        self,
        query: Any,
        grades: dict[int, float],
        *,
        name: Hashable,
        shown: Any = None,
        own: int = -1,
        weight: float = 1.0,
    ) -> None:
        """Measure the gain on one query, then learn from it.

        Parameters
        ----------
        query : one row
        grades : of the judged items, by row
        name : what the report calls the query
        shown : the rows that are ranked to measure the gain; None for all
        own : row of the item that the query is itself, -1 if it is none
        weight : how often the query counts, and what the steps are multiplied by
        """
        state, searched = self._unchanged(), self._items_to_search()
        relevant = np.array([row for row, grade in grades.items() if grade > 0], np.int64)
        rejected = [row for row, grade in grades.items() if not grade > 0]
        if not len(relevant) or not abs(query).max() > 0:
            state.n_skipped += 1
            return
        # Its length makes no difference to the ranking, and must not make one to the steps.
        query = state.rescaled(query)[0]
        gains = np.array([grades[row] for row in relevant.tolist()])
        pool = searched.pool_with(relevant)
        changes = state.changes.changes(query)
        moved = _stacked([query, *changes])
        scores = pool.scores(moved)
        digest = query_digest(query)
        known = state.known.get(digest, set())
        with ctrl_c_waits():  # the candidates, the trust and the counts always agree
            ranked, by_score = pool, scores
            if shown is not None:
                ranked = searched.only(shown)
                by_score = ranked.scores(moved)
            self._measure(
                ranked,
                by_score,
                relevant,
                gains,
                name=name,
                own=own,
                weight=weight,
                is_new=not known,
            )
            state.known[digest] = known = known | {searched.keys[row] for row in relevant}
            avoided = np.append(searched.rows_of(known), own)
            others = searched.random_rows(state.rng, self.n_random, avoided)
            lists = []
            for by_change in scores[1:]:
                near = pool.nearest(scores[0] + by_change, self.n_near, avoided)
                negatives = np.unique(np.concatenate([rejected, near, others]).astype(np.int64))
                lists.append((relevant, negatives[~np.isin(negatives, relevant)]))
            state.changes.learn(query, changes, searched.items, lists, weight)
            state.learnt.update(searched.keys[row] for row in relevant)
            searched.is_learnt[relevant] = True
            state.n_queries += 1
            state.n_judgements += len(grades)
            if self.selection == "weights":
                chances = state.trust.weights()
                drawn = int(state.rng.choice(len(chances), p=chances))
                state.drawn = drawn if drawn < state.trust.n_options else None

    def _measure(
        self,
        ranked: Ranked,
        scores: np.ndarray,
        relevant: np.ndarray,
        grades: np.ndarray,
        *,
        name: Hashable,
        own: int,
        weight: float,
        is_new: bool,
    ) -> None:
        """Compare all options with the baseline on a query; `is_new` if nothing was learnt from it yet."""
        state, searched = self._fitted(), self._items_to_search()
        is_own = ranked.rows == own
        by_options, by_baseline, rise = self._measured(ranked, scores, relevant, grades, is_own)
        column = MEASURES.index(self.measure)
        gains = by_options[:, column] - by_baseline[column]
        if is_new:
            on_new = None
            is_unknown = ~searched.is_learnt[relevant]
            if is_unknown.any():
                left_out = searched.is_learnt[ranked.rows] | is_own
                options, baseline, _ = self._measured(
                    ranked, scores, relevant[is_unknown], grades[is_unknown], left_out
                )
                on_new = options[:, column] - baseline[column]
            choice = self._choice()
            used = by_baseline if choice is None else by_options[choice]
            state.history.add(name, by_baseline, used, choice, bool(is_unknown.any()))
            state.trust.update(gains, rise, on_new, weight=weight)
        state.overall.update(gains, rise, weight=weight)

    def _measured(
        self,
        ranked: Ranked,
        scores: np.ndarray,
        relevant: np.ndarray,
        weights: np.ndarray,
        left_out: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All measures of each option and of the baseline, and how far relevant items rise with each option.

        The rise is that of the logarithm of their ranks: it shows on every query, wherever the items are,
        while a measure of the first ten shows only what enters or leaves them.
        """
        places = ranked.places(relevant)
        shares = np.array([*self.trust, 0.0])
        ranks = np.empty((len(scores) - 1, len(shares), len(places)), np.int64)
        blended_ranks(scores[0], scores[1:], shares, ranked.rows, places, left_out, ranks)
        measured = measures_of_ranks(ranks, weights)
        depth = np.log2(ranks).mean(axis=-1) / np.log2(len(ranked.rows) + 1)
        rise = (depth[:, -1:] - depth[:, :-1]).ravel()
        return measured[:, :-1].reshape(-1, len(MEASURES)), measured[0, -1], rise

    # -- what is used -------------------------------------------------------------------------

    def _fitted(self) -> AdapterState:
        if self._state is None:
            raise NotFittedError("this Adapter has no items yet: call fit or set_items first")
        return self._state

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    def _fixed(self) -> dict[str, Any]:
        """Parameters that gains were measured with."""
        return {
            "measure": self.measure,
            "trust": [float(share) for share in self.trust],
            "selection": self.selection,
        }

    def _unchanged(self) -> AdapterState:
        """What was learnt; raises if parameters have changed since that it depends on."""
        state = self._fitted()
        for name, value in self._fixed().items():
            check_unchanged(name, state.fixed[name], value)
        return state

    def _choice(self) -> int | None:
        state = self._unchanged()
        if self.selection == "weights":
            return state.drawn
        # Queries that come again are no evidence of a gain, but may well be evidence of a loss.
        return state.trust.best(state.overall.passing())

    @property
    def chosen_(self) -> tuple[int, float] | None:
        """Number of the candidate that is used, and the trust in it; None for the baseline."""
        choice = self._choice()
        if choice is None:
            return None
        candidate, share = divmod(choice, len(self.trust))
        return candidate, float(self.trust[share])

    @property
    def candidates_(self) -> list[Any]:
        """The candidates, as far as they have learnt."""
        return self._fitted().changes.learners

    @property
    def n_queries_(self) -> int:
        """Queries learnt from."""
        return self._fitted().n_queries

    @property
    def n_judgements_(self) -> int:
        """Judged items of these queries."""
        return self._fitted().n_judgements

    @property
    def n_skipped_(self) -> int:
        """Queries skipped: zero vectors, and queries without a relevant item."""
        return self._fitted().n_skipped

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return (self._fitted().n_features,) * 2

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of scores, and of queries and items as they are used."""
        return np.dtype(self.dtype)

    def transform_query(self, queries: Any) -> Any:
        """Map queries so that plain inner products with the unchanged items are the adapted similarity.

        Returns
        -------
        array or CSR matrix of shape (n_queries, d)
        """
        return self._transform(self._read_rows(queries, "queries", 0))

    def _read_queries(self, queries: Any, name: str) -> Any:
        """Checked queries of the same kind as the items: an array, or a CSR matrix."""
        return self._as_items(self._read_rows(queries, name, 0))

    def _as_items(self, rows: Any) -> Any:
        if self._fitted().is_sparse:
            return sp.csr_matrix(rows)
        return rows.toarray() if sp.issparse(rows) else rows

    def _transform(self, rows: Any) -> Any:
        chosen = self.chosen_
        if chosen is None:
            return rows
        candidate, share = chosen
        state = self._fitted()
        queries, lengths = state.rescaled(self._as_items(rows))
        change = state.changes.change(candidate, queries) * lengths
        if sp.issparse(rows):
            rows = rows.toarray()
        return rows + self.dtype_.type(share) * change

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        return row_products(self._transform(queries), items)

    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        return self._transform, same_rows, all_products

    def report(self, texts: Any = None) -> AdaptationReport:
        """What adapting has gained so far, measured on queries before they were learnt from.

        Parameters
        ----------
        texts : mapping from query names to texts, or sequence of texts by row, optional
            Shown for the queries that won and lost most.
        """
        state = self._fitted()
        return AdaptationReport.of(
            state.history, state.trust, self.chosen_, self._choice(), self.measure, texts
        )

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return self._fitted().saved()

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.check_parameters()
        self._state = AdapterState.restored(header, arrays, self._new_trust)


def _stacked(rows: list[Any]) -> Any:
    if not any(map(sp.issparse, rows)):
        return np.concatenate(rows)
    if all(map(sp.issparse, rows)):
        return sp.vstack(rows, "csr")
    return np.concatenate([row.toarray() if sp.issparse(row) else row for row in rows])
