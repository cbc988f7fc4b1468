"""Ordinal embedding: places for items that are known by comparisons alone, and have no features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from .._engines.base import check_array
from ..persistence import save_model
from ..similarity.base import SearchResult, are_quadruplets, short_repr
from ..similarity.learner import new_generator
from ..similarity.mahalanobis import Mahalanobis
from ..validation import check_choice, check_finite, check_index_tuples, check_integer, check_number

#: Added to squared distances under a root: equal places have no direction.
_TINY = 1e-12

#: Dimensions that the first start has more than are wanted.
_MORE = 2

#: Item numbers that are taken for granted; larger ones are likely to be ids.
_MANY_ITEMS = 10**6

_Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


class OrdinalEmbedding(BaseEstimator):
    """Places in a space for items that people have only compared: no features are needed.

    Of triplets (i, j, l), "i is more like j than like l", with places y and distances d = ||y - y'||:

    * "soe": min mean [1 + d(i,j) - d(i,l)]_+^2;
    * "t-ste": max mean log p, p = k(i,j) / (k(i,j) + k(i,l)), k = (1 + d^2 / alpha)^(-(alpha + 1) / 2).

    Quadruplets (i, j, k, l), "i is more like j than k is like l", have d(k,l) in place of d(i,l).

    Parameters
    ----------
    n_components : int
        Dimensions of the space.
    method : "t-ste" or "soe"
        t-distributed stochastic triplet embedding, a model of answers that contradict one another, or soft
        ordinal embedding, which comes nearer to the truth where hardly any do.
    alpha : float, optional
        Degrees of freedom of t-STE; None is one less than `n_components`, at least 1.
    n_init : int
        Random starts; the one with the lowest objective is kept. Neither problem is convex. The first start
        has two dimensions more, where items pass each other more easily, and goes on from its main
        directions.
    max_iter : int
        Largest number of iterations (L-BFGS) of a start.
    tol : float
        Stop when an iteration changes the objective by less than this.
    n_items : int, optional
        Number of items; None is one more than the largest row number, which has to be below a million, or
        below the number of entries of the comparisons if that is larger. Items that are never compared stay
        at the origin, the mean of the others.
    random_state : None, int or RandomState
        Seed of the starts.

    Attributes
    ----------
    embedding_ : array of shape (n_items, n_components)
        The places; only their distances matter, in proportion to each other.
    objective_ : float
        What was minimised, at these places (minus the mean log p of t-STE).
    n_iter_, converged_ : int, bool
        Iterations of the best start, and whether it met the tolerance.

    Notes
    -----
    Items that were not compared have no place: to score new items learn from features instead (`OASIS`,
    `PAMetric`).

    References
    ----------
    Terada, von Luxburg. Local ordinal embedding. ICML 2014.
    van der Maaten, Weinberger. Stochastic triplet embedding. MLSP 2012.

    Examples
    --------
    Five points on a line, known by which of two is nearer to a third:

    >>> import numpy as np
    >>> from itertools import permutations
    >>> from simstream import OrdinalEmbedding
    >>> line = np.array([0.0, 1.0, 2.5, 4.5, 7.0])
    >>> near = [
    ...     (i, j, l)
    ...     for i, j, l in permutations(range(5), 3)
    ...     if abs(line[i] - line[j]) < abs(line[i] - line[l])
    ... ]
    >>> model = OrdinalEmbedding(1, "soe", random_state=0).fit(near)
    >>> model.score(near)
    1.0
    >>> order = np.argsort(model.embedding_[:, 0])
    >>> bool((order == np.arange(5)).all() or (order == np.arange(5)[::-1]).all())
    True
    >>> model.search([0], k=2).indices
    array([[1, 2]])
    """

    __repr__ = short_repr
    embedding_: np.ndarray
    objective_: float
    n_iter_: int
    converged_: bool

    def __init__(
        self,
        n_components: int = 2,
        method: str = "t-ste",
        *,
        alpha: float | None = None,
        n_init: int = 3,
        max_iter: int = 1000,
        tol: float = 1e-7,
        n_items: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.alpha = alpha
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.n_items = n_items
        self.random_state = random_state

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal; `fit` does so too."""
        for name in ("n_components", "n_init", "max_iter"):
            check_integer(name, getattr(self, name))
        check_choice("method", self.method, ("soe", "t-ste"))
        if self.alpha is not None:
            check_number("alpha", self.alpha)
        check_number("tol", self.tol, exclusive=False)
        if self.n_items is not None:
            check_integer("n_items", self.n_items)

    def fit(self, tuples: Any, y: Any = None) -> OrdinalEmbedding:
        """Place items so that as many of these comparisons hold as possible.

        Parameters
        ----------
        tuples : (n, 3) or (n, 4) integers
            Triplets or quadruplets of item numbers, from 0.
        y : ignored
        """
        self.check_parameters()
        index, n_items = self._checked(tuples, self.n_items)
        # People are asked the same more than once: each question counts as often as it was answered.
        index, counts = np.unique(index, axis=0, return_counts=True)
        weights = counts / counts.sum()
        seen, numbers = np.unique(index, return_inverse=True)
        index = numbers.reshape(index.shape)
        problem = _Problem.of(_as_pairs(index), weights, len(seen))
        rng = new_generator(self.random_state)
        best: Any = None
        for number in range(self.n_init):
            start = rng.normal(size=(len(seen), self.n_components + (number == 0) * _MORE))
            if number == 0:
                start = _flattened(self._minimised(start, problem).x, start.shape)
                start = start[:, : self.n_components]
            found = self._minimised(start, problem)
            best = found if best is None or found.fun < best.fun else best
        places = best.x.reshape(len(seen), -1)
        embedding = np.zeros((n_items, self.n_components))
        embedding[seen] = places - places.mean(axis=0)
        self.embedding_ = embedding
        self.objective_, self.n_iter_ = float(best.fun), int(best.nit)
        self.converged_ = bool(best.success)
        if not self.converged_:
            warnings.warn(
                f"OrdinalEmbedding has not converged after {self.n_iter_} iterations; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _checked(self, tuples: Any, n_items: int | None) -> tuple[np.ndarray, int]:
        """Checked row numbers and the number of items, which is that of the largest if None is given."""
        array = np.asarray(tuples)
        size = 4 if are_quadruplets(array) else 3
        if n_items is None:
            is_index = array.ndim == 2 and array.dtype.kind in "iu" and array.size > 0
            n_items = int(array.max()) + 1 if is_index else 1
            most = max(_MANY_ITEMS, array.size)
            if n_items > most:
                raise ValueError(
                    f"tuples: expected item numbers below {most:,} for {len(array):,} comparisons, got "
                    f"{n_items - 1:,}; number items from 0 without gaps, or give n_items"
                )
        names = ("anchor", "positive", "negative") if size == 3 else ("item",) * 4
        return check_index_tuples(array, (n_items,) * size, names), n_items

    def _minimised(self, start: np.ndarray, problem: _Problem) -> Any:
        """Where L-BFGS leads from these places."""
        return minimize(
            self._objective(problem, start.shape),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iter, "ftol": float(self.tol), "gtol": 1e-9},
        )

    def _objective(self, problem: _Problem, shape: tuple[int, ...]) -> _Objective:
        if self.method == "soe":
            return lambda flat: soe(flat.reshape(shape), problem)
        alpha = float(max(1, self.n_components - 1) if self.alpha is None else self.alpha)
        return lambda flat: t_ste(flat.reshape(shape), problem, alpha)

    # -- using what was learnt ----------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "embedding_")

    def _fitted(self) -> np.ndarray:
        if not hasattr(self, "embedding_"):
            raise NotFittedError(
                "this OrdinalEmbedding has not learnt anything yet: call fit first"
            )
        return self.embedding_

    @property
    def similarity_(self) -> Mahalanobis:
        """The Euclidean distance between places, with the places as its items: it scores row numbers."""
        places = self._fitted()
        return Mahalanobis(np.eye(places.shape[1]), preprocessor=places)

    def search(self, rows: Any, k: int = 10) -> SearchResult:
        """The nearest items of each of these items, itself left out, best first.

        Parameters
        ----------
        rows : integers, item numbers
        k : int

        Returns
        -------
        SearchResult
            ``indices`` and ``scores`` (minus squared distances), both of shape (n_rows, k).
        """
        places, k = self._fitted(), check_integer("k", k)
        numbers = np.atleast_1d(rows)
        is_legal = numbers.ndim == 1 and numbers.dtype.kind in "iu" and len(numbers) > 0
        if not is_legal or numbers.min() < 0 or numbers.max() >= len(places):
            raise ValueError(
                f"rows: expected item numbers from 0 to {len(places) - 1}, got {rows!r}"
            )
        found = self.similarity_.search(places[numbers], places, k + 1)
        is_other = found.indices != numbers[:, None]
        is_other[is_other.all(axis=1), -1] = False  # its place is shared by k + 1 others
        shape = (len(numbers), -1)
        return SearchResult(*(array[is_other].reshape(shape) for array in found))

    def decision_function(self, tuples: Any) -> np.ndarray:
        """How much nearer the similar items are than the others, in squared distances; of `fit`'s tuples."""
        index, _ = self._checked(tuples, len(self._fitted()))
        similar, other = _as_pairs(index)
        return self.similarity_.pair_score(similar) - self.similarity_.pair_score(other)

    def predict(self, tuples: Any) -> np.ndarray:
        """+1 where a comparison holds, else -1."""
        return np.where(self.decision_function(tuples) > 0, 1, -1)

    def score(self, tuples: Any, y: Any = None) -> float:
        """Share of comparisons that hold."""
        return float(np.mean(self.predict(tuples) == 1))

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the model to a safetensors file, atomically; `simstream.load` reads it back."""
        self._fitted()
        save_model(self, path, extra)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        names = ("objective_", "n_iter_", "converged_")
        return {name: getattr(self, name) for name in names}, {"embedding_": self.embedding_}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        check_array("embedding_", arrays["embedding_"], np.float64, (None, self.n_components))
        check_finite(arrays["embedding_"], "embedding_")
        self.embedding_ = arrays["embedding_"]
        for name in ("objective_", "n_iter_", "converged_"):
            setattr(self, name, header[name])


def _flattened(places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Places in the coordinates of their main directions, the longest first."""
    places = places.reshape(shape)
    u, lengths, _ = np.linalg.svd(places - places.mean(axis=0), full_matrices=False)
    return u * lengths


