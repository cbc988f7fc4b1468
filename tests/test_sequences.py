"""Smoothing sequences of labels, by hand-made cases and a naive loop."""

import statistics
from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from simstream.sequences import smooth_labels


def naive(labels, width, how):
    """One window after the other; labels are integers."""
    out = []
    for i in range(len(labels)):
        reach = min(width // 2, i, len(labels) - 1 - i)
        window = labels[i - reach : i + reach + 1]
        if how == "median":
            out.append(statistics.median(window))
            continue
        (first, count), *others = Counter(window).most_common()
        tied = others and others[0][1] == count
        out.append(labels[i] if tied else first)
    return out


@pytest.mark.parametrize(
    ("labels", "majority", "median"),
    [
        ([1, 1, 3, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),  # one wrong frame
        ([2, 1, 1, 1, 2], [2, 1, 1, 1, 2], [2, 1, 1, 1, 2]),  # the ends see only themselves
        ([7, 7, 9, 4, 9], [7, 7, 9, 9, 9], [7, 7, 7, 9, 9]),  # two pairs: the centre's is kept
        ([7, 7, 4, 9, 9], [7, 7, 4, 9, 9], [7, 7, 7, 9, 9]),  # two pairs, neither the centre's
        ([5, 1, 1, 9, 8], [5, 1, 1, 9, 8], [5, 1, 5, 8, 8]),  # two of five are enough
        ([4], [4], [4]),
        ([4, 6], [4, 6], [4, 6]),
    ],
)
def test_by_hand(labels, majority, median):
    assert_array_equal(smooth_labels(labels), majority)
    assert_array_equal(smooth_labels(labels, how="median"), median)


@pytest.mark.parametrize("how", ["majority", "median"])
@pytest.mark.parametrize("width", [1, 3, 5, 9, 101])
def test_equals_one_window_after_the_other(how, width):
    rng = np.random.default_rng(width)
    labels = rng.integers(-3, 4, 60)
    assert_array_equal(smooth_labels(labels, width, how), naive(labels.tolist(), width, how))


def test_both_rules_agree_where_a_label_fills_three_of_five_places():
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 2000, p=[0.6, 0.2, 0.1, 0.1])
    windows = np.lib.stride_tricks.sliding_window_view(labels, 5)
    filled = np.array([np.bincount(window).max() >= 3 for window in windows])
    majority, median = smooth_labels(labels)[2:-2], smooth_labels(labels, how="median")[2:-2]
    assert_array_equal(majority[filled], median[filled])
    assert (majority[~filled] != median[~filled]).any()


def test_the_majority_does_not_care_for_names_and_keeps_the_type():
    labels = np.random.default_rng(1).integers(0, 4, 200)
    names = np.array(["kitchen", "attic", "lab", "hall"])
    assert_array_equal(smooth_labels(names[labels]), names[smooth_labels(labels)])
    assert smooth_labels(labels.astype(np.uint8), how="median").dtype == np.uint8
    assert smooth_labels(np.array([1.5, 2.5, 1.5])).tolist() == [1.5, 1.5, 1.5]
    assert smooth_labels(labels[:0]).shape == (0,)
    before = labels.copy()
    assert smooth_labels(labels, 1) is not labels
    assert_array_equal(labels, before)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2], 4), ValueError, "width: expected an odd number, got 4"),
        (([1, 2], 0), ValueError, "width: expected an integer >= 1, got 0"),
        (([1, 2], 5.0), TypeError, "width: expected an integer"),
        (([1, 2], 5, "mean"), ValueError, "how: expected one of 'majority', 'median', got 'mean'"),
        (([[1, 2]],), ValueError, r"labels: expected one dimension, got shape \(1, 2\)"),
        (([1.0, np.nan],), ValueError, "labels: expected no NaN, got one at 1"),
        ((np.array([1, "a"], object),), TypeError, "labels: expected labels of one kind"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        smooth_labels(*arguments)
