"""Exact search by inner product: matrix products in chunks, and snapshots that never change.

Rows are only ever appended to a buffer, and removing a row only appends its number to a list. The content of
the index at any moment is therefore given by two numbers, of rows and of removals, and a view that holds
these two numbers beside the buffers stays valid while the index grows. A search takes the newest view, which
is one read of one attribute: readers never wait for the writer. When too many rows have been removed, the
writer copies the others into new buffers; views keep the old ones alive for as long as they need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from .._kernels.ranking import csr_scores, offer
from ..ids import Id, check_ids
from ..persistence import write_file
from ..similarity.base import chunks, row_products, top_k
from ..validation import check_integer
from .base import (
    Found,
    Index,
    as_dense,
    check_known_ids,
    check_new_ids,
    check_rows,
    decode_ids,
    encode_ids,
    query_vectors,
    read_index_file,
)

#: Up to this many neighbours, merging into a short list beats sorting all scores.
_FEW = 128

#: Queries searched together: with more, pieces of scores would outgrow the cache.
_QUERIES = 256

#: The buffers are compacted once more than this share of their rows has been removed.
_MAX_REMOVED = 0.25

#: Bytes of scores per piece: they stay in the cache until the best are found, and there are few products
#: (BLAS threads synchronise before and after each).
_SCORE_BYTES = 2**23

#: Fewest rows per piece: with fewer, a matrix product is slow.
_MIN_ROWS = 1024

#: Rows whose scores are turned round together, at least, while they are in the cache.
_ROWS_TURNED = 2048

#: Rows are multiplied in multiples of this. BLAS sums left-over rows in another order, so that equal vectors
#: would get unequal scores.
_ALIGNED = 64

#: A full buffer is copied into one this many times as large.
_GROWTH = 1.5


class _Buffers:
    """What an index and its views share. Append-only; a larger copy begins with the same rows."""

    def __init__(self, rows: _DenseRows | _CsrRows) -> None:
        self.rows = rows
        #: Row -> id.
        self.names = np.empty(0, object)
        #: Id -> its row, or its newest row and the same for those before it. Nothing is taken out: an older
        #: view still finds rows that have been removed or replaced since.
        self.places: dict[Id, Any] = {}
        #: Removed rows in the order of removal.
        self.removed = np.empty(0, np.int64)

    def append(self, n: int, names: list[Id], values: Any) -> None:
        """Write items after the first n."""
        self.rows.append(n, values)
        self.name(n, names)

    def name(self, n: int, names: list[Id]) -> None:
        """Give names to the rows after the first n."""
        end = n + len(names)
        kept = _with_space(self.names, n, end)
        kept[n:end] = names
        self.names = kept
        places = self.places
        for row, name in enumerate(names, n):
            places[name] = (row, places[name]) if name in places else row


class ExactView:
    """An immutable snapshot of an `ExactIndex`, safe to use from many threads.

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

    #: Of a scaled view: the numbers of all rows, what they are from, and what is taken off products before.
    _scale: np.ndarray | None = None
    _scaled_by: Any = None
    _centre: np.ndarray | None = None

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
        """Ids of all items in the order they were added."""
        return [] if self._buffers is None else self._buffers.names[self._rows].tolist()

    def vectors(self, ids: Iterable[Id]) -> Any:
        """Copies of items' vectors, by id: an array, or a CSR matrix if the index is sparse."""
        names = list(ids)
        check_known_ids(dict.fromkeys(names), self)  # an id may be asked for twice
        if self._buffers is None:
            return np.empty((0, 0), np.float32)
        rows = np.array([self._row_of(name) for name in names], dtype=np.int64)
        return self._buffers.rows.take(rows)

    def pieces(self, n_bytes: int) -> Iterator[Any]:
        """The vectors of all items in the order they were added, about so many bytes at a time."""
        if self._buffers is not None:
            rows, size = self._rows, max(1, n_bytes // (4 * self._buffers.rows.n_features))
            for begin in range(0, len(rows), size):
                yield self._buffers.rows.take(rows[begin : begin + size])

    def scaled(self, model: Any, before: ExactView | None = None) -> ExactView:
        """The same items, whose inner products are multiplied by ``model.item_scale`` when they are searched.

        With ``model.transform_query(queries)`` it ranks as a model with ``normalise=True`` does. The items
        stay as they are: each has one number more, which belongs to one state of the model.

        Parameters
        ----------
        model : a similarity, or a fitted learner, not of low rank
            What it has learnt by now; numbers do not change when it learns more.
        before : ExactView, optional
            What an earlier call with the same similarity (not a learner) returned: its numbers are used
            again, so that only those of items added since are computed.

        Returns
        -------
        ExactView

        Examples
        --------
        >>> import numpy as np
        >>> from simstream import Bilinear
        >>> from simstream.search import ExactIndex
        >>> index = ExactIndex()
        >>> index.add(["long", "near"], np.array([[5.0, 5.0], [1.0, 0.0]]))
        >>> model = Bilinear(np.eye(2), normalise=True)
        >>> asked = model.transform_query([[2.0, 0.0]])
        >>> index.search(asked, k=1).ids[0, 0], index.view().scaled(model).search(asked, k=1).ids[0, 0]
        ('long', 'near')
        """
        learner = getattr(model, "learner_", model)
        similarity = getattr(learner, "similarity_", learner)  # as it is now
        if hasattr(similarity, "transform_items"):
            raise TypeError(
                f"model: expected one that leaves items as they are, got {type(learner).__name__}; index "
                "its item_vectors instead"
            )
        if before is not None and before._scaled_by is not similarity:
            before = None
        view = ExactView(self._buffers, self._n, self._n_removed)
        view._scaled_by, view._scale = similarity, np.ones(_aligned(self._n), np.float32)
        if self._buffers is None:
            return view
        first = 0
        if before is not None and before._buffers is self._buffers and before._scale is not None:
            first = min(before._n, self._n)
            view._scale[:first] = before._scale[:first]
        d = self._buffers.rows.n_features
        for part in chunks(self._n - first, 4 * d):
            rows = np.arange(first + part.start, first + part.stop)
            view._scale[rows] = similarity.item_scale(self._buffers.rows.take(rows))
        centre = getattr(similarity, "centre", None)
        if centre is not None:  # of a pair (queries, items) the second
            view._centre = np.asarray(centre[1] if np.ndim(centre) == 2 else centre, np.float32)
        return view

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items with the largest inner product with each query; ties by order of adding.

        In a `scaled` view products are multiplied by the numbers of the items.

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

    def best_of(self, queries: Any, candidates: Sequence[Iterable[Id]], k: int = 10) -> Found:
        """Find the k best among a few candidates of each query, scored and ordered as `search` does.

        So an approximate index may propose them, also one that is ahead of this view or has rounded vectors.

        Parameters
        ----------
        queries : array or CSR matrix of shape (n_queries, n_features)
        candidates : for each query, ids without repetition
            Those that are not in this view are left out.
        k : int

        Returns
        -------
        Found
            ``ids`` and ``scores`` of shape (n_queries, min(k, number of items)); None and -inf where there
            are fewer candidates.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream.search import ExactIndex
        >>> index = ExactIndex()
        >>> index.add(["a", "b", "c"], np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
        >>> index.view().best_of([[1.0, 0.0]], [["a", "gone", "b"]], k=2)
        Found(ids=array([['b', 'a']], dtype=object), scores=array([[2., 1.]], dtype=float32))
        """
        k = min(check_integer("k", k), len(self))
        asked = check_rows(queries, "queries", n_features=self.n_features)
        ids = np.full((asked.shape[0], k), None, object)
        scores = np.full((asked.shape[0], k), -np.inf, np.float32)
        if self._buffers is None or k == 0:
            return Found(ids, scores)
        for number, names in enumerate(candidates):
            rows = self._rows_of(names, self._buffers)
            n_best = min(k, len(rows))
            if n_best == 0:
                continue
            padded = np.resize(rows, _aligned(len(rows)))  # equal vectors get equal scores
            product = self._buffers.rows.take(padded) @ asked[number : number + 1].T
            found = as_dense(product)[: len(rows)].T
            self._rescale(found, self._offsets(asked[number : number + 1]), rows)
            places, best = top_k(found, n_best)
            _check_scores(best)
            ids[number, :n_best] = self._buffers.names[rows[places[0]]]
            scores[number, :n_best] = best[0]
        return Found(ids, scores)

    def changes_since(self, before: ExactView) -> tuple[list[Id], list[Id]] | None:
        """Ids added and ids removed since an earlier view; None if the buffers were replaced in between.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream.search import ExactIndex
        >>> index = ExactIndex()
        >>> index.add(range(10), np.eye(10))
        >>> before = index.view()
        >>> index.add(["new", "gone"], np.eye(10)[:2])
        >>> index.remove([3, "gone"])
        >>> index.view().changes_since(before)
        (['new'], [3])
        """
        if self._buffers is None or before._buffers is not self._buffers:
            return None
        names = self._buffers.names
        gone = self._buffers.removed[before._n_removed : self._n_removed]
        new = np.setdiff1d(np.arange(before._n, self._n), gone)
        return names[new].tolist(), names[gone[gone < before._n]].tolist()

    def _few_best(
        self, items: _DenseRows | _CsrRows, queries: Any, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        best = np.full((queries.shape[0], k), -np.inf, np.float32)
        rows = np.full((queries.shape[0], k), -1, np.int64)
        for first, scores in self._scores(items, queries):
            offer(scores, first, best, rows)
        _check_scores(best)
        return best, rows

    def _many_best(
        self, items: _DenseRows | _CsrRows, queries: Any, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty((queries.shape[0], self._n), np.float32)
        for first, part in self._scores(items, queries):
            scores[:, first : first + part.shape[1]] = part[:, : self._n - first]
        rows, best = top_k(scores, k)
        _check_scores(best)
        return best, rows

    def _scores(
        self, items: _DenseRows | _CsrRows, queries: Any
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Scores of all rows in pieces ``(first row, scores)``: -inf for rows that hold no item."""
        offsets = self._offsets(queries)
        for first, scores in items.scores(queries, self._n):
            end = min(first + scores.shape[1], self._n)  # the rest is -inf
            self._rescale(scores[:, : end - first], offsets, slice(first, end))
            self._leave_out_removed(first, scores)
            yield first, scores

    def _offsets(self, queries: Any) -> Any:
        """What inner products with items are too large by in a scaled view: a row for each query."""
        return None if self._centre is None else as_dense(queries @ self._centre)[:, None]

    def _rescale(self, scores: np.ndarray, offsets: Any, rows: Any) -> None:
        """Turn inner products with rows into those of a scaled view."""
        if self._scale is not None:
            if offsets is not None:
                scores -= offsets
            scores *= self._scale[rows]

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
        """Rows that hold an item."""
        keep = np.ones(self._n, bool)
        keep[self._removed] = False
        return np.flatnonzero(keep)

    def _row_of(self, name: object) -> int:
        """Row of an id, or -1 if there is no such item."""
        if self._buffers is None or not isinstance(name, (int, str)):
            return -1
        row = self._last_row(self._buffers.places, name)
        if row < 0 or not self._n_removed:
            return row
        after = np.searchsorted(self._removed, row)
        is_removed = after < self._n_removed and self._removed[after] == row
        return -1 if is_removed else row

    def _last_row(self, places: Mapping[Id, Any], name: Id) -> int:
        """The last row of an id, whether it was removed or not; -1 if it had none yet."""
        row = places.get(name, -1)
        while isinstance(row, tuple):
            newest, before = row
            row = before if newest >= self._n else newest  # or added after this view was taken
        return row if 0 <= row < self._n else -1

    def _rows_of(self, names: Iterable[Id], buffers: _Buffers) -> np.ndarray:
        """Rows of those ids that there are, ascending."""
        places = buffers.places
        rows = np.sort(np.array([self._last_row(places, name) for name in names], np.int64))
        rows = rows[np.searchsorted(rows, 0) :]
        if self._n_removed == 0:
            return rows
        after = np.minimum(np.searchsorted(self._removed, rows), self._n_removed - 1)
        return rows[self._removed[after] != rows]


class ExactIndex:
    """Exact inner-product search over a changing set of items, dense or sparse (CSR), in float32.

    The first items added decide whether the index is dense or sparse. One thread may add and remove items
    while any number of threads search or hold a `view`.

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
        #: Id -> row of the current items; used by the writer only.
        self._row_of: dict[Id, int] = {}
        self._view = ExactView(None, 0, 0)

    @classmethod
    def over(cls, ids: Iterable[Id], vectors: np.ndarray) -> Self:
        """An index over an array that is not copied, such as one that maps a file.

        Parameters
        ----------
        ids : integers or strings
            Ids of the first rows.
        vectors : writable array of float32 of shape (n, n_features)
            The rows after those of the ids are zero; items that are added are written there, as long as there
            is space. n is a multiple of 64.

        Examples
        --------
        >>> import numpy as np
        >>> from simstream.search import ExactIndex
        >>> rows = np.zeros((64, 2), np.float32)
        >>> rows[:2] = np.eye(2)
        >>> index = ExactIndex.over(["a", "b"], rows)
        >>> index.add(["c"], [[3.0, 4.0]])
        >>> index.ids, rows[2].tolist()
        (['a', 'b', 'c'], [3.0, 4.0])
        """
        names = check_ids(ids)
        if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) % _ALIGNED:
            raise ValueError(
                f"vectors: expected an array of float32 of a multiple of {_ALIGNED} rows, got "
                f"{vectors.dtype} of shape {vectors.shape}"
            )
        if len(names) > len(vectors):
            raise ValueError(f"vectors: expected {len(names)} rows, got {len(vectors)}")
        rows = _DenseRows(vectors.shape[1])
        rows._data = vectors
        index = cls()
        index._buffers = _Buffers(rows)
        index._buffers.name(0, names)
        index._row_of = dict(zip(names, range(len(names)), strict=True))
        index._n = len(names)
        index._publish()
        return index

    def view(self) -> ExactView:
        """A snapshot of the index that later changes do not affect. Takes no time."""
        return self._view

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, name: object) -> bool:
        return name in self._view

    @property
    def ids(self) -> list[Id]:
        """Ids of all items in the order they were added."""
        return self._view.ids

    @property
    def n_features(self) -> int | None:
        """Length of the vectors; None before any were added."""
        return self._view.n_features

    def vectors(self, ids: Iterable[Id]) -> Any:
        """Copies of items' vectors, by id: an array, or a CSR matrix if the index is sparse."""
        return self._view.vectors(ids)

    def search(self, queries: Any, k: int = 10) -> Found:
        """Find the k items with the largest inner product with each query; see `ExactView.search`."""
        return self._view.search(queries, k)

    def add(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items.

        Parameters
        ----------
        ids : integers or strings
            Ids, none of which is in the index.
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

        It has no effect before the first item is added, nor if items are sparse, because the length of future
        rows is unknown.
        """
        if self._buffers is not None:
            self._buffers.rows.reserve(self._n, n)

    def remove(self, ids: Iterable[Id]) -> None:
        """Remove items, in O(1) each: searches skip them, and they are dropped when buffers are compacted.

        Parameters
        ----------
        ids : integers or strings
            Ids of items in the index.
        """
        names = check_known_ids(ids, self._row_of)
        if names:
            self._note_removal(names)
            self._publish()

    def put(self, ids: Iterable[Id], vectors: Any) -> None:
        """Add items, replacing those with the same ids; a replaced item counts as newly added.

        The replacement is atomic: every view has either the old or the new version of all these items.
        """
        names = check_ids(ids)
        if names:
            values = check_rows(vectors, "vectors", n_features=self.n_features, n_rows=len(names))
            self._note_removal([name for name in names if name in self._row_of])
            self._append(names, values)
            self._publish()

    def _append(self, names: list[Id], values: Any) -> None:
        if self._buffers is None:
            self._buffers = _Buffers(_rows_like(values))
        self._buffers.append(self._n, names, values)
        self._row_of.update(zip(names, range(self._n, self._n + len(names)), strict=True))
        self._n += len(names)

    def _note_removal(self, names: list[Id]) -> None:
        if self._buffers is None or not names:
            return
        rows = [self._row_of.pop(name) for name in names]
        end = self._n_removed + len(rows)
        removed = _with_space(self._buffers.removed, self._n_removed, end)
        removed[self._n_removed : end] = rows
        self._buffers.removed = removed
        self._n_removed = end

    def _publish(self) -> None:
        """Make the changes visible to readers; compact the buffers first if too many rows were removed."""
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
            values = _rows_from_arrays(arrays, header["n_features"])
            names = decode_ids(arrays["ids"], header["n"])
            index._buffers = _Buffers(_rows_like(values))
            if names:
                index.add(names, values)
            else:
                index._publish()
        return index


def recall(
    model: Any, index: Index, exact: ExactIndex | ExactView, queries: Any, k: int = 10
) -> float:
    """Recall@k: share of the k best items under the learnt similarity that an index finds.

    An item that scores as high as the last of the exact answer counts as found, so that ties (copies of an
    item) cost nothing.

    Parameters
    ----------
    model : fitted estimator
        Its similarity ranks the items.
    index : Index
        The index to measure.
    exact : ExactIndex or its view
        An exact index of the same items.
    queries : array or CSR matrix of shape (n_queries, n_features)
    k : int

    Returns
    -------
    float
        Mean over the queries.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Bilinear
    >>> from simstream.search import ExactIndex, recall
    >>> items = np.random.default_rng(0).normal(size=(50, 4))
    >>> exact = ExactIndex()
    >>> exact.add(range(50), items)
    >>> recall(Bilinear(np.diag([3.0, 2.0, 1.0, 0.0])), exact, exact, items[:5])
    1.0
    """
    view = exact.view() if isinstance(exact, ExactIndex) else exact
    if len(index) != len(view):
        raise ValueError(
            f"index: expected the same {len(view)} items as in the exact index, got {len(index)}"
        )
    if len(view) == 0:
        raise ValueError("index: expected at least one item, got none")
    asked = query_vectors(model, queries)
    wanted, found = view.search(asked, k).ids, index.search(asked, k).ids
    n_hits = 0
    for query, best, names in zip(asked, wanted, found, strict=True):
        least = _exact_scores(view, query, best.tolist()).min()
        present = [name for name in names if name is not None]
        n_hits += int((_exact_scores(view, query, present) >= least).sum())
    return n_hits / wanted.size


def _exact_scores(view: ExactView, query: Any, names: list[Any]) -> np.ndarray:
    """Inner products in double precision, row by row, so that equal vectors have equal scores."""
    rows = view.vectors(names).astype(np.float64)
    one = query if query.ndim == 2 else query[None]
    return row_products(rows, one[np.zeros(len(names), np.int64)].astype(np.float64))


def _check_scores(best: np.ndarray) -> None:
    if not np.isfinite(best).all():
        raise ValueError("scores: expected inner products within float32, got an overflow or NaN")


# -- append-only buffers of rows ------------------------------------------------------------------


def _with_space(buffer: np.ndarray, n_used: int, n_wanted: int) -> np.ndarray:
    """The buffer, or a larger copy if it is too short; growing geometrically costs O(1) per row."""
    if n_wanted <= len(buffer):
        return buffer
    size = n_wanted if n_used == 0 else max(n_wanted, _aligned(int(_GROWTH * len(buffer))))
    larger = np.zeros((size, *buffer.shape[1:]), buffer.dtype)
    larger[:n_used] = buffer[:n_used]
    return larger


class _DenseRows:
    """Rows of an array."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._data = np.empty((0, n_features), np.float32)

    def append(self, n: int, values: Any) -> None:
        """Write rows after the first n; a larger array replaces the old one only once it is filled."""
        end = n + values.shape[0]
        data = _with_space(self._data, n, _aligned(end))
        data[n:end] = as_dense(values)
        self._data = data

    def reserve(self, n: int, n_wanted: int) -> None:
        """Make space for `n_wanted` rows in all, n of which exist."""
        if _aligned(n_wanted) > len(self._data):
            data = np.zeros((_aligned(n_wanted), self.n_features), np.float32)
            data[:n] = self._data[:n]
            self._data = data

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copies of some rows."""
        return self._data[rows]

    def scores(self, queries: Any, n: int) -> Iterator[tuple[int, np.ndarray]]:
        """Inner products of queries with the first n rows, in pieces ``(first row, scores)``.

        Each piece overwrites the one before; the last may extend past the last row, filled with -inf.
        """
        data, left = self._data, as_dense(queries)
        size, n_aligned = _piece(len(left)), _aligned(n)
        space = np.empty(len(left) * min(size, n_aligned), np.float32)
        turned = np.empty((2 * _ROWS_TURNED, len(left)), np.float32)
        for first in range(0, n_aligned, size):
            rows = data[first : min(n_aligned, first + size)]
            scores = space[: len(left) * len(rows)].reshape(len(left), len(rows))
            with np.errstate(over="ignore", invalid="ignore"):  # checked on the best scores
                if len(left) == 1:
                    np.matmul(rows, left[0], out=scores[0])
                else:
                    _multiply(rows, left, scores, turned)
            scores[:, n - first :] = -np.inf
            yield first, scores

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows as arrays to save."""
        return {"vectors": self._data[rows]}


class _CsrRows:
    """Rows of a CSR matrix."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._data = np.empty(0, np.float32)
        self._columns = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int64)

    def append(self, n: int, values: Any) -> None:
        """Write rows after the first n; larger arrays replace the old ones only once they are filled."""
        added = sp.csr_matrix(values)
        begin = int(self._starts[n])
        end = begin + added.nnz
        data = _with_space(self._data, begin, end)
        columns = _with_space(self._columns, begin, end)
        starts = _with_space(self._starts, n + 1, n + 1 + added.shape[0])
        data[begin:end] = added.data
        columns[begin:end] = added.indices
        starts[n + 1 : n + 1 + added.shape[0]] = begin + added.indptr[1:].astype(np.int64)
        self._data, self._columns, self._starts = data, columns, starts

    def reserve(self, n: int, n_wanted: int) -> None:
        """Do nothing: the length of future rows is unknown."""

    def take(self, rows: np.ndarray) -> Any:
        """Copies of some rows."""
        begins = self._starts[rows]
        lengths = self._starts[rows + 1] - begins
        starts = np.append(0, np.cumsum(lengths))
        places = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        parts = (self._data[places], self._columns[places], starts)
        return sp.csr_matrix(parts, shape=(len(rows), self.n_features))

    def scores(self, queries: Any, n: int) -> Iterator[tuple[int, np.ndarray]]:
        """Inner products of queries with the first n rows, in pieces ``(first row, scores)``.

        Each piece overwrites the one before.
        """
        data, columns, starts = self._data, self._columns, self._starts
        right = np.ascontiguousarray(as_dense(queries).T)
        n_queries = right.shape[1]
        size = _piece(n_queries)
        space = np.empty(n_queries * min(size, n), np.float32)
        for first in range(0, n, size):
            width = min(n - first, size)
            scores = space[: n_queries * width].reshape(n_queries, width)
            csr_scores(data, columns, starts, first, right, scores)
            yield first, scores

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows as arrays to save."""
        kept = self.take(rows)
        return {"data": kept.data, "columns": kept.indices, "starts": kept.indptr}


def _rows_like(values: Any) -> _DenseRows | _CsrRows:
    """Empty buffers for rows of this kind."""
    return (_CsrRows if sp.issparse(values) else _DenseRows)(values.shape[1])


def _rows_from_arrays(arrays: dict[str, np.ndarray], n_features: int) -> Any:
    """Rows from the arrays of a file: an array or a CSR matrix."""
    if "vectors" in arrays:
        return arrays["vectors"]
    parts = (arrays["data"], arrays["columns"], arrays["starts"])
    csr = sp.csr_matrix(parts, shape=(len(arrays["starts"]) - 1, n_features))
    csr.check_format(full_check=True)  # a wrong column would be read outside of a query
    return csr


def _multiply(rows: np.ndarray, queries: np.ndarray, out: np.ndarray, turned: np.ndarray) -> None:
    """out = queries rows', as the product rows queries', which BLAS computes faster for few queries.

    No part is small, unless there is no other: BLAS sums small products in another order, and copies of an
    item must have the same score wherever they lie.
    """
    begin = 0
    while begin < len(rows):
        end = begin + _ROWS_TURNED
        part = rows[begin : end if end + _ROWS_TURNED <= len(rows) else len(rows)]
        np.matmul(part, queries.T, out=turned[: len(part)])
        out[:, begin : begin + len(part)] = turned[: len(part)].T
        begin += len(part)


def _piece(n_queries: int) -> int:
    return _aligned(max(_MIN_ROWS, _SCORE_BYTES // (4 * n_queries)))


def _aligned(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
