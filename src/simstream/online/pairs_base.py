"""What all learners of a distance from pairs share: reading pairs or triplets, thresholds, the spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._engines import SpectralEngine
from ..data.comparisons import Comparisons
from ..similarity.base import SimilarityEstimator
from ..similarity.mahalanobis import MahalanobisEstimator, Spectrum
from ..validation import check_number, check_pair_labels
from .base import OnlineLearner

#: Random pairs of items whose distances give the targets of LogDet learners.
_N_TARGET_PAIRS = 10_000


class PairLearner(MahalanobisEstimator, OnlineLearner):
    """Base of the learners of d(q, x) = (q - x)' M (q - x) from pairs, similar (+1) or dissimilar (-1).

    Triplets are taken too: each is its similar pair followed by its dissimilar one.
    """

    natural_tuples = "pairs"

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        return read_labelled_pairs(self, tuples, y, dtype)

    def learn_one(self, x: Any, other: Any, y: Any) -> Any:
        """Learn from one pair of vectors, or from one triplet.

        Parameters
        ----------
        x, other : 1-d arrays, or CSR matrices of one row
        y : +1 (similar), -1 (dissimilar), or a third vector that is less like x than `other` is
        """
        self._check_parameters()
        if np.ndim(y) == 0 and not hasattr(y, "tocsr"):
            left, right = self._read_vectors(("x", "other"), x, other)
            read = Comparisons(left, right, np.array([[0, 0]]), check_pair_labels([y], 1))
        else:
            left, right = self._read_vectors(("x", "other", "y"), x, other, y)
            read = Comparisons(left, right, np.array([[0, 0, 1]])).as_pairs()
        return self._learn(read)

    def _learn(self, tuples: Comparisons) -> Any:
        check_one_space(self, tuples)
        return super()._learn(tuples)

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        self._calibrated = None  # it is for the matrix as it was
        super()._advance(engine, tuples)

    # -- reading the metric -------------------------------------------------------------------

    def _spectrum(self) -> Spectrum:
        engine = self._fitted()
        if self._read_cache is None or self._read_cache[0] != self.n_rounds_:
            if isinstance(engine, SpectralEngine):
                spectrum = Spectrum(*engine.eigenpairs(), engine.dtype)
            else:
                spectrum = self._spectrum_of(engine)
            self._read_cache = (self.n_rounds_, spectrum)
        return self._read_cache[1]

    def _spectrum_of(self, engine: Any) -> Spectrum:
        return Spectrum.of_matrix(engine.matrix(), rounding=np.finfo(engine.dtype).eps)

    # -- deciding -----------------------------------------------------------------------------

    def decision_function(self, tuples: Any) -> np.ndarray:
        """How far each pair is below `threshold_`, or the margin of each triplet; positive means similar.

        Parameters
        ----------
        tuples : pairs or triplets, as in `fit`
        """
        if _tuple_size(tuples) == 2:
            return self.threshold_ - self.pair_distance(tuples)
        return self.triplet_margin(tuples)

    def predict(self, tuples: Any) -> np.ndarray:
        """+1 for pairs with a distance up to `threshold_`, and for triplets in the right order; else -1."""
        if _tuple_size(tuples) == 2:
            return self.predict_pairs(tuples)
        return np.where(self.decision_function(tuples) > 0, 1, -1)

    def score(self, tuples: Any, y: Any = None) -> float:
        """Share of pairs on the right side of `threshold_`, or of triplets in the right order."""
        predicted = self.predict(tuples)
        expected = 1 if _tuple_size(tuples) == 3 else check_pair_labels(y, len(predicted))
        return float(np.mean(predicted == expected))

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        return {**header, "calibrated": self._calibrated}, arrays

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._set_state(header, arrays)
        self._restore_threshold(header)


def read_labelled_pairs(
    estimator: SimilarityEstimator, tuples: Any, y: Any, dtype: Any
) -> Comparisons:
    """Checked pairs with labels, from pairs or from triplets, in one feature space."""
    size = _tuple_size(tuples)
    read = estimator._read_tuples(tuples, size, dtype)
    left, right, index = read.left, read.right, read.index
    check_one_space(estimator, read)
    if size == 3:
        if y is not None:
            raise ValueError("y: expected None with triplets (their order says it all), got labels")
        return read.as_pairs()
    labels = check_pair_labels(y, len(read))
    same = np.flatnonzero(index[:, 0] == index[:, 1])
    if left is right and len(same):
        raise ValueError(
            f"pairs: both items of pair {same[0]} are the same row ({index[same[0], 0]}); expected two "
            "different items"
        )
    return Comparisons(left, right, index, labels)


def check_one_space(estimator: Any, tuples: Comparisons) -> None:
    """Raise if the two items of a pair do not have the same features."""
    if tuples.left.shape[1] != tuples.right.shape[1]:
        raise ValueError(
            f"{type(estimator).__name__}: expected one feature space, got {tuples.left.shape[1]} features "
            f"on the left and {tuples.right.shape[1]} on the right"
        )


def _tuple_size(tuples: Any) -> int:
    """2 for pairs, 3 for triplets; errors are left to those who read them."""
    shape = np.shape(tuples)
    return 2 if len(shape) in (2, 3) and shape[1] == 2 else 3


def check_targets(lower: Any, upper: Any) -> None:
    """Check the parameters `lower` and `upper`, either of which may be None."""
    for name, value in (("lower", lower), ("upper", upper)):
        if value is not None:
            check_number(name, value)
    if None not in (lower, upper) and lower >= upper:
        raise ValueError(f"upper: expected more than lower ({lower}), got {upper}")


def distance_targets(lower: Any, upper: Any, tuples: Comparisons) -> np.ndarray:
    """Squared distances that similar pairs should not exceed, and that dissimilar pairs should reach.

    Where one is None: the 5th or the 95th percentile of squared Euclidean distances of random pairs of the
    items. The same items give the same targets, whatever the tuples are.
    """
    given = np.array([np.nan if target is None else target for target in (lower, upper)])
    if np.isnan(given).any():
        percentiles = np.percentile(_random_distances(tuples), (5, 95))
        given = np.where(np.isnan(given), percentiles, given)
    if not given[0] < given[1]:
        raise ValueError(
            f"lower, upper: expected lower < upper, got {given[0]:g} and {given[1]:g} (where None was "
            "given: percentiles of the items' squared distances)"
        )
    return given


def _random_distances(tuples: Comparisons) -> np.ndarray:
    """Squared Euclidean distances of random pairs, equal items left out; the generator has a fixed seed."""
    rng = np.random.default_rng(0)
    left, right = tuples.left, tuples.right
    a = rng.integers(0, left.shape[0], _N_TARGET_PAIRS)
    b = rng.integers(0, right.shape[0], _N_TARGET_PAIRS)
    distances = np.zeros(_N_TARGET_PAIRS)
    with np.errstate(over="ignore"):
        for s in range(0, _N_TARGET_PAIRS, 1000):
            v = left.dense_rows(a[s : s + 1000]) - right.dense_rows(b[s : s + 1000])
            distances[s : s + 1000] = np.einsum("ij,ij->i", v, v, dtype=np.float64)
    distances = distances[distances > 0]
    if len(distances) == 0 or not np.isfinite(distances).all():
        got = "infinite ones" if len(distances) else "only zeros (equal items, or tiny numbers)"
        raise ValueError(f"items: expected squared distances that are positive numbers, got {got}")
    return distances
