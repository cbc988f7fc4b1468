"""Matrices of sparse items: only the entries that were touched, in a dense head and hashed tails.

The store holds raw numbers; what they mean is the entry rule's business (`_kernels.rules`). It can be read
as, and built from, raw `Entries`, which is also what is saved to disk: a saved model does not depend on how
it was laid out in memory.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._kernels import head_tail
from .._kernels.dispatch import compiled
from .._kernels.entrywise import FoldedRows, SparseRows, learn_one_at_a_time, stored_values
from .._kernels.rules import ADAPTIVE
from .._kernels.steps import SHIFT
from ..data.comparisons import Comparisons
from ..validation import Items, check_integer
from .base import (
    ENTRIES_PER_CALL,
    State,
    ctrl_c_waits,
    new_scratch,
    saved_array,
    saved_shape,
)
from .entrywise import DenseEngine, EntrywiseEngine
from .single import Single, SparseSingle

#: Numbering of the features of rows and of columns.
Ranks = tuple[np.ndarray, np.ndarray]

#: Default size limit of the dense head in bytes, for each number an entry carries.
DEFAULT_HEAD_BYTES = 2 * 2**30

#: Vectors from which the frequent features are known well enough.
_ENOUGH_ITEMS = 1024

#: Size limit of the dense head before that.
_FIRST_HEAD_BYTES = 2**20

_SMALLEST_ARENA = 1 << 16

_AT_A_TIME = 1 << 20

#: Numbers that move together to a larger arena: whole pages of memory.
_MOVED_AT_A_TIME = 1 << 22

#: Whether the system takes memory when it is first written to, and part of it back.
_GIVES_BACK = hasattr(mmap, "MADV_DONTNEED") and hasattr(mmap, "MAP_ANONYMOUS")


class Entries(NamedTuple):
    """Raw entries of a matrix in CSR order; ``numbers[k]`` are those of the k-th entry."""

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    numbers: np.ndarray


class SparseStore:
    """Entries of frequent features in a dense head, the others in a hash table for each row.

    Rows and columns are numbered from most to least frequent feature; `simstream._engines` translates.

    Parameters
    ----------
    entries : Entries
        What the store starts with.
    has_aux, has_acc : bool
        Which of the two extra numbers each entry carries.
    head_bytes : int
        Memory the dense head may take for each number. A matrix that fits is stored there as a whole.
    head_rows : int, optional
        Only the first so many rows may be in the head.
    """

    def __init__(
        self,
        entries: Entries,
        *,
        has_aux: bool,
        has_acc: bool,
        head_bytes: int = DEFAULT_HEAD_BYTES,
        head_rows: int | None = None,
    ) -> None:
        n_rows, n_columns = self.shape = entries.shape
        dtype, numbers = entries.numbers.dtype, 1 + has_aux + has_acc
        width = np.zeros(n_rows, np.int64)
        some = width[:head_rows]
        some[:] = head_widths(len(some), n_columns, head_bytes // dtype.itemsize)
        place = np.cumsum(width) - width

        # Room for the entries that do not fit into the head.
        rows = np.repeat(np.arange(n_rows), np.diff(entries.indptr))
        count = np.bincount(rows[entries.indices >= width[rows]], minlength=n_rows)
        room = np.where(count > 0, 2 * count + 2, 0)
        end = np.cumsum(room)
        taken = int(end[-1])
        # Generous: memory that is not written to is not taken from the machine.
        n_places = int(width.sum())
        size = max(_SMALLEST_ARENA, n_places * dtype.itemsize // 32, 2 * taken)
        if (width == n_columns).all():
            size = 0
        key = _reserved((size,), np.int32)
        key[:taken] = -1  # later segments are marked free when they are cut
        self.arrays = head_tail.HeadTail(
            head=np.zeros((n_places, numbers), dtype),
            width=width,
            place=place,
            tail=_reserved((size, numbers), dtype),
            start=end - room,
            room=room,
            used=np.zeros(n_rows, np.int64),
            key=key,
            arena_top=np.array([taken], np.int64),
            has_aux=has_aux,
            has_acc=has_acc,
        )
        head_tail.fill_entries(self.arrays, *entries[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the stored numbers."""
        return self.arrays.head.dtype

    @property
    def n_places(self) -> int:
        """Places that an entry may be in: what `entries` looks at, or somewhat more."""
        return len(self.arrays.head) + int(self.arrays.arena_top[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, with memory that was not written to yet, without what they have in reserve."""
        return sum(a.nbytes for a in self.arrays if isinstance(a, np.ndarray))

    def have_rows(self, n_rows: int) -> None:
        """Append empty rows, outside the dense head, until there are `n_rows`."""
        a, more = self.arrays, n_rows - self.shape[0]
        if more <= 0:
            return
        names = ("width", "place", "start", "room", "used")
        empty = np.zeros(more, np.int64)
        longer: dict[str, Any] = {name: np.append(getattr(a, name), empty) for name in names}
        self.shape = (n_rows, self.shape[1])
        self.arrays = a._replace(**longer)

    def make_space(self, rule: Any, shift: float) -> None:
        """Compact the arena if that frees a fifth of it, else make it an eighth larger."""
        if self._left_behind() >= 1 / 5:
            self._compact(rule, shift)
            return
        size = len(self.arrays.key) * 9 // 8 + 1
        # One after the other, to bound the peak; keys last, because kernels trust their number.
        self.arrays = self.arrays._replace(tail=_enlarged(self.arrays.tail, size))
        self.arrays = self.arrays._replace(key=_enlarged(self.arrays.key, size))

    def _left_behind(self) -> float:
        """Share of the used arena that no table owns."""
        top = int(self.arrays.arena_top[0])
        return 1 - int(self.arrays.room.sum()) / top if top else 0.0

    def _compact(self, rule: Any, shift: float) -> None:
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
        # The copy may need the memory that tables have left behind.
        if self._left_behind() >= 1 / 8:
            self._compact(rule, shift)
        for array in (self.arrays.tail, self.arrays.key):
            _give_back(array, int(self.arrays.arena_top[0]))
        width = self.arrays.head.shape[1]
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


def head_widths(n_rows: int, n_columns: int, n_places: int) -> np.ndarray:
    """How many columns of each row are in a dense head of at most so many places.

    The i-th most frequent word of a text is about 1/i as frequent as the first, so entry (i, j) is needed as
    often as 1/(i j): the head has those with i j <= c. They are at most c (1 + log(n_rows n_columns / c)).
    """
    most = n_rows * n_columns
    if most <= n_places:
        return np.full(n_rows, n_columns)
    low, high = 0.0, float(n_places)
    while high - low > 1e-9 * high:
        c = (low + high) / 2
        low, high = (c, high) if c * (1 + math.log(most / c)) <= n_places else (low, c)
    return np.minimum(n_columns, (low / np.arange(1, n_rows + 1)).astype(np.int64))


def _zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros; where the system has the means, in memory that can be given back piece by piece."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not (n_bytes and _GIVES_BACK):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def _memory_of(array: np.ndarray) -> mmap.mmap | None:
    """What `_zeros` made an array of; None for another array."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def _reserved(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that `_enlarged` can make twice as long where they are, if the system has so many addresses.

    Only where memory is taken when it is first written to.
    """
    if _GIVES_BACK:
        with suppress(OSError, MemoryError):
            return _zeros((2 * shape[0], *shape[1:]), dtype)[: shape[0]]
    return _zeros(shape, dtype)


def _enlarged(array: np.ndarray, size: int) -> np.ndarray:
    """A longer array with the same numbers, in the memory reserved for it.

    If that is too small they move to a larger one, and are never in memory twice.
    """
    if isinstance(array.base, np.ndarray):
        whole = array.base.reshape(-1, *array.shape[1:])
        if size <= len(whole):
            return whole[:size]
    larger, memory = _reserved((size, *array.shape[1:]), array.dtype), _memory_of(array)
    n_bytes = array.nbytes // max(1, len(array))
    for begin in range(0, len(array), _MOVED_AT_A_TIME):
        end = min(len(array), begin + _MOVED_AT_A_TIME)
        larger[begin:end] = array[begin:end]
        if memory is not None and end - begin == _MOVED_AT_A_TIME:
            memory.madvise(mmap.MADV_DONTNEED, begin * n_bytes, _MOVED_AT_A_TIME * n_bytes)
    return larger


def _give_back(array: np.ndarray, n: int) -> None:
    """Give the memory behind the first n rows back; what is there is zero then, or, on macOS, as it was."""
    memory = _memory_of(array)
    if memory is not None and n < len(array):
        begin = -(-n * array.strides[0] // mmap.PAGESIZE) * mmap.PAGESIZE
        if begin < len(memory):
            memory.madvise(mmap.MADV_DONTNEED, begin)


class FeatureCounts:
    """In how many of the first items each feature of rows and of columns is, while these are few.

    Parameters
    ----------
    rows, columns : int arrays of one number for each feature; one array for one feature space
    n_items : int
        How many items were counted.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, n_items: int = 0) -> None:
        self.rows, self.columns, self.n_items = rows, columns, n_items

    @classmethod
    def of(cls, tuples: Comparisons) -> FeatureCounts:
        """The counts of the items of these tuples."""
        left, right = tuples.shape
        rows = np.zeros(left, np.int64)
        counts = cls(rows, rows if left == right else np.zeros(right, np.int64))
        counts.add(tuples)
        return counts

    def emptied(self) -> FeatureCounts:
        """Counts of no items: those of the first call are counted when it is learnt from."""
        rows = np.zeros_like(self.rows)
        return FeatureCounts(
            rows, rows if self.columns is self.rows else np.zeros_like(self.columns)
        )

    def add(self, tuples: Comparisons) -> None:
        """Count the items of these tuples."""
        for items, counts in ((tuples.left, self.rows), (tuples.right, self.columns)):
            items.count_features(counts)
        self.n_items += tuples.left.shape[0]
        if tuples.right is not tuples.left:
            self.n_items += tuples.right.shape[0]

    def are_enough_for(self, tuples: Comparisons) -> bool:
        """Whether the counts tell the frequent features: many items, or a whole collection."""
        return self.n_items >= _ENOUGH_ITEMS or not tuples.of_vectors

    def ranks(self, n_extra: int = 0) -> Ranks:
        """Ranks of the features, 0 for the most frequent one; rows of a `Geometry` come last."""
        rows = columns = _rank_by_count(self.rows)
        if self.columns is not self.rows:
            columns = _rank_by_count(self.columns)
        if n_extra:
            rows = np.append(rows, np.arange(len(rows), len(rows) + n_extra))
        return rows, columns


class SparseEngine(EntrywiseEngine):
    """Only the entries that were touched, for sparse items; always one tuple at a time.

    The dense head is chosen by the items of the first call. Where these are a few vectors, it is small, and
    is chosen again, once, when enough items have been seen.

    Parameters
    ----------
    rule, average_from, start : see `EntrywiseEngine`
    head_bytes : int
        Memory of the dense head of frequent features (see `SparseStore`).
    ranks : pair of int arrays, optional
        Numbering of the features of rows and columns by frequency: see `FeatureCounts`.
    counts : FeatureCounts, optional
        None if the numbering stays.
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
        counts: FeatureCounts | None = None,
    ) -> None:
        super().__init__(rule, average_from, start)
        self.head_bytes, self.ranks, self._counts = head_bytes, ranks, counts
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
        head_bytes = first_head_bytes(self.head_bytes, self._counts)
        self.store = SparseStore(
            entries, has_aux=self._has_aux, has_acc=self._averages, head_bytes=head_bytes
        )

    def see(self, tuples: Comparisons) -> None:
        counts = self._counts
        if counts is None:
            return
        counts.add(tuples)
        if counts.are_enough_for(tuples):
            with ctrl_c_waits(), self.turn:
                self._counts = None
                self._renumber(counts.ranks(self.shape[0] - len(counts.rows)))

    def _renumber(self, ranks: Ranks) -> None:
        """Number the features anew and lay the same raw numbers out again."""
        assert self.ranks is not None
        (old_rows, old_columns), (rows, columns) = self.ranks, ranks
        entries = self.store.entries(self.rule, self.clock[SHIFT], old_rows[np.argsort(rows)])
        rename(entries.indices, columns[np.argsort(old_columns)].astype(np.int32))
        self.ranks = ranks
        self._lay_out(entries)

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

    def single(self, step: Any, size: int) -> Single | None:
        if self._counts is not None:  # features are still counted
            return None
        kernel: Any = None

        def run(readers: Any, tuples: Any, scratch: Any) -> int:
            nonlocal kernel
            what = self.rule, self.store.arrays, step, *readers, tuples, 0, 1, scratch, self.clock
            kernel = kernel or compiled(learn_one_at_a_time, what)
            return kernel(*what)[0]

        return SparseSingle(self, size, self.ranks, run, lambda x, z: new_scratch(x, z, self.dtype))

    @property
    def reading_work(self) -> int:
        """Entries that `matrix` looks at."""
        return self.store.n_places

    def values(self, tuples: Comparisons) -> np.ndarray:
        """x'Mz of triplets, M as `matrix` gives it, at the cost of the entries that they need."""
        out = np.empty(len(tuples))
        with self.turn:
            readers, named, scratch, chunk = self.open(tuples)
            now = self.clock[SHIFT], self._averaged_rounds()
            for begin in range(0, len(tuples), chunk):
                end = min(len(tuples), begin + chunk)
                what = self.rule, self.store.arrays, *readers, named, begin, end, scratch, *now
                stored_values(*what, out)
        return out

    def matrix(self) -> sp.csr_matrix:
        """The current matrix, or the average, as CSR in the original numbering of features."""
        with self.turn:
            return self._read_matrix()

    def _read_matrix(self) -> sp.csr_matrix:
        # A large matrix is a large part of the memory: nothing here copies it without need.
        row_rank, column_rank = self.ranks or (None, None)
        entries = self.store.entries(self.rule, self.clock[SHIFT], row_rank)
        indptr, indices = entries.indptr, entries.indices
        if column_rank is not None:
            rename(indices, np.argsort(column_rank).astype(np.int32))
        value = self._values(entries)
        del entries  # with its numbers
        return _in_order(sp.csr_matrix((value, indices, indptr), shape=self.shape))

    def _values(self, entries: Entries) -> np.ndarray:
        """What the entries mean; where an entry is one number, in place."""
        _, indptr, indices, numbers = entries
        n, width = numbers.shape
        values = numbers.reshape(n) if width == 1 else np.empty(n, numbers.dtype)
        on_diagonal = None
        for begin in range(0, n, _AT_A_TIME):
            s = slice(begin, min(n, begin + _AT_A_TIME))
            if self.rule.off_diagonal:
                rows = np.searchsorted(indptr, np.arange(s.start, s.stop), side="right") - 1
                on_diagonal = rows == indices[s]
            u, aux, acc = numbers[s, 0], numbers[s, min(1, width - 1)], numbers[s, -1]
            values[s] = self._decode(u, aux, acc, on_diagonal)
        return values

    def state(self) -> State:
        with self.turn:
            entries, clock = self.store.entries(self.rule, self.clock[SHIFT]), self.clock.copy()
        scalars = {**self._scalars(), "shape": list(self.shape), "head_bytes": self.head_bytes}
        arrays = {"clock": clock, **saved_entries(entries, self.ranks)}
        return scalars, arrays | saved_counts(scalars, self._counts)

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> SparseEngine:
        shape, numbers = saved_shape(scalars), saved_array(arrays, "numbers", (None, None), None)
        self = cls._restored(scalars, arrays, shape, numbers.dtype)
        self.head_bytes = check_integer("head_bytes", scalars["head_bytes"])
        self.ranks = checked_ranks(arrays, shape)
        self._counts = checked_counts(scalars, arrays, shape)
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
    counts = frequencies(tuples, start.dtype, head_bytes)
    if counts is None:
        return sparse_kind(rule, average_from, start, head_bytes, None)
    ranks = counts.ranks(start.shape[0] - tuples.shape[0])
    if counts.are_enough_for(tuples):
        return sparse_kind(rule, average_from, start, head_bytes, ranks)
    return sparse_kind(rule, average_from, start, head_bytes, ranks, counts.emptied())


# -- reading sparse items, and numbering their features -----------------------------------------------------


def first_head_bytes(head_bytes: int, counts: FeatureCounts | None) -> int:
    """Memory of the dense head: small as long as features are counted."""
    return head_bytes if counts is None else min(head_bytes, _FIRST_HEAD_BYTES)


def frequencies(tuples: Comparisons, dtype: Any, head_bytes: int) -> FeatureCounts | None:
    """How frequent features are; None where the matrix fits into the dense head whatever their numbering."""
    rows, columns = tuples.shape
    if rows * columns * dtype.itemsize <= head_bytes:
        return None
    return FeatureCounts.of(tuples)


def _rank_by_count(counts: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-counts, kind="stable"))


