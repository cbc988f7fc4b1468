"""Matrices learnt entry by entry: full arrays for dense items, a store of touched entries for sparse ones.

The entry rule (`_kernels.rules`) says what a stored number means. AROMA with a factored covariance is here
too: its matrix is averaged and read like the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.blocked import Blas, learn_block, learn_factored_block, learn_factored_singly
from .._kernels.entrywise import (
    DIVERGED,
    DONE,
    Dense,
    DenseRows,
    Gathered,
    SparseRows,
    gather,
    learn_one_at_a_time,
)
from .._kernels.rules import ADAPTIVE, CONFIDENT, PLAIN, Rule
from .._kernels.steps import ROUNDS, SHIFT
from ..data.comparisons import Comparisons
from ..validation import check_integer, check_items
from .base import (
    ENTRIES_PER_CALL,
    Engine,
    State,
    aligned_zeros,
    check_array,
    check_floats,
    new_scratch,
    saved_shape,
)
from .store import DEFAULT_HEAD_BYTES, Entries, SparseStore

#: Dense rows that are copied together: they stay in the cache until they are used.
_GATHERED_BYTES = 2**18

_AT_A_TIME = 1 << 20


class EntrywiseEngine(Engine):
    """What these engines share: the entry rule, and the average of the iterates from some round on.

    Parameters
    ----------
    rule : an entry rule of `_kernels.rules`
    average_from : int, optional
        First round of the average.
    """

    def __init__(
        self, rule: Any, average_from: int | None, clock: np.ndarray | None = None
    ) -> None:
        super().__init__(clock)
        self.rule = rule
        self.average_from = average_from

    def _scalars(self) -> dict[str, Any]:
        return {"rule": self.rule.to_header(), "average_from": self.average_from}

    def _restore(self, scalars: dict[str, Any], clock: np.ndarray) -> None:
        """Take over the rule, the average and the clock; the first thing that `from_state` does."""
        rule, average_from = scalars["rule"], scalars["average_from"]
        if average_from is not None:
            check_integer("average_from", average_from)
        EntrywiseEngine.__init__(self, Rule.from_header(rule), average_from, clock)

    @property
    def _has_aux(self) -> bool:
        """Whether every entry has a second number: H of AdaGrad, or the precision of AROMA."""
        return self.rule.kind in (ADAPTIVE, CONFIDENT)

    @property
    def _averages(self) -> bool:
        return self.average_from is not None

    def _decode(self, u: Any, aux: Any, acc: Any, on_diagonal: Any) -> np.ndarray:
        """Values of entries from their raw numbers (see `_kernels.rules`)."""
        if self.rule.kind in (PLAIN, CONFIDENT):
            rounds = 0.0
            if self.average_from is not None:
                rounds = max(0.0, self.clock[ROUNDS] - self.average_from + 1)
            return u - acc / u.dtype.type(rounds) if rounds else u
        value = _shrunk(u, self.clock[SHIFT])
        if self.rule.off_diagonal:
            value[on_diagonal] = u[on_diagonal]
        if self.rule.kind == ADAPTIVE:
            value /= u.dtype.type(self.rule.delta) + aux
        return value


def _shrunk(u: np.ndarray, shift: float) -> np.ndarray:
    """Soft-thresholded copy: `_kernels.rules.shrink` for a whole array."""
    return np.copysign(np.maximum(np.abs(u) - u.dtype.type(shift), 0), u)


class DenseEngine(EntrywiseEngine):
    """Full arrays, for dense items: one triplet at a time, or exact blocks where the rule allows.

    Parameters
    ----------
    rule : an entry rule of `_kernels.rules`
    start : array of shape (d, d'), the first matrix
    average_from : int, optional
        First round of the average.
    """

    kind = "dense"

    def __init__(self, rule: Any, average_from: int | None, start: np.ndarray) -> None:
        super().__init__(rule, average_from)
        rows, columns = start.shape
        self.arrays = Dense(
            u=aligned_zeros(start.shape, start.dtype),
            aux=aligned_zeros((rows, columns if self._has_aux else 0), start.dtype),
            acc=aligned_zeros((rows, columns if self._averages else 0), start.dtype),
        )
        self.arrays.u[...] = start
        if rule.kind == ADAPTIVE:
            self.arrays.u[...] *= rule.delta

    @property
    def shape(self) -> tuple[int, int]:
        return self.arrays.u.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays.u.dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        tuples = tuples.densified()
        if block_size > 1:
            self._learn_blocks(step, tuples, block_size)
        else:
            self._learn_singly(step, tuples)

    def _learn_singly(self, step: Any, tuples: Comparisons) -> None:

        def learn(first: int, n: int, readers: Any, gathered: Any, scratch: Any) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.arrays, step, *readers, gathered, 0, n, scratch, self.clock
            )

        self.drive_gathered(learn, tuples)

    def drive_gathered(self, learn: Any, tuples: Comparisons) -> None:
        """Call ``learn(first, n, readers, gathered, scratch) -> (status, how many)`` until all are learnt.

        The rows of the n tuples from `first` on are copied side by side before: copies wait for memory
        together, steps would wait for their rows one after the other.
        """

        few = max(1, _GATHERED_BYTES // (sum(self.shape) * self.dtype.itemsize))
        few = min(few, len(tuples))
        scratch = new_scratch(*self.shape, self.dtype)
        left, right, index, sign = (
            tuples.left.values,
            tuples.right.values,
            tuples.index,
            tuples.sign,
        )
        x = aligned_zeros((few, left.shape[1]), left.dtype)
        z = x if tuples.is_pairs else aligned_zeros((few, right.shape[1]), right.dtype)
        readers = DenseRows(x), DenseRows(z)

        def learn_pieces(begin: int, end: int) -> tuple[int, int]:
            for first in range(begin, end, few):
                last = min(end, first + few)
                gather(left, right, index[first:last], x, z)
                gathered = Gathered(sign[first:last])
                status, learnt = learn(first, last - first, readers, gathered, scratch)
                if status != DONE:
                    return status, first + learnt
            return DONE, end

        chunk = max(1, int(ENTRIES_PER_CALL / (self.shape[0] * self.shape[1])))
        self._drive(learn_pieces, len(tuples), chunk)

    def _learn_blocks(self, step: Any, tuples: Comparisons, block_size: int) -> None:

        assert self.rule.kind == PLAIN, self.rule  # no other rule has a blocked form
        ops = Blas(self.dtype)
        u, acc = self.arrays.u, self.arrays.acc
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            for first in range(begin, end, block_size):
                last = min(end, first + block_size)
                x, z = tuples.rows(first, last)
                learnt = learn_block(ops, step, u, acc, x, z, sign[first:last], self.clock)
                if learnt < last - first:
                    return DIVERGED, first + learnt
            return DONE, end

        # Several blocks between two checks for Ctrl-C: checking costs too.
        blocks = max(1, int(ENTRIES_PER_CALL / self.arrays.u.size) // block_size)
        self._drive(learn, len(tuples), blocks * block_size)

    def _rebase(self) -> None:
        u = self.arrays.u
        diagonal = u.diagonal().copy()
        u[...] = _shrunk(u, self.clock[SHIFT])
        if self.rule.off_diagonal:
            np.fill_diagonal(u, diagonal)

    def matrix(self) -> np.ndarray:
        """The current matrix, or the average (a view of the live array where nothing is decoded)."""
        a = self.arrays
        return self._decode(a.u, a.aux, a.acc, np.diag_indices(min(self.shape)))

    def state(self) -> State:
        return self._scalars(), {"clock": self.clock, **self.arrays._asdict()}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> DenseEngine:
        self = cls.__new__(cls)
        self._restore(scalars, arrays["clock"])
        self.arrays = Dense(arrays["u"], arrays["aux"], arrays["acc"])
        u = self.arrays.u
        check_array("u", u, check_floats("u", u), (None, None))
        for name, present in (("aux", self._has_aux), ("acc", self._averages)):
            check_array(name, arrays[name], u.dtype, (len(u), u.shape[1] if present else 0))
        return self


class SparseEngine(EntrywiseEngine):
    """Only the entries that were touched, for sparse items; always one tuple at a time.

    Parameters
    ----------
    rule : an entry rule of `_kernels.rules`
    start : CSR matrix of shape (d, d'), the first matrix
    average_from : int, optional
        First round of the average.
    head_bytes : int
        Memory of the dense block of frequent features (see `SparseStore`).
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
        head_bytes: int,
        row_counts: np.ndarray,
        column_counts: np.ndarray,
    ) -> None:

        super().__init__(rule, average_from)
        self.head_bytes = head_bytes
        self.row_rank: Any = None
        self.column_rank: Any = None
        if start.shape[0] * start.shape[1] * start.dtype.itemsize > head_bytes:
            self.row_rank = rank_by_count(row_counts)
            self.column_rank = (
                self.row_rank if column_counts is row_counts else rank_by_count(column_counts)
            )
            start = renumber(start, self.row_rank, self.column_rank)
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
    def shape(self) -> tuple[int, int]:
        return self.store.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.store.dtype

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
        ranks = None if self.row_rank is None else (self.row_rank, self.column_rank)
        readers, longest, chunk = csr_readers(tuples, ranks)
        longest_difference = min(self.shape[1], longest[1] + max(longest))
        scratch = new_scratch(max(longest[0], longest_difference), longest_difference, self.dtype)
        return readers, tuples.kernel_tuples(), scratch, chunk

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:

        readers, named, scratch, chunk = self.open(tuples)

        def learn(begin: int, end: int) -> tuple[int, int]:
            what = self.rule, self.store.arrays, step, *readers, named
            return learn_one_at_a_time(*what, begin, end, scratch, self.clock)

        self._drive(learn, len(tuples), chunk)

    def matrix(self) -> sp.csr_matrix:
        """The current matrix, or the average, as CSR in the original numbering of features."""

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

    def state(self) -> State:
        entries = self.store.entries(self.rule, self.clock[SHIFT])
        scalars = {**self._scalars(), "shape": list(self.shape), "head_bytes": self.head_bytes}
        arrays = {
            "clock": self.clock,
            "indptr": entries.indptr,
            "indices": entries.indices,
            "numbers": entries.numbers,
        }
        if self.row_rank is not None:
            arrays |= {"row_rank": self.row_rank, "column_rank": self.column_rank}
        return scalars, arrays

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> SparseEngine:
        self = cls.__new__(cls)
        self._restore(scalars, arrays["clock"])
        self.head_bytes = check_integer("head_bytes", scalars["head_bytes"])
        entries = checked_entries(saved_shape(scalars), arrays, self._width)
        self.row_rank, self.column_rank = checked_ranks(arrays, entries.shape) or (None, None)
        self._lay_out(entries)
        return self


class FactoredEngine(EntrywiseEngine):
    """AROMA with covariance Lambda (x) Omega: full arrays, exact blocks (of one for sparse items)."""

    kind = "factored"

    def __init__(self, rule: Any, average_from: int | None, start: np.ndarray) -> None:
        super().__init__(rule, average_from)
        self.u = np.array(start, order="C")
        self.acc = np.zeros((len(start), start.shape[1] if self._averages else 0), start.dtype)
        self.covariance_x = np.eye(start.shape[0], dtype=start.dtype)
        self.covariance_z = np.eye(start.shape[1], dtype=start.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.u.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.u.dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:

        singly = block_size == 1 or tuples.is_sparse
        ops = Blas(self.dtype)
        arrays = self.u, self.acc, self.covariance_x, self.covariance_z

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            if singly:
                learnt = learn_factored_singly(step, *arrays, x, z, self.clock)
            else:
                learnt = learn_factored_block(ops, step, *arrays, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), 256 if singly else block_size)

    def matrix(self) -> np.ndarray:
        return self._decode(self.u, None, self.acc, None)

    def state(self) -> State:
        names = ("clock", "u", "acc", "covariance_x", "covariance_z")
        return self._scalars(), {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> FactoredEngine:
        self = cls.__new__(cls)
        self._restore(scalars, arrays["clock"])
        self.u, self.acc = arrays["u"], arrays["acc"]
        self.covariance_x, self.covariance_z = arrays["covariance_x"], arrays["covariance_z"]
        dtype = check_floats("u", self.u)
        check_array("u", self.u, dtype, (None, None))
        rows, columns = self.u.shape
        check_array("acc", self.acc, dtype, (rows, columns if self._averages else 0))
        check_array("covariance_x", self.covariance_x, dtype, (rows, rows))
        check_array("covariance_z", self.covariance_z, dtype, (columns, columns))
        return self


def first_matrix(init: Any, shape: tuple[int, int], dtype: Any, as_sparse: bool) -> Any:
    """The start matrix given by ``init`` ("identity", "zeros" or a matrix), as CSR or as an array."""
    if isinstance(init, str):
        matrix = sp.csr_matrix(shape, dtype=dtype)
        if init == "identity":
            matrix = sp.identity(shape[0], dtype, "csr")
    else:
        matrix = check_items(init, "init", dtype=dtype).values
        if matrix.shape != shape:
            raise ValueError(f"init: expected a matrix of shape {shape}, got {matrix.shape}")
    if as_sparse:
        return sp.csr_matrix(matrix)
    return matrix.toarray() if sp.issparse(matrix) else matrix


def entrywise_engine(
    rule: Any,
    average_from: int | None,
    start: Any,
    tuples: Comparisons,
    head_bytes: int | None,
) -> DenseEngine | SparseEngine:
    """An engine for a start matrix: dense for an array, sparse for CSR."""
    if not sp.issparse(start):
        return DenseEngine(rule, average_from, start)
    left, right = tuples.left, tuples.right
    row_counts = left.feature_counts()
    column_counts = row_counts if left is right else right.feature_counts()
    if left.shape[1] == right.shape[1]:  # one feature space: one numbering
        row_counts = column_counts = row_counts + column_counts
    head_bytes = head_bytes or DEFAULT_HEAD_BYTES
    return SparseEngine(rule, average_from, start, head_bytes, row_counts, column_counts)


def default_block_size(n_features: int) -> int:
    """Block size near the best measured one: large enough for fast products, small Gram matrices."""
    if n_features < 96:
        return 1
    return int(np.clip(2 ** round(np.log2(n_features / 3.0)), 64, 512))


def csr_readers(
    tuples: Comparisons, ranks: tuple[np.ndarray, np.ndarray] | None
) -> tuple[tuple[Any, Any], list[int], int]:
    """Readers of both kinds of items as CSR, their longest rows, and tuples per call."""

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
    """Restored numbering of the features, if there is one; compiled code trusts it."""
    if "row_rank" not in arrays:
        return None
    for name, n in zip(("row_rank", "column_rank"), shape, strict=True):
        check_array(name, arrays[name], np.int64, (n,))
        if not np.array_equal(np.sort(arrays[name]), np.arange(n)):
            raise ValueError(f"{name}: expected a permutation of {n} features")
    return arrays["row_rank"], arrays["column_rank"]


def checked_entries(shape: tuple[int, int], arrays: dict[str, np.ndarray], width: int) -> Entries:
    """Restored entries; compiled code trusts their indices, so they are checked first."""
    n_rows, n_columns = shape
    indptr, indices, numbers = arrays["indptr"], arrays["indices"], arrays["numbers"]
    check_array("indptr", indptr, np.int64, (n_rows + 1,))
    check_array("indices", indices, np.int32, (None,))
    check_array("numbers", numbers, check_floats("numbers", numbers), (len(indices), width))
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError("indptr: expected row pointers from 0 to the number of entries")
    if len(indices) and not (indices.min() >= 0 and indices.max() < n_columns):
        raise ValueError(f"indices: expected columns from 0 to {n_columns - 1}")
    return Entries(shape, indptr, indices, numbers)


def rank_by_count(counts: np.ndarray) -> np.ndarray:
    """Rank of each feature by frequency, 0 for the most frequent one."""
    return np.argsort(np.argsort(-counts, kind="stable"))


def renumber(matrix: sp.csr_matrix, row_rank: np.ndarray, column_rank: np.ndarray) -> sp.csr_matrix:
    """Move entry (i, j) to (row_rank[i], column_rank[j])."""
    moved = matrix[np.argsort(row_rank)]
    columns = column_rank[moved.indices].astype(np.int32)
    return sp.csr_matrix((moved.data, columns, moved.indptr), moved.shape)


def _rename(indices: np.ndarray, names: np.ndarray) -> None:
    """Translate every index, in place."""
    for start in range(0, len(indices), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        indices[some] = names[indices[some]]


def renumbered_back(
    matrix: sp.csr_matrix, ranks: tuple[np.ndarray, np.ndarray] | None
) -> sp.csr_matrix:
    """Undo `renumber` (None: nothing was renumbered); columns sorted, no stored zeros."""
    if ranks is not None:
        matrix = renumber(matrix, *(np.argsort(rank) for rank in ranks))
    return in_order(matrix)


def in_order(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix, in place: no stored zeros, columns sorted."""
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
