"""ITML: cyclic Bregman projections on the constraints of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._interrupts import ctrl_c_waits

#: From this dimension on blocks are faster than single projections.
_BLOCKS_FROM = 128


class ITMLSolution(NamedTuple):
    """Matrix, dual variables, relaxed targets, and the change of the dual variables in every sweep."""

    matrix: np.ndarray
    dual: np.ndarray
    slack: np.ndarray
    history: list[float]
    n_iter: int
    converged: bool


def solve_itml(
    v: np.ndarray,
    labels: np.ndarray,
    targets: np.ndarray,
    gamma: float,
    *,
    start: np.ndarray,
    max_iter: int,
    tol: float,
    block_size: int | None = None,
    report: Callable[[int, float], None] | None = None,
) -> ITMLSolution:
    """Sweep over the pairs until the dual variables settle.

    Parameters
    ----------
    v : array of shape (n, d)
        Differences of the pairs, none of them zero.
    labels : array of +1 and -1
    targets : two numbers
        Squared distances that similar pairs should not exceed, that dissimilar ones should reach.
    gamma : float
        Price of a violation.
    """
    from .._kernels.blocked import Blas
    from .._kernels.logdet import itml_sweep_blocked, itml_sweep_singly

    d = v.shape[1]
    block = block_size or (1 if d < _BLOCKS_FROM else 32)
    v, labels = np.ascontiguousarray(v, np.float64), np.ascontiguousarray(labels, np.float64)
    a = np.array(start, np.float64, order="C")
    dual, slack = np.zeros(len(v)), np.where(labels > 0, targets[0], targets[1]).astype(np.float64)
    step = gamma / (gamma + 1.0) if np.isfinite(gamma) else 1.0
    ops = Blas(np.dtype(np.float64))
    history: list[float] = []
    for iteration in range(1, max_iter + 1):
        before = dual.copy()
        with ctrl_c_waits():
            if block == 1:
                itml_sweep_singly(a, v, labels, slack, dual, gamma, step)
            else:
                itml_sweep_blocked(ops, a, v, labels, slack, dual, gamma, step, block)
        if not np.isfinite(a).all():
            raise ArithmeticError(
                f"ITML: sweep {iteration} left the finite numbers; expected pairs that a distance can "
                "satisfy, use a smaller gamma or other targets"
            )
        size = np.linalg.norm(dual) + np.linalg.norm(before)
        change = float(np.abs(dual - before).sum() / size) if size > 0 else 0.0
        history.append(change)
        if report is not None:
            report(iteration, change)
        if change <= tol:
            return ITMLSolution((a + a.T) / 2, dual, slack, history, iteration, True)
    return ITMLSolution((a + a.T) / 2, dual, slack, history, max_iter, False)
