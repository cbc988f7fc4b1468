"""A bilinear similarity whose matrix is still in the store of a learner's engine.

The store of a large sparse model takes seconds to decode, and a pair needs few of its entries. So scores of
pairs and triplets are read from the store, until decoding it would have cost less.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import Geometry
from ..data.comparisons import Comparisons
from ..validation import Items
from .base import row_products
from .bilinear import MANY_FEATURES, Bilinear
from .cosine import cosines
from .shift import Shift

#: Entries of a store that are decoded at once, in a few milliseconds.
_FEW_ENTRIES = 1 << 22


class StoredBilinear(Bilinear):
    """A bilinear similarity that is read from a store as it is now; it may change when learning goes on.

    Parameters
    ----------
    shape, dtype : those of the similarity
    values : function of triplets (`Comparisons`)
        x'Mz of triplets of sparse query rows, as the geometry makes them, and of sparse items.
    decode : function without arguments
        The matrix, and what is added to its products (None for nothing).
    work : int
        Entries that `decode` looks at.
    geometry : Geometry
    turn : lock
        While it is held, the store stays as it is: the parts of a score belong to one state.
    version : function without arguments
        A number that tells the states of the store apart.
    """

    #: What was decoded, and the entries that were looked at without it.
    _decoded: tuple[Any, Shift | None] | None = None
    _looked_at: float = 0.0
    #: Mean of the diagonal of M, and the state that it belongs to.
    _diagonal: tuple[float, float] | None = None

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: Any,
        *,
        values: Callable[[Comparisons], np.ndarray],
        decode: Callable[[], tuple[Any, Shift | None]],
        work: int,
        geometry: Geometry,
        turn: Any,
        version: Callable[[], float],
    ) -> None:
        self._shape, self._dtype, self._work, self._turn = shape, np.dtype(dtype), work, turn
        self._values, self._decode, self._geometry = values, decode, geometry
        self._version = version

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: D102
        return {}  # a store is no parameter

    def _parts(self) -> tuple[Any, Shift | None]:
        if self._decoded is None:
            self._decoded = self._decode()
        return self._decoded

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        return self._shape

    @property
    def dtype_(self) -> np.dtype[Any]:
        """Precision of M, and of the items when they are scored."""
        return self._dtype

    # -- what is read from the store ------------------------------------------------------------

    def _may_pay(self) -> bool:
        return self._decoded is None and self._work > _FEW_ENTRIES

    def _pays(self, work: float) -> bool:
        """Whether to look at so many entries of the store: all calls together look at no more than it has."""
        self._looked_at += work
        return self._looked_at <= self._work

    def _rows_scored(self, queries: Any, items: Any) -> np.ndarray:
        if self._may_pay() and (not self.normalise or self._has_plain_cosine()):
            q, x = sp.csr_matrix(queries), sp.csr_matrix(items)
            if self._pays(self._work_of(q, x)):
                with self._turn:
                    return self._cosines(q, x) if self.normalise else self._products(q, x)
        return super()._rows_scored(queries, items)

    def _margins(self, triplets: Comparisons) -> np.ndarray:
        if self.normalise:
            with self._turn if self._may_pay() else nullcontext():
                return super()._margins(triplets)
        sides, parts, begin = (triplets.left, triplets.right, triplets.right), [], 0
        for s in self._row_chunks(triplets):
            if not self._may_pay():
                break
            rows = (side.rows(triplets.index[s, k]) for k, side in enumerate(sides))
            q, x, other = map(sp.csr_matrix, rows)
            if not self._pays(_entries(q, x) + _entries(q, other)):
                break
            parts.append(self._values_of(self._read(q), x, other).astype(self._dtype))
            begin = s.stop
        if begin < len(triplets):
            parts.append(super()._margins(triplets.part(begin, len(triplets))))
        return np.concatenate(parts)

    def _work_of(self, q: Any, x: Any) -> float:
        """Entries that the scores of corresponding rows need."""
        by_mean = 0 if self._geometry.item_mean is None else self._shape[1]
        if not self.normalise:
            return _entries(q, x) + by_mean * q.nnz
        between = 2 * _entries(q, x) + _entries(q, q) + _entries(x, x)
        diagonal = self._shape[0] if self._diagonal is None else 0
        return between + by_mean * (q.nnz + x.nnz) + diagonal

    def _read(self, queries: Any, *, with_term: bool = True) -> Any:
        """Queries as products with the stored matrix read them."""
        rows = self._geometry.sparse_queries(queries)
        if self._geometry.constant and not with_term:
            rows.data[rows.indptr[1:] - 1] = 0  # the constant feature, the last of a row
        return rows

    def _values_of(self, rows: Any, x: Any, other: Any = None) -> np.ndarray:
        """r'A(x - other) of rows and the stored matrix A; x and other may have one row for all."""
        if other is None:
            other = sp.csr_matrix((1, x.shape[1]), dtype=x.dtype)
        n = np.arange(rows.shape[0])
        index = np.zeros((len(n), 3), np.int64)
        index[:, 0] = n
        index[:, 1] = n if x.shape[0] > 1 else 0
        index[:, 2] = x.shape[0] + (n if other.shape[0] > 1 else 0)
        right = Items._of(sp.csr_matrix(sp.vstack([x, other])))
        return self._values(Comparisons(Items._of(rows), right, index))

    def _by_mean(self, rows: Any) -> Any:
        """What the mean of the items takes off the products of these rows."""
        mean = self._geometry.item_mean
        return 0.0 if mean is None else self._values_of(rows, sp.csr_matrix(mean[None]))

    def _products(self, q: Any, x: Any) -> np.ndarray:
        """(q - m)'M(x - m) of corresponding rows, and the item term."""
        rows = self._read(q)
        return (self._values_of(rows, x) - self._by_mean(rows)).astype(self._dtype)

    # -- the cosine of a large matrix -------------------------------------------------------------

    def _has_plain_cosine(self) -> bool:
        """Whether the cosine is that by M itself, and items are measured from where queries are."""
        rows, columns = self._shape
        means = self._geometry.query_mean, self._geometry.item_mean
        one = means[0] is None or means[1] is None or np.array_equal(means[0], means[1])
        return rows == columns and rows > MANY_FEATURES and one

    def _cosines(self, q: Any, x: Any) -> np.ndarray:
        rows = self._read(q, with_term=False), self._read(x, with_term=False)
        means = self._by_mean(rows[0]), self._by_mean(rows[1])
        (qx, qq), (xx, xq) = (
            [self._values_of(these, items) - mean for items in some]
            for these, mean, some in zip(rows, means, ((x, q), (x, q)), strict=True)
        )
        return cosines(
            (qx + xq) / 2,
            squares=(qq, xx),
            lengths=(self._squared_lengths(q), self._squared_lengths(x)),
            diagonal=self._diagonal_mean(),
        )

    def _squared_lengths(self, rows: Any) -> np.ndarray:
        """x'x of rows, measured from the centre."""
        rows, mean = rows.astype(np.float64), self._geometry.item_mean
        squares = row_products(rows, rows)
        return squares if mean is None else squares - 2 * (rows @ mean) + mean @ mean

    def _diagonal_mean(self) -> float:
        """Mean of the diagonal of M; the lock is held."""
        kept, version = self._diagonal, self._version()
        if kept is None or kept[0] != version:  # another thread may have learnt since
            kept = self._diagonal = version, self._diagonal_sum() / self._shape[0]
        return kept[1]

    def _diagonal_sum(self) -> float:
        d, mean = self._shape[0], self._geometry.query_mean
        one_each = sp.identity(d, self._dtype, "csr")
        rows = one_each.copy()
        rows.resize(d, d + self._geometry.n_extra)
        total = float(self._values_of(rows, one_each).sum())
        if self._geometry.folded and mean is not None:  # M is A without its last rows, less mu'
            of_u = sp.csr_matrix(([1.0], ([0], [d + 1])), rows[:1].shape, dtype=self._dtype)
            total -= float(self._values_of(of_u, sp.csr_matrix(mean[None]))[0])
        return total


def _entries(a: Any, b: Any) -> float:
    """Entries of a matrix that products of corresponding rows need."""
    lengths = (np.diff(rows.indptr).astype(np.float64) for rows in (a, b))
    return float(np.prod(list(lengths), axis=0).sum())
