"""What every index can do, the checks they share, and how they are written to a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import scipy.sparse as sp

from ..persistence import ModelFileError, read_file
from ..validation import check_items

#: Name of an item.
Id = int | str


class Found(NamedTuple):
    """Items found for each query, best first.

    Parameters
    ----------
    ids : array of objects of shape (n_queries, k')
        Names as they were added; k' is k, or the number of items where these are fewer. An approximate
        index that finds less fills up with None.
    scores : float32 array of shape (n_queries, k')
        Inner products; -inf beside None.
    """

    ids: np.ndarray
    scores: np.ndarray


class Index(Protocol):
    """Items by name, searched by their inner products with queries.

    The learnt similarity s(q, x) = q' M x is an inner product of ``model.transform_query(q)`` with the
    item as it is, so that an index is never rebuilt when the model changes (see `query_vectors` for
    distances). Rows are kept in float32.
    """

    def add(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items; a name that is there already is an error, and nothing is added then."""

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items; a name that is not there is an error, and nothing is removed then."""

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items of largest inner product with each query."""

    def __len__(self) -> int:
        """Number of items."""

    def __contains__(self, name: object) -> bool:
        """Whether there is an item of that name."""

    def save(self, path: str | Path) -> None:
        """Write the index to one file, atomically."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an index written by ``save``."""


def check_ids(ids: Iterable[Id]) -> list[Id]:
    """Check names of items: integers or text, all different."""
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"ids: expected a list of integers or strings, got {ids!r}")
    names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    for place, name in enumerate(names):
        if isinstance(name, np.generic):
            names[place] = name = name.item()
        if not isinstance(name, (int, str)) or isinstance(name, bool):
            raise TypeError(f"ids: expected integers or strings, got {name!r} at place {place}")
    if len(set(names)) < len(names):
        seen: set[Id] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"ids: expected every name once, got {twice!r} twice")
    return names


def check_new_ids(ids: Iterable[Id], known: Any) -> list[Id]:
    """Check names of items to be added: none is there already."""
    names = check_ids(ids)
    for name in names:
        if name in known:
            raise ValueError(
                f"ids: expected new names, got {name!r}, which is in the index already"
            )
    return names


def check_known_ids(ids: Iterable[Id], known: Any) -> list[Id]:
    """Check names of items that must be there."""
    names = check_ids(ids)
    for name in names:
        if name not in known:
            raise KeyError(f"ids: expected names of items in the index, got {name!r}")
    return names


def check_rows(rows: Any, name: str, *, n_features: int | None, n_rows: int | None = None) -> Any:
    """Check vectors of one length: a float32 array, or CSR matrix where they are sparse."""
    values = check_items(rows, name, dtype=np.float32).values
    if n_rows is not None and values.shape[0] != n_rows:
        raise ValueError(f"{name}: expected one for each of {n_rows} ids, got {values.shape[0]}")
    if n_features is not None and values.shape[1] != n_features:
        raise ValueError(f"{name}: expected {n_features} features, got {values.shape[1]}")
    return values


def as_dense(rows: Any) -> np.ndarray:
    """Rows as an array."""
    return rows.toarray() if sp.issparse(rows) else rows


def encode_ids(names: list[Id]) -> np.ndarray:
    """Names as bytes of JSON, which keeps integers and strings apart."""
    return np.frombuffer(json.dumps(names).encode(), np.uint8)


def decode_ids(data: np.ndarray, n: int) -> list[Id]:
    """Names from the bytes of `encode_ids`."""
    names = check_ids(json.loads(data.tobytes()))
    if len(names) != n:
        raise ModelFileError(f"damaged index file: {len(names)} names of {n} items")
    return names


def read_index_file(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Description and arrays of an index of that kind."""
    header, arrays = read_file(path, what="index")
    description = header["index"]
    if description.get("kind") != kind:
        raise ModelFileError(
            f"{path}: expected an index of kind {kind!r}, got {description.get('kind')!r}"
        )
    return description, arrays
