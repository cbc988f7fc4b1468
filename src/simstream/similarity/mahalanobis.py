"""What every learnt distance can do: d(q, x) = (q - x)' M (q - x), M symmetric positive semi-definite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from ..validation import check_choice, check_integer, check_items, check_pair_labels
from .base import SimilarityEstimator, one_row
from .scoring import EuclideanModel

#: Eigenvalues below this share of the largest one do not count as dimensions.
_NO_DIMENSION = 1e-10


class Spectrum:
    """Eigenvalues of M, largest first, and its eigenvectors (rows); none of them negative.

    Parameters
    ----------
    values : array (q,)
    vectors : array or CSR matrix (q, d)
    dtype : precision of the model
    """

    def __init__(self, values: np.ndarray, vectors: Any, dtype: Any) -> None:
        order = np.argsort(-values, kind="stable")
        positive = order[values[order] > 0]
        self.values, self.vectors = values[positive], vectors[positive]
        self.dtype = np.dtype(dtype)

    @classmethod
    def of_matrix(cls, matrix: Any, *, rounding: float = np.finfo(np.float64).eps) -> Spectrum:
        """The positive part of a symmetric matrix: that of its nearest positive semi-definite one.

        `rounding` is the relative precision of its entries: eigenvalues that may be rounding are zero.
        """
        if not sp.issparse(matrix):
            values, vectors = np.linalg.eigh(_symmetric(matrix))
            return cls(_without_noise(values, rounding), vectors.T, matrix.dtype)
        # Features that M does not touch have no part in its eigenvectors.
        csr = sp.csr_matrix(_symmetric(matrix))
        touched = np.unique(csr.nonzero()[1])
        values, vectors = np.linalg.eigh(csr[touched][:, touched].toarray())
        wide = sp.csr_matrix(vectors.T) @ sp.csr_matrix(
            (np.ones(len(touched)), (np.arange(len(touched)), touched)),
            (len(touched), matrix.shape[1]),
        )
        return cls(_without_noise(values, rounding), sp.csr_matrix(wide), matrix.dtype)

    @classmethod
    def of_components(cls, components: np.ndarray) -> Spectrum:
        """Of M = L'L."""
        _, singular, vectors = np.linalg.svd(components, full_matrices=False)
        return cls(singular**2, vectors, components.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of M."""
        return (self.vectors.shape[1],) * 2

    @cached_property
    def components(self) -> Any:
        """L with M = L'L: the eigenvectors, each as long as the root of its eigenvalue; at least one row."""
        if len(self.values) == 0:
            return np.zeros((1, self.shape[1]))
        roots = np.sqrt(self.values)
        if sp.issparse(self.vectors):
            return sp.csr_matrix(sp.diags_array(roots) @ self.vectors)
        return roots[:, None] * self.vectors

    def truncated(self, q: int) -> Spectrum:
        """The q largest directions."""
        return Spectrum(self.values[:q], self.vectors[:q], self.dtype)

    def matrix(self) -> np.ndarray:
        """M, as an array."""
        components = self.components
        product = components.T @ components
        return (product.toarray() if sp.issparse(product) else product).astype(self.dtype)


def _without_noise(values: np.ndarray, rounding: float) -> np.ndarray:
    """Eigenvalues, with zero for those that are small beside the rounding of the largest (of any sign)."""
    return np.where(np.abs(values) > 10 * rounding * np.abs(values).max(initial=0.0), values, 0.0)


def _symmetric(matrix: Any) -> Any:
    return (matrix.astype(np.float64) + matrix.T.astype(np.float64)) / 2


class MahalanobisEstimator(EuclideanModel, SimilarityEstimator):
    """Base of all estimators of a distance. Subclasses provide `_spectrum` and `_own_threshold`.

    Distances are squared everywhere, thresholds too, but in `get_metric`.
    """

    _calibrated: float | None = None

    def _spectrum(self) -> Spectrum:
        """Eigenvalues and eigenvectors of M as it is now."""
        raise NotFittedError("provided by the estimator")

    def _own_threshold(self) -> float | None:
        """The threshold that belongs to the method, if it has one."""
        return None

    def _embed(self, rows: Any) -> Any:
        return rows @ self._spectrum().components.T

    # -- the metric ---------------------------------------------------------------------------

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """M, a positive semi-definite array of shape (d, d)."""
        self._fitted()
        return self._spectrum().matrix()

    @property
    def components_(self) -> np.ndarray:
        """L of shape (q, d) with M = L'L: `transform` maps x to Lx. The longest direction comes first."""
        self._fitted()
        components = self._spectrum().components
        return components.toarray() if sp.issparse(components) else components.copy()

    @property
    def eigenvalues_(self) -> np.ndarray:
        """The d eigenvalues of M, largest first."""
        values = np.zeros(self._fitted().shape[0])
        found = self._spectrum().values
        values[: len(found)] = found
        return values

    @property
    def effective_dimension_(self) -> int:
        """Number of eigenvalues of M above 1e-10 times the largest one: directions that count."""
        values = self.eigenvalues_
        return int(np.count_nonzero(values > _NO_DIMENSION * values[0]))

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        from ..metrics import sparsity

        return sparsity(self.get_mahalanobis_matrix())

    def transform(self, X: Any) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are the learnt ones.

        Columns are ordered: the first q of them are the metric truncated to its q largest directions.

        Parameters
        ----------
        X : array or CSR matrix of shape (n_items, d)

        Returns
        -------
        array of shape (n_items, q)
        """
        items = check_items(X, "X", dtype=self._fitted().dtype)
        self._check_features(items, items)
        embedded = self._embed(items.values)
        return embedded.toarray() if sp.issparse(embedded) else np.asarray(embedded)

    def truncated(self, n_components: int) -> Mahalanobis:
        """The metric with only its `n_components` largest directions, as a model of its own.

        It has no threshold: one for all directions does not fit a few of them (`calibrate_threshold`).
        """
        self._fitted()
        q = check_integer("n_components", n_components)
        return Mahalanobis(
            self._spectrum().truncated(q).matrix(),
            n_components=q,
            dtype=self.dtype,
            preprocessor=self.preprocessor,
        )

    def pair_distance(self, pairs: Any) -> np.ndarray:
        """Squared distance of each pair; lower is more similar. Same input as `pair_score`."""
        return -self.pair_score(pairs)

    def get_metric(self, squared: bool = False) -> Callable[[Any, Any], float]:
        """A function (u, v) of two vectors that returns their distance, frozen as it is now.

        It fits ``metric=`` of scikit-learn's neighbours, but calls Python for every pair: `transform` and
        plain Euclidean neighbours give the same result much faster.

        Parameters
        ----------
        squared : bool
            Whether to return the squared distance, as `pair_distance` does.
        """
        self._fitted()
        components = self._spectrum().components

        def metric(u: Any, v: Any) -> float:
            a, b = check_items(one_row(u), "u").values, check_items(one_row(v), "v").values
            if a.shape[1] != components.shape[1] or b.shape[1] != components.shape[1]:
                raise ValueError(
                    f"vectors: expected {components.shape[1]} features, got {a.shape[1]} and {b.shape[1]}"
                )
            embedded = (a - b) @ components.T
            flat = embedded.data if sp.issparse(embedded) else embedded
            length = float(np.sqrt(np.square(flat).sum()))
            return length * length if squared else length

        return metric

    # -- deciding pairs -----------------------------------------------------------------------

    @property
    def threshold_(self) -> float:
        """Squared distance up to which two items count as similar."""
        self._fitted()
        threshold = self._own_threshold() if self._calibrated is None else self._calibrated
        if threshold is None:
            raise NotFittedError(
                f"{type(self).__name__} has no threshold of its own: call calibrate_threshold first"
            )
        return float(threshold)

    def _restore_threshold(self, header: dict[str, Any]) -> None:
        calibrated = header["calibrated"]
        if calibrated is not None:
            if not isinstance(calibrated, (int, float)) or not np.isfinite(calibrated):
                raise ValueError(f"calibrated: expected a number or None, got {calibrated!r}")
            calibrated = float(calibrated)
        self._calibrated = calibrated

    def predict_pairs(self, pairs: Any) -> np.ndarray:
        """+1 where the distance of a pair is at most `threshold_`, else -1."""
        return np.where(self.pair_distance(pairs) <= self.threshold_, 1, -1)

    def calibrate_threshold(self, pairs: Any, y: Any, criterion: str = "accuracy") -> Any:
        """Choose the threshold that decides these pairs best; it is kept until learning goes on.

        Parameters
        ----------
        pairs : as in `pair_distance`
        y : array of +1 (similar) and -1 (dissimilar)
        criterion : "accuracy", "balanced_accuracy" or "f1"
            What is as large as possible; "f1" is that of the similar pairs.

        Returns
        -------
        self
        """
        check_choice("criterion", criterion, ("accuracy", "balanced_accuracy", "f1"))
        distances = self.pair_distance(pairs)
        similar = check_pair_labels(y, len(distances)) > 0
        self._calibrated = _best_threshold(distances, similar, criterion)
        return self


def _best_threshold(distances: np.ndarray, similar: np.ndarray, criterion: str) -> float:
    """The middle between two neighbouring distances; the largest distance to accept all pairs."""
    n_similar = int(similar.sum())
    n_dissimilar = len(similar) - n_similar
    if criterion == "balanced_accuracy" and 0 in (n_similar, n_dissimilar):
        raise ValueError(
            "y: expected similar and dissimilar pairs for the balanced accuracy, got only one kind"
        )
    order = np.argsort(distances, kind="stable")
    sorted_distances = distances[order]
    # Accepting the first 0 .. n pairs; equal distances cannot be told apart.
    hits = np.concatenate([[0], np.cumsum(similar[order])])
    accepted = np.arange(len(distances) + 1)
    false_hits = accepted - hits
    if criterion == "accuracy":
        quality = hits + n_dissimilar - false_hits
    elif criterion == "balanced_accuracy":
        quality = hits / n_similar - false_hits / n_dissimilar
    else:
        quality = 2 * hits / np.maximum(1, accepted + n_similar)
    possible = np.concatenate([[True], np.diff(sorted_distances) > 0, [True]])
    best = int(np.flatnonzero(possible)[np.argmax(quality[possible])])
    if best == 0:  # none of them: below the smallest distance
        return float(sorted_distances[0] / 2) if sorted_distances[0] > 0 else -1.0
    below = float(sorted_distances[best - 1])
    if best == len(distances):
        return below
    middle = (below + float(sorted_distances[best])) / 2
    return middle if middle < sorted_distances[best] else below


class Mahalanobis(MahalanobisEstimator):
    """A distance with a given matrix: nothing is learnt.

    Parameters
    ----------
    matrix : array of shape (d, d)
        Symmetric and positive semi-definite; do not change it in place.
    n_components : int, optional
        Use only so many of its largest directions.
    dtype : "float32" or "float64", optional
    preprocessor : array, CSR matrix or pair of them, optional
        Items behind row numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Mahalanobis
    >>> model = Mahalanobis(np.diag([4.0, 1.0]))
    >>> model.pair_distance([[[1.0, 0.0], [0.0, 1.0]]])
    array([5.])
    >>> model.truncated(1).get_metric()([1.0, 0.0], [0.0, 1.0])
    2.0
    """

    _kept: tuple[tuple[Any, ...], Spectrum] | None = None

    def __init__(
        self,
        matrix: Any,
        *,
        n_components: int | None = None,
        dtype: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.matrix = matrix
        self.n_components = n_components
        self.dtype = dtype
        self.preprocessor = preprocessor

    def _spectrum(self) -> Spectrum:
        key = (id(self.matrix), self.n_components, str(self.dtype))
        if self._kept is None or self._kept[0] != key:
            self._check_parameters()
            matrix = check_positive(self.matrix, "matrix", dtype=self.dtype)
            spectrum = Spectrum.of_matrix(matrix)
            if self.n_components is not None:
                spectrum = spectrum.truncated(self.n_components)
            self._kept = (key, spectrum)
        return self._kept[1]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_components is not None:
            check_integer("n_components", self.n_components)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_kept", None)
        return state

    def _learnt(self) -> Any:
        return self._spectrum()

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"calibrated": self._calibrated}, {}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._restore_threshold(header)
        self._spectrum()


def check_positive(
    matrix: Any, name: str, *, dtype: Any = None, size: int | None = None, definite: bool = False
) -> np.ndarray:
    """Check a symmetric positive semi-definite (or definite) matrix, of a given size if there is one."""
    values = check_items(matrix, name, dtype=dtype).values
    dense = values.toarray() if sp.issparse(values) else values
    want = f"({size}, {size})" if size is not None else "(d, d)"
    if dense.shape[0] != dense.shape[1] or (size is not None and len(dense) != size):
        raise ValueError(f"{name}: expected a square matrix of shape {want}, got {dense.shape}")
    scale = float(np.abs(dense).max()) or 1.0
    slack = 1e-8 if dense.dtype == np.float64 else 1e-4
    asymmetry = float(np.abs(dense - dense.T).max())
    if asymmetry > slack * scale:
        raise ValueError(
            f"{name}: expected a symmetric matrix, got entries that differ by {asymmetry:g} from "
            "those across the diagonal"
        )
    smallest = float(np.linalg.eigvalsh(_symmetric(dense))[0])
    if smallest < -slack * scale:
        raise ValueError(
            f"{name}: expected a positive semi-definite matrix, got the eigenvalue {smallest:g}"
        )
    if definite and smallest <= 1e-14 * scale:
        raise ValueError(
            f"{name}: expected a positive definite matrix, got the smallest eigenvalue {smallest:g}"
        )
    return dense


def first_metric(init: Any, size: int, *, definite: bool = False) -> np.ndarray:
    """The first M in float64: the identity, or the given matrix if it is a metric."""
    if isinstance(init, str):
        return np.eye(size)
    return check_positive(init, "init", dtype=np.float64, size=size, definite=definite)
