"""Comparing several methods over several data sets: the tests of Friedman, Holm and Nemenyi.

The methods are ranked on every data set, rank 1 = best; with R_j the average rank of method j over N
data sets and k methods,

    chi2 = 12 N / (k (k+1)) (sum_j R_j^2 - k (k+1)^2 / 4)     Friedman, k - 1 degrees of freedom
    F    = (N-1) chi2 / (N (k-1) - chi2)          Iman and Davenport, k - 1 and (k-1)(N-1) degrees
    z    = (R_i - R_j) / sqrt(k (k+1) / (6 N))                one pair of methods, standard normal

(J. Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006). Ranks and
distributions are SciPy's; its own Friedman test needs three methods and corrects for ties (see
`friedman`), and it has no Holm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ..validation import check_integer, check_number


class PairComparison(NamedTuple):
    """Two methods compared by their average ranks; see `holm_pairwise`."""

    first: str
    second: str
    z: float  #: negative if the first method is better
    p_value: float  #: two-sided, for this pair alone
    adjusted_p_value: float  #: adjusted by Holm's method for all pairs


@dataclass(frozen=True, eq=False)
class FriedmanResult:
    """Result of `friedman`.

    Attributes
    ----------
    names : tuple of str
        The methods in the order of the columns.
    n_datasets : int
    ranks : (n_datasets, n_methods) array
        1 = best; ties share their mean rank.
    average_ranks : (n_methods,) array
    chi2, p_value : float
        Friedman's statistic and its p-value (chi squared with n_methods - 1 degrees of freedom).
    f_statistic, f_p_value : float
        Iman and Davenport's less conservative statistic; infinity if all data sets agree.
    """

    names: tuple[str, ...]
    n_datasets: int
    ranks: np.ndarray
    average_ranks: np.ndarray
    chi2: float
    p_value: float
    f_statistic: float
    f_p_value: float

    def pairwise(self) -> list[PairComparison]:
        """Compare all pairs of methods with `holm_pairwise`."""
        return holm_pairwise(self.average_ranks, self.n_datasets, self.names)


def friedman(
    scores: Any, *, lower_is_better: bool, names: Sequence[str] | None = None
) -> FriedmanResult:
    """Test whether some methods are better than others over a number of data sets.

    Parameters
    ----------
    scores : (n_datasets, n_methods) array
        One result per data set and method, at least two of each. Only the order within a data set
        matters; infinity is allowed, so that a method that did not finish can rank last.
    lower_is_better : bool
        True for errors and times, False for accuracies.
    names : sequence of str, optional
        The methods; "0", "1", ... if omitted.

    Returns
    -------
    FriedmanResult

    Notes
    -----
    ``chi2`` is 12 N / (k (k+1)) (sum_j R_j^2 - k (k+1)^2 / 4) for N data sets and k methods of average
    ranks R_j. It is not corrected for ties, as is usual in papers that compare learners.
    `scipy.stats.friedmanchisquare` divides the same number by 1 - sum (t^3 - t) / (N k (k^2 - 1)), the sum
    over all groups of t methods tied on one data set: without ties the two are equal, with ties SciPy's
    is larger and its p-value smaller. The chi-squared approximation is coarse below about 10 data sets or
    6 methods.

    Examples
    --------
    >>> seconds = [[0.1, 0.3, 0.5], [0.2, 0.2, 0.9], [1.5, 2.5, 2.0], [0.3, 0.4, 0.7]]
    >>> result = friedman(seconds, lower_is_better=True, names=["A", "B", "C"])
    >>> print(result.average_ranks)
    [1.125 2.125 2.75 ]
    >>> round(result.chi2, 3), round(result.p_value, 4), round(result.f_p_value, 4)
    (5.375, 0.0681, 0.0353)
    >>> best = result.pairwise()[0]
    >>> best.first, best.second, round(best.adjusted_p_value, 4)
    ('A', 'C', 0.0647)
    """
    try:
        scores = np.asarray(scores)
    except ValueError as error:
        raise ValueError(f"scores: expected a rectangular array of numbers ({error})") from None
    if scores.dtype.kind not in "biuf":
        raise TypeError(f"scores: expected real numbers, got dtype {scores.dtype}")
    if scores.ndim != 2 or min(scores.shape) < 2:
        raise ValueError(
            "scores: expected shape (n_datasets, n_methods) with at least 2 of each, "
            f"got {scores.shape}"
        )
    if np.isnan(scores).any():
        row, column = np.argwhere(np.isnan(scores))[0]
        raise ValueError(
            f"scores: expected numbers, got NaN for data set {row}, method {column} "
            f"({np.isnan(scores).sum()} NaN in all)"
        )
    if not isinstance(lower_is_better, (bool, np.bool_)):
        raise TypeError(f"lower_is_better: expected True or False, got {lower_is_better!r}")
    n, k = scores.shape
    method_names = _check_names(names, k)
    ranks = stats.rankdata(scores, axis=1)  # equal scores share the mean of their ranks
    if not lower_is_better:
        ranks = k + 1 - ranks
    # Sums of ranks are multiples of 1/2, so `spread` is exact and never exceeds `most`.
    spread = float(np.sum((ranks.sum(axis=0) - n * (k + 1) / 2) ** 2))
    most = n**2 * k * (k**2 - 1) / 12  # reached if all data sets agree, without ties
    chi2 = 12 * spread / (n * k * (k + 1))
    f_statistic = (n - 1) * spread / (most - spread) if spread < most else math.inf
    return FriedmanResult(
        names=method_names,
        n_datasets=n,
        ranks=ranks,
        average_ranks=ranks.mean(axis=0),
        chi2=chi2,
        p_value=float(stats.chi2.sf(chi2, k - 1)),
        f_statistic=f_statistic,
        f_p_value=float(stats.f.sf(f_statistic, k - 1, (k - 1) * (n - 1))),
    )


def holm_pairwise(
    average_ranks: Any, n_datasets: int, names: Sequence[str] | None = None
) -> list[PairComparison]:
    """Compare all pairs of methods, with p-values adjusted for multiple testing by Holm's method.

    Of the m = k (k-1) / 2 p-values in ascending order, the i-th is adjusted to the largest of
    (m - j + 1) p_j for j <= i, and at most 1.

    Parameters
    ----------
    average_ranks : (n_methods,) array
        From `friedman`, or as printed in a paper; rank 1 = best. Their mean must be
        (n_methods + 1) / 2, up to a rounding error of 0.05.
    n_datasets : int
        Number of data sets over which the ranks were averaged, at least 2.
    names : sequence of str, optional
        The methods; "0", "1", ... if omitted.

    Returns
    -------
    list of PairComparison
        All pairs ``(first, second, z, p_value, adjusted_p_value)``, smallest p-value first; `first`
        precedes `second` in `names`.

    Examples
    --------
    >>> for pair in holm_pairwise([1.2, 2.1, 2.7], n_datasets=15, names=["A", "B", "C"]):
    ...     print(pair.first, pair.second, *np.round(pair[2:], 4))
    A C -4.1079 0.0 0.0001
    A B -2.4648 0.0137 0.0274
    B C -1.6432 0.1003 0.1003
    """
    n = check_integer("n_datasets", n_datasets, minimum=2)
    average_ranks = np.asarray(average_ranks)
    k = average_ranks.size
    if average_ranks.ndim != 1 or k < 2:
        raise ValueError(
            "average_ranks: expected one for each of at least 2 methods, "
            f"got shape {average_ranks.shape}"
        )
    if average_ranks.dtype.kind not in "iuf":
        raise TypeError(f"average_ranks: expected real numbers, got dtype {average_ranks.dtype}")
    ranks = average_ranks.astype(np.float64)
    bad = np.flatnonzero(~((ranks >= 1) & (ranks <= k)))  # also NaN
    if bad.size:
        raise ValueError(
            f"average_ranks: expected numbers from 1 to {k}, got {ranks[bad[0]]} for method {bad[0]}"
        )
    if abs(ranks.mean() - (k + 1) / 2) > 0.05 + 1e-9:
        raise ValueError(
            f"average_ranks: expected ranks with mean {(k + 1) / 2:g}, got mean {ranks.mean():g}"
        )
    method_names = _check_names(names, k)
    pairs = np.array(list(combinations(range(k), 2)))
    z = (ranks[pairs[:, 0]] - ranks[pairs[:, 1]]) / math.sqrt(k * (k + 1) / (6 * n))
    p = 2 * stats.norm.sf(np.abs(z))
    order = np.argsort(p, kind="stable")
    pairs, z, p = pairs[order], z[order], p[order]
    # Same as statsmodels' multipletests(p, method="holm"), which is not worth a dependency.
    adjusted = np.minimum(1, np.maximum.accumulate(np.arange(p.size, 0, -1) * p))
    return [
        PairComparison(method_names[i], method_names[j], *map(float, values))
        for (i, j), *values in zip(pairs, z, p, adjusted, strict=True)
    ]


def critical_difference(k: int, n_datasets: int, alpha: float = 0.05) -> float:
    """Return the smallest difference of average ranks that is significant by Nemenyi's test.

    It is q sqrt(k (k+1) / (6 N)), where q is the quantile of the studentized range of k normal
    variables, divided by sqrt(2). `holm_pairwise` on the same ranks is the more powerful test.

    Parameters
    ----------
    k : int
        Number of methods, at least 2.
    n_datasets : int
        Number of data sets N, at least 2.
    alpha : float, default 0.05
        Probability, between 0 and 1, of finding any difference when all methods are equal.

    Examples
    --------
    >>> round(critical_difference(4, n_datasets=14), 3)
    1.254
    """
    k = check_integer("k", k, minimum=2)
    n = check_integer("n_datasets", n_datasets, minimum=2)
    alpha = check_number("alpha", alpha)
    if alpha >= 1:
        raise ValueError(f"alpha: expected a number between 0 and 1, got {alpha!r}")
    q = stats.studentized_range.ppf(1 - alpha, k, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(k * (k + 1) / (6 * n)))


def _check_names(names: Sequence[str] | None, k: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(k)))
    if isinstance(names, str):
        raise TypeError(f"names: expected a sequence of strings, got the string {names!r}")
    checked = tuple(map(str, names))
    if len(checked) != k or len(set(checked)) != k:
        raise ValueError(f"names: expected {k} different names, one per method, got {checked}")
    return checked


class Interval(NamedTuple):
    """A mean, and the interval that it lies in with a given confidence.

    Examples
    --------
    >>> Interval(0.2, 0.1, 0.3).low
    0.1
    """

    mean: float
    low: float
    high: float


def paired_interval(
    differences: Any,
    confidence: float = 0.95,
    *,
    n_resamples: int = 2000,
    random_state: int | None = 0,
) -> Interval:
    """Return the mean of differences and its bootstrap interval.

    Two rankings of the same queries are compared by the differences of a measure, query by query: what makes
    a query hard for both does not widen the interval.

    Parameters
    ----------
    differences : (n,) array
        One value per query; NaN, for queries that were not measured, is left out.
    confidence : float, default 0.95
        Between 0 and 1.
    n_resamples : int, default 2000
        Means of that many samples of n values, drawn with replacement; their quantiles are the interval.
    random_state : int or None, default 0

    Examples
    --------
    >>> before, after = np.array([0.2, 0.5, 0.9, 0.4]), np.array([0.5, 0.6, 0.9, 0.9])
    >>> gain = paired_interval(after - before)
    >>> round(gain.mean, 3), gain.low > 0
    (0.225, True)
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"differences: expected one per query, got shape {values.shape}")
    values = values[~np.isnan(values)]
    if not values.size or not np.isfinite(values).all():
        raise ValueError("differences: expected at least one, and finite numbers")
    confidence = check_number("confidence", confidence)
    if confidence >= 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
    n_resamples = check_integer("n_resamples", n_resamples)
    rng = np.random.default_rng(random_state)
    # One sample at a time: 2000 samples of many queries would not fit into memory.
    means = [values[rng.integers(values.size, size=values.size)].mean() for _ in range(n_resamples)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(values.mean()), float(low), float(high))
