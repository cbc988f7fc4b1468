"""The bilinear similarity of a matrix of low rank, W = L R', kept in its factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..metrics import sparsity
from ..validation import check_items
from .base import Similarity, all_products, row_products, same_rows
from .cosine import Cosine
from .mahalanobis import Spectrum

#: Singular values below this share of the largest one do not count in `rank_`.
_NO_RANK = 1e-6


class LowRank(Similarity):
    """A bilinear similarity s(q, x) = q' L R' x with given factors: nothing is learnt.

    Queries and items can be mapped into a space of few dimensions, where plain inner products are the
    similarity.

    Parameters
    ----------
    left : array of shape (d, m)
    right : array of shape (d', m)
        The two factors; do not change them in place.
    dtype : "float32" or "float64", optional
        Precision of the items when they are scored, and of the matrix that is read.
    normalise : bool
        Score by the cosine q'Px / sqrt(q'Pq x'Px) instead, P the positive part of (LR' + RL')/2. Vectors
        whose length is zero have the score 0.
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import LowRank
    >>> model = LowRank(np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]]))
    >>> model.pair_score([[[1.0, 1.0], [2.0, 5.0]]]), model.rank_
    (array([6.]), 1)
    """

    def __init__(
        self,
        left: Any,
        right: Any,
        *,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.left = left
        self.right = right
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    @property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """L and R."""
        return self._made(self._checked_factors, self.left, self.right, self.dtype)

    def _checked_factors(self) -> tuple[np.ndarray, ...]:
        sides = []
        for name, value in (("left", self.left), ("right", self.right)):
            side = check_items(value, name, dtype=np.float64).values
            sides.append(side.toarray() if sp.issparse(side) else side)
        if sides[0].shape[1] != sides[1].shape[1]:
            raise ValueError(
                f"left, right: expected as many columns in both, got {sides[0].shape[1]} and "
                f"{sides[1].shape[1]}"
            )
        return tuple(sides)

    @property
    def _full(self) -> np.ndarray | None:
        """W in float64, where scoring with it is cheaper than with its factors."""
        return None

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        left, right = self._factors
        return len(left), len(right)

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of the items when they are scored, and of the matrix that is read."""
        return np.dtype(self.dtype or np.float64)

    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        full = self._full
        if full is not None:
            return (lambda rows: rows @ full), same_rows, all_products
        left, right = self._factors
        return (lambda rows: rows @ left), (lambda rows: rows @ right), all_products

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        of_queries, of_items, _ = self._own_sides(None)
        return row_products(of_queries(queries), of_items(items))

    def _cosine_parts(self) -> tuple[Any, ...]:
        return self._factors

    def _new_cosine(self, left: np.ndarray, right: np.ndarray) -> Cosine:
        full = self._full
        if full is None and 2 * left.shape[1] >= len(left):
            full = left @ right.T
        if full is not None:
            return Cosine(Spectrum.of_matrix(full).components)
        # Both factors lie in a space of twice their columns: only there is anything to decompose.
        basis, small = np.linalg.qr(np.hstack([left, right]))
        inner = small[:, : left.shape[1]] @ small[:, left.shape[1] :].T
        return Cosine(Spectrum.of_matrix(inner).components @ basis.T)

    def _frozen(self) -> LowRank:
        left, right = self._factors
        return LowRank(left.copy(), right.copy(), dtype=str(self.dtype_))._with_items(self)

    def get_bilinear_matrix(self) -> np.ndarray:
        """Copy of W in s(q, x) = q' W x: an array of shape (d, d')."""
        full = self._full
        if full is None:
            left, right = self._factors
            full = left @ right.T
        return full.astype(self.dtype_)

    def transform_query(self, queries: Any) -> np.ndarray:
        """Map queries into the low-dimensional space: inner products with `transform_items` are similarities.

        With `normalise` both are mapped to vectors of length one (zero if they have no length).

        Returns
        -------
        array (n_queries, n_dimensions)
        """
        rows = self._read_rows(queries, "queries", 0)
        return self._cosine().unit(rows) if self.normalise else np.asarray(rows @ self._factors[0])

    def transform_items(self, items: Any) -> np.ndarray:
        """Map items into the low-dimensional space, where `transform_query` maps queries.

        Both maps change while a learner goes on learning: an index of the items has to be rebuilt.

        Returns
        -------
        array (n_items, n_dimensions)
        """
        rows = self._read_rows(items, "items", 1)
        return self._cosine().unit(rows) if self.normalise else np.asarray(rows @ self._factors[1])

    @property
    def singular_values_(self) -> np.ndarray:
        """Singular values of W, largest first."""
        return self._singular_values.copy()

    @property
    def _singular_values(self) -> np.ndarray:
        full = self._full
        if full is None:
            left, right = self._factors
            if left.shape[1] < min(len(left), len(right)):
                small = [np.asarray(np.linalg.qr(side, mode="r")) for side in (left, right)]
                full = small[0] @ small[1].T
            else:
                full = left @ right.T
        return np.linalg.svd(full, compute_uv=False)

    @property
    def rank_(self) -> int:
        """Number of singular values above 1e-6 times the largest one."""
        values = self.singular_values_
        return int(np.count_nonzero(values > _NO_RANK * values.max(initial=0.0)))

    @property
    def sparsity_(self) -> float:
        """Share of the entries of W that are zero."""
        return sparsity(self.get_bilinear_matrix())
