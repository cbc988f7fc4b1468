"""NCA: the map that makes the neighbours of items their own class, by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from ..similarity.mahalanobis import Spectrum
from ..validation import check_choice, check_integer, check_number
from .base import (
    BatchMetric,
    batch_documented,
    check_several_classes,
    check_some_class_has_two,
)


@batch_documented()
class NCA(BatchMetric):
    """Neighbourhood components analysis: a map after which neighbours drawn at random are of the same class.

    max_L sum_i sum_{j of i's class} p(j|i) with p(j|i) proportional to exp(-||Lx_i - Lx_j||^2), j != i, and
    M = L'L. Not convex; scikit-learn's `NeighborhoodComponentsAnalysis` climbs from `init` by L-BFGS. A step
    costs the square of the number of items.

    Parameters
    ----------
    n_components : int, optional
        Rows of L; None is the number of features.
    init : "auto", "pca", "lda", "identity", "random" or matrix of shape (n_components, d)
        The first L. "auto" is "lda", "pca" or "identity", by the numbers of components, classes and features.
    max_iter : int
        Largest number of iterations.
    tol : float
        Tolerance of L-BFGS.
    random_state : None, int or RandomState
        Seed of ``init="random"``, and of "pca".
    {normalise}
    preprocessor : array or function of an array of keys, optional
        Items that row numbers refer to: where `fit` or `transform` gets a one-dimensional X, and in
        `pair_distance` and the like.

    Attributes
    ----------
    {attributes}
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether L-BFGS stopped before `max_iter` iterations.

    References
    ----------
    Goldberger, Hinton, Roweis, Salakhutdinov. Neighbourhood components analysis. NIPS 2004.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from simstream import NCA
    >>> X, y = load_wine(return_X_y=True)
    >>> model = NCA(n_components=2, max_iter=200, random_state=0).fit(scale(X), y)
    >>> model.transform(scale(X)).shape, model.converged_
    ((178, 2), True)
    """

    _saved_numbers = ("n_iter_", "converged_")
    _saved_arrays = ()

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Any = "auto",
        max_iter: int = 50,
        tol: float = 1e-5,
        random_state: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        self._check_integers_or_none("n_components")
        self._check_init("auto", "pca", "lda", "identity", "random")
        check_integer("max_iter", self.max_iter)
        check_number("tol", self.tol, exclusive=False)
        check_choice("normalise", self.normalise, (False, True))

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_several_classes(classes)
        check_some_class_has_two(codes, "be a neighbour")
        init = self.init if isinstance(self.init, str) else np.asarray(self.init, np.float64)
        solver = NeighborhoodComponentsAnalysis(
            self.n_components,
            init=init,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=self.random_state,
        )
        with np.errstate(all="ignore"):  # what overflows is not finite in the end
            solver.fit(X, codes)
        if not np.isfinite(solver.components_).all():
            raise ValueError(
                "X: expected items whose squared distances are finite; scale the items"
            )
        self.n_iter_ = int(solver.n_iter_)
        self.converged_ = self.n_iter_ < self.max_iter
        self._keep(Spectrum.of_components(solver.components_))
