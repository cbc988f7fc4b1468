"""Counters for Prometheus, in its text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable

#: Upper ends of the buckets of request times, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Counts requests by route and status, and how long they took by route.

    Examples
    --------
    >>> metrics = RequestMetrics()
    >>> metrics.add("/v1/search", 200, 0.004)
    >>> print([line for line in metrics.lines() if "status" in line][0])
    simstream_requests_total{route="/v1/search",status="200"} 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._counts[route, status] = self._counts.get((route, status), 0) + 1
            times = self._times.setdefault(route, [0] * (len(BUCKETS) + 1))
            times[bisect_left(BUCKETS, seconds)] += 1
            self._sums[route] = self._sums.get(route, 0.0) + seconds

    def lines(self) -> Iterable[str]:
        """In the text format."""
        with self._lock:
            counts, sums = dict(self._counts), dict(self._sums)
            times = {route: list(found) for route, found in self._times.items()}
        yield "# TYPE simstream_requests_total counter"
        for (route, status), count in sorted(counts.items()):
            yield f'simstream_requests_total{{route="{route}",status="{status}"}} {count}'
        name = "simstream_request_seconds"
        yield f"# TYPE {name} histogram"
        for route, found in sorted(times.items()):
            total = 0
            for end, count in zip((*BUCKETS, "+Inf"), found, strict=True):
                total += count
                yield f'{name}_bucket{{route="{route}",le="{end}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {sums[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {total}'


def gauge_lines(values: dict[str, tuple[str, float]]) -> Iterable[str]:
    """Named numbers with their type ("gauge" or "counter") in the text format.

    Examples
    --------
    >>> list(gauge_lines({"items": ("gauge", 3)}))
    ['# TYPE simstream_items gauge', 'simstream_items 3']
    """
    for name, (kind, value) in values.items():
        yield f"# TYPE simstream_{name} {kind}"
        yield f"simstream_{name} {value}"
