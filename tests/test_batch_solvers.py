"""The solvers of the batch metric learners against brute force, derivatives and their own promises."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from simstream.batch import lmnn, mcml
from simstream.batch.lmnn import lmnn_objective_and_gradient, solve_lmnn, target_neighbors
from simstream.batch.mcml import mcml_objective_and_gradient, solve_mcml
from simstream.similarity import base as similarity


def blobs(seed, sizes, d, spread):
    """Classes around random centres far from zero, in random order."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 10 + spread * rng.normal(size=(len(sizes), d))
    return centres[codes] + rng.normal(size=(len(codes), d)), codes, rng


def numerical_gradient(function, at, h=1e-6):
    out = np.empty_like(at)
    for place in np.ndindex(at.shape):
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[place] += sign * h
            ends.append(function(moved))
        out[place] = (ends[0] - ends[1]) / (2 * h)
    return out


def lmnn_triples(L, X, targets, codes):
    """d(i, j) of every target pair, and 1 + d(i, j) - d(i, l) of every triple."""

    def distance(a, b):
        return np.sum((L @ (X[a] - X[b])) ** 2)

    pulls, margins = [], []
    for i in range(len(X)):
        for j in targets[i]:
            pulls.append(distance(i, j))
            for l in range(len(X)):  # noqa: E741
                if codes[l] != codes[i]:
                    margins.append(1 + distance(i, j) - distance(i, l))
    return np.array(pulls), np.array(margins)


class TestTargetNeighbors:
    def test_equals_sorting_all_distances(self):
        X, codes, _ = blobs(0, [7, 4, 9], 3, 1.0)
        found = target_neighbors(X, codes, 3)
        for i in range(len(X)):
            same = [j for j in range(len(X)) if codes[j] == codes[i] and j != i]
            same.sort(key=lambda j: np.sum((X[i] - X[j]) ** 2))
            assert_array_equal(found[i], same[:3])

    def test_the_lower_index_wins_a_tie(self):
        X = np.array([[0.3], [0.2], [0.4], [0.3], [9.0]])
        X[1:3] = [[0.3 - 0.25], [0.3 + 0.25]]
        assert_array_equal(target_neighbors(X, np.zeros(5, int), 2)[0], [3, 1])


