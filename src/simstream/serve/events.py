"""Events of the log, the encoding of their vectors, and which events still count after undo and rollback.

An event is one row of the log and its position never changes. Other events name an item by the position of
the event that added it, so a comparison keeps the vectors it was made with, whatever happens to the item
later.

The state after position q is computed from all events up to q that no retraction or rollback up to q
excludes. A rollback to p excludes everything between p and itself, including retractions and rollbacks in
between: the state after it is the state after p.

Every event has a digest of what it says, and a hash of this digest and the hash of its predecessor. A changed
event does not match its digest; the hash at a position names the whole log up to there.
"""

from __future__ import annotations

import hashlib
import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

#: Version of the layout of events; logs with a higher number are refused. Version 1 had no digests.
FORMAT_VERSION = 2


class EventKind(StrEnum):
    """What can happen."""

    #: An item is added or replaced (`subject` is its id), or deleted.
    ITEM = "item"
    DELETE = "delete"
    #: Comparisons: ``triplets`` of item positions (an anchor of 0 stands for the event's own vector). Of
    #: clicks also all comparisons of clicked with other shown items (``compared``) and the ``ranks`` of the
    #: clicked ones; if the results at two neighbouring ranks were shown in random order, the first of these
    #: (``randomised``) and all ``clicked`` ranks.
    FEEDBACK = "feedback"
    #: A question was shown; a question was answered (``winner`` 0 or 1) or skipped (None).
    QUESTION = "question"
    ANSWER = "answer"
    #: An event is undone; learning returns to a position; the model of a position is served from now on.
    RETRACT = "retract"
    ROLLBACK = "rollback"
    PIN = "pin"
    #: Texts and pictures of earlier events (``positions``) were erased; their digests stay.
    ERASE = "erase"


#: Events that the learner reads.
LEARNER_KINDS = (EventKind.FEEDBACK, EventKind.QUESTION, EventKind.ANSWER)
#: Events that change the items.
ITEM_KINDS = (EventKind.ITEM, EventKind.DELETE)
#: Events that change which other events count, or what is served.
CONTROL_KINDS = (EventKind.RETRACT, EventKind.ROLLBACK, EventKind.PIN)


class Event(NamedTuple):
    """One row of the log.

    Examples
    --------
    >>> Event(7, 0.0, "delete", "shoe-12", None, {}).kind
    'delete'
    """

    position: int
    #: Seconds since 1970, for people to read: nothing learnt depends on it.
    at: float
    kind: str
    #: Id of the item concerned.
    subject: str | None
    #: Encoded vector of the item, or of a query that is not an item.
    vector: bytes | None
    #: JSON values.
    body: dict[str, Any]


# -- digests ----------------------------------------------------------------------------------

#: What stands in the place of a body that was erased.
ERASED = '{"erased":true}'

#: A stored event: position, time, kind, subject, vector and the text of its body.
Row = tuple[int, float, str, str | None, bytes | None, str]

_HEAD = struct.Struct("<qdq")
_SIZE = 16

#: The body of an event that has none, as most items have.
EMPTY = "{}"
_DIGEST_OF_EMPTY = hashlib.blake2b(EMPTY.encode(), digest_size=_SIZE).digest()

_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_body(body: dict[str, Any]) -> str:
    """The text of a body.

    Examples
    --------
    >>> encode_body({"winner": 1})
    '{"winner":1}'
    """
    return _encode(body) if body else EMPTY


def decode_body(text: str) -> dict[str, Any]:
    """The body that a text stands for."""
    return {} if text == EMPTY else json.loads(text)  # type: ignore[no-any-return]


def digest_without_body(
    position: int, at: float, kind: str, subject: str | None, vector: bytes | None
) -> bytes:
    """Digest of an event but for its body: items can be checked without reading their pictures."""
    names = f"{kind}:{'' if subject is None else '=' + subject}".encode()
    text = _HEAD.pack(position, at, len(names)) + names + (vector or b"")
    return hashlib.blake2b(text, digest_size=_SIZE).digest()


def digest_of_row(row: Row) -> bytes:
    """Digest of a stored event: of all but its body, then of its body.

    Examples
    --------
    >>> first = digest_of_row((1, 0.0, "delete", "shoe", None, "{}"))
    >>> other = digest_of_row((1, 0.0, "delete", "shoe", None, "{ }"))
    >>> first[:16] == other[:16], first[16:] == other[16:]
    (True, False)
    """
    if row[5] == EMPTY:
        return digest_without_body(*row[:5]) + _DIGEST_OF_EMPTY
    body = hashlib.blake2b(row[5].encode(), digest_size=_SIZE)
    return digest_without_body(*row[:5]) + body.digest()


