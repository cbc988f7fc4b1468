"""The geometry of s(q, x) = (q - m)'M(x - m) + w'(x - m): a scale, a centre, and a term of the items alone.

A triplet only needs x+ - x-, in which a mean of the items cancels. So learning with a centre and an item term
is learning from other *query* rows: [q - m, c], where c is a constant feature, and the last row of the matrix
is w / c. Items stay as they are.

Sparse queries must stay sparse. Where a step is a plain rank-one matrix, the mean is folded in, exactly: all
steps together are S - m u' with S = sum tau q z' and u = sum tau z, hence

    (q - m)'(S - m u')z = q'Sz - v'z - (m'q - m'm) u'z   with v = S'm.

That is a sparse row with two more features, v and u, which is *read* as [q, -1, m'm - m'q] and *written* as
[q, m'q, 1]; the inner product of the two is ||q - m||^2, the norm that a step needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.comparisons import Comparisons
from ..validation import Items, check_centre, check_number, refuse_change

#: Fewest items from which a mean or a scale is worked out.
FEWEST_ITEMS = 10

#: Queries and items that the scale is worked out from, at most.
_SAMPLE = (256, 2048)

#: Size of the constant feature where it is not given, as a share of the typical length of a query.
_CONSTANT = 0.3


@dataclass(frozen=True, eq=False)
class Geometry:
    """What a learner has fixed in its first call; the default changes nothing.

    Parameters
    ----------
    scale : float
        The first matrix is this times the identity.
    query_mean, item_mean : arrays, optional
        What queries and items are measured from; both or none.
    constant : float
        Size of the constant feature of queries, 0 without an item term.
    folded : bool
        Whether queries stay sparse, with the mean folded in.
    """

    scale: float = 1.0
    query_mean: np.ndarray | None = None
    item_mean: np.ndarray | None = None
    constant: float = 0.0
    folded: bool = False

    @property
    def n_extra(self) -> int:
        """Rows that the learnt matrix has beyond the features of queries."""
        return 2 * self.folded + (self.constant > 0)

    def centre(self) -> Any:
        """The mean of both sides, or the pair of them where they differ; None without one."""
        if self.query_mean is None or self.item_mean is None:
            return None
        if np.array_equal(self.query_mean, self.item_mean):
            return self.query_mean.copy()
        return self.query_mean.copy(), self.item_mean.copy()

    @property
    def is_plain(self) -> bool:
        """Whether queries are learnt from as they are."""
        return not self._changes_queries

    @property
    def _changes_queries(self) -> bool:
        return self.query_mean is not None or self.constant > 0

    # -- learning -----------------------------------------------------------------------------

    def comparisons(self, tuples: Comparisons) -> Comparisons:
        """The tuples with query rows as they are learnt from; only those that occur, if these are few."""
        if not self._changes_queries:
            return tuples
        if tuples.is_quadruplets:
            return self._quadruplets(tuples)
        index, rows = tuples.index, tuples.left.values
        if len(index) < rows.shape[0]:
            some, numbers = np.unique(index[:, 0], return_inverse=True)
            index, rows = index.copy(), rows[some]
            index[:, 0] = numbers
        if not self.folded:
            return replace(tuples, left=Items._of(self._dense_queries(rows)), index=index)
        read, written = self._folded_queries(sp.csr_matrix(rows))
        return replace(tuples, left=Items._of(read), written=Items._of(written), index=index)

    def _quadruplets(self, tuples: Comparisons) -> Comparisons:
        """Quadruplets have two queries: the mean of the items does not cancel."""
        left, right, index = tuples.used_rows()
        queries, items = tuples.left.values[left], tuples.right.values[right]
        if self.item_mean is not None:
            items = items - self.item_mean
        return replace(
            tuples,
            left=Items._of(self._dense_queries(queries)),
            right=Items._of(items),
            index=index,
        )

    def sparse_queries(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Sparse query rows as products with a learnt matrix read them."""
        if self.folded:
            return self._folded_queries(rows)[0]
        return self._dense_queries(rows) if self._changes_queries else rows

    def _dense_queries(self, rows: Any) -> Any:
        if sp.issparse(rows):
            if self.query_mean is None:  # a constant feature leaves them sparse
                constant = np.full((rows.shape[0], 1), self.constant, rows.dtype)
                return _appended(rows, constant)
            rows = rows.toarray()
        out = np.empty((len(rows), rows.shape[1] + self.n_extra), rows.dtype)
        mean = rows.dtype.type(0) if self.query_mean is None else self.query_mean
        np.subtract(rows, mean, out=out[:, : rows.shape[1]])
        out[:, rows.shape[1] :] = self.constant
        return out

    def _folded_queries(self, rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        assert self.query_mean is not None
        mean = self.query_mean.astype(np.float64)
        along = rows @ mean
        ones, constant = np.ones(len(along)), np.full((len(along), self.n_extra - 2), self.constant)
        read = np.column_stack([-ones, mean @ mean - along, constant])
        written = np.column_stack([along, ones, constant])
        return _appended(rows, read), _appended(rows, written)

    def extended(self, start: Any) -> Any:
        """The first matrix with the rows of the additional features."""
        if not self.n_extra:
            return start
        extra = np.zeros((self.n_extra, start.shape[1]), start.dtype)
        if self.folded:
            extra[0] = start.T @ self.query_mean
        if sp.issparse(start):
            return sp.vstack([start, sp.csr_matrix(extra)], "csr")
        return np.concatenate([start, extra])

    def parts(self, matrix: Any) -> tuple[Any, ...]:
        """What a learnt matrix means: S, both means, w, and u or None where nothing is folded in.

        All but S are None where nothing is added to products with it.
        """
        if not self._changes_queries:
            return matrix, None, None, None, None
        d = matrix.shape[0] - self.n_extra
        extra = matrix[d:]
        extra = extra.toarray() if sp.issparse(extra) else extra
        zeros = np.zeros(matrix.shape[1], matrix.dtype)
        query_mean = np.zeros(d, matrix.dtype) if self.query_mean is None else self.query_mean
        item_mean = zeros if self.item_mean is None else self.item_mean
        item_term = extra[-1] * extra.dtype.type(self.constant) if self.constant else zeros
        return (
            matrix[:d],
            query_mean,
            item_mean,
            item_term,
            extra[1].copy() if self.folded else None,
        )

    # -- parameters ---------------------------------------------------------------------------

    @classmethod
    def of(
        cls, tuples: Comparisons, init_scale: Any, centre: Any, item_term: Any, *, folded: bool
    ) -> Geometry:
        """The geometry that checked parameters mean for the items of a first call."""
        query_mean, item_mean = _means(tuples, centre)
        geometry = cls(1.0, query_mean, item_mean, folded=folded and query_mean is not None)
        if init_scale != 1.0:
            scale = geometry.typical_scale(tuples) if init_scale == "auto" else float(init_scale)
            geometry = replace(geometry, scale=scale)
        if item_term is not False:
            size = _CONSTANT * geometry._typical_length(tuples) if item_term is True else item_term
            geometry = replace(geometry, constant=float(size))
        return geometry

    def _sample(self, items: Items, most: int) -> Any:
        """Rows at equal distances, in float64."""
        rows = items.rows(np.unique(np.linspace(0, items.shape[0] - 1, most).astype(np.int64)))
        return rows.astype(np.float64)

    def typical_scale(self, tuples: Comparisons, matrix: np.ndarray | None = None) -> float:
        """One over the typical difference of two similarities of a query, before anything is learnt.

        Similarities by this matrix, or by inner products.
        """
        if matrix is None:
            _check_enough("init_scale", tuples)
        tuples.check_one_space("init_scale='auto'")
        queries, items = (
            self._sample(side, most)
            for side, most in zip((tuples.left, tuples.right), _SAMPLE, strict=True)
        )
        if matrix is not None:
            items = items @ matrix
        scores = queries @ items.T
        scores = scores.toarray() if sp.issparse(scores) else scores
        if self.query_mean is not None:
            scores = scores - items @ self.query_mean.astype(np.float64)
        spread = float(np.sqrt(np.mean(scores.var(axis=1))))
        return 1.0 / spread if spread > 0 else 1.0

    def _typical_length(self, tuples: Comparisons) -> float:
        """Root mean square of the lengths of (centred) queries; 1 if all are zero."""
        rows = self._sample(tuples.left, _SAMPLE[1])
        squares = np.asarray(
            rows.multiply(rows).sum(axis=1) if sp.issparse(rows) else (rows**2).sum(1)
        )
        total = float(squares.mean())
        if self.query_mean is not None:
            mean = self.query_mean.astype(np.float64)
            total += float(mean @ mean - 2 * np.mean(rows @ mean))
        return total**0.5 if total > 0 else 1.0

    def check_unchanged(self, init_scale: Any, centre: Any, item_term: Any) -> None:
        """Raise if parameters have become others than those the first call was made with."""
        if init_scale != "auto" and float(init_scale) != self.scale:
            refuse_change("init_scale", self.scale, init_scale)
        if isinstance(centre, str) or centre is None:
            if (centre is None) != (self.query_mean is None):
                refuse_change("centre", None if self.query_mean is None else "a vector", centre)
        else:
            pair = centre if isinstance(centre, tuple) else (centre, centre)
            kept = (self.query_mean, self.item_mean)
            if any(
                mean is None or not np.array_equal(np.asarray(given, mean.dtype), mean)
                for mean, given in zip(kept, pair, strict=True)
            ):
                refuse_change("centre", "the vector of the first call", "another one")
        if (item_term is not False) != (self.constant > 0) or (
            type(item_term) is not bool and float(item_term) != self.constant
        ):
            refuse_change("item_term", self.constant or False, item_term)

    # -- saving -------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON values and arrays by name; none where nothing is changed."""
        if self.scale == 1.0 and not self._changes_queries:
            return {}, {}
        scalars = {"scale": self.scale, "constant": self.constant, "folded": self.folded}
        means = {"query_mean": self.query_mean, "item_mean": self.item_mean}
        arrays = {f"geometry.{name}": mean for name, mean in means.items() if mean is not None}
        return {"geometry": scalars}, arrays

    @classmethod
    def from_state(
        cls, header: dict[str, Any], arrays: dict[str, np.ndarray], engine: Any
    ) -> Geometry:
        """What `state` gave; raises if it does not fit the engine."""
        if "geometry" not in header:
            return cls()
        saved = header["geometry"]
        scale = check_number("scale", saved["scale"])
        constant = check_number("constant", saved["constant"], exclusive=False)
        if not isinstance(saved["folded"], bool):
            raise ValueError(f"folded: expected true or false, got {saved['folded']!r}")
        self = cls(scale, constant=constant, folded=saved["folded"])
        d, d_items = engine.shape[0] - self.n_extra, engine.shape[1]
        if "geometry.query_mean" in arrays:
            means = arrays["geometry.query_mean"], arrays["geometry.item_mean"]
            query_mean, item_mean = check_centre(means, (d, d_items), engine.dtype)
            self = replace(self, query_mean=query_mean, item_mean=item_mean)
        if d < 1 or (self.folded and self.query_mean is None):
            raise ValueError("geometry: expected the features of the model, and a mean to fold in")
        return self


def check_geometry(init: Any, init_scale: Any, centre: Any, item_term: Any) -> None:
    """Check the three parameters, as far as that is possible without items."""
    if isinstance(init_scale, str):
        if init_scale != "auto":
            raise ValueError(f"init_scale: expected a number > 0 or 'auto', got {init_scale!r}")
    else:
        check_number("init_scale", init_scale)
    is_identity = isinstance(init, str) and init == "identity"
    if init_scale != 1.0 and not is_identity:
        given = init if isinstance(init, str) else "a matrix"
        raise ValueError(
            f"init_scale: expected 1.0 where the first matrix is not the identity, got {init_scale!r} with "
            f"init={given!r}"
        )
    if isinstance(centre, str) and centre != "auto":
        raise ValueError(f"centre: expected None, 'auto' or a vector, got {centre!r}")
    if not isinstance(item_term, (bool, np.bool_)):
        check_number("item_term", item_term)


def _means(tuples: Comparisons, centre: Any) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Means of queries and of items, in the precision of the items."""
    if centre is None:
        return None, None
    dtype = tuples.left.dtype
    if isinstance(centre, str):
        _check_enough("centre", tuples)
        means = [_mean(side).astype(dtype) for side in (tuples.left, tuples.right)]
        return means[0], means[1]
    return check_centre(centre, tuples.shape, dtype)


def _mean(items: Items) -> np.ndarray:
    return np.asarray(items.values.sum(axis=0, dtype=np.float64)).ravel() / items.shape[0]


def _check_enough(name: str, tuples: Comparisons) -> None:
    fewest = min(tuples.left.shape[0], tuples.right.shape[0])
    if fewest < FEWEST_ITEMS:
        raise ValueError(
            f"{name}='auto': expected at least {FEWEST_ITEMS} items in the first call to work it out from, "
            f"got {fewest}; give them as preprocessor, or give a value"
        )


def _appended(rows: sp.csr_matrix, columns: np.ndarray) -> sp.csr_matrix:
    """Rows with more columns, all of them stored, zeros too."""
    n, more = columns.shape
    places = np.repeat(rows.indptr[1:], more)
    names = np.tile(np.arange(rows.shape[1], rows.shape[1] + more, dtype=rows.indices.dtype), n)
    return sp.csr_matrix(
        (
            np.insert(rows.data, places, columns.astype(rows.dtype).ravel()),
            np.insert(rows.indices, places, names),
            rows.indptr + more * np.arange(n + 1, dtype=rows.indptr.dtype),
        ),
        shape=(n, rows.shape[1] + more),
    )
