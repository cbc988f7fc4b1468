"""The shape of an engine, and what all of them share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._interrupts import ctrl_c_waits
from ..data.comparisons import Comparisons

#: Work (entries of M visited) between two moments at which Ctrl-C is noticed: about half a second.
ENTRIES_PER_CALL = 5e7


class DivergedError(ArithmeticError):
    """A margin stopped being a finite number; the matrix is as it was before that tuple."""


class Engine:
    """What all engines share: the clock, the average, and raw arrays by name."""

    kind: str
    #: Whether tuples may be learnt together; what is learnt depends on where blocks begin, to rounding.
    learns_blocks = True

    def __init__(
        self, rule: Any, average_from: int | None, clock: np.ndarray | None = None
    ) -> None:
        from .._kernels.steps import CLOCK_SIZE

        self.rule = rule
        self.average_from = average_from
        self.clock = np.zeros(CLOCK_SIZE)
        if clock is not None:
            check_array("clock", clock, np.float64, (None,))
            self.clock[: len(clock)] = clock  # files of earlier versions may count less

    @property
    def shape(self) -> tuple[int, int]:
        """Features on the left and on the right."""
        raise AttributeError("provided by the engine")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the stored numbers."""
        raise AttributeError("provided by the engine")

    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        """Advance the stream by checked tuples."""
        raise AttributeError("provided by the engine")

    def matrix(self) -> Any:
        """The current matrix, or the average."""
        raise AttributeError("provided by the engine")

    def state(self) -> dict[str, np.ndarray]:
        """Raw arrays by name, enough for `from_state` to go on bit for bit."""
        raise AttributeError("provided by the engine")

    @classmethod
    def from_state(
        cls, rule: Any, average_from: int | None, arrays: dict[str, np.ndarray], **options: Any
    ) -> Any:
        """An engine with these arrays; raises if they do not fit together."""
        raise AttributeError("provided by the engine")

    def _average_weight(self) -> float:
        """Number of averaged iterates, 0 while there is nothing to average."""
        from .._kernels.steps import ROUNDS

        if self.average_from is None:
            return 0.0
        return max(0.0, self.clock[ROUNDS] - self.average_from + 1)

    def _decode(self, u: Any, aux: Any, acc: Any, on_diagonal: Any) -> np.ndarray:
        """Values of entries from their raw numbers (see `kernels.rules`)."""
        from .._kernels.rules import ADAPTIVE, CONFIDENT, PLAIN
        from .._kernels.steps import SHIFT

        weight = self._average_weight()
        if self.rule.kind in (PLAIN, CONFIDENT):
            return u - acc / u.dtype.type(weight) if weight else u
        value = shrunk(u, self.clock[SHIFT])
        if self.rule.off_diagonal:
            value[on_diagonal] = u[on_diagonal]
        if self.rule.kind == ADAPTIVE:
            value /= u.dtype.type(self.rule.delta) + aux
        return value

    def _drive(self, learn: Any, n: int, chunk: int, make_space: Any, rebase: Any) -> None:
        """Call ``learn(begin, end) -> (status, next)`` until all n tuples are learnt."""
        from .._kernels import entrywise
        from .._kernels.steps import ROUNDS, SHIFT

        begin = 0
        while begin < n:
            # Whether NumPy would warn of inf - inf before the status tells depends on the machine.
            with ctrl_c_waits(), np.errstate(over="ignore", invalid="ignore"):
                status, begin = learn(begin, min(n, begin + chunk))
                if status == entrywise.NEEDS_SPACE:
                    make_space(self.rule, self.clock[SHIFT])
                elif status == entrywise.NEEDS_REBASE:
                    rebase(self.rule, self.clock[SHIFT])
                    self.clock[SHIFT] = 0.0
            if status == entrywise.DIVERGED:
                raise DivergedError(
                    f"margin of round {int(self.clock[ROUNDS]) + 1} is not finite or beyond all use: "
                    "learning has diverged; use a smaller step or scale the items"
                )


def shrunk(u: np.ndarray, shift: float) -> np.ndarray:
    """Soft-thresholded copy: `kernels.rules.shrink` for a whole array."""
    return np.copysign(np.maximum(np.abs(u) - u.dtype.type(shift), 0), u)


def new_scratch(longest_x: int, longest_z: int, dtype: Any) -> Any:
    """Work space for rows of at most these lengths."""
    from .._kernels.entrywise import Scratch

    return Scratch(
        x_index=np.empty(longest_x, np.int32),
        x=np.empty(longest_x, dtype),
        z_index=np.empty(longest_z, np.int32),
        z=np.empty(longest_z, dtype),
        numbers=np.empty((3, longest_z), dtype),
    )


def check_array(name: str, array: np.ndarray, dtype: Any, shape: tuple[int | None, ...]) -> None:
    """Raise if a restored array does not fit: compiled code would read past its end."""
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise ValueError(
            f"{name}: expected {np.dtype(dtype)} of shape {shape}, got {array.dtype} {array.shape}"
        )


def check_floats(name: str, array: np.ndarray) -> np.dtype[Any]:
    """Raise unless the array has one of the two precisions; return it."""
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
    return array.dtype
