"""OMLLR: a matrix in its singular vectors, with a threshold on the singular values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from .._kernels.entrywise import DIVERGED, DONE
from .._kernels.omllr import Triples, learn_nuclear
from ..data.comparisons import Comparisons
from .base import (
    Engine,
    LowRankEngine,
    State,
    check_array,
    saved_dtype,
    saved_flag,
    saved_number,
    saved_shape,
)

#: Work (products in small problems) between two checks for Ctrl-C, and most triplets.
_PRODUCTS_PER_CALL = 2e9
_TRIPLETS_PER_CALL = 64

#: Singular values of an average below this share of the largest one are rounding, and no dimensions.
_ROUNDING = 1e-12


@cache
def _threads() -> Any:
    """Controller of BLAS threads: in problems this small, more than one only wait for each other."""
    return ThreadpoolController()


class NuclearEngine(LowRankEngine):
    """W = sum_i value_i left_i right_i' in float64, optionally with its average.

    A triplet costs O(d rank), one that is violated O(d rank^2 + rank^3). The average takes a full matrix
    more, and O(d^2) whenever a singular value becomes zero.

    Parameters
    ----------
    value, left, right : arrays (r,), (r, d), (r, d')
        First singular values, largest first and positive, and vectors (as rows).
    symmetric : bool
        Whether W stays symmetric positive semi-definite: `right` is not used.
    averages : bool
        Whether to keep the sum of eta_t W_t.
    dtype : precision of the items, and of the matrix that is read
    """

    kind = "nuclear"
    learns_blocks = False

    def __init__(
        self,
        value: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        *,
        symmetric: bool,
        averages: bool,
        dtype: Any,
    ) -> None:
        super().__init__()
        r = len(value)
        self.value = np.array(value, np.float64)
        self.left = np.array(left, np.float64, order="C")
        self._shape = (left.shape[1], right.shape[1])
        self.right = np.array(right[: 0 if symmetric else r], np.float64, order="C")
        self.mixed = np.zeros((r, r) if averages else (0, 0))
        self.total = np.zeros(self._shape if averages else (0, 0))
        #: Sum of eta_t.
        self.weight = np.zeros(1)
        self.symmetric = symmetric
        self._dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def averages(self) -> bool:
        """Whether the average is read."""
        return self.total.size > 0

    @property
    def rank(self) -> int:
        """Number of singular values of the last W."""
        return len(self.value)

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        most = min(min(self._shape), self.rank + 2 * _TRIPLETS_PER_CALL)
        chunk = int(np.clip(_PRODUCTS_PER_CALL / (20.0 * most**3), 1, _TRIPLETS_PER_CALL))

        def learn(begin: int, end: int) -> tuple[int, int]:
            x, z = (v.astype(np.float64, copy=False) for v in tuples.rows(begin, end))
            triples = self._with_room(2 * len(x))
            with _threads().limit(limits=1):
                learnt, rank = learn_nuclear(
                    step, triples, self.rank, self.weight, x, z, self.clock
                )
            self._take(triples, rank)
            return (DONE if learnt == len(x) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), chunk)

    def _with_room(self, n: int) -> Any:
        """Arrays for the kernel, with room for n more vectors (there are never more than features)."""
        r, (d, others) = self.rank, self._shape
        capacity = min(max(self._shape), r + n) + 2
        triples = Triples(
            value=np.empty(capacity),
            left=np.empty((capacity, d)),
            right=np.empty((0 if self.symmetric else capacity, others)),
            mixed=np.zeros((capacity, capacity) if self.averages else (0, 0)),
            total=self.total,
        )
        triples.value[:r] = self.value
        triples.left[:r] = self.left
        if not self.symmetric:
            triples.right[:r] = self.right
        if self.averages:
            triples.mixed[:r, :r] = self.mixed
        return triples

    def _take(self, triples: Any, rank: int) -> None:
        self.value, self.left = triples.value[:rank].copy(), triples.left[:rank].copy()
        self.right = triples.right[: 0 if self.symmetric else rank].copy()
        if self.averages:
            self.mixed = triples.mixed[:rank, :rank].copy()

    def sides(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values, and vectors (rows) on the left and on the right, of the last W."""
        return self.value, self.left, self.left if self.symmetric else self.right

    def last(self) -> np.ndarray:
        """The last W, in float64."""
        value, left, right = self.sides()
        return (left.T * value) @ right

    def read(self) -> np.ndarray:
        """The last W, or the average, in float64."""
        if not self.averages or self.weight[0] == 0:
            return self.last()
        _, left, right = self.sides()
        return (self.total + left.T @ self.mixed @ right) / self.weight[0]

    def full(self) -> np.ndarray | None:
        return self.read() if self.averages else None

    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if full is None:
            value, left, right = self.sides()
        else:
            u, value, right = np.linalg.svd(full, full_matrices=False)
            kept = value > _ROUNDING * value.max(initial=0.0)
            value, left, right = value[kept], u.T[kept], right[kept]
        roots = np.sqrt(value)
        return left.T * roots, right.T * roots

    def singular_values(self) -> np.ndarray | None:
        return None if self.averages else self.value

    def matrix(self) -> np.ndarray:
        return self.read().astype(self.dtype)

    def state(self) -> State:
        names = ("clock", "value", "left", "right", "mixed", "total")
        scalars = {
            "symmetric": self.symmetric,
            "shape": list(self._shape),
            "weight": float(self.weight[0]),
            "dtype": str(self.dtype),
        }
        return scalars, {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> NuclearEngine:
        symmetric, (d, others) = saved_flag(scalars, "symmetric"), saved_shape(scalars)
        value, left, right = arrays["value"], arrays["left"], arrays["right"]
        check_array("left", left, np.float64, (None, d))
        r = len(left)
        check_array("value", value, np.float64, (r,))
        check_array("right", right, np.float64, (0 if symmetric else r, others))
        if r > min(d, others) or not ((value > 0) & np.isfinite(value)).all():
            raise ValueError("value: expected at most one positive singular value per feature")
        for name, vectors in (("left", left), ("right", right)):
            if not np.allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-8):
                raise ValueError(f"{name}: expected orthonormal rows")
        averages = arrays["total"].size > 0
        check_array("total", arrays["total"], np.float64, (d, others) if averages else (0, 0))
        check_array("mixed", arrays["mixed"], np.float64, (r, r) if averages else (0, 0))
        self = cls.__new__(cls)
        Engine.__init__(self, arrays["clock"])
        self.value, self.left, self.right = value, left, right
        self.mixed, self.total = arrays["mixed"], arrays["total"]
        self.weight = np.array([saved_number(scalars, "weight")], np.float64)
        self.symmetric, self._shape, self._dtype = symmetric, (d, others), saved_dtype(scalars)
        return self
