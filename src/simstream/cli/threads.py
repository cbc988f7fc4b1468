"""How many threads a command may use: as many as there are processors that nobody else needs.

The threads of a BLAS wait for each other without giving up the processor. Where there are more of them than
free processors, each waits for one that does not run, and two threads take many times as long as one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: What the numerical libraries read when they are loaded. The first one that a user sets counts for all.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)

#: Limits of a container: quota and period in one file (cgroup 2), or in two.
_CGROUPS = Path("/sys/fs/cgroup")


def choose_threads() -> None:
    """Tell the numerical libraries how many threads to use, unless the user has, or they are loaded."""
    if "numpy" in sys.modules or any(os.environ.get(name) for name in VARIABLES):
        return
    os.environ.update(dict.fromkeys(VARIABLES, str(free_cpus())))


def free_cpus(cgroups: Path = _CGROUPS) -> int:
    """Processors that this process may use and others leave to it; at least 1.

    Others are counted by the load average of the last minute, where the system has one.

    Examples
    --------
    >>> 1 <= free_cpus() <= os.cpu_count()
    True
    """
    total = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, min(allowed, _quota(cgroups) or allowed, total - round(load)))


def _quota(cgroups: Path) -> int | None:
    """Processors that a container has, at least 1; None if there is no limit."""
    for quota, period in (
        ("cpu.max", None),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        try:
            numbers = (cgroups / quota).read_text().split()
            if period is not None:
                numbers += (cgroups / period).read_text().split()
            cpus = float(numbers[0]) / float(numbers[1])
        except (OSError, ValueError, IndexError):  # not there, or "max"
            continue
        if cpus > 0:
            return max(1, int(cpus))
    return None
