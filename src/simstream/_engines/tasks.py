"""One matrix per task, sharing what tasks have in common: M_k = M_1 + shared S + own D_k.

S is the sum of all steps, D_k that of the steps of task k. A step changes both by the same rank-one matrix,
whatever the number of tasks; how much of S is in a task's matrix depends on the coupling and on their number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from .._kernels.blocked import Blas, Block, row_dots
from .._kernels.dispatch import compiled
from .._kernels.entrywise import DONE
from .._kernels.tasks import add_terms, couple, learn_dense_task, mix, places, term_values
from ..data.comparisons import Comparisons
from ..validation import check_integer
from .base import (
    Engine,
    State,
    ctrl_c_waits,
    saved_array,
    saved_flag,
    saved_number,
    saved_shape,
)
from .single import DenseSingle, Single

#: Triplets that are scored together, with dense rows.
_ROWS_PER_SCORE = 1024

#: From this many rows of one task on, adding its matrix to S is cheaper than a product of its own.
_MANY_ROWS = 16

#: This many tasks get a full matrix before their terms are as large as one: speed for bounded memory.
_FEW_TASKS = 8


class TasksEngine(Engine):
    """What both forms share: the number of tasks and their weights.

    Parameters
    ----------
    shape : features on the left and on the right
    dtype : precision
    coupling : float
        How strongly tasks are drawn together; 0 is not at all.
    n_tasks : int, optional
        Number of tasks in all. None counts those seen so far.
    has_identity : bool
        Whether every matrix starts from the identity, or from zero.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: Any,
        coupling: float,
        n_tasks: int | None,
        has_identity: bool,
    ) -> None:
        super().__init__(shape, dtype)
        self.coupling, self.n_tasks, self.has_identity = coupling, n_tasks, has_identity
        self.n_seen = 0

    def weights(self, n_seen: Any = None) -> tuple[Any, float]:
        """Weights of S and D_k in the matrix of task k after `n_seen` tasks (None: as many as now)."""
        n = np.maximum(1, self.n_seen if n_seen is None else n_seen)
        if self.n_tasks is not None:
            n = np.full_like(n, self.n_tasks)
        own = 1.0 / (1.0 + self.coupling)
        return self.coupling * own / n, own

    @abstractmethod
    def _parts(self) -> tuple[Any, Any]:
        """S, and the D of all tasks."""

    @abstractmethod
    def values(self, tuples: Comparisons) -> np.ndarray:
        """x'M_k z of triplets by their tasks k, without building a matrix; n_seen is a task never seen."""

    @abstractmethod
    def freeze(self) -> tuple[Any, Any]:
        """M of a task never seen and D of all others, unchanged by what is learnt later."""

    def matrix(self, task: int | None = None) -> Any:
        """Matrix of a task by its number; of a task never seen if that is None."""
        s, parts = self._parts()
        return self._mix(s, None if task is None or task >= self.n_seen else parts.matrix(task))

    def _mix(self, s: Any, d: Any) -> Any:
        shared, own = self.weights()
        matrix = s * self.dtype.type(shared)
        if d is not None:
            matrix = matrix + d * self.dtype.type(own)
        if not self.has_identity:
            return matrix
        if sp.issparse(matrix):
            return sp.csr_matrix(matrix + sp.identity(self.shape[0], self.dtype, "csr"))
        return matrix + np.eye(self.shape[0], dtype=self.dtype)

    def _scalars(self) -> dict[str, Any]:
        names = ("coupling", "n_tasks", "has_identity", "n_seen")
        return {"shape": list(self.shape), **{name: getattr(self, name) for name in names}}

    @classmethod
    def _restored(
        cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray], dtype: Any, **more: Any
    ) -> Self:
        """An engine with these scalars and the saved clock."""
        n_tasks, n_seen = scalars["n_tasks"], check_integer("n_seen", scalars["n_seen"], minimum=0)
        if n_tasks is not None:
            check_integer("n_tasks", n_tasks)
        shape, coupling = saved_shape(scalars), saved_number(scalars, "coupling")
        self = cls(shape, dtype, coupling, n_tasks, saved_flag(scalars, "has_identity"), **more)
        self._restore_clock(arrays)
        self.n_seen = n_seen
        return self


