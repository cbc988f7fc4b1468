"""The identity matrix: nothing is learnt, but rounds are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .base import Engine, check_array, check_floats


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
        super().__init__(None, None)
        self._shape, self._dtype, self.is_sparse = shape, np.dtype(dtype), is_sparse

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def count(self, margins: np.ndarray) -> None:
        from .._kernels.steps import LOSS, MISTAKES, ROUNDS, VIOLATIONS

        self.clock[ROUNDS] += len(margins)
        self.clock[LOSS] += np.maximum(0.0, 1.0 - margins).sum()
        self.clock[MISTAKES] += (margins <= 0).sum()
        self.clock[VIOLATIONS] += (margins < 1).sum()

    def matrix(self) -> Any:
        if self.is_sparse:
            return sp.identity(self.shape[0], self.dtype, "csr")
        return np.eye(self.shape[0], dtype=self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        one = np.ones(1, self.dtype)
        return {"clock": self.clock, "shape": np.array([*self.shape, self.is_sparse]), "one": one}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> IdentityEngine:
        check_array("shape", arrays["shape"], np.int64, (3,))
        rows, columns, is_sparse = (int(n) for n in arrays["shape"])
        self = cls((rows, columns), check_floats("one", arrays["one"]), bool(is_sparse))
        Engine.__init__(self, None, None, arrays["clock"])
        return self
