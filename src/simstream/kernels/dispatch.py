"""How kernels are compiled, and how a kernel chooses an implementation for its components.

Components of a kernel (an entry rule, a store, a row reader) are ``NamedTuple`` classes. A driver
calls one function for all of them; numba resolves the call when it compiles the driver for given
component types, so the choice costs nothing at run time, and the driver stays cacheable on disk.
With ``NUMBA_DISABLE_JIT=1`` the very same implementations run as plain Python.

Numba's disk cache notices a change of the driver's own file only. The tests therefore keep one cache
per state of the sources (tests/conftest.py); after an upgrade all files are new, and so is the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.extending import overload


def by_component(implementations: dict[type, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that runs the implementation belonging to ``type(args[0])``.

    All implementations must have the same parameter names: numba compares the signatures.
    """

    def function(*args: Any) -> Any:
        return implementations[type(args[0])](*args)

    def choose(component: Any, *args: Any) -> Any:
        if isinstance(component, (types.NamedTuple, types.NamedUniTuple)):
            return implementations.get(component.instance_class)
        return None

    overload(function, strict=False)(choose)
    return function


# Reordering a sum is allowed (it must vectorise); assumptions about NaN or infinity are not.
_FASTMATH = {"reassoc", "contract"}

#: Decorator of the functions Python calls: compiled once per machine, cached on disk.
driver = njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")

#: Decorator of the functions that drivers call.
helper = njit(nogil=True, fastmath=_FASTMATH, error_model="numpy")
