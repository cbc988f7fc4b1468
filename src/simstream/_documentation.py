"""Docstrings of classes that share parameters: written once, filled in where they belong."""

from __future__ import annotations

import inspect
from collections.abc import Callable


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
            # Newer versions of Python take the indentation away, older ones leave it: always away.
            doc = inspect.cleandoc(cls.__doc__)
            for name, text in texts.items():
                doc = doc.replace(f"{{{name}}}", inspect.cleandoc(text))
            cls.__doc__ = doc
        return cls

    return fill
