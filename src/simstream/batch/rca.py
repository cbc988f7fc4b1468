"""RCA: whiten the variation among items that belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from sklearn.utils.validation import validate_data

from ..data.comparisons import Comparisons
from ..similarity.mahalanobis import Spectrum
from ..validation import check_choice, check_number
from .base import BatchMetric, batch_documented, check_some_class_has_two


@batch_documented()
class RCA(BatchMetric):
    """Relevant component analysis: whiten the covariance inside chunklets (items known to belong together).

    M = inv(C + eps I) with C = 1/N sum_j sum_{x in H_j} (x - m_j)(x - m_j)' over chunklets H_j of mean m_j.

    Parameters
    ----------
    n_components : int, optional
        Reduce to this many dimensions first: those with the largest ratio of total to inner variance.
    regularization : float
        eps as a share of the mean of C's diagonal. A feature that is constant inside all chunklets gets a
        weight of 1/eps: leave such features out, or use a larger share.
    {normalise}
    preprocessor : array, optional
        Items that row numbers refer to in `fit_pairs`, `pair_distance` and the like; `fit` does not use it.

    Attributes
    ----------
    {attributes}

    Notes
    -----
    `fit` treats every class as a chunklet, `fit_chunklets` takes chunklets, and `fit_pairs` treats every
    similar pair as one. Chunklets of one item carry no information and are ignored.

    References
    ----------
    Bar-Hillel, Hertz, Shental, Weinshall. Learning a Mahalanobis metric from equivalence constraints. JMLR
    2005.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from simstream import RCA
    >>> X, y = load_wine(return_X_y=True)
    >>> RCA(n_components=2).fit(X, y).transform(X).shape
    (178, 2)
    """

    _saved_numbers = ()
    _saved_arrays = ()

    def __init__(
        self,
        n_components: int | None = None,
        *,
        regularization: float = 1e-9,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.n_components = n_components
        self.regularization = regularization
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        self._check_integers_or_none("n_components")
        check_number("regularization", self.regularization, exclusive=False)
        check_choice("normalise", self.normalise, (False, True))

    def fit_chunklets(self, X: Any, chunklets: Any) -> RCA:
        """Learn the distance from items, some of which are known to belong together.

        Parameters
        ----------
        X : array of shape (n_items, n_features)
        chunklets : integers of shape (n_items,)
            Number of the chunklet of each item; negative for items in none. With `n_components`, all items
            count for the total variance.
        """
        self._check_parameters()
        with self._unchanged_on_error():
            X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
            chunklets = np.asarray(chunklets)
            if chunklets.shape != (len(X),) or chunklets.dtype.kind not in "iu":
                raise ValueError(
                    f"chunklets: expected one integer for each of {len(X)} items, got shape "
                    f"{chunklets.shape} of {chunklets.dtype}"
                )
            inside = chunklets >= 0
            codes = np.unique(chunklets[inside], return_inverse=True)[1]
            check_some_class_has_two(codes, "form a chunklet")
            self._whiten(_inner_covariance(X[inside], codes), X)
            self._mean = X.mean(axis=0)
        return self

    def fit_pairs(self, pairs: Any, y: Any = None) -> Any:
        """Learn the distance from pairs instead of labels.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers
            Triplets work too: each counts as its similar pair followed by its dissimilar one.
        y : array of +1 (similar) and -1 (dissimilar); not for triplets
        """
        return self._fit_pairs(pairs, y, self._solve_pairs)

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        check_some_class_has_two(codes, "form a chunklet")
        self._whiten(_inner_covariance(X, codes), X)

    def _solve_pairs(self, pairs: Comparisons) -> None:
        assert pairs.y is not None
        similar = np.flatnonzero(pairs.y > 0)
        if len(similar) == 0:
            raise ValueError("pairs: expected similar pairs to serve as chunklets, got none")
        v, _ = pairs.rows(0, len(pairs))
        if pairs.left is pairs.right:
            named = pairs.left.dense_rows(np.unique(pairs.index))
        else:
            columns = zip((pairs.left, pairs.right), pairs.index.T, strict=True)
            named = np.vstack([items.dense_rows(np.unique(column)) for items, column in columns])
        # Two items are their mean plus and minus half their difference.
        self._whiten(v[similar].T @ v[similar] / (4 * len(similar)), named)

    def _whiten(self, inner: np.ndarray, X: np.ndarray) -> None:
        d = len(inner)
        if self.n_components is not None and self.n_components > d:
            raise ValueError(
                f"n_components: expected at most the {d} features, got {self.n_components}"
            )
        with np.errstate(over="ignore"):
            scale, size = np.trace(inner) / d, np.mean(X**2)
        # 1e-24: less than that may be the rounding of the means.
        if not (scale > 1e-24 * size and np.isfinite(scale)):
            raise ValueError(
                f"X: expected a positive, finite variance inside chunklets, got {scale:g} "
                "(their items are equal, or their squares overflow or underflow)"
            )
        inner = inner + self.regularization * scale * np.eye(d)
        values, vectors = np.linalg.eigh(inner)
        if values[0] <= d * np.finfo(np.float64).eps * values[-1]:
            raise ValueError(
                "regularization: expected a larger value, because the covariance inside chunklets is "
                f"singular, got {self.regularization}"
            )
        if self.n_components is None or self.n_components == d:
            self._keep(Spectrum(1.0 / values, vectors.T, np.float64))
            return
        _, vectors = eigh(np.cov(X, rowvar=False, bias=True).reshape(d, d), inner)
        # eigh normalises by v' C v = 1: in these coordinates the inner covariance is already the identity.
        self._keep(Spectrum.of_components(vectors[:, ::-1][:, : self.n_components].T))


def _inner_covariance(X: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Covariance around the means of groups; groups of one item are ignored."""
    sizes = np.bincount(codes)
    several = sizes[codes] > 1
    members = sp.csr_matrix((np.ones(len(X)), (codes, np.arange(len(X)))), (len(sizes), len(X)))
    means = (members @ X) / sizes[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        inside = (X - means[codes])[several]
        return inside.T @ inside / len(inside)
