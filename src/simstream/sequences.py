"""Smoothing sequences of labels, such as predictions for consecutive frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .validation import check_choice, check_integer


def smooth_labels(labels: Any, width: int = 5, how: str = "majority") -> np.ndarray:
    """Replace every label of a sequence by the majority or the median of its neighbours.

    The window is centred. At the ends it shrinks on both sides equally: the first and last labels stay.

    Parameters
    ----------
    labels : array of shape (n,)
        Numbers or strings, in the order of the sequence.
    width : int
        Number of labels in a window, odd.
    how : "majority" or "median"
        The most frequent label (the centre's if several are); or the median of the sorted labels. If one
        label fills more than half of the window, both agree. Otherwise the median depends on how classes
        happen to be numbered or named, and may be a class that occurs only once: prefer the majority unless
        the order of the classes is meaningful.

    Returns
    -------
    array of shape (n,), of the type of `labels`

    Examples
    --------
    >>> from simstream import smooth_labels
    >>> smooth_labels([1, 1, 3, 1, 1, 2, 2, 1, 2, 2])
    array([1, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    >>> smooth_labels(["hall", "hall", "lab", "hall"], width=3)
    array(['hall', 'hall', 'hall', 'hall'], dtype='<U4')
    >>> smooth_labels([0, 9, 5, 0, 9], how="median"), smooth_labels([0, 9, 5, 0, 9])
    (array([0, 5, 5, 5, 9]), array([0, 9, 5, 0, 9]))
    """
    check_choice("how", how, ("majority", "median"))
    if check_integer("width", width) % 2 == 0:
        raise ValueError(f"width: expected an odd number, got {width}")
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels: expected one dimension, got shape {array.shape}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(
            f"labels: expected no NaN, got one at {np.flatnonzero(np.isnan(array))[0]}"
        )
    try:
        classes, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"labels: expected labels of one kind that can be sorted ({error})"
        ) from None
    rule = _majority if how == "majority" else _median
    return classes[rule(codes, len(classes), width // 2)]


def _window_counts(codes: np.ndarray, n_classes: int, reach: np.ndarray) -> Iterator[np.ndarray]:
    """For each class in turn, how often it occurs from i - reach[i] to i + reach[i], for every i."""
    places = np.arange(len(codes))
    begin, end = places - reach, places + reach + 1
    for code in range(n_classes):
        before = np.concatenate([[0], np.cumsum(codes == code)])
        yield before[end] - before[begin]


def _reach(n: int, half: int) -> np.ndarray:
    places = np.arange(n)
    return np.minimum(half, np.minimum(places, n - 1 - places))


def _majority(codes: np.ndarray, n_classes: int, half: int) -> np.ndarray:
    most = np.zeros(len(codes), np.int64)
    winner = codes.copy()
    for code, counts in enumerate(_window_counts(codes, n_classes, _reach(len(codes), half))):
        winner = np.where(counts > most, code, np.where(counts == most, codes, winner))
        most = np.maximum(most, counts)
    return winner


def _median(codes: np.ndarray, n_classes: int, half: int) -> np.ndarray:
    """The first class such that it and those before fill more than half of the window."""
    reach = _reach(len(codes), half)
    missing = reach + 1
    median = np.full(len(codes), -1)
    for code, counts in enumerate(_window_counts(codes, n_classes, reach)):
        missing = missing - counts
        median[(median < 0) & (missing <= 0)] = code
    return median
