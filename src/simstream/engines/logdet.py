"""A positive definite matrix whose inverse grows by rank-one steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats


class LogDetEngine(Engine):
    """A positive definite matrix, in float64, and a second one that takes the same steps if need be.

    Parameters
    ----------
    rule : a rule of `kernels.logdet`
    matrices : arrays of shape (d, d): A, or A and A (I - A)^{-1}
    targets : array of two numbers
        Squared distances that similar pairs should not exceed, and that dissimilar pairs should reach, in
        the scale of the matrices.
    scale : float
        Items are multiplied by it before they are learnt from.
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "logdet"

    def __init__(
        self, matrices: list[np.ndarray], targets: np.ndarray, scale: float, dtype: Any
    ) -> None:
        super().__init__(None, None)
        self.matrices = tuple(np.array(m, np.float64, order="C") for m in matrices)
        self.targets = np.array(targets, np.float64)
        self.scale = float(scale)
        self._dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrices[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from ..kernels.blocked import Blas
        from ..kernels.entrywise import DIVERGED, DONE
        from ..kernels.logdet import learn_logdet_block, learn_logdet_singly

        ops = Blas(np.dtype(np.float64))
        sign, singly = tuples.sign, block_size == 1

        def learn(begin: int, end: int) -> tuple[int, int]:
            v, _ = tuples.rows(begin, end)
            z = v.astype(np.float64) * self.scale
            given = step, self.matrices, z, sign[begin:end], self.targets, self.clock
            learnt, worn = (
                learn_logdet_singly(*given) if singly else learn_logdet_block(ops, *given)
            )
            if worn:
                a, c = self.matrices
                c[...] = np.linalg.solve(np.eye(len(a)) - a, a)
            return (DONE if learnt == len(z) or worn else DIVERGED), begin + learnt

        few = max(1, int(ENTRIES_PER_CALL / self.matrices[0].size))
        self._drive(learn, len(tuples), min(few, 4096) if singly else block_size, None, None)

    def matrix(self) -> np.ndarray:
        a = self.matrices[0]
        return ((a + a.T) * (0.5 * self.scale**2)).astype(self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        numbers = np.array([*self.targets, self.scale])
        one = np.ones(1, self.dtype)
        return {"clock": self.clock, "a": np.stack(self.matrices), "numbers": numbers, "one": one}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> LogDetEngine:
        a, numbers = arrays["a"], arrays["numbers"]
        check_array("a", a, np.float64, (None, None, None))
        check_array("a", a, np.float64, (len(a), a.shape[1], a.shape[1]))
        check_array("numbers", numbers, np.float64, (3,))
        self = cls(list(a), numbers[:2], numbers[2], check_floats("one", arrays["one"]))
        Engine.__init__(self, None, None, arrays["clock"])
        return self
