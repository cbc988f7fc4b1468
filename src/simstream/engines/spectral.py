"""A positive semi-definite matrix in its eigenvectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comparisons import Comparisons
from .base import Engine, check_array, check_floats

#: Pairs between two moments at which Ctrl-C is noticed.
_PAIRS_PER_CALL = 64


class SpectralEngine(Engine):
    """A matrix that stays positive semi-definite, kept as eigenvalues and eigenvectors in float64.

    A step costs O(d rank + rank^2) and one product of (rank x rank) with (rank x d).

    Parameters
    ----------
    values, vectors : arrays (rank,) and (rank, d)
        First eigenvalues, all positive, and eigenvectors (as rows).
    dtype : precision of the items, and of the matrix that is read
    shortens : bool
        Whether a step that would leave the cone is made shorter, instead of projected back.
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
        from ..kernels.steps import THRESHOLD

        super().__init__(None, None)
        self.values = np.array(values, np.float64)
        self.vectors = np.array(vectors, np.float64, order="C")
        self._dtype = np.dtype(dtype)
        self.shortens = shortens
        self.clock[THRESHOLD] = threshold

    @property
    def shape(self) -> tuple[int, int]:
        return (self.vectors.shape[1],) * 2

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        from ..kernels.entrywise import DIVERGED, DONE
        from ..kernels.spectral import PROJECT, SHORTEN, learn_in_the_cone

        on_leaving = SHORTEN if self.shortens else PROJECT
        room = _Room(self.values, self.vectors)
        sign = tuples.sign

        def learn(begin: int, end: int) -> tuple[int, int]:
            v, _ = tuples.rows(begin, end)
            room.make_for(len(v))
            learnt, room.rank = learn_in_the_cone(
                step,
                on_leaving,
                room.spectrum,
                room.work,
                room.rank,
                v.astype(np.float64, copy=False),
                sign[begin:end],
                self.clock,
            )
            self.values, self.vectors = room.used()
            return (DONE if learnt == len(v) else DIVERGED), begin + learnt

        self._drive(learn, len(tuples), _PAIRS_PER_CALL, None, None)
        self.values, self.vectors = self.values.copy(), self.vectors.copy()  # not views of the room

    def matrix(self) -> np.ndarray:
        return ((self.vectors.T * self.values) @ self.vectors).astype(self.dtype)

    def state(self) -> dict[str, np.ndarray]:
        names = ("clock", "values", "vectors")
        options = np.array([self.shortens])
        one = np.ones(1, self.dtype)
        return {name: getattr(self, name) for name in names} | {"options": options, "one": one}

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **_: Any
    ) -> SpectralEngine:
        check_array("options", arrays["options"], np.bool_, (1,))
        values, vectors = arrays["values"], arrays["vectors"]
        check_array("vectors", vectors, np.float64, (None, None))
        check_array("values", values, np.float64, (len(vectors),))
        if len(values) > vectors.shape[1] or not ((values > 0) & np.isfinite(values)).all():
            raise ValueError("values: expected at most one positive eigenvalue per feature")
        if not np.allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-8):
            raise ValueError("vectors: expected orthonormal rows")
        self = cls(
            values,
            vectors,
            check_floats("one", arrays["one"]),
            shortens=bool(arrays["options"][0]),
            threshold=0.0,
        )
        Engine.__init__(self, None, None, arrays["clock"])
        return self


class _Room:
    """Eigenpairs with room for those that a few steps may add."""

    def __init__(self, values: np.ndarray, vectors: np.ndarray) -> None:
        self.rank, self._d = vectors.shape
        self._allocate(self.rank + 1)
        self.spectrum.value[: self.rank] = values
        self.spectrum.vector[: self.rank] = vectors

    def _allocate(self, capacity: int) -> None:
        from ..kernels.spectral import Spectrum, Workspace

        d = self._d
        self.capacity = capacity
        self.spectrum = Spectrum(np.empty(capacity), np.empty((capacity, d)))
        self.work = Workspace(
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
            values, vectors = self.used()
            self._allocate(min(self._d + 1, max(needed, 2 * self.capacity)))
            self.spectrum.value[: self.rank] = values
            self.spectrum.vector[: self.rank] = vectors
