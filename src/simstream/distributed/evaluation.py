"""Evaluation and search in several processes: each sweeps a part of the items, as one process would."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Self

from ..metrics.sweep import Call, Pool, Sweep, parts_of
from .cluster import Cluster


class EvaluationWorker:
    """A process that sweeps a part of a pool.

    It makes what it needs from the arguments of a call, and keeps it for the next one with the same number: a
    worker that is started again goes on without being told.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._sweep: Sweep | None = None

    def pid(self) -> int:
        """Number of the process."""
        return os.getpid()

    def run(
        self, number: int, part: tuple[int, int], pool: Any, method: str, given: tuple[Any, ...]
    ) -> Any:
        """Call a method of the sweep of this part of a pool."""
        if self._key != (number, part):
            self._sweep = None  # before the next one takes memory
            self._sweep = Sweep(Pool(*pool), part)
            self._key = (number, part)
        return getattr(self._sweep, method)(*given)


class EvaluationWorkers:
    """Processes that score items for `simstream.metrics.measure_ranking` and `simstream.search.search_rows`.

    A context manager: the processes end with it. The items are divided among them; files are opened by each,
    so that every machine of a cluster has to find them under the same path. What is found is the same as in
    one process, to the last digit, on machines with the same kind of processor.

    Parameters
    ----------
    n_workers : int
        Number of processes, of one thread each.
    address : str, optional
        A running Ray; see `Cluster`.

    Examples
    --------
    >>> with EvaluationWorkers(2) as workers:  # doctest: +SKIP
    ...     found = measure_ranking(model, queries, open_rows("items.npy"), relevance=..., runner=workers)
    """

    def __init__(self, n_workers: int, *, address: str | None = None) -> None:
        self._cluster = Cluster(n_workers, address=address)
        self._workers: list[Any] = []
        self._numbers = count()

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self._workers = [
            self._cluster.start(EvaluationWorker) for _ in range(self._cluster.n_workers)
        ]
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._cluster.stop(self._workers)
        finally:
            self._workers = []
            self._cluster.__exit__(*error)

    def parts(self, n_blocks: int) -> list[tuple[int, int]]:
        """The blocks of items of each worker."""
        return parts_of(n_blocks, self._cluster.n_workers)

    def open(self, pool: Pool, note: Callable[[int], object]) -> Call:
        """Give the workers their parts of a pool."""
        number = next(self._numbers)
        # A plain tuple: a worker must not need this module to read it.
        shared = self._cluster.put(tuple(pool))
        parts, edges = self.parts(pool.n_blocks), pool.item_edges

        def call(method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
            calls = [
                worker.run.remote(number, part, shared, method, given)
                for worker, part, given in zip(self._workers, parts, arguments, strict=False)
            ]
            found = []
            for (first, last), one in zip(parts, calls, strict=True):
                found.append(self._cluster.get(one))
                if method != "is_small":
                    note(edges[last] - edges[first])
            return found

        return call
