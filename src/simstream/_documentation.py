"""How classes present themselves: docstrings with shared parts, and a short repr."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def documented(**texts: str) -> Callable[[type], type]:
    """Decorator that replaces ``{name}`` in a class's docstring by the text of that name.

    Examples
    --------
    >>> class Thing:
    ...     "A thing with a {seed}."
    >>> documented(seed="generator")(Thing).__doc__
    'A thing with a generator.'
    """

    def fill(cls: type) -> type:
        if cls.__doc__:  # not with python -OO
            # Newer versions of Python strip the indentation, older ones keep it: strip it always.
            doc = inspect.cleandoc(cls.__doc__)
            for name, text in texts.items():
                doc = doc.replace(f"{{{name}}}", inspect.cleandoc(text))
            cls.__doc__ = doc
        return cls

    return fill


def short_repr(estimator: Any) -> str:
    """The parameters of an estimator that differ from their defaults; of arrays only the shape and type.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS
    >>> OASIS(C=0.5, preprocessor=np.ones((100, 8)))
    OASIS(C=0.5, preprocessor=<100 x 8 ndarray of float64>)
    """
    defaults = inspect.signature(type(estimator)).parameters
    shown = []
    for name, value in estimator.get_params(deep=False).items():
        default = defaults[name].default
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        if value is default or (is_plain and type(value) is type(default) and value == default):
            continue
        shown.append(f"{name}={_short(value)}")
    return f"{type(estimator).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    if getattr(value, "shape", ()):
        size = " x ".join(map(str, value.shape))
        return f"<{size} {type(value).__name__} of {value.dtype}>"
    return repr(value)
