"""Searches of many callers at once: those that wait together are answered by one product.

A product of the items with 64 queries costs far less than 64 products with one, because each reads all items
from memory. So a few threads search, and a thread that is free takes all that waits and can be searched
together. A caller that is alone never waits for others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ..validation import stacked
from .access import BusyError
from .engine import Version

#: Searches answered by one product at most; larger products save little more.
_LARGEST_BATCH = 64

Hits = list[tuple[int, float]]


def n_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Search(NamedTuple):
    version: Version
    task: Hashable
    learnt: bool
    rows: Any
    k: int
    leave_out: int
    done: Future[Hits]

    def goes_with(self, other: _Search) -> bool:
        """Whether one product can answer both."""
        return (
            self.version is other.version
            and self.task == other.task
            and self.learnt == other.learnt
        )


class Searches:
    """Threads that answer searches, those that wait together in one go.

    Parameters
    ----------
    n_threads : int, optional
        Searches at the same time; as many as this process has CPUs by default.
    capacity : int
        Searches that may wait.
    """

    def __init__(self, n_threads: int | None = None, capacity: int = 1024) -> None:
        self._waiting: deque[_Search] = deque()
        self._condition = threading.Condition()
        self._capacity, self._is_closed = capacity, False
        #: Products so far, and searches that they answered.
        self.n_products = self.n_searches = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"search-{number}", daemon=True)
            for number in range(n_threads or n_cpus())
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        """Searches that no thread has taken yet."""
        return len(self._waiting)

    def submit(
        self, version: Version, rows: Any, k: int, task: Hashable, learnt: bool, leave_out: int
    ) -> Future[Hits]:
        """Positions and scores for one query, given as a single row; see `Version.search`."""
        search = _Search(version, task, learnt, rows, k, leave_out, Future())
        with self._condition:
            if self._is_closed:
                raise BusyError("the service is shutting down")
            if len(self._waiting) >= self._capacity:
                raise BusyError("too many searches are waiting")
            self._waiting.append(search)
            self._condition.notify()
        return search.done

    def close(self) -> None:
        """Answer what waits, then stop."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while batch := self._next():
            # From here on it makes no difference whether a caller goes away.
            batch = [one for one in batch if one.done.set_running_or_notify_cancel()]
            if batch:
                self._answer(batch)

    def _next(self) -> list[_Search]:
        """What waits and goes with the first of it; nothing when closing and all is done."""
        with self._condition:
            while not self._waiting:
                if self._is_closed:
                    return []
                self._condition.wait()
            first = self._waiting.popleft()
            batch = [first]
            others: list[_Search] = []
            while self._waiting and len(batch) < _LARGEST_BATCH:
                one = self._waiting.popleft()
                (batch if one.goes_with(first) else others).append(one)
            self._waiting.extendleft(reversed(others))
            self.n_products += 1
            self.n_searches += len(batch)
            return batch

    def _answer(self, batch: list[_Search]) -> None:
        first = batch[0]
        try:
            found = first.version.search_many(
                first.rows if len(batch) == 1 else stacked([one.rows for one in batch]),
                max(one.k + (one.leave_out > 0) for one in batch),
                first.task,
                learnt=first.learnt,
            )
        except Exception as error:
            if len(batch) == 1:
                first.done.set_exception(error)
                return
            for one in batch:  # only those that are at fault are refused
                self._answer([one])
            return
        for one, hits in zip(batch, found, strict=True):
            one.done.set_result([hit for hit in hits if hit[0] != one.leave_out][: one.k])
