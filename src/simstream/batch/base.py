"""What the batch learners share: checking labelled items, keeping the solution, reporting, saving."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .._engines.base import check_array
from ..data.comparisons import Comparisons, PairClasses
from ..online.pairs import PairLearner, labelled_pairs
from ..similarity.learner import (
    Learner,
    delegated,
    delegated_property,
    documented,
    unchanged_on_error,
    validated,
)
from ..similarity.mahalanobis import (
    NORMALISE,
    Mahalanobis,
    Spectrum,
    tuple_size,
)
from ..similarity.pair_labels import SIGNS, given_classes, pair_classifier_tags, saved_classes
from ..similarity.thresholds import best_threshold, saved_threshold
from ..validation import (
    check_choice,
    check_finite,
    check_integer,
    check_number,
    check_pair_labels,
    shape_of,
)

_CALLBACK = """callback : function of (iteration, objective), optional
        Called after every iteration; an exception it raises ends the fit.
    verbose : bool
        Whether to print every iteration.
    {normalise}
    preprocessor : array or function of an array of keys, optional
        Items that row numbers refer to: in pairs, and where `fit` or `transform` gets a one-dimensional X. A
        function returns the rows of the keys that it is given."""

_NORMALISED = NORMALISE.replace("{origin}", "the mean of the items")

_ATTRIBUTES = """centre_ : array of shape (d,)
        Mean of the items learnt from: the origin of the cosine if `normalise` is on.
    components_ : array of shape (q, d)
        L with M = L'L, longest direction first.
    eigenvalues_, effective_dimension_ : array of shape (d,), int
        Eigenvalues of M, largest first, and the number of them that matter."""

_CONVERGENCE = """n_iter_ : int
        Number of iterations.
    converged_ : bool
        Whether the stopping rule was met within `max_iter` iterations.
    history_ : array
        {history}."""

#: What a solver calls after every iteration, with its number and the objective.
Report = Callable[[int, float], object]


def batch_documented(history: str = "") -> Any:
    """Fill in the parameters and attributes that all batch learners share."""
    convergence = _CONVERGENCE.replace("{history}", history)
    return documented(
        callback=_CALLBACK, normalise=_NORMALISED, attributes=_ATTRIBUTES, convergence=convergence
    )


class Solution(NamedTuple):
    """Where a solver stopped: the minimiser, and the objective at the start and after every iteration."""

    minimiser: np.ndarray
    history: np.ndarray
    converged: bool

    @property
    def objective(self) -> float:
        """The objective at the minimiser."""
        return float(self.history[-1])

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return len(self.history) - 1


class BatchMetric(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Learner):
    """Base of the batch learners. Subclasses implement `_solve`, which passes its result to `_keep`."""

    natural_tuples = "labels"
    dtype = None  # always float64
    #: Names of first matrices.
    _inits: tuple[str, ...] = ("identity",)
    max_iter: Any
    tol: Any
    callback: Any
    verbose: Any
    _metric: Spectrum | None = None
    _calibrated: float | None = None
    _classes: PairClasses | None = None
    _mean: np.ndarray | None = None
    #: Whether it has learnt from pairs: then it is a classifier of pairs too.
    _from_pairs: bool = False
    _to_be_called = "fit"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return pair_classifier_tags(tags) if self._from_pairs else tags

    def _decides_pairs(self) -> bool:
        """Whether `predict` and `score` are there: not after learning from labels, where X are items."""
        return hasattr(self, "fit_pairs") and (self._from_pairs or self._metric is None)

    def _check_parameters(self) -> None:
        check_integer("max_iter", self.max_iter)
        check_number("tol", self.tol, exclusive=False)
        check_choice("normalise", self.normalise, (False, True))
        self._check_init(*self._inits)

    # -- learning -----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Any:
        """Learn the distance from labelled items, or from pairs where there is a `fit_pairs`.

        Parameters
        ----------
        X : array of shape (n_items, n_features), or (n_items,) row numbers of `preprocessor`
            Or what `fit_pairs` takes: vectors of shape (n, 2, n_features), or (n, 2) row numbers, ids or keys
            of `preprocessor` with labels +1 and -1, 1 and 0, or booleans. scikit-learn's cross-validation
            calls `fit` alone. Beside a preprocessor, items of two or three integer features have to be
            floats, and so have items of two without one where their labels are -1 and +1.
        y : array of shape (n_items,)
            Class of each item, or label of each pair.
        """
        if not self._look_like_tuples(X, y):
            return self._fit(X, y, self._solve)
        if not hasattr(self, "fit_pairs"):
            raise ValueError(
                f"X: expected items, got what looks like pairs; {type(self).__name__} learns from labels "
                "only (beside a preprocessor, items of two or three features have to be floats)"
            )
        return self.fit_pairs(X, y)

    def _fit(self, X: Any, y: Any, solve: Callable[..., None]) -> Any:
        self._check_parameters()
        X = self._item_cache().rows(self.preprocessor, X, np.float64)
        own: tuple[int, ...] = getattr(self.preprocessor, "shape", ())
        if len(own) == 2 and len(shape_of(X)) == 2 and shape_of(X)[1] != own[1]:
            raise ValueError(
                f"X: expected items of {own[1]} features, as those of preprocessor, or row numbers of "
                f"them, which are integers; got {shape_of(X)[1]} features"
            )
        with unchanged_on_error(self):
            X, y = validated(self, X, y, dtype=np.float64, order="C", ensure_min_samples=2)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
            solve(X, codes, classes)
            self._mean, self._from_pairs = X.mean(axis=0), False
        self._warn_unless_converged()
        return self

    def _fit_pairs(self, pairs: Any, y: Any, solve: Callable[[Comparisons], None]) -> Any:
        """`fit_pairs` of the learners that have one."""
        self._check_parameters()
        read = labelled_pairs(self._read_tuples(pairs, tuple_size(pairs), np.float64), y)
        solve(read)
        self._mean, self._from_pairs = named_items(read).mean(axis=0), True
        self._name_features(read)
        assert read.y is not None
        if self._own_threshold() is None or len(np.unique(read.y)) == 2:
            distances = self._similarity().distances_of(read)
            self._calibrated = best_threshold(distances, read.y > 0)
        self._classes = read.classes
        self._warn_unless_converged()
        return self

    @abstractmethod
    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        """Learn from checked items; item i is of class ``classes[codes[i]]``."""

    def _look_like_tuples(self, X: Any, y: Any) -> bool:
        """Whether X are vectors of tuples, or name items of a preprocessor."""
        if sp.issparse(X):
            return False
        shape = shape_of(X)
        if len(shape) not in (2, 3) or shape[1] not in (2, 3):
            return False
        if len(shape) == 3:
            return True
        # Row numbers, ids or keys: what has a fraction is an item.
        kind = np.asarray(X).dtype.kind
        if self.preprocessor is not None:
            return kind in "iuOUS"
        if kind not in "iu" or not hasattr(self, "fit_pairs"):
            return False
        if shape[1] == 2 and y is not None:
            _check_items_are_meant(y, shape[0])
        return y is None

    def _report(self, iteration: int, objective: float) -> None:
        """What the solver calls after every iteration."""
        if self.verbose:
            print(f"[{type(self).__name__}] iteration {iteration}: {objective:.10g}")  # noqa: T201
        if self.callback is not None:
            self.callback(iteration, objective)

    def _keep(self, spectrum: Spectrum, solution: Any = None) -> None:
        """Keep M, and how an iterative solver got there. What pairs said of another M is dropped."""
        self._metric, self._calibrated, self._classes = spectrum, None, None
        self._item_cache()  # made here: scikit-learn checks that reading adds no attribute
        self.n_features_in_ = spectrum.shape[0]
        if solution is not None:
            self.history_ = np.asarray(solution.history, np.float64)
            self.n_iter_ = int(solution.n_iter)
            self.converged_ = bool(solution.converged)

    def _warn_unless_converged(self) -> None:
        if not getattr(self, "converged_", True):
            look = "look at history_, or " if hasattr(self, "history_") else ""
            warnings.warn(
                f"{type(self).__name__} has not converged after {self.n_iter_} iterations; {look}"
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,  # whoever called fit or fit_pairs
            )

    # -- reading ------------------------------------------------------------------------------

    def _learnt(self) -> Any:
        return self._metric

    def _similarity(self) -> Mahalanobis:
        spectrum = self._fitted()
        threshold = self._own_threshold() if self._calibrated is None else self._calibrated
        metric = Mahalanobis._of(spectrum, threshold, self._classes)
        metric.normalise, metric.centre = self.normalise, self._mean
        return metric._with_items(self)

    @property
    def centre_(self) -> np.ndarray:
        """Mean of the items learnt from: the origin of the cosine if `normalise` is on."""
        mean = np.zeros(self._fitted().shape[0]) if self._mean is None else self._mean
        return mean.copy()

    def _own_threshold(self) -> float | None:
        """The threshold that belongs to the method, if it has one."""
        return None

    calibrate_threshold = PairLearner.calibrate_threshold
    set_threshold = PairLearner.set_threshold
    _take_threshold = PairLearner._take_threshold
    decision_function = available_if(_decides_pairs)(delegated(Mahalanobis.decision_function))
    predict = available_if(_decides_pairs)(delegated(Mahalanobis.predict))
    score = available_if(_decides_pairs)(delegated(Mahalanobis.score))
    predict_pairs = delegated(Mahalanobis.predict_pairs)
    pair_distance = delegated(Mahalanobis.pair_distance)
    get_metric = delegated(Mahalanobis.get_metric)
    transform_query = available_if(lambda self: self.normalise)(
        delegated(Mahalanobis.transform_query)
    )
    get_mahalanobis_matrix = delegated(Mahalanobis.get_mahalanobis_matrix)
    truncated = delegated(Mahalanobis.truncated)
    threshold_ = delegated_property(Mahalanobis, "threshold_")
    components_ = delegated_property(Mahalanobis, "components_")
    eigenvalues_ = delegated_property(Mahalanobis, "eigenvalues_")
    effective_dimension_ = delegated_property(Mahalanobis, "effective_dimension_")
    sparsity_ = delegated_property(Mahalanobis, "sparsity_")

    @property
    def classes_(self) -> np.ndarray:
        """What `predict` answers for pairs: the labels learnt from, dissimilar first; -1 and +1 if none."""
        if not self._from_pairs:
            raise AttributeError(
                f"{type(self).__name__} has classes_ after learning from pairs only"
            )
        return np.array(self._classes or SIGNS)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are the learnt ones; see `components_`.

        Parameters
        ----------
        X : array of shape (n_items, n_features), or (n_items,) row numbers of `preprocessor`
        """
        check_is_fitted(self)
        X = self._item_cache().rows(self.preprocessor, X, np.float64)
        X = validated(self, X, dtype=np.float64, reset=False)
        return self._similarity()._embed(X)

    # -- saving -------------------------------------------------------------------------------

    #: Learnt attributes that are saved besides the metric: numbers, and arrays.
    _saved_numbers: tuple[str, ...] = ("n_iter_", "converged_", "objective_")
    _saved_arrays: tuple[str, ...] = ("history_",)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        metric = self._fitted()
        header: dict[str, Any] = {
            "calibrated": self._calibrated,
            "classes": self._classes,
            "from_pairs": self._from_pairs,
        }
        header |= {name: getattr(self, name) for name in self._saved_numbers}
        arrays = {name: getattr(self, name) for name in self._saved_arrays}
        if self._mean is not None:
            arrays["mean"] = self._mean
        return header, {**arrays, "values": metric.values, "vectors": metric.vectors}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        values, vectors = arrays["values"], arrays["vectors"]
        check_array("vectors", vectors, np.float64, (None, None))
        check_array("values", values, np.float64, (len(vectors),))
        if not (np.isfinite(values).all() and np.isfinite(vectors).all()):
            raise ValueError("values, vectors: expected finite numbers")
        self._keep(Spectrum(values, vectors, np.float64))
        self._calibrated, self._classes = saved_threshold(header), saved_classes(header)
        self._from_pairs = bool(
            header.get("from_pairs", False)
        )  # files of earlier versions do not say
        self._mean = arrays.get("mean")  # files of earlier versions have none
        if self._mean is not None:
            check_array("mean", self._mean, np.float64, (vectors.shape[1],))
            check_finite(self._mean, "mean")
        for name in self._saved_numbers:
            if not isinstance(header[name], (bool, int, float)):
                raise ValueError(f"{name}: expected a number, got {header[name]!r}")
            setattr(self, name, header[name])
        for name in self._saved_arrays:
            setattr(self, name, arrays[name])