class TermLists:
    """Rank-one terms c x z' of tasks, as lists in one arena: see `_kernels.tasks`.

    Terms of tasks that were taken out stay in the arena until it is full: it is packed then.

    Parameters
    ----------
    count : array, number of terms of each task
    c, x, z : arrays of all terms, task after task
    """

    def __init__(self, count: np.ndarray, c: np.ndarray, x: np.ndarray, z: np.ndarray) -> None:
        self.count = count
        self._arena: tuple[np.ndarray, ...] = (c, x, z)
        self._chain(len(c))

    def _chain(self, capacity: int) -> None:
        """Make lists of the first places of the arena, which hold the terms task after task."""
        ends = np.cumsum(self.count)
        #: The next place, an array: kernels move it on.
        self._used = np.array([self.count.sum()], np.int64)
        self._link = np.arange(1, capacity + 1)
        self._link[ends[self.count > 0] - 1] = -1
        self._head = np.where(self.count > 0, ends - self.count, -1)

    def make_room(self, n_tasks: int) -> None:
        """Make room for the lists of that many tasks."""
        more = n_tasks - len(self.count)
        if more > 0:
            self.count = np.append(self.count, np.zeros(more, np.int64))
            self._head = np.append(self._head, np.full(more, -1))

    def packed(self, room: int = 0) -> tuple[np.ndarray, ...]:
        """c, x and z of all terms, task after task, the latest of each first; and room for more."""
        order = places(self._head, self._link, self.count)
        packed = [np.empty((len(order) + room, *a.shape[1:]), a.dtype) for a in self._arena]
        for kept, new in zip(self._arena, packed, strict=True):
            np.take(kept, order, axis=0, out=new[: len(order)], mode="clip")
        return tuple(packed)

    def values(self, tasks: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """x_t' D z_t for rows x_t and z_t, where D is the sum of the terms of task ``tasks[t]``."""
        return term_values(self._head, self._link, *self._arena, tasks, x, z)

    def add(
        self, tasks: np.ndarray, x: np.ndarray, c: np.ndarray, z: np.ndarray, chosen: np.ndarray
    ) -> None:
        """Add c_t x_t z_t' to task ``tasks[t]`` for the chosen t."""
        if self._used[0] + len(chosen) > len(self._link):
            self._arena = self.packed(room=int(self.count.sum()) + len(chosen))
            self._chain(len(self._arena[0]))
        lists = self._head, self._link, *self._arena
        used = int(self._used[0])
        self._used[0] = add_terms(*lists, used, self.count, tasks, x, c, z, chosen)

    def with_room(self) -> tuple[Any, ...]:
        """The lists, with room for one more term: heads, links, c, x and z, the next place, and counts."""
        if self._used[0] == len(self._link):
            self._arena = self.packed(room=int(self.count.sum()) + 1)
            self._chain(len(self._arena[0]))
        return self._head, self._link, *self._arena, self._used, self.count

    def take_out(self, task: int) -> np.ndarray:
        """Sum of the terms of a task, which has none then."""
        matrix = self.matrix(task)
        self._head[task], self.count[task] = -1, 0
        return matrix

    def of_task(self, task: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """c, x and z of a task's terms, the latest first."""
        only = slice(task, task + 1)
        order = places(self._head[only], self._link, self.count[only])
        c, x, z = (array[order] for array in self._arena)
        return c.astype(x.dtype), x, z

    def matrix(self, task: int) -> np.ndarray:
        """Sum of the terms of a task."""
        c, x, z = self.of_task(task)
        return (x.T * c) @ z

    def frozen(self) -> TermLists:
        """The lists as they are now: later terms are appended, and do not change them."""
        frozen = copy(self)
        frozen._head, frozen.count = self._head.copy(), self.count.copy()
        return frozen


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


class DenseTasksEngine(TasksEngine):
    """A matrix for what is shared; for each task rank-one terms, or a matrix once that takes less memory."""

    kind = "dense-tasks"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Where the columns of this matrix are among those of a wider one, and their number there.
        self.columns: slice = slice(None)
        self.width = self.shape[1]
        self.shared = np.zeros(self.shape, self.dtype)
        nothing = (np.empty((0, width), self.dtype) for width in self.shape)
        self.terms = TermLists(np.zeros(0, np.int64), np.empty(0), *nothing)
        self.full: dict[int, np.ndarray] = {}
        self._frozen: dict[int, np.ndarray] = {}  # copies of those that have not changed since
        self._mixed = np.empty(
            self.shape, self.dtype
        )  # scratch of `learn`: shared and own part of a task

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        self._drive_blocks(step, tuples.densified(), block_size, 2 * self.shared.size)

    def block(self, ops: Any, step: Any, tuples: Comparisons, first: int, last: int) -> Block:
        assert tuples.tasks is not None
        block, tasks = slice(first, last), tuples.tasks[first:last]
        n_seen = np.maximum.accumulate(np.maximum(self.n_seen, tasks + 1))
        self.terms.make_room(int(n_seen[-1]))
        # A task seen for the first time may change all weights.
        shared, own = self.weights(n_seen)
        full = self._rows_of_full(tasks)
        x, z = tuples.rows_of(block)
        value = self._values(ops, x, z, tasks, full, shared, own, self._mixed)
        value, directed, grams = yield value, ops.is_directed(x, z), ops.grams(x, z)
        gram_x, gram_z = ops.triangles(grams)
        coupled = couple(gram_x, tasks, shared, own)
        coins = np.zeros(len(x)) if tuples.coins is None else tuples.coins[block]
        coefficient, _, learnt = ops.recursion(
            step, value, tuples.sign[block], coins, directed, x, z, (coupled, gram_z), self.clock
        )
        moved = np.flatnonzero(coefficient)
        if len(moved):
            ops.add_product(self.shared, x[moved], coefficient[moved], z[moved])
            self._add_own(ops, x, coefficient, z, tasks, full)
        if learnt:
            self.n_seen = int(n_seen[learnt - 1])
        return int(learnt)

    def learn_alone(self, step: Any, tuples: Comparisons) -> None:
        assert tuples.tasks is not None
        task, dense = int(tuples.tasks[0]), tuples.densified()
        learn = self._task_step(step, *dense.rows(0, 1), dense.sign)
        n_seen = max(self.n_seen, task + 1)
        with ctrl_c_waits(), self.turn:
            self.terms.make_room(n_seen)
            status = learn(task, n_seen)
            if status == DONE:
                self.n_seen = n_seen
        if status != DONE:
            self.attend(status)

    def single(self, step: Any, size: int) -> Single | None:
        return DenseSingle(self, size, lambda x, z, sign: self._task_step(step, x, z, sign))

    def _task_step(
        self, step: Any, x: np.ndarray, z: np.ndarray, sign: np.ndarray
    ) -> Callable[..., int]:
        """A function of the number of a task that learns from the triplet in these arrays of one row.

        It says what happened. A task never seen must have been counted in `n_seen`, its second argument.
        """
        nothing = np.empty((0, self.shape[1]), self.dtype)
        identity = 1.0 if self.has_identity else 0.0
        kernel: Any = None

        def learn(task: int, n_seen: int | None = None) -> int:
            nonlocal kernel
            matrix = self.full.get(task)
            if matrix is None:
                matrix = nothing
            else:
                self._frozen.pop(task, None)
            shared, own = self.weights(n_seen)
            what = step, self.shared, matrix, *self.terms.with_room(), task, float(shared), own
            what = *what, identity, x, z, float(sign[0]), self.clock
            kernel = kernel or compiled(learn_dense_task, what)
            status = kernel(*what)
            if self.terms.count[task] > self._most_terms():
                with ctrl_c_waits():
                    self.full[task] = self.terms.take_out(task)
            return status

        return learn

    def _rows_of_full(self, tasks: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The tasks among these that have a matrix of their own, and where each occurs."""
        if not self.full:
            return []
        order = np.argsort(tasks, kind="stable")
        cuts = np.flatnonzero(np.diff(tasks[order])) + 1
        groups = ((int(tasks[rows[0]]), rows) for rows in np.split(order, cuts))
        return [(task, rows) for task, rows in groups if task in self.full]

    def _values(
        self,
        ops: Any,
        x: np.ndarray,
        z: np.ndarray,
        tasks: np.ndarray,
        full: list[tuple[int, np.ndarray]],
        shared: np.ndarray,
        own: float,
        mixed: np.ndarray,
    ) -> np.ndarray:
        """x_t' M z_t, where M is the matrix of task ``tasks[t]`` with these weights of S and D.

        `mixed` is scratch of the shape of M.
        """
        value = own * self.terms.values(tasks, x, z)
        if self.has_identity:
            value += row_dots(np.ascontiguousarray(x[:, self.columns]), z)
        rest = np.ones(len(x), bool)
        for task, rows in full:
            matrix, weight = self.full[task], own
            if len(rows) >= _MANY_ROWS and shared[rows[0]] == shared[rows[-1]]:
                of_all, of_own = self.dtype.type(shared[rows[0]]), self.dtype.type(own)
                mix(self.shared, of_all, matrix, of_own, mixed)
                matrix, weight = mixed, 1.0
                rest[rows] = False
            value[rows] += weight * row_dots(ops.product(x[rows], matrix), z[rows])
        if rest.any():
            xs, zs = (x, z) if rest.all() else (x[rest], z[rest])
            value[rest] += shared[rest] * row_dots(ops.product(xs, self.shared), zs)
        return value

    def values(self, tuples: Comparisons) -> np.ndarray:
        assert tuples.tasks is not None
        ops, out = Blas(self.dtype), np.empty(len(tuples))
        shared, own = self.weights(np.full(len(tuples), self.n_seen))
        mixed = np.empty(self.shape, self.dtype)  # another thread may be learning with `_mixed`
        for begin in range(0, len(tuples), _ROWS_PER_SCORE):
            cut = slice(begin, begin + _ROWS_PER_SCORE)
            part = tuples.part(begin, begin + _ROWS_PER_SCORE).densified()
            tasks = tuples.tasks[cut]
            rows, full = part.rows(0, len(part)), self._rows_of_full(tasks)
            out[cut] = self._values(ops, *rows, tasks, full, shared[cut], own, mixed)
        return out

    def _add_own(
        self,
        ops: Any,
        x: np.ndarray,
        c: np.ndarray,
        z: np.ndarray,
        tasks: np.ndarray,
        full: list[tuple[int, np.ndarray]],
    ) -> None:
        """Add c_t x_t z_t' to what task ``tasks[t]`` learnt."""
        in_terms = c != 0
        for task, rows in full:
            in_terms[rows] = False
            moved = rows[c[rows] != 0]
            if len(moved):
                self._frozen.pop(task, None)
            ops.add_product(self.full[task], x[moved], c[moved], z[moved])
        self.terms.add(tasks, x, c, z, np.flatnonzero(in_terms))
        for task in np.unique(tasks[self.terms.count[tasks] > self._most_terms()]):
            self.full[int(task)] = self.terms.take_out(task)

    def _most_terms(self) -> int:
        """How many terms a task may have before it gets a matrix."""
        # As many terms take as much memory as a matrix. The first tasks get theirs sooner: terms cost time.
        size = self.shape[0] * self.width // (self.shape[0] + self.width)
        return size // (1 if len(self.full) >= _FEW_TASKS else 8)

    def _parts(self) -> tuple[np.ndarray, DenseParts]:
        return self.shared, DenseParts(self.full, self.terms)

    def freeze(self) -> tuple[np.ndarray, DenseParts]:
        for task in self.full.keys() - self._frozen.keys():
            self._frozen[task] = self.full[task].copy()
        return self._mix(self.shared, None), DenseParts(dict(self._frozen), self.terms.frozen())

    def state(self) -> State:
        arrays = {"clock": self.clock, "shared": self.shared, "count": self.terms.count}
        arrays["c"], arrays["x"], arrays["z"] = self.terms.packed()
        arrays |= {f"full.{task}": matrix for task, matrix in self.full.items()}
        return self._scalars(), arrays

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> DenseTasksEngine:
        shape = saved_shape(scalars)
        shared = saved_array(arrays, "shared", shape, None)
        dtype = shared.dtype
        self = cls._restored(scalars, arrays, dtype)
        self.shared, n_seen = shared, self.n_seen
        count = saved_array(arrays, "count", (None,), np.int64)
        if (count < 0).any() or len(count) < n_seen:
            raise ValueError(f"count: expected numbers of terms of {n_seen} tasks, got {count}")
        n = int(count.sum())
        c = saved_array(arrays, "c", (n,))
        x, z = (saved_array(arrays, k, (n, d), dtype) for k, d in zip("xz", shape, strict=True))
        self.terms = TermLists(count, c, x, z)
        for task in range(n_seen):
            if (name := f"full.{task}") in arrays:
                self.full[task] = saved_array(arrays, name, shape, dtype)
        return self
