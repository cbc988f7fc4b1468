"""What learners learn from: checked tuples of row numbers, together with the items they refer to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.entrywise import Pairs, Triplets, differences
from ..validation import (
    TUPLE_KINDS,
    Items,
    check_index_lists,
    check_index_tuples,
    check_items,
    check_list_shape,
    check_weights,
    columns_of_left,
    shape_of,
    tuples_by_rows,
)

#: The two labels of pairs as they were given: dissimilar, similar.
PairClasses = tuple[int, int]

_ROLES = ("anchor", "positive", "negative")
_PLACES = ("first item", "second item", "third item", "fourth item")


@dataclass(frozen=True)
class Comparisons:
    """Triplets (anchor, positive, negative), labelled pairs or lists, as row numbers of checked items."""

    #: Items of the columns of the left (see `of_left`), and of the others; the same object in one item space.
    left: Items
    right: Items
    #: Row numbers: three columns for triplets, two for pairs. Lists have a query, relevant items and
    #: negatives, -1 where there is none.
    index: np.ndarray
    #: +1 or -1: whether a pair is similar, whether the anchor of a triplet is more like the second item
    #: than like the third. None for triplets in that order.
    y: np.ndarray | None = None
    #: Task number of each tuple, for multi-task learners.
    tasks: np.ndarray | None = None
    #: Importance of each tuple, above zero: its step is that many times as long, or as dear. None for 1.
    weights: np.ndarray | None = None
    #: A uniform random number for each tuple, for learners that ask for only some of the answers.
    coins: np.ndarray | None = None
    #: What a step adds for a sparse anchor, where that is not the anchor itself: see `_engines.geometry`.
    written: Items | None = None
    #: The columns of z that are wanted, all if None: dense items only.
    columns: slice | None = None
    #: Whether the items are the vectors of these tuples alone, not a collection that row numbers refer to.
    of_vectors: bool = False
    #: Whether these are quadruplets: the first item (of the left) is more like the second (of the right) than
    #: the third (left) is like the fourth (right).
    is_quadruplets: bool = False
    #: The labels that `y` was given in; None if there were none, or they do not say.
    classes: PairClasses | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, int]:
        """Features of the items on the left and on the right: the shape of a matrix between them."""
        return self.left.shape[1], self.right.shape[1]

    def check_one_space(self, what: str, hint: str = "") -> None:
        """Raise if the items on the two sides do not have the same features, as `what` needs them to."""
        left, right = self.shape
        if left != right:
            raise ValueError(
                f"{what}: expected one feature space, got {left} features on the left and {right} on the "
                f"right{hint}"
            )

    @property
    def is_sparse(self) -> bool:
        """Whether the items on either side are sparse."""
        return self.left.is_sparse or self.right.is_sparse

    @cached_property
    def sign(self) -> np.ndarray:
        """Side of the threshold on which x'Mz belongs: +1 above, -1 below (distance of a similar pair)."""
        if self.y is None:
            return np.ones(len(self))
        return -self.y if self.is_pairs else self.y

    @property
    def is_pairs(self) -> bool:
        """Whether these are pairs, not triplets."""
        return self.index.shape[1] == 2

    @property
    def of_left(self) -> np.ndarray:
        """Which columns are items of the left: the first, and the third of quadruplets."""
        return columns_of_left(self.index.shape[1], self.is_quadruplets)

    def differences(self) -> Comparisons:
        """Quadruplets of differences: x'Mx of the last two items is larger than x'Mx of the first two."""
        n = len(self)
        ends = [self.index[:, [2, 3]], self.index[:, [0, 1]]]
        rows = [_differences(self.left, pair[:, 0], self.right, pair[:, 1]) for pair in ends]
        left, place = Items._of(np.concatenate(rows)), np.arange(n)
        left.feature_names = self.left.feature_names
        right = left
        if self.left is not self.right:
            right = Items._of(left.values)  # with the names of its own side
            right.feature_names = self.right.feature_names
        index = np.column_stack([place, place, n + place, n + place])
        return replace(self, left=left, right=right, index=index, of_vectors=True)

    def as_pairs(self) -> Comparisons:
        """Triplets as pairs: each yields its similar pair, then its dissimilar one."""
        pairs = self.index[:, [0, 1, 0, 2]].reshape(-1, 2)
        weights = None if self.weights is None else np.repeat(self.weights, 2)
        return replace(self, index=pairs, y=np.tile([1.0, -1.0], len(self)), weights=weights)

    def rows(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Dense rows x and z of tuples begin .. end - 1; see `rows_of`."""
        return self.rows_of(slice(begin, end))

    def rows_of(self, which: Any) -> tuple[np.ndarray, np.ndarray]:
        """Dense rows x and z of some tuples: anchor and difference; for pairs the difference is both."""
        index = self.index[which]
        if self.columns is not None:
            return self._some_columns_of(index)
        if self.is_pairs:
            v = _differences(self.left, index[:, 0], self.right, index[:, 1])
            return v, v
        z = _differences(self.right, index[:, 1], self.right, index[:, 2])
        return self.left.dense_rows(index[:, 0]), z

    def _some_columns_of(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows x, and the wanted columns of rows z: others are not even read."""
        if self.is_pairs:
            v = self.left.values[index[:, 0]] - self.right.values[index[:, 1]]
            return v, np.ascontiguousarray(v[:, self.columns])
        z = self.right_rows(index[:, 1])
        z -= self.right_rows(index[:, 2])
        return self.left.values[index[:, 0]], z

    def right_rows(self, index: np.ndarray) -> Any:
        """Rows of the items on the right, of the wanted columns."""
        return (
            self.right.rows(index)
            if self.columns is None
            else self.right.values[index, self.columns]
        )

    def densified(self) -> Comparisons:
        """The same with dense items, only those that occur in the tuples."""
        if not self.is_sparse:
            return self
        left, right, index = self.used_rows()
        dense = [self.left.dense_rows(left), self.right.dense_rows(right)]
        return replace(self, left=Items._of(dense[0]), right=Items._of(dense[1]), index=index)

    def used_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of the left and of the right that occur in the tuples, and the tuples as numbers of these."""
        index, of_left = np.empty_like(self.index), self.of_left
        left, index[:, of_left] = _renumbered(self.index[:, of_left])
        right, index[:, ~of_left] = _renumbered(self.index[:, ~of_left])
        return left, right, index

    def in_memory(self) -> Comparisons:
        """The same with the items that occur in the tuples, where items are read from a file."""
        if not (self.left.is_stored or self.right.is_stored):
            return self
        if self.left is self.right:
            rows, index = _renumbered(self.index)
            items = Items._of(self.left.rows(rows))
            return replace(self, left=items, right=items, index=index)
        left, right, index = self.used_rows()
        sides = [Items._of(self.left.rows(left)), Items._of(self.right.rows(right))]
        return replace(self, left=sides[0], right=sides[1], index=index)

    def kernel_tuples(self) -> Any:
        """The record that compiled readers take."""
        return (Pairs if self.is_pairs else Triplets)(self.index, self.sign)

    def one(self, t: int) -> Comparisons:
        """Triplet t with only its own three items, for code whose cost grows with the number of items."""
        left, right = (
            Items._of(items.rows(rows))
            for items, rows in ((self.left, self.index[t, :1]), (self.right, self.index[t, 1:]))
        )
        return Comparisons(left, right, np.array([[0, 0, 1]]))

    def part(self, begin: int, end: int) -> Comparisons:
        """Tuples begin .. end - 1."""
        cut = slice(begin, end)
        y = None if self.y is None else self.y[cut]
        tasks = None if self.tasks is None else self.tasks[cut]
        coins = None if self.coins is None else self.coins[cut]
        weights = None if self.weights is None else self.weights[cut]
        index = self.index[cut]
        return replace(self, index=index, y=y, tasks=tasks, coins=coins, weights=weights)

    def weighted(self, sample_weight: Any) -> Comparisons:
        """The tuples with their weights, those of weight zero left out."""
        weights = check_weights("sample_weight", sample_weight, len(self))
        used = weights > 0
        some = self if used.all() else self._chosen(used)
        return replace(some, weights=weights[used])

    def _chosen(self, which: np.ndarray) -> Comparisons:
        """The tuples where `which` is true."""
        y = None if self.y is None else self.y[which]
        return replace(self, index=self.index[which], y=y)

    def of_equal_weight(self) -> list[tuple[float, Comparisons]]:
        """The stream cut where the weight changes: weights, and the tuples that have them."""
        weights = self.weights
        assert weights is not None
        edges = [0, *(np.flatnonzero(np.diff(weights)) + 1), len(weights)]
        return [(float(weights[b]), self.part(b, e)) for b, e in pairwise(edges)]


def _renumbered(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur, and the tuples as numbers of these; -1, no item of a list, stays."""
    rows, places = np.unique(index, return_inverse=True)
    padding = int(rows[0] < 0)
    return rows[padding:], places.reshape(index.shape) - padding


def _differences(a: Items, i: np.ndarray, b: Items, j: np.ndarray) -> np.ndarray:
    """Dense rows a[i] - b[j]."""
    if a.is_sparse or b.is_sparse:
        return a.dense_rows(i) - b.dense_rows(j)
    return differences(a.values, i, b.values, j)


class ItemCache:
    """The items that row numbers refer to, checked once for each object given as `preprocessor`.

    That object must not be changed in place. Copies and pickles of the cache are empty.
    """

    _kept: tuple[Any, Any, Items, Items] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ItemCache, ()

    def items(self, source: Any, dtype: Any) -> tuple[Items, Items]:
        """Checked items on the left and on the right, the same object in one item space."""
        kept = self._kept
        if kept is None or kept[0] is not source or kept[1] != dtype:
            kept = self._kept = (source, dtype, *_checked_sides(source, dtype))
        return kept[2], kept[3]

    def tuples(self, source: Any, tuples: Any, size: int, dtype: Any) -> Comparisons:
        """Check tuples of `size` items, given as row numbers or as vectors; labels are not read.

        Parameters
        ----------
        source : what was given as `preprocessor`, or None
        tuples : (n, size) integers, or ids where the items have ids, or (n, size, d) numbers
        size : 2 for pairs, 3 for triplets, 4 for quadruplets
        dtype : precision of the items, None to keep theirs
        """
        what = TUPLE_KINDS[size]
        array = _as_tuples(tuples, what)
        if array.ndim == 3:
            if array.shape[1] != size:
                raise ValueError(f"{what}: expected shape (n, {size}, d), got {array.shape}")
            return replace(_of_vectors(array, what, dtype), is_quadruplets=size == 4)
        if callable(source):
            items, index = _fetched(source, array, dtype)
            roles = _ROLES if size == 3 else _PLACES[:size]
            sizes = (items.shape[0],) * size
            index = check_index_tuples(index, sizes, roles)
            return Comparisons(items, items, index, is_quadruplets=size == 4)
        is_index = array.ndim == 2 and array.shape[1] == size and array.dtype.kind in "iu"
        if source is None and not is_index:
            raise ValueError(
                f"{what}: expected row numbers of shape (n, {size}), or vectors of shape (n, {size}, d), "
                f"got {array.dtype} of shape {array.shape}"
            )
        left, right = self.items(source, dtype)
        array = tuples_by_rows(tuples, left, right, what, array)
        of_left = columns_of_left(size, size == 4).tolist()
        sizes = tuple(left.shape[0] if is_left else right.shape[0] for is_left in of_left)
        roles = _ROLES if size == 3 else _PLACES[:size]
        index = check_index_tuples(array, sizes, roles)
        return Comparisons(left, right, index, is_quadruplets=size == 4)

    def rows(self, source: Any, X: Any, dtype: Any) -> Any:
        """Items as they were given, or those that a one-dimensional X names: not checked, or checked.

        Parameters
        ----------
        source : what was given as `preprocessor`, or None
        X : items, or row numbers of `source`, ids if its items have ids, keys if it is a function
        dtype : precision of the items that are looked up, None to keep theirs
        """
        if source is None or len(shape_of(X)) != 1:
            return X
        array = np.asarray(X)
        if callable(source):
            items, index = _fetched(source, array, dtype)
            return items.rows(index)
        if isinstance(source, tuple):
            raise ValueError(
                "preprocessor: expected items of one space to look up rows, got a pair"
            )
        items = self.items(source, dtype)[0]
        if items.has_ids:
            return items.rows(items.rows_of(X, "X"))
        if array.dtype.kind not in "iu":
            raise TypeError(f"row numbers: expected integers, got dtype {array.dtype}")
        wrong = array[(array < 0) | (array >= items.shape[0])]
        if len(wrong):
            raise ValueError(
                f"row numbers: expected 0 to {items.shape[0] - 1}, rows of preprocessor, got {wrong[0]}"
            )
        return items.rows(array)

    def lists(self, source: Any, lists: Any, n_relevant: int, dtype: Any) -> Comparisons:
        """Check lists, given as row numbers or as vectors: a query, relevant items, negatives.

        Parameters
        ----------
        source : what was given as `preprocessor`, or None
        lists : (n, 1 + n_relevant + k) integers, where -1 is no item, or (n, 1 + n_relevant + k, d) numbers
        n_relevant : int
        dtype : precision of the items, None to keep theirs
        """
        array = _as_tuples(lists, "lists")
        if array.ndim == 3:
            check_list_shape("lists", array, n_relevant)
            return _of_vectors(array, "lists", dtype)
        if source is None and (array.ndim != 2 or array.dtype.kind not in "iu"):
            size = f"{1 + n_relevant} + k"
            raise ValueError(
                f"lists: expected row numbers of shape (n, {size}), or vectors of shape (n, {size}, d), "
                f"got {array.dtype} of shape {array.shape}"
            )
        left, right = self.items(source, dtype)
        array = tuples_by_rows(lists, left, right, "lists", array)
        index = check_index_lists(array, (left.shape[0], right.shape[0]), n_relevant)
        return Comparisons(left, right, index)


def _as_tuples(tuples: Any, what: str) -> np.ndarray:
    if sp.issparse(tuples):
        raise TypeError(f"{what}: expected an array, got a sparse matrix; pass it as preprocessor")
    return np.asarray(tuples)


def _of_vectors(array: np.ndarray, what: str, dtype: Any) -> Comparisons:
    """Tuples given as vectors, an array of shape (n, size, d)."""
    if len(array) == 0:
        raise ValueError(f"{what}: expected at least one, got none")
    flat = array.reshape(-1, array.shape[2])
    items = check_items(flat, what, dtype=dtype)
    index = np.arange(len(flat)).reshape(-1, array.shape[1])
    return Comparisons(items, items, index, of_vectors=True)


def _fetched(fetch: Any, keys: np.ndarray, dtype: Any) -> tuple[Items, np.ndarray]:
    """The items that a function gives for keys, each asked for once, and the row of each key among them."""
    if keys.size == 0:
        raise ValueError("tuples: expected at least one, got none")
    different, index = np.unique(keys, return_inverse=True)
    items = check_items(fetch(different), "preprocessor(keys)", dtype=dtype)
    if items.shape[0] != len(different):
        raise ValueError(
            f"preprocessor(keys): expected one row for each of {len(different)} keys, got "
            f"{items.shape[0]} rows"
        )
    return items, index.reshape(keys.shape)


def _checked_sides(source: Any, dtype: Any) -> tuple[Items, Items]:
    """Check what was given as `preprocessor`: an array, a CSR matrix or a pair of them."""
    if source is None:
        raise ValueError(
            "preprocessor: expected items (an array, a CSR matrix, or a pair of them) to look up "
            "row numbers, got None"
        )
    if callable(source):
        raise TypeError(
            "preprocessor: expected items here, got a function; functions look up pairs, triplets and rows"
        )
    if not isinstance(source, tuple):
        items = check_items(source, "preprocessor", dtype=dtype)
        return items, items
    if len(source) != 2:
        raise ValueError(f"preprocessor: expected a pair (queries, items), got {len(source)} parts")
    left = check_items(source[0], "preprocessor[0]", dtype=dtype)
    return left, check_items(source[1], "preprocessor[1]", dtype=dtype or left.dtype)
