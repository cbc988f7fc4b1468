"""MCML: every class collapsed to a point."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..similarity.mahalanobis import Spectrum, first_metric
from ..validation import check_integer, check_number
from .base import BatchMetric, check_several_classes, check_some_class_has_two, documented


@documented("Objective at the start and after every iteration")
class MCML(BatchMetric):
    """Maximally collapsing metric learning: items of one class together, all others infinitely far.

    Minimises sum_i KL(p0(.|i) || p(.|i)) with p(j|i) proportional to exp(-d(i, j)) and p0 uniform over the
    other items of i's class: a convex problem in M, solved by projected gradients with backtracking and the
    step lengths of Barzilai and Borwein.

    Parameters
    ----------
    init : "identity" or matrix of shape (d, d)
        The first M, symmetric and positive semi-definite.
    max_iter : int
    tol : float
        Stops when an iteration decreases the objective by less.
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

    _saved_numbers = ("n_iter_", "converged_", "objective_")

    def __init__(
        self,
        *,
        init: Any = "identity",
        max_iter: int = 100,
        tol: float = 1e-4,
        callback: Any = None,
        verbose: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.callback = callback
        self.verbose = verbose
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        check_integer("max_iter", self.max_iter)
        check_number("tol", self.tol, exclusive=False)
        self._check_init()

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        from .solve_mcml import solve_mcml

        check_several_classes(classes)
        check_some_class_has_two(codes, "learn from")
        start = first_metric(self.init, X.shape[1])
        solution = solve_mcml(
            X, codes, start=start, max_iter=self.max_iter, tol=self.tol, report=self._report()
        )
        self.objective_ = float(solution.objective)
        self._keep(Spectrum.of_matrix(solution.matrix))
        self._keep_history(solution)