def _check_items_are_meant(y: Any, n: int) -> None:
    """Two integer columns with labels of pairs may be row numbers; with -1 and +1 they most likely are."""
    try:
        check_pair_labels(y, n)
    except ValueError:
        return  # classes of items
    if given_classes(y) == SIGNS:
        raise ValueError(
            "preprocessor: expected the items that pairs of row numbers in X refer to, got None; where X "
            "are items, two integer features with labels -1 and +1 have to be floats"
        )
    warnings.warn(
        "X: two integer features are taken as items; if these are pairs of row numbers, preprocessor has "
        "to be the items they refer to (floats are items without this warning)",
        stacklevel=4,
    )


def named_items(pairs: Comparisons) -> np.ndarray:
    """The items of pairs, each once."""
    sides = zip((pairs.left, pairs.right), pairs.index.T, strict=True)
    if pairs.left is pairs.right:
        sides = zip([pairs.left], [pairs.index], strict=True)
    rows = np.concatenate([items.dense_rows(np.unique(index)) for items, index in sides])
    return np.unique(rows, axis=0) if pairs.of_vectors else rows


def check_some_class_has_two(codes: np.ndarray, purpose: str, where: str = "") -> None:
    """Raise if every class has a single member; `where` begins the message."""
    sizes = np.bincount(codes)
    sizes = sizes[sizes > 0]
    if sizes.max() < 2:
        raise ValueError(
            f"{where}classes: expected at least two items in some class to {purpose}, got {len(sizes)} "
            f"classes of one item each (n_samples = {len(codes)})"
        )


def check_several_classes(classes: np.ndarray, where: str = "") -> None:
    """Raise if there is only one class; `where` begins the message."""
    if len(classes) < 2:
        raise ValueError(
            f"{where}y: expected at least two classes to tell apart, got 1 class ({classes[0]})"
        )


def nearest_psd(matrix: np.ndarray) -> np.ndarray:
    """The nearest positive semi-definite matrix, exactly symmetric."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root @ root.T


def check_start(objective: float) -> None:
    """Raise if the objective overflows at the start."""
    if not np.isfinite(objective):
        raise ValueError(
            "X: expected items whose squared distances are finite, got an infinite objective at the "
            "start; scale the items"
        )
