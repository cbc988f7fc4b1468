"""Test set-up, before anything imports numba or a BLAS."""

import os
import signal
import threading

import pytest
from hypothesis import settings

# The suite runs one process per core: more threads would only fight each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, in CI and at home; HYPOTHESIS_PROFILE=random looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def ray_turn(tmp_path_factory):
    """Wait until no other process of the suite uses Ray: its workers would fight for the same cores."""
    import fcntl

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    with open(folder / "ray.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
