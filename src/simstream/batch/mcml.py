"""MCML: every class collapsed to a point, and the objective's minimiser.

With d(i,j) = (x_i - x_j)' A (x_i - x_j), p(j|i) = exp(-d(i,j)) / sum_{l != i} exp(-d(i,l)), and
p0(j|i) = 1 / (n_i - 1) for the n_i - 1 other points of i's class, the objective is convex in A:

    f(A) = sum_i KL(p0(.|i) || p(.|i))
         = sum_i [log sum_{l != i} exp(-d(i,l)) - log(n_i - 1)] + <A, C>,
    C    = sum_ij p0(j|i) (x_i - x_j)(x_i - x_j)'

A point that is alone in its class has no p0: it is never an i, but it is an l for the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..similarity.base import chunks, row_products
from ..similarity.mahalanobis import Spectrum, first_metric
from .base import (
    BatchMetric,
    Report,
    Solution,
    batch_documented,
    check_several_classes,
    check_some_class_has_two,
    check_start,
    nearest_psd,
)

#: Least decrease that a step must achieve, as a share of what the gradient promises (Armijo's rule).
_ENOUGH = 1e-4

#: Steps that move A farther than this are not tried.
_FAR = 1e30


@batch_documented("Objective at the start and after every iteration")
class MCML(BatchMetric):
    """Maximally collapsing metric learning: one class at one point, all others infinitely far away.

    Minimises sum_i KL(p0(.|i) || p(.|i)) with p(j|i) proportional to exp(-d(i, j)) and p0 uniform over the
    other items of i's class. The problem is convex in M; it is solved by projected gradient steps with
    backtracking and Barzilai-Borwein step lengths.

    Parameters
    ----------
    init : "identity", "covariance" or matrix of shape (d, d)
        The initial M, symmetric and positive semi-definite. "covariance" is the inverse of the items'
        covariance, or its pseudo-inverse.
    max_iter : int
        Largest number of iterations.
    tol : float
        Stop when an iteration lowers the objective by less than this.
    {callback}

    Attributes
    ----------
    {attributes}
    objective_ : float
    {convergence}

    Notes
    -----
    Items that are alone in their class contribute nothing. p0 is normalised; some implementations use counts.

    References
    ----------
    Globerson, Roweis. Metric learning by collapsing classes. NIPS 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import MCML
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MCML(tol=0.1).fit(X, y)
    >>> bool(model.history_[-1] < model.history_[0])
    True
    """

    _inits = ("identity", "covariance")

    def __init__(
        self,
        *,
        init: Any = "identity",
        max_iter: int = 100,
        tol: float = 1e-4,
        callback: Any = None,
        verbose: bool = False,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.callback = callback
        self.verbose = verbose
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_several_classes(classes)
        check_some_class_has_two(codes, "learn from")
        start = first_metric(self.init, X.shape[1], items=X)
        solution = solve_mcml(
            X, codes, start=start, max_iter=self.max_iter, tol=self.tol, report=self._report
        )
        self.objective_ = solution.objective
        self._keep(Spectrum.of_matrix(solution.minimiser), solution)


# -- solver ---------------------------------------------------------------------------------------


class _Data(NamedTuple):
    """Centred points, the rows that are not alone in their class, sum_i log(n_i - 1), and C."""

    X: np.ndarray
    rows: np.ndarray
    entropy: float
    pull: np.ndarray


def mcml_objective_and_gradient(
    A: np.ndarray, X: np.ndarray, codes: np.ndarray
) -> tuple[float, np.ndarray]:
    """Objective at A (symmetric) and its gradient (d x d). See the module for the objective."""
    return _evaluate(A, _prepare(X, codes))


def solve_mcml(
    X: np.ndarray,
    codes: np.ndarray,
    *,
    start: np.ndarray,
    max_iter: int = 100,
    tol: float = 1e-4,
    report: Report | None = None,
) -> Solution:
    """Minimise the MCML objective over the PSD matrices by projected gradient steps from `start`.

    The first step is as long as `start` (at least 1). A step that does not lower the objective enough
    (Armijo's rule) is undone, and the next one is half as long; otherwise the two Barzilai-Borwein lengths
    take turns. Every attempt is an iteration. Stops when a step lowers the objective by less than `tol`, or
    after `max_iter` iterations. ``report(iteration, objective)`` is called after every iteration.
    """
    data = _prepare(X, codes)
    A = nearest_psd(np.array(start, np.float64))
    objective, gradient = _evaluate(A, data)
    check_start(objective)
    history = [objective]
    size = float(np.linalg.norm(gradient))
    step = max(1.0, float(np.linalg.norm(A))) / size if size > 0 else 1.0
    converged = too_long = False
    while len(history) <= max_iter and not converged:
        attempt, slope = _attempt(A, gradient, step)
        # f is convex: a step cannot lower it by more than -slope. A longer one may, unless one just failed.
        while slope > -tol and not too_long and 0 < step * size < _FAR:
            step *= 4
            attempt, slope = _attempt(A, gradient, step)
        if slope > -tol:
            converged = True
            break
        change = attempt - A
        value, new_gradient = _evaluate(attempt, data)
        if value <= objective + _ENOUGH * slope:
            converged = objective - value < tol
            step = _next_step(change, new_gradient - gradient, step, len(history))
            A, objective, gradient = attempt, value, new_gradient
            size = float(np.linalg.norm(gradient))
            too_long = False
        else:
            step /= 2
            too_long = True
        history.append(objective)
        if report is not None:
            report(len(history) - 1, objective)
    return Solution(A, np.array(history), converged)


def _attempt(A: np.ndarray, gradient: np.ndarray, step: float) -> tuple[np.ndarray, float]:
    """Where a projected step leads, and the change of f along it if f were linear (negative)."""
    attempt = nearest_psd(A - step * gradient)
    return attempt, float(np.vdot(gradient, attempt - A))


@np.errstate(over="ignore", invalid="ignore")  # the caller checks the objective
def _prepare(X: np.ndarray, codes: np.ndarray) -> _Data:
    X = X - X.mean(axis=0)
    pull = np.zeros((X.shape[1], X.shape[1]))
    sizes = np.bincount(codes)
    for code in np.flatnonzero(sizes > 1):
        members = X[codes == code]
        members = members - members.mean(axis=0)
        pull += 2 * sizes[code] / (sizes[code] - 1) * (members.T @ members)
    rows = np.flatnonzero(sizes[codes] > 1)
    return _Data(X, rows, float(np.log(sizes[codes[rows]] - 1).sum()), pull)


@np.errstate(over="ignore", invalid="ignore")  # the caller checks the objective
def _evaluate(A: np.ndarray, data: _Data) -> tuple[float, np.ndarray]:
    X, n = data.X, len(data.X)
    XA = X @ ((A + A.T) / 2)
    squares = row_products(XA, X)
    # d(i,l) = squares[i] - (left @ right')[i, l]: what does not depend on l cancels in p(l|i).
    left = np.column_stack([2 * XA, np.full(n, -1.0)])
    right = np.column_stack([X, squares])
    summed = np.column_stack([X, np.ones(n)])
    logs = 0.0
    columns = np.zeros(n)  # sums of the columns of P
    product = np.zeros_like(A)  # X'PX
    for part in chunks(len(data.rows), 8 * n):
        rows = data.rows[part]
        weights = left[rows] @ right.T
        weights[np.arange(len(rows)), rows] = -np.inf
        largest = weights.max(axis=1)
        weights -= largest[:, None]
        np.exp(weights, out=weights)
        sums = weights @ summed
        total = sums[:, -1]
        logs += float(np.sum(largest + np.log(total) - squares[rows]))
        columns += (1 / total) @ weights
        product += X[rows].T @ (sums[:, :-1] / total[:, None])
    columns[data.rows] += 1
    objective = logs - data.entropy + float(np.vdot(A, data.pull))
    return objective, data.pull - (X.T @ (columns[:, None] * X) - product - product.T)


def _next_step(change: np.ndarray, bend: np.ndarray, step: float, iteration: int) -> float:
    """One of the two Barzilai-Borwein lengths; `bend` is the change of the gradient."""
    curvature = float(np.vdot(change, bend))
    if curvature <= 0:
        return 2 * step
    if iteration % 2:
        return float(np.vdot(change, change)) / curvature
    return curvature / float(np.vdot(bend, bend))
