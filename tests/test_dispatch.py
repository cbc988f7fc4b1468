"""How kernels are compiled: what may not happen inside loops is refused, not a crash."""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from numba import config, njit

from simstream._kernels import dispatch
from simstream._kernels.dispatch import by_component, exact_helper, helper, inner

compiled_only = pytest.mark.skipif(config.DISABLE_JIT, reason="kernels run as plain Python")


class Values(NamedTuple):
    values: np.ndarray


def _itself(component):
    return component.values


def _first(component):
    return component.values[0], len(component.values)


def test_plain_python_refuses_functions_inside_loops_that_return_an_array(monkeypatch):
    monkeypatch.setattr(config, "DISABLE_JIT", 1)

    @inner
    def itself(a):
        return a

    @inner
    def in_a_tuple(a):
        return 1, a

    choose = by_component({Values: _itself})
    for function, argument in (
        (itself, np.ones(3)),
        (in_a_tuple, np.ones(3)),
        (choose, Values(np.ones(3))),
    ):
        with pytest.raises(TypeError, match="expected numbers to be returned, got an array"):
            function(argument)


#: Run with an empty cache: signatures of functions inside a driver are known only where it was compiled.
RETURNED = """
import numpy as np, scipy.sparse as sp
from simstream import SORS, ListwiseSoftmax
from simstream._kernels import blocked, entrywise, head_tail, listwise, rules, steps
X = np.random.default_rng(0).normal(size=(30, 6))
for items in (X, sp.csr_matrix(X)):
    SORS(preprocessor=items).fit(np.arange(30).reshape(10, 3))
    ListwiseSoftmax(preprocessor=items).fit(np.arange(30).reshape(6, 5))
for module in (blocked, entrywise, head_tail, listwise, rules, steps):
    for name, function in vars(module).items():
        if getattr(function, "targetoptions", {}).get("forceinline"):
            for signature in function.nopython_signatures:
                print(name, signature.return_type)
"""


@compiled_only
def test_functions_inside_loops_return_numbers(tmp_path):
    """They count no references: an array that came out of one would be freed while it is in use."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", RETURNED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 5
    assert not [line for line in lines if "array" in line.lower()]


def test_numbers_and_allocating_components_are_fine():
    allocating = by_component({Values: _itself}, allocating={Values})
    numbers = by_component({Values: _first})

    @njit
    def call(component):
        first, n = numbers(component)
        return first, n, allocating(component)

    component = Values(np.arange(3.0) + 5)
    for _ in range(100):  # an array that came out uncounted would be freed again and again
        first, n, values = call(component)
        del values
    assert (first, n) == (5.0, 3)
    np.testing.assert_array_equal(component.values, [5.0, 6.0, 7.0])


def test_what_a_function_inside_loops_compiles_first_is_the_same_for_all():
    """Numba hands a caller's options down to the functions that it compiles for it."""

    @helper
    def total(n):
        return np.ones(n).sum()

    @helper
    def pass_on(a):
        return a

    @inner
    def inside(n):
        return total(n) + len(range(n))

    @njit
    def call_inside(n):
        return inside(n)

    @njit
    def call_others(a):
        return total(3), pass_on(a)

    assert call_inside(3) == 6.0
    a = np.arange(4.0)
    for _ in range(100):
        assert call_others(a)[0] == 3.0
    np.testing.assert_array_equal(a, np.arange(4.0))


@compiled_only
def test_an_exact_helper_is_exact_whoever_calls_it_first():
    @exact_helper
    def what_is_left(a, b):
        return (a + b) - a

    @njit(fastmath=True)
    def call(a, b):
        return what_is_left(a, b)

    assert call(1e16, 1.0) == 0.0
    (code,) = what_is_left.inspect_llvm().values()
    assert "fadd" in code
    assert "reassoc" not in code


def test_options_that_numba_lacks_are_left_out():
    assert dispatch._known(surely_unknown=True) == {}


def test_the_fingerprint_knows_the_version(monkeypatch):
    """Without sources beside the compiled files, nothing else would tell two releases apart."""
    import simstream

    before = dispatch._fingerprint()
    monkeypatch.setattr(simstream, "__version__", "999")
    assert dispatch._fingerprint() != before


@pytest.fixture
def kernels(tmp_path):
    """A package of two drivers, for processes of their own."""
    kernels = tmp_path / "package" / "kernels"
    kernels.mkdir(parents=True)
    (kernels.parent / "__init__.py").write_text("__version__ = '1'\n")
    (kernels / "__init__.py").write_text("")
    shutil.copy(dispatch.__file__, kernels / "dispatch.py")
    (kernels / "helpers.py").write_text(
        "from .dispatch import helper\n\n\n@helper\ndef number():\n    return 1\n"
    )
    (kernels / "drivers.py").write_text(
        "from .dispatch import driver\nfrom .helpers import number\n\n\n"
        "@driver\ndef call():\n    return number()\n\n\n"
        "@driver\ndef other():\n    return number() + 1\n"
    )
    return kernels


@compiled_only
def test_without_a_folder_to_write_to_kernels_are_compiled_without_a_cache(tmp_path, kernels):
    """A read-only installation, and a user without a home: one warning says what helps."""
    file = tmp_path / "a file"
    file.write_text("")
    (kernels / "__pycache__").write_text("")  # a file where the folder would be stops root too
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    environment |= {
        "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(file),
        "XDG_CACHE_HOME": str(file),
    }
    code = "from package.kernels.drivers import call, other; print(call(), other())"
    for given in ({}, {"NUMBA_CACHE_DIR": str(file)}):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | given,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["1", "2"]
        assert done.stderr.count("RuntimeWarning") == 1
        assert "NUMBA_CACHE_DIR" in done.stderr


@compiled_only
def test_the_compile_cache_notices_a_change_of_a_helper(tmp_path, kernels):
    """Numba looks at the driver's own file alone, and only at its time and size."""
    code = "from package.kernels.drivers import call; print(call(), sum(call.stats.cache_hits.values()))"
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "c"),
    }

    def run(value):
        (kernels / "helpers.py").write_text(
            f"from .dispatch import helper\n\n\n@helper\ndef number():\n    return {value}\n"
        )
        os.utime(kernels / "helpers.py", (0, 0))
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert run(1) == ["1", "0"]
    assert run(1) == ["1", "1"]  # from the cache
    assert run(2) == ["2", "0"]
