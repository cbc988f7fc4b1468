"""How many threads a command may use: as many as there are processors that nobody else needs.

The threads of a BLAS wait for each other without giving up the processor. Where there are more of them than
free processors, each waits for one that does not run, and two threads take many times as long as one.
"""

from __future__ import annotations

import os
import sys

from ..processors import allowed_cpus

#: What the numerical libraries read when they are loaded. The first one that a user sets counts for all.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def choose_threads() -> None:
    """Tell the numerical libraries how many threads to use, unless the user has, or they are loaded."""
    if "numpy" in sys.modules or any(os.environ.get(name) for name in VARIABLES):
        return
    os.environ.update(dict.fromkeys(VARIABLES, str(free_cpus())))


def free_cpus() -> int:
    """Processors that this process may use and others leave to it; at least 1.

    Others are counted by the load average of the last minute, where the system has one.

    Examples
    --------
    >>> 1 <= free_cpus() <= os.cpu_count()
    True
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, min(allowed_cpus(), (os.cpu_count() or 1) - round(load)))
