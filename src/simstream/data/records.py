"""The two kinds of records of three numbers, triplets and labelled pairs: names, and what makes one good.

Triplets may have an answer and a task besides. Then a record is five numbers: anchor, two candidates, answer,
and the number of the task among the names found so far (see `Extras`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

import numpy as np

#: Stands for every number of a line that is not a record. No good record begins with a negative number.
UNREADABLE = -(2**63)

#: Names of the columns that triplets may have besides.
ANSWER, TASK = "y", "task"

#: Names of two candidates that do not say which is nearer: they need an answer.
UNDECIDED = ("anchor", "first", "second")

_NO_TASK, _EMPTY_TASK = -1, -2

#: Which rows are good, what is wrong with the others, and what was expected of them.
Check = tuple[np.ndarray, str, str]


class Limits(NamedTuple):
    """What the item numbers of a record must fulfil besides being numbers."""

    #: Items of the first column and of the others; None: no number is too large.
    n_items: tuple[int, int] | None = None
    #: Whether the first column may not name the same item as another one.
    distinct: bool = False


class Extras:
    """The answer and the task that every record of an input has besides its three numbers, or has not.

    Parameters
    ----------
    has_answer, has_task : bool

    Examples
    --------
    >>> extras = Extras(has_answer=False, has_task=True)
    >>> extras.completed([0, 1, 2], None, "ann"), extras.completed([0, 1, 2], None, "bob")
    ([0, 1, 2, 1, 0], [0, 1, 2, 1, 1])
    >>> extras.names
    ['ann', 'bob']
    """

    def __init__(self, has_answer: bool = False, has_task: bool = False) -> None:
        self.has_answer, self.has_task = has_answer, has_task
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return 5 if self.has_answer or self.has_task else 3

    def completed(self, three: list[int], answer: int | None, task: str | None) -> list[int]:
        """A record with its answer (+1 if there are none) and the number of its task."""
        if self.width == 3:
            return three
        return [*three, 1 if answer is None else answer, self._number_of(task)]

    def _number_of(self, task: str | None) -> int:
        if not task:
            return _NO_TASK if task is None else _EMPTY_TASK
        number = self._numbers.setdefault(task, len(self.names))
        if number == len(self.names):
            self.names.append(task)
        return number


class RecordKind(NamedTuple):
    """One kind of records."""

    singular: str
    #: Also the name of its array in an ``.npz`` file.
    plural: str
    #: Names of the three numbers in headers and objects; the first set is the one written.
    names: tuple[tuple[str, str, str], ...]
    #: What a record consists of.
    numbers: str
    #: Whether records may have an answer and a task besides.
    may_have_extras: bool
    #: Checks of rows of numbers, the first failed one is reported.
    checks: Callable[[np.ndarray, Limits], Iterator[Check]]

    @property
    def headers(self) -> str:
        """The names that a header may have, for a message."""
        sets = [",".join((*names, ANSWER) if names == UNDECIDED else names) for names in self.names]
        besides = f", and beside them perhaps {TASK} and {ANSWER}" if self.may_have_extras else ""
        return " or ".join(sets) + besides

    def names_in(self, found: Container[str]) -> tuple[str, ...]:
        """The set of names that all are among these; the empty one if there is none."""
        return next((names for names in self.names if all(name in found for name in names)), ())

    def are_good(self, rows: np.ndarray, limits: Limits) -> np.ndarray:
        """Which rows are good records."""
        good = np.ones(len(rows), bool)
        for passed, _, _ in self._all_checks(rows, limits):
            good &= passed
        return good

    def problem(self, row: np.ndarray, limits: Limits) -> tuple[str, str]:
        """What is wrong with a bad record, and what was expected."""
        found = self._all_checks(row[None, :], limits)
        what, expected = next((what, text) for passed, what, text in found if not passed[0])
        if len(row) > 3 and row[0] == UNREADABLE:
            expected = f"{expected}, and the answer y or the task that the first record has"
        return what, expected

    def _all_checks(self, rows: np.ndarray, limits: Limits) -> Iterator[Check]:
        yield rows[:, 0] != UNREADABLE, f"not a {self.singular}", self.numbers
        yield from self.checks(rows, limits)


def _triplet_checks(rows: np.ndarray, limits: Limits) -> Iterator[Check]:
    anchor, positive, negative = rows[:, :3].T
    is_number = (anchor >= 0) & (positive >= 0) & (negative >= 0)
    yield is_number, "negative item number", "numbers from 0"
    yield positive != negative, "positive equals negative", "two different items"
    if limits.n_items is not None:
        n_anchors, n_others = limits.n_items
        fits = (anchor < n_anchors) & (positive < n_others) & (negative < n_others)
        expected = f"anchor < {n_anchors}, positive and negative < {n_others}"
        yield fits, "item number too large", expected
    if rows.shape[1] > 3:
        answer, task = rows[:, 3:].T
        yield (
            (answer == 1) | (answer == -1),
            "bad answer",
            "y = +1 (the first candidate is nearer) or -1",
        )
        yield task != _EMPTY_TASK, "no task", "the name of a task"
    if limits.distinct:
        differ = (anchor != positive) & (anchor != negative)
        yield differ, "anchor compared with itself", "three different items"


def _pair_checks(rows: np.ndarray, limits: Limits) -> Iterator[Check]:
    first, second, y = rows.T
    yield (first >= 0) & (second >= 0), "negative item number", "numbers from 0"
    yield (y == 1) | (y == -1), "bad label of a pair", "+1 (similar) or -1 (dissimilar)"
    if limits.n_items is not None:
        n_first, n_second = limits.n_items
        fits = (first < n_first) & (second < n_second)
        yield fits, "item number too large", f"first < {n_first}, second < {n_second}"
    if limits.distinct:
        yield first != second, "an item paired with itself", "two different items"


#: Anchor, positive, negative; the second names are Salmon's.
TRIPLETS = RecordKind(
    "triplet",
    "triplets",
    (
        ("anchor", "positive", "negative"),
        ("head", "winner", "loser"),
        ("anchor", "near", "far"),
        UNDECIDED,
    ),
    "three integers",
    True,
    _triplet_checks,
)

#: Two items, and +1 (similar) or -1 (dissimilar).
PAIRS = RecordKind(
    "pair",
    "pairs",
    (("first", "second", "y"), ("left", "right", "y"), ("i", "j", "y")),
    "two item numbers and +1 or -1",
    False,
    _pair_checks,
)
