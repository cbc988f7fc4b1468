"""RCA: whiten the variation among items that belong together."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.comparisons import Comparisons
from ..similarity.discriminant import (
    SHRINKAGE,
    WEIGHTS,
    check_closed_form,
    discriminant,
    inner_covariance,
)
from ..similarity.learner import documented, new_generator, unchanged_on_error, validated
from ..similarity.mahalanobis import Spectrum
from ..validation import check_choice, check_integer, check_number
from .base import BatchMetric, batch_documented, check_some_class_has_two, named_items

#: Shares of regularisation from which on a singular covariance is nothing to warn about.
_DELIBERATE = 1e-6


@batch_documented()
@documented(
    shrinkage=SHRINKAGE.replace("{groups}", "chunklets"),
    weights=WEIGHTS.replace("{groups}", "chunklets"),
)
class RCA(BatchMetric):
    """Relevant component analysis: whiten the covariance inside chunklets (items known to belong together).

    M = inv(C + eps I) with C = 1/N sum_j sum_{x in H_j} (x - m_j)(x - m_j)' over chunklets H_j of mean m_j.

    Parameters
    ----------
    n_components : int, optional
        Reduce to this many dimensions first: those with the largest ratio of total to inner variance.
    regularization : float
        eps as a share of the mean of C's diagonal. A feature that is constant inside all chunklets gets a
        weight of 1/eps: leave such features out, use a larger share, or shrink.
    {shrinkage}
    {weights}
    n_chunks : int, optional
        `fit` draws so many chunklets of `chunk_size` items from the classes; None takes classes whole.
    chunk_size : int
        Items of a chunklet that is drawn.
    unlabelled : a label, optional
        Items with this label are in no class, in `fit`. -1 is usual; None knows no such label.
    random_state : None, int or RandomState
        Seed of the chunklets.
    {normalise}
    preprocessor : array or function of an array of keys, optional
        Items that row numbers refer to: in pairs, where `fit` or `transform` gets a one-dimensional X, and in
        `pair_distance` and the like. `fit_chunklets` does not use it.

    Attributes
    ----------
    {attributes}

    Notes
    -----
    `fit` treats every class as a chunklet, `fit_chunklets` takes chunklets, and `fit_pairs` treats every
    similar pair as one. Chunklets of one item carry no information and are ignored. With shrinkage and
    ``weights="between"`` M is inv(C) - inv(T), T the covariance of all items: KISSME (Koestinger et al., CVPR
    2012) with T in place of the covariance of dissimilar pairs.

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
        shrinkage: Any = None,
        weights: str = "equal",
        n_chunks: int | None = None,
        chunk_size: int = 2,
        unlabelled: Any = None,
        random_state: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.n_components = n_components
        self.regularization = regularization
        self.shrinkage = shrinkage
        self.weights = weights
        self.n_chunks = n_chunks
        self.chunk_size = chunk_size
        self.unlabelled = unlabelled
        self.random_state = random_state
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        self._check_integers_or_none("n_components", "n_chunks")
        check_number("regularization", self.regularization, exclusive=False)
        check_closed_form(self.shrinkage, self.weights)
        if check_integer("chunk_size", self.chunk_size) < 2:
            raise ValueError(f"chunk_size: expected at least 2, got {self.chunk_size}")
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
        with unchanged_on_error(self):
            X = validated(self, X, dtype=np.float64, ensure_min_samples=2)
            chunklets = np.asarray(chunklets)
            if chunklets.shape != (len(X),) or chunklets.dtype.kind not in "iu":
                raise ValueError(
                    f"chunklets: expected one integer for each of {len(X)} items, got shape "
                    f"{chunklets.shape} of {chunklets.dtype}"
                )
            inside = chunklets >= 0
            codes = np.unique(chunklets[inside], return_inverse=True)[1]
            check_some_class_has_two(codes, "form a chunklet")
            self._whiten(*_deviations(X[inside], codes), X)
            self._mean, self._from_pairs = X.mean(axis=0), False
        return self

    def fit_pairs(self, pairs: Any, y: Any = None) -> Any:
        """Learn the distance from pairs instead of labels, and the threshold that decides them best.

        Parameters
        ----------
        pairs : (n, 2) integers, rows of `preprocessor`, or (n, 2, d) numbers
            Triplets work too: each counts as its similar pair followed by its dissimilar one.
        y : array of +1 (similar) and -1 (dissimilar), or 1 and 0, or booleans; not for triplets
        """
        return self._fit_pairs(pairs, y, self._solve_pairs)

    def _solve(self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> None:
        inside = (
            np.ones(len(X), bool) if self.unlabelled is None else self._labelled(codes, classes)
        )
        check_some_class_has_two(
            np.unique(codes[inside], return_inverse=True)[1], "form a chunklet"
        )
        if self.n_chunks is not None:
            rows, codes = self._drawn(np.flatnonzero(inside), codes)
            self._whiten(*_deviations(X[rows], codes), X)
            return
        codes = np.unique(codes[inside], return_inverse=True)[1]
        self._whiten(*_deviations(X[inside], codes), X)

    def _labelled(self, codes: np.ndarray, classes: np.ndarray) -> np.ndarray:
        inside = classes[codes] != self.unlabelled
        if not inside.any():
            raise ValueError(
                f"y: expected labels other than that of unlabelled items, got {self.unlabelled!r} alone"
            )
        return inside

    def _drawn(self, rows: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of chunklets drawn from classes, each row once, and the number of their chunklets."""
        rng = new_generator(self.random_state)
        rows = rng.permutation(rows)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        firsts = np.flatnonzero(np.r_[True, np.diff(codes[rows]) > 0])
        sizes = np.diff(np.r_[firsts, len(rows)])
        starts = np.concatenate(
            [
                first + np.arange(size // self.chunk_size) * self.chunk_size
                for first, size in zip(firsts, sizes, strict=True)
            ]
        )
        assert self.n_chunks is not None
        if self.n_chunks > len(starts):
            raise ValueError(
                f"n_chunks: expected at most the {len(starts)} chunklets of {self.chunk_size} items that the "
                f"classes have, got {self.n_chunks}"
            )
        starts = rng.permutation(starts)[: self.n_chunks]
        places = (starts[:, None] + np.arange(self.chunk_size)).ravel()
        return rows[places], np.repeat(np.arange(self.n_chunks), self.chunk_size)

    def _solve_pairs(self, pairs: Comparisons) -> None:
        assert pairs.y is not None
        similar = np.flatnonzero(pairs.y > 0)
        if len(similar) == 0:
            raise ValueError("pairs: expected similar pairs to serve as chunklets, got none")
        v, _ = pairs.rows(0, len(pairs))
        # Two items are their mean plus and minus half their difference.
        self._whiten(v[similar] / 2, 0.5, named_items(pairs))

    def _whiten(self, deviations: np.ndarray, inflation: float, X: np.ndarray) -> None:
        """Learn from deviations inside chunklets; their covariance is too small by the factor `inflation`."""
        d = deviations.shape[1]
        if self.n_components is not None and self.n_components > d:
            raise ValueError(
                f"n_components: expected at most the {d} features, got {self.n_components}"
            )
        inner = inner_covariance(deviations, self.shrinkage)
        with np.errstate(over="ignore", invalid="ignore"):
            scale, size = np.trace(inner) / d, np.mean(X**2)
        # 1e-24: less than that may be the rounding of the means.
        if not (scale > 1e-24 * size and np.isfinite(scale)):
            raise ValueError(
                f"X: expected a positive, finite variance inside chunklets, got {scale:g} "
                "(their items are equal, or their squares overflow or underflow)"
            )
        values, vectors = self._regularised(inner, scale)
        is_whole = self.n_components is None or self.n_components == d
        if is_whole and self.weights == "equal":
            self._keep(Spectrum(1.0 / values, vectors.T, np.float64))
            return
        inner = inner + self.regularization * scale * np.eye(d)
        total = np.cov(X, rowvar=False, bias=True).reshape(d, d)
        # In the coordinates of its directions the inner covariance is already the identity.
        self._keep(discriminant(inner, total, self.n_components, self.weights, inflation=inflation))

    def _regularised(self, inner: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of C + eps I; warns where C itself has no inverse."""
        d = len(inner)
        nothing = d * np.finfo(np.float64).eps
        values, vectors = np.linalg.eigh(inner + self.regularization * scale * np.eye(d))
        if values[0] <= nothing * values[-1]:
            raise ValueError(
                "regularization: expected a larger value, because the covariance inside chunklets is "
                f"singular, got {self.regularization}"
            )
        without = values - self.regularization * scale
        n_flat = int(np.sum(without <= max(nothing, 1e-3 * self.regularization) * values[-1]))
        if n_flat and self.regularization < _DELIBERATE:
            warnings.warn(
                f"RCA: the covariance inside chunklets is singular: items vary in {d - n_flat} of {d} "
                "directions only, and the others count most; use shrinkage='auto', a larger regularization, "
                "or fewer features",
                UserWarning,
                stacklevel=6,  # whoever called fit or fit_pairs
            )
        return values, vectors


def _deviations(X: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, float]:
    """Items minus the means of their groups, without groups of one item, and the share of them that is free.

    The mean of a group of n items takes one of its n deviations.
    """
    sizes = np.bincount(codes)
    several = sizes[codes] > 1
    members = sp.csr_matrix((np.ones(len(X)), (codes, np.arange(len(X)))), (len(sizes), len(X)))
    means = (members @ X) / sizes[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        inside = (X - means[codes])[several]
    return inside, 1.0 - np.count_nonzero(sizes > 1) / len(inside)
