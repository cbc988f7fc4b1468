"""mRMR and CSFS against brute force, identities and limits."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import mutual_info_score

from simstream.selection import _Discrete, _discretized, csfc, csfs, csfs_weights, mrmr


def information(a, b):
    """Mutual information of two discrete variables, straight from the definition."""
    total = 0.0
    for u in set(a):
        for v in set(b):
            together = np.mean((a == u) & (b == v))
            if together > 0:
                total += together * math.log(together / (np.mean(a == u) * np.mean(b == v)))
    return total


def states_of(column):
    if len(set(column)) <= 5:
        return column
    mean, deviation = column.mean(), column.std()
    return np.array([-1 if v < mean - deviation else int(v > mean + deviation) for v in column])


def naive_mrmr(X, y, q, scheme):
    columns = [states_of(column) for column in X.T]
    relevance = [information(column, y) for column in columns]
    chosen = [int(np.argmax(relevance))]
    while len(chosen) < q:
        best, best_score = None, -np.inf
        for f in range(len(columns)):
            if f in chosen:
                continue
            redundancy = np.mean([information(columns[f], columns[g]) for g in chosen])
            score = relevance[f] - redundancy
            if scheme == "MIQ":
                score = relevance[f] / (redundancy + 1e-12)
            if score > best_score:
                best, best_score = f, score
        chosen.append(best)
    return chosen


def labelled(seed, n, d, n_classes):
    """Continuous and discrete features, some related to the class and to each other."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    X = rng.normal(size=(n, d)) + y[:, None] * rng.normal(size=d) * rng.integers(0, 2, d)
    X[:, 1] = X[:, 0] + 0.3 * rng.normal(size=n)
    X[:, 2] = np.round(X[:, 2] / 2)
    X[:, 3] = rng.integers(0, 5, n)
    return X, y


class TestMRMR:
    def test_states(self):
        X, _ = labelled(0, 101, 6, 3)
        X[:, 2] = np.clip(X[:, 2], -1, 1)
        found = _discretized(X)
        assert found.shape == (6, 101)
        for states, column in zip(found, X.T, strict=True):
            expected = states_of(column)
            assert_array_equal(states, np.unique(expected, return_inverse=True)[1])
        six = np.repeat([0.0, 1, 2, 3, 4, 5], 20)[:, None]  # mean 2.5, deviation 1.708
        assert_array_equal(_discretized(six)[0], np.repeat([0, 1, 1, 1, 1, 2], 20))
        assert_array_equal(_discretized(six[:100])[0], np.repeat([0, 1, 2, 3, 4], 20))

    @pytest.mark.parametrize("n", [5, 64, 65, 300])
    def test_mutual_information(self, n):
        rng = np.random.default_rng(n)
        states = rng.integers(0, 4, (6, n))
        states[1] = states[0] // 2
        states[2] = states[0]
        states[3] = 0
        classes = (states[0] + rng.integers(0, 7, n)) % 11
        found = _Discrete(states).information(_Discrete(classes[None]), 0)
        assert_allclose(found, [information(s, classes) for s in states], atol=1e-14)
        assert_allclose(found, [mutual_info_score(s, classes) for s in states], atol=1e-12)
        of_first = _Discrete(states).information(_Discrete(states), 0)
        entropy = -sum(p * np.log(p) for p in np.bincount(states[0]) / n if p > 0)
        assert of_first[[0, 2]] == pytest.approx([entropy, entropy], abs=1e-14)
        assert of_first[3] == pytest.approx(0, abs=1e-15)

    @pytest.mark.parametrize("scheme", ["MID", "MIQ"])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_order_equals_a_naive_implementation(self, scheme, seed):
        X, y = labelled(seed, 150, 12, 4)
        assert_array_equal(mrmr(X, y, 8, scheme=scheme), naive_mrmr(X, y, 8, scheme))

    @pytest.mark.parametrize("scheme", ["MID", "MIQ"])
    def test_a_duplicate_comes_after_an_independent_relevant_feature(self, scheme):
        rng = np.random.default_rng(3)
        a, b = rng.integers(0, 3, (2, 400))
        weak = np.where(rng.random(400) < 0.5, b, rng.integers(0, 3, 400))
        X = np.column_stack([a, a, weak])
        y = 3 * a + b
        assert information(a, y) > 3 * information(weak, y)  # by relevance alone the copy is next
        assert_array_equal(mrmr(X, y, 3, scheme=scheme), [0, 2, 1])

    @pytest.mark.parametrize("scheme", ["MID", "MIQ"])
    def test_names_of_states_and_classes_do_not_matter(self, scheme):
        rng = np.random.default_rng(4)
        X = rng.integers(0, 5, (80, 30)).astype(float)
        X[:, 15:] = X[:, :15]  # many ties
        y = (X[:, 0] + X[:, 3] + rng.integers(0, 2, 80)) % 3
        order = mrmr(X, y, 20, scheme=scheme)
        renamed = np.column_stack([rng.normal(size=5)[column.astype(int)] for column in X.T])
        names = np.array(["z", "a", "k"])[y.astype(int)]
        assert_array_equal(mrmr(renamed, names, 20, scheme=scheme), order)

    def test_ties_go_to_the_lowest_index(self):
        a = np.repeat([0, 1], 20)
        X = np.column_stack([np.zeros(40), a, 1 - a, a])
        assert_array_equal(mrmr(X, a, 4), [1, 0, 2, 3])

    def test_all_features_each_once(self):
        X, y = labelled(5, 60, 9, 2)
        assert sorted(mrmr(X, y, 9)) == list(range(9))
        assert mrmr(X, y, 1).dtype.kind == "i"


