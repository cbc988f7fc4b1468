"""Feature selection from labelled items: mRMR and CSFS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from sklearn.utils.multiclass import check_classification_targets

from .validation import check_choice, check_integer, check_items, check_number

#: Features with at most this many different values are not discretised.
_FEW_VALUES = 5

#: Score of a feature from its relevance and its average redundancy.
_SCHEMES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "MID": lambda relevance, redundancy: relevance - redundancy,
    "MIQ": lambda relevance, redundancy: relevance / (redundancy + 1e-12),
}

#: Scores that differ by less, relative to one or to the best, are equal: rounding must not decide ties.
_TIE = 1e-12

#: Smaller row norms are replaced by this before dividing by them (CSFS).
_LEAST_NORM = 1e-8


# -- mRMR -----------------------------------------------------------------------------------------


def mrmr(X: Any, y: Any, q: int, *, scheme: str = "MID") -> np.ndarray:
    """Choose q features that are informative about the class and not redundant with each other.

    Minimum redundancy, maximum relevance: the first feature has the largest mutual information I(f; y) with
    the class; each of the following maximises I(f; y) minus the average I(f; g) over the features g chosen so
    far, or their ratio. Mutual information is computed from the observed frequencies, in nats.

    Features with more than 5 different values are discretised into three states: more than one standard
    deviation below the mean, more than one above it, and in between. The others are used unchanged.

    Parameters
    ----------
    X : array of shape (n_items, n_features)
    y : array of shape (n_items,)
        Class of each item.
    q : int
        Number of features to choose.
    scheme : "MID" or "MIQ"
        Relevance minus redundancy, or relevance divided by redundancy (plus 1e-12).

    Returns
    -------
    array of q integers
        The features in the order they were chosen; ties go to the lower index.

    References
    ----------
    Peng, Long, Ding. Feature selection based on mutual information: criteria of max-dependency,
    max-relevance, and min-redundancy. IEEE TPAMI 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import mrmr
    >>> rng = np.random.default_rng(0)
    >>> a, b, noise = rng.integers(0, 2, (3, 200))
    >>> X = np.column_stack([noise, a, a, b])
    >>> mrmr(X, 2 * a + b, 2)  # the copy of a feature adds nothing
    array([3, 1])
    """
    check_choice("scheme", scheme, tuple(_SCHEMES))
    X, codes, _ = _read(X, y)
    q = _check_count(q, X.shape[1])
    features = _Discrete(_discretized(X))
    relevance = features.information(_Discrete(codes[None]), 0)
    redundancy = np.zeros(len(relevance))
    left = np.ones(len(relevance), bool)
    chosen: list[int] = []
    score = relevance
    while True:
        chosen.append(_first_best(np.where(left, score, -np.inf)))
        left[chosen[-1]] = False
        if len(chosen) == q:
            return np.array(chosen)
        redundancy += features.information(features, chosen[-1])
        score = _SCHEMES[scheme](relevance, redundancy / len(chosen))


def _first_best(scores: np.ndarray) -> int:
    """The lowest index among those with the largest score."""
    best = scores.max()
    return int(np.argmax(scores >= best - _TIE * max(1.0, abs(best))))


def _discretized(X: np.ndarray) -> np.ndarray:
    """States 0, 1, ... of every feature, one row per feature."""
    rows = np.ascontiguousarray(X.T)
    mean, deviation = rows.mean(axis=1, keepdims=True), rows.std(axis=1, keepdims=True)
    states = 1 + (rows > mean + deviation).astype(np.int64) - (rows < mean - deviation)
    ordered = np.sort(rows, axis=1)
    n_values = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    for feature in np.flatnonzero(n_values <= _FEW_VALUES):
        states[feature] = np.unique(rows[feature], return_inverse=True)[1]
    return states


class _Discrete:
    """Discrete variables over the same items: for each state, the set of its items as a bit mask."""

    def __init__(self, states: np.ndarray) -> None:
        n_variables, self._n = states.shape
        n_states = int(states.max()) + 1
        sets = np.zeros((n_variables, n_states, 8 * -(-self._n // 64)), np.uint8)
        for state in range(n_states):
            packed = np.packbits(states == state, axis=1)
            sets[:, state, : packed.shape[1]] = packed
        self._sets = sets.view(np.uint64)
        counts = np.arange(1, self._n + 1)
        self._terms = np.append(0.0, counts / self._n * np.log(self._n / counts))
        self._entropies = self._entropy(self._sizes(self._sets))

    def information(self, other: _Discrete, number: int) -> np.ndarray:
        """Mutual information of every variable with variable `number` of `other`, in nats."""
        joint = [self._sizes(self._sets & of_state) for of_state in other._sets[number]]
        together = self._entropy(np.concatenate(joint, axis=1))
        return np.maximum(0.0, self._entropies + other._entropies[number] - together)

    @staticmethod
    def _sizes(sets: np.ndarray) -> np.ndarray:
        return np.bitwise_count(sets).sum(axis=2, dtype=np.int64)

    def _entropy(self, counts: np.ndarray) -> np.ndarray:
        """Entropies from counts, one row per variable."""
        return self._terms[counts].sum(axis=1)


# -- CSFS -----------------------------------------------------------------------------------------


class CSFSResult(NamedTuple):
    """Result of `csfs_weights`."""

    weights: np.ndarray  #: V, of shape (n_features, n_classes)
    intercept: np.ndarray  #: b, of shape (n_classes,)
    ranking: np.ndarray  #: all features, the one with the longest row of V first
    history: np.ndarray  #: objective after every iteration
    n_iter: int
    converged: bool  #: whether V settled within `max_iter` iterations


def csfs(
    X: Any,
    y: Any,
    q: int | None = None,
    *,
    mu: float = 1.0,
    max_iter: int = 50,
    tol: float = 1e-6,
) -> np.ndarray:
    """Choose the features with the largest weights in a row-sparse regression on the classes.

    Convex semi-supervised multi-label feature selection, with all labels given: minimises
    sum_i ||V'x_i + b - y_i||^2 + mu sum_k ||V_k|| over V and b, where y_i is the one-hot vector of the class
    of item i and V_k is the row of feature k. Features are ranked by ||V_k||, so scale them alike first.

    Parameters
    ----------
    X : array of shape (n_items, n_features)
    y : array of shape (n_items,)
        Class of each item.
    q : int, optional
        Number of features to choose; all of them if None.
    mu : float
        Weight of the penalty: the larger, the fewer features matter. 0 means least squares.
    max_iter : int
        Largest number of iterations.
    tol : float
        Stop when V changes by at most this share of its norm.

    Returns
    -------
    array of q integers
        The features, longest row first; ties go to the lower index.

    References
    ----------
    Chang, Nie, Yang, Huang. A convex formulation for semi-supervised multi-label feature selection. AAAI
    2014.

    See Also
    --------
    csfs_weights : the weights and the history of the objective.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from simstream import csfs
    >>> X, y = load_wine(return_X_y=True)
    >>> csfs(scale(X), y, 3)
    array([ 6, 12,  9])
    """
    if q is not None:
        check_integer("q", q)
    ranking = csfs_weights(X, y, mu=mu, max_iter=max_iter, tol=tol).ranking
    return ranking if q is None else ranking[: _check_count(q, len(ranking))]


def csfc(
    X: Any,
    y: Any,
    q: int | None = None,
    *,
    mu: float = 1.0,
    max_iter: int = 50,
    tol: float = 1e-6,
) -> np.ndarray:
    """Choose features by `csfs`, under the name of a baseline in a paper on low-rank similarity.

    Warning: the source of that paper's CSFC is not public, and no other feature selection method of that name
    is known. This is CSFS, the closest known method; results may differ from those published for CSFC.
    Parameters and result are those of `csfs`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import csfc
    >>> csfc(*load_iris(return_X_y=True), 2)
    array([3, 1])
    """
    return csfs(X, y, q, mu=mu, max_iter=max_iter, tol=tol)


def csfs_weights(
    X: Any, y: Any, *, mu: float = 1.0, max_iter: int = 50, tol: float = 1e-6
) -> CSFSResult:
    """Solve the problem of `csfs`, and return the weights and the history of the objective.

    Solved by iterative reweighting: V = (X'HX + mu D)^{-1} X'HY with D = diag(1 / (2 max(||V_k||, 1e-8))) of
    the previous V and H = I - 11'/n, starting from D = I. For mu = 0 it is the minimum-norm least-squares
    solution.

    Parameters
    ----------
    X, y, mu, max_iter, tol : as in `csfs`

    Returns
    -------
    CSFSResult
        weights, intercept, ranking, history, n_iter, converged

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import csfs_weights
    >>> found = csfs_weights(*load_iris(return_X_y=True))
    >>> found.weights.shape, bool(found.history[-1] < found.history[0])
    ((4, 3), True)
    """
    mu = check_number("mu", mu, exclusive=False)
    check_integer("max_iter", max_iter)
    check_number("tol", tol, exclusive=False)
    X, codes, n_classes = _read(X, y)
    means = X.mean(axis=0)
    centred = X - means
    Y = np.eye(n_classes)[codes]
    shares = Y.mean(axis=0)
    Y -= shares
    history: list[float] = []
    converged = False
    V = np.zeros((X.shape[1], n_classes))
    solve = _ridge(centred, Y, mu)
    scale = np.ones(X.shape[1])  # 1 / D
    while len(history) < max_iter and not converged:
        new = solve(scale)
        norms = np.linalg.norm(new, axis=1)
        history.append(float(np.sum((centred @ new - Y) ** 2) + mu * norms.sum()))
        converged = mu == 0 or bool(np.linalg.norm(new - V) <= tol * np.linalg.norm(new))
        V, scale = new, 2 * np.maximum(norms, _LEAST_NORM)
    ranking = np.argsort(-np.linalg.norm(V, axis=1), kind="stable")
    return CSFSResult(V, shares - means @ V, ranking, np.array(history), len(history), converged)


def _ridge(X: np.ndarray, Y: np.ndarray, mu: float) -> Callable[[np.ndarray], np.ndarray]:
    """The function of s that returns (X'X + mu diag(1/s))^{-1} X'Y.

    With Z = X diag(s)^{1/2} that is diag(s)^{1/2} (Z'Z + mu I)^{-1} Z'Y, and (Z'Z + mu I)^{-1} Z' =
    Z' (ZZ' + mu I)^{-1}; the smaller of the two systems is solved.
    """
    n, d = X.shape
    if mu == 0:
        solution = scipy.linalg.lstsq(X, Y)[0]
        return lambda scale: solution
    gram, moments = (X.T @ X, X.T @ Y) if d <= n else (None, None)

    def solve(scale: np.ndarray) -> np.ndarray:
        roots = np.sqrt(scale)[:, None]
        if gram is not None:
            matrix, right = roots * gram * roots.T, roots * moments
        else:
            Z = X * roots.T
            matrix, right = Z @ Z.T, Y
        matrix[np.diag_indices_from(matrix)] += mu
        try:
            factor = scipy.linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:  # mu is below the rounding error of the matrix
            Z = np.vstack([X * roots.T, np.sqrt(mu) * np.eye(d)])
            return roots * scipy.linalg.lstsq(Z, np.vstack([Y, np.zeros((d, Y.shape[1]))]))[0]
        inner = scipy.linalg.cho_solve(factor, right, check_finite=False)
        return roots * inner if gram is not None else roots * (Z.T @ inner)

    return solve


# -- input ----------------------------------------------------------------------------------------


def _read(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Checked items in float64, the codes of their classes, and the number of classes."""
    if sp.issparse(X):
        raise TypeError("X: expected an array, got a sparse matrix; convert it with .toarray()")
    items = check_items(X, "X", dtype=np.float64).values
    labels = np.asarray(y)
    if labels.shape != (len(items),):
        raise ValueError(
            f"y: expected one class for each of {len(items)} items, got shape {labels.shape}"
        )
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"y: expected at least two classes to tell apart, got 1 class ({classes[0]})"
        )
    return items, codes, len(classes)


def _check_count(q: Any, d: int) -> int:
    if check_integer("q", q) > d:
        raise ValueError(f"q: expected at most {d}, the number of features, got {q}")
    return int(q)
