"""Choose an implementation by the type of its first argument, at compile time.

Components of a kernel (an entry rule, a store, a row reader) are ``NamedTuple`` classes. A driver
calls one function for all of them; numba resolves the call when it compiles the driver for given
component types, so the choice costs nothing at run time, and the driver stays cacheable on disk.
With ``NUMBA_DISABLE_JIT=1`` the very same implementations run as plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import overload


def by_component(implementations: dict[type, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that runs the implementation belonging to ``type(args[0])``.

    All implementations must have the same parameter names: numba compares the signatures.
    """

    def function(*args: Any) -> Any:
        return implementations[type(args[0])](*args)

    def choose(component: Any, *args: Any) -> Any:
        if isinstance(component, types.BaseNamedTuple):
            return implementations.get(component.instance_class)
        return None

    overload(function, strict=False)(choose)
    return function
