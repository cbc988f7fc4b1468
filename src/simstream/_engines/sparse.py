"""Matrices of sparse items: only the entries that were touched, in a dense head and hashed tails.

The store holds raw numbers; what they mean is the entry rule's business (`_kernels.rules`). It can be read
as, and built from, raw `Entries`, which is also what is saved to disk: a saved model does not depend on how
it was laid out in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._kernels import head_tail
from .._kernels.entrywise import FoldedRows, SparseRows, learn_one_at_a_time, stored_values
from .._kernels.rules import ADAPTIVE
from .._kernels.steps import SHIFT
from ..data.comparisons import Comparisons
from ..validation import check_integer
from .base import ENTRIES_PER_CALL, State, new_scratch, saved_array, saved_shape
from .entrywise import DenseEngine, EntrywiseEngine

#: Numbering of the features of rows and of columns.
Ranks = tuple[np.ndarray, np.ndarray]

#: Default size limit of the dense head in bytes, for each number an entry carries.
DEFAULT_HEAD_BYTES = 2 * 2**30

_SMALLEST_ARENA = 1 << 16

_AT_A_TIME = 1 << 20


class Entries(NamedTuple):
    """Raw entries of a matrix in CSR order; ``numbers[k]`` are those of the k-th entry."""

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    numbers: np.ndarray


class SparseStore:
    """Entries in a dense block of the frequent features and in hash tables of the others.

    Rows and columns are numbered from most to least frequent feature; `simstream._engines` translates.

    Parameters
    ----------
    entries : Entries
        What the store starts with.
    has_aux, has_acc : bool
        Which of the two extra numbers each entry carries.
    head_bytes : int
        Memory the dense head may take for each number. A matrix that fits is stored there as a whole.
    """

    def __init__(
        self,
        entries: Entries,
        *,
        has_aux: bool,
        has_acc: bool,
        head_bytes: int = DEFAULT_HEAD_BYTES,
    ) -> None:
        n_rows, n_columns = self.shape = entries.shape
        dtype, numbers = entries.numbers.dtype, 1 + has_aux + has_acc
        if n_rows * n_columns * dtype.itemsize <= head_bytes:
            head_rows, head_columns = n_rows, n_columns
        else:
            side = int((head_bytes / dtype.itemsize) ** 0.5)
            head_rows, head_columns = min(side, n_rows), min(side, n_columns)

        # Room for the entries that do not fit into the head, in their rows' or columns' tables.
        rows = np.repeat(np.arange(n_rows), np.diff(entries.indptr))
        columns = entries.indices
        rare_row = rows >= head_rows
        rare_column = (columns >= head_columns) & ~rare_row
        count = np.concatenate(
            [
                np.bincount(rows[rare_row], minlength=n_rows),
                np.bincount(columns[rare_column], minlength=n_columns),
            ]
        )
        room = np.where(count > 0, 2 * count + 2, 0)
        end = np.cumsum(room)
        taken = int(end[-1])
        # Generous: memory that is not written to is not taken from the machine.
        size = max(_SMALLEST_ARENA, head_bytes // 32, 2 * taken)
        if (head_rows, head_columns) == self.shape:
            size = 0
        key = np.zeros(size, np.int32)
        key[:taken] = -1  # later segments are marked free when they are cut
        self.arrays = head_tail.HeadTail(
            head=np.zeros((head_rows, head_columns, numbers), dtype),
            tail=np.zeros((size, numbers), dtype),
            start=end - room,
            room=room,
            used=np.zeros(len(room), np.int64),
            key=key,
            arena_top=np.array([taken], np.int64),
            n_rows=n_rows,
            has_aux=has_aux,
            has_acc=has_acc,
        )
        if (head_rows, head_columns) == self.shape:
            self.arrays.head[rows, columns] = entries.numbers
        else:
            head_tail.fill_entries(self.arrays, *entries[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the stored numbers."""
        return self.arrays.head.dtype

    @property
    def n_places(self) -> int:
        """Places that an entry may be in: what `entries` looks at, or somewhat more."""
        head = self.arrays.head
        return head.shape[0] * head.shape[1] + int(self.arrays.arena_top[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, including memory that was not written to yet."""
        return sum(a.nbytes for a in self.arrays if isinstance(a, np.ndarray))

    def have_rows(self, n_rows: int) -> None:
        """Append empty rows, outside the dense block, until there are `n_rows`."""
        a, more = self.arrays, n_rows - self.shape[0]
        if more <= 0:
            return
        start, room, used = (
            np.insert(array, a.n_rows, np.zeros(more, np.int64))
            for array in (a.start, a.room, a.used)
        )
        self.shape = (n_rows, self.shape[1])
        self.arrays = a._replace(start=start, room=room, used=used, n_rows=n_rows)

    def make_space(self, rule: Any, shift: float) -> None:
        """Compact the arena if that frees a quarter of it, else make it half as large again."""
        room, top = int(self.arrays.room.sum()), int(self.arrays.arena_top[0])
        if 4 * room > 3 * top:
            size = len(self.arrays.key) * 3 // 2
            # One after the other, to bound the peak; keys last, because kernels trust their number.
            self.arrays = self.arrays._replace(tail=_enlarged(self.arrays.tail, size))
            self.arrays = self.arrays._replace(key=_enlarged(self.arrays.key, size))
            return
        a = self.arrays
        order = np.flatnonzero(a.room)
        order = order[np.argsort(a.start[order])]
        longest = int(a.room.max(initial=0))
        spare = np.empty((longest, a.tail.shape[1]), self.dtype)
        head_tail.compact(rule, a, order, np.empty(longest, np.int32), spare, shift)

    def rebase(self, rule: Any, shift: float) -> None:
        """Write every entry as if the accumulated threshold started from zero now."""
        head_tail.rebase(rule, self.arrays, shift)

    def entries(self, rule: Any, shift: float, order: np.ndarray | None = None) -> Entries:
        """Copy of the live raw entries, rows in this order; columns of a row are unsorted."""
        width = self.arrays.head.shape[2]
        counts = np.zeros(self.shape[0], np.int64)
        indices, numbers = np.empty(0, np.int32), np.empty((0, width), self.dtype)
        head_tail.copy_entries(rule, self.arrays, shift, counts, indices, numbers)
        if order is None:
            order = np.arange(len(counts))
        indptr = np.concatenate([[0], np.cumsum(-counts[order])])
        total = int(indptr[-1])
        if total:
            indices, numbers = np.empty(total, np.int32), np.empty((total, width), self.dtype)
            end = np.empty_like(counts)
            end[order] = indptr[1:]
            head_tail.copy_entries(rule, self.arrays, shift, end, indices, numbers)
        return Entries(self.shape, indptr, indices, numbers)


def _enlarged(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


class SparseEngine(EntrywiseEngine):
    """Only the entries that were touched, for sparse items; always one tuple at a time.

    Parameters
    ----------
    rule, average_from, start : see `EntrywiseEngine`
    head_bytes : int
        Memory of the dense block of frequent features (see `SparseStore`).
    ranks : pair of int arrays, optional
        Numbering of the features of rows and columns by frequency: see `frequency_ranks`.
    """

    kind = "sparse"
    learns_blocks = False

    def __init__(
        self,
        rule: Any,
        average_from: int | None,
        start: Any,
        head_bytes: int,
        ranks: Ranks | None,
    ) -> None:
        super().__init__(rule, average_from, start)
        self.head_bytes, self.ranks = head_bytes, ranks
        if ranks is not None:
            start = _renumbered(start, *ranks)
        numbers = np.zeros((start.nnz, self._width), start.dtype)
        numbers[:, 0] = start.data
        if rule.kind == ADAPTIVE:
            numbers[:, 0] *= rule.delta
        indptr, indices = start.indptr.astype(np.int64), start.indices.astype(np.int32)
        self._lay_out(Entries(start.shape, indptr, indices, numbers))

    @property
    def _width(self) -> int:
        """Numbers that an entry carries."""
        return 1 + self._has_aux + self._averages

    def _lay_out(self, entries: Entries) -> None:
        self.store = SparseStore(
            entries, has_aux=self._has_aux, has_acc=self._averages, head_bytes=self.head_bytes
        )

    @property
    def arrays(self) -> Any:
        """The arrays of the store as they are now: they may be replaced when it grows."""
        return self.store.arrays

    def _make_space(self) -> None:
        self.store.make_space(self.rule, self.clock[SHIFT])

    def _rebase(self) -> None:
        self.store.rebase(self.rule, self.clock[SHIFT])

    def open(self, tuples: Comparisons) -> tuple[Any, Any, Any, int]:
        """What drivers need to read tuples: both readers, the tuples, scratch, and tuples per call."""
        readers, longest, chunk = csr_readers(tuples, self.ranks)
        longest_difference = min(self.shape[1], longest[1] + max(longest))
        scratch = new_scratch(max(longest[0], longest_difference), longest_difference, self.dtype)
        return readers, tuples.kernel_tuples(), scratch, chunk

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        readers, named, scratch, chunk = self.open(tuples)

        def learn(begin: int, end: int) -> tuple[int, int]:
            what = self.rule, self.store.arrays, step, *readers, named
            return learn_one_at_a_time(*what, begin, end, scratch, self.clock)

        self._drive(learn, len(tuples), chunk)

    @property
    def reading_work(self) -> int:
        """Entries that `matrix` looks at."""
        return self.store.n_places

    def values(self, tuples: Comparisons) -> np.ndarray:
        """x'Mz of triplets, M as `matrix` gives it, at the cost of the entries that they need."""
        readers, named, scratch, chunk = self.open(tuples)
        out = np.empty(len(tuples))
        with self._turn:
            now = self.clock[SHIFT], self._averaged_rounds()
            for begin in range(0, len(tuples), chunk):
                end = min(len(tuples), begin + chunk)
                what = self.rule, self.store.arrays, *readers, named, begin, end, scratch, *now
                stored_values(*what, out)
        return out

    def matrix(self) -> sp.csr_matrix:
        """The current matrix, or the average, as CSR in the original numbering of features."""
        with self._turn:
            return self._read_matrix()

    def _read_matrix(self) -> sp.csr_matrix:
        # A large matrix is a large part of the memory: nothing here copies it without need.
        row_rank, column_rank = self.ranks or (None, None)
        entries = self.store.entries(self.rule, self.clock[SHIFT], row_rank)
        indptr, indices = entries.indptr, entries.indices
        if column_rank is not None:
            _rename(indices, np.argsort(column_rank).astype(np.int32))
        value = self._values(entries)
        del entries  # with its numbers
        return _in_order(sp.csr_matrix((value, indices, indptr), shape=self.shape))

    def _values(self, entries: Entries) -> np.ndarray:
        numbers = entries.numbers
        on_diagonal = None
        if self.rule.off_diagonal:
            features = np.arange(self.shape[0], dtype=np.int32)
            on_diagonal = np.repeat(features, np.diff(entries.indptr)) == entries.indices
        u, aux, acc = numbers[:, 0], numbers[:, min(1, numbers.shape[1] - 1)], numbers[:, -1]
        return np.ascontiguousarray(self._decode(u, aux, acc, on_diagonal))

    def state(self) -> State:
        with self._turn:
            entries, clock = self.store.entries(self.rule, self.clock[SHIFT]), self.clock.copy()
        scalars = {**self._scalars(), "shape": list(self.shape), "head_bytes": self.head_bytes}
        return scalars, {"clock": clock, **saved_entries(entries, self.ranks)}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> SparseEngine:
        shape, numbers = saved_shape(scalars), saved_array(arrays, "numbers", (None, None), None)
        self = cls._restored(scalars, arrays, shape, numbers.dtype)
        self.head_bytes = check_integer("head_bytes", scalars["head_bytes"])
        self.ranks = checked_ranks(arrays, shape)
        self._lay_out(checked_entries(shape, arrays, self._width))
        return self


def entrywise_engine(
    rule: Any,
    average_from: int | None,
    start: Any,
    tuples: Comparisons,
    head_bytes: int | None,
    kinds: tuple[type[DenseEngine], type[SparseEngine]] = (DenseEngine, SparseEngine),
) -> DenseEngine | SparseEngine:
    """An engine for a start matrix: the first of the kinds for an array, the second for CSR."""
    dense_kind, sparse_kind = kinds
    if not sp.issparse(start):
        return dense_kind(rule, average_from, start)
    head_bytes = head_bytes or DEFAULT_HEAD_BYTES
    ranks = frequency_ranks(tuples, start.dtype, head_bytes)
    n_extra = start.shape[0] - tuples.shape[0]
    if ranks is not None and n_extra:  # rows of a `Geometry`: last, so that the diagonal stays one
        rows, columns = ranks
        ranks = np.append(rows, np.arange(len(rows), len(rows) + n_extra)), columns
    return sparse_kind(rule, average_from, start, head_bytes, ranks)


# -- reading sparse items, and numbering their features -----------------------------------------------------


def frequency_ranks(tuples: Comparisons, dtype: Any, head_bytes: int) -> Ranks | None:
    """Ranks of the features of rows and columns, 0 for the most frequent one.

    None where the matrix fits into the dense block whatever the numbering.
    """
    left, right = tuples.left, tuples.right
    if left.shape[1] * right.shape[1] * dtype.itemsize <= head_bytes:
        return None
    counts = left.feature_counts(), right.feature_counts()
    if left.shape[1] == right.shape[1]:  # one feature space: one numbering
        rank = _rank_by_count(counts[0] + counts[1])
        return rank, rank
    return _rank_by_count(counts[0]), _rank_by_count(counts[1])


def _rank_by_count(counts: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-counts, kind="stable"))


def csr_readers(tuples: Comparisons, ranks: Ranks | None) -> tuple[tuple[Any, Any], list[int], int]:
    """Readers of both kinds of items as CSR, their longest rows, and tuples per call."""
    left, right = tuples.left, tuples.right
    row_rank, column_rank = ranks or (None, None)
    rows_left = left.csr_renumbered(row_rank)
    rows_right = rows_left if right is left else right.csr_renumbered(column_rank)
    first: SparseRows | FoldedRows
    # One integer type for all matrices: kernels are compiled for it once.
    first, second = (
        SparseRows(m.indptr.astype(np.int64), m.indices.astype(np.int32, copy=False), m.data)
        for m in (rows_left, rows_right)
    )
    if tuples.written is not None:
        written = tuples.written.csr_renumbered(row_rank)
        first = FoldedRows(first.indptr, first.indices, first.values, written.data)
    longest = [int(np.diff(m.indptr).max()) for m in (rows_left, rows_right)]
    mean_entries = 2 * (rows_left.nnz / left.shape[0]) * (rows_right.nnz / right.shape[0])
    return (first, second), longest, max(1, int(ENTRIES_PER_CALL / max(1.0, mean_entries)))


def saved_entries(entries: Entries, ranks: Ranks | None) -> dict[str, np.ndarray]:
    """The arrays that `checked_entries` and `checked_ranks` read."""
    arrays = {
        "indptr": entries.indptr,
        "indices": entries.indices,
        "numbers": entries.numbers,
    }
    if ranks is not None:
        arrays["row_rank"], arrays["column_rank"] = ranks
    return arrays


def checked_ranks(arrays: dict[str, np.ndarray], shape: tuple[int, int]) -> Ranks | None:
    """Restored numbering of the features, if there is one; compiled code trusts it."""
    if "row_rank" not in arrays:
        return None
    for name, n in zip(("row_rank", "column_rank"), shape, strict=True):
        rank = saved_array(arrays, name, (n,), np.int64)
        if not np.array_equal(np.sort(rank), np.arange(n)):
            raise ValueError(f"{name}: expected a permutation of {n} features")
    return arrays["row_rank"], arrays["column_rank"]


def checked_entries(shape: tuple[int, int], arrays: dict[str, np.ndarray], width: int) -> Entries:
    """Restored entries; compiled code trusts their indices, so they are checked first."""
    n_rows, n_columns = shape
    indptr = saved_array(arrays, "indptr", (n_rows + 1,), np.int64)
    indices = saved_array(arrays, "indices", (None,), np.int32)
    numbers = saved_array(arrays, "numbers", (len(indices), width), None)
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError("indptr: expected row pointers from 0 to the number of entries")
    if len(indices) and not (indices.min() >= 0 and indices.max() < n_columns):
        raise ValueError(f"indices: expected columns from 0 to {n_columns - 1}")
    return Entries(shape, indptr, indices, numbers)


def _renumbered(
    matrix: sp.csr_matrix, row_rank: np.ndarray, column_rank: np.ndarray
) -> sp.csr_matrix:
    """Move entry (i, j) to (row_rank[i], column_rank[j])."""
    moved = matrix[np.argsort(row_rank)]
    columns = column_rank[moved.indices].astype(np.int32)
    return sp.csr_matrix((moved.data, columns, moved.indptr), moved.shape)


def _rename(indices: np.ndarray, names: np.ndarray) -> None:
    """Translate every index, in place."""
    for start in range(0, len(indices), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        indices[some] = names[indices[some]]


def renumbered_back(matrix: sp.csr_matrix, ranks: Ranks | None) -> sp.csr_matrix:
    """Undo `_renumbered` (None: nothing was renumbered); columns sorted, no stored zeros."""
    if ranks is not None:
        matrix = _renumbered(matrix, *(np.argsort(rank) for rank in ranks))
    return _in_order(matrix)


def _in_order(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix, in place: no stored zeros, columns sorted."""
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
