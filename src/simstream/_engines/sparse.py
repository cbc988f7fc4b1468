"""Only the entries that were touched, for sparse items."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats, new_scratch
from .store import Entries, SparseStore

_AT_A_TIME = 1 << 20


class SparseEngine(Engine):
    """Only the entries that were touched, for sparse items; always one tuple at a time.

    Parameters
    ----------
    rule : an entry rule of `kernels.rules`
    start : CSR matrix of shape (d, d'), the first matrix
    average_from : int, optional
        First round of the average.
    has_aux : bool
        Whether the rule needs the second number.
    head_bytes : int
        Memory of the dense block of frequent features (see `stores.SparseStore`).
    row_counts, column_counts : int arrays
        How often each feature occurs; only used where the matrix is too large for one dense block.
        The same array for both where rows and columns are the same features.
    """

    kind = "sparse"
    learns_blocks = False

    def __init__(
        self,
        rule: Any,
        average_from: int | None,
        start: Any,
        has_aux: bool,
        head_bytes: int,
        row_counts: np.ndarray,
        column_counts: np.ndarray,
    ) -> None:
        from .._kernels.rules import ADAPTIVE

        super().__init__(rule, average_from)
        has_acc = average_from is not None
        self.row_rank: Any = None
        self.column_rank: Any = None
        if start.shape[0] * start.shape[1] * start.dtype.itemsize > head_bytes:
            self.row_rank = rank_by_count(row_counts)
            self.column_rank = (
                self.row_rank if column_counts is row_counts else rank_by_count(column_counts)
            )
            start = renumber(start, self.row_rank, self.column_rank)
        numbers = np.zeros((start.nnz, 1 + has_aux + has_acc), start.dtype)
        numbers[:, 0] = start.data
        if rule.kind == ADAPTIVE:
            numbers[:, 0] *= rule.delta
        indptr, indices = start.indptr.astype(np.int64), start.indices.astype(np.int32)
        self.store = SparseStore(
            Entries(start.shape, indptr, indices, numbers),
            has_aux=has_aux,
            has_acc=has_acc,
            head_bytes=head_bytes,
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.store.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.store.dtype

    @property
    def arrays(self) -> Any:
        """The arrays of the store as they are now: they may be replaced when it grows."""
        return self.store.arrays

    def make_space(self, rule: Any, shift: float) -> None:
        """Make room for more entries."""
        self.store.make_space(rule, shift)

    def open(self, tuples: Comparisons) -> tuple[Any, Any, Any, int]:
        """What drivers need to read tuples: both readers, the tuples, scratch, and tuples per call."""
        ranks = None if self.row_rank is None else (self.row_rank, self.column_rank)
        readers, longest, chunk = csr_readers(tuples, ranks)
        longest_difference = min(self.shape[1], longest[1] + max(longest))
        scratch = new_scratch(max(longest[0], longest_difference), longest_difference, self.dtype)
        return readers, tuples.kernel_tuples(), scratch, chunk

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.entrywise import learn_one_at_a_time

        readers, named, scratch, chunk = self.open(tuples)

        def learn(begin: int, end: int) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule,
                self.store.arrays,
                step,
                *readers,
                named,
                begin,
                end,
                scratch,
                self.clock,
            )

        self._drive(learn, len(tuples), chunk, self.store.make_space, self.store.rebase)

    def matrix(self) -> sp.csr_matrix:
        """The current matrix, or the average, as CSR in the original numbering of features."""
        from .._kernels.steps import SHIFT

        # A large matrix is a large part of the memory: nothing here copies it without need.
        entries = self.store.entries(self.rule, self.clock[SHIFT], self.row_rank)
        indptr, indices = entries.indptr, entries.indices
        if self.column_rank is not None:
            _rename(indices, np.argsort(self.column_rank).astype(np.int32))
        value = self._values(entries)
        del entries  # with its numbers
        return in_order(sp.csr_matrix((value, indices, indptr), shape=self.shape))

    def _values(self, entries: Entries) -> np.ndarray:
        numbers = entries.numbers
        on_diagonal = None
        if self.rule.off_diagonal:
            features = np.arange(self.shape[0], dtype=np.int32)
            on_diagonal = np.repeat(features, np.diff(entries.indptr)) == entries.indices
        u, aux, acc = numbers[:, 0], numbers[:, min(1, numbers.shape[1] - 1)], numbers[:, -1]
        return np.ascontiguousarray(self._decode(u, aux, acc, on_diagonal))

    def state(self) -> dict[str, np.ndarray]:
        from .._kernels.steps import SHIFT

        entries = self.store.entries(self.rule, self.clock[SHIFT])
        arrays = {
            "clock": self.clock,
            "shape": np.array(self.shape),
            "indptr": entries.indptr,
            "indices": entries.indices,
            "numbers": entries.numbers,
        }
        if self.row_rank is not None:
            arrays["row_rank"] = self.row_rank
            arrays["column_rank"] = self.column_rank
        return arrays

    @classmethod
    def from_state(  # type: ignore[override]
        cls,
        rule: Any,
        average_from: int | None,
        arrays: dict[str, np.ndarray],
        *,
        has_aux: bool,
        head_bytes: int,
        **_: Any,
    ) -> SparseEngine:
        self = cls.__new__(cls)
        Engine.__init__(self, rule, average_from, arrays["clock"])
        has_acc = average_from is not None
        entries = checked_entries(arrays, 1 + has_aux + has_acc)
        self.row_rank, self.column_rank = checked_ranks(arrays, entries.shape) or (None, None)
        self.store = SparseStore(entries, has_aux=has_aux, has_acc=has_acc, head_bytes=head_bytes)
        return self


def csr_readers(
    tuples: Comparisons, ranks: tuple[np.ndarray, np.ndarray] | None
) -> tuple[tuple[Any, Any], list[int], int]:
    """Readers of both kinds of items as CSR, their longest rows, and tuples per call."""
    from .._kernels.entrywise import SparseRows

    left, right = tuples.left, tuples.right
    row_rank, column_rank = ranks or (None, None)
    rows_left = left.csr_renumbered(row_rank)
    rows_right = rows_left if right is left else right.csr_renumbered(column_rank)
    # One integer type for all matrices: kernels are compiled for it once.
    first, second = (
        SparseRows(m.indptr.astype(np.int64), m.indices.astype(np.int32, copy=False), m.data)
        for m in (rows_left, rows_right)
    )
    longest = [int(np.diff(m.indptr).max()) for m in (rows_left, rows_right)]
    mean_entries = 2 * (rows_left.nnz / left.shape[0]) * (rows_right.nnz / right.shape[0])
    return (first, second), longest, max(1, int(ENTRIES_PER_CALL / max(1.0, mean_entries)))


def checked_ranks(
    arrays: dict[str, np.ndarray], shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Restored numbers of the features, if they were renumbered; compiled code trusts them."""
    if "row_rank" not in arrays:
        return None
    for name, n in zip(("row_rank", "column_rank"), shape, strict=True):
        check_array(name, arrays[name], np.int64, (n,))
        if not np.array_equal(np.sort(arrays[name]), np.arange(n)):
            raise ValueError(f"{name}: expected a permutation of {n} features")
    return arrays["row_rank"], arrays["column_rank"]


def checked_entries(arrays: dict[str, np.ndarray], width: int) -> Entries:
    """Restored entries; compiled code trusts their indices, so they are looked at first."""
    check_array("shape", arrays["shape"], np.int64, (2,))
    n_rows, n_columns = (int(n) for n in arrays["shape"])
    if n_rows < 1 or n_columns < 1:
        raise ValueError(f"shape: expected positive numbers, got {(n_rows, n_columns)}")
    indptr, indices, numbers = arrays["indptr"], arrays["indices"], arrays["numbers"]
    check_array("indptr", indptr, np.int64, (n_rows + 1,))
    check_array("indices", indices, np.int32, (None,))
    check_array("numbers", numbers, check_floats("numbers", numbers), (len(indices), width))
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError("indptr: expected row pointers from 0 to the number of entries")
    if len(indices) and not (indices.min() >= 0 and indices.max() < n_columns):
        raise ValueError(f"indices: expected columns from 0 to {n_columns - 1}")
    return Entries((n_rows, n_columns), indptr, indices, numbers)


def rank_by_count(counts: np.ndarray) -> np.ndarray:
    """Number of each feature when counted from the most to the least frequent."""
    return np.argsort(np.argsort(-counts, kind="stable"))


def renumber(matrix: sp.csr_matrix, row_rank: np.ndarray, column_rank: np.ndarray) -> sp.csr_matrix:
    """Move entry (i, j) to (row_rank[i], column_rank[j])."""
    moved = matrix[np.argsort(row_rank)]
    columns = column_rank[moved.indices].astype(np.int32)
    return sp.csr_matrix((moved.data, columns, moved.indptr), moved.shape)


def _rename(indices: np.ndarray, names: np.ndarray) -> None:
    """Replace every index by its name, in place."""
    for start in range(0, len(indices), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        indices[some] = names[indices[some]]


def renumbered_back(
    matrix: sp.csr_matrix, ranks: tuple[np.ndarray, np.ndarray] | None
) -> sp.csr_matrix:
    """A matrix whose features have these numbers (None: their own) with their own ones, in order."""
    if ranks is not None:
        matrix = renumber(matrix, *(np.argsort(rank) for rank in ranks))
    return in_order(matrix)


def in_order(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix itself, without stored zeros, the columns of every row sorted."""
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