class TestLMNN:
    @pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("q", [2, 4])
    def test_objective_and_gradient(self, mu, q):
        X, codes, rng = blobs(1, [6, 8, 5], 4, 0.5)
        L = rng.normal(size=(q, 4))
        targets = target_neighbors(X, codes, 2)
        pulls, margins = lmnn_triples(L, X, targets, codes)
        assert (margins > 0).any()
        assert (margins < 0).any()
        assert np.abs(margins).min() > 1e-4  # no kink within reach of the differences

        def objective(at):
            return lmnn_objective_and_gradient(at, X, targets, codes, mu)[0]

        expected = (1 - mu) * pulls.sum() + mu * np.maximum(0, margins).sum()
        assert_allclose(objective(L), expected, rtol=1e-12)
        gradient = lmnn_objective_and_gradient(L, X, targets, codes, mu)[1]
        numerical = numerical_gradient(objective, L)
        assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-5 * np.abs(numerical).max())

    def test_small_classes_have_fewer_targets(self):
        X, codes, rng = blobs(1, [6, 1, 3, 2], 4, 0.5)
        targets = target_neighbors(X, codes, 3)
        kept = [[j for j in row if j != i] for i, row in enumerate(targets.tolist())]
        sizes = np.bincount(codes)
        assert [len(row) for row in kept] == np.minimum(3, sizes[codes] - 1).tolist()
        L = np.eye(4) + 0.1 * rng.normal(size=(4, 4))
        pulls, margins = lmnn_triples(L, X, kept, codes)
        assert (margins > 0).any()

        def objective(at):
            return lmnn_objective_and_gradient(at, X, targets, codes, 0.4)[0]

        expected = 0.6 * pulls.sum() + 0.4 * np.maximum(0, margins).sum()
        assert_allclose(objective(L), expected, rtol=1e-12)
        gradient = lmnn_objective_and_gradient(L, X, targets, codes, 0.4)[1]
        numerical = numerical_gradient(objective, L)
        assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-5 * np.abs(numerical).max())

    def test_lbfgs_reaches_what_gradient_steps_reach(self):
        X, codes = load_digits(return_X_y=True)
        X, codes = X[:600] / 16, codes[:600]
        slow = solve_lmnn(X, codes, start=np.eye(64))
        seen = []
        fast = solve_lmnn(
            X, codes, start=np.eye(64), solver="lbfgs", report=lambda *now: seen.append(now)
        )
        assert slow.converged
        assert fast.converged
        assert fast.objective <= slow.objective
        assert fast.n_iter < slow.n_iter
        objective, _ = lmnn_objective_and_gradient(
            fast.minimiser, X, target_neighbors(X, codes, 3), codes, 0.5
        )
        assert_allclose(fast.objective, objective, rtol=1e-12)
        assert seen == list(enumerate(fast.history.tolist()))[1:]
        short = solve_lmnn(X, codes, start=np.eye(64)[:9], solver="lbfgs", max_iter=7)
        assert (short.n_iter, short.converged, short.minimiser.shape) == (7, False, (9, 64))
        assert (np.diff(short.history) < 0).all()

    @pytest.mark.parametrize(("spread", "mu"), [(0.5, 0.0), (100.0, 0.4)])
    def test_without_push_or_impostors_the_gradient_is_the_pull(self, spread, mu):
        X, codes, rng = blobs(2, [6, 5, 7], 3, spread)
        L = np.eye(3) + 0.1 * rng.normal(size=(3, 3))
        targets = target_neighbors(X, codes, 3)
        if mu:
            assert lmnn_triples(L, X, targets, codes)[1].max() < 0
        differences = (X[:, None] - X[targets]).reshape(-1, 3)
        pull = (1 - mu) * differences.T @ differences
        objective, gradient = lmnn_objective_and_gradient(L, X, targets, codes, mu)
        assert_allclose(gradient, 2 * L @ pull, rtol=1e-10)
        assert_allclose(objective, np.trace(L @ pull @ L.T), rtol=1e-12)

    def test_the_pull_alone_shrinks_everything(self):
        X, codes, _ = blobs(3, [8, 9], 3, 1.0)
        solution = solve_lmnn(X, codes, start=np.eye(3), mu=0.0, max_iter=2000, tol=1e-9)
        assert solution.objective < 1e-6 * solution.history[0]
        assert np.abs(solution.minimiser).max() < 1e-2

    def test_follows_its_step_rule(self):
        X, codes, rng = blobs(4, [10, 12, 9], 4, 0.7)
        start = 0.1 * rng.normal(size=(3, 4))
        targets = target_neighbors(X, codes, 3)

        def evaluate(L):
            return lmnn_objective_and_gradient(L, X, targets, codes, 0.5)

        L, (objective, gradient) = start, evaluate(start)
        step = 1 / np.linalg.norm(gradient)
        history, rejected = [objective], 0
        for _ in range(60):
            value, slope = evaluate(L - step * gradient)
            if value > objective:
                step /= 2
                rejected += 1
            else:
                L, objective, gradient = L - step * gradient, value, slope
                step *= 1.01
            history.append(objective)
        assert rejected
        seen = []
        solution = solve_lmnn(
            X, codes, start=start, max_iter=60, tol=0.0, report=lambda *args: seen.append(args)
        )
        assert_allclose(solution.history, history, rtol=1e-9)
        assert_allclose(solution.minimiser, L, rtol=1e-7)
        assert (solution.n_iter, solution.converged) == (60, False)
        assert seen == list(enumerate(solution.history))[1:]
        assert solution.objective == solution.history[-1]
        assert np.all(np.diff(solution.history) <= 0)

    def test_stops_after_patience_quiet_iterations(self):
        X, codes, _ = blobs(5, [10, 12], 3, 1.0)
        full = solve_lmnn(X, codes, start=np.eye(3), tol=1e-3, patience=7)
        falls = -np.diff(full.history)
        assert full.converged
        assert full.n_iter < 1000
        assert np.all(falls[-7:] < 1e-3)
        runs = "".join("q" if fall < 1e-3 else "." for fall in falls[:-1])
        assert "q" * 7 not in runs

    @pytest.mark.parametrize("spread", [0.3, 2.0])
    def test_candidate_lists_change_nothing(self, monkeypatch, spread):
        X, codes, _ = blobs(6, [50, 60, 40, 30], 6, spread)
        made = []

        class Counting(lmnn.LMNNObjective):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)

        monkeypatch.setattr(lmnn, "LMNNObjective", Counting)
        monkeypatch.setattr(lmnn, "_SEARCHED_PER_LISTED", 1)
        listed = solve_lmnn(X, codes, start=np.eye(6), max_iter=300)
        monkeypatch.setattr(lmnn, "_LIST_BYTES", -1)
        searched = solve_lmnn(X, codes, start=np.eye(6), max_iter=300)
        assert made[1].n_searches == searched.n_iter + 1
        assert made[0].n_searches < made[1].n_searches / 3  # the shortcut was taken
        assert_allclose(listed.history, searched.history, rtol=1e-12)
        assert_allclose(listed.minimiser, searched.minimiser, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("spread", [0.3, 2.0, 20.0])
    @pytest.mark.parametrize("n_rows", [2, 6])
    def test_ball_trees_find_the_same(self, spread, n_rows):
        X, codes, _ = blobs(6, [50, 60, 40, 1], 6, spread)
        start = np.eye(6)[:n_rows]
        products, trees = (
            solve_lmnn(X, codes, start=start, max_iter=100, impostors=impostors)
            for impostors in ("products", "ball-tree")
        )
        assert_allclose(trees.history, products.history, rtol=1e-12)
        assert_allclose(trees.minimiser, products.minimiser, rtol=1e-9, atol=1e-12)

    def test_lmnn_searches_as_it_is_told(self, monkeypatch):
        X, codes, _ = blobs(6, [20, 15], 4, 0.5)
        searched = []

        def within(queries, points, radii):
            searched.append(len(queries))
            return within_trees(queries, points, radii)

        within_trees = lmnn._within
        monkeypatch.setattr(lmnn, "_within", within)
        lmnn.LMNN().fit(X, codes)
        assert not searched
        lmnn.LMNN(impostors="ball-tree").fit(X, codes)
        assert sum(searched) >= len(X)

    def test_trees_list_every_pair_that_is_near_one_of_its_ends(self):
        rng = np.random.default_rng(12)
        points, reach = rng.normal(size=(30, 3)), rng.uniform(0.5, 2.0, size=30)
        norms = np.einsum("ij,ij->i", points, points)
        starts, columns = lmnn._near_by_trees(points, norms, reach**2, slice(5, 12), 12)
        assert columns.dtype == np.int32  # the budget of lists counts on it
        distances = cdist(points[5:12], points[12:])
        is_near = distances <= np.maximum(reach[5:12, None], reach[12:])
        listed = np.zeros_like(is_near)
        for row, (begin, end) in enumerate(pairwise(starts)):
            assert np.all(np.diff(columns[begin:end]) > 0)
            listed[row, columns[begin:end]] = True
        assert 0 < is_near.sum() < is_near.size
        assert_array_equal(listed, is_near)

    def test_chunk_size_changes_nothing(self, monkeypatch):
        X, codes, _ = blobs(7, [20, 15, 25], 4, 0.5)
        whole = solve_lmnn(X, codes, start=np.eye(4), max_iter=40)
        monkeypatch.setattr(similarity, "_CHUNK_BYTES", 1000)
        pieces = solve_lmnn(X, codes, start=np.eye(4), max_iter=40)
        assert_allclose(pieces.history, whole.history, rtol=1e-10)
        assert_allclose(pieces.minimiser, whole.minimiser, rtol=1e-8)

    def test_a_candidate_list_is_dropped_before_it_can_miss_an_impostor(self):
        """Two classes approach each other: each move alone is small, the list must notice the sum."""
        rng = np.random.default_rng(8)
        codes = np.repeat([0, 1], 12)
        X = np.column_stack([20.0 * codes, np.zeros(24)]) + rng.normal(size=(24, 2))
        targets = target_neighbors(X, codes, 2)
        evaluate = lmnn.LMNNObjective(X, targets, codes, 0.5)
        for factor in np.linspace(1, 0.01, 200):
            L = np.diag([factor, 1.0])
            fresh = lmnn_objective_and_gradient(L, X, targets, codes, 0.5)
            objective, gradient = evaluate(L)
            assert_allclose(objective, fresh[0], rtol=1e-13)
            assert_allclose(gradient, fresh[1], rtol=1e-11, atol=1e-11)
        assert 2 < evaluate.n_searches < 100

    def test_nothing_to_do(self):
        X = np.ones((8, 2))
        solution = solve_lmnn(X, np.repeat([0, 1], 4), start=np.eye(2))
        assert (solution.n_iter, solution.converged) == (0, True)
        assert solution.objective == 0.5 * 8 * 3 * 4  # every hinge is one
        X, codes, _ = blobs(9, [9], 3, 1.0)  # one class: no impostors anywhere
        history = solve_lmnn(X, codes, start=np.eye(3), max_iter=5).history
        assert history[-1] < history[0]

    def test_an_interrupt_comes_through(self):
        X, codes, _ = blobs(10, [6, 6], 2, 1.0)

        def stop(iteration, objective):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            solve_lmnn(X, codes, start=np.eye(2), report=stop)
        with pytest.raises(KeyboardInterrupt):
            solve_mcml(X, codes, start=np.eye(2), report=stop)

    def test_an_overflow_is_an_error(self):
        X, codes, _ = blobs(11, [6, 6], 2, 1.0)
        with pytest.raises(ValueError, match="scale the items"):
            solve_lmnn(X, codes, start=1e200 * np.eye(2))


def mcml_brute_force(A, X, codes):
    """Sum of the Kullback-Leibler divergences, from the probabilities themselves."""
    n, total = len(X), 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        same = [j for j in others if codes[j] == codes[i]]
        if not same:
            continue
        weights = {j: np.exp(-(X[i] - X[j]) @ A @ (X[i] - X[j])) for j in others}
        total += sum(
            np.log(sum(weights.values()) / (len(same) * weights[j])) / len(same) for j in same
        )
    return total


class TestMCML:
    @pytest.mark.parametrize("sizes", [[6, 8, 5], [5, 1, 7, 1], [2, 9]])
    def test_objective_and_gradient(self, sizes):
        X, codes, rng = blobs(20, sizes, 3, 0.5)
        factor = rng.normal(size=(3, 3))
        A = 0.2 * factor @ factor.T
        objective, gradient = mcml_objective_and_gradient(A, X, codes)
        assert_allclose(objective, mcml_brute_force(A, X, codes), rtol=1e-12)
        numerical = numerical_gradient(
            lambda at: mcml_objective_and_gradient((at + at.T) / 2, X, codes)[0], A
        )
        assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-5 * np.abs(numerical).max())

    def test_value_at_zero(self):
        sizes = [4, 1, 9, 2]
        X, codes, _ = blobs(21, sizes, 3, 1.0)
        n = sum(sizes)
        expected = sum(size * np.log((n - 1) / (size - 1)) for size in sizes if size > 1)
        assert_allclose(mcml_objective_and_gradient(np.zeros((3, 3)), X, codes)[0], expected)

    def test_is_never_negative_and_stable(self):
        X, codes, rng = blobs(22, [5, 6, 7], 3, 1.0)
        for scale in (1e-6, 1.0, 1e6):
            factor = rng.normal(size=(3, 3))
            objective, gradient = mcml_objective_and_gradient(scale * factor @ factor.T, X, codes)
            assert np.isfinite(objective)
            assert objective >= 0
            assert np.isfinite(gradient).all()

    def test_only_singletons(self):
        X = np.arange(6.0).reshape(3, 2)
        objective, gradient = mcml_objective_and_gradient(np.eye(2), X, np.arange(3))
        assert objective == 0
        assert_array_equal(gradient, 0)
        solution = solve_mcml(X, np.arange(3), start=np.eye(2))
        assert (solution.n_iter, solution.converged, solution.objective) == (0, True, 0)

    def test_convex_two_starts_one_optimum(self):
        X, codes, rng = blobs(23, [12, 15, 10], 3, 0.7)
        factor = rng.normal(size=(3, 1))
        starts = [np.eye(3), np.zeros((3, 3)), 0.5 * factor @ factor.T]
        solutions = [solve_mcml(X, codes, start=s, max_iter=3000, tol=1e-10) for s in starts]
        for solution in solutions:
            assert solution.converged
            assert solution.n_iter < 3000
            assert_allclose(solution.objective, solutions[0].objective, rtol=1e-7)
        A = solutions[0].minimiser
        gradient = mcml_objective_and_gradient(A, X, codes)[1]
        # Optimal on the cone: no direction into it descends, and none along A.
        assert np.linalg.eigvalsh(gradient).min() > -1e-2
        assert abs(np.vdot(gradient, A)) < 1e-2

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
    def test_falls_and_stays_in_the_cone(self, scale):
        X, codes, _ = blobs(24, [12, 15, 10, 1], 5, 0.7)
        seen = []
        solution = solve_mcml(
            X, codes, start=scale * np.eye(5), report=lambda *args: seen.append(args)
        )
        history = solution.history
        assert np.all(np.diff(history) <= 0)
        assert history[-1] < history[0]
        assert seen == list(enumerate(history))[1:]
        assert len(seen) == solution.n_iter <= 100
        assert solution.objective == history[-1] >= 0
        objective, _ = mcml_objective_and_gradient(solution.minimiser, X, codes)
        assert_allclose(objective, solution.objective, rtol=1e-12)
        assert_array_equal(history[0], mcml_objective_and_gradient(scale * np.eye(5), X, codes)[0])
        values = np.linalg.eigvalsh(solution.minimiser)
        assert values.min() > -1e-10 * values.max()
        assert_array_equal(solution.minimiser, solution.minimiser.T)

    def test_chunk_size_changes_nothing(self, monkeypatch):
        X, codes, _ = blobs(25, [12, 15, 1, 10], 4, 0.7)
        whole = solve_mcml(X, codes, start=np.eye(4), max_iter=15)
        sizes = []
        exp = np.exp
        monkeypatch.setattr(similarity, "_CHUNK_BYTES", 1000)
        monkeypatch.setattr(
            mcml.np, "exp", lambda a, **kwargs: (sizes.append(a.shape), exp(a, **kwargs))[1]
        )
        pieces = solve_mcml(X, codes, start=np.eye(4), max_iter=15)
        assert set(sizes) == {(3, 38), (1, 38)}  # 37 rows, three at a time
        assert_allclose(pieces.history, whole.history, rtol=1e-9)
        assert_allclose(pieces.minimiser, whole.minimiser, rtol=1e-6, atol=1e-9)

    def test_an_overflow_is_an_error(self):
        X, codes, _ = blobs(26, [6, 6], 2, 1.0)
        with pytest.raises(ValueError, match="scale the items"):
            solve_mcml(X, codes, start=np.diag([np.inf, 1.0]))
