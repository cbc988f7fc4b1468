"""The two kinds of records of three numbers, triplets and labelled pairs: names, and what makes one good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

#: Stands for a line that is not three integers. No good record begins with a negative number.
UNREADABLE = (-(2**63),) * 3

#: Which rows are good, what is wrong with the others, and what was expected of them.
Check = tuple[np.ndarray, str, str]


class Limits(NamedTuple):
    """What the item numbers of a record must fulfil besides being numbers."""

    #: Items of the first column and of the others; None: no number is too large.
    n_items: tuple[int, int] | None = None
    #: Whether the first column may not name the same item as another one.
    distinct: bool = False


class RecordKind(NamedTuple):
    """One kind of records."""

    singular: str
    #: Also the name of its array in an ``.npz`` file.
    plural: str
    #: Names of the three numbers in headers and objects; the first set is the one written.
    names: tuple[tuple[str, str, str], ...]
    #: What a record consists of.
    numbers: str
    #: Checks of rows of numbers, the first failed one is reported.
    checks: Callable[[np.ndarray, Limits], Iterator[Check]]

    def are_good(self, rows: np.ndarray, limits: Limits) -> np.ndarray:
        """Which rows are good records."""
        good = np.ones(len(rows), bool)
        for passed, _, _ in self._all_checks(rows, limits):
            good &= passed
        return good

    def problem(self, row: np.ndarray, limits: Limits) -> tuple[str, str]:
        """What is wrong with a bad record, and what was expected."""
        found = self._all_checks(row[None, :], limits)
        return next((what, expected) for passed, what, expected in found if not passed[0])

    def _all_checks(self, rows: np.ndarray, limits: Limits) -> Iterator[Check]:
        yield rows[:, 0] != UNREADABLE[0], f"not a {self.singular}", self.numbers
        yield from self.checks(rows, limits)


def _triplet_checks(rows: np.ndarray, limits: Limits) -> Iterator[Check]:
    anchor, positive, negative = rows.T
    is_number = (anchor >= 0) & (positive >= 0) & (negative >= 0)
    yield is_number, "negative item number", "numbers from 0"
    yield positive != negative, "positive equals negative", "two different items"
    if limits.n_items is not None:
        n_anchors, n_others = limits.n_items
        fits = (anchor < n_anchors) & (positive < n_others) & (negative < n_others)
        expected = f"anchor < {n_anchors}, positive and negative < {n_others}"
        yield fits, "item number too large", expected
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
    (("anchor", "positive", "negative"), ("head", "winner", "loser"), ("anchor", "near", "far")),
    "three integers",
    _triplet_checks,
)

#: Two items, and +1 (similar) or -1 (dissimilar).
PAIRS = RecordKind(
    "pair",
    "pairs",
    (("first", "second", "y"), ("left", "right", "y"), ("i", "j", "y")),
    "two item numbers and +1 or -1",
    _pair_checks,
)
