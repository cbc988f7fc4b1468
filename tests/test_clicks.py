"""Comparisons from clicks."""

import numpy as np
import pytest

from simstream import OASIS, triplets_from_clicks
from simstream.data.clicks import pairs_from_clicks


def test_a_click_beats_the_items_skipped_above_it():
    assert pairs_from_clicks("abcde", "bd") == [("b", "a"), ("d", "a"), ("d", "c")]
    assert pairs_from_clicks("abc", "a") == []
    assert pairs_from_clicks("abc", "") == []
    assert pairs_from_clicks("abc", "abc") == []


def test_a_click_beats_everything_that_was_not_clicked():
    pairs = pairs_from_clicks("abcd", "bd", "no-click")
    assert pairs == [("b", "a"), ("b", "c"), ("d", "a"), ("d", "c")]


def test_a_log_becomes_triplets_in_its_order():
    log = [(1, [4, 7, 2], [2]), (0, [2, 4], [4]), (1, (7, 2), {7}), (1, np.array([2, 4]), [4])]
    expected = [[1, 2, 4], [1, 2, 7], [0, 4, 2], [1, 4, 2]]  # the second and the last contradict
    triplets = triplets_from_clicks(iter(log), 2, 10)
    assert triplets.tolist() == expected
    assert triplets.dtype == np.int64
    assert len(triplets_from_clicks(log, 2, 10, rule="no-click")) == 5
    rng = np.random.default_rng(0)
    preprocessor = rng.normal(size=(2, 3)), rng.normal(size=(10, 3))
    assert OASIS(preprocessor=preprocessor).fit(triplets).n_rounds_ == 4


@pytest.mark.parametrize("log", [[], [(0, [1, 2], [1])], [(0, [], [])]])
def test_nothing_follows_from_some_clicks(log):
    assert triplets_from_clicks(log, 1, 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((0, [1, 2], [0]), "clicks on items that were shown, got 0 in record 1"),
        ((0, [1, 2, 1], [2]), "every item at most once"),
        ((0, [1, 2]), r"expected \(query, shown, clicked\) in record 1"),
        (5, r"expected \(query, shown, clicked\) in record 1"),
        ((0, 1, [1]), r"expected \(query, shown, clicked\) in record 1"),
        ((3, [1, 2], [2]), "query of tuple 1 must be a row number from 0 to 1, got 3"),
        ((0, [1, 9], [9]), "clicked item of tuple 1 must be"),
        ((0, [-1, 2], [2]), "item not clicked of tuple 1 must be"),
    ],
)
def test_bad_records(record, message):
    with pytest.raises(ValueError, match=message):
        triplets_from_clicks([(0, [1, 2], [2]), record], 2, 3)


def test_an_unknown_rule():
    with pytest.raises(
        ValueError, match="rule: expected one of 'skip-above', 'no-click', got 'all'"
    ):
        triplets_from_clicks([], 1, 1, rule="all")