class TestCSFS:
    @pytest.mark.parametrize("shape", [(120, 15), (25, 60)])
    @pytest.mark.parametrize("mu", [0.01, 1.0, 30.0])
    def test_the_objective_falls_to_a_stationary_point(self, shape, mu):
        X, y = labelled(0, *shape, 3)
        found = csfs_weights(X, y, mu=mu, max_iter=3000, tol=1e-8)
        assert found.converged
        assert found.n_iter == len(found.history) < 3000
        slack = mu * shape[1] * 1e-8  # below norms of 1e-8 it is not quite the same penalty
        assert np.all(np.diff(found.history) <= slack)
        assert found.history[-1] < found.history[0] - slack

        V, Y = found.weights, np.eye(3)[y]
        norms = np.linalg.norm(V, axis=1)
        residuals = X @ V + found.intercept - Y
        assert found.history[-1] == pytest.approx((residuals**2).sum() + mu * norms.sum())
        assert_allclose(residuals.sum(axis=0), 0, atol=1e-9)
        slope = 2 * X.T @ residuals
        alive = norms > 1e-4  # rows that go to zero take their time
        assert alive.any()
        expected = -mu * V[alive] / norms[alive][:, None]
        assert_allclose(slope[alive], expected, atol=1e-4 * mu)
        assert np.all(np.linalg.norm(slope[~alive], axis=1) <= mu * (1 + 1e-4))

    @pytest.mark.parametrize("shape", [(60, 8), (15, 20)])
    def test_equals_the_plain_reweighting(self, shape):
        X, y = labelled(1, *shape, 3)
        found = csfs_weights(X, y, mu=0.7, max_iter=5, tol=0.0)
        n, d = shape
        H, Y = np.eye(n) - 1 / n, np.eye(3)[y]
        D = np.eye(d)
        for _ in range(5):
            V = np.linalg.solve(X.T @ H @ X + 0.7 * D, X.T @ H @ Y)
            D = np.diag(1 / (2 * np.maximum(np.linalg.norm(V, axis=1), 1e-8)))
        assert_allclose(found.weights, V, atol=1e-9)
        assert_allclose(found.intercept, (Y - X @ V).mean(axis=0), atol=1e-9)
        assert (found.n_iter, found.converged) == (5, False)

    def test_without_penalty_it_is_least_squares(self):
        X, y = labelled(2, 50, 7, 3)
        found = csfs_weights(X, y, mu=0)
        expected = np.linalg.lstsq(np.column_stack([X, np.ones(50)]), np.eye(3)[y], rcond=None)[0]
        assert_allclose(found.weights, expected[:-1], atol=1e-10)
        assert_allclose(found.intercept, expected[-1], atol=1e-10)
        assert found.converged
        nearly = csfs_weights(X, y, mu=1e-9, max_iter=500)
        assert_allclose(nearly.weights, expected[:-1], atol=1e-6)
        twice = csfs_weights(np.hstack([X, X]), y, mu=0)  # singular: the shortest solution
        assert_allclose(twice.weights, np.vstack([expected[:-1]] * 2) / 2, atol=1e-10)

    def test_a_penalty_below_rounding(self):
        X, y = labelled(2, 50, 7, 3)
        found = csfs_weights(np.hstack([X, X]), y, mu=1e-20, max_iter=5)
        fit = X @ (found.weights[:7] + found.weights[7:]) + found.intercept
        expected = csfs_weights(X, y, mu=0)
        # A singular system: how much rounding is left differs between CPUs.
        assert_allclose(fit, X @ expected.weights + expected.intercept, atol=1e-3)

    def test_a_huge_penalty_leaves_nothing(self):
        X, y = labelled(3, 50, 7, 3)
        sizes = [np.abs(csfs_weights(X, y, mu=mu).weights).max() for mu in (1.0, 1e3, 1e9)]
        assert sizes[0] > 0.01
        assert sizes[1] < 1e-5
        assert sizes[2] < 1e-12
        shares = np.bincount(y) / 50
        assert_allclose(csfs_weights(X, y, mu=1e9).intercept, shares, atol=1e-9)

    def test_finds_the_features_that_matter(self):
        rng = np.random.default_rng(4)
        y = rng.integers(0, 3, 200)
        X = rng.normal(size=(200, 40))
        relevant = [4, 17, 31]
        X[:, relevant] += 1.5 * np.eye(3)[y]
        assert sorted(csfs(X, y, 3, mu=20)) == relevant
        found = csfs_weights(X, y, mu=20)
        assert_array_equal(csfs(X, y, mu=20), found.ranking)
        assert sorted(found.ranking) == list(range(40))
        norms = np.linalg.norm(found.weights, axis=1)
        assert np.all(np.diff(norms[found.ranking]) <= 0)
        assert 3 <= np.sum(norms > 1e-3) < 20
        assert_array_equal(csfc(X, y, 5, mu=20), csfs(X, y, 5, mu=20))
        assert "not public" in csfc.__doc__

    def test_constant_features(self):
        X, y = labelled(5, 40, 6, 2)
        X[:, 3] = 7.0
        assert csfs(X, y)[-1] == 3
        assert_allclose(csfs_weights(np.ones((40, 2)), y).weights, 0)


