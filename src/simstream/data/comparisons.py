"""What learners learn from: checked tuples of row numbers, together with the items they name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..validation import Items


@dataclass(frozen=True)
class Comparisons:
    """Triplets (anchor, positive, negative) or labelled pairs, as row numbers of checked items."""

    #: Items of the first column, and of the others; the same object in one item space.
    left: Items
    right: Items
    #: Row numbers: three columns for triplets, two for pairs.
    index: np.ndarray
    #: +1 or -1: whether a pair is similar, whether the anchor of a triplet is more like the second item
    #: than like the third. None for triplets in that order.
    y: np.ndarray | None = None
    #: Number of the task of each tuple, for learners of many tasks.
    tasks: np.ndarray | None = None
    #: A uniform number for each tuple, for learners that ask for some answers only.
    coins: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_sparse(self) -> bool:
        """Whether any of the items are."""
        return self.left.is_sparse or self.right.is_sparse

    @property
    def sign(self) -> np.ndarray:
        """Side of the threshold on which x'Mz belongs: +1 above, -1 below (distance of a similar pair)."""
        if self.y is None:
            return np.ones(len(self))
        return -self.y if self.is_pairs else self.y

    @property
    def is_pairs(self) -> bool:
        """Whether these are pairs, not triplets."""
        return self.index.shape[1] == 2

    def as_pairs(self) -> Comparisons:
        """The same as pairs: a triplet yields its similar pair, then its dissimilar one."""
        if self.is_pairs:
            return self
        pairs = self.index[:, [0, 1, 0, 2]].reshape(-1, 2)
        return replace(self, index=pairs, y=np.tile([1.0, -1.0], len(self)))

    def rows(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Dense rows x and z of tuples begin .. end - 1; see `rows_of`."""
        return self.rows_of(slice(begin, end))

    def rows_of(self, which: Any) -> tuple[np.ndarray, np.ndarray]:
        """Dense rows x and z of some tuples: anchor and difference; for pairs the difference is both."""
        index = self.index[which]
        if self.is_pairs:
            v = _differences(self.left, index[:, 0], self.right, index[:, 1])
            return v, v
        z = _differences(self.right, index[:, 1], self.right, index[:, 2])
        return self.left.dense_rows(index[:, 0]), z

    def densified(self) -> Comparisons:
        """The same with dense items, but only those the tuples name."""
        if not self.is_sparse:
            return self
        index = np.empty_like(self.index)
        first, index[:, 0] = np.unique(self.index[:, 0], return_inverse=True)
        others, renumbered = np.unique(self.index[:, 1:], return_inverse=True)
        index[:, 1:] = renumbered.reshape(len(self), -1)
        left, right = self.left.dense_rows(first), self.right.dense_rows(others)
        return replace(self, left=Items(left), right=Items(right), index=index)

    def kernel_tuples(self) -> Any:
        """The record that compiled readers take."""
        from .._kernels.entrywise import Pairs, Triplets

        return (Pairs if self.is_pairs else Triplets)(self.index, self.sign)

    def with_coins(self, coins: np.ndarray) -> Comparisons:
        """The same with a uniform number for each tuple."""
        return replace(self, coins=coins)

    def one(self, t: int) -> Comparisons:
        """Triplet t alone, with no other items than its own: what looks at all of them is quick then."""
        left, right = (
            Items(items.rows(rows))
            for items, rows in ((self.left, self.index[t, :1]), (self.right, self.index[t, 1:]))
        )
        return Comparisons(left, right, np.array([[0, 0, 1]]))

    def part(self, begin: int, end: int) -> Comparisons:
        """Tuples begin .. end - 1."""
        cut = slice(begin, end)
        y = None if self.y is None else self.y[cut]
        tasks = None if self.tasks is None else self.tasks[cut]
        coins = None if self.coins is None else self.coins[cut]
        return replace(self, index=self.index[cut], y=y, tasks=tasks, coins=coins)


def _differences(a: Items, i: np.ndarray, b: Items, j: np.ndarray) -> np.ndarray:
    """Dense rows a[i] - b[j]."""
    if a.is_sparse or b.is_sparse:
        return a.dense_rows(i) - b.dense_rows(j)
    from .._kernels.entrywise import differences

    return differences(a.values, i, b.values, j)
