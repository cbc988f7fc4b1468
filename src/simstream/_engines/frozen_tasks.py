"""Matrices of tasks as they were at one moment: read by any number of threads while learning goes on.

M_k = common + own D_k, and most of it is shared with the engine and with other moments: rank-one terms are
only ever appended, a task's own matrix is copied only if the task has learnt since the last time, and what a
task learnt alone is multiplied out when somebody asks for that task.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .sparse import renumbered_back


class TermLists(NamedTuple):
    """Rank-one terms c x z' of tasks, as lists in one arena: see `kernels.task_terms`."""

    head: np.ndarray
    link: np.ndarray
    #: Number of terms of each task.
    lengths: np.ndarray
    c: np.ndarray
    x: np.ndarray
    z: np.ndarray

    def frozen(self) -> TermLists:
        """The lists as they are now: what is added later is behind the ends of these."""
        return self._replace(head=self.head.copy(), lengths=self.lengths.copy())

    def of_task(self, task: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """c, x and z of a task's terms, the latest first."""
        from .._kernels.tasks import places

        only = slice(task, task + 1)
        order = places(self.head[only], self.link, self.lengths[only])
        x = self.x[order]
        return self.c[order].astype(x.dtype), x, self.z[order]

    def matrix(self, task: int) -> np.ndarray:
        """Sum of a task's terms."""
        c, x, z = self.of_task(task)
        return (x.T * c) @ z


class DenseParts(NamedTuple):
    """What tasks learnt alone: a matrix, or terms."""

    full: Mapping[int, np.ndarray]
    terms: TermLists

    def matrix(self, task: int) -> np.ndarray:
        """D of a task."""
        return self.full[task] if task in self.full else self.terms.matrix(task)

    def transform(self, rows: np.ndarray, task: int) -> np.ndarray:
        """D'q of rows q, without building D where it is terms."""
        if task in self.full:
            return rows @ self.full[task]
        c, x, z = self.terms.of_task(task)
        return ((rows @ x.T) * c) @ z


class SparseParts(NamedTuple):
    """What tasks learnt alone: the rows that each has touched, in one CSR matrix for all of them."""

    rows: sp.csr_matrix
    #: task * features + feature of every row, and the order in which they ascend.
    keys: np.ndarray
    order: np.ndarray
    shape: tuple[int, int]
    #: Numbers that features have in here, where these are not their own.
    ranks: tuple[np.ndarray, np.ndarray] | None

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


class FrozenTasks(NamedTuple):
    """One similarity for each task, as `OMTRSL.freeze` found them; they never change."""

    #: M of a task never seen.
    common: Any
    #: Tasks by name, and the numbers of their parts.
    numbers: Mapping[Hashable, int]
    parts: DenseParts | SparseParts
    #: What D_k counts for.
    own: float

    def matrix(self, task: Hashable = None) -> Any:
        """M of a task; what all have in common for a task never seen. Do not change it."""
        number = self.numbers.get(task)
        if number is None:
            return self.common
        return self.common + self.parts.matrix(number) * self.common.dtype.type(self.own)

    def transform_query(self, rows: Any, task: Hashable = None) -> Any:
        """Queries q as M'q of a task, by two products: M itself is not built."""
        asked, number = rows @ self.common, self.numbers.get(task)
        if number is None:
            return asked
        return asked + self.parts.transform(rows, number) * self.common.dtype.type(self.own)
