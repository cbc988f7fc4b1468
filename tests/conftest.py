"""Test set-up, before anything imports numba or a BLAS."""

import os
import signal
import threading
from collections import Counter, defaultdict

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


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        default="cpu",
        help="where learners that leave the choice open learn: cpu, torch (its code on the CPU) or cuda",
    )
    parser.addoption(
        "--counts", action="store_true", help="count the tests of each file at the end"
    )


def pytest_terminal_summary(terminalreporter, config):
    """With --counts: how the tests of each file ended, and apart from them those with PostgreSQL."""
    if not config.getoption("--counts"):
        return
    counts = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            path, _, test = report.nodeid.partition("::")
            counts[path.rpartition("/")[2] + ", PostgreSQL" * ("postgres" in test)][outcome] += 1
    for kind, count in sorted(counts.items()):
        ended = ", ".join(f"{number} {outcome}" for outcome, number in count.items())
        terminalreporter.write_line(f"{kind:<36} {ended}")


@pytest.fixture(autouse=True)
def device(request, monkeypatch):
    """Learners with the default device, "cpu", are placed on that of --device, unless a test chooses it."""
    name = request.config.getoption("--device")
    if name != "cpu" and not request.node.get_closest_marker("names_devices"):
        from simstream.online import base

        find = base.find_device

        def find_instead(device, *, is_sparse):
            if device == "cpu" and not is_sparse:
                device = name
            return find(device, is_sparse=is_sparse)

        monkeypatch.setattr(base, "find_device", find_instead)
    return name


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
