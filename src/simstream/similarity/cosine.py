"""The cosine in a learnt space: q'Px / sqrt(q'Pq x'Px), which one number per item ranks.

It is the inner product of Pq / |q| with x / |x|, where |x| = sqrt(x'Px). So an index keeps its items as
they are: only queries are mapped, and products are multiplied by the number 1 / |x| of their item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines.sparse import csr_reader
from .._kernels.products import add_product, quadratic_forms
from .base import all_products, chunks, row_products

#: The least x'Mx of a sparse M, as a share of its value if M were the mean of its diagonal, everywhere.
#: Where x'Mx is small or negative, its root is no length: dividing by it would make x everybody's neighbour.
_FLOOR = 0.1

#: Entries of a matrix that is dear to copy, rows that are worth going over all of it, and how many calls with
#: fewer rows do so too.
_MANY_ENTRIES, _MANY_ROWS, _FIRST_CALLS = 1 << 22, 32, 100


class Cosine:
    """The cosine by a positive semi-definite P = L'L, or by a sparse M with x'Mx cut off from below.

    Parameters
    ----------
    components : array or CSR matrix (r, d), optional
        L: its rows are orthogonal, the longest first.
    matrix : CSR matrix (d, d), optional
        M, where there is no L; what counts is its symmetric part (M + M')/2.
    centre, query_centre : arrays (d,), optional
        What items and queries are measured from, instead of from zero; `centre` alone is that of both.
    folded : pair of arrays (d,), optional
        a and b, where the symmetric part is that of M - ab'.

    Examples
    --------
    >>> import numpy as np
    >>> space = Cosine(np.diag([2.0, 1.0]))
    >>> space.score_all(np.array([[1.0, 0.0]]), np.array([[1.0, 2.0], [0.0, 0.0]]))
    array([[0.70710678, 0.        ]])
    """

    #: (M + M')/2 and M', once they were needed, and calls with few rows before that.
    _symmetric: Any = None
    _transposed: Any = None
    _n_calls = 0

    def __init__(
        self,
        components: Any = None,
        matrix: Any = None,
        centre: Any = None,
        query_centre: Any = None,
        folded: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        if matrix is not None and not matrix.has_sorted_indices:
            matrix = matrix.sorted_indices()  # columns of a row are searched
        self._components, self._matrix, self._folded = components, matrix, folded
        self.centre = centre
        self.query_centre = centre if query_centre is None else query_centre
        if matrix is None:
            longest = components[:1]
            self._largest = float(row_products(longest, longest)[0])
        else:
            folded_diagonal = 0.0 if folded is None else folded[0] @ folded[1] / matrix.shape[0]
            self._largest = max(0.0, float(matrix.diagonal().mean() - folded_diagonal))

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be computed again."""
        again = ("_symmetric", "_transposed", "_n_calls")
        return {name: value for name, value in self.__dict__.items() if name not in again}

    # -- vectors x measured from a centre m: these three ----------------------------------------------

    def embed(self, rows: Any, m: Any) -> np.ndarray:
        """L(x - m) of rows x: here inner products are those by P."""
        if m is None:
            return _dense(rows @ self._components.T)
        if not sp.issparse(rows):
            return _dense((rows - m) @ self._components.T)
        return _dense(rows @ self._components.T) - _dense(self._components @ m)

    def _image(self, rows: Any, m: Any) -> Any:
        """S(x - m) of rows x, S the symmetric part of M with what is folded in."""
        image = self._symmetric_image(rows)
        if m is not None:
            image = _dense(image) - _dense(m @ self._matrix + self._matrix @ m) / 2
        if self._folded is not None:
            a, b = self._folded
            on_a, on_b = (rows @ v - (0.0 if m is None else m @ v) for v in (a, b))
            image = _dense(image) - (np.outer(on_a, b) + np.outer(on_b, a)) / 2
        return image

    def _symmetric_image(self, rows: Any) -> Any:
        """(M + M')x / 2 of rows x.

        The symmetric matrix takes two to three times the memory of a large M: sparse rows are multiplied by M
        and by M' instead. Many rows at a time go over M as it is for both, and so do the first calls with few
        rows, which may be all there are; after them M' is kept. Both give the same bits.
        """
        matrix = self._matrix
        if sp.issparse(rows) and matrix.nnz >= _MANY_ENTRIES:
            few = rows.shape[0] < _MANY_ROWS
            self._n_calls += few and self._n_calls <= _FIRST_CALLS
            if few and self._n_calls > _FIRST_CALLS and self._transposed is None:
                self._transposed = sp.csr_matrix(matrix.T)
            parts = [
                sp.csr_matrix(_two_sided(rows[s], matrix, self._transposed if few else None))
                for s in chunks(rows.shape[0], 32 * rows.shape[1])
            ]
            return sp.vstack(parts, format="csr")
        if self._symmetric is None:
            symmetric = sp.csr_matrix(matrix + matrix.T).astype(np.float64, copy=False)
            symmetric.data /= 2
            self._symmetric = symmetric
        return rows @ self._symmetric

    def _scale(self, mapped: Any, rows: Any, m: Any) -> np.ndarray:
        """1 / |x| of rows x, which are embedded, or mapped by M."""
        plain = row_products(rows, rows)
        if self._matrix is None:
            squares = row_products(mapped, mapped)
            if m is not None:
                plain = plain + m @ m
            least = self._largest * plain * (10 * np.finfo(squares.dtype).eps) ** 2
            return _inverse_root(np.where(squares > least, squares, 0.0))
        squares = row_products(mapped, rows)
        if m is not None:
            squares = squares - np.asarray(mapped @ m)
            plain = plain - 2 * (rows @ m) + m @ m
        return _floored_scale(squares, plain, self._largest)

    # -- lengths, and what follows from them --------------------------------------------------------

    def scale(self, rows: Any) -> np.ndarray:
        """1 / |x| of each item; 0 for one whose length is zero, or nothing but rounding."""
        is_plain = self.centre is None and self._folded is None
        if self._matrix is not None and is_plain and sp.issparse(rows):
            squares = np.empty(rows.shape[0])
            quadratic_forms(csr_reader(_double(rows)), csr_reader(self._matrix), squares)
            return _floored_scale(squares, row_products(rows, rows), self._largest)
        width = (self._components.shape[0] if self._matrix is None else 1) + rows.shape[1]
        mapped = self.embed if self._matrix is None else self._image
        parts = [
            self._scale(mapped(rows[s], self.centre), rows[s], self.centre)
            for s in chunks(rows.shape[0], 8 * width)
        ]
        return np.concatenate(parts) if parts else np.empty(0, rows.dtype)

    def transform(self, queries: Any) -> Any:
        """P(q - m) / |q| of queries q: times `scale` of an item, inner products are cosines if m is 0.

        With a centre the constant `offset` of these vectors is taken off first.
        """
        if self._matrix is None:
            return self.unit(queries, "queries") @ _array(self._components)
        image = self._image(queries, self.query_centre)
        return _times(image, self._scale(image, queries, self.query_centre))

    def offset(self, transformed: Any) -> Any:
        """What inner products of transformed queries with items are too large by: t'm."""
        return 0.0 if self.centre is None else np.asarray(transformed @ self.centre)

    def unit(self, rows: Any, side: str = "items") -> Any:
        """Vectors of items or queries whose inner products are the cosines: L(x - m) / |x| of rows x.

        Where there is no L, queries are transformed and items multiplied by their numbers, which with a
        centre takes a feature more.
        """
        if self._matrix is None:
            m = self.query_centre if side == "queries" else self.centre
            embedded = self.embed(rows, m)
            return _times(embedded, self._scale(embedded, rows, m))
        if side == "queries":
            rows = self.transform(rows)
            return rows if self.centre is None else np.column_stack([rows, -self.offset(rows)])
        scale = self.scale(rows)
        if self.centre is not None:
            rows = sp.hstack([sp.csr_matrix(rows), np.ones((rows.shape[0], 1))], format="csr")
        return _times(rows, scale)

    def _against(self, transformed: Any, items: Any) -> np.ndarray:
        return row_products(transformed, items) - self.offset(transformed)

    def score_rows(self, queries: Any, items: Any) -> np.ndarray:
        """Cosine of corresponding rows."""
        return _rounded(self._against(self.transform(queries), items) * self.scale(items))

    def score_all(self, queries: Any, items: Any, scale: np.ndarray | None = None) -> np.ndarray:
        """Cosine of every query with every item; `scale` of the items where it is known."""
        of_queries, of_items, scores = self.sides()
        known = of_items(items) if scale is None else (items, scale)
        return scores(of_queries(queries), known)

    def sides(self) -> tuple[Callable[..., Any], ...]:
        """What maps queries, what maps items, and what scores the two; see `Similarity.sides`."""
        return self.transform, (lambda items: (items, self.scale(items))), self._score_sides

    def _score_sides(self, transformed: Any, items: tuple[Any, np.ndarray]) -> np.ndarray:
        rows, scale = items
        scores = all_products(transformed, rows)
        if self.centre is not None:
            scores = scores - self.offset(transformed)[:, None]
        return _rounded(scores * scale)


def cosines(
    products: np.ndarray,
    *,
    squares: tuple[np.ndarray, np.ndarray],
    lengths: tuple[np.ndarray, np.ndarray],
    diagonal: float,
) -> np.ndarray:
    """Cosines by a sparse M of pairs (q, x) whose products are known already.

    Parameters
    ----------
    products : q'(M + M')x / 2
    squares : q'Mq and x'Mx
    lengths : q'q and x'x
    diagonal : mean of the diagonal of M

    Examples
    --------
    >>> cosines(
    ...     np.array([3.0]),
    ...     squares=(np.array([4.0]), np.array([9.0])),
    ...     lengths=(np.ones(1), np.ones(1)),
    ...     diagonal=1.0,
    ... )
    array([0.5])
    """
    for some, plain in zip(squares, lengths, strict=True):
        products = products * _floored_scale(some, plain, max(0.0, diagonal))
    return _rounded(products)


def _double(rows: Any) -> Any:
    return rows.astype(np.float64, copy=False)


def _two_sided(rows: Any, matrix: Any, transposed: Any) -> np.ndarray:
    """(M + M')x / 2 of sparse rows x, in double precision; M' may be None."""
    rows = _double(rows)
    if not rows.has_sorted_indices:
        rows = rows.sorted_indices()
    image = np.zeros(rows.shape)
    add_product(csr_reader(rows), csr_reader(matrix), image)
    if transposed is None:
        other = np.zeros(rows.shape[::-1])
        add_product(csr_reader(matrix), csr_reader(rows.T.tocsr()), other)
        image += other.T
    else:
        other = np.zeros(rows.shape)
        add_product(csr_reader(rows), csr_reader(transposed), other)
        image += other
    image /= 2
    return image


def _floored_scale(squares: np.ndarray, plain: np.ndarray, largest: float) -> np.ndarray:
    """1 / |x| by x'Mx, at least a share of x'x."""
    return _inverse_root(np.maximum(squares, _FLOOR * largest * plain))


def _dense(values: Any) -> np.ndarray:
    return values.toarray() if sp.issparse(values) else np.asarray(values)


def _array(values: Any) -> Any:
    """A CSR matrix as a sparse array, whose product with an array is an array."""
    return sp.csr_array(values) if sp.issparse(values) else values


def _inverse_root(squares: np.ndarray) -> np.ndarray:
    roots = np.zeros_like(squares)
    return np.divide(1.0, np.sqrt(np.maximum(squares, 0.0)), out=roots, where=squares > 0)


def _rounded(cosines: np.ndarray) -> np.ndarray:
    """Cosines without their last digits: 2^-42 is the unit in double precision, 2^-20 in single.

    Vectors that point the same way have the same cosine, which must not depend on how their length, or the
    number of queries in a call, is rounded: such ties are common, and go to the lower row number.
    """
    large = cosines.dtype.type(2**10 if cosines.dtype == np.float64 else 2**3)
    cosines += large
    cosines -= large
    return cosines


def _times(rows: Any, factors: np.ndarray) -> Any:
    """Rows multiplied by one number each; sparse rows stay sparse."""
    if sp.issparse(rows):
        return sp.csr_matrix(sp.diags_array(factors) @ rows)
    return rows * factors[:, None]