X, Y = labelled(6, 30, 5, 2)


@pytest.mark.parametrize("select", [mrmr, csfs, csfc])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y, 6), ValueError, "q: expected at most 5, the number of features, got 6"),
        ((X, Y, 0), ValueError, "q: expected an integer >= 1, got 0"),
        ((X, Y, 2.0), TypeError, "q: expected an integer"),
        (
            (X, Y[:-1], 2),
            ValueError,
            r"y: expected one class for each of 30 items, got shape \(29,\)",
        ),
        (
            (X, 0 * Y, 2),
            ValueError,
            r"y: expected at least two classes to tell apart, got 1 class \(0",
        ),
        ((X, X[:, 0], 2), ValueError, "Unknown label type"),
        ((X[0], Y, 2), ValueError, r"X: expected 2 dimensions \(n_items, n_features\)"),
        ((np.where(X > 1, np.nan, X), Y, 2), ValueError, "X: expected finite numbers, got nan"),
        ((sp.csr_matrix(X), Y, 2), TypeError, "X: expected an array, got a sparse matrix"),
    ],
)
def test_bad_input(select, arguments, error, message):
    with pytest.raises(error, match=message):
        select(*arguments)


def test_bad_parameters():
    with pytest.raises(ValueError, match="scheme: expected one of 'MID', 'MIQ', got 'mid'"):
        mrmr(X, Y, 2, scheme="mid")
    with pytest.raises(ValueError, match="mu: expected a number >= 0, got -1"):
        csfs(X, Y, mu=-1)
    with pytest.raises(ValueError, match="max_iter: expected an integer >= 1, got 0"):
        csfs_weights(X, Y, max_iter=0)
