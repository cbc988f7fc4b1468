"""How much one caller may ask for."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: Callers remembered; the one not heard of for the longest time is forgotten first.
_MOST_CALLERS = 10_000


class TokenBuckets:
    """So many requests a second of each caller, some more at once.

    Parameters
    ----------
    rate : requests per second; 0 is no limit
    burst : requests that may come at once
    clock : seconds

    Examples
    --------
    >>> now = [0.0]
    >>> buckets = TokenBuckets(rate=1.0, burst=2.0, clock=lambda: now[0])
    >>> [buckets.wait("ann") for _ in range(3)]
    [0.0, 0.0, 1.0]
    >>> now[0] = 1.0
    >>> buckets.wait("ann")
    0.0
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, caller: str) -> float:
        """Take a token; how many seconds to wait if there is none, else 0."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._clock()
            level, then = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._rate)
            allowed = level >= 1
            self._levels[caller] = (level - allowed, now)
            if len(self._levels) > _MOST_CALLERS:
                self._levels.popitem(last=False)
            return 0.0 if allowed else (1 - level) / self._rate
