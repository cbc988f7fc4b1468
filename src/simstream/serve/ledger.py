"""What the writer must know to say yes or no: which items there are after the last event of the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .errors import BadRequestError, ConflictError, NotFoundError
from .events import DELETE, ITEM, Event, SparseVector, Vector, encode_vector
from .log import Log


class Shape(NamedTuple):
    """What vectors look like."""

    #: How long they are; None before the first item.
    n_features: int | None
    is_sparse: bool


class Ledger:
    """Items by id after the last event, and the shape of their vectors.

    Kept by the writer alone. It is ahead of what is published: an item may be compared as soon as its
    addition was acknowledged.
    """

    def __init__(self) -> None:
        #: Id -> position of the event that brought the item.
        self.items: dict[str, int] = {}
        self.shape = Shape(None, False)


class Draft:
    """The events of one request while they are checked. Nothing is changed until it is accepted.

    Parameters
    ----------
    ledger, log : what there is
    next_position : position of the first new event
    """

    def __init__(self, ledger: Ledger, log: Log, next_position: int) -> None:
        self._ledger, self.log = ledger, log
        self._next = next_position
        self._shape = ledger.shape
        self._changed: dict[str, int | None] = {}
        self.events: list[Event] = []

    @property
    def next_position(self) -> int:
        """Position that the next event will have."""
        return self._next + len(self.events)

    def add(
        self,
        kind: str,
        *,
        subject: str | None = None,
        vector: Vector | None = None,
        body: dict[str, Any] | None = None,
    ) -> int:
        """Add an event; return its position."""
        position = self.next_position
        data = None if vector is None else encode_vector(vector)
        self.events.append(Event(position, time.time(), kind, subject, data, body or {}))
        if kind in (ITEM, DELETE) and subject is not None:
            self._changed[subject] = position if kind == ITEM else None
        return position

    def find(self, name: str) -> int | None:
        """Position of the event that brought an item; None if there is no such item."""
        return self._changed[name] if name in self._changed else self._ledger.items.get(name)

    def item(self, name: str) -> int:
        """The same, but an error if there is no such item."""
        found = self.find(name)
        if found is None:
            raise NotFoundError(f"item: there is none with id {name!r}")
        return found

    def new_item(self, name: str) -> None:
        """Raise if there is an item of that name."""
        if self.find(name) is not None:
            raise ConflictError(f"item: there is one with id {name!r} already; PUT replaces it")

    def check_vector(self, vector: Vector, *, is_item: bool = False) -> None:
        """Raise if a vector does not fit the items; the first item decides how long vectors are."""
        is_sparse = isinstance(vector, SparseVector)
        if self._shape.n_features is None:
            if not is_item:
                raise BadRequestError("vector: there are no items yet to compare it with")
            if is_sparse:
                raise BadRequestError(
                    "vector: sparse items need the number of features when the service is started"
                )
            self._shape = Shape(len(vector), False)
        expected, expects_sparse = self._shape
        if is_sparse != expects_sparse:
            kinds = ("dense (a list)", "sparse (indices and values)")
            raise BadRequestError(
                f"vector: expected it {kinds[expects_sparse]}, as the items are, "
                f"got it {kinds[is_sparse]}"
            )
        if isinstance(vector, SparseVector):
            if len(vector.indices) and vector.indices[-1] >= expected:
                raise BadRequestError(
                    f"vector: expected indices below {expected}, got {vector.indices[-1]}"
                )
        elif len(vector) != expected:
            raise BadRequestError(f"vector: expected {expected} numbers, got {len(vector)}")

    def accept(self) -> Callable[[], None]:
        """Make what the draft says true for the ledger; return how to take it back."""
        ledger = self._ledger
        before = {name: ledger.items.get(name) for name in self._changed}
        shape_before = ledger.shape
        _update(ledger.items, self._changed)
        ledger.shape = self._shape

        def take_back() -> None:
            _update(ledger.items, before)
            ledger.shape = shape_before

        return take_back


def _update(items: dict[str, int], changes: dict[str, int | None]) -> None:
    for name, position in changes.items():
        if position is None:
            items.pop(name, None)
        else:
            items[name] = position
