"""How kernels are compiled, and how one driver works on several stores and readers.

A store or a reader of rows is a ``NamedTuple`` class. A driver calls one function for all of them; numba
resolves the call when it compiles the driver for given types, so the choice costs nothing at run time, and
the driver stays cacheable on disk. With ``NUMBA_DISABLE_JIT=1`` the same functions run as plain Python.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic, overload


def _known(**options: bool) -> dict[str, bool]:
    """Those of these undocumented options that this numba has: without them kernels are merely slower."""
    try:
        from numba.core.registry import cpu_target

        options_of_numba: Any = cpu_target.options
    except (ImportError, AttributeError):
        return {}
    return {name: value for name, value in options.items() if hasattr(options_of_numba, name)}


# The only private parts of numba that kernels use.
#
# `forceinline` and `_nrt=False`: small functions inside a loop become part of it and do not count references
# to the arrays they are given (the caller holds them). Otherwise every array that is passed, or taken out of
# a tuple, costs two atomic operations, which also keep loops from vectorising. Without both options OASIS and
# SORS on dense rows, one at a time, take 3.5 to 5 times as long with 16 features and 1.4 times with 128; SORS
# on sparse rows takes 1.2 times as long. `forceinline` alone hardly helps, nor does `inline="always"`.
# `no_*_wrapper`: no entry points for C and Python, which saves a quarter of the time to compile. Only drivers
# have one for Python; of the others, tests call `py_func`.
_CALLED_BY_PYTHON: Any = _known(no_cfunc_wrapper=True)
_CALLED_BY_KERNELS: Any = _known(no_cpython_wrapper=True, no_cfunc_wrapper=True)
_INSIDE_LOOPS: Any = _CALLED_BY_KERNELS | _known(forceinline=True, _nrt=False)

# All other functions state the opposite: numba would hand the options of the first caller down to a
# function it calls, and keep that version for all later callers.
_ELSEWHERE: Any = _known(forceinline=False, _nrt=True)

_OPTIONS: Any = {"nogil": True, "error_model": "numpy"}

# Reordering a sum is allowed (it must vectorise); assumptions about NaN or infinity are not.
_FASTMATH = {"reassoc", "contract"}


def _fingerprint() -> str:
    """Hash of all kernel sources, and of the version for installations without sources."""
    from .. import __version__

    sources = sorted(Path(__file__).parent.glob("*.py"))
    parts = [__version__.encode(), *(p.read_bytes() for p in sources)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


_FINGERPRINT = _fingerprint()


def driver(function: Callable[..., Any]) -> Any:
    """Decorate a function that Python calls: compiled once per machine, cached on disk.

    Numba's cache notices changes of the driver's own file alone, by its time and size, but a driver is
    compiled together with helpers from other files. Numba names its cache files after the qualified name
    of the function: with a fingerprint of all sources in it, no other release's code can be found. Where no
    folder for such files can be written to, every process compiles what it needs.
    """
    function.__qualname__ += f".{_FINGERPRINT}"
    compiled = functools.partial(
        njit, **_OPTIONS, **_ELSEWHERE, **_CALLED_BY_PYTHON, fastmath=_FASTMATH
    )
    try:
        return compiled(cache=True)(function)
    except RuntimeError as error:  # numba has no class of its own for it
        if "cannot cache function" not in str(error):
            raise
    _warn_of_no_cache()
    return compiled()(function)


@functools.cache  # once is enough
def _warn_of_no_cache() -> None:
    warnings.warn(
        "no folder for compiled code: neither the folder of the installation nor the user's cache can be "
        "written to, so every process compiles anew, for seconds to minutes; set the environment variable "
        "NUMBA_CACHE_DIR to a folder that can be written to",
        RuntimeWarning,
        stacklevel=2,
    )


def compiled(function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The machine code of a driver for arguments of these types.

    Numba looks at the types of all arguments in every call, which takes longer than a step on vectors of a
    hundred features. Whoever calls the machine code must see to the types.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    return function.compile(tuple(map(typeof, arguments)))


#: Decorator of the functions that drivers call.
helper = njit(**_OPTIONS, **_ELSEWHERE, **_CALLED_BY_KERNELS, fastmath=_FASTMATH)

#: The same where every operation must be done as it is written: (a - b) - c is not a - (b + c). Numba would
#: hand the caller's `fastmath` down, were it not given.
exact_helper = njit(**_OPTIONS, **_ELSEWHERE, **_CALLED_BY_KERNELS, fastmath=False)


def inner(function: Callable[..., Any]) -> Any:
    """Decorate a small function inside loops, which must neither make nor return arrays.

    It counts no references, so an array that came out of it would be freed while it is in use. Plain
    Python (`make nojit`) checks that there is none.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return _checked(function)
    return njit(**_OPTIONS, **_INSIDE_LOOPS, fastmath=_FASTMATH)(function)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, refusing to return arrays."""

    @functools.wraps(function)
    def checked(*args: Any) -> Any:
        result = function(*args)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, np.ndarray):
                raise TypeError(
                    f"{function.__name__}: expected numbers to be returned, got an array"
                )
        return result

    return checked


def _prefetch(typing_context: Any, array: Any, i: Any, j: Any) -> Any:
    """Ask the memory for array[i, j], or array[i] if that is a number, wanted soon; nothing waits for it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = context.make_array(signature.args[0])(context, builder, args[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.ptrtoint(values.data, args[1].type)
        strides = cgutils.unpack_tuple(builder, values.strides)
        for index, stride in zip(args[1:], strides, strict=False):
            address = builder.add(address, builder.mul(index, stride))
        shape = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], shape)
        # To read, into the second cache: the first can wait for far fewer lines at a time.
        options = (ir.Constant(number, option) for option in (0, 2, 1))
        builder.call(call, [builder.inttoptr(address, byte), *options])
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp), generate


#: Decorated functions may call it: prefetch(array, i, j)
prefetch: Any = (lambda array, i, j: None) if config.DISABLE_JIT else intrinsic(_prefetch)  # type: ignore[attr-defined]


def by_component(
    implementations: dict[type, Callable[..., Any]], allocating: Collection[type] = ()
) -> Callable[..., Any]:
    """Return a function that runs the implementation belonging to ``type(args[0])``.

    All implementations must have the same parameter names: numba compares the signatures. Those that make
    or return arrays must be named in ``allocating``: the others are compiled like `inner` functions.
    """
    in_python = {
        kind: f if kind in allocating else _checked(f) for kind, f in implementations.items()
    }

    def function(*args: Any) -> Any:
        return in_python[type(args[0])](*args)

    def register(kinds: dict[type, Callable[..., Any]], options: Any) -> None:
        def choose(component: Any, *args: Any) -> Any:
            if isinstance(component, (types.NamedTuple, types.NamedUniTuple)):
                return kinds.get(component.instance_class)
            return None

        overload(function, strict=False, jit_options={"nopython": True} | options)(choose)

    inside = {kind: f for kind, f in implementations.items() if kind not in allocating}
    register(inside, _INSIDE_LOOPS)
    others = {kind: f for kind, f in implementations.items() if kind in allocating}
    register(others, _ELSEWHERE | _CALLED_BY_KERNELS)
    return function
