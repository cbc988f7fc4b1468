"""LMNN: large margins between neighbours of different classes, and the objective's minimiser.

With d(i,j) = ||L x_i - L x_j||^2, T(i) the nearest points of i's own class in the input space, and
c_i the class of i:

    f(L) = (1-mu) sum_{i, j in T(i)} d(i,j)
         + mu sum_{i, j in T(i)} sum_{l: c_l != c_i} [1 + d(i,j) - d(i,l)]+

Only pairs that are closer than the largest threshold of one of their points, r_i = 1 + max_j d(i,j), matter:
after the first steps, these are few. They are listed once with a safety margin, and the list is used for as
long as it is certain to be complete (`LMNNObjective`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.neighbors import BallTree

from .._engines.base import ctrl_c_waits
from .._kernels.neighbourhood import list_near, pull, push, target_distances
from .._kernels.ranking import nearest
from ..similarity.base import chunks, row_products
from ..similarity.mahalanobis import Spectrum
from ..validation import check_choice, check_integer, check_items, check_number
from .base import (
    BatchMetric,
    Report,
    Solution,
    batch_documented,
    check_several_classes,
    check_some_class_has_two,
    check_start,
)

#: Bytes of candidate pairs kept from one evaluation to the next.
_LIST_BYTES = 64 * 2**20

#: Evaluating a listed pair costs about as much as searching this many pairs.
_SEARCHED_PER_LISTED = 16

#: The list of candidates should last for this many steps of the length of the last one.
_STEPS_AHEAD = 8


@batch_documented("Objective at the start and after every iteration")
class LMNN(BatchMetric):
    """Large margin nearest neighbours: pull the k nearest of the same class, push others a margin away.

    Minimises (1 - mu) sum_{i, j in T(i)} d(i, j) + mu sum_{i, j in T(i)} sum_l [1 + d(i, j) - d(i, l)]+ over
    L, M = L'L, where T(i) are the k nearest items of i's class (Euclidean, fixed) and l runs over the items
    of other classes.

    Parameters
    ----------
    k : int
        Number of target neighbours of each item. In a class of k members or fewer these are all others, with
        a warning: an item that is alone in its class is only pushed away from.
    mu : float between 0 and 1
        Weight of the push term.
    init : "identity" or array of shape (q, d)
        The initial L; q < d learns a projection to q dimensions.
    solver : "gradient" or "lbfgs"
        Gradient steps on L that are halved when the objective rises and 1 % longer when it falls, or L-BFGS,
        which reaches lower objectives in far fewer iterations.
    max_iter : int
        Largest number of iterations.
    tol : float
        "gradient" stops after `patience` consecutive iterations that lower the objective by less than this,
        "lbfgs" when the last `patience` iterations together have lowered it by less than this share.
    patience : int
    impostors : "products" or "ball-tree"
        How items of other classes that come too near are found: by inner products with all of them, or by
        ball trees, the fastLMNN of the reference. Both find the same. Trees may pay where few pairs are near:
        thousands of items, few dimensions and classes that lie apart; elsewhere they are slower.
    {callback}

    Attributes
    ----------
    {attributes}
    objective_ : float
    {convergence}

    References
    ----------
    Weinberger, Saul. Distance metric learning for large margin nearest neighbor classification. JMLR 2009.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from simstream import LMNN
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LMNN(), KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    def __init__(
        self,
        k: int = 3,
        mu: float = 0.5,
        *,
        init: Any = "identity",
        solver: str = "gradient",
        max_iter: int = 1000,
        tol: float = 1e-3,
        patience: int = 50,
        impostors: str = "products",
        callback: Any = None,
        verbose: bool = False,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.k = k
        self.mu = mu
        self.init = init
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.patience = patience
        self.impostors = impostors
        self.callback = callback
        self.verbose = verbose
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_integer("k", self.k)
        if check_number("mu", self.mu, exclusive=False) > 1:
            raise ValueError(f"mu: expected at most 1, got {self.mu}")
        check_choice("solver", self.solver, tuple(_SOLVERS))
        check_integer("patience", self.patience)
        check_choice("impostors", self.impostors, tuple(_SEARCHES))

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_class_sizes(codes, classes, self.k)
        d = X.shape[1]
        if isinstance(self.init, str):
            start = np.eye(d)
        else:
            start = check_items(self.init, "init", dtype=np.float64).values
            if start.shape[1] != d or len(start) > d or not start.any():
                raise ValueError(
                    f"init: expected at most {d} rows and {d} columns, not all zero, got shape {start.shape}"
                )
        solution = solve_lmnn(
            X,
            codes,
            n_neighbors=self.k,
            mu=float(self.mu),
            start=start,
            solver=self.solver,
            max_iter=self.max_iter,
            tol=self.tol,
            patience=self.patience,
            impostors=self.impostors,
            report=self._report,
        )
        self.objective_ = solution.objective
        self._keep(Spectrum.of_components(solution.minimiser), solution)


def check_class_sizes(codes: np.ndarray, classes: np.ndarray, k: int, where: str = "") -> None:
    """Raise unless there are two classes, one with two members; warn of those with k or fewer.

    `where` begins the messages.
    """
    sizes = np.bincount(codes, minlength=len(classes))
    present = np.flatnonzero(sizes)
    check_several_classes(classes[present], where)
    check_some_class_has_two(codes, "find target neighbours in", where)
    small = present[sizes[present] <= k]
    if len(small):
        few = ", ".join(f"{classes[code]} ({sizes[code]})" for code in small[:3])
        warnings.warn(
            f"{where}k: {len(small)} of {len(present)} classes have no more than k = {k} members: "
            f"{few}{', ...' if len(small) > 3 else ''}; their items have fewer target neighbours, in classes "
            "of one item none",
            stacklevel=5,  # whoever called fit
        )


# -- solver ---------------------------------------------------------------------------------------


def target_neighbors(X: np.ndarray, codes: np.ndarray, k: int) -> np.ndarray:
    """The k nearest other points of the same class, nearest first, shape (n, k).

    Ties go to the lower index. Where there are fewer than k, the point itself takes the other places.
    """
    out = np.repeat(np.arange(len(X))[:, None], k, axis=1)
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        points, most = X[members], min(k, len(members) - 1)
        for rows in chunks(len(points), 8 * len(points)):
            # From differences: with inner products, rounding would decide between equally near points.
            scores = -cdist(points[rows], points, "sqeuclidean")
            found = nearest(scores, np.arange(rows.start, rows.stop), most)
            out[members[rows], :most] = members[found]
    return out


def lmnn_objective_and_gradient(
    L: np.ndarray, X: np.ndarray, targets: np.ndarray, codes: np.ndarray, mu: float
) -> tuple[float, np.ndarray]:
    """Objective at L and its gradient (a subgradient at kinks), of the shape of L.

    ``targets[i]`` are the target neighbours of point i. See the module for the objective.
    """
    return LMNNObjective(X, targets, codes, mu)(L)


def solve_lmnn(
    X: np.ndarray,
    codes: np.ndarray,
    *,
    start: np.ndarray,
    n_neighbors: int = 3,
    mu: float = 0.5,
    solver: str = "gradient",
    max_iter: int = 1000,
    tol: float = 1e-3,
    patience: int = 50,
    impostors: str = "products",
    report: Report | None = None,
) -> Solution:
    """Minimise the LMNN objective over L (q x d) from `start`; `LMNN` says how solvers stop."""
    return _SOLVERS[solver](
        LMNNObjective(X, target_neighbors(X, codes, n_neighbors), codes, mu, impostors),
        np.array(start, np.float64),
        max_iter=max_iter,
        tol=tol,
        patience=patience,
        report=report,
    )


def _by_gradient(
    evaluate: LMNNObjective,
    start: np.ndarray,
    *,
    max_iter: int,
    tol: float,
    patience: int,
    report: Report | None,
) -> Solution:
    """Minimise by gradient steps; see `descend`."""
    quiet = 0

    def is_settled(objective: float, fall: float) -> bool:
        nonlocal quiet
        quiet = 0 if fall >= tol else quiet + 1
        return quiet >= patience

    return descend(
        evaluate,
        start,
        move=lambda L, gradient, step: L - step * gradient,
        is_settled=is_settled,
        max_iter=max_iter,
        report=report,
    )


def _by_lbfgs(
    evaluate: LMNNObjective,
    start: np.ndarray,
    *,
    max_iter: int,
    tol: float,
    patience: int,
    report: Report | None,
) -> Solution:
    """Minimise by L-BFGS. The hinges have kinks: where a search along a line fails, it starts afresh."""

    def function(flat: np.ndarray) -> tuple[float, np.ndarray]:
        with ctrl_c_waits():
            objective, gradient = evaluate(flat.reshape(start.shape))
        return objective, gradient.ravel()

    def note(intermediate_result: Any) -> None:
        history.append(float(intermediate_result.fun))
        if report is not None:
            report(len(history) - 1, history[-1])
        if is_settled():
            raise StopIteration

    def is_settled() -> bool:
        n = patience + 1
        return len(history) > n and history[-n] - history[-1] <= tol * history[-1]

    at = start.ravel()
    history = [function(at)[0]]
    check_start(history[0])
    converged = False
    while len(history) <= max_iter and not converged:
        before = len(history)
        left = max_iter + 1 - before
        options = {"maxiter": left, "maxfun": 100 * left, "ftol": 0.0, "gtol": 0.0}
        found = minimize(function, at, jac=True, method="L-BFGS-B", callback=note, options=options)
        at = found.x
        # Not even along the gradient: there is no way down.
        converged = is_settled() or len(history) == before
    return Solution(at.reshape(start.shape), np.array(history), converged)


_SOLVERS = {"gradient": _by_gradient, "lbfgs": _by_lbfgs}


def descend(
    evaluate: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    *,
    move: Callable[[np.ndarray, np.ndarray, float], np.ndarray],
    is_settled: Callable[[float, float], bool],
    max_iter: int,
    report: Report | None,
) -> Solution:
    """Minimise by gradient steps whose length adapts.

    The first step is 1 / ||gradient||. A step that raises the objective is undone, and the next one is half
    as long; otherwise the next one is 1 % longer. Every attempt is an iteration.

    Parameters
    ----------
    evaluate : function of a point that returns the objective and its gradient
    start : array
    move : function of (point, gradient, step) that returns the next point
    is_settled : function of (objective before, how far it fell)
        Called after every attempt, also after one that is undone (the fall is negative or NaN then); True
        ends the descent.
    max_iter : int
    report : function of (iteration, objective), optional
        Called after every iteration.
    """
    at = start
    with ctrl_c_waits():
        objective, gradient = evaluate(at)
    check_start(objective)
    history = [objective]
    norm = float(np.linalg.norm(gradient))
    step = 1 / norm if norm > 0 else 0.0
    converged = norm == 0
    while len(history) <= max_iter and not converged:
        attempt = move(at, gradient, step)
        with ctrl_c_waits():
            value, slope = evaluate(attempt)
        converged = is_settled(objective, objective - value)
        if value <= objective:
            at, objective, gradient = attempt, value, slope
            step *= 1.01
        else:
            step /= 2
        history.append(objective)
        if report is not None:
            report(len(history) - 1, objective)
    return Solution(at, np.array(history), converged)


class _Candidates(NamedTuple):
    """Pairs of different classes that are close at `points`.

    No other pair (i, l) is closer than ``radii[i]`` or ``radii[l]`` (not squared) there.
    """

    points: np.ndarray
    radii: np.ndarray
    starts: np.ndarray
    columns: np.ndarray

    def are_complete_at(self, points: np.ndarray, radii: np.ndarray) -> bool:
        """Whether no pair outside the list is closer than the radii at these points either.

        By the triangle inequality, a distance shrinks at most by the moves of its two ends.
        """
        moves = _lengths(points - self.points)
        return bool(np.all(radii + moves + moves.max() <= self.radii))


class LMNNObjective:
    """LMNN objective and gradient as a function of L; fast when consecutive calls are close together."""

    def __init__(
        self,
        X: np.ndarray,
        targets: np.ndarray,
        codes: np.ndarray,
        mu: float,
        impostors: str = "products",
    ) -> None:
        order = np.argsort(
            codes, kind="stable"
        )  # the impostors of a class are what lies before and after it
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._X = (X - X.mean(axis=0))[order]
        self._targets = np.ascontiguousarray(place[targets[order]])
        #: Places of targets without a target: the point itself.
        self._empty = np.nonzero(self._targets == np.arange(len(X))[:, None])
        self._class_ends = np.flatnonzero(np.diff(codes[order], append=-1)) + 1
        self._mu = mu
        self._near = _SEARCHES[impostors]
        self._last: np.ndarray | None = None  # transformed points of the last call
        self._candidates: _Candidates | None = None
        sizes = np.diff(self._class_ends, prepend=0)
        self._n_pairs = (len(X) ** 2 - int(sizes @ sizes)) // 2
        self._steps_ahead: float = _STEPS_AHEAD
        self.n_searches = 0

    @np.errstate(over="ignore", invalid="ignore")  # the caller checks the objective
    def __call__(self, L: np.ndarray) -> tuple[float, np.ndarray]:
        """Objective and gradient at L."""
        points = self._X @ L.T
        objective, pulls = self.at_points(points, points)
        return objective, 2 * (pulls.T @ self._X)

    def at_points(self, points: np.ndarray, vectors: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective at transformed points, and the product of its Laplacian with the rows of `vectors`.

        The Laplacian N is that of the graph whose edges are all differences in the objective, with their
        weights: X'NX is the gradient in L'L.
        """
        mu = self._mu
        distances = target_distances(points, self._targets)
        thresholds = 1 + distances
        thresholds[self._empty] = 0  # nothing is nearer
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
        """All pairs closer than the radius of one of their ends, and some more, as `push` takes them."""
        known = self._candidates
        if known is not None and known.are_complete_at(points, radii):
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
                starts, columns = self._near(points, norms, bounds, rows, end)
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


# -- which pairs are near --------------------------------------------------------------------------


def _near_by_products(
    points: np.ndarray, norms: np.ndarray, bounds: np.ndarray, rows: slice, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of the points from `end` on, those near each of the rows: `starts, columns` as of `list_near`."""
    products = points[rows] @ points[end:].T
    return list_near(products, norms[rows], norms[end:], bounds[rows], bounds[end:])


def _near_by_trees(
    points: np.ndarray, norms: np.ndarray, bounds: np.ndarray, rows: slice, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same by ball trees, which pass over balls that are too far away."""
    here, rest = points[rows], points[end:]
    if not len(rest) or not np.isfinite(bounds).all():  # trees take neither
        return _near_by_products(points, norms, bounds, rows, end)
    radii = np.sqrt(bounds)
    found = _within(here, rest, radii[rows]) + _within(rest, here, radii[end:]).T.tocsr()
    found.sort_indices()
    return found.indptr.astype(np.int64), found.indices.astype(np.int32)


def _within(queries: np.ndarray, points: np.ndarray, radii: np.ndarray) -> sp.csr_array:
    """The points within the radius of each query, as the entries of a sparse array."""
    found = BallTree(points).query_radius(queries, radii)
    starts = np.append(0, np.cumsum([len(one) for one in found]))
    columns = np.concatenate(found).astype(np.int32)
    shape = len(queries), len(points)
    return sp.csr_array((np.ones(len(columns), np.int8), columns, starts), shape=shape)


_SEARCHES = {"products": _near_by_products, "ball-tree": _near_by_trees}


def _lengths(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(row_products(rows, rows))
