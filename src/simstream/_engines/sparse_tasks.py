"""The matrices of multi-task learners for sparse items: only the entries that were touched."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._kernels.rules import PLAIN, Rule
from .._kernels.tasks import (
    TaskTriplets,
    add_numbers,
    learn_task_triplets,
    number_rows,
    task_values,
)
from ..data.comparisons import Comparisons
from ..validation import check_integer
from .base import State, ctrl_c_waits, new_scratch, saved_array, saved_shape
from .sparse import (
    DEFAULT_HEAD_BYTES,
    Entries,
    FeatureCounts,
    Ranks,
    SparseStore,
    checked_counts,
    checked_entries,
    checked_ranks,
    csr_readers,
    first_head_bytes,
    frequencies,
    rename,
    renumbered_back,
    saved_counts,
    saved_entries,
)
from .tasks import DenseTasksEngine, TasksEngine

#: Kernels number the rows of S and those of all tasks together, in int32.
_MOST_ROWS = 2**31 - 1

_FEWEST_NUMBERS = 1024


class SparseParts(NamedTuple):
    """What tasks learnt alone: the rows that each has touched, in one CSR matrix for all of them."""

    rows: sp.csr_matrix
    #: task * features + feature of every row, and the order that sorts them.
    keys: np.ndarray
    order: np.ndarray
    shape: tuple[int, int]
    #: Numbering of the features in here, if it is not their own.
    ranks: Ranks | None

    def matrix(self, task: int) -> sp.csr_matrix:
        """D of a task."""
        d = self.shape[0]
        first, last = np.searchsorted(self.keys, (task * d, (task + 1) * d), sorter=self.order)
        mine = self.order[first:last]
        rows, counts = self.rows[mine], np.zeros(d + 1, np.int64)
        counts[1 + self.keys[mine] - task * d] = np.diff(rows.indptr)
        own = (rows.data, rows.indices, np.cumsum(counts))
        return renumbered_back(sp.csr_matrix(own, shape=self.shape), self.ranks)

    def transform(self, rows: Any, task: int) -> Any:
        """D'q of rows q."""
        return rows @ self.matrix(task)


