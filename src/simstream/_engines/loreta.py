"""Loreta: two factors of a fixed rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.loreta import Factors, learn_retracted
from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, LowRankEngine, State, check_array, saved_dtype


class RetractionEngine(LowRankEngine):
    """W = A B' in float64, and the inverses of A'A and B'B; O((d + d') k) for a triplet.

    Parameters
    ----------
    a, b : arrays (d, k) and (d', k) of full column rank
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "retraction"
    learns_blocks = False

    def __init__(self, a: np.ndarray, b: np.ndarray, dtype: Any) -> None:
        super().__init__()
        a, b = (np.array(m, np.float64, order="C") for m in (a, b))
        self.pair = Factors(a, b, _inverse(a), _inverse(b))
        self._dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.pair.a), len(self.pair.b)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        k = self.pair.a.shape[1]
        work = np.empty((8, k))
        # Rows are read as full vectors: not too many at a time.
        chunk = int(np.clip(ENTRIES_PER_CALL / (4 * sum(self.shape) * k), 1, 256))

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            status, learnt = learn_retracted(step, self.pair, work, x, z, 0, len(x), self.clock)
            return status, begin + learnt

        self._drive(learn, len(tuples), chunk)

    def _rebase(self) -> None:
        """Compute the inverses afresh."""
        a, b, inverse_a, inverse_b = self.pair
        inverse_a[...], inverse_b[...] = _inverse(a), _inverse(b)

    def full(self) -> None:
        return None

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return self.pair.a.copy(), self.pair.b.copy()

    def matrix(self) -> np.ndarray:
        return (self.pair.a @ self.pair.b.T).astype(self.dtype)

    def state(self) -> State:
        return {"dtype": str(self.dtype)}, {"clock": self.clock, **self.pair._asdict()}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> RetractionEngine:
        self = cls.__new__(cls)
        Engine.__init__(self, arrays["clock"])
        self.pair = Factors(*(arrays[name] for name in Factors._fields))
        check_array("a", self.pair.a, np.float64, (None, None))
        k = self.pair.a.shape[1]
        check_array("b", self.pair.b, np.float64, (None, k))
        for name in ("inverse_a", "inverse_b"):
            check_array(name, arrays[name], np.float64, (k, k))
        self._dtype = saved_dtype(scalars)
        return self


def _inverse(factor: np.ndarray) -> np.ndarray:
    """The inverse of factor' factor, symmetric and C-contiguous."""
    inverse = np.linalg.inv(factor.T @ factor)
    return np.ascontiguousarray((inverse + inverse.T) / 2)
