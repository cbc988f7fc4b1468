"""AROMA with a factored covariance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.comparisons import Comparisons
from .base import Engine, check_array, check_floats


class FactoredEngine(Engine):
    """AROMA with covariance Lambda (x) Omega: full arrays, exact blocks (of one for sparse items)."""

    kind = "factored"

    def __init__(self, rule: Any, average_from: int | None, start: np.ndarray) -> None:
        super().__init__(rule, average_from)
        has_acc = average_from is not None
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

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from .._kernels.blocked import Blas, learn_factored_block, learn_factored_singly
        from .._kernels.entrywise import DIVERGED, DONE

        singly = block_size == 1 or tuples.is_sparse
        ops = Blas(self.dtype)
        arrays = self.u, self.acc, self.covariance_x, self.covariance_z

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = tuples.rows(begin, end)
            if singly:
                learnt = learn_factored_singly(step, *arrays, x, z, self.clock)
            else:
                learnt = learn_factored_block(ops, step, *arrays, x, z, self.clock)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), 256 if singly else block_size, None, None)

    def matrix(self) -> np.ndarray:
        return self._decode(self.u, None, self.acc, None)

    def state(self) -> dict[str, np.ndarray]:
        names = ("clock", "u", "acc", "covariance_x", "covariance_z")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> FactoredEngine:
        self = cls.__new__(cls)
        Engine.__init__(self, rule, average_from, arrays["clock"])
        self.u, self.acc = arrays["u"], arrays["acc"]
        self.covariance_x, self.covariance_z = arrays["covariance_x"], arrays["covariance_z"]
        dtype = check_floats("u", self.u)
        check_array("u", self.u, dtype, (None, None))
        rows, columns = self.u.shape
        check_array("acc", self.acc, dtype, (rows, columns if average_from is not None else 0))
        check_array("covariance_x", self.covariance_x, dtype, (rows, rows))
        check_array("covariance_z", self.covariance_z, dtype, (columns, columns))
        return self
