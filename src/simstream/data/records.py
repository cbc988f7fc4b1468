"""The two kinds of records, triplets and labelled pairs: their names, and what makes one valid.

Both have three integers: anchor, positive and negative, or two items and +1 or -1. Triplets may also have an
answer and a task.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from .files import format_error

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".tsv": "tsv",
    ".txt": "txt",
    ".npy": "npy",
    ".npz": "npz",
}

#: What separates the cells of a line; in others (a stream, .txt) the first line shows it.
SEPARATORS = {"csv": ",", "tsv": "\t"}

#: Stands for each number of a line that cannot be parsed: no valid record begins with a negative number.
UNREADABLE = -(2**63)

#: Names of the optional columns of triplets.
ANSWER, TASK = "y", "task"

#: Names of candidates that do not say which of them is nearer: such triplets need an answer.
CANDIDATES = ("anchor", "first", "second")

#: Which rows pass, what is wrong with the others, and what was expected.
Check = tuple[np.ndarray, str, str]


class ItemLimits(NamedTuple):
    """Limits on the item numbers of a record."""

    #: Number of items of the first column and of the others; None: no number is too large.
    n_items: tuple[int, int] | None = None
    #: Whether the first column must differ from the others.
    distinct: bool = False


class RecordRows(NamedTuple):
    """Records as arrays."""

    #: The three integers of each: int64, shape (n, 3).
    numbers: np.ndarray
    #: Answers to triplets, where the input has them: int64, shape (n,).
    y: np.ndarray | None = None
    #: Names of the tasks of triplets, where the input has them: shape (n,).
    tasks: np.ndarray | None = None

    def part(self, which: Any) -> RecordRows:
        """The rows that a slice or a mask selects."""
        y, tasks = (None if column is None else column[which] for column in (self.y, self.tasks))
        return RecordRows(self.numbers[which], y, tasks)

    def shown(self, row: int) -> str:
        """The numbers of a record, for a message."""
        numbers = self.numbers[row].tolist()
        return str(numbers if self.y is None else [*numbers, int(self.y[row])])


def rows_of_arrays(source: object, numbers: np.ndarray, y: Any, tasks: Any) -> RecordRows:
    """Triplets with the arrays of their answers and tasks, whose shapes and types are checked."""
    for name, values, kinds, expected in (
        (ANSWER, y, "iu", "integers"),
        ("tasks", tasks, "iuU", "strings or integers"),
    ):
        shape = (len(numbers),)
        if values is not None and (values.shape != shape or values.dtype.kind not in kinds):
            expected = f"{expected}, one for each of {len(numbers)} triplets"
            found = f"shape {values.shape}, type {values.dtype}"
            raise format_error(source, f"bad array {name!r}", expected, found)
    return RecordRows(
        np.ascontiguousarray(numbers, np.int64),
        None if y is None else y.astype(np.int64),
        None if tasks is None else tasks.astype(str),
    )


class RecordKind(NamedTuple):
    """Triplets or pairs: how they are called, and the checks of their rows."""

    singular: str
    #: Also the name of its array in an ``.npz`` file.
    plural: str
    #: Names of the three numbers in headers and objects; the first set is the one written.
    names: tuple[tuple[str, str, str], ...]
    #: What a record consists of.
    numbers: str
    #: Whether records may have an answer and a task.
    may_have_extras: bool
    #: Checks of rows, in the order in which they are reported.
    checks: Callable[[RecordRows, ItemLimits], Iterator[Check]]

    @property
    def headers(self) -> str:
        """The headers a file may have, for a message."""
        sets = [
            ",".join((*names, ANSWER) if names == CANDIDATES else names) for names in self.names
        ]
        return " or ".join(sets) + (
            f", optionally with {TASK} and {ANSWER}" if self.may_have_extras else ""
        )

    def names_in(self, found: Container[str]) -> tuple[str, ...]:
        """The first set of names that is complete among those found; empty if none is."""
        return next((names for names in self.names if all(name in found for name in names)), ())

    def are_valid(self, rows: RecordRows, limits: ItemLimits) -> np.ndarray:
        """Which rows are valid records."""
        valid = rows.numbers[:, 0] != UNREADABLE
        for passed, _, _ in self.checks(rows, limits):
            valid &= passed
        return valid

    def problem(self, row: RecordRows, limits: ItemLimits, reason: str = "") -> tuple[str, str]:
        """What is wrong with an invalid record, and what was expected.

        ``reason`` is why its text could not be parsed, if that is known.
        """
        if row.numbers[0, 0] != UNREADABLE:
            checks = self.checks(row, limits)
            return next((what, expected) for passed, what, expected in checks if not passed[0])
        expected = self.numbers
        if row.y is not None or row.tasks is not None:
            expected += ", and the answer y or the task that the first record has"
        return f"not a {self.singular}" + (reason and f": {reason}"), expected


def _triplet_checks(rows: RecordRows, limits: ItemLimits) -> Iterator[Check]:
    anchor, positive, negative = rows.numbers.T
    is_number = (anchor >= 0) & (positive >= 0) & (negative >= 0)
    yield is_number, "negative item number", "numbers from 0"
    yield positive != negative, "positive equals negative", "two different items"
    if limits.n_items is not None:
        n_anchors, n_others = limits.n_items
        fits = (anchor < n_anchors) & (positive < n_others) & (negative < n_others)
        expected = f"anchor < {n_anchors}, positive and negative < {n_others}"
        yield fits, "item number too large", expected
    if rows.y is not None:
        expected = "y = +1 (the first candidate is nearer) or -1"
        yield (rows.y == 1) | (rows.y == -1), "bad answer", expected
    if rows.tasks is not None:
        yield rows.tasks != "", "no task", "the name of a task"
    if limits.distinct:
        differ = (anchor != positive) & (anchor != negative)
        yield differ, "anchor compared with itself", "three different items"


def _pair_checks(rows: RecordRows, limits: ItemLimits) -> Iterator[Check]:
    first, second, y = rows.numbers.T
    yield (first >= 0) & (second >= 0), "negative item number", "numbers from 0"
    yield (y == 1) | (y == -1), "bad label of a pair", "+1 (similar) or -1 (dissimilar)"
    if limits.n_items is not None:
        n_first, n_second = limits.n_items
        fits = (first < n_first) & (second < n_second)
        yield fits, "item number too large", f"first < {n_first}, second < {n_second}"
    if limits.distinct:
        yield first != second, "an item paired with itself", "two different items"


TRIPLETS = RecordKind(
    "triplet",
    "triplets",
    (
        ("anchor", "positive", "negative"),
        ("head", "winner", "loser"),  # as Salmon calls them
        ("anchor", "near", "far"),
        CANDIDATES,
    ),
    "three integers",
    True,
    _triplet_checks,
)

PAIRS = RecordKind(
    "pair",
    "pairs",
    (("first", "second", "y"), ("left", "right", "y"), ("i", "j", "y")),
    "two item numbers and +1 or -1",
    False,
    _pair_checks,
)
