"""A metric in closed form: directions in which items vary much between groups, and little inside them.

With the covariance C inside groups and the covariance T of all items, directions w solve T w = ratio C w with
w'Cw = 1: the ratio is the variance of all items along w where that inside groups is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigh
from sklearn.covariance import ledoit_wolf_shrinkage, shrunk_covariance

from ..data.comparisons import Comparisons
from ..validation import Items, check_choice, check_number
from .mahalanobis import Spectrum

#: Fewest similar pairs, and most pairs and items, that the metric of tuples is worked out from.
FEWEST_PAIRS = 10
MOST_PAIRS = 20_000

#: The name of that metric as the first matrix of a learner, for messages.
_FIRST = "init='lda'"

#: The parameters `shrinkage` and `weights` in docstrings.
SHRINKAGE = """shrinkage : None, "auto" or number from 0 to 1
        How far the covariance inside {groups} is moved towards one without correlations; "auto" is the
        share by Ledoit and Wolf, for features in units of their standard deviations. It matters where
        features are many and items few."""

WEIGHTS = """weights : "between" or "equal"
        What a direction counts for: the share of its variance that is between {groups}, 1 - 1 / ratio for a
        ratio of total to inner variance; or all the same."""


class NoDirectionError(ValueError):
    """No direction varies more between groups than inside them."""


def check_closed_form(shrinkage: Any, weights: Any) -> None:
    """Check the two parameters."""
    if shrinkage is not None and not isinstance(shrinkage, str):
        if check_number("shrinkage", shrinkage, exclusive=False) > 1:
            raise ValueError(f"shrinkage: expected at most 1, got {shrinkage}")
    else:
        check_choice("shrinkage", shrinkage, (None, "auto"))
    check_choice("weights", weights, ("between", "equal"))


def inner_covariance(
    deviations: np.ndarray, shrinkage: Any, n_independent: int | None = None
) -> np.ndarray:
    """Covariance of rows around zero, shrunk as the parameter says.

    Parameters
    ----------
    deviations : array of shape (n, d)
    shrinkage : None, "auto" or number from 0 to 1
    n_independent : int, optional
        How many rows "auto" may count as drawn independently; the first ones. None for all.

    Examples
    --------
    >>> import numpy as np
    >>> inner_covariance(np.array([[3.0, 1.0], [-3.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]), 0.5)
    array([[5., 1.],
           [1., 1.]])
    """
    with np.errstate(over="ignore", invalid="ignore"):  # who uses it checks that it is finite
        covariance = deviations.T @ deviations / len(deviations)
        variances = covariance.diagonal()
        if shrinkage is None or not np.isfinite(variances).all():
            return covariance
        units = np.sqrt(np.where(variances > 0, variances, 1.0))
        share = shrinkage
        if isinstance(shrinkage, str):
            rows = deviations[:n_independent] / units
            share = ledoit_wolf_shrinkage(rows, assume_centered=True)
        both = np.outer(units, units)
        return shrunk_covariance(covariance / both, float(share)) * both


def discriminant(
    inner: np.ndarray,
    total: np.ndarray,
    n_components: int | None,
    weights: str,
    *,
    inflation: float = 1.0,
) -> Spectrum:
    """The metric whose directions have the largest ratios of total to inner variance.

    With "between" and all components it is inv(C) - inv(T), its positive part.

    Parameters
    ----------
    inner, total : arrays of shape (d, d)
    n_components : int or None for all
    weights : "between" or "equal"
    inflation : float
        What ratios are multiplied by before they become weights, where `inner` is too small.
    """
    ratios, columns = eigh(total, inner)
    ratios, components = ratios[::-1][:n_components], columns.T[::-1][:n_components]
    return Spectrum.of_components(weighted(components, ratios * inflation, weights))


def weighted(components: np.ndarray, ratios: np.ndarray, weights: str) -> np.ndarray:
    """Directions (rows) of inner variance one, as long as the roots of what they count for.

    Examples
    --------
    >>> import numpy as np
    >>> weighted(np.eye(2), np.array([4.0 / 3.0, 1.0]), "between")
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    if weights == "equal":
        return components
    shares = 1.0 - 1.0 / np.maximum(ratios, 1.0)
    if not shares.any():
        raise NoDirectionError(
            "weights: expected 'equal' where no direction varies more between groups than inside them, got "
            "'between'"
        )
    return components * np.sqrt(shares)[:, None]


def check_dense_space(tuples: Comparisons) -> None:
    """Raise if there is no `metric_of_tuples` of such items, whatever the tuples are."""
    tuples.check_one_space(_FIRST)
    if tuples.is_sparse:
        raise ValueError(f"{_FIRST}: expected dense items, got sparse ones; start from a matrix")


def metric_of_tuples(tuples: Comparisons) -> np.ndarray:
    """M of the similar pairs (the first two columns) of tuples, among all their items: dense, in one space.

    Half the squared differences of similar pairs are the covariance inside groups, whatever the groups are.
    """
    check_dense_space(tuples)
    if len(tuples) < FEWEST_PAIRS:
        raise ValueError(
            f"{_FIRST}: expected at least {FEWEST_PAIRS} tuples in the first call to work it out from, got "
            f"{len(tuples)}; start from a matrix, such as that of LDA"
        )
    some = tuples.index[_spread(len(tuples))]
    pairs = tuples.left.values[some[:, 0]].astype(np.float64) - tuples.right.values[some[:, 1]]
    sides = [tuples.left] if tuples.left is tuples.right else [tuples.left, tuples.right]
    items = np.concatenate([_some_rows(side) for side in sides])
    inner = inner_covariance(pairs / np.sqrt(2), "auto", len(items))
    size = np.trace(inner) / len(inner)
    if not (size > 0 and np.isfinite(size)):
        raise ValueError(f"{_FIRST}: expected similar pairs of different items, got equal ones")
    inner += 1e-9 * size * np.eye(len(inner))  # features that never vary among similar ones
    total = np.cov(items, rowvar=False, bias=True).reshape(inner.shape)
    try:
        return discriminant(inner, total, None, "between").matrix()
    except NoDirectionError as error:
        raise NoDirectionError(
            f"{_FIRST}: expected similar pairs (anchors and positives) that differ less than all items do, "
            "at least in one direction, got none such; start from init='identity'"
        ) from error


def _spread(n: int) -> np.ndarray:
    """At most so many numbers below n, at equal distances."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_PAIRS)).astype(np.int64))


def _some_rows(items: Items) -> np.ndarray:
    return items.values[_spread(items.shape[0])].astype(np.float64)
