"""One tuple of vectors at a time, as a stream brings them: checks and calls would take longer than the step.

A `Single` has buffers for the vectors of one tuple, and an engine's compiled step with all of its arguments
bound to them. It only takes vectors that need no conversion; all others go the general way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from .._kernels.entrywise import DONE, NEEDS_SPACE, Pairs, SparseRows, Triplets

if TYPE_CHECKING:
    from .base import Engine

#: Types of numbers (as `dtype.char`) that become numbers of the engine without rounding or overflow.
_EXACT = {"f": "f", "d": "dfl"}


class Single(ABC):
    """Learns from single tuples that need no conversion.

    Parameters
    ----------
    engine : the engine that learns
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chars = _EXACT[engine.dtype.char]
        #: On which side of the threshold x'Mz belongs.
        self.sign = np.ones(1)

    def learn(self, vectors: Sequence[Any], sign: float, *more: Any) -> bool:
        """Learn from a tuple; False, and nothing is changed, if it must go the general way.

        `more` goes to the step. The step is one call, so that Ctrl-C finds everything before or after it.
        """
        engine = self._engine
        with engine.turn:
            if not self._read(vectors):
                return False
            self.sign[0] = sign
            status = self._step(*more)
            while status == NEEDS_SPACE:
                engine.attend(status)
                status = self._step(*more)
        if status != DONE:
            engine.attend(status)
        return True

    @abstractmethod
    def _read(self, vectors: Sequence[Any]) -> bool:
        """Copy the vectors to the buffers; False if one has another type or size, or is not finite."""

    @abstractmethod
    def _step(self, *more: Any) -> int:
        """Learn from what is in the buffers; return what happened."""


class DenseSingle(Single):
    """For arrays: the rows x and z of a tuple, each an array with one row.

    Parameters
    ----------
    engine : the engine that learns
    size : 3 for triplets, 2 for pairs, whose difference is both x and z
    bind : function of (x, z, sign) that returns the step on these arrays, a function that says what happened
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        bind: Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[..., int]],
    ) -> None:
        super().__init__(engine)
        left, right = engine.shape
        self._all = np.zeros(left + (size - 1) * right, engine.dtype)
        self._rows = np.split(self._all, [left, left + right][: size - 1])
        self._z = np.zeros((1, right), engine.dtype)
        x = self._rows[0][None] if size == 3 else self._z
        self._run = bind(x, self._z, self.sign)

    def _read(self, vectors: Sequence[Any]) -> bool:
        for row, vector in zip(self._rows, vectors, strict=True):
            if (
                type(vector) is not np.ndarray
                or vector.dtype.char not in self._chars
                or vector.shape != row.shape
            ):
                return False
            row[...] = vector
        # Not finite where one of them is not, or where squares overflow: the general way tells which.
        if not math.isfinite(self._all.dot(self._all)):
            return False
        np.subtract(self._rows[-2], self._rows[-1], out=self._z[0])
        return True

    def _step(self, *more: Any) -> int:
        return self._run(*more)


class SparseSingle(Single):
    """For CSR matrices of one row in canonical format.

    Parameters
    ----------
    engine : the engine that learns
    size : 3 for triplets, 2 for pairs
    ranks : numbers of the features of anchors and of other items; None if they keep theirs
    run : function of (readers, tuples, scratch) that learns from one tuple and says what happened
    new_scratch : function of (longest x, longest z) that returns work space
    """

    def __init__(
        self,
        engine: Any,
        size: int,
        ranks: tuple[np.ndarray, np.ndarray] | None,
        run: Callable[..., int],
        new_scratch: Callable[[int, int], Any],
    ) -> None:
        super().__init__(engine)
        left, right = engine.shape
        self._shapes = [(1, left), *[(1, right)] * (size - 1)]
        self._run, self._new_scratch = run, new_scratch
        self._ranks = ranks or (None, None)
        index = np.array([[0, 0, 1] if size == 3 else [0, 0]])
        self._tuples = (Triplets if size == 3 else Pairs)(index, self.sign)
        self._room = 0

    def _make_room(self, n: int) -> None:
        """Buffers for vectors of n numbers each."""
        self._room = n = 2 * n
        # One reader of the anchor, one of the others: those lie one after the other.
        self._readers = [
            SparseRows(
                np.zeros(rows + 1, np.int64),
                np.zeros(rows * n, np.int32),
                np.zeros(rows * n, self._engine.dtype),
            )
            for rows in (1, len(self._shapes) - 1)
        ]
        self._scratch = self._new_scratch(2 * n, 2 * n)

    def _read(self, vectors: Sequence[Any]) -> bool:
        longest = 0
        for shape, vector in zip(self._shapes, vectors, strict=True):
            if (
                not sp.issparse(vector)
                or vector.format != "csr"
                or vector.shape != shape
                or vector.dtype.char not in self._chars
                or not vector.has_canonical_format
            ):
                return False
            longest = max(longest, len(vector.data))
        if longest > self._room:
            self._make_room(longest)
        self._fill(self._readers[0], self._ranks[0], vectors[:1])
        self._fill(self._readers[1], self._ranks[1], vectors[1:])
        return all(
            math.isfinite(values.dot(values))
            for values in (rows.values[: rows.indptr[-1]] for rows in self._readers)
        )

    @staticmethod
    def _fill(rows: SparseRows, rank: np.ndarray | None, vectors: Sequence[Any]) -> None:
        begin = 0
        for number, vector in enumerate(vectors, 1):
            end = begin + len(vector.data)
            columns, values = vector.indices, vector.data
            if rank is not None:
                columns = rank[columns]
                order = columns.argsort()
                columns, values = columns[order], values[order]
            rows.indices[begin:end] = columns
            rows.values[begin:end] = values
            rows.indptr[number] = begin = end

    def _step(self, *more: Any) -> int:
        return self._run(self._readers, self._tuples, self._scratch)
