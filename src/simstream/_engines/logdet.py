"""A positive definite matrix whose inverse grows by rank-one steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, check_array, check_floats


class LogDetStep(NamedTuple):
    """Step size, and whether to move where a distance is on the right side of its target already."""

    eta: float
    always: bool


class LogDetEngine(Engine):
    """A positive definite matrix A in float64; with a companion C = A (I - A)^{-1} it is that of online ITML.

    Parameters
    ----------
    matrices : arrays of shape (d, d): A, or A and C
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
        self.learns_blocks = len(self.matrices) == 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrices[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.entrywise import DIVERGED, DONE

        kernel, chunk = self._kernel(block_size)
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            v, _ = tuples.rows(begin, end)
            z = v.astype(np.float64) * self.scale
            learnt = kernel(*step, *self.matrices, z, sign[begin:end], self.targets, self.clock)
            return (DONE if learnt == len(z) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), chunk, None, None)

    def _kernel(self, block_size: int) -> tuple[Callable[..., int], int]:
        """What learns from a few rows, and how many at a time."""
        from functools import partial

        from .._kernels import logdet
        from .._kernels.blocked import Blas

        few = min(4096, max(1, int(ENTRIES_PER_CALL / self.matrices[0].size)))
        if not self.learns_blocks:
            return logdet.online_itml_singly, few
        if block_size == 1:
            return logdet.lego_singly, few
        return partial(logdet.lego_block, Blas(np.dtype(np.float64))), block_size

    def matrix(self) -> np.ndarray:
        return self.exact_matrix().astype(self.dtype)

    def exact_matrix(self) -> np.ndarray:
        """The matrix in float64; v'Mv is in the items' own units, as targets / scale^2 are."""
        a = self.matrices[0]
        return (a + a.T) * 0.5

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
        for matrix in a:
            if not np.isfinite(matrix).all() or np.linalg.eigvalsh(matrix)[0] <= 0:
                raise ValueError("a: expected positive definite matrices")
        lower, upper, scale = numbers
        if not (0 < lower < upper < np.inf and 0 < scale < np.inf):
            raise ValueError(f"numbers: expected 0 < lower < upper and a scale, got {numbers}")
        self = cls(list(a), numbers[:2], scale, check_floats("one", arrays["one"]))
        Engine.__init__(self, None, None, arrays["clock"])
        return self
