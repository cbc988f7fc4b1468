"""A positive definite matrix whose inverse grows by rank-one steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._kernels import logdet
from .._kernels.blocked import Blas
from .._kernels.entrywise import DIVERGED, DONE
from ..data.comparisons import Comparisons
from .base import ENTRIES_PER_CALL, Engine, State, aligned_zeros, check_array, saved_dtype


class LogDetStep(NamedTuple):
    """Step size, and whether to update pairs whose distance already meets its target."""

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
        super().__init__()
        self.matrices = tuple(aligned_zeros(m.shape, np.float64) for m in matrices)
        for kept, given in zip(self.matrices, matrices, strict=True):
            kept[...] = given
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
        kernel, chunk = self._kernel(block_size)
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            v, _ = tuples.rows(begin, end)
            z = v.astype(np.float64) * self.scale
            learnt = kernel(*step, *self.matrices, z, sign[begin:end], self.targets, self.clock)
            return (DONE if learnt == len(z) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), chunk)

    def _kernel(self, block_size: int) -> tuple[Callable[..., int], int]:
        """The kernel, and how many rows it takes at a time."""
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

    def threshold(self) -> float:
        """The middle of the two targets, in the items' own units."""
        return float(self.targets.mean() / self.scale**2)

    def state(self) -> State:
        lower, upper = self.targets.tolist()
        scalars = {"lower": lower, "upper": upper, "scale": self.scale, "dtype": str(self.dtype)}
        return scalars, {"clock": self.clock, "a": np.stack(self.matrices)}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> LogDetEngine:
        a = arrays["a"]
        check_array("a", a, np.float64, (None, None, None))
        check_array("a", a, np.float64, (len(a), a.shape[1], a.shape[1]))
        for matrix in a:
            if not np.isfinite(matrix).all() or np.linalg.eigvalsh(matrix)[0] <= 0:
                raise ValueError("a: expected positive definite matrices")
        lower, upper, scale = (scalars[name] for name in ("lower", "upper", "scale"))
        if not (0 < lower < upper < np.inf and 0 < scale < np.inf):
            raise ValueError(
                "lower, upper, scale: expected 0 < lower < upper and 0 < scale, got "
                f"{lower}, {upper}, {scale}"
            )
        self = cls(list(a), np.array([lower, upper]), scale, saved_dtype(scalars))
        Engine.__init__(self, arrays["clock"])
        return self
