"""Maximally collapsing metric learning (Globerson, Roweis 2006): the objective and its minimiser.

With d(i,j) = (x_i - x_j)' A (x_i - x_j), p(j|i) = exp(-d(i,j)) / sum_{l != i} exp(-d(i,l)), and
p0(j|i) = 1 / (n_i - 1) for the n_i - 1 other points of i's class, the objective is convex in A:

    f(A) = sum_i KL(p0(.|i) || p(.|i))
         = sum_i [log sum_{l != i} exp(-d(i,l)) - log(n_i - 1)] + <A, C>,
    C    = sum_ij p0(j|i) (x_i - x_j)(x_i - x_j)'

A point that is alone in its class has no p0: it is no i, but it is an l of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..similarity.scoring import chunks, row_products

#: Least decrease that a step must bring, as a part of what the gradient promises.
_ENOUGH = 1e-4

#: Steps that move A farther than this are not tried.
_FAR = 1e30


class MCMLSolution(NamedTuple):
    """What `solve_mcml` found; ``history[t]`` is the objective after t iterations."""

    matrix: np.ndarray
    objective: float
    history: np.ndarray
    n_iter: int
    converged: bool


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
    report: Callable[[int, float], object] | None = None,
) -> MCMLSolution:
    """Minimise the MCML objective over the PSD matrices by projected gradient steps from `start`.

    The first step is as long as `start` (at least 1). A step that does not lower the objective enough
    (Armijo's rule) is taken back, and the next one is half as long; otherwise the two lengths of
    Barzilai and Borwein take turns. Every attempt is an iteration. Stops when a step lowers the
    objective by less than `tol`, or after `max_iter`. ``report(iteration, objective)`` is called
    after every iteration.
    """
    data = _prepare(X, codes)
    A = _psd(np.array(start, np.float64))
    objective, gradient = _evaluate(A, data)
    if not np.isfinite(objective):
        raise ValueError(
            "X: expected items whose squared distances are finite, got an infinite objective at the "
            "start; scale the items"
        )
    history = [objective]
    size = float(np.linalg.norm(gradient))
    step = max(1.0, float(np.linalg.norm(A))) / size if size > 0 else 1.0
    converged = too_long = False
    while len(history) <= max_iter and not converged:
        attempt, slope = _attempt(A, gradient, step)
        # f is convex: a step cannot lower it by more than -slope. A longer one may, unless it was tried.
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
    return MCMLSolution(A, objective, np.array(history), len(history) - 1, converged)


def _attempt(A: np.ndarray, gradient: np.ndarray, step: float) -> tuple[np.ndarray, float]:
    """Where a projected step leads, and how much f would fall if it were linear (negative)."""
    attempt = _psd(A - step * gradient)
    return attempt, float(np.vdot(gradient, attempt - A))


@np.errstate(over="ignore", invalid="ignore")  # the caller looks at the objective
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


@np.errstate(over="ignore", invalid="ignore")  # the caller looks at the objective
def _evaluate(A: np.ndarray, data: _Data) -> tuple[float, np.ndarray]:
    X, n = data.X, len(data.X)
    XA = X @ ((A + A.T) / 2)
    squares = row_products(XA, X)
    # d(i,l) is the square of i less exponents[i, l]: what does not depend on l cancels in p(l|i).
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
    """One of the two Barzilai-Borwein lengths; `bend` is how much the gradient has changed."""
    curvature = float(np.vdot(change, bend))
    if curvature <= 0:
        return 2 * step
    if iteration % 2:
        return float(np.vdot(change, change)) / curvature
    return curvature / float(np.vdot(bend, bend))


def _psd(A: np.ndarray) -> np.ndarray:
    """Nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root @ root.T  # exactly symmetric
