"""Positive (semi-)definite matrices learnt from pairs: projected after every step, or by LogDet steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._kernels import cone, logdet
from .._kernels.blocked import Blas
from .._kernels.cone import PROJECT, SHORTEN, Eigenpairs, RotationWorkspace, learn_in_the_cone
from .._kernels.dispatch import compiled
from .._kernels.entrywise import DIVERGED, DONE
from .._kernels.steps import THRESHOLD
from ..data.comparisons import Comparisons
from .base import (
    ENTRIES_PER_CALL,
    Engine,
    State,
    aligned_copy,
    check_array,
    saved_array,
    saved_dtype,
    saved_flag,
)
from .single import DenseSingle, Single

#: Pairs between two checks for Ctrl-C.
_PAIRS_PER_CALL = 64

#: Above this share of d, and from this d on, a full matrix is cheaper than its eigenvectors.
_HIGH_RANK = 1 / 3
_SMALLEST_FULL = 32


class SpectralEngine(Engine):
    """A matrix that stays positive semi-definite, in float64.

    It is kept as eigenvalues and eigenvectors, where a step costs O(d rank + rank^2) and one product of
    (rank x rank) with (rank x d), until its rank is above a third of d; then as a full matrix
    (`_kernels.cone`).

    Parameters
    ----------
    values, vectors : arrays (rank,) and (rank, d)
        First eigenvalues, all positive, and eigenvectors (as rows).
    dtype : precision of the items, and of the matrix that is read
    shortens : bool
        Whether a step that would leave the cone is made shorter, instead of projected back. Such a matrix is
        always kept in its eigenvectors.
    threshold : float
        First threshold.
    """

    kind = "spectral"
    learns_blocks = False

    def __init__(
        self,
        values: np.ndarray,
        vectors: np.ndarray,
        dtype: Any,
        *,
        shortens: bool,
        threshold: float,
    ) -> None:
        super().__init__((vectors.shape[1],) * 2, dtype)
        self.values = np.array(values, np.float64)
        self.vectors = np.array(vectors, np.float64, order="C")
        self.full: _Full | None = None
        self.shortens = shortens
        self.clock[THRESHOLD] = threshold

    def _highest_rank(self) -> int:
        """Rank up to which eigenvectors are kept."""
        d = self.shape[0]
        return d + 1 if self.shortens or d < _SMALLEST_FULL else int(_HIGH_RANK * d)

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        sign = tuples.sign
        room = None if self.full is not None else _Room(self.values, self.vectors)

        def learn(begin: int, end: int) -> tuple[int, int]:
            v = tuples.rows(begin, end)[0].astype(np.float64, copy=False)
            if self.full is not None:
                status, learnt = self.full.learn(step, v, sign[begin:end], self.clock)
            else:
                assert room is not None
                status, learnt = self._learn_eigenpairs(step, room, v, sign[begin:end])
            return status, begin + learnt

        self._drive(learn, len(tuples), _PAIRS_PER_CALL)
        self.values, self.vectors = self.values.copy(), self.vectors.copy()  # not views of the room

    def _learn_eigenpairs(
        self, step: Any, room: _Room, v: np.ndarray, sign: np.ndarray
    ) -> tuple[int, int]:
        on_leaving, most = SHORTEN if self.shortens else PROJECT, self._highest_rank()
        room.make_for(len(v))
        learnt, room.rank = learn_in_the_cone(
            step, on_leaving, room.spectrum, room.work, room.rank, most, v, sign, self.clock
        )
        self.values, self.vectors = room.used()
        if room.rank > most:
            self.full = _Full.from_matrix(self._product())
            self.values, self.vectors = self.values[:0], self.vectors[:0]
            return DONE, learnt
        return (DONE if learnt == len(v) else DIVERGED), learnt

    def _product(self) -> np.ndarray:
        return (self.vectors.T * self.values) @ self.vectors

    def eigenpairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Positive eigenvalues and their eigenvectors (rows), in float64."""
        if self.full is None:
            return self.values, self.vectors
        values, vectors = np.linalg.eigh(self.full.symmetric())
        # What is left of a projected eigenvalue is rounding.
        real = values > 1e-13 * max(0.0, values[-1])
        return values[real], vectors.T[real]

    def matrix(self) -> np.ndarray:
        exact = self._product() if self.full is None else self.full.symmetric()
        return exact.astype(self.dtype)

    def state(self) -> State:
        scalars: dict[str, Any] = {"shortens": self.shortens, "dtype": str(self.dtype)}
        arrays = {"clock": self.clock, "values": self.values, "vectors": self.vectors}
        if self.full is not None:
            scalars["cone"] = self.full.numbers.tolist()
            arrays |= {"m": self.full.m, "p": self.full.p}
        return scalars, arrays

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> SpectralEngine:
        vectors = saved_array(arrays, "vectors", (None, None))
        values = saved_array(arrays, "values", (len(vectors),))
        if len(values) > vectors.shape[1] or not ((values > 0) & np.isfinite(values)).all():
            raise ValueError("values: expected at most one positive eigenvalue per feature")
        if not np.allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-8):
            raise ValueError("vectors: expected orthonormal rows")
        shortens = saved_flag(scalars, "shortens")
        self = cls(values, vectors, saved_dtype(scalars), shortens=shortens, threshold=0.0)
        self._restore_clock(arrays)
        if "cone" in scalars:
            self.full = _Full.from_state(scalars, arrays, vectors.shape[1])
        return self


