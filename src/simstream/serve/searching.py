"""Searches of many callers at once: those that wait together are answered by one product.

A product of the items with 64 queries costs far less than 64 products with one, because each reads all items
from memory. So a few threads search, and a thread that is free takes all that waits and can be searched
together. A caller that is alone never waits for others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from ..processors import allowed_cpus
from ..validation import stacked
from .access import BusyError, ServiceError
from .engine import Version
from .logs import in_context

logger = logging.getLogger("simstream.serve")

#: Searches answered by one product at most; larger products save little more.
_LARGEST_BATCH = 64

#: Compared searches that the recall is the mean of.
_RECENT = 1000

#: Scores that differ by less than this share are equal: float32 rounds sums in different order.
_ROUNDING = 1e-5

#: Items and scores, best first. Items are positions of the log, or ids if they are kept elsewhere.
Hits = list[tuple[Any, float]]

#: Takes a version, rows of queries, k, a task and `learnt`; see `Version.search_many`.
Search = Callable[..., list[Hits]]


def exactly(version: Any, *args: Any, **options: Any) -> list[Hits]:
    """Search the items of a version themselves."""
    return version.search_many(*args, **options)


class Recall:
    """How much of the exact answer an approximate index finds, from a share of the searches.

    An item that scores as high as the last of the exact answer counts as found.

    Parameters
    ----------
    exact : Search
        Gives the exact answer.
    share : float
        Share of searches that are compared, drawn at random.

    Examples
    --------
    >>> recall = Recall(lambda *_, **__: [[(1, 3.0), (2, 2.0)]], share=1.0)
    >>> recall.compare([(1, 3.0), (3, 1.0)], None, None, 2, None, True)
    >>> recall.n_wanted, recall.n_found, recall.recent
    (2, 1, 0.5)
    """

    def __init__(self, exact: Search, share: float) -> None:
        self._exact, self._share = exact, share
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._last: deque[float] = deque(maxlen=_RECENT)
        #: Searches compared, items of their exact answers, and how many of these were found.
        self.n_compared = self.n_wanted = self.n_found = 0

    @property
    def recent(self) -> float:
        """Mean over the last compared searches; NaN before the first."""
        with self._lock:
            return float(np.mean(self._last)) if self._last else float("nan")

    def compare(
        self, hits: Hits, version: Any, rows: Any, k: int, task: Hashable, learnt: bool
    ) -> None:
        """Compare what was found with the exact answer, if this search is drawn."""
        with self._lock:
            if self._rng.random() >= self._share:
                return
        wanted = self._exact(version, rows, k, task, learnt=learnt)[0]
        if not wanted:
            return
        least = wanted[-1][1] - _ROUNDING * max(abs(score) for _, score in wanted)
        found = min(len(wanted), sum(score >= least for _, score in hits))
        with self._lock:
            self.n_compared += 1
            self.n_wanted += len(wanted)
            self.n_found += found
            self._last.append(found / len(wanted))


class _Search(NamedTuple):
    version: Version
    task: Hashable
    learnt: bool
    rows: Any
    k: int
    leave_out: Any
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
    search : Search
        Finds items; exactly by default.
    recall : Recall, optional
        Measures how much is found, after the callers have their answers.
    """

    def __init__(
        self,
        n_threads: int | None = None,
        capacity: int = 1024,
        search: Search = exactly,
        recall: Recall | None = None,
    ) -> None:
        self._search, self.recall = search, recall
        self._waiting: deque[_Search] = deque()
        self._condition = threading.Condition()
        self._capacity, self._is_closed = capacity, False
        #: Products so far, and searches that they answered.
        self.n_products = self.n_searches = 0
        self._threads = [
            threading.Thread(target=in_context(self._run), name=f"search-{number}", daemon=True)
            for number in range(n_threads or allowed_cpus())
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        """Searches that no thread has taken yet."""
        return len(self._waiting)

    def submit(
        self, version: Version, rows: Any, k: int, task: Hashable, learnt: bool, leave_out: Any
    ) -> Future[Hits]:
        """Items and scores for one query, given as a single row; `leave_out` (None: nothing) is no result."""
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
        k = max(one.k + (one.leave_out is not None) for one in batch)
        try:
            found = self._search(
                first.version,
                first.rows if len(batch) == 1 else stacked([one.rows for one in batch]),
                k,
                first.task,
                learnt=first.learnt,
            )
        except Exception as error:
            if len(batch) == 1 or isinstance(error, ServiceError):  # that is nobody's own fault
                for one in batch:
                    one.done.set_exception(error)
                return
            for one in batch:  # only those that are at fault are refused
                self._answer([one])
            return
        for one, hits in zip(batch, found, strict=True):
            one.done.set_result([hit for hit in hits if hit[0] != one.leave_out][: one.k])
        if self.recall is not None:
            try:
                for one, hits in zip(batch, found, strict=True):
                    self.recall.compare(hits, one.version, one.rows, k, one.task, one.learnt)
            except Exception as error:  # it only watches
                logger.warning("the recall of a search could not be measured: %s", error)
