"""Comparisons of methods against SciPy, the formulas and a paper's own tables."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simstream import metrics

fast = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)

# P1: CPU seconds as printed in Table 3, one row per data set.
METHODS = ["ITML", "PAI+", "PAII+", "PALS+", "PAI-", "PAII-", "PALS-"]
SECONDS = {
    "soyS": [10.56, 0.30, 0.30, 0.49, 0.11, 0.10, 0.11],
    "wine": [0.72, 0.18, 0.15, 0.29, 0.10, 0.10, 0.10],
    "glass": [0.53, 0.26, 0.25, 0.32, 0.08, 0.09, 0.11],
    "ecoli": [0.85, 0.24, 0.28, 0.32, 0.05, 0.05, 0.06],
    "malaysia": [4.02, 1.25, 1.24, 2.06, 1.15, 1.10, 1.09],
    "iono": [2.15, 0.80, 0.84, 1.37, 0.28, 0.29, 0.34],
    "balance": [2.11, 0.46, 0.46, 0.58, 0.28, 0.28, 0.30],
    "breast": [0.29, 0.57, 0.63, 0.83, 0.26, 0.27, 0.35],
    "chromo": [6.39, 1.99, 1.96, 2.65, 1.71, 1.80, 1.86],
    "mor": [4.08, 4.77, 4.72, 8.00, 3.76, 3.81, 4.23],
    "spam": [0.73, 12.51, 12.68, 17.69, 0.54, 0.50, 0.60],
    "satellite": [3.99, 39.86, 34.93, 99.60, 2.12, 2.07, 2.46],
    "soyL": [26.93, 4.48, 4.55, 26.47, 0.86, 0.85, 1.07],
    "Art100": [18.76, 39.00, 43.07, 177.42, 4.32, 4.58, 6.55],
    "nist16": [86.09, 480.23, 500.55, 2007.20, 10.13, 10.81, 34.06],
}
# Table 4, as printed; it is not quite what the printed times give.
PRINTED_RANKS = {
    "PAI-": 1.49,
    "PAII-": 1.77,
    "PALS-": 2.87,
    "PAII+": 4.86,
    "PAI+": 4.93,
    "ITML": 5.67,
    "PALS+": 6.40,
}
# Table 5: what is printed as "<1e-x", and what the printed ranks give for the printed numbers
# 0.0011, 0.0046, 0.0967, 0.1112.
BOUNDS = {
    ("PAI-", "ITML"): 1e-5,
    ("PAI-", "PAI+"): 1e-3,
    ("PAI-", "PAII+"): 1e-3,
    ("PAI-", "PALS+"): 1e-7,
    ("PAII-", "ITML"): 1e-4,
    ("PAII-", "PAI+"): 1e-3,
    ("PAII-", "PALS+"): 1e-7,
    ("PALS-", "PALS+"): 1e-3,
}
FROM_PRINTED_RANKS = {
    ("PAII-", "PAII+"): "0.0012",
    ("PALS-", "ITML"): "0.0046",
    ("PALS-", "PAI+"): "0.099",
    ("PALS-", "PAII+"): "0.116",
}


def test_ranks_of_the_printed_times():
    result = metrics.friedman(list(SECONDS.values()), lower_is_better=True, names=METHODS)
    assert result.n_datasets == 15
    assert dict(zip(result.names, np.round(result.average_ranks, 2), strict=True)) == {
        "PAI-": 1.57,
        "PAII-": 1.67,
        "PALS-": 2.90,
        "PAI+": 4.87,
        "PAII+": 4.93,
        "ITML": 5.67,
        "PALS+": 6.40,
    }
    assert result.p_value < 1e-10
    # The conclusions of Table 5 hold for these ranks too, with and without the rounding.
    adjusted = {frozenset(pair[:2]): pair.adjusted_p_value for pair in result.pairwise()}
    assert all(adjusted[frozenset(pair)] < 0.05 for pair in BOUNDS)
    for minus, plus in FROM_PRINTED_RANKS:
        significant = minus == "PAII-" or plus == "ITML"
        assert (adjusted[frozenset((minus, plus))] < 0.05) == significant


def test_adjusted_p_values_of_the_printed_ranks():
    pairs = metrics.holm_pairwise(list(PRINTED_RANKS.values()), 15, list(PRINTED_RANKS))
    assert len(pairs) == 21
    adjusted = {(pair.first, pair.second): pair.adjusted_p_value for pair in pairs}
    for pair, text in FROM_PRINTED_RANKS.items():
        assert f"{adjusted[pair]:.{len(text) - 2}f}" == text
    for pair, bound in BOUNDS.items():
        assert adjusted[pair] < bound


@fast
@given(seed=seeds, n=st.integers(2, 20), k=st.integers(3, 8), lower=st.booleans())
def test_friedman_is_scipys_without_ties(seed, n, k, lower):
    scores = np.random.default_rng(seed).permuted(np.tile(np.arange(k), (n, 1)), axis=1)
    result = metrics.friedman(scores, lower_is_better=lower)
    expected = stats.friedmanchisquare(*scores.T)
    assert result.chi2 == pytest.approx(expected.statistic, abs=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, abs=1e-9)
    np.testing.assert_array_equal(result.ranks, scores + 1 if lower else k - scores)


@fast
@given(seed=seeds, n=st.integers(2, 20), k=st.integers(2, 8))
def test_friedman_equals_the_formulas_with_ties(seed, n, k):
    scores = np.random.default_rng(seed).integers(0, 4, (n, k))
    result = metrics.friedman(scores, lower_is_better=False)
    ranks = [
        [1 + sum(b > a for b in row) + (sum(b == a for b in row) - 1) / 2 for a in row]
        for row in scores
    ]
    np.testing.assert_array_equal(result.ranks, ranks)
    R = np.mean(ranks, axis=0)
    np.testing.assert_allclose(result.average_ranks, R)
    chi2 = 12 * n / (k * (k + 1)) * (np.sum(R**2) - k * (k + 1) ** 2 / 4)
    assert result.chi2 == pytest.approx(chi2, abs=1e-9)
    assert result.p_value == pytest.approx(stats.chi2.sf(result.chi2, k - 1))
    if n * (k - 1) - chi2 > 1e-9:
        assert result.f_statistic == pytest.approx((n - 1) * chi2 / (n * (k - 1) - chi2), abs=1e-9)
        assert result.f_p_value == pytest.approx(
            stats.f.sf(result.f_statistic, k - 1, (k - 1) * (n - 1))
        )
    # What the docstring says of SciPy's correction for ties.
    groups = [np.unique(row, return_counts=True)[1] for row in scores]
    correction = 1 - sum(np.sum(t**3 - t) for t in groups) / (n * k * (k**2 - 1))
    if k > 2 and correction > 0:
        statistic = stats.friedmanchisquare(*scores.T).statistic
        assert statistic * correction == pytest.approx(result.chi2, abs=1e-9)


def test_friedman_extremes():
    agreed = metrics.friedman(np.tile([0.1, 0.2, 0.3], (7, 1)), lower_is_better=True)
    assert (agreed.chi2, agreed.f_statistic, agreed.f_p_value) == (14.0, math.inf, 0.0)
    assert agreed.names == ("0", "1", "2")
    tied = metrics.friedman(np.ones((7, 3)), lower_is_better=True)
    assert (tied.chi2, tied.p_value, tied.f_statistic, tied.f_p_value) == (0.0, 1.0, 0.0, 1.0)
    assert {pair.adjusted_p_value for pair in tied.pairwise()} == {1.0}
    # A method that did not finish is last; unsigned numbers and booleans can be ranked both ways.
    unfinished = metrics.friedman([[1.0, np.inf, 2.0], [3.0, np.inf, np.inf]], lower_is_better=True)
    np.testing.assert_array_equal(unfinished.ranks, [[1, 3, 2], [1, 2.5, 2.5]])
    for dtype in (np.uint8, bool, np.float32):
        result = metrics.friedman(np.array([[0, 1], [1, 0]], dtype), lower_is_better=False)
        np.testing.assert_array_equal(result.ranks, [[2, 1], [1, 2]])


@fast
@given(seed=seeds, n=st.integers(2, 30), k=st.integers(2, 9), tied=st.booleans())
def test_holm_properties(seed, n, k, tied):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 3, (n, k)) if tied else rng.random((n, k)) + np.arange(k) / k
    result = metrics.friedman(scores, lower_is_better=True, names=[f"m{j}" for j in range(k)])
    pairs = result.pairwise()
    m = k * (k - 1) // 2
    assert {pair[:2] for pair in pairs} == {
        (f"m{i}", f"m{j}") for i in range(k) for j in range(i + 1, k)
    }
    assert len(pairs) == m
    p, adjusted = (np.array([pair[i] for pair in pairs]) for i in (3, 4))
    assert (np.diff(p) >= 0).all()
    assert (np.diff(adjusted) >= 0).all()
    assert ((adjusted >= p) & (adjusted <= np.minimum(1, m * p))).all()
    for i, pair in enumerate(pairs):  # the definitions
        first, second = (result.average_ranks[int(name[1:])] for name in pair[:2])
        z = (first - second) / math.sqrt(k * (k + 1) / (6 * n))
        assert pair.z == pytest.approx(z, abs=1e-12)
        assert pair.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), rel=1e-9)
        holm = min(1, max((m - j) * p[j] for j in range(i + 1)))
        assert pair.adjusted_p_value == pytest.approx(holm, rel=1e-12)


def test_critical_difference():
    # The q of Demšar's Table 5a, alpha = 0.05 and 0.10.
    for k, q05, q10 in (
        (2, 1.960, 1.645),
        (3, 2.343, 2.052),
        (5, 2.728, 2.459),
        (10, 3.164, 2.920),
    ):
        scale = math.sqrt(k * (k + 1) / (6 * 15))
        assert metrics.critical_difference(k, 15) == pytest.approx(q05 * scale, abs=1e-3 * scale)
        assert metrics.critical_difference(k, 15, 0.10) == pytest.approx(
            q10 * scale, abs=1e-3 * scale
        )
    # Two methods: the difference at which the pairwise test has p = alpha.
    half = metrics.critical_difference(2, 15) / 2
    (pair,) = metrics.holm_pairwise([1.5 - half, 1.5 + half], 15)
    assert pair.p_value == pytest.approx(0.05)


TABLE = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("scores", "options", "error", "message"),
    [
        (TABLE[:1], {}, ValueError, r"at least 2 of each, got \(1, 2\)"),
        (TABLE[:, :1], {}, ValueError, r"at least 2 of each, got \(3, 1\)"),
        (TABLE[0], {}, ValueError, r"shape \(n_datasets, n_methods\) .* got \(2,\)"),
        ([], {}, ValueError, "at least 2 of each"),
        ([[1, 2], [3]], {}, ValueError, "scores: expected a rectangular array"),
        (
            np.where(TABLE == 3, np.nan, TABLE),
            {},
            ValueError,
            r"got NaN for data set 1, method 1 \(1 NaN in all\)",
        ),
        ([["a", "b"], ["c", "d"]], {}, TypeError, "scores: expected real numbers, got dtype <U1"),
        (TABLE, {"lower_is_better": "no"}, TypeError, "lower_is_better: expected True or False"),
        (TABLE, {"names": ["A"]}, ValueError, r"names: expected 2 different .* got \('A',\)"),
        (TABLE, {"names": ["A", "A"]}, ValueError, "names: expected 2 different names"),
        (TABLE, {"names": "AB"}, TypeError, "names: expected a sequence of strings"),
    ],
)
def test_friedman_refuses_wrong_input(scores, options, error, message):
    with pytest.raises(error, match=message):
        metrics.friedman(scores, **{"lower_is_better": True} | options)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], 15), ValueError, r"at least 2 methods, got shape \(1,\)"),
        (([[1.0, 2.0]], 15), ValueError, r"at least 2 methods, got shape \(1, 2\)"),
        (([1.0, np.nan], 15), ValueError, "numbers from 1 to 2, got nan for method 1"),
        (([0.1, 2.0], 15), ValueError, "numbers from 1 to 2, got 0.1 for method 0"),
        (([1.0, 1.2, 1.3], 15), ValueError, "ranks with mean 2, got mean 1.16667"),
        ((["1", "2"], 15), TypeError, "average_ranks: expected real numbers"),
        (([1.0, 2.0], 1), ValueError, "n_datasets: expected an integer >= 2, got 1"),
        (([1.0, 2.0], 15.0), TypeError, "n_datasets: expected an integer"),
        (([1.0, 2.0], 15, ["A"]), ValueError, "names: expected 2 different names"),
    ],
)
def test_holm_refuses_wrong_input(arguments, error, message):
    with pytest.raises(error, match=message):
        metrics.holm_pairwise(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 15), "k: expected an integer >= 2"),
        ((3, 1), "n_datasets: expected an integer >= 2"),
        ((3, 15, 0.0), "alpha: expected a number > 0"),
        ((3, 15, 1.0), "alpha: expected a number between 0 and 1"),
    ],
)
def test_critical_difference_refuses_wrong_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.critical_difference(*arguments)
