"""Loreta: two factors of a fixed rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats


class RetractionEngine(Engine):
    """W = A B' in float64, and the inverses of A'A and B'B; O((d + d') k) for a triplet.

    Parameters
    ----------
    a, b : arrays (d, k) and (d', k) of full column rank
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "retraction"
    learns_blocks = False

    def __init__(self, a: np.ndarray, b: np.ndarray, dtype: Any) -> None:
        from .._kernels.loreta import Factors

        super().__init__(None, None)
        a, b = (np.array(m, np.float64, order="C") for m in (a, b))
        self.factors = Factors(a, b, _inverse(a), _inverse(b))
        self._dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.factors.a), len(self.factors.b)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.loreta import learn_retracted

        k = self.factors.a.shape[1]
        work = np.empty((8, k))
        # Rows are read as full vectors: not too many at a time.
        chunk = int(np.clip(ENTRIES_PER_CALL / (4 * sum(self.shape) * k), 1, 256))

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            status, learnt = learn_retracted(step, self.factors, work, x, z, 0, len(x), self.clock)
            return status, begin + learnt

        self._drive(learn, len(tuples), chunk, None, self._refresh)

    def _refresh(self, rule: Any, shift: float) -> None:
        """Work the inverses out anew."""
        a, b, inverse_a, inverse_b = self.factors
        inverse_a[...], inverse_b[...] = _inverse(a), _inverse(b)

    def matrix(self) -> np.ndarray:
        return (self.factors.a @ self.factors.b.T).astype(self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        one = np.ones(1, self.dtype)
        return {"clock": self.clock, "one": one, **self.factors._asdict()}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> RetractionEngine:
        from .._kernels.loreta import Factors

        self = cls.__new__(cls)
        Engine.__init__(self, None, None, arrays["clock"])
        self.factors = Factors(*(arrays[name] for name in Factors._fields))
        check_array("a", self.factors.a, np.float64, (None, None))
        k = self.factors.a.shape[1]
        check_array("b", self.factors.b, np.float64, (None, k))
        for name in ("inverse_a", "inverse_b"):
            check_array(name, arrays[name], np.float64, (k, k))
        self._dtype = check_floats("one", arrays["one"])
        check_array("one", arrays["one"], self._dtype, (1,))
        return self


def _inverse(factor: np.ndarray) -> np.ndarray:
    """The inverse of factor' factor, symmetric and C-contiguous."""
    inverse = np.linalg.inv(factor.T @ factor)
    return np.ascontiguousarray((inverse + inverse.T) / 2)
