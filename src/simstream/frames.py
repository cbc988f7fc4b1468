"""Tables of pandas, polars and pyarrow as arrays: what they have in common is enough, none is imported."""

from __future__ import annotations

from typing import Any

import numpy as np


def column_names(values: Any) -> list[Any] | None:
    """Names of the columns of a table; None for anything else."""
    names = getattr(values, "column_names", None)  # pyarrow
    if names is None:
        names = getattr(values, "columns", None)  # pandas, polars
    return None if names is None else list(names)


def feature_names(names: list[Any]) -> np.ndarray | None:
    """Names of columns as `feature_names_in_` has them; None if some are not strings."""
    if not all(isinstance(name, str) for name in names):
        return None
    return np.array(names, dtype=object)


def column(table: Any, name: Any) -> Any:
    """One column of a table."""
    return table.column(name) if hasattr(table, "column_names") else table[name]


def without(table: Any, name: Any) -> Any:
    """The table without one of its columns."""
    rest = [other for other in column_names(table) or [] if other != name]
    return table.select(rest) if hasattr(table, "select") else table[rest]


def rows(table: Any) -> list[tuple[Any, ...]]:
    """The rows of a table, of Python's own numbers and texts."""
    columns = (column(table, name) for name in column_names(table) or [])
    lists = (one.to_pylist() if hasattr(one, "to_pylist") else one.to_list() for one in columns)
    return list(zip(*lists, strict=True))


def index_ids(values: Any) -> list[Any] | None:
    """The index of a table or a column of pandas, unless it only counts the rows."""
    index = getattr(values, "index", None)
    if index is None or callable(index) or not hasattr(index, "tolist"):
        return None
    ids = index.tolist()
    return None if ids == list(range(len(ids))) else ids


def to_array(table: Any, names: list[Any], what: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of a table, and the names of its features.

    A single column of vectors is as good as one column for each feature, but has no names for these.
    """
    if len(names) == 1:
        vectors = np.asarray(column(table, names[0]))
        if vectors.dtype == object or vectors.ndim == 2:
            return vectors, None
    for name in names:
        if not _is_numeric(column(table, name)):
            raise TypeError(f"{what}: expected numbers in every column, got text in {name!r}")
    return np.asarray(table), feature_names(names)


def _is_numeric(values: Any) -> bool:
    """Whether a column holds numbers, judging by its first values: its own type may be anything."""
    first = np.asarray(values[:8])
    if first.dtype != object:
        return first.dtype.kind in "biuf"
    return all(value is None or isinstance(value, (int, float)) for value in first.tolist())
