"""Triplets from labels: drawn by a seeded generator, as row numbers, without touching features."""

from __future__ import annotations

from typing import Any

import numpy as np

from .validation import check_integer


class TripletSampler:
    """Draw triplets (anchor, positive, negative) from class labels.

    The anchor is uniform over the items that can be one, the positive uniform over the other items of
    its class, the negative uniform over all items of other classes. Drawing n triplets at once or in
    several calls gives the same stream.

    Parameters
    ----------
    labels : array-like of shape (n_items,)
    random_state : None, int or numpy Generator
    allow_self : bool
        Whether an item may be its own positive, as in the public OASIS code. Without it, the only
        member of a class cannot be an anchor.

    Examples
    --------
    >>> sampler = TripletSampler(["cat", "dog", "cat", "dog", "bird"], random_state=0)
    >>> triplets = sampler.draw(100)
    >>> triplets.shape
    (100, 3)
    >>> sorted({int(a) for a in triplets[:, 0]})  # the only bird is never an anchor
    [0, 1, 2, 3]
    """

    def __init__(self, labels: Any, random_state: Any = None, *, allow_self: bool = False) -> None:
        labels = np.asarray(labels)
        if labels.ndim != 1 or len(labels) == 0:
            raise ValueError(f"labels: expected one label per item, got shape {labels.shape}")
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            raise ValueError("labels: expected a label for every item, got NaN")
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"labels: expected at least two classes to draw negatives from, got 1 class "
                f"({classes[0]})"
            )
        self.allow_self = allow_self
        self._codes = codes
        self._size = np.bincount(codes)
        self._first = np.cumsum(self._size) - self._size  # of each class in the order below
        self._by_class = np.argsort(codes, kind="stable")
        self._place = np.empty(len(codes), np.int64)
        self._place[self._by_class] = np.arange(len(codes))
        self._anchors = np.flatnonzero(self._size[codes] > (0 if allow_self else 1))
        if len(self._anchors) == 0:
            raise ValueError(
                "labels: expected a class with at least two items to draw positives from, "
                f"got {len(classes)} classes of one item each"
            )
        self._rng = np.random.default_rng(random_state)

    def draw(self, n: int) -> np.ndarray:
        """Return the next n triplets, an int64 array of shape (n, 3)."""
        n = check_integer("n", n, minimum=0)
        # Three uniforms per triplet, in stream order, so that the cut into calls does not matter.
        u = self._rng.random((n, 3))
        anchor = self._anchors[_scaled(u[:, 0], np.full(n, len(self._anchors)))]
        code = self._codes[anchor]
        first, size = self._first[code], self._size[code]
        if self.allow_self:
            within = _scaled(u[:, 1], size)
        else:
            # Uniform over the class without the anchor: skip the anchor's own place.
            within = _scaled(u[:, 1], size - 1)
            within += within >= self._place[anchor] - first
        positive = self._by_class[first + within]
        outside = _scaled(u[:, 2], len(self._codes) - size)
        outside += np.where(outside >= first, size, 0)
        return np.column_stack([anchor, positive, self._by_class[outside]])

    @property
    def state(self) -> dict[str, Any]:
        """The generator's state, to go on later: numbers and strings only."""
        return dict(self._rng.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state


def _scaled(u: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Integers below n from uniforms in [0, 1); the minimum guards the rounding of u close to 1."""
    return np.minimum((u * n).astype(np.int64), n - 1)
