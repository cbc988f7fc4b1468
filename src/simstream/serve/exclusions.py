"""Which events count: what was taken back or rolled back does not. Pure.

The state after position q is the fold over all events up to q that no retraction or rollback up to q
excludes. A rollback to p excludes everything between p and itself, earlier retractions and rollbacks in
between included: the state after it is the state after p.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from .events import RETRACT, ROLLBACK, Event

#: First and last position of a stretch of events that do not count.
Range = tuple[int, int]


def excluded_ranges(controls: Iterable[Event], until: int) -> tuple[Range, ...]:
    """Stretches of events that do not count after a position, in order and apart from each other.

    Parameters
    ----------
    controls : retractions and rollbacks, in order (others are passed over)
    until : position

    Examples
    --------
    >>> undo = Event(5, 0.0, "retract", None, None, {"position": 2})
    >>> back = Event(9, 0.0, "rollback", None, None, {"position": 3})
    >>> excluded_ranges([undo, back], 6), excluded_ranges([undo, back], 9)
    (((2, 2),), ((4, 8),))
    """
    ranges: list[Range] = []
    known = [event for event in controls if event.position <= until]
    reach = until + 1  # controls from here on were rolled back
    for event in reversed(known):
        if event.position >= reach:
            continue
        position = event.body["position"]
        if event.kind == ROLLBACK:
            ranges.append((position + 1, event.position - 1))
            reach = position + 1
        elif event.kind == RETRACT:
            ranges.append((position, position))
    return _merged(ranges)


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if last < first:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def clipped(ranges: Iterable[Range], until: int) -> tuple[Range, ...]:
    """The part of the stretches up to a position.

    Examples
    --------
    >>> clipped(((2, 2), (4, 8)), 5)
    ((2, 2), (4, 5))
    """
    return tuple((first, min(last, until)) for first, last in ranges if first <= until)


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
    """Whether the state after a position is a beginning of the state after a later one.

    Examples
    --------
    >>> undo = Event(5, 0.0, "retract", None, None, {"position": 2})
    >>> [can_start_from([undo], position, 6) for position in (1, 2, 5)]
    [True, False, True]
    """
    then = excluded_ranges(controls, position)
    now = clipped(excluded_ranges(controls, until), position)
    return position <= until and clipped(then, position) == now
