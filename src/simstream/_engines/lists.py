"""Matrices learnt from lists: a relevant item of a query against its negatives.

They are stored, averaged, read and saved as those learnt from triplets; only learning differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.blocked import Block
from .._kernels.listwise import learn_list_block, learn_sparse_lists
from ..data.comparisons import Comparisons
from .base import new_scratch
from .entrywise import DenseEngine
from .sparse import SparseEngine, csr_readers


class DenseListsEngine(DenseEngine):
    """Full arrays, for dense items: exact blocks of lists, of any size from one on."""

    @property
    def has_devices(self) -> bool:
        return False

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        length = tuples.index.shape[1]
        per_list = self.shape[1] * (self.shape[0] + 2 * step.n_steps * length)
        self._drive_blocks(step, tuples.densified(), block_size, per_list)

    def block(self, ops: Any, step: Any, tuples: Comparisons, first: int, last: int) -> Block:
        lists, items = tuples.index[first:last], tuples.right.values
        if tuples.columns is not None:
            items = items[:, tuples.columns]
        queries = tuples.left.values[lists[:, 0]]
        where = self.arrays.u, self.arrays.acc, queries, items, lists, self.clock
        return learn_list_block(ops, step, *where)


class SparseListsEngine(SparseEngine):
    """Only the entries that were touched, for sparse items; always one list at a time."""

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        lists = tuples.index
        readers, longest, chunk = csr_readers(tuples, self.ranks)
        n_columns = min(self.shape[1], longest[1] * (lists.shape[1] - 1))
        scratch = new_scratch(longest[0], n_columns, self.dtype)
        place = np.full(self.shape[1], -1, np.int32)

        def learn(begin: int, end: int) -> tuple[int, int]:
            what = self.rule, step, self.store.arrays, *readers, lists
            return learn_sparse_lists(*what, begin, end, scratch, place, self.clock)

        self._drive(learn, len(tuples), max(1, 2 * chunk // lists.shape[1]))
