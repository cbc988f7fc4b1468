"""Exact search by inner products: matrix products in chunks, and views that never change.

Rows are only ever appended to a buffer, and a removed row is only noted in a list that is appended to as
well. What is in the index at a moment is therefore a number of rows and a number of removals, and a view
that holds these two numbers beside the buffers stays right while the index grows. Whoever searches takes
the newest view, which is one read of one attribute: readers never wait for the writer. When too many rows
are removed ones, the writer copies the others into new buffers; views keep the old ones alive as long as
they need them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..persistence import write_file
from ..similarity.scoring import chunks, top_k
from ..validation import check_integer
from .protocol import (
    Found,
    Id,
    check_ids,
    check_known_ids,
    check_new_ids,
    check_rows,
    decode_ids,
    encode_ids,
    read_index_file,
)
from .rows import CsrRows, DenseRows, rows_from_arrays, rows_like, with_space

#: Up to this many neighbours, merging into a short list beats sorting all scores.
_FEW = 128

#: Queries at a time: with more, pieces of scores would outgrow the cache.
_QUERIES = 256

#: Rows are copied once this share of them is removed ones.
_MAX_REMOVED = 0.25


class _Buffers:
    """What an index and its views share. Only appended to; a larger copy has the same beginning."""

    def __init__(self, rows: DenseRows | CsrRows) -> None:
        self.rows = rows
        #: Row -> name.
        self.names = np.empty(0, object)
        #: Name -> (newest row of that name, the same of the row before it or None). Nothing is taken
        #: out: an older view finds a row that is removed now, or that has got a successor.
        self.places: dict[Id, tuple[int, Any]] = {}
        #: Removed rows in the order of removal.
        self.removed = np.empty(0, np.int64)

    def append(self, n: int, names: list[Id], values: Any) -> None:
        """Write items behind the first n."""
        self.rows.append(n, values)
        end = n + len(names)
        kept = with_space(self.names, n, end)
        kept[n:end] = names
        self.names = kept
        for row, name in enumerate(names, n):
            self.places[name] = (row, self.places.get(name))


class ExactView:
    """What was in an `ExactIndex` at one moment. It never changes and may be used by many threads.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream.search import ExactIndex
    >>> index = ExactIndex()
    >>> index.add(["a", "b"], np.eye(2))
    >>> before = index.view()
    >>> index.remove(["a"])
    >>> len(before), len(index), before.search([[2.0, 1.0]], k=1).ids[0, 0]
    (2, 1, 'a')
    """

    def __init__(self, buffers: _Buffers | None, n: int, n_removed: int) -> None:
        self._buffers, self._n, self._n_removed = buffers, n, n_removed

    def __len__(self) -> int:
        return self._n - self._n_removed

    def __contains__(self, name: object) -> bool:
        return self._row_of(name) >= 0

    @property
    def n_features(self) -> int | None:
        """Length of the vectors; None before any were added."""
        return None if self._buffers is None else self._buffers.rows.n_features

    @property
    def ids(self) -> list[Id]:
        """Names of all items in the order in which they were added."""
        return [] if self._buffers is None else self._buffers.names[self._rows].tolist()

    def vectors(self, ids: Iterable[Id]) -> Any:
        """Copies of items' vectors, by name: an array, or a CSR matrix where the index is sparse."""
        names = list(ids)
        check_known_ids(dict.fromkeys(names), self)  # a name may be asked for twice
        if self._buffers is None:
            return np.empty((0, 0), np.float32)
        rows = np.array([self._row_of(name) for name in names], dtype=np.int64)
        return self._buffers.rows.take(rows)

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items of largest inner product with each query; ties in the order of adding.

        Parameters
        ----------
        queries : array or CSR matrix of shape (n_queries, n_features)
        k : int

        Returns
        -------
        Found
            ``ids`` and ``scores`` of shape (n_queries, min(k, number of items)).
        """
        k = min(check_integer("k", k), len(self))
        asked = check_rows(queries, "queries", n_features=self.n_features)
        n = asked.shape[0]
        if self._buffers is None or k == 0:
            return Found(np.empty((n, 0), object), np.empty((n, 0), np.float32))
        find, row_bytes = (self._few_best, 0) if k <= _FEW else (self._many_best, 4 * self._n)
        parts = [
            find(self._buffers.rows, asked[first : first + _QUERIES][part], k)
            for first in range(0, n, _QUERIES)
            for part in chunks(min(_QUERIES, n - first), row_bytes + 4 * asked.shape[1])
        ]
        best, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Found(self._buffers.names[rows], best)

    def _few_best(
        self, items: DenseRows | CsrRows, queries: Any, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        from .._kernels.ranking import offer

        best = np.full((queries.shape[0], k), -np.inf, np.float32)
        rows = np.full((queries.shape[0], k), -1, np.int64)
        for first, scores in items.scores(queries, self._n):
            self._leave_out_removed(first, scores)
            offer(scores, first, best, rows)
        _check_scores(best)
        return best, rows

    def _many_best(
        self, items: DenseRows | CsrRows, queries: Any, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty((queries.shape[0], self._n), np.float32)
        for first, part in items.scores(queries, self._n):
            self._leave_out_removed(first, part)
            scores[:, first : first + part.shape[1]] = part[:, : self._n - first]
        rows, best = top_k(scores, k)
        _check_scores(best)
        return best, rows

    def _leave_out_removed(self, first: int, scores: np.ndarray) -> None:
        if self._n_removed:
            removed = self._removed
            begin, end = np.searchsorted(removed, (first, first + scores.shape[1]))
            scores[:, removed[begin:end] - first] = -np.inf

    @cached_property
    def _removed(self) -> np.ndarray:
        """Removed rows, ascending."""
        if self._buffers is None:
            return np.empty(0, np.int64)
        return np.sort(self._buffers.removed[: self._n_removed])

    @property
    def _rows(self) -> np.ndarray:
        """Rows that are items."""
        keep = np.ones(self._n, bool)
        keep[self._removed] = False
        return np.flatnonzero(keep)

    def _row_of(self, name: object) -> int:
        """Row of a name, -1 if it is no item."""
        if self._buffers is None or not isinstance(name, (int, str)):
            return -1
        place = self._buffers.places.get(name)
        while place is not None and place[0] >= self._n:  # added after this view was taken
            place = place[1]
        if place is None:
            return -1
        after = np.searchsorted(self._removed, place[0])
        is_removed = after < self._n_removed and self._removed[after] == place[0]
        return -1 if is_removed else place[0]


class ExactIndex:
    """Exact search by inner products over items that come and go; dense or sparse (CSR), in float32.

    The first items decide whether the index is dense or sparse. One thread may add and remove while any
    number of threads search or keep a `view`.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import OASIS
    >>> from simstream.search import ExactIndex
    >>> items = np.eye(3)
    >>> model = OASIS(C=1.0).fit([[items[0], items[1], items[2]]])
    >>> index = ExactIndex()
    >>> index.add(["a", "b", "c"], items)
    >>> index.search(model.transform_query(items[:1]), k=2).ids
    array([['a', 'b']], dtype=object)
    """

    def __init__(self) -> None:
        self._buffers: _Buffers | None = None
        self._n = self._n_removed = 0
        #: Names of the items now, and their rows: the writer's own.
        self._row_of: dict[Id, int] = {}
        self._view = ExactView(None, 0, 0)

    def view(self) -> ExactView:
        """What is in the index now, unchanged by whatever happens later. Takes no time."""
        return self._view

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, name: object) -> bool:
        return name in self._view

    @property
    def ids(self) -> list[Id]:
        """Names of all items in the order in which they were added."""
        return self._view.ids

    @property
    def n_features(self) -> int | None:
        """Length of the vectors; None before any were added."""
        return self._view.n_features

    def vectors(self, ids: Iterable[Id]) -> Any:
        """Copies of items' vectors, by name: an array, or a CSR matrix where the index is sparse."""
        return self._view.vectors(ids)

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items of largest inner product with each query; see `ExactView.search`."""
        return self._view.search(queries, k)

    def add(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items.

        Parameters
        ----------
        ids : integers or strings
            Names, none of which is in the index.
        vectors : array or CSR matrix of shape (n, n_features)
        """
        names = check_new_ids(ids, self._row_of)
        if names:
            self._append(
                names,
                check_rows(vectors, "vectors", n_features=self.n_features, n_rows=len(names)),
            )
            self._publish()

    def reserve(self, n: int) -> None:
        """Make space for n items in all, so that they can be added bit by bit without copies.

        Nothing happens before the first item is added, nor where items are sparse: how long their rows will
        be is not known.
        """
        if self._buffers is not None:
            self._buffers.rows.reserve(self._n, n)

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items, in O(1) each: they are left out of searches, and of the next copy of the rows.

        Parameters
        ----------
        ids : integers or strings
            Names of items in the index.
        """
        names = check_known_ids(ids, self._row_of)
        if names:
            self._note_removal(names)
            self._publish()

    def put(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items, or replace those of the same names; a replaced item is the newest one.

        No view has an item half replaced, or not at all.
        """
        names = check_ids(ids)
        if names:
            values = check_rows(vectors, "vectors", n_features=self.n_features, n_rows=len(names))
            self._note_removal([name for name in names if name in self._row_of])
            self._append(names, values)
            self._publish()

    def _append(self, names: list[Id], values: Any) -> None:
        if self._buffers is None:
            self._buffers = _Buffers(rows_like(values))
        self._buffers.append(self._n, names, values)
        self._row_of.update(zip(names, range(self._n, self._n + len(names)), strict=True))
        self._n += len(names)

    def _note_removal(self, names: list[Id]) -> None:
        if self._buffers is None or not names:
            return
        rows = [self._row_of.pop(name) for name in names]
        end = self._n_removed + len(rows)
        removed = with_space(self._buffers.removed, self._n_removed, end)
        removed[self._n_removed : end] = rows
        self._buffers.removed = removed
        self._n_removed = end

    def _publish(self) -> None:
        """Let readers see what was done; copy the rows first where too many are removed ones."""
        view = ExactView(self._buffers, self._n, self._n_removed)
        if self._buffers is not None and self._n_removed > _MAX_REMOVED * self._n:
            names, rows = view.ids, view._rows
            kept = _Buffers(type(self._buffers.rows)(self._buffers.rows.n_features))
            if names:
                kept.append(0, names, self._buffers.rows.take(rows))
            self._buffers, self._n, self._n_removed = kept, len(names), 0
            self._row_of = dict(zip(names, range(len(names)), strict=True))
            view = ExactView(kept, self._n, 0)
        self._view = view

    def save(self, path: str | Path) -> None:
        """Write the index to one safetensors file, atomically.

        Examples
        --------
        >>> import os, tempfile, numpy as np
        >>> from simstream.search import ExactIndex
        >>> index = ExactIndex()
        >>> index.add([7, "seven"], np.eye(2))
        >>> file = os.path.join(tempfile.mkdtemp(), "items.safetensors")
        >>> index.save(file)
        >>> ExactIndex.load(file).ids
        [7, 'seven']
        """
        view = self._view
        header = {"kind": "exact", "n": len(view), "n_features": view.n_features}
        arrays = {"ids": encode_ids(view.ids)}
        if view._buffers is not None:
            arrays |= view._buffers.rows.arrays(view._rows)
        write_file(path, {"index": header}, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an index written by ``save``."""
        header, arrays = read_index_file(path, "exact")
        index = cls()
        if header["n_features"] is not None:
            values = rows_from_arrays(arrays, header["n_features"])
            names = decode_ids(arrays["ids"], header["n"])
            index._buffers = _Buffers(rows_like(values))
            if names:
                index.add(names, values)
            else:
                index._publish()
        return index


def _check_scores(best: np.ndarray) -> None:
    if not np.isfinite(best).all():
        raise ValueError("scores: expected inner products within float32, got an overflow or NaN")
