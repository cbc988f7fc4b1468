"""The items that are searched while an adapter learns: by id, by row, and the part of them that is ranked."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..ids import rows_by_id
from ..similarity.base import all_products
from ..validation import Items, stacked
from .judgements import row_of


class Ranked(NamedTuple):
    """The rows that are ranked for one query, and their vectors."""

    rows: np.ndarray
    vectors: Any
    #: Whether the rows ascend: then places are found without sorting.
    ascends: bool

    def scores(self, queries: Any) -> np.ndarray:
        """Inner products of a few queries with all of them, one row for each query."""
        if sp.issparse(queries) or sp.issparse(self.vectors):
            return all_products(queries, self.vectors)
        # Twice as fast as the other way round, which copies the vectors first.
        return np.ascontiguousarray((self.vectors @ queries.T).T)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where those of the rows are that are ranked."""
        order = None if self.ascends else np.argsort(self.rows, kind="stable")
        found = np.searchsorted(self.rows, rows, sorter=order)
        found = np.minimum(found, len(self.rows) - 1)
        places = found if order is None else order[found]
        return places[self.rows[places] == rows]

    def nearest(self, scores: np.ndarray, k: int, left_out: np.ndarray) -> np.ndarray:
        """Rows with the k highest scores, some left out."""
        kept = scores.copy()
        kept[self.places(left_out)] = -np.inf
        k = min(k, len(kept))
        best = np.argpartition(-kept, k - 1)[:k]
        return self.rows[best[np.isfinite(kept[best])]]


class SearchedItems:
    """Items with their ids, and a fixed random part of them to rank if there are very many.

    Parameters
    ----------
    items : checked items
    ids : one for each item, or None for row numbers
    pool_size : int
        Most items that are ranked for a query, besides its relevant ones.
    learnt : set of ids of items that something was learnt about
    given : the objects that items and ids were given as
    """

    def __init__(
        self,
        items: Items,
        ids: Sequence[Hashable] | None,
        pool_size: int,
        learnt: set[Hashable],
        given: tuple[Any, Any] = (None, None),
    ) -> None:
        n_items = items.shape[0]
        self.items = items
        self._given = *given, pool_size
        self._rows = rows_by_id(ids, n_items, "ids")
        self.keys: Sequence[Hashable] = range(n_items) if self._rows is None else list(self._rows)
        self.is_learnt = np.fromiter((key in learnt for key in self.keys), bool, n_items)
        rows = np.arange(n_items)
        if n_items > pool_size:
            rows = np.sort(np.random.default_rng(n_items).choice(n_items, pool_size, replace=False))
        self._is_pooled = np.zeros(n_items, bool)
        self._is_pooled[rows] = True
        vectors = items.values if len(rows) == n_items else items.rows(rows)
        self._pool = Ranked(rows, vectors, ascends=True)

    def __len__(self) -> int:
        return len(self.keys)

    def are(self, given: Any, ids: Any, pool_size: int, dtype: Any) -> bool:
        """Whether they were made of these very objects, as they would be now."""
        items, known, size = self._given
        is_same = items is given and known is ids
        return is_same and size == pool_size and self.items.dtype == np.dtype(dtype)

    def row(self, key: Any, name: str, unknown: dict[Any, None] | None = None) -> int:
        """Row of an item by its id; see `row_of`."""
        return row_of(key, self._rows, len(self), name, unknown)

    def rows_of(self, keys: Collection[Hashable]) -> np.ndarray:
        """Rows of those of the items that are there."""
        if self._rows is None:
            found = [key for key in keys if isinstance(key, int) and key < len(self)]
        else:
            found = [self._rows[key] for key in keys if key in self._rows]
        return np.array(found, np.int64)

    def pool_with(self, rows: np.ndarray) -> Ranked:
        """The items to rank for a query, these among them."""
        missing = rows[~self._is_pooled[rows]]
        if not len(missing):
            return self._pool
        vectors = stacked([self._pool.vectors, self.items.rows(missing)])
        return Ranked(np.concatenate([self._pool.rows, missing]), vectors, ascends=False)

    def only(self, rows: np.ndarray) -> Ranked:
        """Just these items, to rank among themselves."""
        return Ranked(rows, self.items.rows(rows), ascends=False)

    def random_rows(self, rng: np.random.Generator, n: int, left_out: np.ndarray) -> np.ndarray:
        """Up to n random rows, some left out: as many random numbers are drawn whatever is left out."""
        drawn = np.unique(rng.integers(0, len(self), n))
        return drawn[~np.isin(drawn, left_out)]
