"""How kernels are compiled, and how a kernel chooses an implementation for its components.

Components of a kernel (an entry rule, a store, a row reader) are ``NamedTuple`` classes. A driver
calls one function for all of them; numba resolves the call when it compiles the driver for given
component types, so the choice costs nothing at run time, and the driver stays cacheable on disk.
With ``NUMBA_DISABLE_JIT=1`` the very same implementations run as plain Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.extending import overload

# Small functions inside a loop become part of it, and count no references to the arrays they are given: the
# caller holds those. A call with its many arguments, and two atomic counts for each array taken out of a
# tuple, would cost several times the work of a step in low dimension, and keep loops from vectorising.
_INSIDE_LOOPS: Any = {"forceinline": True, "_nrt": False}


def by_component(
    implementations: dict[type, Callable[..., Any]], allocating: Collection[type] = ()
) -> Callable[..., Any]:
    """Return a function that runs the implementation belonging to ``type(args[0])``.

    All implementations must have the same parameter names: numba compares the signatures. Those that make
    or return arrays must be named in ``allocating``.
    """

    def function(*args: Any) -> Any:
        return implementations[type(args[0])](*args)

    def register(kinds: dict[type, Callable[..., Any]], options: Any) -> None:
        def choose(component: Any, *args: Any) -> Any:
            if isinstance(component, (types.NamedTuple, types.NamedUniTuple)):
                return kinds.get(component.instance_class)
            return None

        overload(function, strict=False, jit_options=options)(choose)

    inside = {kind: f for kind, f in implementations.items() if kind not in allocating}
    register(inside, {"nopython": True} | _INSIDE_LOOPS)
    others = {kind: f for kind, f in implementations.items() if kind in allocating}
    register(others, {"nopython": True})
    return function


# Reordering a sum is allowed (it must vectorise); assumptions about NaN or infinity are not.
_FASTMATH = {"reassoc", "contract"}


def _fingerprint() -> tuple[str, int]:
    """Of all kernel sources, in the form of numba's own stamp of a driver's file."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest(), 0


_STAMP = _fingerprint()


def driver(function: Callable[..., Any]) -> Any:
    """Decorate a function that Python calls: compiled once per machine, cached on disk.

    Numba's cache notices a change of the driver's own file only, but what a driver does is also in the
    files of its helpers: all of them are made part of the stamp.
    """
    compiled = njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _STAMP
    return compiled


#: Decorator of the functions that drivers call.
helper = njit(nogil=True, fastmath=_FASTMATH, error_model="numpy")

#: The same for small functions inside loops, which neither make arrays nor return any.
inner = njit(nogil=True, fastmath=_FASTMATH, error_model="numpy", **_INSIDE_LOOPS)

#: The same where every operation must be done as it is written: (a - b) - c is not a - (b + c).
exact_helper = njit(nogil=True, error_model="numpy")
