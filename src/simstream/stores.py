"""Where a learnt matrix lives: full arrays for dense rows, a head and hashed tails for sparse rows.

A store holds raw numbers (see `simstream.kernels.entrywise`: ``u``, ``aux``, ``acc``); what they mean is
the entry rule's business. Both stores can be read as, and made from, raw `Entries`, which is also what is
saved to disk, so a saved model does not depend on how it was laid out in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

#: Largest dense head, in bytes over all of its arrays, unless a learner is told otherwise.
DEFAULT_HEAD_BYTES = 2 * 2**30

_SMALLEST_ARENA = 1 << 16


class Entries(NamedTuple):
    """Raw entries of a matrix in CSR order. ``aux`` and ``acc`` are empty where unused."""

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    u: np.ndarray
    aux: np.ndarray
    acc: np.ndarray


class SparseStore:
    """Entries in a dense block of the frequent features and in one hash table per row.

    Parameters
    ----------
    entries : Entries
        What the store starts with.
    row_order, column_order : int arrays
        Features from most to least frequent: the first ones make the dense head.
    has_aux, has_acc : bool
        Which of the two extra numbers each entry carries.
    head_bytes : int
        Memory the dense head may take. A matrix that fits is stored in the head as a whole.
    """

    def __init__(
        self,
        entries: Entries,
        row_order: np.ndarray,
        column_order: np.ndarray,
        *,
        has_aux: bool,
        has_acc: bool,
        head_bytes: int = DEFAULT_HEAD_BYTES,
    ) -> None:
        from .kernels.entrywise import HeadTail, fill_entries

        n_rows, n_columns = self.shape = entries.shape
        dtype = entries.u.dtype
        planes = 1 + has_aux + has_acc
        head = int((head_bytes / (planes * dtype.itemsize)) ** 0.5)
        whole = n_rows * n_columns * planes * dtype.itemsize <= head_bytes
        head_rows, head_columns = (n_rows, n_columns) if whole else (
            min(head, n_rows),
            min(head, n_columns),
        )
        self.row_order, self.column_order = row_order, column_order
        row_rank, column_rank = _inverse(row_order), _inverse(column_order)

        def head_plane(present: bool) -> np.ndarray:
            return np.zeros((head_rows, head_columns if present else 0), dtype)

        # Room for the entries that do not fit into the head.
        rows = np.repeat(np.arange(n_rows), np.diff(entries.indptr))
        outside = (row_rank[rows] >= head_rows) | (column_rank[entries.indices] >= head_columns)
        count = np.bincount(rows[outside], minlength=n_rows)
        room = np.where(count > 0, 2 * count + 2, 0)
        end = np.cumsum(room)
        size = 0 if whole else max(_SMALLEST_ARENA, int(end[-1]))
        self.arrays = HeadTail(
            row_rank=row_rank,
            column_rank=column_rank,
            u=head_plane(True),
            aux=head_plane(has_aux),
            acc=head_plane(has_acc),
            start=end - room,
            room=room,
            used=np.zeros(n_rows, np.int64),
            key=np.full(size, -1, np.int32),
            tail_u=np.zeros(size, dtype),
            tail_aux=np.zeros(size if has_aux else 0, dtype),
            tail_acc=np.zeros(size if has_acc else 0, dtype),
            arena_top=np.array([end[-1]], np.int64),
        )
        fill_entries(self.arrays, *entries[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays.u.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays (what the operating system has not touched yet included)."""
        return sum(a.nbytes for a in self.arrays)

    def make_space(self, rule: Any, shift: float) -> None:
        """Compact the arena if that frees a quarter of it, else make it a quarter larger."""
        from .kernels.entrywise import compact

        a = self.arrays
        if 4 * int(a.room.sum()) > 3 * int(a.arena_top[0]):
            size = len(a.key) + max(_SMALLEST_ARENA, len(a.key) // 4)
            for array in (a.key, a.tail_u, a.tail_aux, a.tail_acc):
                if len(array):
                    # In place: large blocks are remapped, not copied.
                    array.resize(size, refcheck=False)
            return
        order = np.flatnonzero(a.room)
        order = order[np.argsort(a.start[order])]
        longest = int(a.room.max(initial=0))
        spare = [np.empty(min(longest, len(x)), x.dtype) for x in (a.key, a.tail_u, a.tail_aux, a.tail_acc)]
        compact(rule, a, order, *spare, shift)

    def rebase(self, rule: Any, shift: float) -> None:
        """Write every entry as if the accumulated threshold started from zero now."""
        from .kernels.entrywise import rebase

        rebase(rule, self.arrays, shift)

    def entries(self, rule: Any, shift: float) -> Entries:
        """Copy of the live raw entries, columns sorted."""
        from .kernels.entrywise import copy_entries

        a = self.arrays
        indptr = np.zeros(self.shape[0] + 1, np.int64)
        indices, u, aux, acc = _empty_entries(0, self.dtype, True, True)
        copy_entries(rule, a, shift, self.column_order, indptr, indices, u, aux, acc)
        indices, u, aux, acc = _empty_entries(
            int(indptr[-1]), self.dtype, a.aux.shape[1] > 0, a.acc.shape[1] > 0
        )
        copy_entries(rule, a, shift, self.column_order, indptr, indices, u, aux, acc)
        return _sorted(Entries(self.shape, indptr, indices, u, aux, acc), self.column_order)


def _inverse(order: np.ndarray) -> np.ndarray:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _sorted(entries: Entries, column_order: np.ndarray) -> Entries:
    """Sort the columns of every row, all numbers of an entry together."""
    if (np.diff(column_order) > 0).all():
        return entries  # everything lies in the head, which is in order
    place = csr_matrix((np.arange(len(entries.u)), entries.indices, entries.indptr), entries.shape)
    place.sort_indices()
    order = place.data
    pick = [a[order] if len(a) else a for a in (entries.u, entries.aux, entries.acc)]
    return Entries(entries.shape, entries.indptr, place.indices.astype(np.int32), *pick)


def _empty_entries(n: int, dtype: Any, has_aux: bool, has_acc: bool) -> tuple[np.ndarray, ...]:
    return (
        np.empty(n, np.int32),
        np.empty(n, dtype),
        np.empty(n if has_aux else 0, dtype),
        np.empty(n if has_acc else 0, dtype),
    )
