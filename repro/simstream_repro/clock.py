"""CPU seconds of a process, without those spent compiling kernels.

A kernel is compiled when first called, and cached on disk for later processes. Counted as work, compiling
would make the first cell of a study slow, and with a small budget no cell would ever end: a process that is
stopped while compiling caches nothing.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence

from numba.core import event

_NOT_COMPILING = -1.0


class _CompileClock(event.Listener):
    """Keeps two shared numbers: CPU seconds spent compiling, and when the current compilation began."""

    def __init__(self) -> None:
        self.shared: MutableSequence[float] = [0.0, _NOT_COMPILING]
        self._depth = 0

    def on_start(self, event: event.Event) -> None:
        if self._depth == 0:
            self.shared[1] = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.shared[0] += time.process_time() - self.shared[1]
            self.shared[1] = _NOT_COMPILING


_clock = _CompileClock()
event.register("numba:compiler_lock", _clock)


def shared_numbers(context: object) -> MutableSequence[float]:
    """Numbers for `report_to`, shared by two processes of a multiprocessing context."""
    return context.Array("d", [0.0, _NOT_COMPILING], lock=False)  # type: ignore[attr-defined]


def report_to(shared: MutableSequence[float]) -> None:
    """Let another process see how long this one has been compiling, from now on.

    What was compiled before this process was forked is not among its CPU seconds.
    """
    shared[:] = [0.0, _NOT_COMPILING]
    _clock.shared = shared


def working_seconds() -> float:
    """CPU seconds of this process so far, without compiling.

    Examples
    --------
    >>> begin = working_seconds()
    >>> _ = sum(range(1_000))
    >>> working_seconds() >= begin
    True
    """
    return without_compiling(time.process_time(), _clock.shared)


def without_compiling(cpu_seconds: float, shared: MutableSequence[float]) -> float:
    """CPU seconds of a process, less those it reports as spent compiling.

    Examples
    --------
    >>> without_compiling(10.0, [3.0, -1.0])
    7.0
    >>> without_compiling(10.0, [3.0, 8.0])  # compiling since 8.0
    5.0
    """
    compiled, began = shared
    return (cpu_seconds if began == _NOT_COMPILING else began) - compiled
