"""Buffers of rows that are only appended to: what a reader has seen of them never changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from .protocol import as_dense

#: Bytes of scores at a time: they stay in the cache until the best are found, and there are few products
#: (before and after each, the threads of BLAS wait for each other).
_SCORE_BYTES = 2**23

#: Fewest rows at a time: with less, a matrix product is slow.
_MIN_ROWS = 1024

#: Rows are multiplied in multiples of this. BLAS sums the last few of another number in another order, and
#: equal vectors would get unequal scores.
_ALIGNED = 64

#: A full buffer is copied into one this many times as large.
_GROWTH = 1.5


def with_space(buffer: np.ndarray, n_used: int, n_wanted: int) -> np.ndarray:
    """The buffer, or a larger copy where it is too short; growing by steps costs O(1) per row."""
    if n_wanted <= len(buffer):
        return buffer
    size = n_wanted if n_used == 0 else max(n_wanted, _aligned(int(_GROWTH * len(buffer))))
    larger = np.zeros((size, *buffer.shape[1:]), buffer.dtype)
    larger[:n_used] = buffer[:n_used]
    return larger


class DenseRows:
    """Rows of an array."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._data = np.empty((0, n_features), np.float32)

    def append(self, n: int, values: Any) -> None:
        """Write rows behind the first n; an array with more space is put in place when it is whole."""
        end = n + values.shape[0]
        data = with_space(self._data, n, _aligned(end))
        data[n:end] = as_dense(values)
        self._data = data

    def reserve(self, n: int, n_wanted: int) -> None:
        """Make space for so many rows in all, n of which are there."""
        if _aligned(n_wanted) > len(self._data):
            data = np.zeros((_aligned(n_wanted), self.n_features), np.float32)
            data[:n] = self._data[:n]
            self._data = data

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copies of some rows."""
        return self._data[rows]

    def scores(self, queries: Any, n: int) -> Iterator[tuple[int, np.ndarray]]:
        """Inner products of queries with the first n rows, in pieces ``(first row, scores)``.

        A piece is overwritten by the next one; the last may go on after the last row, with -inf.
        """
        data, left = self._data, as_dense(queries)
        size, n_aligned = _piece(len(left)), _aligned(n)
        space = np.empty(len(left) * min(size, n_aligned), np.float32)
        for first in range(0, n_aligned, size):
            rows = data[first : min(n_aligned, first + size)]
            scores = space[: len(left) * len(rows)].reshape(len(left), len(rows))
            with np.errstate(over="ignore", invalid="ignore"):  # noticed by whoever takes the best
                if len(left) == 1:
                    np.matmul(rows, left[0], out=scores[0])
                else:
                    np.matmul(left, rows.T, out=scores)
            scores[:, n - first :] = -np.inf
            yield first, scores

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows as arrays to be saved."""
        return {"vectors": self._data[rows]}


class CsrRows:
    """Rows of a CSR matrix."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._data = np.empty(0, np.float32)
        self._columns = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int64)

    def append(self, n: int, values: Any) -> None:
        """Write rows behind the first n; arrays with more space are put in place when they are whole."""
        added = sp.csr_matrix(values)
        begin = int(self._starts[n])
        end = begin + added.nnz
        data = with_space(self._data, begin, end)
        columns = with_space(self._columns, begin, end)
        starts = with_space(self._starts, n + 1, n + 1 + added.shape[0])
        data[begin:end] = added.data
        columns[begin:end] = added.indices
        starts[n + 1 : n + 1 + added.shape[0]] = begin + added.indptr[1:].astype(np.int64)
        self._data, self._columns, self._starts = data, columns, starts

    def reserve(self, n: int, n_wanted: int) -> None:
        """Nothing: rows have any length."""

    def take(self, rows: np.ndarray) -> Any:
        """Copies of some rows."""
        begins = self._starts[rows]
        lengths = self._starts[rows + 1] - begins
        starts = np.append(0, np.cumsum(lengths))
        places = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        parts = (self._data[places], self._columns[places], starts)
        return sp.csr_matrix(parts, shape=(len(rows), self.n_features))

    def scores(self, queries: Any, n: int) -> Iterator[tuple[int, np.ndarray]]:
        """Inner products of queries with the first n rows, in pieces ``(first row, scores)``.

        A piece is overwritten by the next one.
        """
        from .._kernels.ranking import csr_scores

        data, columns, starts = self._data, self._columns, self._starts
        right = np.ascontiguousarray(as_dense(queries).T)
        n_queries = right.shape[1]
        size = _piece(n_queries)
        space = np.empty(n_queries * min(size, n), np.float32)
        for first in range(0, n, size):
            width = min(n - first, size)
            scores = space[: n_queries * width].reshape(n_queries, width)
            csr_scores(data, columns, starts, first, right, scores)
            yield first, scores

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows as arrays to be saved."""
        kept = self.take(rows)
        return {"data": kept.data, "columns": kept.indices, "starts": kept.indptr}


def rows_like(values: Any) -> DenseRows | CsrRows:
    """Empty buffers for rows of this kind."""
    return (CsrRows if sp.issparse(values) else DenseRows)(values.shape[1])


def rows_from_arrays(arrays: dict[str, np.ndarray], n_features: int) -> Any:
    """Rows from what ``arrays`` returned: an array or a CSR matrix."""
    if "vectors" in arrays:
        return arrays["vectors"]
    parts = (arrays["data"], arrays["columns"], arrays["starts"])
    csr = sp.csr_matrix(parts, shape=(len(arrays["starts"]) - 1, n_features))
    csr.check_format(
        full_check=True
    )  # a column that does not exist would be read outside of a query
    return csr


def _piece(n_queries: int) -> int:
    return _aligned(max(_MIN_ROWS, _SCORE_BYTES // (4 * n_queries)))


def _aligned(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