class SparseTasksEngine(TasksEngine):
    """Only touched entries, in one store: the rows of S, an empty row, then rows that tasks have touched.

    A task's row gets its number when a triplet of the task is learnt from whose anchor has that feature (see
    `_kernels.tasks`), and its entries a hash table of their own. So memory grows with the rows and entries
    that tasks have touched, whatever the number of tasks times that of features.
    """

    kind = "sparse-tasks"
    learns_blocks = False

    def __init__(
        self,
        *args: Any,
        head_bytes: int = DEFAULT_HEAD_BYTES,
        ranks: Ranks | None = None,
        counts: FeatureCounts | None = None,
        entries: Entries | None = None,
        row_keys: np.ndarray | None = None,
    ) -> None:
        super().__init__(*args)
        self.rule, self.ranks, self.head_bytes = Rule(PLAIN), ranks, head_bytes
        self._counts = counts
        if entries is None or row_keys is None:
            nothing = np.empty(0, np.int32), np.empty((0, 1), self.dtype)
            entries = Entries(self.shape, np.zeros(self.shape[0] + 1, np.int64), *nothing)
            row_keys = np.empty(0, np.int64)
        self._lay_out(entries, row_keys)

    def _lay_out(self, entries: Entries, row_keys: np.ndarray) -> None:
        """Put entries into a new store: the rows of S, then those that tasks have touched."""
        d, columns = self.shape
        indptr = np.insert(entries.indptr, d, entries.indptr[d])  # the empty row
        self._store = SparseStore(
            entries._replace(shape=(len(indptr) - 1, columns), indptr=indptr),
            has_aux=False,
            has_acc=False,
            head_bytes=first_head_bytes(self.head_bytes, self._counts),
            head_rows=d,  # those of S
        )
        self._used = np.array([len(row_keys)])  # numbers given
        self._number_table(
            max(_FEWEST_NUMBERS, len(row_keys)), row_keys, d + 1 + np.arange(len(row_keys))
        )

    def see(self, tuples: Comparisons) -> None:
        counts = self._counts
        if counts is None:
            return
        counts.add(tuples)
        if counts.are_enough_for(tuples):
            with ctrl_c_waits(), self.turn:
                self._counts = None
                self._renumber(counts.ranks())

    def _renumber(self, ranks: Ranks) -> None:
        """Number the features anew and lay the same numbers out again."""
        assert self.ranks is not None
        (old_rows, old_columns), (rows, columns) = self.ranks, ranks
        d, order = self.shape[0], np.arange(self._store.shape[0])
        order[:d] = old_rows[np.argsort(rows)]
        entries, keys = self._touched(order)
        rename(entries.indices, columns[np.argsort(old_columns)].astype(np.int32))
        self.ranks = ranks
        self._lay_out(entries, keys // d * d + rows[np.argsort(old_rows)][keys % d])

    def _touched(self, order: np.ndarray | None = None) -> tuple[Entries, np.ndarray]:
        """Entries of S and of the rows that tasks have touched, and the keys of these rows."""
        entries, keys = self._store.entries(self.rule, 0.0, order), self._row_keys()
        d = self.shape[0]
        ends = entries.indptr[d + 2 : d + 2 + len(keys)]
        filled = np.diff(ends, prepend=entries.indptr[d + 1]) > 0
        indptr = np.concatenate([entries.indptr[: d + 1], ends[filled]])
        return entries._replace(indptr=indptr), keys[filled]

    # -- numbers of rows ----------------------------------------------------------------------

    def _number_table(self, most: int, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Make a hash table with room for `most` row numbers, holding these; the store gets as many rows."""
        self._store.have_rows(self.shape[0] + 1 + most)
        key, number = np.full(2 * most, -1), np.empty(2 * most, np.int32)
        add_numbers(key, number, keys, numbers)
        self._most, self._key, self._number = most, key, number

    def _number_rows(self, rows: Any, tuples: Comparisons) -> None:
        """Number every row that learning from these triplets may change."""
        assert tuples.tasks is not None
        d, anchors, begin = self.shape[0], np.ascontiguousarray(tuples.index[:, 0]), 0
        while True:
            with ctrl_c_waits(), self.turn:
                table = self._key, self._number, self._used, self._most
                begin = number_rows(*table, d + 1, d, rows, anchors, tuples.tasks, begin)
                if begin == len(tuples):
                    return
                most = min(2 * self._most, _MOST_ROWS - d - 1)
                if most <= self._most:
                    raise ValueError(
                        f"tasks: expected at most {_MOST_ROWS:,} rows of the matrices of all tasks together "
                        f"(features that occur in their anchors), got more with triplet {begin}"
                    )
                self._number_table(most, self._key, self._number)

    def _row_keys(self) -> np.ndarray:
        """task * features + feature of every numbered row, in the order of the numbers."""
        keys = np.empty(self._used[0], np.int64)
        taken = self._key >= 0
        keys[self._number[taken] - self.shape[0] - 1] = self._key[taken]
        return keys

    # -- learning -----------------------------------------------------------------------------

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        assert tuples.tasks is not None
        readers, scratch, chunk = self._open(tuples)
        self._number_rows(readers[0], tuples)
        # A task seen for the first time may change all weights: a piece ends before such a triplet.
        seen = np.maximum.accumulate(np.maximum(self.n_seen, tuples.tasks + 1))
        weights = self.weights(seen)[0]
        cuts = [0, *(np.flatnonzero(np.diff(weights)) + 1), len(tuples)]
        for first, last in pairwise(cuts):
            named = self._named(tuples.part(first, last), weights[first])

            def learn(begin: int, end: int, named: Any = named, first: int = first) -> Any:
                status, learnt = learn_task_triplets(
                    self.rule,
                    self._store.arrays,
                    step,
                    *readers,
                    named,
                    begin,
                    end,
                    scratch,
                    self.clock,
                )
                if learnt > begin:
                    self.n_seen = int(seen[first + learnt - 1])
                return status, learnt

            self._drive(learn, last - first, chunk)

    def _make_space(self) -> None:
        self._store.make_space(self.rule, 0.0)

    def _open(self, tuples: Comparisons) -> tuple[Any, Any, int]:
        """What drivers need to read tuples: both readers, scratch, and tuples per call."""
        readers, longest, chunk = csr_readers(tuples, self.ranks)
        longest_difference = min(self.shape[1], 2 * longest[1])
        return readers, new_scratch(2 * longest[0], longest_difference, self.dtype), chunk

    def _named(self, tuples: Comparisons, shared: float) -> Any:
        """The triplets as compiled readers take them."""
        assert tuples.tasks is not None
        return TaskTriplets(
            tuples.index,
            tuples.sign,
            np.zeros(len(tuples)) if tuples.coins is None else tuples.coins,
            tuples.tasks,
            self._key,
            self._number,
            self.shape[0],
            float(shared),
            self.weights()[1],
            self.has_identity,
        )

    # -- reading ------------------------------------------------------------------------------

    @property
    def reading_work(self) -> int:
        """Entries that `matrix` looks at."""
        return self._store.n_places

    def values(self, tuples: Comparisons) -> np.ndarray:
        out = np.empty(len(tuples))
        with self.turn:
            readers, scratch, chunk = self._open(tuples)
            named = self._named(tuples, self.weights()[0])
            for begin in range(0, len(tuples), chunk):
                end = min(len(tuples), begin + chunk)
                what = self.rule, self._store.arrays, *readers, named
                task_values(*what, begin, end, scratch, out)
        return out

    def _parts(self) -> tuple[sp.csr_matrix, SparseParts]:
        d = self.shape[0]
        with self.turn:
            keys, entries = self._row_keys(), self._store.entries(self.rule, 0.0)
        stacked = sp.csr_matrix(
            (entries.numbers[:, 0], entries.indices, entries.indptr), shape=entries.shape
        )
        parts = SparseParts(stacked[d + 1 :], keys, np.argsort(keys), self.shape, self.ranks)
        return renumbered_back(stacked[:d], self.ranks), parts

    def freeze(self) -> tuple[sp.csr_matrix, SparseParts]:
        s, parts = self._parts()
        return self._mix(s, None), parts

    # -- saving -------------------------------------------------------------------------------

    def state(self) -> State:
        with self.turn:
            (entries, keys), clock = self._touched(), self.clock.copy()
        arrays = {"clock": clock, **saved_entries(entries, self.ranks), "row_keys": keys}
        scalars = {**self._scalars(), "head_bytes": self.head_bytes}
        return scalars, arrays | saved_counts(scalars, self._counts)

    @classmethod
    def from_state(
        cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]
    ) -> SparseTasksEngine:
        d, columns = saved_shape(scalars)
        keys = saved_array(arrays, "row_keys", (None,), np.int64)
        entries = checked_entries((d + len(keys), columns), arrays, 1)
        if len(keys) and not (keys.min() >= 0 and keys.max() < scalars["n_seen"] * d):
            raise ValueError(f"row_keys: expected rows of {scalars['n_seen']} tasks")
        if len(np.unique(keys)) < len(keys):
            raise ValueError("row_keys: expected every row once")
        return cls._restored(
            scalars,
            arrays,
            entries.numbers.dtype,
            head_bytes=check_integer("head_bytes", scalars["head_bytes"]),
            ranks=checked_ranks(arrays, (d, columns)),
            counts=checked_counts(scalars, arrays, (d, columns)),
            entries=entries,
            row_keys=keys,
        )


def tasks_engine(
    tuples: Comparisons,
    coupling: float,
    n_tasks: int | None,
    has_identity: bool,
    head_bytes: int | None,
) -> TasksEngine:
    """The engine for these items."""
    left, right = tuples.left, tuples.right
    shape, dtype = (left.shape[1], right.shape[1]), left.dtype
    if not tuples.is_sparse:
        return DenseTasksEngine(shape, dtype, coupling, n_tasks, has_identity)
    head_bytes = head_bytes or DEFAULT_HEAD_BYTES
    counts = frequencies(tuples, dtype, head_bytes)
    ranks = None if counts is None else counts.ranks()
    if counts is not None:
        counts = None if counts.are_enough_for(tuples) else counts.emptied()
    options = shape, dtype, coupling, n_tasks, has_identity
    return SparseTasksEngine(*options, head_bytes=head_bytes, ranks=ranks, counts=counts)