def csr_reader(matrix: sp.csr_matrix) -> SparseRows:
    """A CSR matrix for kernels: one integer type for all matrices, so that they are compiled once."""
    indices = matrix.indices.astype(np.int32, copy=False)
    return SparseRows(matrix.indptr.astype(np.int64), indices, matrix.data)


def csr_readers(tuples: Comparisons, ranks: Ranks | None) -> tuple[tuple[Any, Any], list[int], int]:
    """Readers of both kinds of items as CSR, their longest rows, and tuples per call."""
    left, right = tuples.left, tuples.right
    row_rank, column_rank = ranks or (None, None)
    first: SparseRows | FoldedRows
    first, longest_left = _kept_reader(left, row_rank)
    second, longest_right = _kept_reader(right, row_rank if right is left else column_rank)
    if tuples.written is not None:
        written = tuples.written.csr_renumbered(row_rank)
        first = FoldedRows(first.indptr, first.indices, first.values, written.data)
    n_left, n_right = (rows.values.size / (rows.indptr.size - 1) for rows in (first, second))
    chunk = max(1, int(ENTRIES_PER_CALL / max(1.0, 2 * n_left * n_right)))
    return (first, second), [longest_left, longest_right], chunk


def _kept_reader(items: Items, rank: np.ndarray | None) -> tuple[SparseRows, int]:
    """A reader of items and the length of their longest row.

    Kept with the items: a stream whose weights change is learnt in many calls, and all rows would be counted
    in each.
    """
    csr, kept = items.csr_renumbered(rank), items._reader
    if kept is None or kept[0] is not csr:
        kept = items._reader = (csr, csr_reader(csr), int(np.diff(csr.indptr).max()))
    return kept[1], kept[2]


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


