"""How often something costly is done: so that it takes a bounded share of the time."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator


class Pace:
    """Asks for a rest of so many times what something took the last time.

    The shorter one of the last two times counts: a single one may have been longer for other reasons,
    because code was loaded or the machine was busy.

    Parameters
    ----------
    cost : seconds that are measured: of this thread's computing, or on the wall where it waits for a disk
    clock : seconds on the wall

    Examples
    --------
    >>> now = [0.0]
    >>> pace = Pace(lambda: now[0], lambda: now[0])
    >>> for seconds in (2.0, 3.0):
    ...     with pace.measured():
    ...         now[0] += seconds
    >>> pace.rest(10)
    20.0
    >>> now[0] += 15
    >>> pace.rest(10), pace.rest(1)
    (5.0, 0.0)
    """

    def __init__(
        self, cost: Callable[[], float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._cost, self._clock = cost, clock
        self._last: deque[float] = deque(maxlen=2)
        self._ended = clock()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what is done inside."""
        started = self._cost()
        yield
        self._last.append(self._cost() - started)
        self._ended = self._clock()

    def rest(self, times: float) -> float:
        """Seconds until the rest is over."""
        return max(0.0, self._ended + times * min(self._last, default=0.0) - self._clock())
