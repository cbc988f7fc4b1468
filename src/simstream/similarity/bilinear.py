"""The bilinear similarity s(q, x) = q' M x, also with a centre and a term of the items alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..metrics import sparsity
from ..validation import check_items
from .base import Similarity, all_products, row_products, same_rows
from .cosine import Cosine
from .mahalanobis import Spectrum
from .shift import Shift

#: Features of a sparse M up to which its eigenvectors are found: seconds, and 32 MB.
MANY_FEATURES = 2000

#: The parameter `normalise` in the docstring of a learner.
NORMALISE = """normalise : bool
        Read the similarity as a cosine in the learnt space, q'Px / sqrt(q'Pq x'Px) with P the positive part
        of the matrix; see `Bilinear`. It changes what is read, not what is learnt: set it at any time."""


class Bilinear(Similarity):
    """A bilinear similarity s(q, x) = q' M x with a given matrix: nothing is learnt.

    With a centre m and an item term w it is s(q, x) = (q - m)' M (x - m) + w' (x - m).

    Parameters
    ----------
    matrix : array or CSR matrix of shape (d, d')
        Do not change it in place.
    centre : vector of d numbers, or pair of vectors (queries, items), optional
        What queries and items are measured from.
    item_term : vector of d' numbers, optional
        How much more similar each feature makes an item to every query.
    folded : vector u of d' numbers, optional
        M is `matrix` - m u'. Similarities learnt from centred sparse items have it: their M has no zeros.
    dtype : "float32" or "float64", optional
    normalise : bool
        Score by the cosine q'Px / sqrt(q'Pq x'Px) in the learnt space instead, P the positive semi-definite
        matrix nearest to M: the positive part of (M + M')/2. Vectors whose length is zero have the score 0.
        q and x are measured from the centre, if there is one; the item term is left out.
        For a sparse M of more than 2,000 features, whose eigenvectors would take too long, P is (M + M')/2
        itself, and x'Px at least a tenth of x'x times the mean of the diagonal of M.
    preprocessor : array, sparse matrix, table, `Items` or pair of them, optional
        Items that row numbers refer to.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> Bilinear(np.diag([2.0, 1.0])).pair_score([[[1.0, 1.0], [1.0, 3.0]]])
    array([5.])
    >>> centred = Bilinear(np.eye(2), centre=[1.0, 0.0], item_term=[0.0, 0.5])
    >>> centred.pair_score([[[1.0, 1.0], [1.0, 3.0]]]), centred.transform_query([[1.0, 1.0]])
    (array([4.5]), array([[0. , 1.5]]))
    """

    def __init__(
        self,
        matrix: Any,
        *,
        centre: Any = None,
        item_term: Any = None,
        folded: Any = None,
        dtype: Any = None,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.matrix = matrix
        self.centre = centre
        self.item_term = item_term
        self.folded = folded
        self.dtype = dtype
        self.normalise = normalise
        self.preprocessor = preprocessor

    @classmethod
    def _of(cls, matrix: Any, shift: Shift | None = None) -> Bilinear:
        """Of a matrix, and of means and terms, that need no check."""
        self = cls(matrix) if shift is None else cls(matrix, **shift.parameters())
        self._kept = (self._given(), (matrix, shift))
        return self

    def _given(self) -> tuple[Any, ...]:
        return self.matrix, self.centre, self.item_term, self.folded, self.dtype

    def _parts(self) -> tuple[Any, Shift | None]:
        """The matrix, and what is added to its products; None for nothing."""
        return self._made(self._checked_parts, *self._given())

    def _checked_parts(self) -> tuple[Any, Shift | None]:
        matrix = check_items(self.matrix, "matrix", dtype=self.dtype).values
        given = self.centre, self.item_term, self.folded
        return matrix, Shift.of(*given, matrix.shape, matrix.dtype)

    def _matrix(self) -> Any:
        return self._parts()[0]

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._matrix().shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of M, and of the items when they are scored."""
        return self._matrix().dtype

    def _transform(self, rows: Any) -> Any:
        matrix, shift = self._parts()
        return rows @ matrix if shift is None else shift.transform(matrix, rows)

    def _score_rows(self, queries: Any, items: Any) -> np.ndarray:
        matrix, shift = self._parts()
        if shift is not None:
            return shift.score_rows(matrix, queries, items)
        return row_products(self._transform(queries), items)

    def _own_sides(self, near: Any) -> tuple[Callable[..., Any], ...]:
        matrix, shift = self._parts()
        if shift is not None:
            return partial(shift.of_queries, matrix), same_rows, shift.score_all
        return self._transform, same_rows, all_products

    def _cosine_parts(self) -> tuple[Any, ...]:
        return self._parts()

    def _new_cosine(self, matrix: Any, shift: Shift | None) -> Cosine:
        centres, folded = dict[str, Any](), None
        if shift is not None:
            centres = {"centre": shift.item_mean, "query_centre": shift.query_mean}
            folded = None if shift.folded is None else (shift.query_mean, shift.folded)
        if sp.issparse(matrix) and matrix.shape[0] > MANY_FEATURES:
            return Cosine(matrix=matrix, folded=folded, **centres)
        dense = matrix.toarray() if sp.issparse(matrix) else matrix
        if folded is not None:
            dense = dense - np.outer(*folded)
        rounding = np.finfo(matrix.dtype).eps
        spectrum = Spectrum.of_matrix(dense, rounding=rounding)
        return Cosine(spectrum.components.astype(matrix.dtype), **centres)

    def _frozen(self) -> Bilinear:
        matrix, shift = self._parts()
        frozen = (
            Bilinear._of(self.get_bilinear_matrix())
            if shift is None
            else Bilinear._of(matrix.copy(), shift)
        )
        return frozen._with_items(self)

    def get_bilinear_matrix(self) -> Any:
        """Copy of M in s(q, x) = q' M x: CSR if it was learnt from sparse items, else an array.

        Without the centre and the item term. Of centred sparse items M has no zeros, and is an array.
        """
        matrix, shift = self._parts()
        return matrix.copy() if shift is None else shift.full_matrix(matrix)

    def transform_query(self, queries: Any) -> Any:
        """Map queries q to M'q, so that plain inner products with items are the learnt similarity.

        An index of the items never has to be rebuilt when M changes: only queries are transformed. With a
        centre and an item term, q is mapped to M'(q - m) + w: inner products with the *uncentred* items rank
        as the similarity does, and differ from it by the same number for all items of a query.

        With `normalise` q is mapped to t = P(q - m) / |q|. The similarity is t'(x - m) times the `item_scale`
        of x: where there is a centre, t'm is taken off the inner products with uncentred items.

        Returns
        -------
        array (n_queries, d'), or CSR if both the queries and M are sparse and nothing is added
        """
        rows = self._read_rows(queries, "queries", 0)
        return self._cosine().transform(rows) if self.normalise else self._transform(rows)

    @property
    def sparsity_(self) -> float:
        """Share of the entries of M that are zero."""
        matrix, shift = self._parts()
        return sparsity(matrix) if shift is None else shift.sparsity(matrix)
