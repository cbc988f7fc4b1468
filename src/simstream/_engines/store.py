"""Where a learnt matrix lives when items are sparse: a dense head and hashed tails.

The store holds raw numbers (see `simstream._kernels.rules`); what they mean is the entry rule's business.
It can be read as, and built from, raw `Entries`, which is also what is saved to disk: a saved model does
not depend on how it was laid out in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._kernels import head_tail

#: Default size limit of the dense head in bytes, for each number an entry carries.
DEFAULT_HEAD_BYTES = 2 * 2**30

_SMALLEST_ARENA = 1 << 16


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