def chained(before: bytes, digest: bytes) -> bytes:
    """The hash after an event, from the hash before it: it stands for the whole log up to here."""
    return hashlib.blake2b(before + digest, digest_size=_SIZE).digest()


def triplets_of(event: Event) -> list[Sequence[int]]:
    """Comparisons of feedback or of an answer, by item positions: anchor, positive, negative.

    Examples
    --------
    >>> body = {"items": [3, 5, 8], "winner": 1}
    >>> triplets_of(Event(9, 0.0, "answer", None, None, body))
    [(3, 8, 5)]
    """
    if event.kind == EventKind.FEEDBACK:
        return event.body["triplets"]
    (anchor, *candidates), winner = event.body["items"], event.body["winner"]
    return [] if winner is None else [(anchor, candidates[winner], candidates[1 - winner])]


def count_triplets(events: Iterable[Event]) -> int:
    """Comparisons of all feedback and answers among the events."""
    kinds = (EventKind.FEEDBACK, EventKind.ANSWER)
    return sum(len(triplets_of(event)) for event in events if event.kind in kinds)


def query_of(event: Event) -> int:
    """A number of the query that feedback or an answer is about.

    It is the position of the anchor, or a negative number made of the query's own vector.

    Examples
    --------
    >>> body = {"items": [3, 5, 8], "winner": 1}
    >>> query_of(Event(9, 0.0, "answer", None, None, body))
    3
    """
    if event.vector is None:
        return int(
            event.body["items"][0] if "items" in event.body else event.body["triplets"][0][0]
        )
    digest = hashlib.blake2b(event.vector, digest_size=8).digest()
    return -1 - int.from_bytes(digest, "little") // 2


# -- vectors ----------------------------------------------------------------------------------


class SparseVector(NamedTuple):
    """Indices of the nonzero features, ascending, and their values."""

    indices: np.ndarray
    values: np.ndarray


Vector = np.ndarray | SparseVector


def encode_vector(vector: Vector) -> bytes:
    """Encode a dense or sparse vector as little-endian float32.

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
    """Decode what `encode_vector` wrote."""
    if data[:1] == b"D":
        return np.frombuffer(data, "<f4", offset=1)
    count = (len(data) - 1) // 8
    return SparseVector(
        np.frombuffer(data, "<i4", count, offset=1),
        np.frombuffer(data, "<f4", count, offset=1 + 4 * count),
    )


# -- which events count -----------------------------------------------------------------------

#: First and last position of a run of events that do not count.
Range = tuple[int, int]


def excluded_ranges(controls: Iterable[Event], until: int) -> tuple[Range, ...]:
    """Runs of events that retractions and rollbacks up to a position exclude, in order and disjoint.

    Examples
    --------
    >>> undo = Event(5, 0.0, "retract", None, None, {"position": 2})
    >>> back = Event(9, 0.0, "rollback", None, None, {"position": 3})
    >>> excluded_ranges([undo, back], 6), excluded_ranges([undo, back], 9)
    (((2, 2),), ((4, 8),))
    """
    ranges: list[Range] = []
    known = [event for event in controls if event.position <= until]
    reach = until + 1  # controls from here on were rolled back themselves
    for event in reversed(known):
        if event.position >= reach:
            continue
        position = event.body["position"]
        if event.kind == EventKind.ROLLBACK:
            ranges.append((position + 1, event.position - 1))
            reach = position + 1
        elif event.kind == EventKind.RETRACT:
            ranges.append((position, position))
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if last < first:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def is_excluded(ranges: tuple[Range, ...], position: int) -> bool:
    """Whether an event does not count.

    Examples
    --------
    >>> [is_excluded(((2, 2), (4, 8)), position) for position in (1, 2, 3, 8, 9)]
    [False, True, False, True, False]
    """
    place = bisect_right(ranges, (position, float("inf"))) - 1
    return place >= 0 and position <= ranges[place][1]


def can_start_from(controls: list[Event], position: int, until: int) -> bool:
    """Whether the state after `until` can be computed by continuing from the state after `position`.

    Examples
    --------
    >>> undo = Event(5, 0.0, "retract", None, None, {"position": 2})
    >>> [can_start_from([undo], position, 6) for position in (1, 2, 5)]
    [True, False, True]
    """
    then, now = (
        [(first, min(last, position)) for first, last in ranges if first <= position]
        for ranges in (excluded_ranges(controls, position), excluded_ranges(controls, until))
    )
    return position <= until and then == now
