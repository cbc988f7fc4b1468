"""The shape of an engine, and what all of them share."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np

from .._kernels.blocked import Blas, Block, alone
from .._kernels.entrywise import DIVERGED, DONE, NEEDS_REBASE, NEEDS_SPACE, Scratch
from .._kernels.steps import CLOCK_SIZE, ROUNDS, SHIFT
from ..data.comparisons import Comparisons
from .geometry import Geometry
from .single import Single

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
    #: The device of torch that it is on; None is NumPy on the CPU.
    device: Any = None

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        #: Features on the left and on the right.
        self.shape: tuple[int, int] = (shape[0], shape[1])
        #: Precision of the items, and of the matrix that is read.
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.clock = np.zeros(CLOCK_SIZE)
        #: How the rows of the matrix belong to queries; the learner fixes it in its first call.
        self.geometry = Geometry()
        #: Held while a kernel changes what is read piece by piece, and while that is read.
        self.turn = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, turn=threading.RLock())

    @property
    def version(self) -> float:
        """A number that changes whenever what is read may change: the rounds learnt."""
        return float(self.clock[ROUNDS])

    def see(self, tuples: Comparisons) -> None:
        """Look at the items of tuples that are about to be learnt; nothing that is read changes."""
        return

    @abstractmethod
    def learn(self, step: Any, tuples: Comparisons, block_size: int) -> None:
        """Learn from checked tuples, in order."""

    def learn_alone(self, step: Any, tuples: Comparisons) -> None:
        """Learn from one tuple, as `single` does: the same numbers."""
        self.learn(step, tuples, 1)

    def single(self, step: Any, size: int) -> Single | None:
        """What learns from single tuples of `size` vectors, 2 for pairs; None if there is nothing special."""
        return None

    def block(self, ops: Any, step: Any, tuples: Comparisons, first: int, last: int) -> Block:
        """The coroutine that learns from tuples first .. last - 1 together: see `_kernels.blocked`."""
        raise AssertionError(f"{self.kind}: there is no blocked form")

    @property
    def has_devices(self) -> bool:
        """Whether it can learn on devices of torch."""
        return False

    def place(self, device: Any, precision: str) -> None:
        """Learn on this device of torch from now on, on the CPU if it is None."""
        assert device is None, f"{self.kind}: learns on the CPU alone"

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

    @classmethod
    def _blank(cls, shape: tuple[int, ...], dtype: Any, arrays: dict[str, np.ndarray]) -> Self:
        """An engine with this shape, precision and saved clock, and nothing else yet."""
        self = cls.__new__(cls)
        Engine.__init__(self, shape, dtype)
        self._restore_clock(arrays)
        return self

    def _restore_clock(self, arrays: dict[str, np.ndarray]) -> None:
        clock = saved_array(arrays, "clock", (None,))
        self.clock[: len(clock)] = clock  # older files may have fewer counters

    def _make_space(self) -> None:
        """Make room for more entries, when a kernel has run out of it."""
        raise AssertionError(f"{self.kind}: kernels of this engine never need space")

    def _rebase(self) -> None:
        """Recompute what a long stream has made imprecise, when a kernel asks for it."""
        raise AssertionError(f"{self.kind}: kernels of this engine never need this")

    def _drive_blocks(self, step: Any, tuples: Comparisons, block_size: int, entries: int) -> None:
        """Learn in blocks; `entries` of M are visited for each tuple."""
        ops = Blas(self.dtype)

        def learn(begin: int, end: int) -> tuple[int, int]:
            for first in range(begin, end, block_size):
                last = min(end, first + block_size)
                learnt = first + alone(self.block(ops, step, tuples, first, last))
                if learnt < last:
                    return DIVERGED, learnt
            return DONE, end

        # Several blocks between two checks for Ctrl-C: checking costs too.
        blocks = max(1, int(ENTRIES_PER_CALL / entries) // block_size)
        self._drive(learn, len(tuples), blocks * block_size)

    def _drive(self, learn: Callable[[int, int], tuple[int, int]], n: int, chunk: int) -> None:
        """Call ``learn(begin, end) -> (status, next)`` until all n tuples are learnt."""
        begin = 0
        while begin < n:
            # Whether NumPy would warn of inf - inf before the status tells depends on the machine.
            with ctrl_c_waits(), self.turn, np.errstate(over="ignore", invalid="ignore"):
                status, begin = learn(begin, min(n, begin + chunk))
                self._serve(status)
            if status == DIVERGED:
                raise self.diverged()

    def _serve(self, status: int) -> None:
        """Do what a kernel asks for."""
        if status == NEEDS_SPACE:
            self._make_space()
        elif status == NEEDS_REBASE:
            self._rebase()
            self.clock[SHIFT] = 0.0

    def attend(self, status: int) -> None:
        """Do what the kernel of a single tuple asks for, or raise if it has diverged."""
        if status == DIVERGED:
            raise self.diverged()
        with ctrl_c_waits(), self.turn:
            self._serve(status)

    def diverged(self) -> DivergedError:
        """The error for a tuple that cannot be learnt; the rounds before it are."""
        return DivergedError(
            f"margin of round {int(self.clock[ROUNDS]) + 1} overflowed: learning has diverged; use "
            "a smaller step or scale the items"
        )


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C until the block is done, so that a matrix and its clock always agree.

    Only the main thread is interrupted, and only it may set a handler; elsewhere there is nothing to do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pending: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *arguments: pending.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pending:
            handler(*pending[0])


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line: loops over rows elsewhere take up to 1.4 times as long."""
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray, dtype: Any) -> np.ndarray:
    """A copy of a matrix that begins at a cache line."""
    copy = aligned_zeros(array.shape, dtype)
    copy[...] = array
    return copy


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


def saved_array(
    arrays: dict[str, np.ndarray],
    name: str,
    shape: tuple[int | None, ...],
    dtype: Any = np.float64,
) -> np.ndarray:
    """An array of a file with this shape (None: any length) and type (None: float32 or float64)."""
    array = arrays[name]
    if dtype is None and array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
    check_array(name, array, array.dtype if dtype is None else dtype, shape)
    return array


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
