"""Multi-task large margin nearest neighbours (Parameswaran, Weinberger 2010): objective and minimiser.

Task t has its own labelled items and the distance d_t(i,j) = (x_i - x_j)'(M_0 + M_t)(x_i - x_j), where
M_0 is common to all tasks. With T(i) the nearest items of i's own class and task in the input space,
and l running over the items of the same task and other classes, the objective is convex:

    f(M_0, ..., M_K) = gamma0 ||M_0 - I||^2 + sum_t [ gamma ||M_t||^2 + f_t(M_0 + M_t) ]
    f_t(M)           = sum_{i, j in T(i)} d_t(i,j) + sum_{i, j in T(i)} sum_l [1 + d_t(i,j) - d_t(i,l)]+

All matrices are positive semi-definite. f_t is twice the objective of LMNN with mu = 1/2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, blas, cholesky

from .._interrupts import ctrl_c_waits
from ..similarity.scoring import row_products
from .solve_lmnn import _Objective, target_neighbors
from .solve_mcml import _psd


class TaskItems(NamedTuple):
    """Items of one task, the codes of their classes, and the rows of their target neighbours."""

    X: np.ndarray
    codes: np.ndarray
    targets: np.ndarray

    @classmethod
    def with_neighbors(cls, X: np.ndarray, codes: np.ndarray, k: int) -> TaskItems:
        """The k nearest of each item's class as its targets; every class has more than k items."""
        return cls(X, codes, target_neighbors(X, codes, k))


class MTLMNNSolution(NamedTuple):
    """What `solve_mtlmnn` found: M_0, M_1, ..., M_K; ``history[t]`` is the objective after t iterations."""

    matrices: np.ndarray
    objective: float
    history: np.ndarray
    n_iter: int
    converged: bool


def mtlmnn_objective_and_gradient(
    matrices: np.ndarray, tasks: Sequence[TaskItems], gamma0: float, gamma: float
) -> tuple[float, np.ndarray]:
    """Objective at M_0, M_1, ..., M_K, an array (K + 1, d, d), and its gradient (a subgradient at kinks).

    The sums M_0 + M_t must be positive semi-definite. See the module for the objective.
    """
    return _evaluate(matrices, [_TaskObjective(*task) for task in tasks], gamma0, gamma)


def solve_mtlmnn(
    tasks: Sequence[TaskItems],
    *,
    start: np.ndarray,
    gamma0: float = 1.0,
    gamma: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-5,
    report: Callable[[int, float], object] | None = None,
) -> MTLMNNSolution:
    """Minimise the objective by projected gradient steps from `start`, M_0, M_1, ..., M_K.

    The first step is 1 / ||gradient||. A step that raises the objective is taken back and the next
    one is half as long; otherwise the next one is 1.01 times as long. Every attempt is an iteration.
    Stops when a step lowers the objective by less than `tol` of its value, or after `max_iter`.
    ``report(iteration, objective)`` is called after every iteration.

    A matrix whose regulariser weighs w goes 1 / (1 + 2 step w) of the step: the regulariser is taken
    where the step ends, not where it begins. Otherwise the heaviest of them would make all steps short.
    """
    objectives = [_TaskObjective(*task) for task in tasks]
    matrices = _project(np.array(start, np.float64))
    with ctrl_c_waits():
        objective, gradient = _evaluate(matrices, objectives, gamma0, gamma)
    if not np.isfinite(objective):
        raise ValueError(
            "X: expected items whose squared distances are finite, got an infinite objective at the "
            "start; scale the items"
        )
    weights = np.array([gamma0] + [gamma] * len(objectives))[:, None, None]
    history = [objective]
    norm = float(np.linalg.norm(gradient))
    step = 1 / norm if norm > 0 else 0.0
    converged = norm == 0
    while len(history) <= max_iter and not converged:
        attempt = _project(matrices - step / (1 + 2 * step * weights) * gradient)
        with ctrl_c_waits():
            value, new_gradient = _evaluate(attempt, objectives, gamma0, gamma)
        if value <= objective:
            converged = objective - value <= tol * objective
            matrices, objective, gradient = attempt, value, new_gradient
            step *= 1.01
        else:
            step /= 2
        history.append(objective)
        if report is not None:
            report(len(history) - 1, objective)
    return MTLMNNSolution(matrices, objective, np.array(history), len(history) - 1, converged)


def _project(matrices: np.ndarray) -> np.ndarray:
    return np.array([_psd(matrix) for matrix in matrices])


@np.errstate(over="ignore", invalid="ignore")  # the caller looks at the objective
def _evaluate(
    matrices: np.ndarray, tasks: Sequence[_TaskObjective], gamma0: float, gamma: float
) -> tuple[float, np.ndarray]:
    common, own = matrices[0], matrices[1:]
    away = common - np.eye(len(common))
    gradient = 2 * gamma * matrices
    gradient[0] = 2 * gamma0 * away
    objective = gamma0 * float(np.vdot(away, away)) + gamma * float(np.vdot(own, own))
    for number, (task, matrix) in enumerate(zip(tasks, own, strict=True), start=1):
        value, slope = task.at_matrix(common + matrix)
        objective += value
        gradient[0] += slope
        gradient[number] += slope
    return objective, gradient


class _TaskObjective(_Objective):
    """f_t and its gradient as functions of M; the impostors are found by LMNN's own code."""

    def __init__(self, X: np.ndarray, codes: np.ndarray, targets: np.ndarray) -> None:
        super().__init__(X, targets, codes, mu=0.5)
        self._largest = max(1.0, float(row_products(self._X, self._X).max()))

    def at_matrix(self, M: np.ndarray) -> tuple[float, np.ndarray]:
        """f_t(M), and its gradient sum_{targets} C_ij + sum_{active} (C_ij - C_il), C_ij of differences."""
        if not np.isfinite(M).all():
            return np.inf, np.zeros_like(M)
        points = blas.dtrmm(1.0, self._root(M), self._X.T).T
        objective, pulls = self._at(points, self._X)
        gradient = 2 * (pulls.T @ self._X)
        return 2 * objective, (gradient + gradient.T) / 2

    def _root(self, M: np.ndarray) -> np.ndarray:
        """Upper triangular R with R'R = M, to rounding.

        Unlike eigenvectors, which may change signs and places at any time, it changes little where M does:
        lists of pairs last while points move little.
        """
        # Something to divide by where M is singular: as little as rounding may have taken from it, or what
        # adds less than the rounding of 1 to any distance.
        rounding = len(M) * np.finfo(np.float64).eps * float(M.diagonal().max())
        spare = max(rounding, 2.0**-55 / self._largest)
        while True:
            try:
                return cholesky(M + spare * np.eye(len(M)), overwrite_a=True, check_finite=False)
            except LinAlgError:
                spare *= 4
