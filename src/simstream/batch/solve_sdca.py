"""SDCA: epochs of draws from a fixed set of triplets, with a duality gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._engines import DenseEngine, default_block_size, entrywise_engine, first_matrix
from ..data.comparisons import Comparisons
from ..similarity.scoring import chunks, row_products

#: Triplets the certificate looks at together: enough for a fast product, few enough for the caches.
_PART = 1024


class EpochRecord(NamedTuple):
    """How one epoch went; losses and mistakes are means over its draws, each before its own step."""

    primal: float
    dual: float
    hinge: float
    squared_hinge: float
    mistake_rate: float


class SDCASolution(NamedTuple):
    """The matrix and the dual variables it is made of."""

    matrix: Any
    alpha: np.ndarray
    primal: float
    dual: float
    history: list[EpochRecord]
    converged: bool


@dataclass
class _Window:
    """Iterates from draw `begin` on: the sum of their dual variables, or a random one of them."""

    begin: int
    length: int = 0
    total: np.ndarray | None = None
    sample: np.ndarray | None = None


class _Suffix:
    """What is read of the iterates of the second half of all draws, in the memory of very few of them.

    Where the number of epochs is known, so is the first of these draws. Where learning may stop after any
    epoch, windows open when 1/2, 1, 2, 4, ... epochs have been made, and the last one that has at least half
    of all draws is read: it has at most three quarters of them, and those before it are forgotten.
    """

    def __init__(self, output: str, n: int, n_epochs: int | None, rng: np.random.Generator) -> None:
        self._output, self._rng = output, rng
        self._begin = None if n_epochs is None else n * n_epochs // 2
        self._drawn = self._halves = 0
        self.windows: list[_Window] = []

    def add(self, length: int, total: np.ndarray, sample: np.ndarray | None) -> None:
        """Take half an epoch: the sum of the dual variables before its draws, and one of the iterates."""
        if self._output == "last":
            return
        if self._opens():
            self.windows.append(_Window(self._drawn))
        coin = self._rng.random()
        for window in self.windows:
            window.length += length
            if self._output == "random":
                if coin * window.length < length:
                    window.sample = sample
            elif window.total is None:
                window.total = total.copy()
            else:
                window.total += total
        self._drawn += length
        self._halves += 1
        while len(self.windows) > 1 and self.windows[1].begin <= self._drawn // 2:
            del self.windows[0]

    def _opens(self) -> bool:
        if self._begin is None:
            return self._halves.bit_count() == 1  # a power of two
        return not self.windows and self._drawn >= self._begin

    def read(self, last: np.ndarray) -> np.ndarray:
        """The dual variables that are kept, after a whole epoch; `last` are the present ones."""
        if self._output == "last":
            return last
        window = self.windows[0]
        if self._output == "random":
            assert window.sample is not None
            return window.sample
        assert window.total is not None
        return window.total / window.length


def solve_sdca(
    tuples: Comparisons,
    lam: float,
    *,
    n_epochs: int,
    output: str,
    tol: float | None,
    rng: np.random.Generator,
    block_size: int | None = None,
    head_bytes: int | None = None,
    report: Callable[[int, EpochRecord], None] | None = None,
) -> SDCASolution:
    """Draw n triplets in every epoch until the gap is small enough.

    Parameters
    ----------
    tuples : triplets
    lam : strength of the regularisation
    output : "last", or "average" or "random" over the second half of all draws (see `_Suffix`)
    tol : stop when the duality gaps of an epoch's last iterate and of what is kept are at most this; None
        makes all epochs
    """
    n = len(tuples)
    ascent = _Ascent(tuples, lam, block_size, head_bytes)
    # The draws of a seed are the same whatever is kept: other choices have random numbers of their own.
    others = np.random.Generator(rng.bit_generator.jumped())  # type: ignore[attr-defined]
    suffix = _Suffix(output, n, n_epochs if tol is None else None, others)
    goal = -np.inf if tol is None else tol
    history: list[EpochRecord] = []
    for epoch in range(1, n_epochs + 1):
        draws = rng.integers(0, n, n)
        sums = np.zeros(3)
        for half in (draws[: n // 2], draws[n // 2 :]):
            picked = int(rng.integers(len(half))) if len(half) else 0
            suffix.add(len(half), *ascent.run(half, picked if output == "random" else None, sums))
        record = EpochRecord(*ascent.certificate(ascent.alpha, ascent.matrix()), *(sums / n))
        history.append(record)
        if report is not None:
            report(epoch, record)
        may_stop = record.primal - record.dual <= goal + ascent.doubt(record)
        if may_stop or epoch == n_epochs:
            alpha = suffix.read(ascent.alpha)
            matrix, primal, dual = ascent.certified(alpha)
            converged = primal - dual <= goal
            if converged:
                break
    return SDCASolution(matrix, alpha, primal, dual, history, converged)


class _Ascent:
    """Dual variables and their matrix."""

    def __init__(
        self, tuples: Comparisons, lam: float, block_size: int | None, head_bytes: int | None
    ) -> None:
        from .._kernels.rules import PLAIN, Rule

        self._tuples, self._lam = tuples, lam
        self._scale = 1.0 / (lam * len(tuples))
        self.alpha = np.zeros(len(tuples))
        # In the order of their anchors, a few at a time: the certificate multiplies an anchor with M once.
        by_anchor = tuples.index[np.argsort(tuples.index[:, 0], kind="stable")]
        self._parts = [
            (by_anchor[part], *np.unique(by_anchor[part, 0], return_inverse=True))
            for part in (slice(i, i + _PART) for i in range(0, len(by_anchor), _PART))
        ]
        shape = (tuples.left.shape[1], tuples.right.shape[1])
        start = first_matrix("zeros", shape, tuples.left.dtype, tuples.is_sparse)
        self._engine: Any = entrywise_engine(Rule(PLAIN), None, start, tuples, head_bytes)
        self._block = block_size or default_block_size(max(shape))

    def matrix(self) -> Any:
        return self._engine.matrix()

    def run(
        self, draws: np.ndarray, picked: int | None, sums: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Make these draws; return the sum of alpha before each, and alpha before draw `picked`."""
        from .._kernels.dual import Dual

        n = len(self._tuples)
        dual = Dual(self.alpha, np.zeros(n), np.zeros(n, np.int64))
        self._draw(draws[: picked or 0], 0, dual, sums)
        sample = None if picked is None else self.alpha.copy()
        self._draw(draws[picked or 0 :], picked or 0, dual, sums)
        return dual.total + dual.alpha * (len(draws) - dual.since), sample

    def _draw(self, draws: np.ndarray, first_draw: int, dual: Any, sums: np.ndarray) -> None:
        from .._kernels.blocked import Blas
        from .._kernels.dual import ascend_block, ascend_singly
        from .._kernels.entrywise import DIVERGED, DONE

        if len(draws) == 0:
            return
        engine = self._engine
        if isinstance(engine, DenseEngine) and self._block > 1:
            ops, m = Blas(engine.dtype), engine.arrays.u

            def learn(begin: int, end: int) -> tuple[int, int]:
                made = ascend_block(
                    ops,
                    m,
                    self._tuples.rows_of,
                    draws[begin:end],
                    first_draw + begin,
                    dual,
                    self._scale,
                    sums,
                )
                return (DONE if begin + made == end else DIVERGED), begin + made

            engine._drive(learn, len(draws), self._block)
            return
        drawn = replace(self._tuples, index=self._tuples.index[draws])

        def learn_singly(
            first: int, begin: int, end: int, readers: Any, named: Any, scratch: Any
        ) -> tuple[int, int]:
            return ascend_singly(
                engine.arrays,
                engine.rule,
                *readers,
                named,
                draws[first : first + end],
                begin,
                first_draw + first,
                dual,
                self._scale,
                scratch,
                sums,
            )

        if isinstance(engine, DenseEngine):
            engine.drive_gathered(lambda first, n, *rows: learn_singly(first, 0, n, *rows), drawn)
        else:
            *rows, chunk = engine.open(drawn)
            engine._drive(
                lambda begin, end: learn_singly(0, begin, end, *rows),
                len(draws),
                chunk,
            )

    def combine(self, alpha: np.ndarray) -> Any:
        """M = (1 / (lam n)) sum_i alpha_i x_i z_i' in float64, dense or CSR as the items are.

        Triplets of one anchor are added up first: M = L' (A R) with the items' rows L and R, where a triplet
        (a, p, n) adds its weight to A[a, p] and takes it from A[a, n].
        """
        used = np.flatnonzero(alpha)
        weights, index = alpha[used] * self._scale, self._tuples.index[used]
        anchors, place = np.unique(index[:, 0], return_inverse=True)
        others, columns = np.unique(index[:, 1:], return_inverse=True)
        sums = sp.csr_matrix(
            (
                np.concatenate([weights, -weights]),
                (np.tile(place, 2), columns.reshape(-1, 2).T.ravel()),
            ),
            shape=(len(anchors), len(others)),
        )
        left, right = self._tuples.left, self._tuples.right.rows(others).astype(np.float64)
        if self._tuples.is_sparse:
            return left.rows(anchors).T @ (sums @ right)
        total = np.zeros((left.shape[1], right.shape[1]))
        for part in chunks(len(anchors), 8 * (left.shape[1] + right.shape[1])):
            total += left.rows(anchors[part]).astype(np.float64).T @ (sums[part] @ right)
        return total

    def certified(self, alpha: np.ndarray) -> tuple[Any, float, float]:
        """M of these dual variables in the engine's precision, its primal value and their dual value.

        The matrix that single precision keeps drifts away from its dual variables: the dual value is that of
        the matrix in double precision, worked out anew, and so is the primal value's arithmetic.
        """
        dtype = self._engine.dtype
        if alpha is self.alpha and dtype == np.float64:
            exact = matrix = self.matrix()
        else:
            exact = self.combine(alpha)
            if not isinstance(self._engine, DenseEngine):
                matrix = sp.csr_matrix(exact, dtype=dtype)
            else:
                exact = exact.toarray() if sp.issparse(exact) else exact
                matrix = np.ascontiguousarray(exact, dtype)
        return matrix, *self.certificate(alpha, matrix.astype(np.float64, copy=False), exact)

    def doubt(self, record: EpochRecord) -> float:
        """How far off the gap of an epoch may be, for want of digits of the matrix that is kept."""
        return 1e-5 * record.primal if self._engine.dtype == np.float32 else 0.0

    def certificate(
        self, alpha: np.ndarray, matrix: Any, of_alpha: Any = None
    ) -> tuple[float, float]:
        """Primal value of the matrix, and dual value of the dual variables.

        `of_alpha` is the matrix of the dual variables, if `matrix` is not.
        """
        n = len(self._tuples)
        squared = sum(self._squared_hinges(*part, matrix) for part in self._parts)
        penalty = self._penalty(matrix)
        dual_penalty = penalty if of_alpha is None else self._penalty(of_alpha)
        return squared / n + penalty, float(np.mean(alpha - np.square(alpha) / 4)) - dual_penalty

    def _penalty(self, matrix: Any) -> float:
        values = matrix.data if sp.issparse(matrix) else matrix
        return 0.5 * self._lam * float(np.square(values, dtype=np.float64).sum())

    def _squared_hinges(
        self, index: np.ndarray, anchors: np.ndarray, place: np.ndarray, matrix: Any
    ) -> float:
        """Sum of the squared hinge losses of triplets with anchors ``anchors[place]``."""
        left, right = self._tuples.left, self._tuples.right
        products = left.rows(anchors) @ matrix
        if not self._tuples.is_sparse:
            from .._kernels.dual import squared_hinges

            return squared_hinges(products, place, right.values, index)
        z = right.rows(index[:, 1]).astype(matrix.dtype) - right.rows(index[:, 2])
        return float(np.square(np.maximum(0.0, 1.0 - row_products(products[place], z))).sum())
