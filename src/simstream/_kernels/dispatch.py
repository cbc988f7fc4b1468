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
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.datamodel.registry import default_manager
from numba.core.errors import NumbaTypeError
from numba.core.typed_passes import NopythonTypeInference
from numba.extending import overload


def _is_counted(kind: Any) -> bool:
    """Whether values of a type are, or hold, something with a count of its references: an array."""
    return default_manager.lookup(kind).contains_nrt_meminfo()


@register_pass(mutates_CFG=False, analysis_only=True)
class _RefuseArrays(FunctionPass):
    """Refuses functions that return an array, or that call one that does."""

    _name = "simstream_refuse_arrays"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Raise if an array comes out of the function, or of what it calls."""
        name = state.func_id.func_qualname
        if _is_counted(state.return_type):
            raise NumbaTypeError(
                f"{name}: functions inside loops must return numbers, got {state.return_type}"
            )
        for expression, signature in state.calltypes.items():
            if getattr(expression, "op", None) == "call" and _is_counted(signature.return_type):
                raise NumbaTypeError(
                    f"{name}: functions inside loops must call what returns numbers, got "
                    f"{signature.return_type} at {expression.loc}"
                )
        return False


class _BorrowingCompiler(CompilerBase):
    """Numba's compiler, for functions that count no references to arrays: none may come out of them."""

    def define_pipelines(self) -> list[Any]:
        """The usual passes, and ours as soon as types are known."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_RefuseArrays, NopythonTypeInference)
        passes.finalize()
        return [passes]


def _known(**options: Any) -> dict[str, Any]:
    """The options, without `_nrt` where this numba has no such option: that costs speed alone."""
    from numba.core.compiler import Flags
    from numba.core.registry import cpu_target

    try:
        cpu_target.options.parse_as_flags(Flags(), options)
    except KeyError:
        del options["_nrt"]
    return options


# Small functions inside a loop become part of it, and count no references to the arrays they are given: the
# caller holds those. A call with its many arguments, and two atomic counts for each array taken out of a
# tuple, would cost several times the work of a step in low dimension, and keep loops from vectorising.
_INSIDE_LOOPS: Any = _known(forceinline=True, _nrt=False) | {"pipeline_class": _BorrowingCompiler}

# All else says so too: numba would hand the options of whatever calls a function first down to it, and keep
# that version for all later callers.
_ELSEWHERE: Any = _known(forceinline=False, _nrt=True)


def by_component(
    implementations: dict[type, Callable[..., Any]], allocating: Collection[type] = ()
) -> Callable[..., Any]:
    """Return a function that runs the implementation belonging to ``type(args[0])``.

    All implementations must have the same parameter names: numba compares the signatures. Those that make
    or return arrays must be named in ``allocating``: the others are compiled like `inner` functions.
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
    register(others, {"nopython": True} | _ELSEWHERE)
    return function


_OPTIONS: Any = {"nogil": True, "error_model": "numpy"} | _ELSEWHERE

# Reordering a sum is allowed (it must vectorise); assumptions about NaN or infinity are not.
_FASTMATH = {"reassoc", "contract"}


def _fingerprint() -> tuple[str, int]:
    """Of all kernel sources, in the form of numba's own stamp of a driver's file.

    An installation may come without sources: then the version alone tells kernels apart.
    """
    from .. import __version__

    sources = sorted(Path(__file__).parent.glob("*.py"))
    parts = [__version__.encode(), *(p.read_bytes() for p in sources)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest(), 0


_STAMP = _fingerprint()


def driver(function: Callable[..., Any]) -> Any:
    """Decorate a function that Python calls: compiled once per machine, cached on disk.

    Numba's cache notices a change of the driver's own file only, but what a driver does is also in the
    files of its helpers: all of them are made part of the stamp.
    """
    compiled = njit(cache=True, **_OPTIONS, fastmath=_FASTMATH)(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _STAMP
    return compiled


#: Decorator of the functions that drivers call.
helper = njit(**_OPTIONS, fastmath=_FASTMATH)

#: The same for small functions inside loops, which neither make arrays nor return any.
inner = njit(**{**_OPTIONS, **_INSIDE_LOOPS}, fastmath=_FASTMATH)

#: The same where every operation must be done as it is written: (a - b) - c is not a - (b + c). Numba would
#: hand the caller's `fastmath` down too, were it not given.
exact_helper = njit(**_OPTIONS, fastmath=False)
