"""LDA: the directions that tell classes apart, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ..similarity.discriminant import SHRINKAGE, WEIGHTS, check_closed_form, weighted
from ..similarity.learner import documented
from ..similarity.mahalanobis import Spectrum
from ..validation import check_choice
from .base import (
    BatchMetric,
    batch_documented,
    check_several_classes,
    check_some_class_has_two,
)


@batch_documented()
@documented(
    shrinkage=SHRINKAGE.replace("{groups}", "classes"),
    weights=WEIGHTS.replace("{groups}", "classes"),
)
class LDA(BatchMetric):
    """Linear discriminant analysis as a distance: items are compared where classes differ.

    M = sum_k a_k w_k w_k' over the directions with the largest ratios w'Tw / w'Cw of the variance of all
    items to the variance inside classes, w'Cw = 1; a_k = 1 - 1 / ratio_k, or 1 for all. In closed form, by
    scikit-learn's `LinearDiscriminantAnalysis`.

    Parameters
    ----------
    n_components : int, optional
        Number of directions, below the number of classes and at most that of features; None is as many as
        possible.
    {shrinkage}
    {weights}
    {normalise}
    preprocessor : array or function of an array of keys, optional
        Items that row numbers refer to: where `fit` or `transform` gets a one-dimensional X, and in
        `pair_distance` and the like.

    Attributes
    ----------
    {attributes}
    ratios_ : array of shape (q,)
        Ratio of total to inner variance of each direction, largest first.

    Notes
    -----
    ``weights="equal"`` maps items as scikit-learn's ``transform`` does, up to a rotation. Where pairs or
    triplets are known and classes are not, `RCA` with ``shrinkage="auto", weights="between"`` does the same
    with all directions.

    References
    ----------
    Ledoit, Wolf. A well-conditioned estimator for large-dimensional covariance matrices. Journal of
    Multivariate Analysis 2004.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from simstream import LDA
    >>> from simstream.metrics import mean_average_precision
    >>> X, y = load_wine(return_X_y=True)
    >>> model = LDA().fit(X[::2], y[::2])
    >>> model.transform(X).shape
    (178, 2)
    >>> mean_average_precision(model, X[1::2], y[1::2]) > 0.9
    True
    """

    _saved_numbers = ()
    _saved_arrays = ("ratios_",)

    def __init__(
        self,
        n_components: int | None = None,
        *,
        shrinkage: Any = "auto",
        weights: str = "between",
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.n_components = n_components
        self.shrinkage = shrinkage
        self.weights = weights
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        self._check_integers_or_none("n_components")
        check_closed_form(self.shrinkage, self.weights)
        check_choice("normalise", self.normalise, (False, True))

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_several_classes(classes)
        check_some_class_has_two(codes, "have a variance inside classes")
        most = min(len(classes) - 1, X.shape[1])
        n_components = most if self.n_components is None else self.n_components
        if n_components > most:
            raise ValueError(
                f"n_components: expected at most {most} (one less than classes, and no more than features), "
                f"got {n_components}"
            )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            directions = _directions(X, codes, self.shrinkage)[:, :n_components]
            ratios = np.var(X @ directions, axis=0)
        if not np.isfinite(ratios).all():
            raise ValueError("X: expected items whose squares are finite; scale the items")
        components = weighted(directions.T, ratios, self.weights)
        self.ratios_ = ratios
        self._keep(Spectrum.of_components(components))


def _directions(X: np.ndarray, codes: np.ndarray, shrinkage: Any) -> np.ndarray:
    """Directions (columns) of variance one inside classes, the largest ratio first."""
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=shrinkage)
    try:
        return lda.fit(X, codes).scalings_
    except LinAlgError as error:
        raise ValueError(
            "X: expected items that vary inside classes in every direction, got a singular covariance; leave "
            "out features that are constant there, or use shrinkage='auto'"
        ) from error
