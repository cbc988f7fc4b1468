"""Comparing two rankings query by query: measures of single queries, and intervals of mean differences."""

import numpy as np
import pytest

from simstream.metrics import paired_interval, ranking_per_query, ranking_report_from_scores


def test_means_of_single_queries_are_the_report():
    rng = np.random.default_rng(0)
    scores, relevant = rng.random((30, 20)), rng.random((30, 20)) < 0.1
    exclude = rng.random((30, 20)) < 0.05
    values = ranking_per_query(scores, relevant, exclude=exclude, k=(1, 10))
    report = ranking_report_from_scores(scores, relevant, exclude=exclude, k=(1, 10))
    empty = ~(relevant & ~exclude).any(axis=1)
    assert empty.sum() == report["n_left_out"] > 0
    for name, column in values.items():
        assert np.array_equal(np.isnan(column), empty)
        assert np.nanmean(column) == pytest.approx(report[name], abs=1e-12)


def test_one_query_by_hand():
    values = ranking_per_query([[0.1, 0.9, 0.5, 0.3]], [[1, 0, 1, 0]], k=3)
    # The order is 1, 2, 3, 0: relevant at ranks 2 and 4.
    assert values["mAP"].tolist() == [pytest.approx((1 / 2 + 2 / 4) / 2)]
    assert values["recall@3"].tolist() == [0.5]
    ideal = 1 + 1 / np.log2(3)
    assert values["nDCG@3"].tolist() == [pytest.approx(1 / np.log2(3) / ideal)]


def test_interval_is_about_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(0.3, 1.0, size=2000)
    told = paired_interval(values, 0.9)
    half = 1.645 * values.std() / np.sqrt(len(values))
    assert told.mean == pytest.approx(values.mean())
    assert told.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert told.high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert told == paired_interval(values, 0.9)
    assert told != paired_interval(values, 0.9, random_state=1)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        told = paired_interval(rng.normal(size=60), 0.8, n_resamples=200)
        held += told.low <= 0 <= told.high
    assert 0.68 < held / 200 < 0.9


def test_queries_that_were_not_measured_are_left_out():
    assert paired_interval([0.5, np.nan, 0.5]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "differences: expected at least one"),
        (([np.nan],), "differences"),
        (([np.inf, 1.0],), "differences"),
        (([[1.0]],), r"differences: .*\(1, 1\)"),
        (([1.0], 1.0), "confidence"),
        (([1.0], 0), "confidence"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        paired_interval(*arguments)
