"""The shape of an engine, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .._interrupts import ctrl_c_waits
from .._kernels.entrywise import DIVERGED, NEEDS_REBASE, NEEDS_SPACE, Scratch
from .._kernels.steps import CLOCK_SIZE, ROUNDS, SHIFT
from ..data.comparisons import Comparisons

#: Work (entries of M visited) between two checks for Ctrl-C: about half a second.
ENTRIES_PER_CALL = 5e7

#: What an engine saves: JSON values, and arrays by name.
State = tuple[dict[str, Any], dict[str, np.ndarray]]


class DivergedError(ArithmeticError):
    """A margin overflowed; the matrix is as it was before that tuple."""


class Engine(ABC):
    """What a learner keeps between calls: a matrix and its clock, an array of counters.

    `state` and `from_state` save and restore the raw numbers, so that learning goes on bit for bit.
    """

    #: Name in model files.
    kind: ClassVar[str]
    #: Whether it can learn blocks of tuples, which changes the result by rounding only.
    learns_blocks = True

    def __init__(self, clock: np.ndarray | None = None) -> None:
        self.clock = np.zeros(CLOCK_SIZE)
        if clock is not None:
            check_array("clock", clock, np.float64, (None,))
            self.clock[: len(clock)] = clock  # older files may have fewer counters

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Features on the left and on the right."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Precision of the items, and of the matrix that is read."""

    @abstractmethod
    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        """Learn from checked tuples, in order."""

    @abstractmethod
    def matrix(self) -> Any:
        """The current matrix, or the average."""

    @abstractmethod
    def state(self) -> State:
        """JSON values and raw arrays, enough for `from_state` to go on bit for bit."""

    @classmethod
    @abstractmethod
    def from_state(cls, scalars: dict[str, Any], arrays: dict[str, np.ndarray]) -> Engine:
        """An engine with this state; raises if its parts do not fit together."""

    def _make_space(self) -> None:
        """Make room for more entries, when a kernel has run out of it."""
        raise AssertionError(f"{self.kind}: kernels of this engine never need space")

    def _rebase(self) -> None:
        """Recompute what a long stream has made imprecise, when a kernel asks for it."""
        raise AssertionError(f"{self.kind}: kernels of this engine never need this")

    def _drive(self, learn: Callable[[int, int], tuple[int, int]], n: int, chunk: int) -> None:
        """Call ``learn(begin, end) -> (status, next)`` until all n tuples are learnt."""
        begin = 0
        while begin < n:
            # Whether NumPy would warn of inf - inf before the status tells depends on the machine.
            with ctrl_c_waits(), np.errstate(over="ignore", invalid="ignore"):
                status, begin = learn(begin, min(n, begin + chunk))
                if status == NEEDS_SPACE:
                    self._make_space()
                elif status == NEEDS_REBASE:
                    self._rebase()
                    self.clock[SHIFT] = 0.0
            if status == DIVERGED:
                raise DivergedError(
                    f"margin of round {int(self.clock[ROUNDS]) + 1} overflowed: learning has diverged; use "
                    "a smaller step or scale the items"
                )


class LowRankEngine(Engine):
    """An engine whose matrix W is L R', or is averaged; in float64."""

    @abstractmethod
    def full(self) -> np.ndarray | None:
        """W as it is read, where that is what is kept; None where its factors are."""

    @abstractmethod
    def factors(self, full: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """L and R of W as it is read; `full` is what the method of that name returned."""

    def singular_values(self) -> np.ndarray | None:
        """Singular values of W as it is read, if they are known; largest first."""
        return None


def aligned_zeros(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line: loops over rows elsewhere take up to 1.4 times as long."""
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def new_scratch(longest_x: int, longest_z: int, dtype: Any) -> Scratch:
    """Work space for rows of at most these lengths."""
    return Scratch(
        x_index=np.empty(longest_x, np.int32),
        x=np.empty(longest_x, dtype),
        z_index=np.empty(longest_z, np.int32),
        z=np.empty(longest_z, dtype),
        numbers=np.empty((3, longest_z), dtype),
        eps=float(np.finfo(dtype).eps),
        largest=float(np.finfo(dtype).max),
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
    """Raise unless the array is float32 or float64; return its type."""
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
    return array.dtype


def saved_dtype(scalars: dict[str, Any]) -> np.dtype[Any]:
    """The precision in the header of a file."""
    if scalars["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype: expected 'float32' or 'float64', got {scalars['dtype']!r}")
    return np.dtype(scalars["dtype"])


def saved_shape(scalars: dict[str, Any]) -> tuple[int, int]:
    """The shape in the header of a file."""
    shape = scalars["shape"]
    if len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f"shape: expected two positive integers, got {shape!r}")
    return shape[0], shape[1]


def saved_number(scalars: dict[str, Any], name: str, *, minimum: float = 0.0) -> float:
    """A number in the header of a file, at least the minimum; it may be infinite."""
    value = scalars[name]
    if not isinstance(value, (int, float)) or not value >= minimum:
        raise ValueError(f"{name}: expected a number >= {minimum:g}, got {value!r}")
    return value


def saved_flag(scalars: dict[str, Any], name: str) -> bool:
    """A truth value in the header of a file."""
    if not isinstance(scalars[name], bool):
        raise ValueError(f"{name}: expected true or false, got {scalars[name]!r}")
    return scalars[name]
