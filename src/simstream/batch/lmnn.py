"""LMNN: large margins between neighbours of different classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..similarity.mahalanobis import Spectrum
from ..validation import check_integer, check_items, check_number
from .base import BatchMetric, check_several_classes, documented


@documented("Objective at the start and after every iteration")
class LMNN(BatchMetric):
    """Large margin nearest neighbours: pull the k nearest of one's class, push others a margin away.

    Minimises (1 - mu) sum_{i, j in T(i)} d(i, j) + mu sum_{i, j in T(i)} sum_l [1 + d(i, j) - d(i, l)]+ over
    L, M = L'L, where T(i) are the k nearest items of i's class (Euclidean, fixed) and l runs over the items
    of other classes. Gradient steps on L: halved when the objective rises, 1 % longer when it falls.

    Parameters
    ----------
    k : int
        Target neighbours of each item; every class needs more members than that.
    mu : float between 0 and 1
        Weight of the push.
    init : "identity" or array of shape (q, d)
        The first L; q < d learns a projection to q dimensions.
    max_iter : int
    tol : float
        Stops after `patience` iterations in a row that change the objective by less.
    patience : int
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

    _saved_numbers = ("n_iter_", "converged_", "objective_")

    def __init__(
        self,
        k: int = 3,
        mu: float = 0.5,
        *,
        init: Any = "identity",
        max_iter: int = 1000,
        tol: float = 1e-3,
        patience: int = 50,
        callback: Any = None,
        verbose: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.k = k
        self.mu = mu
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.patience = patience
        self.callback = callback
        self.verbose = verbose
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        check_integer("k", self.k)
        if check_number("mu", self.mu, exclusive=False) > 1:
            raise ValueError(f"mu: expected at most 1, got {self.mu}")
        check_integer("max_iter", self.max_iter)
        check_integer("patience", self.patience)
        check_number("tol", self.tol, exclusive=False)
        self._check_init()

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        from .solve_lmnn import solve_lmnn

        check_several_classes(classes)
        sizes = np.bincount(codes)
        if sizes.min() <= self.k:
            small = int(np.argmin(sizes))
            raise ValueError(
                f"k: expected fewer neighbours than each class has members, got k = {self.k} and class "
                f"{classes[small]} with {sizes[small]} (n_samples = {len(X)})"
            )
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
            max_iter=self.max_iter,
            tol=self.tol,
            patience=self.patience,
            report=self._report(),
        )
        self.objective_ = float(solution.objective)
        self._keep(Spectrum.of_components(solution.components))
        self._keep_history(solution)
