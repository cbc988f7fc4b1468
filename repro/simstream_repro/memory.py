"""Memory of processes, in megabytes (of 2^20 bytes)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path


def resident_megabytes(pid: int | None = None) -> float:
    """Memory of a process, this one by default; 0 where not reported.

    Examples
    --------
    >>> resident_megabytes() >= 0
    True
    """
    try:
        with open(f"/proc/{'self' if pid is None else pid}/statm") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_megabytes() -> float:
    """The most memory that this process has had; 0 where not reported.

    Examples
    --------
    >>> peak_megabytes() >= 0
    True
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def machine_megabytes() -> float:
    """Memory of this machine; 0 where not reported.

    Examples
    --------
    >>> machine_megabytes() >= 0
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (AttributeError, OSError, ValueError):  # not on Windows
        return 0.0


def watch_peak() -> Callable[[], float]:
    """From now on: a function that says the most memory this process has had since.

    Where the system cannot begin anew, the most it has ever had.

    Examples
    --------
    >>> peak = watch_peak()
    >>> peak() >= 0
    True
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: begin anew
    except OSError:
        return peak_megabytes

    def since() -> float:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) / 2**10 if found else peak_megabytes()

    return since
