"""How many threads the command line uses."""

import json
import os
import subprocess
import sys

import pytest

from simstream import processors
from simstream.cli import threads


@pytest.fixture
def machine(monkeypatch):
    """A machine of 16 processors, with this load and so many processors for this process."""

    def given(load, allowed=16):
        monkeypatch.setattr(os, "cpu_count", lambda: 16)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)

    return given


@pytest.mark.parametrize(
    ("load", "allowed", "limits", "expected"),
    [
        (0.2, 16, {}, 16),
        (3.7, 16, {}, 12),
        (40.0, 16, {}, 1),
        (3.7, 4, {}, 4),  # the others are elsewhere
        (0.0, 16, {"cpu.max": "250000 100000"}, 2),
        (0.0, 16, {"cpu.max": "50000 100000"}, 1),
        (0.0, 16, {"cpu.max": "max 100000"}, 16),
        (
            0.0,
            16,
            {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        (0.0, 16, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
    ],
)
def test_processors_that_are_free(load, allowed, limits, expected, machine, tmp_path, monkeypatch):
    machine(load, allowed)
    monkeypatch.setattr(threads, "allowed_cpus", lambda: processors.allowed_cpus(tmp_path))
    (tmp_path / "cpu").mkdir()
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    assert threads.free_cpus() == expected


@pytest.mark.parametrize(
    ("load", "given", "is_limited"), [(1000.0, {}, True), (1000.0, {"OMP_NUM_THREADS": "2"}, False)]
)
def test_a_command_on_a_busy_machine_has_one_thread(load, given, is_limited):
    code = (
        "import json, os\n"
        f"os.getloadavg = lambda: ({load}, 0.0, 0.0)\n"
        "from simstream.cli import main\n"
        "main(['algorithms', '--json'], standalone_mode=False)\n"
        "import numpy, scipy.linalg, threadpoolctl\n"
        "print(json.dumps([pool['num_threads'] for pool in threadpoolctl.threadpool_info()]))\n"
    )
    inherited = {name: v for name, v in os.environ.items() if name not in threads.VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | given,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    wanted = 1 if is_limited else min(2, os.cpu_count())
    assert set(found) == {wanted}


def test_a_program_that_has_loaded_numpy_keeps_its_threads(monkeypatch, machine):
    machine(1000.0)
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    threads.choose_threads()
    assert not set(threads.VARIABLES) & set(os.environ)
