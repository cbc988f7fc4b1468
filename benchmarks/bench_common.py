"""What the benchmarks share: items, timing in turns, the strongest eager OASIS, the table, the machine.

A case of `bench_certificates.py` or `bench_tasks_low_rank.py` is a function that gives rows (work, measured, must
reach, reached) of the table. What a ratio compares runs in one process, in turns, on one BLAS thread; the best
of some turns counts, in CPU seconds: the same as seconds on an idle machine, and still comparable on a busy one.
"""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parent.parent

#: Items, features, classes.
SHAPES = {
    "letter": (20_000, 16, 26),
    "isolet": (7_797, 617, 26),
    "mnist-t10k": (10_000, 784, 10),
}


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


def rows_of(case):
    """All rows of a case, measured on one BLAS thread."""
    import scipy.linalg  # noqa: F401  its BLAS must be there to be limited

    with threadpool_limits(1):
        return list(case())


def seconds_of(function):
    """CPU seconds of one call."""
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
    """A row of the table; without a must-reach it is information."""
    return work, measured, must_reach, bool(reached)


def table(rows, judged=True):
    """Rows (work, measured, must reach, reached) as Markdown."""
    lines = ["| work | measured | must reach | reached |", "|---|---|---|---|"]
    for work, measured, must_reach, reached in rows:
        verdict = ("yes" if reached else "**no**") if must_reach else ""
        lines.append(
            f"| {work} | {measured} | {must_reach} | {verdict if judged else 'not judged'} |"
        )
    return "\n".join(lines)


def check_marks(parser, page, marks):
    """Stop, before anything is measured, if a page that is to be written has no place for it."""
    if page is not None and marks[0] not in page.read_text():
        parser.error(f"{page}: expected a page with {' and '.join(marks)}, got none of them")


def put_between(page, marks, text):
    """Replace what a page has between its two marks."""
    begin, end = marks
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def machine():
    """What the numbers were measured on."""
    import numba
    import scipy

    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, SciPy {scipy.__version__}, numba {numba.__version__}"
    )


def in_place_oasis(M, stream, C):
    """The strongest eager version: M is changed in place."""
    for x, z in stream:
        loss = 1.0 - x @ M @ z
        if loss > 0:
            M += min(C, loss / ((x @ x) * (z @ z))) * np.outer(x, z)
    return M
