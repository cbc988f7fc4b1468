"""The bilinear similarity s(q, x) = q' M x."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..metrics import sparsity
from ..validation import check_items
from .base import Similarity, all_products, row_products
from .cosine import Cosine
from .mahalanobis import Spectrum

#: Features of a sparse M up to which its eigenvectors are found: seconds, and 32 MB.
_MANY_FEATURES = 2000

#: The parameter `normalise` in the docstring of a learner.
NORMALISE = """normalise : bool
        Read the similarity as a cosine in the learnt space, q'Px / sqrt(q'Pq x'Px) with P the positive part
        of the matrix; see `Bilinear`. It changes what is read, not what is learnt: set it at any time."""


class Bilinear(Similarity):
    """A bilinear similarity s(q, x) = q' M x with a given matrix: nothing is learnt.

    Parameters
    ----------
    matrix : array or CSR matrix of shape (d, d')
        Do not change it in place.
    dtype : "float32" or "float64", optional
    normalise : bool
        Score by the cosine q'Px / sqrt(q'Pq x'Px) in the learnt space instead, P the positive semi-definite
        matrix nearest to M: the positive part of (M + M')/2. Vectors whose length is zero have the score 0.
        For a sparse M of more than 2,000 features, whose eigenvectors would take too long, P is (M + M')/2
        itself, and x'Px at least a tenth of x'x times the mean of the diagonal of M.
    preprocessor : array, CSR matrix or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> Bilinear(np.diag([2.0, 1.0])).pair_score([[[1.0, 1.0], [1.0, 3.0]]])
    array([5.])
    """

    def __init__(
        self,
        matrix: Any,
        *,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.matrix = matrix
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    @classmethod
    def _of(cls, matrix: Any) -> Bilinear:
        """Of a matrix that needs no check."""
        self = cls(matrix)
        self._kept = ((matrix, None), matrix)
        return self

    def _matrix(self) -> Any:
        return self._made(self._checked_matrix, self.matrix, self.dtype)

    def _checked_matrix(self) -> Any:
        return check_items(self.matrix, "matrix", dtype=self.dtype).values

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._matrix().shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of M, and of the items when they are scored."""
        return self._matrix().dtype

    def _transform(self, rows: Any) -> Any:
        return rows @ self._matrix()

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        return row_products(self._transform(queries), items)

    def _score_all(self, queries: Any, items: Any) -> np.ndarray:
        return all_products(self._transform(queries), items)

    def _cosine_parts(self) -> tuple[Any, ...]:
        return (self._matrix(),)

    def _new_cosine(self, matrix: Any) -> Cosine:
        if sp.issparse(matrix) and matrix.shape[0] > _MANY_FEATURES:
            return Cosine(matrix=sp.csr_matrix((matrix + matrix.T) / 2))
        dense = matrix.toarray() if sp.issparse(matrix) else matrix
        rounding = np.finfo(matrix.dtype).eps
        return Cosine(Spectrum.of_matrix(dense, rounding=rounding).components.astype(matrix.dtype))

    def _frozen(self) -> Bilinear:
        return Bilinear._of(self.get_bilinear_matrix())._with_items(
            self.preprocessor, self._item_cache()
        )

    def get_bilinear_matrix(self) -> Any:
        """Copy of M in s(q, x) = q' M x: CSR if it was learnt from sparse items, else an array."""
        return self._matrix().copy()

    def transform_query(self, queries: Any) -> Any:
        """Map queries q to M'q, so that plain inner products with items are the learnt similarity.

        An index of the items never has to be rebuilt when M changes: only queries are transformed. With
        `normalise` they are mapped to Pq / sqrt(q'Pq), and inner products are multiplied by `item_scale`.

        Returns
        -------
        array (n_queries, d'), or CSR if both the queries and M are sparse
        """
        rows = self._read_rows(queries, "queries", 0)
        return self._cosine().transform(rows) if self.normalise else self._transform(rows)

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        return sparsity(self._matrix())
