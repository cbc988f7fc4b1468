"""ITML: the LogDet-closest distance that satisfies pairs, by cyclic Bregman projections."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.utils import check_random_state

from .._engines.base import ctrl_c_waits
from .._kernels.blocked import Blas
from .._kernels.logdet import itml_sweep_blocked, itml_sweep_singly
from ..data.comparisons import Comparisons
from ..data.samplers import PairSampler
from ..metrics import knn_predict
from ..online.logdet import check_targets, collection_of, distance_targets
from ..similarity.mahalanobis import Spectrum, first_metric
from ..validation import Items, check_choice, check_integer, check_number
from .base import (
    BatchMetric,
    Report,
    batch_documented,
    check_several_classes,
    check_some_class_has_two,
    named_items,
)

#: From this dimension on, projecting in blocks is faster than one pair at a time.
_BLOCKS_FROM = 128


@batch_documented("Relative change of the dual variables in every sweep")
class ITML(BatchMetric):
    """Information-theoretic metric learning: the distance closest to a given one that satisfies pairs.

    Minimises D_ld(M, M_0) + gamma D_ld(diag(xi), diag(xi_0)) subject to v'Mv <= xi for similar pairs and
    v'Mv >= xi for dissimilar ones, by cyclic Bregman projections; xi_0 is `lower` or `upper`.

    Parameters
    ----------
    gamma : float or "auto"
        Price of violating a constraint; infinity forbids violations. "auto" picks the best of 10^-4 .. 10^4
        by the accuracy of k-NN in two-fold cross-validation (`fit` only).
    n_constraints : int, optional
        Number of distinct random pairs drawn from the labels; None means 40 c (c - 1) for c classes.
    similar_share : float between 0 and 1, optional
        Share of similar pairs among them; where there are fewer, all are used. None draws uniformly from all
        pairs, as in the paper: with many classes hardly any of them are similar.
    lower, upper : float, optional
        Largest squared distance wanted for similar pairs, and smallest one wanted for dissimilar pairs. None
        means the 5th and the 95th percentile of the squared Euclidean distances of random pairs of the items:
        in `fit_pairs` those of `preprocessor`, whether pairs are row numbers or vectors, and without it the
        vectors, each once. Where items are all equally far apart, it is half and one and a half times that
        distance.
    init : "identity", "covariance", "random" or matrix of shape (d, d)
        M_0, symmetric and positive definite: "covariance" is the inverse of the items' covariance, "random"
        has random eigenvectors and eigenvalues from 0.5 to 1.5.
    max_iter : int
        Largest number of sweeps over all pairs.
    tol : float
        Stop when the dual variables change by at most this: ||l - l'||_1 / (||l||_2 + ||l'||_2).
    n_neighbors : int
        Number of neighbours that vote when gamma is tuned.
    random_state : None, int or RandomState
        Draws the pairs, the folds and a random M_0.
    block_size : int, optional
        Number of pairs projected together; the result is the same up to rounding. None chooses by dimension.
    {callback}

    Attributes
    ----------
    {attributes}
    gamma_ : float
        The gamma used.
    tuning_ : array of shape (9, 2)
        Every gamma tried and its accuracy; no rows if gamma was given.
    differences_ : array of shape (n, d)
        Differences of the pairs used; pairs of equal items are left out.
    labels_, dual_, slack_ : arrays of shape (n,)
        Their labels, dual variables (non-negative) and relaxed targets. At all times inv(M) = inv(M_0) +
        sum_i labels_i dual_i v_i v_i'.
    {convergence}

    Notes
    -----
    The step factor is gamma / (gamma + 1), the exact Bregman projection; the paper's listing differs.
    With a very large gamma and pairs that no distance satisfies, the dual variables grow without bound while
    their relative change shrinks: `converged_` then says nothing about the constraints.
    Targets are percentiles of squared distances; some implementations mix squared and plain ones.

    References
    ----------
    Davis, Kulis, Jain, Sra, Dhillon. Information-theoretic metric learning. ICML 2007.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> from simstream import ITML
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(MinMaxScaler(), ITML(random_state=0), KNeighborsClassifier())
    >>> model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
    True
    """

    _inits = ("identity", "covariance", "random")
    _saved_numbers = ("n_iter_", "converged_", "gamma_")
    _saved_arrays = ("history_", "differences_", "labels_", "dual_", "slack_", "tuning_")

    def __init__(
        self,
        gamma: float | str = 1.0,
        *,
        n_constraints: int | None = None,
        similar_share: float | None = 0.5,
        lower: float | None = None,
        upper: float | None = None,
        init: Any = "identity",
        max_iter: int = 1000,
        tol: float = 1e-3,
        n_neighbors: int = 3,
        random_state: Any = None,
        block_size: int | None = None,
        callback: Any = None,
        verbose: bool = False,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.gamma = gamma
        self.n_constraints = n_constraints
        self.similar_share = similar_share
        self.lower = lower
        self.upper = upper
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.n_neighbors = n_neighbors
        self.random_state = random_state
        self.block_size = block_size
        self.callback = callback
        self.verbose = verbose
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.gamma, str):
            check_choice("gamma", self.gamma, ("auto",))
        else:
            check_number("gamma", self.gamma, finite=False)
        self._check_integers_or_none("n_constraints", "block_size")
        check_targets(self.lower, self.upper)
        check_integer("n_neighbors", self.n_neighbors)

    def fit_pairs(self, pairs: Any, y: Any = None) -> Any:
        """Learn the distance from pairs instead of labels, and the threshold that decides them best.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers
            Triplets work too: each counts as its similar pair followed by its dissimilar one.
        y : array of +1 (similar) and -1 (dissimilar), or 1 and 0, or booleans; not for triplets
        """
        return self._fit_pairs(pairs, y, self._solve_pairs)

    def _solve_pairs(self, pairs: Comparisons) -> None:
        if isinstance(self.gamma, str):
            raise ValueError(
                "gamma: expected a number with pairs (tuning needs labels), got 'auto'"
            )
        targets = distance_targets(self.lower, self.upper, collection_of(self, pairs))
        self._project(pairs, named_items(pairs), targets, float(self.gamma), np.empty((0, 2)))

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_several_classes(classes)
        check_some_class_has_two(codes, "draw similar pairs from")
        rng = check_random_state(self.random_state)
        tuning = self._tune(X, codes, rng) if isinstance(self.gamma, str) else np.empty((0, 2))
        gamma = float(tuning[np.argmax(tuning[:, 1]), 0] if len(tuning) else self.gamma)
        c = len(classes)
        seed = rng.randint(np.iinfo(np.int32).max)
        sampler = PairSampler(codes, seed, similar_share=self.similar_share)
        index, y = sampler.draw_distinct(self.n_constraints or 40 * c * (c - 1))
        items = Items._of(X)
        pairs = Comparisons(items, items, index, y.astype(np.float64))
        targets = distance_targets(self.lower, self.upper, pairs)
        self._project(pairs, X, targets, gamma, tuning)

    def _tune(self, X: np.ndarray, codes: np.ndarray, rng: Any) -> np.ndarray:
        """Every gamma, and the accuracy of k-NN with it in two folds."""
        folds = list(KFold(2, shuffle=True, random_state=rng).split(X))
        gammas = 10.0 ** np.arange(-4, 5)
        right = np.zeros(len(gammas))
        for train, test in folds:
            sizes = np.bincount(codes[train])
            if np.count_nonzero(sizes) < 2 or sizes.max() < 2:
                continue  # nothing to learn from: no prediction of this fold is right
            for place, gamma in enumerate(gammas):
                part = clone(self).set_params(
                    gamma=gamma, callback=None, verbose=False, random_state=0
                )
                with warnings.catch_warnings(), contextlib.suppress(ArithmeticError):
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    part.fit(X[train], codes[train])
                    neighbors = min(self.n_neighbors, len(train))
                    predicted = knn_predict(part, X[test], X[train], codes[train], neighbors)
                    right[place] += np.sum(predicted == codes[test])
        return np.column_stack([gammas, right / len(X)])

    def _project(
        self,
        pairs: Comparisons,
        items: np.ndarray,
        targets: np.ndarray,
        gamma: float,
        tuning: np.ndarray,
    ) -> None:
        v, _ = pairs.rows(0, len(pairs))
        assert pairs.y is not None
        apart = np.einsum("ij,ij->i", v, v) >= 1e-18
        if not apart.any():
            raise ValueError("pairs: expected different items, got only pairs of equal ones")
        start = first_metric(
            self.init, v.shape[1], definite=True, items=items, random_state=self.random_state
        )
        solution = solve_itml(
            v[apart],
            pairs.y[apart],
            targets,
            gamma,
            start=start,
            max_iter=self.max_iter,
            tol=self.tol,
            block_size=self.block_size,
            report=self._report,
        )
        self.gamma_, self.tuning_ = gamma, tuning
        self.differences_, self.labels_ = v[apart], pairs.y[apart]
        self.dual_, self.slack_ = solution.dual, solution.slack
        self._targets_mean = float(targets.mean())
        self._keep(Spectrum.of_matrix(solution.matrix), solution)

    def _own_threshold(self) -> float:
        return self._targets_mean

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        return {**header, "targets_mean": self._targets_mean}, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        self._targets_mean = header["targets_mean"]


# -- solver ---------------------------------------------------------------------------------------


class ITMLSolution(NamedTuple):
    """Matrix, dual variables, relaxed targets, and the change of the dual variables in every sweep."""

    matrix: np.ndarray
    dual: np.ndarray
    slack: np.ndarray
    history: list[float]
    converged: bool

    @property
    def n_iter(self) -> int:
        """Number of sweeps."""
        return len(self.history)


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
    report: Report | None = None,
) -> ITMLSolution:
    """Sweep over the pairs until the dual variables settle.

    Parameters
    ----------
    v : array of shape (n, d)
        Differences of the pairs, none of them zero.
    labels : array of +1 and -1
    targets : two numbers
        Largest squared distance of similar pairs, smallest of dissimilar ones.
    gamma : float
        Price of a violation.
    """
    block = block_size or (1 if v.shape[1] < _BLOCKS_FROM else 32)
    v, labels = np.ascontiguousarray(v, np.float64), np.ascontiguousarray(labels, np.float64)
    a = np.array(start, np.float64, order="C")
    dual, slack = np.zeros(len(v)), np.where(labels > 0, targets[0], targets[1]).astype(np.float64)
    step = gamma / (gamma + 1.0) if np.isfinite(gamma) else 1.0
    ops = Blas(np.dtype(np.float64))
    history: list[float] = []
    converged = False
    while len(history) < max_iter and not converged:
        before = dual.copy()
        with ctrl_c_waits():
            if block == 1:
                itml_sweep_singly(a, v, labels, slack, dual, gamma, step)
            else:
                itml_sweep_blocked(ops, a, v, labels, slack, dual, gamma, step, block)
        if not np.isfinite(a).all():
            raise ArithmeticError(
                f"ITML: the matrix overflowed in sweep {len(history) + 1}; no distance satisfies these "
                "pairs: use a smaller gamma or other targets"
            )
        size = np.linalg.norm(dual) + np.linalg.norm(before)
        change = float(np.abs(dual - before).sum() / size) if size > 0 else 0.0
        history.append(change)
        if report is not None:
            report(len(history), change)
        converged = change <= tol
    return ITMLSolution((a + a.T) / 2, dual, slack, history, converged)
