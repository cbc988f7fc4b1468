"""How kernels are compiled: what may not happen inside loops is refused, not a crash."""

from typing import NamedTuple

import numpy as np
import pytest
from numba import config
from numba.core import registry
from numba.core.errors import NumbaError

from simstream._kernels import dispatch
from simstream._kernels.dispatch import by_component, exact_helper, helper, inner

compiled_only = pytest.mark.skipif(config.DISABLE_JIT, reason="kernels run as plain Python")


class Values(NamedTuple):
    values: np.ndarray


def _itself(component):
    return component.values


def _first(component):
    return component.values[0], len(component.values)


@compiled_only
def test_a_function_inside_loops_that_returns_an_array_is_refused():
    @inner
    def itself(a):
        return a

    @inner
    def in_a_tuple(a):
        return 1, (a, 2.0)

    choose = by_component({Values: _itself})

    @helper
    def call(component):
        return choose(component)[0]

    for function, argument in ((itself, np.ones(3)), (in_a_tuple, np.ones(3))):
        with pytest.raises(NumbaError, match=r"must return numbers, got .*array"):
            function(argument)
    with pytest.raises(NumbaError, match="array"):  # numba itself refuses some of them
        call(Values(np.ones(3)))


@compiled_only
def test_a_function_inside_loops_that_calls_for_an_array_is_refused():
    @inner
    def through_numpy(a):
        return np.asarray(a)[0]

    with pytest.raises(NumbaError, match=r"must call what returns numbers, got .*array"):
        through_numpy(np.ones(3))


def test_numbers_and_allocating_components_are_fine():
    allocating = by_component({Values: _itself}, allocating={Values})
    numbers = by_component({Values: _first})

    @helper
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

    assert inside(3) == 6.0
    assert total(3) == 3.0
    a = np.arange(4.0)
    for _ in range(100):
        assert pass_on(a) is not None
    np.testing.assert_array_equal(a, np.arange(4.0))


@compiled_only
def test_an_exact_helper_is_exact_whoever_calls_it_first():
    @exact_helper
    def what_is_left(a, b):
        return (a + b) - a

    @helper
    def call(a, b):
        return what_is_left(a, b)

    assert call(1e16, 1.0) == 0.0
    (code,) = what_is_left.inspect_llvm().values()
    assert "fadd" in code
    assert "reassoc" not in code


@compiled_only
def test_a_numba_without_the_private_option_does_without(monkeypatch):
    class Strict(registry.cpu_target.options):
        def _apply(self, flags, options):
            if "_nrt" in options:
                raise KeyError("Unrecognized options: {'_nrt'}")
            super()._apply(flags, options)

    monkeypatch.setattr(type(registry.cpu_target), "options", Strict)
    assert dispatch._known(forceinline=True, _nrt=False) == {"forceinline": True}


def test_the_stamp_knows_the_version(monkeypatch):
    """Without sources beside the compiled files, nothing else would tell two releases apart."""
    import simstream

    before = dispatch._fingerprint()
    monkeypatch.setattr(simstream, "__version__", "999")
    assert dispatch._fingerprint() != before
