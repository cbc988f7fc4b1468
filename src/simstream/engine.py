"""Engines: a learnt matrix together with the clock of its stream, and the loop around the kernels.

An engine is what a learner keeps between calls. All engines have the same shape: `learn` advances the
stream, `matrix` reads the current (or averaged) matrix, `state` and `from_state` save and restore the raw
numbers. What is learnt lives here; what it is called and how it is checked lives in the estimators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .stores import Entries, SparseStore
from .validation import Items

#: Work (entries of M visited) between two moments at which Ctrl-C is noticed: about half a second.
_ENTRIES_PER_CALL = 5e7


class DivergedError(ArithmeticError):
    """A margin stopped being a finite number; the matrix is as it was before that triplet."""


class Engine:
    """What all engines share: the clock, the average, and raw arrays by name."""

    kind: str
    shape: tuple[int, int]
    average_from: int | None = None

    def __init__(self, rule: Any, clock: np.ndarray) -> None:
        self.rule = rule
        self.clock = clock

    def _average_weight(self, step: Any) -> float:
        """Number of averaged iterates, 0 while there is nothing to average."""
        from .kernels.steps import ROUNDS

        if step.average_from == 0:
            return 0.0
        return max(0.0, self.clock[ROUNDS] - step.average_from + 1)

    def _decode(self, u: Any, aux: Any, acc: Any, on_diagonal: Any, step: Any) -> np.ndarray:
        """Values of entries from their raw numbers (see `kernels.rules`)."""
        from .kernels.rules import AdaptiveThreshold, Confidence, Plain
        from .kernels.steps import SHIFT

        weight = self._average_weight(step)
        if isinstance(self.rule, (Plain, Confidence)):
            return u - acc / u.dtype.type(weight) if weight else u
        shift = u.dtype.type(self.clock[SHIFT])
        value = np.copysign(np.maximum(np.abs(u) - shift, 0), u)
        if self.rule.off_diagonal:
            value[on_diagonal] = u[on_diagonal]
        if isinstance(self.rule, AdaptiveThreshold):
            value /= u.dtype.type(self.rule.delta) + aux
        return value

    def _drive(self, learn: Any, n: int, chunk: int, make_space: Any, rebase: Any) -> None:
        """Call ``learn(begin, end) -> (status, next)`` until all n triplets are learnt."""
        from .kernels import entrywise
        from .kernels.steps import ROUNDS, SHIFT

        begin = 0
        while begin < n:
            status, begin = learn(begin, min(n, begin + chunk))
            if status == entrywise.NEEDS_SPACE:
                make_space(self.rule, self.clock[SHIFT])
            elif status == entrywise.NEEDS_REBASE:
                rebase(self.rule, self.clock[SHIFT])
                self.clock[SHIFT] = 0.0
            elif status == entrywise.DIVERGED:
                raise DivergedError(
                    f"margin of round {int(self.clock[ROUNDS]) + 1} is not finite: expected bounded "
                    "scores, got an overflow; use a smaller step or scale the items"
                )


class DenseEngine(Engine):
    """Full arrays, for dense items: one triplet at a time, or exact blocks where the rule allows.

    Parameters
    ----------
    rule : an entry rule of `kernels.rules`
    start : array of shape (d, d'), the first matrix
    has_aux, has_acc : bool
        Which of the two extra arrays the rule and the average need.
    """

    kind = "dense"

    def __init__(self, rule: Any, start: np.ndarray, has_aux: bool, has_acc: bool) -> None:
        from .kernels.entrywise import Dense
        from .kernels.rules import AdaptiveThreshold
        from .kernels.steps import CLOCK_SIZE

        super().__init__(rule, np.zeros(CLOCK_SIZE))
        u = np.array(start, order="C")
        if isinstance(rule, AdaptiveThreshold):
            u *= rule.delta
        self.arrays = Dense(
            u=u,
            aux=np.zeros((len(u), u.shape[1] if has_aux else 0), u.dtype),
            acc=np.zeros((len(u), u.shape[1] if has_acc else 0), u.dtype),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.arrays.u.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays.u.dtype

    def learn(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        left, right, triplets = _used_rows_dense(left, right, triplets)
        if block_size > 1:
            self._learn_blocks(step, left, right, triplets, block_size)
        else:
            self._learn_singly(step, left, right, triplets)

    def _learn_singly(self, step: Any, left: Items, right: Items, triplets: np.ndarray) -> None:
        from .kernels.entrywise import learn_one_at_a_time
        from .kernels.rows import DenseRows

        rows = DenseRows(left.values), DenseRows(right.values)
        scratch = _scratch(*self.shape, self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.arrays, step, *rows, triplets[:end], begin, scratch, self.clock
            )

        chunk = max(1, int(_ENTRIES_PER_CALL / (self.shape[0] * self.shape[1])))
        self._drive(learn, len(triplets), chunk, None, self._rebase)

    def _learn_blocks(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        from .kernels.blocked import Blas, learn_block
        from .kernels.entrywise import DIVERGED, DONE

        ops = Blas(self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = _anchors_and_differences(left, right, triplets[begin:end])
            learnt = learn_block(ops, step, self.arrays.u, self.arrays.acc, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(triplets), block_size, None, None)

    def _rebase(self, rule: Any, shift: float) -> None:
        u = self.arrays.u
        diagonal = u.diagonal().copy()
        u[...] = np.copysign(np.maximum(np.abs(u) - u.dtype.type(shift), 0), u)
        if rule.off_diagonal:
            np.fill_diagonal(u, diagonal)

    def matrix(self, step: Any) -> np.ndarray:
        """The current matrix, or the average (a view of the live array where nothing is decoded)."""
        a = self.arrays
        return self._decode(a.u, a.aux, a.acc, np.diag_indices(min(self.shape)), step)

    def state(self) -> dict[str, np.ndarray]:
        return {"clock": self.clock, **self.arrays._asdict()}

    @classmethod
    def from_state(cls, rule: Any, arrays: dict[str, np.ndarray], **_: Any) -> DenseEngine:
        self = cls.__new__(cls)
        Engine.__init__(self, rule, arrays["clock"])
        from .kernels.entrywise import Dense

        self.arrays = Dense(arrays["u"], arrays["aux"], arrays["acc"])
        return self


class SparseEngine(Engine):
    """Only the entries that were touched, for sparse items; always one triplet at a time.

    Parameters
    ----------
    rule : an entry rule of `kernels.rules`
    start : CSR matrix of shape (d, d'), the first matrix
    has_aux, has_acc : bool
        Which of the two extra numbers the rule and the average need.
    head_bytes : int
        Memory of the dense block of frequent features (see `stores.SparseStore`).
    row_counts, column_counts : int arrays
        How often each feature occurs; only used where the matrix is too large for one dense block.
        The same array for both where rows and columns are the same features.
    """

    kind = "sparse"

    def __init__(
        self,
        rule: Any,
        start: Any,
        has_aux: bool,
        has_acc: bool,
        head_bytes: int,
        row_counts: np.ndarray,
        column_counts: np.ndarray,
    ) -> None:
        from .kernels.rules import AdaptiveThreshold
        from .kernels.steps import CLOCK_SIZE

        super().__init__(rule, np.zeros(CLOCK_SIZE))
        self.row_rank = self.column_rank = None
        if start.shape[0] * start.shape[1] * start.dtype.itemsize > head_bytes:
            self.row_rank = _rank_by_count(row_counts)
            self.column_rank = (
                self.row_rank if column_counts is row_counts else _rank_by_count(column_counts)
            )
            start = _renumber(start, self.row_rank, self.column_rank)
        numbers = np.zeros((start.nnz, 1 + has_aux + has_acc), start.dtype)
        numbers[:, 0] = start.data
        if isinstance(rule, AdaptiveThreshold):
            numbers[:, 0] *= rule.delta
        indptr, indices = start.indptr.astype(np.int64), start.indices.astype(np.int32)
        self.head_bytes = head_bytes
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

    def learn(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        from .kernels.entrywise import learn_one_at_a_time
        from .kernels.rows import SparseRows

        rows_left = left.csr_renumbered(self.row_rank)
        rows_right = rows_left if right is left else right.csr_renumbered(self.column_rank)
        readers = [SparseRows(m.indptr, m.indices, m.data) for m in (rows_left, rows_right)]
        longest_x = int(np.diff(rows_left.indptr).max())
        longest_z = min(self.shape[1], 2 * int(np.diff(rows_right.indptr).max()))
        scratch = _scratch(longest_x, longest_z, self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            return learn_one_at_a_time(
                self.rule, self.store.arrays, step, *readers, triplets[:end], begin, scratch, self.clock
            )

        mean_entries = 2 * (rows_left.nnz / left.shape[0]) * (rows_right.nnz / right.shape[0])
        chunk = max(1, int(_ENTRIES_PER_CALL / max(1.0, mean_entries)))
        self._drive(learn, len(triplets), chunk, self.store.make_space, self.store.rebase)

    def matrix(self, step: Any) -> sp.csr_matrix:
        """The current matrix, or the average, as CSR in the original numbering of features."""
        from .kernels.steps import SHIFT

        entries = self.store.entries(self.rule, self.clock[SHIFT])
        numbers = entries.numbers
        on_diagonal = None
        if self.rule.off_diagonal:
            rows = np.repeat(np.arange(self.shape[0]), np.diff(entries.indptr))
            on_diagonal = rows == entries.indices
        value = self._decode(
            numbers[:, 0].copy(), numbers[:, -1], numbers[:, -1], on_diagonal, step
        )
        matrix = sp.csr_matrix((value, entries.indices, entries.indptr), shape=self.shape)
        if self.row_rank is not None:
            matrix = _renumber(matrix, np.argsort(self.row_rank), np.argsort(self.column_rank))
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return matrix

    def state(self) -> dict[str, np.ndarray]:
        from .kernels.steps import SHIFT

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
    def from_state(
        cls,
        rule: Any,
        arrays: dict[str, np.ndarray],
        *,
        has_aux: bool,
        has_acc: bool,
        head_bytes: int,
        **_: Any,
    ) -> SparseEngine:
        self = cls.__new__(cls)
        Engine.__init__(self, rule, arrays["clock"])
        self.row_rank = arrays.get("row_rank")
        self.column_rank = arrays.get("column_rank")
        self.head_bytes = head_bytes
        n_rows, n_columns = (int(n) for n in arrays["shape"])
        self.store = SparseStore(
            Entries((n_rows, n_columns), arrays["indptr"], arrays["indices"], arrays["numbers"]),
            has_aux=has_aux,
            has_acc=has_acc,
            head_bytes=head_bytes,
        )
        return self


def _rank_by_count(counts: np.ndarray) -> np.ndarray:
    """Number of each feature when counted from the most to the least frequent."""
    return np.argsort(np.argsort(-counts, kind="stable"))


def _renumber(matrix: sp.csr_matrix, row_rank: np.ndarray, column_rank: np.ndarray) -> sp.csr_matrix:
    """Move entry (i, j) to (row_rank[i], column_rank[j])."""
    moved = matrix[np.argsort(row_rank)]
    columns = column_rank[moved.indices].astype(np.int32)
    return sp.csr_matrix((moved.data, columns, moved.indptr), moved.shape)


class FactoredEngine(Engine):
    """AROMA with covariance Lambda (x) Omega: full arrays, exact blocks (of one for sparse items)."""

    kind = "factored"

    def __init__(self, rule: Any, start: np.ndarray, has_acc: bool) -> None:
        from .kernels.steps import CLOCK_SIZE

        super().__init__(rule, np.zeros(CLOCK_SIZE))
        self.u = np.array(start, order="C")
        self.acc = np.zeros((len(start), start.shape[1] if has_acc else 0), start.dtype)
        self.covariance_x = np.eye(start.shape[0], dtype=start.dtype)
        self.covariance_z = np.eye(start.shape[1], dtype=start.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.u.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.u.dtype

    def learn(
        self, step: Any, left: Items, right: Items, triplets: np.ndarray, block_size: int
    ) -> None:
        from .kernels.blocked import Blas
        from .kernels.confidence import learn_factored_block, learn_factored_singly
        from .kernels.entrywise import DIVERGED, DONE

        singly = block_size == 1 or left.is_sparse or right.is_sparse
        ops = Blas(self.dtype)
        arrays = self.u, self.acc, self.covariance_x, self.covariance_z

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = _anchors_and_differences(left, right, triplets[begin:end])
            if singly:
                learnt = learn_factored_singly(step, *arrays, x, z, self.clock)
            else:
                learnt = learn_factored_block(ops, step, *arrays, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(triplets), 256 if singly else block_size, None, None)

    def matrix(self, step: Any) -> np.ndarray:
        return self._decode(self.u, None, self.acc, None, step)

    def state(self) -> dict[str, np.ndarray]:
        names = ("clock", "u", "acc", "covariance_x", "covariance_z")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, rule: Any, arrays: dict[str, np.ndarray], **_: Any) -> FactoredEngine:
        self = cls.__new__(cls)
        self.rule = rule
        self.__dict__.update(arrays)
        return self


class IdentityEngine(Engine):
    """The identity matrix, which never changes: a baseline that only keeps count.

    Parameters
    ----------
    shape, dtype : of the matrix
    is_sparse : bool
        Whether the matrix is read as CSR.
    """

    kind = "identity"

    def __init__(self, shape: tuple[int, int], dtype: Any, is_sparse: bool) -> None:
        from .kernels.steps import CLOCK_SIZE

        super().__init__(None, np.zeros(CLOCK_SIZE))
        self.shape, self.dtype, self.is_sparse = shape, np.dtype(dtype), is_sparse

    def count(self, margins: np.ndarray) -> None:
        from .kernels.steps import LOSS, MISTAKES, ROUNDS

        self.clock[ROUNDS] += len(margins)
        self.clock[LOSS] += np.maximum(0.0, 1.0 - margins).sum()
        self.clock[MISTAKES] += (margins <= 0).sum()

    def matrix(self, step: Any) -> Any:
        if self.is_sparse:
            return sp.identity(self.shape[0], self.dtype, "csr")
        return np.eye(self.shape[0], dtype=self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        one = np.ones(1, self.dtype)
        return {"clock": self.clock, "shape": np.array([*self.shape, self.is_sparse]), "one": one}

    @classmethod
    def from_state(cls, rule: Any, arrays: dict[str, np.ndarray], **_: Any) -> IdentityEngine:
        rows, columns, is_sparse = (int(n) for n in arrays["shape"])
        self = cls((rows, columns), arrays["one"].dtype, bool(is_sparse))
        self.clock = arrays["clock"]
        return self


ENGINES = {engine.kind: engine for engine in (DenseEngine, SparseEngine, FactoredEngine, IdentityEngine)}


def default_block_size(n_features: int) -> int:
    """Block size near the best measured one: products must be large, Gram matrices small beside them."""
    if n_features < 96:
        return 1
    return int(np.clip(2 ** round(np.log2(n_features / 3.0)), 64, 512))


def _scratch(longest_x: int, longest_z: int, dtype: Any) -> Any:
    from .kernels.rows import Scratch

    return Scratch(
        x_index=np.empty(longest_x, np.int32),
        x=np.empty(longest_x, dtype),
        z_index=np.empty(longest_z, np.int32),
        z=np.empty(longest_z, dtype),
        u=np.empty(longest_z, dtype),
        aux=np.empty(longest_z, dtype),
        acc=np.empty(longest_z, dtype),
    )


def _used_rows_dense(
    left: Items, right: Items, triplets: np.ndarray
) -> tuple[Items, Items, np.ndarray]:
    """Sparse items as dense rows, but only those the triplets name."""
    if not (left.is_sparse or right.is_sparse):
        return left, right, triplets
    anchors, a = np.unique(triplets[:, 0], return_inverse=True)
    candidates, c = np.unique(triplets[:, 1:], return_inverse=True)
    renumbered = np.column_stack([a, c.reshape(-1, 2)])
    return Items(left.dense_rows(anchors)), Items(right.dense_rows(candidates)), renumbered


def _anchors_and_differences(
    left: Items, right: Items, triplets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    x = left.dense_rows(triplets[:, 0])
    z = right.dense_rows(triplets[:, 1]) - right.dense_rows(triplets[:, 2])
    return x, z
