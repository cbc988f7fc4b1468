"""Large margin nearest neighbours (Weinberger, Saul 2009): the objective and its minimiser.

With d(i,j) = ||L x_i - L x_j||^2, T(i) the nearest points of i's own class in the input space, and
c_i the class of i:

    f(L) = (1-mu) sum_{i, j in T(i)} d(i,j)
         + mu sum_{i, j in T(i)} sum_{l: c_l != c_i} [1 + d(i,j) - d(i,l)]+

Only pairs nearer than the largest threshold of one of their ends, r_i = 1 + max_j d(i,j), matter:
few, after the first steps. They are found among all pairs once, with room to spare (`_Objective`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from .._interrupts import ctrl_c_waits
from ..similarity.scoring import chunks, row_products

#: Bytes of candidate pairs kept from one evaluation to the next.
_LIST_BYTES = 64 * 2**20

#: To look at a listed pair costs about as much as to search among this many pairs.
_SEARCHED_PER_LISTED = 16

#: The candidates are meant to last for this many steps like the last one.
_STEPS_AHEAD = 8


class LMNNSolution(NamedTuple):
    """What `solve_lmnn` found; ``history[t]`` is the objective after t iterations."""

    components: np.ndarray
    objective: float
    history: np.ndarray
    n_iter: int
    converged: bool


def target_neighbors(X: np.ndarray, codes: np.ndarray, k: int) -> np.ndarray:
    """Nearest k other points of the same class, nearest first, shape (n, k).

    Of two equally near points the one with the lower index is nearer. Every class must have
    more than k points.
    """
    from .._kernels.ranking import nearest

    out = np.empty((len(X), k), np.int64)
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        points = X[members]
        for rows in chunks(len(points), 8 * len(points)):
            # From differences: inner products would decide between equally near points by rounding.
            scores = -cdist(points[rows], points, "sqeuclidean")
            out[members[rows]] = members[nearest(scores, np.arange(rows.start, rows.stop), k)]
    return out


def lmnn_objective_and_gradient(
    L: np.ndarray, X: np.ndarray, targets: np.ndarray, codes: np.ndarray, mu: float
) -> tuple[float, np.ndarray]:
    """Objective at L and its gradient (a subgradient at kinks), of the shape of L.

    ``targets[i]`` are the target neighbours of point i. See the module for the objective.
    """
    return _Objective(X, targets, codes, mu)(L)


def solve_lmnn(
    X: np.ndarray,
    codes: np.ndarray,
    *,
    start: np.ndarray,
    n_neighbors: int = 3,
    mu: float = 0.5,
    max_iter: int = 1000,
    tol: float = 1e-3,
    patience: int = 50,
    report: Callable[[int, float], object] | None = None,
) -> LMNNSolution:
    """Minimise the LMNN objective over L (q x d) by gradient steps from `start`.

    The first step is 1 / ||gradient||. A step that raises the objective is taken back and the next
    one is half as long; otherwise the next one is 1.01 times as long. Every attempt is an iteration.
    Stops when the objective changed by less than `tol` in each of the last `patience` iterations, or
    after `max_iter`. ``report(iteration, objective)`` is called after every iteration.
    """
    evaluate = _Objective(X, target_neighbors(X, codes, n_neighbors), codes, mu)
    L = np.array(start, np.float64)
    with ctrl_c_waits(), np.errstate(over="ignore", invalid="ignore"):
        objective, gradient = evaluate(L)
    if not np.isfinite(objective):
        raise ValueError(
            "X: expected items whose squared distances are finite, got an infinite objective at the "
            "start; scale the items"
        )
    history = [objective]
    norm = np.linalg.norm(gradient)
    step = 1 / norm if norm > 0 else 0.0
    quiet = 0
    while len(history) <= max_iter and quiet < patience and norm > 0:
        attempt = L - step * gradient
        with ctrl_c_waits(), np.errstate(over="ignore", invalid="ignore"):
            value, new_gradient = evaluate(attempt)
        if value <= objective:
            quiet = quiet + 1 if objective - value < tol else 0
            L, objective, gradient = attempt, value, new_gradient
            step *= 1.01
        else:
            quiet += 1
            step /= 2
        history.append(objective)
        if report is not None:
            report(len(history) - 1, objective)
    converged = bool(quiet >= patience or norm == 0)
    return LMNNSolution(L, objective, np.array(history), len(history) - 1, converged)


class _Candidates(NamedTuple):
    """Pairs of different classes, and the place for which they were collected.

    No other pair (i, l) is nearer than ``radii[i]`` or ``radii[l]`` (not squared) at `points`.
    """

    points: np.ndarray
    radii: np.ndarray
    starts: np.ndarray
    columns: np.ndarray

    def suffice(self, points: np.ndarray, radii: np.ndarray) -> bool:
        """Tell whether also at other points no pair outside the list is nearer than the radii.

        By the triangle inequality a distance shrinks at most by the moves of its two ends.
        """
        moves = _lengths(points - self.points)
        return bool(np.all(radii + moves + moves.max() <= self.radii))


class _Objective:
    """LMNN objective and gradient as a function of L, for repeated calls at places near each other."""

    def __init__(self, X: np.ndarray, targets: np.ndarray, codes: np.ndarray, mu: float) -> None:
        order = np.argsort(codes, kind="stable")  # impostors of a class: the slices before, after
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._X = (X - X.mean(axis=0))[order]
        self._targets = np.ascontiguousarray(place[targets[order]])
        self._class_ends = np.flatnonzero(np.diff(codes[order], append=-1)) + 1
        self._mu = mu
        self._last: np.ndarray | None = None  # transformed points of the last call
        self._candidates: _Candidates | None = None
        sizes = np.diff(self._class_ends, prepend=0)
        self._n_pairs = (len(X) ** 2 - int(sizes @ sizes)) // 2
        self._steps_ahead: float = _STEPS_AHEAD
        self.n_searches = 0

    @np.errstate(over="ignore", invalid="ignore")  # the caller looks at the objective
    def __call__(self, L: np.ndarray) -> tuple[float, np.ndarray]:
        points = self._X @ L.T
        objective, pulls = self._at(points, points)
        return objective, 2 * (pulls.T @ self._X)

    def _at(self, points: np.ndarray, vectors: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective at transformed points, and the product of its Laplacian with the rows of `vectors`.

        The Laplacian N is that of the graph whose edges are all differences in the objective, with their
        weights: X'NX is the gradient in L'L.
        """
        from .._kernels.neighbourhood import pull, push, target_distances

        mu = self._mu
        distances = target_distances(points, self._targets)
        thresholds = 1 + distances
        reach = thresholds.max(axis=1)
        n_active = np.zeros(self._targets.shape, np.int64)
        pulls = np.zeros_like(vectors)
        hinges = 0.0
        for listed in self._pairs(points, np.sqrt(reach)):
            hinges += push(points, vectors, thresholds, reach, *listed, n_active, pulls)
        pulls *= mu
        pull(vectors, self._targets, (1 - mu) + mu * n_active, pulls)
        self._last = points
        objective = (1 - mu) * float(distances.sum()) + mu * hinges
        return objective, pulls

    def _pairs(
        self, points: np.ndarray, radii: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """All pairs nearer than the radius of one of their ends, and some more; see `push`."""
        from .._kernels.neighbourhood import list_near

        known = self._candidates
        if known is not None and known.suffice(points, radii):
            yield 0, known.starts, known.columns
            return
        self._candidates = None
        self.n_searches += 1
        spare = 0.0
        if self._last is not None:
            spare = 2 * self._steps_ahead * float(_lengths(points - self._last).max())
        norms = row_products(points, points)
        rounding = 8 * points.shape[1] * np.finfo(np.float64).eps * norms.max()
        bounds = (radii + spare) ** 2 + rounding
        kept, room = [], min(_LIST_BYTES // 4, self._n_pairs // _SEARCHED_PER_LISTED)
        begin = 0
        for end in self._class_ends.tolist():
            for rows in chunks(end - begin, 8 * (len(points) - end)):
                rows = slice(begin + rows.start, begin + rows.stop)
                starts, columns = list_near(
                    points[rows] @ points[end:].T,
                    norms[rows],
                    norms[end:],
                    bounds[rows],
                    bounds[end:],
                )
                columns += end
                yield rows.start, starts, columns
                kept.append((np.diff(starts), columns))
                room -= len(columns)
                if room < 0:
                    kept.clear()
                    bounds = radii**2 + rounding
            begin = end
        if room < 0:
            self._steps_ahead /= 2
            return
        self._steps_ahead = min(_STEPS_AHEAD, 2 * self._steps_ahead)
        counts, columns = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
        self._candidates = _Candidates(
            points, radii + spare, np.append(0, counts.cumsum()), columns
        )


def _lengths(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(row_products(rows, rows))