def _as_pairs(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pair that is more similar, and the other one."""
    return index[:, :2], index[:, [0, 2]] if index.shape[1] == 3 else index[:, 2:]


class _Problem(NamedTuple):
    """Comparisons as differences: of places Y, the pairs of comparison t differ by near[t] Y and far[t] Y."""

    near: sp.csr_matrix
    far: sp.csr_matrix
    weights: np.ndarray
    n_items: int

    @classmethod
    def of(
        cls, pairs: tuple[np.ndarray, np.ndarray], weights: np.ndarray, n_items: int
    ) -> _Problem:
        n = len(weights)
        rows = np.repeat(np.arange(n), 2)
        signs = np.tile([1.0, -1.0], n)
        near, far = [
            sp.csr_matrix((signs, (rows, pair.ravel())), shape=(n, n_items)) for pair in pairs
        ]
        return cls(near, far, weights, n_items)

    def gradient(self, near: np.ndarray, far: np.ndarray) -> np.ndarray:
        """The gradient of places from that of the differences."""
        return (self.near.T @ near + self.far.T @ far).ravel()


def soe(Y: np.ndarray, problem: _Problem) -> tuple[float, np.ndarray]:
    """Mean of [1 + near distance - far distance]_+^2, and its gradient."""
    near, far = problem.near @ Y, problem.far @ Y
    d_near, d_far = (np.sqrt(np.sum(v**2, axis=1) + _TINY) for v in (near, far))
    loss = np.maximum(0.0, 1.0 + d_near - d_far)
    slope = 2 * problem.weights * loss
    value = float(problem.weights @ loss**2)
    return value, problem.gradient(
        (slope / d_near)[:, None] * near, -(slope / d_far)[:, None] * far
    )


def t_ste(Y: np.ndarray, problem: _Problem, alpha: float) -> tuple[float, np.ndarray]:
    """Minus the mean log of p = k(near) / (k(near) + k(far)), and its gradient."""
    near, far = problem.near @ Y, problem.far @ Y
    s_near, s_far = (1 + np.sum(v**2, axis=1) / alpha for v in (near, far))
    power = (alpha + 1) / 2
    # log(1 + k(far) / k(near)), a function of the difference of logarithms
    log_ratio = power * (np.log(s_near) - np.log(s_far))
    value = float(problem.weights @ np.logaddexp(0.0, log_ratio))
    slope = problem.weights / (1 + np.exp(-log_ratio)) * power * 2 / alpha
    return value, problem.gradient(
        (slope / s_near)[:, None] * near, -(slope / s_far)[:, None] * far
    )