def saved_counts(scalars: dict[str, Any], counts: FeatureCounts | None) -> dict[str, np.ndarray]:
    """The arrays that `checked_counts` reads; their number of items goes to the scalars."""
    if counts is None:
        return {}
    scalars["n_counted"] = counts.n_items
    arrays = {"row_counts": counts.rows.copy()}
    if counts.columns is not counts.rows:
        arrays["column_counts"] = counts.columns.copy()
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


def checked_counts(
    scalars: dict[str, Any], arrays: dict[str, np.ndarray], shape: tuple[int, int]
) -> FeatureCounts | None:
    """Restored counts of features; None where there are none: files of models that have seen enough."""
    if "row_counts" not in arrays:
        return None
    rows = saved_array(arrays, "row_counts", (None,), np.int64)
    columns = rows
    if "column_counts" in arrays:
        columns = saved_array(arrays, "column_counts", (shape[1],), np.int64)
    if not (0 < len(rows) <= shape[0] and len(columns) == shape[1]) or "row_rank" not in arrays:
        raise ValueError(f"row_counts: expected counts of {shape[1]} features, got {len(rows)}")
    return FeatureCounts(rows, columns, check_integer("n_counted", scalars["n_counted"], minimum=0))


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


def rename(indices: np.ndarray, names: np.ndarray) -> None:
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
