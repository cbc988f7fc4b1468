"""What all batch learners share: checking labelled items, keeping the solution, reports, saving."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .. import _documentation as documentation
from .._engines.base import check_array
from ..data.comparisons import Comparisons
from ..online.pairs import PairLearner, labelled_pairs
from ..similarity.learner import Learner, delegated, delegated_property
from ..similarity.mahalanobis import Mahalanobis, Spectrum, saved_threshold, tuple_size
from ..validation import check_choice

_CALLBACK = """callback : function of (iteration, objective), optional
        Called after every iteration; what it raises ends the fit.
    verbose : bool
        Whether to print every iteration.
    preprocessor : array, optional
        Items behind row numbers in `pair_distance` and the like; `fit` does not use it."""

_ATTRIBUTES = """components_ : array of shape (q, d)
        L with M = L'L, the longest direction first.
    eigenvalues_, effective_dimension_ : array of shape (d,), int
        Eigenvalues of M, largest first, and how many of them count."""

_CONVERGENCE = """n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the stopping rule was met before `max_iter`.
    history_ : array
        {history}."""


def documented(history: str = "") -> Any:
    """Fill in the parameters and attributes that all batch learners share."""
    convergence = _CONVERGENCE.replace("{history}", history)
    return documentation.documented(
        callback=_CALLBACK, attributes=_ATTRIBUTES, convergence=convergence
    )


class BatchMetric(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Learner):
    """Base of the batch learners. Subclasses provide `_solve(X, codes)`, which calls `_keep`."""

    natural_tuples = "labels"
    dtype = None  # always float64
    init: Any = "identity"
    callback: Any = None
    verbose: Any = False
    _metric: Spectrum | None = None
    _calibrated: float | None = None
    _to_be_called = "fit"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any) -> Any:
        """Learn the distance from labelled items.

        Parameters
        ----------
        X : array of shape (n_items, n_features)
        y : array of shape (n_items,)
            Class of each item.
        """
        self._check_parameters()
        self._check_these_are_items(X, y)
        with self._unchanged_on_error():
            X, y = validate_data(self, X, y, dtype=np.float64, order="C", ensure_min_samples=2)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
            self._solve(X, codes, classes)
        return self

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Attributes that scikit-learn sets before the solution is there are put back if there is none."""
        names = ("n_features_in_", "feature_names_in_")
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            for name in names:
                if hasattr(self, name):
                    delattr(self, name)
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _check_these_are_items(self, X: Any, y: Any) -> None:
        """Pairs of row numbers are labelled like items of two features: the likelier one is meant."""
        array = np.asarray(X) if self.preprocessor is not None and not sp.issparse(X) else None
        if (
            array is not None
            and array.ndim == 2
            and array.shape[1] in (2, 3)
            and array.dtype.kind in "iu"
            and np.isin(y, (-1, 1)).all()
        ):
            hint = "use fit_pairs" if hasattr(self, "fit_pairs") else "it learns from labels only"
            raise ValueError(
                f"X: expected items, got what looks like pairs of row numbers with labels; {hint}"
            )

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        raise AttributeError("provided by the learner")

    def _keep(self, spectrum: Spectrum) -> None:
        """The solution; a threshold for another matrix is forgotten."""
        self._metric, self._calibrated = spectrum, None
        self._item_cache()  # made here: scikit-learn checks that reading adds no attribute
        self.n_features_in_ = spectrum.shape[0]

    def _keep_history(self, solution: Any) -> None:
        self.history_ = np.asarray(solution.history, np.float64)
        self.n_iter_ = int(solution.n_iter)
        self.converged_ = bool(solution.converged)
        if not self.converged_:
            warnings.warn(
                f"{type(self).__name__} has not converged after {self.n_iter_} iterations; look at "
                "history_, or raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _report(self) -> Callable[[int, float], None] | None:
        """What solvers call after every iteration."""
        if self.callback is None and not self.verbose:
            return None

        def report(iteration: int, objective: float) -> None:
            if self.verbose:
                print(f"[{type(self).__name__}] iteration {iteration}: {objective:.10g}")  # noqa: T201
            if self.callback is not None:
                self.callback(iteration, objective)

        return report

    def _learnt(self) -> Any:
        return self._metric

    def _similarity(self) -> Mahalanobis:
        spectrum = self._fitted()
        threshold = self._own_threshold() if self._calibrated is None else self._calibrated
        metric = Mahalanobis._of(spectrum, threshold)
        return metric._with_items(self.preprocessor, self._item_cache())

    def _own_threshold(self) -> float | None:
        """The threshold that belongs to the method, if it has one."""
        return None

    calibrate_threshold = PairLearner.calibrate_threshold
    predict_pairs = delegated(Mahalanobis.predict_pairs)
    pair_distance = delegated(Mahalanobis.pair_distance)
    get_metric = delegated(Mahalanobis.get_metric)
    get_mahalanobis_matrix = delegated(Mahalanobis.get_mahalanobis_matrix)
    truncated = delegated(Mahalanobis.truncated)
    threshold_ = delegated_property(Mahalanobis, "threshold_")
    components_ = delegated_property(Mahalanobis, "components_")
    eigenvalues_ = delegated_property(Mahalanobis, "eigenvalues_")
    effective_dimension_ = delegated_property(Mahalanobis, "effective_dimension_")
    sparsity_ = delegated_property(Mahalanobis, "sparsity_")

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are the learnt ones; see `components_`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self._similarity()._embed(X)

    def _check_init(self) -> None:
        if isinstance(self.init, str):
            check_choice("init", self.init, ("identity",))

    # -- saving -------------------------------------------------------------------------------

    #: Learnt attributes that are saved besides the metric: numbers, and arrays.
    _saved_numbers: tuple[str, ...] = ("n_iter_", "converged_")
    _saved_arrays: tuple[str, ...] = ("history_",)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        metric = self._fitted()
        header = {"calibrated": self._calibrated}
        header |= {name: getattr(self, name) for name in self._saved_numbers}
        arrays = {name: getattr(self, name) for name in self._saved_arrays}
        return header, {**arrays, "values": metric.values, "vectors": metric.vectors}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        values, vectors = arrays["values"], arrays["vectors"]
        check_array("vectors", vectors, np.float64, (None, None))
        check_array("values", values, np.float64, (len(vectors),))
        if not (np.isfinite(values).all() and np.isfinite(vectors).all()):
            raise ValueError("values, vectors: expected finite numbers")
        self._keep(Spectrum(values, vectors, np.float64))
        self._calibrated = saved_threshold(header)
        for name in self._saved_numbers:
            if not isinstance(header[name], (bool, int, float)):
                raise ValueError(f"{name}: expected a number, got {header[name]!r}")
            setattr(self, name, header[name])
        for name in self._saved_arrays:
            setattr(self, name, arrays[name])


class PairwiseBatchMetric(BatchMetric):
    """Batch learners that also take pairs or triplets."""

    def fit_pairs(self, pairs: Any, y: Any = None) -> Any:
        """Learn the distance from pairs instead of labels.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers
            Triplets are taken too: each is its similar pair followed by its dissimilar one.
        y : array of +1 (similar) and -1 (dissimilar); not for triplets
        """
        self._check_parameters()
        read = labelled_pairs(self._read_tuples(pairs, tuple_size(pairs), np.float64), y)
        self._solve_pairs(read)
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_  # of the items of another fit
        return self

    def _solve_pairs(self, pairs: Comparisons) -> None:
        raise AttributeError("provided by the learner")


def check_some_class_has_two(codes: np.ndarray, purpose: str) -> None:
    """Raise if every class has a single member."""
    sizes = np.bincount(codes, minlength=1)
    if sizes.max() < 2:
        raise ValueError(
            f"classes: expected at least two items in some class to {purpose}, got {len(sizes)} classes "
            f"of one item each (n_samples = {len(codes)})"
        )


def check_several_classes(classes: np.ndarray) -> None:
    """Raise if there is nothing to tell apart."""
    if len(classes) < 2:
        raise ValueError(
            f"y: expected at least two classes to tell apart, got 1 class ({classes[0]})"
        )
