"""The Mahalanobis distance d(q, x) = (q - x)' M (q - x), M symmetric positive semi-definite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if

from ..data.comparisons import Comparisons, PairClasses
from ..metrics import sparsity
from ..validation import (
    check_features,
    check_integer,
    check_items,
    check_number,
    check_pair_labels,
)
from .base import Similarity, all_products, one_row, row_products
from .cosine import Cosine
from .pair_labels import SIGNS, given_classes, saved_classes
from .thresholds import best_threshold, check_criterion, saved_threshold

#: Eigenvalues below this share of the largest one do not count as dimensions.
_NO_DIMENSION = 1e-10

#: The parameter `normalise` in the docstring of a learner.
NORMALISE = """normalise : bool
        Score and search by the cosine by M instead of by the distance, around {origin}; see `Mahalanobis`. It
        changes what is read, not what is learnt: set it at any time."""


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
    def of_matrix(
        cls, matrix: Any, *, rounding: float = np.finfo(np.float64).eps, dtype: Any = None
    ) -> Spectrum:
        """The positive part of a symmetric matrix: that of its nearest positive semi-definite one.

        `rounding` is the relative precision of its entries: eigenvalues that may be rounding are zero.
        `dtype` is the precision of the model, by default that of the matrix.
        """
        dtype = dtype or matrix.dtype
        if not sp.issparse(matrix):
            values, vectors = np.linalg.eigh(_symmetric(matrix))
            return cls(_without_noise(values, rounding), vectors.T, dtype)
        # Features that M does not touch have no part in its eigenvectors.
        csr = sp.csr_matrix(_symmetric(matrix))
        touched = np.unique(csr.nonzero()[1])
        values, vectors = np.linalg.eigh(csr[touched][:, touched].toarray())
        wide = sp.csr_matrix(vectors.T) @ sp.csr_matrix(
            (np.ones(len(touched)), (np.arange(len(touched)), touched)),
            (len(touched), matrix.shape[1]),
        )
        return cls(_without_noise(values, rounding), sp.csr_matrix(wide), dtype)

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


def _minus_distances(queries: tuple[Any, Any], items: tuple[Any, Any]) -> np.ndarray:
    """Minus the squared distances of all vectors to all others; both with their squared lengths."""
    (a, q), (b, x) = queries, items
    return np.minimum(0.0, 2 * all_products(a, b) - q[:, None] - x)


def _without_noise(values: np.ndarray, rounding: float) -> np.ndarray:
    """Eigenvalues, with zero for those that are small beside the rounding of the largest (of any sign)."""
    return np.where(np.abs(values) > 10 * rounding * np.abs(values).max(initial=0.0), values, 0.0)


def _symmetric(matrix: Any) -> Any:
    return (matrix.astype(np.float64) + matrix.T.astype(np.float64)) / 2


class Mahalanobis(Similarity):
    """A distance d(q, x) = (q - x)' M (q - x) with a given matrix: nothing is learnt.

    Distances and thresholds are squared everywhere except in `get_metric`; scores are negative squared
    distances. ``pair_distance(pairs, squared=False)`` and ``get_metric()`` give plain ones.

    Parameters
    ----------
    matrix : array of shape (d, d)
        Symmetric and positive semi-definite; do not change it in place.
    n_components : int, optional
        Use only this many of its largest directions.
    dtype : "float32" or "float64", optional
    normalise : bool
        Score and search by the cosine of q - centre and x - centre by M, (q - c)'M(x - c) divided by both
        lengths, instead of by minus the distance. Vectors whose length is zero have the score 0. Distances,
        thresholds, `transform` and `get_metric` stay those of the metric.
    centre : array of shape (d,), optional
        Origin of the cosine; zero by default. Distances do not depend on it.
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to.

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

    _threshold: float | None = None
    #: The labels that pairs were given, in which it answers.
    _classes: PairClasses | None = None
    #: What M is made of where it was not given as a matrix.
    _source: Spectrum | None = None

    def __init__(
        self,
        matrix: Any,
        *,
        n_components: int | None = None,
        dtype: Any = None,
        normalise: bool = False,
        centre: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.matrix = matrix
        self.n_components = n_components
        self.dtype = dtype
        self.normalise = normalise
        self.centre = centre
        self.preprocessor = preprocessor

    @classmethod
    def _of(
        cls,
        spectrum: Spectrum,
        threshold: float | None = None,
        classes: PairClasses | None = None,
    ) -> Self:
        """Of a known spectrum: M itself is built when it is asked for."""
        self = cls(None)
        self._source, self._threshold, self._classes = spectrum, threshold, classes
        return self

    @property
    def matrix(self) -> Any:
        """M as it was given; of what a learner has learnt, it is built anew whenever it is read."""
        return self._given if self._source is None else self._source.matrix()

    @matrix.setter
    def matrix(self, matrix: Any) -> None:
        self._given, self._source = matrix, None

    def __repr__(self) -> str:
        if self._source is None:
            return super().__repr__()
        size = " x ".join(map(str, self._source.shape))
        return (
            f"{type(self).__name__}(matrix=<{size}, from {len(self._source.values)} eigenvectors>)"
        )

    def _frozen(self) -> Mahalanobis:
        frozen = Mahalanobis._of(self._spectrum(), self._threshold, self._classes)
        frozen.centre = self.centre
        return frozen._with_items(self)

    def _spectrum(self) -> Spectrum:
        """Eigenvalues and eigenvectors of M."""
        parameters = self._given, self._source, self.n_components, self.dtype
        return self._made(self._new_spectrum, *parameters)

    def _new_spectrum(self) -> Spectrum:
        spectrum = self._source
        if spectrum is None or np.dtype(self.dtype or spectrum.dtype) != spectrum.dtype:
            spectrum = Spectrum.of_matrix(check_positive(self.matrix, "matrix", dtype=self.dtype))
        return spectrum if self.n_components is None else spectrum.truncated(self.n_components)

    def check_parameters(self) -> None:
        """Raise if a parameter of the constructor is not legal."""
        super().check_parameters()
        if self.n_components is not None:
            check_integer("n_components", self.n_components)

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._spectrum().shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the matrix, and of the items when they are read."""
        return self._spectrum().dtype

    # -- scoring: in float64, because norms and products of data far from zero nearly cancel ---

    def _embed(self, rows: Any) -> Any:
        return rows @ self._spectrum().components.T

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        difference = self._embed(queries.astype(np.float64) - items)
        return -row_products(difference, difference)

    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        self._spectrum()  # made before several threads use it
        centre = 0.0
        if near is not None:
            centre = near.astype(np.float64).mean(axis=0)  # no distance changes, and less cancels

        def embedded(rows: Any) -> tuple[Any, np.ndarray]:
            rows = rows.astype(np.float64)
            rows = self._embed(rows if sp.issparse(rows) else rows - centre)
            return rows, row_products(rows, rows)

        return embedded, embedded, _minus_distances

    # -- the cosine -----------------------------------------------------------------------------

    def _cosine_parts(self) -> tuple[Any, ...]:
        return self._spectrum(), self.centre

    def _new_cosine(self, spectrum: Spectrum, centre: Any) -> Cosine:
        d = spectrum.shape[0]
        if centre is not None:
            centre = check_items(one_row(centre), "centre", dtype=np.float64).values[0]
            if len(centre) != d:
                raise ValueError(f"centre: expected {d} features, got {len(centre)}")
        return Cosine(spectrum.components, centre=centre)

    @available_if(lambda self: self.normalise)
    def transform_query(self, queries: Any) -> Any:
        """Map queries q to t = M(q - centre) / |q|; only with `normalise`.

        The cosine with an item x, which stays as it is, is t'(x - centre) times its `item_scale`.

        Returns
        -------
        array (n_queries, d)
        """
        return self._cosine().transform(self._read_rows(queries, "queries", 0))

    # -- the metric ---------------------------------------------------------------------------

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """M, a positive semi-definite array of shape (d, d)."""
        return self._spectrum().matrix()

    @property
    def components_(self) -> np.ndarray:
        """L of shape (q, d) with M = L'L: `transform` maps x to Lx. The longest direction comes first."""
        components = self._spectrum().components
        return components.toarray() if sp.issparse(components) else components.copy()

    @property
    def eigenvalues_(self) -> np.ndarray:
        """The d eigenvalues of M, largest first."""
        values = np.zeros(self.shape_[0])
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
        return sparsity(self.get_mahalanobis_matrix())

    def transform(self, X: Any) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are the learnt ones.

        Columns are ordered: the first q of them are the metric truncated to its q largest directions.

        Parameters
        ----------
        X : array or CSR matrix of shape (n_items, d), or (n_items,) row numbers of `preprocessor`

        Returns
        -------
        array of shape (n_items, q)
        """
        X = self._item_cache().rows(self.preprocessor, X, self.dtype_)
        items = check_items(X, "X", dtype=self.dtype_)
        check_features(self.shape_, items, items, self._feature_names)
        embedded = self._embed(items.values)
        return embedded.toarray() if sp.issparse(embedded) else np.asarray(embedded)

    def truncated(self, n_components: int) -> Mahalanobis:
        """The metric with only its `n_components` largest directions, as a model of its own.

        It has no threshold: one for all directions does not fit a few of them (`calibrate_threshold`).
        """
        q = check_integer("n_components", n_components)
        metric = Mahalanobis(
            self._spectrum().truncated(q).matrix(),
            n_components=q,
            dtype=self.dtype,
            normalise=self.normalise,
            centre=self.centre,
            preprocessor=self.preprocessor,
        )
        metric._classes = self._classes
        return metric

    def pair_distance(self, pairs: Any, squared: bool = True) -> np.ndarray:
        """Squared distance of each pair; lower is more similar.

        Parameters
        ----------
        pairs : as in `pair_score`
        squared : bool
            False takes the root: the distances of `get_metric`, and of other libraries. `threshold_` is a
            squared distance either way.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Mahalanobis
        >>> Mahalanobis(np.eye(2)).pair_distance([[[3.0, 0.0], [0.0, 4.0]]], squared=False)
        array([5.])
        """
        distances = self.distances_of(self._read_tuples(pairs, 2))
        return distances if squared else np.sqrt(distances)

    def distances_of(self, pairs: Comparisons) -> np.ndarray:
        """Squared distances of checked pairs."""
        left, right, index = pairs.left, pairs.right, pairs.index
        rows = [
            self._score_rows(left.rows(index[s, 0]), right.rows(index[s, 1]))
            for s in self._row_chunks(pairs)
        ]
        return -np.concatenate(rows)

    def get_metric(self, squared: bool = False) -> Callable[..., float]:
        """A function (u, v, squared) of two vectors that returns their distance, frozen as it is now.

        It fits ``metric=`` of scikit-learn's neighbours, but calls Python for every pair: `transform` and
        plain Euclidean neighbours give the same result much faster.

        Parameters
        ----------
        squared : bool
            Whether to return the squared distance, as `pair_distance` does. What the function itself is
            given as `squared` comes first.
        """
        components = self._spectrum().components

        def metric(u: Any, v: Any, squared: bool = squared) -> float:
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

    # -- deciding pairs, and triplets -----------------------------------------------------------

    @property
    def threshold_(self) -> float:
        """Squared distance up to which two items count as similar."""
        if self._threshold is None:
            raise NotFittedError(
                "there is no threshold yet: call calibrate_threshold or set_threshold first"
            )
        return float(self._threshold)

    @property
    def classes_(self) -> np.ndarray:
        """The labels of pairs last learnt or calibrated from, dissimilar first; -1 and +1 without any."""
        return np.array(self._classes or SIGNS)

    def predict_pairs(self, pairs: Any) -> np.ndarray:
        """The second of `classes_` where the distance of a pair is at most `threshold_`, else the first."""
        return self._labels(self._are_similar(pairs))

    def _are_similar(self, pairs: Any) -> np.ndarray:
        return self.pair_distance(pairs) <= self.threshold_

    def _labels(self, similar: Any) -> np.ndarray:
        """What is answered for pairs, some of which are similar."""
        return self.classes_[np.asarray(similar, int)]

    def calibrate_threshold(
        self,
        pairs: Any,
        y: Any,
        criterion: str = "accuracy",
        *,
        beta: float = 1.0,
        min_rate: float | None = None,
    ) -> Any:
        """Choose the threshold that decides these pairs best; it is kept until learning goes on.

        Parameters
        ----------
        pairs : as in `pair_distance`
        y : array of +1 (similar) and -1 (dissimilar), or 1 and 0, or booleans
            A learner that has learnt from -1 and +1 takes no others; one that has no labels yet, and a
            `Mahalanobis`, answer in these from then on.
        criterion : "accuracy", "balanced_accuracy", "f1", "f_beta", "max_tpr" or "max_tnr"
            What is as large as possible. "f1" and "f_beta" are those of the similar pairs. "max_tpr" accepts
            as many similar pairs as can be while a share of at least `min_rate` of the dissimilar ones is
            rejected; "max_tnr" rejects as many dissimilar pairs as can be while a share of at least
            `min_rate` of the similar ones is accepted.
        beta : float
            Weight of the recall in "f_beta": 1 is "f1", more looks at the recall, less at the precision.
        min_rate : float from 0 to 1
            The rate that "max_tpr" and "max_tnr" must keep.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Mahalanobis
        >>> pairs = np.array([[[0.0], [1.0]], [[0.0], [2.0]], [[0.0], [3.0]], [[0.0], [4.0]]])
        >>> model = Mahalanobis(np.eye(1)).calibrate_threshold(pairs, [1, -1, 1, -1])
        >>> model.threshold_  # a squared distance
        2.5
        >>> model.calibrate_threshold(pairs, [1, -1, 1, -1], "max_tpr", min_rate=0.5).threshold_
        12.5
        """
        check_criterion(criterion, beta, min_rate)
        distances = self.pair_distance(pairs)
        similar = check_pair_labels(y, len(distances)) > 0
        self._threshold = best_threshold(distances, similar, criterion, beta, min_rate)
        self._classes = given_classes(y) or self._classes
        return self

    def set_threshold(self, threshold: float) -> Any:
        """Take this squared distance as `threshold_`; it is kept until learning goes on.

        Parameters
        ----------
        threshold : float
            Squared distance up to which two items count as similar.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Mahalanobis
        >>> model = Mahalanobis(np.eye(1)).set_threshold(1.5**2)
        >>> model.predict_pairs([[[0.0], [1.0]], [[0.0], [2.0]]])
        array([ 1, -1])
        """
        self._threshold = check_number("threshold", threshold, minimum=-np.inf)
        return self

    def decision_function(self, tuples: Any) -> np.ndarray:
        """How far each pair is below `threshold_`, or the margin of each triplet; positive means similar.

        Parameters
        ----------
        tuples : pairs, triplets or quadruplets, as row numbers or vectors
        """
        if tuple_size(tuples) == 2:
            return self.threshold_ - self.pair_distance(tuples)
        return self._tuple_margin(tuples)

    def predict(self, tuples: Any) -> np.ndarray:
        """Of a pair, what `predict_pairs` says; of a triplet, +1 if it is in the right order, else -1.

        `calibrate_threshold` sets the threshold that decides given pairs best.
        """
        if tuple_size(tuples) == 2:
            return self.predict_pairs(tuples)
        return np.where(self.decision_function(tuples) > 0, 1, -1)

    def score(self, tuples: Any, y: Any = None) -> float:
        """Share of pairs on the right side of `threshold_`, or of triplets in the right order.

        `calibrate_threshold` sets the threshold that decides given pairs best.
        """
        if tuple_size(tuples) != 2:
            return float(np.mean(self.decision_function(tuples) > 0))
        similar = self._are_similar(tuples)
        return float(np.mean(similar == (check_pair_labels(y, len(similar)) > 0)))

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"calibrated": self._threshold, "classes": self._classes}, {}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._threshold, self._classes = saved_threshold(header), saved_classes(header)
        self._spectrum()


def tuple_size(tuples: Any) -> int:
    """2 for pairs, 3 for triplets; errors are left to those who read them."""
    shape = np.shape(tuples)
    return 2 if len(shape) in (2, 3) and shape[1] == 2 else 3


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


def first_metric(
    init: Any, size: int, *, definite: bool = False, items: Any = None, random_state: Any = None
) -> np.ndarray:
    """The first M in float64: the given matrix if it is a metric, or one of these.

    "identity"; "covariance", the inverse of the covariance of the `items` (the pseudo-inverse, unless M must
    be definite); "random", with random eigenvectors and eigenvalues from 0.5 to 1.5.
    """
    if not isinstance(init, str):
        return check_positive(init, "init", dtype=np.float64, size=size, definite=definite)
    if init == "covariance":
        return _inverse_covariance(items, definite)
    if init == "random":
        rng = check_random_state(random_state)
        vectors = np.linalg.qr(rng.normal(size=(size, size)))[0]
        matrix = (vectors * rng.uniform(0.5, 1.5, size)) @ vectors.T
        return (matrix + matrix.T) / 2
    return np.eye(size)


def _inverse_covariance(items: np.ndarray, definite: bool) -> np.ndarray:
    """The inverse of the covariance of items, the pseudo-inverse where it has none; checked if `definite`."""
    covariance = np.atleast_2d(np.cov(items, rowvar=False))
    values, vectors = np.linalg.eigh(covariance)
    large = values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
    if not large.any() or (definite and not large.all()):
        raise ValueError(
            "init: expected items with a covariance that has an inverse for 'covariance', got "
            f"{np.count_nonzero(~large)} of {len(values)} directions without variance; leave features out, "
            "or use 'identity'"
        )
    root = vectors[:, large] / np.sqrt(values[large])
    return root @ root.T
