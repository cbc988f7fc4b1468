"""Ids: what items and queries are called where they are not just called by their row numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

#: Id of an item or a query.
Id = int | str

#: How many ids an error names.
_NAMED = 3


def check_ids(ids: Any, n: int | None = None, name: str = "ids") -> list[Id]:
    """Check ids: strings or integers, all different, n of them if it is given.

    Examples
    --------
    >>> import numpy as np
    >>> check_ids(np.array(["a", "b"]))
    ['a', 'b']
    """
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise TypeError(f"{name}: expected a list of integers or strings, got {ids!r}")
    for listed in ("to_pylist", "tolist"):  # of pyarrow; of numpy and pandas
        if hasattr(ids, listed):
            ids = getattr(ids, listed)()
            break
    names = list(ids)
    if n is not None and len(names) != n:
        raise ValueError(f"{name}: expected one for each of {n} rows, got {len(names)}")
    for place, value in enumerate(names):
        if isinstance(value, np.generic):
            names[place] = value = value.item()
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            raise TypeError(
                f"{name}: expected strings or integers, got {value!r} at position {place}"
            )
    if repeated := repeated_ids(names):
        raise ValueError(f"{name}: expected different ids, got {repeated} twice")
    return names


def repeated_ids(names: Sequence[Any]) -> str:
    """The first ids that occur more than once, for a message; empty if all are different.

    Examples
    --------
    >>> repeated_ids(["a", "b", "a"]), repeated_ids(["a", "b"])
    ("'a'", '')
    """
    if len(set(names)) == len(names):
        return ""
    return _first_ones([name for name, count in Counter(names).items() if count > 1])


def usable_ids(names: Any) -> list[Id] | None:
    """These names if they can be ids; None if there are none, or some are of another kind or occur twice.

    Examples
    --------
    >>> usable_ids(["a", "b"]), usable_ids([0.5, 1.5])
    (['a', 'b'], None)
    """
    try:
        return None if names is None else check_ids(names)
    except (TypeError, ValueError):
        return None


def rows_by_id(ids: Any, n: int, name: str = "ids") -> dict[Id, int] | None:
    """Row of each id; None where there are none, and rows are called by their numbers.

    Examples
    --------
    >>> rows_by_id(["a", "b"], 2)
    {'a': 0, 'b': 1}
    """
    if ids is None:
        return None
    return {value: row for row, value in enumerate(check_ids(ids, n, name))}


def rows_called(
    names: Iterable[Any], rows: Mapping[Any, int], unknown: dict[Any, None]
) -> list[int]:
    """The rows that ids stand for, -1 for those that are not known: they are added to `unknown`.

    Examples
    --------
    >>> unknown = {}
    >>> rows_called(["b", "x"], {"a": 0, "b": 1}, unknown), list(unknown)
    ([1, -1], ['x'])
    """
    found = [rows.get(name, -1) for name in names]
    if -1 in found:
        unknown |= {name: None for name, row in zip(names, found, strict=True) if row < 0}
    return found


def some_of(unknown: Iterable[Any]) -> str:
    """How many unknown ids there are, and what the first ones are, for a message.

    Examples
    --------
    >>> some_of(["x"]), some_of("abcd")
    ("1 unknown id: 'x'", "4 unknown ids: 'a', 'b', 'c', ...")
    """
    names = list(unknown)
    return f"{len(names):,} unknown id{'' if len(names) == 1 else 's'}: {_first_ones(names)}"


def _first_ones(names: list[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMED])
    return shown + (", ..." if len(names) > _NAMED else "")


def unknown_ids(what: str, unknown: Iterable[Any]) -> ValueError:
    """The one error about all ids that are not known."""
    return ValueError(f"{what}: expected ids of the items, got {some_of(unknown)}")
