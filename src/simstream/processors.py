"""How many processors this process may use: fewer than the machine has, in a container."""

from __future__ import annotations

import os
from pathlib import Path

#: Limits of a container: quota and period in one file (cgroup 2), or in two.
_CGROUPS = Path("/sys/fs/cgroup")


def allowed_cpus(cgroups: Path = _CGROUPS) -> int:
    """Processors that this process may use, by its affinity and the quota of its container; at least 1.

    Examples
    --------
    >>> 1 <= allowed_cpus() <= os.cpu_count()
    True
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(count or 1, _quota(cgroups) or count or 1)


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
