"""Triplets and lists whose candidates are drawn at random or by the current model: near ones teach more.

Most random negatives are far away: a model that has learnt a little ranks them correctly and learns nothing
more from them. A near draw scores a few random candidates by the current model and takes the one wanted most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..validation import check_integer, check_items, check_number

#: Anchors scored at a time against the candidates of all of them: products of matrices are that much faster
#: than products of rows that scores nobody asked for cost little.
_ANCHORS = 32

#: Scores held at a time where all items are scored: 32 MB.
_SCORES = 2**22

#: How much each candidate is wanted, from their scores (n, c) and the scores of the positives (n,).
Wanted = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: How much each positive is wanted, from their scores (n, c).
WantedPositive = Callable[[np.ndarray], np.ndarray]


def _nearest(scores: np.ndarray, positive: np.ndarray | None = None) -> np.ndarray:
    return scores


def _nearest_behind(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    return np.where(scores < positive[:, None], scores, -np.inf)


#: Negatives by name; None draws them at random.
NEGATIVES: dict[str, Wanted | None] = {
    "random": None,
    "near": _nearest,
    "semi-hard": _nearest_behind,
}

#: Positives by name.
POSITIVES: dict[str, WantedPositive | None] = {"random": None, "near": _nearest}


class NearSampler(ABC):
    """Base of samplers of triplets and lists: a generator, and candidates chosen by the current model.

    A subclass says which anchors, positives and negatives there are. It has a fixed number of uniforms for
    each tuple, in stream order, so that drawing n tuples at once or in several calls gives the same stream.

    Near tuples are drawn `refresh` at a time, by the model as it is at that moment, and handed out as they
    are asked for; those not handed out yet are part of the `state`.
    """

    _rng: np.random.Generator

    # -- what there is to draw from ---------------------------------------------------------------

    @abstractmethod
    def _draw_anchors(self, u: np.ndarray) -> np.ndarray:
        """Anchors from uniforms."""

    @abstractmethod
    def _draw_positives(self, anchors: np.ndarray, u: np.ndarray) -> np.ndarray:
        """A positive of each anchor from uniforms."""

    @abstractmethod
    def _n_negatives(self, anchors: np.ndarray) -> np.ndarray:
        """The number of items that may be negatives of each anchor."""

    @abstractmethod
    def _negatives_at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The negatives of each anchor at these places among all of them."""

    @abstractmethod
    def _fewest_negatives(self) -> tuple[int, str]:
        """The smallest number of negatives of any anchor, and what that anchor is called."""

    # -- drawing ----------------------------------------------------------------------------------

    def _set_mining(
        self,
        negatives: Any,
        positives: Any,
        share: float,
        queries: Any,
        items: Any,
        n_rows: tuple[int | None, int],
        model: Any,
        candidates: int,
        refresh: int,
    ) -> None:
        """Check and keep the parameters of mining; n_rows are the expected rows of queries and items."""
        self._wanted = _named("negatives", negatives, NEGATIVES)
        self._wanted_positive = _named("positives", positives, POSITIVES)
        self.negatives, self.positives = negatives, positives
        self.share = check_number("share", share, exclusive=False)
        if share > 1:
            raise ValueError(f"share: expected a number from 0 to 1, got {share!r}")
        self.candidates = check_integer("candidates", candidates)
        self.refresh = check_integer("refresh", refresh)
        self.model = model
        self._waiting: dict[int, np.ndarray] = {}
        if not self.is_mining:
            return
        if items is None or queries is None:
            missing = "items" if items is None else "queries"
            raise ValueError(
                f"{missing}: expected the rows that the model scores to find near ones, got None"
            )
        self._right = check_items(items, "items")
        self._left = self._right if queries is items else check_items(queries, "queries")
        for name, rows, n in zip(
            ("queries", "items"), (self._left, self._right), n_rows, strict=True
        ):
            if n is not None and rows.shape[0] != n:
                raise ValueError(f"{name}: expected {n} rows, got {rows.shape[0]}")

    @property
    def is_mining(self) -> bool:
        """Whether some draws depend on the model."""
        return (self._wanted is not None or self._wanted_positive is not None) and self.share > 0

    @property
    def until_refresh(self) -> int | None:
        """How many triplets may be drawn before the model is looked at again, None if it never is.

        A loop that draws at most that many and learns them before it draws again gives the same stream
        however it is cut.
        """
        if not self.is_mining:
            return None
        return len(self._waiting.get(1, ())) or self.refresh

    @property
    def most_negatives(self) -> int:
        """How many different negatives a list can have, whatever its anchor."""
        return self._fewest_negatives()[0]

    def draw_positives(self, anchors: np.ndarray, n: int) -> np.ndarray:
        """Return n random positives of each anchor, shape (len(anchors), n); the same one may come twice."""
        u = self._rng.random((len(anchors), check_integer("n", n, minimum=0)))
        return self._draw_positives(np.asarray(anchors)[:, None], u)

    def draw(self, n: int) -> np.ndarray:
        """Return the next n triplets, an int64 array of shape (n, 3)."""
        return self._draw(check_integer("n", n, minimum=0), 1)

    def draw_lists(self, n: int, k: int) -> np.ndarray:
        """Return the next n lists (anchor, positive, k different negatives), shape (n, 2 + k).

        The share of near ones applies to the positive and to each negative; among the negatives, near ones
        come first.
        """
        n, k = check_integer("n", n, minimum=0), check_integer("k", k)
        fewest, whose = self._fewest_negatives()
        if k > fewest:
            raise ValueError(f"k: expected at most {fewest} negatives, as {whose} has, got {k}")
        return self._draw(n, k)

    def _draw(self, n: int, k: int) -> np.ndarray:
        if not self.is_mining:
            return self._draw_random(n, k)
        parts, missing = [], n
        while True:
            waiting = self._waiting.get(k, np.empty((0, 2 + k), np.int64))
            parts.append(waiting[:missing])
            missing -= len(parts[-1])
            self._waiting[k] = waiting[len(parts[-1]) :]
            if not missing:
                return np.concatenate(parts)
            self._waiting[k] = self._draw_mined(self.refresh, k)

    def _draw_random(self, n: int, k: int) -> np.ndarray:
        u = self._rng.random((n, 2 + k))
        anchors = self._draw_anchors(u[:, 0])
        positives = self._draw_positives(anchors, u[:, 1])
        places = _distinct(u[:, 2:], self._n_negatives(anchors))
        negatives = self._negatives_at(anchors[:, None], places)
        return np.column_stack([anchors, positives, negatives])

    def _draw_mined(self, n: int, k: int) -> np.ndarray:
        """Draw at random, then replace the share of positives and negatives that is to be near."""
        lists = self._draw_random(n, k)
        coin = self._rng.random(n)
        n_near = (self.share * k + coin).astype(np.int64)  # on average, exactly the share
        rows = np.flatnonzero(n_near)
        anchors, near = lists[rows, 0], n_near[rows]
        # What is to be replaced is a candidate itself, with its share of others.
        positives, negatives = lists[rows, 1:2], lists[rows, 2 : 2 + near.max(initial=0)]
        if self._wanted_positive is not None:
            u = self._rng.random((len(rows), self.candidates - 1))
            more = self._draw_positives(anchors[:, None], u)
            positives = np.concatenate([positives, more], axis=1)
        if self._wanted is not None:
            u = self._rng.random((len(rows), (self.candidates - 1) * negatives.shape[1]))
            places = scaled(u, self._n_negatives(anchors)[:, None])
            more = self._negatives_at(anchors[:, None], places)
            negatives = np.concatenate([negatives, more], axis=1)
        scores = self._scores(anchors, np.concatenate([positives, negatives], axis=1))
        of_positives, of_negatives = np.split(scores, [positives.shape[1]], axis=1)
        if self._wanted_positive is not None:
            wanted = _checked(self._wanted_positive(of_positives), positives.shape)
            is_near = (coin[rows] >= 1 - self.share).astype(np.int64)
            lists[rows, 1:2] = _replaced(lists[rows, 1:2], positives, wanted, is_near)
        if self._wanted is not None:
            place = np.argmax(positives == lists[rows, 1:2], axis=1)[:, None]
            of_chosen = np.take_along_axis(of_positives, place, axis=1)[:, 0]
            wanted = _checked(self._wanted(of_negatives, of_chosen), negatives.shape)
            lists[rows, 2:] = _replaced(lists[rows, 2:], negatives, wanted, near)
        return lists

    def _scores(self, anchors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Scores of the candidates (n, c) of each anchor by the model as it is now."""
        scores = np.empty(candidates.shape)
        score = _scorer(self.model)
        n_items = self._right.shape[0]
        all_at_once = _ANCHORS * candidates.shape[1] >= n_items
        step = max(_ANCHORS, _SCORES // n_items) if all_at_once else _ANCHORS
        for begin in range(0, len(anchors), step):
            part = slice(begin, begin + step)
            queries = self._left.rows(anchors[part])
            if all_at_once:
                found = score(queries, self._right.values)
                columns = candidates[part]
            else:
                needed, columns = np.unique(candidates[part], return_inverse=True)
                found = score(queries, self._right.rows(needed))
                columns = columns.reshape(candidates[part].shape)
            scores[part] = np.take_along_axis(np.asarray(found), columns, axis=1)
        return scores

    # -- resuming ---------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """The generator's state and the tuples drawn but not handed out: numbers and strings only."""
        state = dict(self._rng.bit_generator.state)
        waiting = {str(k): lists.tolist() for k, lists in self._waiting.items() if len(lists)}
        return state | ({"waiting": waiting} if waiting else {})

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        waiting = {
            int(k): np.array(lists, np.int64).reshape(-1, 2 + int(k))
            for k, lists in state.get("waiting", {}).items()
        }
        own = {key: value for key, value in state.items() if key != "waiting"}
        self._rng.bit_generator.state = own
        self._waiting = waiting


def scaled(u: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """Integers below n from uniforms in [0, 1); the minimum guards the rounding of u close to 1."""
    return np.minimum((u * n).astype(np.int64), np.asarray(n) - 1)


def _distinct(u: np.ndarray, n: np.ndarray) -> np.ndarray:
    """k different integers below n for each row of uniforms (rows, k), every set equally likely.

    Floyd's method takes exactly k uniforms: where the integer drawn below n - k + j + 1 is there already, the
    largest of them, n - k + j, is new.
    """
    k = u.shape[1]
    found = np.empty(u.shape, np.int64)
    for j in range(k):
        largest = n - k + j
        drawn = scaled(u[:, j], largest + 1)
        taken = (found[:, :j] == drawn[:, None]).any(axis=1)
        found[:, j] = np.where(taken, largest, drawn)
    return found


def _replaced(
    negatives: np.ndarray, found: np.ndarray, wanted: np.ndarray, n_near: np.ndarray
) -> np.ndarray:
    """The negatives (n, k) with the first n_near of each row replaced by the candidates wanted most.

    The first columns of the candidates are the negatives to be replaced, which stay where no others are
    wanted. No item comes twice in a row.
    """
    most = n_near.max(initial=0)
    wanted[:, :most] = np.maximum(wanted[:, :most], -np.finfo(np.float64).max)
    order = np.argsort(found, axis=1, kind="stable")
    ordered = np.take_along_axis(found, order, axis=1)
    repeated = np.zeros(found.shape, bool)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    for place in range(n_near.min(initial=most), negatives.shape[1]):  # those that stay
        stays = (n_near <= place)[:, None]
        repeated |= (found == negatives[:, place, None]) & stays
    wanted[repeated] = -np.inf
    best = np.argsort(-wanted, axis=1, kind="stable")[:, :most]
    chosen = np.take_along_axis(found, best, axis=1)
    replaced = negatives.copy()
    is_near = np.arange(most) < n_near[:, None]
    replaced[:, :most] = np.where(is_near, chosen, negatives[:, :most])
    return replaced


def _named(name: str, given: Any, known: dict[str, Any]) -> Any:
    if callable(given):
        return given
    if not isinstance(given, str) or given not in known:
        expected = ", ".join(map(repr, known))
        raise ValueError(f"{name}: expected one of {expected} or a function, got {given!r}")
    return known[given]


def _checked(wanted: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of what a function made of scores, which is a number for each of them."""
    wanted = np.array(wanted, np.float64)
    if wanted.shape != shape:
        raise ValueError(
            "negatives or positives: expected a function that returns a number for each candidate, shape "
            f"{shape}, got shape {wanted.shape}"
        )
    if np.isnan(wanted).any():
        raise ValueError("negatives or positives: expected numbers or -inf, got NaN")
    return wanted


def _scorer(model: Any) -> Callable[[Any, Any], Any]:
    """The function that scores all queries with all items: that of the model, once it has learnt."""
    is_fitted = getattr(model, "__sklearn_is_fitted__", None)
    if model is None or (is_fitted is not None and not is_fitted()):
        return _inner_products
    return model.score_items


def _inner_products(queries: Any, items: Any) -> np.ndarray:
    products = queries @ items.T
    return products.toarray() if sp.issparse(products) else products
