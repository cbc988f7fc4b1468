"""What the cases of `bench_certificates.py` and `bench_tasks_low_rank.py` share: items, turns, lines.

A case is a function that gives lines (work, measured, must reach, reached) of the table. What a ratio compares
runs in one process, in turns, on one BLAS thread; the best of some turns counts, in seconds of processor time:
the same as seconds on an idle machine, and still comparable on a busy one.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

SHAPES = {"letter": (20_000, 16, 26), "isolet": (7_797, 617, 26)}  # items, features, classes


@cache
def items(name):
    """Items (float64), labels, and where they come from: SIMSTREAM_DATA, or Gaussian classes of that shape."""
    folder = os.environ.get("SIMSTREAM_DATA")
    if folder and (Path(folder) / f"{name}.csv.gz").exists():
        from simstream.data import read_items

        data = read_items(Path(folder) / f"{name}.csv.gz", label_column=-1, dtype="float64")
        assert data.items.shape == SHAPES[name][:2]
        return data.items, np.asarray(data.labels), name
    n, d, n_classes = SHAPES[name]
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    X = 0.4 * rng.normal(size=(n, d)) + 0.4 * rng.normal(size=(n_classes, d))[y]
    return np.clip(X, -1, 1), y, f"classes of the shape of {name}"


def lines(case):
    """All lines of a case, measured on one BLAS thread."""
    import scipy.linalg  # noqa: F401  its BLAS must be there to be limited

    with threadpool_limits(1):
        return list(case())


def seconds_of(function):
    """Processor seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def in_turns(*functions, turns=3):
    """Least seconds of each function, called in turns, and what the last calls gave."""
    least, results = [np.inf] * len(functions), [None] * len(functions)
    for _ in range(turns):
        for i, function in enumerate(functions):
            start = time.process_time()
            results[i] = function()
            least[i] = min(least[i], time.process_time() - start)
    return least, results


def row(work, measured, must_reach, reached):
    """A line of the table, as those of bench.py."""
    return work, measured, must_reach, bool(reached)
