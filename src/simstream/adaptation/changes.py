"""What the candidates of an adapter have learnt: by how much each of them changes a query.

For dense items every candidate is a matrix. For sparse ones it is never formed: every step of
`ListwiseSoftmax` adds q (sum_j c_j x_j)' to M, with q the query and x_j the items of its list, so the change
of another query q' is the sum over the judged queries q_i of (q'q_i) sum_j c_ij x_j. That takes memory for
the lists alone, whatever the number of features, and time in proportion to the number of judged queries."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._engines import DivergedError
from .._kernels.listwise import descend_by_gram
from ..persistence import csr_arrays, csr_from_arrays, from_state, to_state, with_prefix
from ..similarity.base import all_products, row_products
from ..validation import Items

#: The constant among the features of a query, compared with the length of the items: the larger, the faster
#: a preference for items that does not depend on the query is learnt.
_CONSTANT = 0.1

#: Relevant rows and other rows: what one candidate learns from.
List = tuple[np.ndarray, np.ndarray]


def typical_length(items: Items) -> float:
    """Root mean square of the lengths of items; 1 if all are zero."""
    largest = float(abs(items.values).max())  # so that no square overflows
    if not largest > 0:
        return 1.0
    rows = items.values / items.dtype.type(largest)
    return largest * float(np.sqrt(np.mean(row_products(rows, rows), dtype=np.float64)))


class DenseChanges:
    """What all candidates have learnt from dense items.

    They see a query less the mean of the items, followed by a constant, and start from the matrix that maps
    this to the query itself. So a candidate that has learnt nothing changes nothing, and what it learns is a
    function of how a query differs from the mean.

    Parameters
    ----------
    learners : list of `ListwiseSoftmax` that have learnt nothing
    items : the first items
    """

    def __init__(self, learners: list[Any], items: Items) -> None:
        centre = items.values.mean(axis=0, dtype=np.float64)
        constant = _CONSTANT * typical_length(items)
        self._begin(learners, np.append(-centre, constant).astype(items.dtype))

    def _begin(self, learners: list[Any], shift: np.ndarray) -> None:
        """Take learners that have learnt nothing, and what is added to a query followed by 0."""
        start = np.vstack([np.eye(len(shift) - 1), -shift[:-1] / shift[-1]])
        self._shift, self.learners = shift, learners
        for learner in learners:
            learner.set_params(dtype=str(shift.dtype), init=start)

    def _features(self, queries: np.ndarray) -> np.ndarray:
        features = np.empty((len(queries), len(self._shift)), queries.dtype)
        np.add(queries, self._shift[:-1], out=features[:, :-1])
        features[:, -1] = self._shift[-1]
        return features

    def forget_rows(self) -> None:
        """Rows of items have another meaning from now on: nothing depends on it."""

    def change(self, number: int, queries: np.ndarray) -> np.ndarray:
        """What a candidate adds to queries."""
        return self._change(self.learners[number], queries, self._features(queries))

    def changes(self, query: np.ndarray) -> list[np.ndarray]:
        """What each candidate adds to one query."""
        features = self._features(query)
        return [self._change(learner, query, features) for learner in self.learners]

    def _change(self, learner: Any, queries: np.ndarray, features: np.ndarray) -> np.ndarray:
        if not learner.__sklearn_is_fitted__():
            return np.zeros_like(queries)
        return learner.transform_rows(features) - queries

    def learn(
        self,
        query: np.ndarray,
        changes: list[np.ndarray],
        items: Items,
        lists: list[List],
        weight: float,
    ) -> None:
        """Learn from one query; see `SparseChanges.learn`."""
        features = Items._of(self._features(query))
        for learner, (relevant, negatives) in zip(self.learners, lists, strict=True):
            if len(negatives):
                with suppress(DivergedError):  # it stays as it was before this list
                    learner.learn_rows(features, items, relevant, negatives, weight=weight)

    def state(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """JSON values of the candidates, and arrays."""
        header: list[Any] = []
        arrays = {"shift": self._shift}
        for number, learner in enumerate(self.learners):
            if not learner.__sklearn_is_fitted__():
                header.append(None)
                continue
            inner, own = to_state(learner)
            header.append(inner)
            arrays |= {f"learner{number}.{name}": array for name, array in own.items()}
        return header, arrays

    @classmethod
    def restored(
        cls, learners: list[Any], header: list[Any], arrays: dict[str, np.ndarray]
    ) -> DenseChanges:
        """What `state` gave, `learners` being candidates that have learnt nothing."""
        self = cls.__new__(cls)
        self._begin(learners, arrays["shift"])
        self.learners = [
            learner
            if inner is None
            else from_state(inner, with_prefix(f"learner{number}.", arrays))
            for number, (learner, inner) in enumerate(zip(learners, header, strict=True))
        ]
        return self


class GrowingRows:
    """A CSR matrix that rows are appended to.

    Examples
    --------
    >>> rows = GrowingRows()
    >>> rows.append([0, 2], [1.0, 5.0])
    >>> rows.matrix(3).toarray()
    array([[1., 0., 5.]])
    """

    def __init__(self, matrix: Any = None) -> None:
        start = sp.csr_matrix((0, 0)) if matrix is None else matrix
        self._data, self._indices = start.data.astype(np.float64), start.indices.astype(np.int64)
        self._indptr = start.indptr.astype(np.int64)
        self.n_rows, self._size = start.shape[0], len(self._data)

    def append(self, indices: Any, data: Any) -> None:
        """Append one row."""
        end = self._size + len(indices)
        if end > len(self._data):
            room = max(1024, 2 * end)
            self._data, self._indices = np.resize(self._data, room), np.resize(self._indices, room)
        if self.n_rows + 2 > len(self._indptr):
            self._indptr = np.resize(self._indptr, max(64, 2 * len(self._indptr)))
        self._data[self._size : end], self._indices[self._size : end] = data, indices
        self.n_rows, self._size = self.n_rows + 1, end
        self._indptr[self.n_rows] = end

    def matrix(self, n_columns: int) -> Any:
        """The rows as a matrix that shares their memory: use it before the next row is appended."""
        parts = self._data[: self._size], self._indices[: self._size]
        return sp.csr_matrix((*parts, self._indptr[: self.n_rows + 1]), (self.n_rows, n_columns))


class SparseChanges:
    """What all candidates have learnt from sparse items.

    Parameters
    ----------
    learners : list of `ListwiseSoftmax`, for their parameters
    n_features : int
    """

    def __init__(self, learners: list[Any], n_features: int) -> None:
        self.learners, self._n_features = learners, n_features
        self._queries, self._items = GrowingRows(), GrowingRows()
        self._weights = [GrowingRows() for _ in learners]
        #: Row of each of the searched items among those kept.
        self._kept_at: dict[int, int] = {}

    def forget_rows(self) -> None:
        """Rows of items have another meaning from now on."""
        self._kept_at = {}

    def change(self, number: int, queries: Any) -> np.ndarray:
        """What a candidate adds to queries."""
        if not self._queries.n_rows:
            return np.zeros(queries.shape, queries.dtype)
        likeness = queries @ self._queries.matrix(self._n_features).T
        coefficients = likeness @ self._weights[number].matrix(self._items.n_rows)
        changed = coefficients @ self._items.matrix(self._n_features)
        return changed.toarray().astype(queries.dtype)

    def changes(self, query: Any) -> list[np.ndarray]:
        """What each candidate adds to one query: the same, by products with vectors alone."""
        if not self._queries.n_rows:
            return [np.zeros(query.shape, query.dtype) for _ in self.learners]
        likeness = self._queries.matrix(self._n_features) @ query.toarray()[0]
        n_items = self._items.n_rows
        coefficients = [rows.matrix(n_items).T @ likeness for rows in self._weights]
        changed = self._items.matrix(self._n_features).T @ np.column_stack(coefficients)
        return [row[None].astype(query.dtype) for row in changed.T]

    def learn(
        self, query: Any, changes: list[np.ndarray], items: Items, lists: list[List], weight: float
    ) -> None:
        """Learn from one query.

        Parameters
        ----------
        query : CSR matrix of one row
        changes : what each candidate adds to the query now
        items : that rows refer to
        lists : relevant rows and other rows, for each candidate
        weight : multiplies the steps
        """
        # The lists have most items in common: their products are worked out once.
        rows = np.unique(np.concatenate([part for parts in lists for part in parts]))
        vectors = items.rows(rows).astype(np.float64)
        gram = all_products(vectors, vectors)
        scores = all_products(np.concatenate(changes) + query.toarray(), vectors)
        norm = float(query.multiply(query).sum())
        self._queries.append(query.indices, query.data)
        for number, (learner, (relevant, negatives)) in enumerate(
            zip(self.learners, lists, strict=True)
        ):
            chosen = np.concatenate([relevant, negatives])
            places = np.searchsorted(rows, chosen)
            coefficients = np.zeros(len(chosen))
            if len(negatives):
                descend_by_gram(
                    scores[number, places].astype(np.float64),
                    np.ascontiguousarray(gram[np.ix_(places, places)]),
                    len(relevant),
                    learner.eta * weight * learner.temperature * norm,
                    learner.temperature,
                    learner.n_steps,
                    coefficients,
                )
            self._weights[number].append(self._keep(items, chosen), coefficients / norm)

    def _keep(self, items: Items, rows: np.ndarray) -> list[int]:
        """Where some items are kept; those that are not yet, are added."""
        for row in rows.tolist():
            if row not in self._kept_at:
                self._kept_at[row] = self._items.n_rows
                vector = items.values[row : row + 1]
                self._items.append(vector.indices, vector.data)
        return [self._kept_at[row] for row in rows.tolist()]

    # -- saving -------------------------------------------------------------------------------

    def state(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """Parameters of the candidates, and arrays."""
        arrays = csr_arrays("queries.", self._queries.matrix(self._n_features))
        arrays |= csr_arrays("items.", self._items.matrix(self._n_features))
        for number, rows in enumerate(self._weights):
            arrays |= csr_arrays(f"weights{number}.", rows.matrix(self._items.n_rows))
        return [], {name: array.copy() for name, array in arrays.items()}

    @classmethod
    def restored(
        cls, learners: list[Any], n_features: int, arrays: dict[str, np.ndarray]
    ) -> SparseChanges:
        """What `state` gave; raises if its parts do not fit together."""
        self = cls(learners, n_features)
        n_queries, n_items = len(arrays["queries.indptr"]) - 1, len(arrays["items.indptr"]) - 1
        self._queries = GrowingRows(csr_from_arrays("queries.", arrays, (n_queries, n_features)))
        self._items = GrowingRows(csr_from_arrays("items.", arrays, (n_items, n_features)))
        self._weights = [
            GrowingRows(csr_from_arrays(f"weights{number}.", arrays, (n_queries, n_items)))
            for number in range(len(learners))
        ]
        return self
