"""Feedback as an adapter takes it: by rows, or by ids, of queries and items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import frames
from ..data.clicks import LARGEST_WEIGHT
from ..ids import some_of

if TYPE_CHECKING:
    from .searched import SearchedItems


def row_of(
    value: Any,
    rows: Mapping[Any, int] | None,
    n: int,
    name: str,
    unknown: dict[Any, None] | None = None,
) -> int:
    """The row that an id, or a row number, stands for; raises if there is none.

    Where a dictionary is given, ids that are not known are added to it instead, and have row -1.
    """
    if rows is not None:
        value = value.item() if isinstance(value, np.generic) else value
        found = rows.get(value, -1)
        if found < 0:
            if unknown is None:
                raise ValueError(f"{name}: expected a known id, got {value!r}")
            unknown[value] = None
        return found
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name}: expected row numbers, got {value!r}")
    if not 0 <= value < n:
        raise ValueError(f"{name}: expected a row number below {n}, got {value}")
    return int(value)


def grades_by_query(
    relevance: Any, query_rows: Mapping[Any, int] | None, n_queries: int, searched: SearchedItems
) -> dict[int, dict[int, float]]:
    """Grades of the judged items of each query, by rows, queries in the order of their first judgement.

    Examples
    --------
    >>> from simstream.adaptation.searched import SearchedItems
    >>> from simstream.validation import Items
    >>> items = SearchedItems(Items(np.eye(3)), None, 10, set())
    >>> grades_by_query([(1, 2), (0, 1), (1, 0, -1)], None, 2, items)
    {1: {2: 1.0, 0: -1.0}, 0: {1: 1.0}}
    """
    if frames.column_names(relevance) is not None:
        relevance = frames.rows(relevance)
    elif hasattr(relevance, "__array__"):
        relevance = np.asarray(relevance)
    elif isinstance(relevance, Mapping) or not isinstance(relevance, Iterable):
        raise TypeError(
            f"relevance: expected rows of query, item and maybe a grade, got {type(relevance).__name__}"
        )
    if isinstance(relevance, np.ndarray):
        if relevance.ndim != 2 or relevance.shape[1] not in (2, 3):
            raise ValueError(
                "relevance: expected rows of query, item and maybe a grade, "
                f"got shape {relevance.shape}"
            )
        if relevance.dtype.kind == "f":
            rows = relevance[:, :2]
            if not (rows == np.floor(rows)).all():  # also refuses NaN
                raise ValueError("relevance: expected row numbers, got fractions or NaN")
            pairs, grades = rows.astype(np.int64).tolist(), relevance[:, 2:].tolist()
            relevance = [(*pair, *grade) for pair, grade in zip(pairs, grades, strict=True)]
        else:
            relevance = _without_repetitions(relevance).tolist()
    judged: dict[int, dict[int, float]] = {}
    count = 0
    unknown: tuple[dict[Any, None], dict[Any, None]] = ({}, {})
    for count, entry in enumerate(relevance, 1):
        if not hasattr(entry, "__len__") or not 2 <= len(entry) <= 3:
            raise ValueError(
                f"relevance: expected query, item and maybe a grade, got {entry!r} (entry {count})"
            )
        name = f"relevance, entry {count}"
        query = row_of(entry[0], query_rows, n_queries, f"{name}, query", unknown[0])
        item = searched.row(entry[1], f"{name}, item", unknown[1])
        grade = float(entry[2]) if len(entry) == 3 else 1.0
        if not np.isfinite(grade):
            raise ValueError(f"relevance, entry {count}: expected a finite grade, got {grade}")
        judged.setdefault(query, {})[item] = grade
    for names, what in zip(unknown, ("query", "item"), strict=True):
        if names:
            raise ValueError(f"relevance: expected known {what} ids, got {some_of(names)}")
    if not count:
        raise ValueError("relevance: expected at least one judgement, got none")
    return judged


def own_rows(own_items: Any, n_queries: int, searched: SearchedItems) -> list[int]:
    """Row of the item that each query is itself, -1 where it is none."""
    if own_items is None:
        return [-1] * n_queries
    if len(own_items) != n_queries:
        raise ValueError(
            f"own_items: expected one for each of {n_queries} queries, got {len(own_items)}"
        )
    return [-1 if item is None else searched.row(item, "own_items") for item in own_items]


def _without_repetitions(pairs: np.ndarray) -> np.ndarray:
    """The same judgements in the same order, each once, if there are no grades: there may be very many."""
    if pairs.shape[1] == 3:
        return pairs
    return pairs[np.sort(np.unique(pairs, axis=0, return_index=True)[1])]


def inverse_propensities(propensities: Any, n: int) -> list[float]:
    """How often a click at each of n places counts.

    Examples
    --------
    >>> inverse_propensities([1.0, 0.5, 0.01], 3)
    [1.0, 2.0, 10.0]
    """
    if propensities is None:
        return [1.0] * n
    values = np.asarray(propensities, np.float64)
    if values.shape != (n,) or not ((values > 0) & (values <= 1)).all():
        raise ValueError(
            f"propensities: expected {n} numbers above 0 and at most 1, got {propensities!r}"
        )
    return np.minimum(1.0 / values, LARGEST_WEIGHT).tolist()
