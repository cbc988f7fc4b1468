"""SDCA: epochs of draws from a fixed set of triplets, with a duality gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..comparisons import Comparisons
from ..engines import DenseEngine, default_block_size, entrywise_engine, first_matrix
from ..similarity import chunks, row_products

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


class _Segment(NamedTuple):
    """Half an epoch: its begin and length, the mean of alpha over it, and one random alpha of it."""

    begin: int
    length: int
    mean: np.ndarray
    sample: np.ndarray


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
    output : "last", or "average" or "random" over the iterates of the second half of all draws
    tol : stop when the duality gap of an epoch's last iterate is at most this; None makes all epochs
    """
    n = len(tuples)
    ascent = _Ascent(tuples, lam, block_size, head_bytes)
    history: list[EpochRecord] = []
    segments: list[_Segment] = []
    drawn = 0
    converged = False
    for epoch in range(1, n_epochs + 1):
        draws = rng.integers(0, n, n)
        sums = np.zeros(3)
        for half in (draws[: n // 2], draws[n // 2 :]):
            if len(half):
                picked = int(rng.integers(len(half)))
                before = picked if output == "random" else 0
                segments.append(ascent.run(half, drawn, before, sums))
                drawn += len(half)
        segments = [s for s in segments if s.begin >= drawn // 2]
        record = EpochRecord(*ascent.certificate(ascent.alpha, ascent.matrix()), *(sums / n))
        history.append(record)
        if report is not None:
            report(epoch, record)
        if tol is not None and record.primal - record.dual <= tol:
            converged = True
            break
    alpha = ascent.alpha
    matrix = ascent.matrix()
    primal, dual = history[-1].primal, history[-1].dual
    if output != "last":
        weights = np.array([s.length for s in segments], np.float64)
        if output == "average":
            alpha = np.average([s.mean for s in segments], axis=0, weights=weights)
        else:
            alpha = segments[rng.choice(len(segments), p=weights / weights.sum())].sample
        matrix = ascent.combine(alpha)
        primal, dual = ascent.certificate(alpha, matrix)
    return SDCASolution(matrix, alpha, primal, dual, history, converged)


class _Ascent:
    """Dual variables and their matrix."""

    def __init__(
        self, tuples: Comparisons, lam: float, block_size: int | None, head_bytes: int | None
    ) -> None:
        from ..kernels.rules import Plain

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
        self._engine: Any = entrywise_engine(Plain(), None, start, tuples, False, head_bytes)
        self._block = block_size or default_block_size(max(shape))

    def matrix(self) -> Any:
        return self._engine.matrix()

    def run(self, draws: np.ndarray, begin: int, picked: int, sums: np.ndarray) -> _Segment:
        """Make these draws; `picked` is the draw before which the sample is taken."""
        from ..kernels.dual import Dual

        n = len(self._tuples)
        dual = Dual(self.alpha, np.zeros(n), np.zeros(n, np.int64))
        self._draw(draws[:picked], 0, dual, sums)
        sample = self.alpha.copy()
        self._draw(draws[picked:], picked, dual, sums)
        total = dual.total + dual.alpha * (len(draws) - dual.since)
        return _Segment(begin, len(draws), total / len(draws), sample)

    def _draw(self, draws: np.ndarray, first_draw: int, dual: Any, sums: np.ndarray) -> None:
        from ..kernels.blocked import Blas
        from ..kernels.dual import ascend_block, ascend_singly
        from ..kernels.entrywise import DIVERGED, DONE

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

            engine._drive(learn, len(draws), self._block, None, None)
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
                engine.make_space,
                None,
            )

    def combine(self, alpha: np.ndarray) -> Any:
        """M = (1 / (lam n)) sum_i alpha_i x_i z_i'."""
        used = np.flatnonzero(alpha)
        total: Any = None
        for part in chunks(len(used), 16 * self._tuples.left.shape[1]):
            index = self._tuples.index[used[part]]
            x = self._tuples.left.rows(index[:, 0])
            z = self._tuples.right.rows(index[:, 1]) - self._tuples.right.rows(index[:, 2])
            weights = alpha[used[part]] * self._scale
            scaled = sp.diags_array(weights) @ x if sp.issparse(x) else weights[:, None] * x
            product = scaled.T @ z
            total = product if total is None else total + product
        matrix = self._engine.matrix() * 0 if total is None else total
        dtype = self._engine.dtype
        if sp.issparse(self._engine.matrix()):
            return sp.csr_matrix(matrix, dtype=dtype)
        return np.ascontiguousarray(matrix.toarray() if sp.issparse(matrix) else matrix, dtype)

    def certificate(self, alpha: np.ndarray, matrix: Any) -> tuple[float, float]:
        """Primal value of the matrix, and dual value of the dual variables."""
        n = len(self._tuples)
        squared = sum(self._squared_hinges(*part, matrix) for part in self._parts)
        values = matrix.data if sp.issparse(matrix) else matrix
        penalty = 0.5 * self._lam * float(np.square(values, dtype=np.float64).sum())
        primal = squared / n + penalty
        return primal, float(np.mean(alpha - np.square(alpha) / 4)) - penalty

    def _squared_hinges(
        self, index: np.ndarray, anchors: np.ndarray, place: np.ndarray, matrix: Any
    ) -> float:
        """Sum of the squared hinge losses of triplets with anchors ``anchors[place]``."""
        left, right = self._tuples.left, self._tuples.right
        products = left.rows(anchors) @ matrix
        if not self._tuples.is_sparse:
            from ..kernels.dual import squared_hinges

            return squared_hinges(products, place, right.values, index)
        z = right.rows(index[:, 1]) - right.rows(index[:, 2])
        return float(np.square(np.maximum(0.0, 1.0 - row_products(products[place], z))).sum())
