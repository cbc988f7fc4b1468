"""The items of a service, by the position of the event that added them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..search import ExactIndex, ExactView
from .events import Event, EventKind, SparseVector, Vector, decode_vector
from .log import ItemChange, Log

#: Item events read at a time: few enough for their vectors to stay in the CPU cache.
_BATCH = 256


def stack(vectors: Sequence[Vector], n_features: int) -> Any:
    """Stack vectors as rows: an array, or a CSR matrix if they are sparse.

    Examples
    --------
    >>> stack([SparseVector(np.array([1]), np.array([2.0]))], 3).toarray()
    array([[0., 2., 0.]], dtype=float32)
    """
    sparse = [vector for vector in vectors if isinstance(vector, SparseVector)]
    if not sparse:
        return np.array(vectors, np.float32)
    indptr = np.concatenate([[0], np.cumsum([len(vector.indices) for vector in sparse])])
    indices = np.concatenate([vector.indices for vector in sparse])
    values = np.concatenate([vector.values for vector in sparse]).astype(np.float32)
    return sp.csr_matrix((values, indices, indptr), (len(sparse), n_features))


def stack_encoded(vectors: Sequence[bytes], n_features: int) -> Any:
    """Stack encoded vectors as rows, all at once.

    Examples
    --------
    >>> from simstream.serve.events import encode_vector
    >>> stack_encoded([encode_vector(row) for row in np.eye(2)], 2)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if vectors[0][:1] != b"D":
        return stack([decode_vector(data) for data in vectors], n_features)
    table = np.frombuffer(b"".join(vectors), np.uint8).reshape(len(vectors), -1)
    return np.ascontiguousarray(table[:, 1:]).view("<f4").astype(np.float32, copy=False)


class ItemStore:
    """The current items in an index, and the vectors of all items there ever were.

    One thread applies events; any number of threads read `view` and the dictionaries.

    Parameters
    ----------
    log : where vectors of deleted and replaced items are looked up
    n_features : length of sparse vectors; None if vectors are dense
    """

    def __init__(self, log: Log, n_features: int | None = None) -> None:
        self._log = log
        self.n_features = n_features
        self._index = ExactIndex()
        self._has_rows = False
        #: Id -> position of the event that added the item, for current items.
        self.positions: dict[str, int] = {}
        #: Position -> id, for all items there ever were.
        self.names: dict[int, str] = {}
        #: Position of a replacement -> position of the item it replaced.
        self._replaced: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def view(self) -> ExactView | None:
        """The searchable items now; None before the first item."""
        return self._index.view() if self._has_rows else None

    def position_in(self, view: ExactView | None, name: str) -> int | None:
        """Position of an item in a view, which may be older than `positions`; None if not in the view."""
        position = self.positions.get(name)
        while position is not None and (view is None or position not in view):
            position = self._replaced.get(position)
        return position

    def catch_up(self, until: int) -> None:
        """Read all items of the log up to a position; nothing must have been applied before."""
        n_items = self._log.count_items(until)
        for number, changes in enumerate(self._log.read_items(until, _BATCH)):
            self._change(changes)
            if number == 0:
                with contextlib.suppress(MemoryError):  # most may have been replaced since
                    self._index.reserve(n_items)

    def apply(self, events: Iterable[Event]) -> None:
        """Add, replace and delete items."""
        changes = [(e.position, e.kind, e.subject or "", e.vector) for e in events]
        if changes:
            self._change(changes)

    def _change(self, changes: list[ItemChange]) -> None:
        new: dict[int, bytes] = {}
        gone: list[int] = []
        for position, kind, name, vector in changes:
            before = self.positions.pop(name, None)
            if before is not None and new.pop(before, None) is None:
                gone.append(before)
            if kind == EventKind.ITEM and vector is not None:
                new[position] = vector
                self.names[position] = name
                if before is not None:
                    self._replaced[position] = before
                self.positions[name] = position
        if new:
            vectors = list(new.values())
            if self.n_features is None:
                self.n_features = len(decode_vector(vectors[0]))
            self._index.add(list(new), stack_encoded(vectors, self.n_features))
            self._has_rows = True
        if gone:
            self._index.remove(gone)

    def vectors(self, positions: Sequence[int]) -> Any:
        """Rows of items by position, in the given order; also of deleted and replaced items."""
        view = self.view
        if view is not None:
            with contextlib.suppress(KeyError):  # one of them was deleted or replaced
                return view.vectors(positions)
        found = self._log.vectors(set(positions))
        return stack_encoded([found[position] for position in positions], self.n_features or 0)

    def rows_of(self, vectors: Sequence[Vector]) -> Any:
        """Vectors as rows of the same kind as the items."""
        return stack(vectors, self.n_features or 0)