class _Full:
    """A full matrix with the inverse of M + sigma I (see `_kernels.cone`)."""

    def __init__(self, m: np.ndarray, p: np.ndarray, numbers: np.ndarray) -> None:
        self.m, self.p, self.numbers = m, p, numbers
        self._basis = np.empty((cone.MOST_PRODUCTS + 1, len(m)))
        self._work = np.empty((5, cone.MOST_PRODUCTS + 1))

    @classmethod
    def from_matrix(cls, m: np.ndarray) -> _Full:
        numbers = np.zeros(cone.N_NUMBERS)
        numbers[cone.SIGMA] = np.trace(m) / len(m)
        self = cls(np.ascontiguousarray(m), np.empty_like(m), numbers)
        self._renew()
        return self

    @classmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray], d: int) -> _Full:
        m, p = (saved_array(arrays, name, (d, d)) for name in "mp")
        numbers = np.array(scalars["cone"], np.float64)
        check_array("cone", numbers, np.float64, (cone.N_NUMBERS,))
        if not all(np.isfinite(a).all() for a in (m, p, numbers)) or not numbers[cone.SIGMA] > 0:
            raise ValueError("m, p, cone: expected finite numbers and a positive sigma")
        values = np.linalg.eigvalsh((m + m.T) / 2)
        if values[0] < -1e-8 * abs(values[-1]):
            raise ValueError("m: expected a positive semi-definite matrix")
        return cls(m, p, numbers)

    def symmetric(self) -> np.ndarray:
        return (self.m + self.m.T) / 2

    def _renew(self) -> None:
        """Recompute P, with sigma about the size of the recently projected eigenvalues."""
        if self.numbers[cone.N_ROOTS]:
            self.numbers[cone.SIGMA] = 2 * np.exp(
                self.numbers[cone.ROOTS] / self.numbers[cone.N_ROOTS]
            )
        self.numbers[[cone.STEPS, cone.ROOTS, cone.N_ROOTS]] = 0.0
        self.p[...] = np.linalg.inv(
            self.symmetric() + self.numbers[cone.SIGMA] * np.eye(len(self.m))
        )

    def learn(
        self, step: Any, v: np.ndarray, sign: np.ndarray, clock: np.ndarray
    ) -> tuple[int, int]:
        done = 0
        while done < len(v):
            status, learnt = cone.learn_in_the_full_cone(
                step,
                self.m,
                self.p,
                self.numbers,
                self._basis,
                self._work,
                v[done:],
                sign[done:],
                clock,
            )
            done += learnt
            if status == cone.HOPELESS_PAIR:
                return DIVERGED, done
            if status == cone.LEFT:
                self._step_and_project(self.numbers[cone.LEFT_STEP], v[done - 1])
            if status in (cone.WORN, cone.LEFT):
                self._renew()
        return DONE, done

    def _step_and_project(self, c: float, v: np.ndarray) -> None:
        """The step by a full eigendecomposition."""
        values, vectors = np.linalg.eigh(self.symmetric() + c * np.outer(v, v))
        if values[0] < 0:
            self.numbers[cone.ROOTS] += np.log(-values[0])
            self.numbers[cone.N_ROOTS] += 1
        self.m[...] = (vectors * np.maximum(values, 0)) @ vectors.T


class _Room:
    """Eigenpairs, with spare capacity for the next few steps."""

    def __init__(self, values: np.ndarray, vectors: np.ndarray) -> None:
        self.rank, self._d = vectors.shape
        self._allocate(self.rank + 1, values, vectors)

    def _allocate(self, capacity: int, values: np.ndarray, vectors: np.ndarray) -> None:
        d = self._d
        self.capacity = capacity
        self.spectrum = Eigenpairs(np.empty(capacity), np.empty((capacity, d)))
        self.spectrum.value[: self.rank] = values
        self.spectrum.vector[: self.rank] = vectors
        self.work = RotationWorkspace(
            rest=np.empty(d),
            numbers=np.empty((5, capacity)),
            places=np.empty((2, capacity), np.int64),
            gathered=np.empty((capacity, d)),
            rotated=np.empty((capacity, d)),
            mixing=np.empty(capacity**2),
        )

    def used(self) -> tuple[np.ndarray, np.ndarray]:
        return self.spectrum.value[: self.rank], self.spectrum.vector[: self.rank]

    def make_for(self, n: int) -> None:
        """Make room for the eigenpairs that n more pairs may add."""
        needed = min(self._d, self.rank + n) + 1
        if needed > self.capacity:
            self._allocate(min(self._d + 1, max(needed, 2 * self.capacity)), *self.used())


# -- LogDet steps -----------------------------------------------------------------------------------------


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
        super().__init__(matrices[0].shape, dtype)
        self.matrices = tuple(aligned_copy(m, np.float64) for m in matrices)
        self.targets = np.array(targets, np.float64)
        self.scale = float(scale)
        self.learns_blocks = len(self.matrices) == 1

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        kernel, chunk = self._kernel(block_size)
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            v, _ = tuples.rows(begin, end)
            z = v.astype(np.float64) * self.scale
            learnt = kernel(*step, *self.matrices, z, sign[begin:end], self.targets, self.clock)
            return (DONE if learnt == len(z) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), chunk)

    def single(self, step: Any, size: int) -> Single | None:
        kernel, _ = self._kernel(1)
        scaled = np.zeros((1, self.shape[1]))

        def bind(x: np.ndarray, z: np.ndarray, sign: np.ndarray) -> Callable[[], int]:
            what = *step, *self.matrices, scaled, sign, self.targets, self.clock
            run = compiled(kernel, what)

            def learn() -> int:
                scaled[...] = z
                np.multiply(scaled, self.scale, out=scaled)
                return DONE if run(*what) else DIVERGED

            return learn

        return DenseSingle(self, size, bind)

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
        n, d, _ = saved_array(arrays, "a", (None, None, None)).shape
        a = saved_array(arrays, "a", (n, d, d))
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
        self._restore_clock(arrays)
        return self
