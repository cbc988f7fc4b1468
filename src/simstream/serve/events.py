"""What can happen: the events of the log, and how their vectors are written down.

An event is one row of the log. Its position never changes, so an item is named in other events by the
position of the event that brought it: whatever happens to an item later, a comparison keeps the vectors it
was made with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Version of the layout of events; logs with a higher number are refused.
FORMAT_VERSION = 1

#: An item is added or replaced (`subject` is its id), or taken away.
ITEM, DELETE = "item", "delete"
#: Comparisons: ``triplets`` of positions of items (an anchor of 0 is the event's own vector).
FEEDBACK = "feedback"
#: A question was shown; a question was answered (``winner`` 0 or 1) or skipped (None).
QUESTION, ANSWER = "question", "answer"
#: An event is taken back; learning goes back to a position; a position is served whatever is learnt.
RETRACT, ROLLBACK, PIN = "retract", "rollback", "pin"

#: Events that the learner looks at.
LEARNER_KINDS = (FEEDBACK, QUESTION, ANSWER)
#: Events that change the items.
ITEM_KINDS = (ITEM, DELETE)
#: Events that change which other events count.
CONTROL_KINDS = (RETRACT, ROLLBACK, PIN)
KINDS = (*ITEM_KINDS, *LEARNER_KINDS, *CONTROL_KINDS)


class Event(NamedTuple):
    """One row of the log.

    Examples
    --------
    >>> Event(7, 0.0, "delete", "shoe-12", None, {}).kind
    'delete'
    """

    position: int
    #: Seconds since 1970, for people: nothing that is learnt depends on it.
    at: float
    kind: str
    #: Id of the item that it is about.
    subject: str | None
    #: Encoded vector: of the item, or of a query that is no item.
    vector: bytes | None
    #: JSON values.
    body: dict[str, Any]


class SparseVector(NamedTuple):
    """Numbers of the features that are not zero, ascending, and their values."""

    indices: np.ndarray
    values: np.ndarray


Vector = np.ndarray | SparseVector


def encode_vector(vector: Vector) -> bytes:
    """Bytes of a vector in float32, little-endian, dense or sparse.

    Examples
    --------
    >>> len(encode_vector(np.zeros(3, np.float32)))
    13
    >>> decode_vector(encode_vector(SparseVector(np.array([2]), np.array([0.5])))).values
    array([0.5], dtype=float32)
    """
    if isinstance(vector, SparseVector):
        return b"S" + vector.indices.astype("<i4").tobytes() + vector.values.astype("<f4").tobytes()
    return b"D" + np.asarray(vector, "<f4").tobytes()


def decode_vector(data: bytes) -> Vector:
    """The vector behind bytes written by `encode_vector`."""
    if data[:1] == b"D":
        return np.frombuffer(data, "<f4", offset=1)
    count = (len(data) - 1) // 8
    return SparseVector(
        np.frombuffer(data, "<i4", count, offset=1),
        np.frombuffer(data, "<f4", count, offset=1 + 4 * count),
    )
