"""Multi-task LMNN: the objective against brute force, its limits, and the estimator."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import simstream
from simstream.batch import lmnn
from simstream.batch.mtlmnn import (
    MultiTaskLMNN,
    TaskItems,
    _TaskObjective,
    mtlmnn_objective_and_gradient,
    solve_mtlmnn,
)

quietly = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def some_tasks(seed, sizes, d, k, spread=0.7, scale=1.0):
    """Tasks with classes of the given sizes, around centres of their own, in random order."""
    rng = np.random.default_rng(seed)
    tasks = []
    for of_classes in sizes:
        codes = rng.permutation(np.repeat(np.arange(len(of_classes)), of_classes))
        centres = 10 + spread * rng.normal(size=(len(of_classes), d))
        X = scale * (centres[codes] + rng.normal(size=(len(codes), d)))
        tasks.append(TaskItems.with_neighbors(X, codes, k))
    return tasks, rng


def some_metrics(rng, n, d, rank):
    factors = rng.normal(size=(n, d, rank)) / np.sqrt(d)
    return factors @ factors.swapaxes(1, 2)


def identity_start(n_tasks, d):
    start = np.zeros((n_tasks + 1, d, d))
    start[0] = np.eye(d)
    return start


def triples(M, task):
    """(i, j, o) and 1 + d(i, j) - d(i, o), and (i, j) and d(i, j), straight from the definition."""
    X, codes, targets = task

    def distance(a, b):
        return (X[a] - X[b]) @ M @ (X[a] - X[b])

    pulls = [(i, j, distance(i, j)) for i in range(len(X)) for j in targets[i]]
    others = {i: np.flatnonzero(codes != codes[i]) for i in range(len(X))}
    margins = [(i, j, o, 1 + d - distance(i, o)) for i, j, d in pulls for o in others[i]]
    return pulls, margins


def brute_force(matrices, tasks, gamma0, gamma):
    d = matrices.shape[1]
    total = gamma0 * np.sum((matrices[0] - np.eye(d)) ** 2)
    gradient = 2 * gamma * matrices
    gradient[0] = 2 * gamma0 * (matrices[0] - np.eye(d))
    kinks = []
    for t, task in enumerate(tasks, start=1):
        pulls, margins = triples(matrices[0] + matrices[t], task)
        total += gamma * np.sum(matrices[t] ** 2)
        total += sum(d for *_, d in pulls) + sum(max(0, m) for *_, m in margins)
        kinks += [m for *_, m in margins]

        def outer(i, j, X=task.X):
            return np.outer(X[i] - X[j], X[i] - X[j])

        slope = sum(outer(i, j) for i, j, _ in pulls)
        slope = slope + sum(outer(i, j) - outer(i, o) for i, j, o, m in margins if m > 0)
        gradient[0] += slope
        gradient[t] += slope
    return total, gradient, np.array(kinks)


class TestObjective:
    @pytest.mark.parametrize("rank", [1, 2, 4])  # M_0 + M_t of ranks 2 and 4
    @pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
    def test_equals_brute_force(self, rank, scale):
        tasks, rng = some_tasks(0, [(6, 5), (5, 4, 7), (5, 6)], 4, 2, scale=scale)
        matrices = some_metrics(rng, 4, 4, rank)
        expected, slope, margins = brute_force(matrices, tasks, 1.7, 0.4)
        assert (margins > 0).any()
        assert (margins < 0).any()
        objective, gradient = mtlmnn_objective_and_gradient(matrices, tasks, 1.7, 0.4)
        assert objective == pytest.approx(expected, rel=1e-11)
        assert_allclose(gradient, slope, rtol=1e-9, atol=1e-11 * np.abs(slope).max())

    def test_gradient_by_differences(self):
        tasks, rng = some_tasks(1, [(6, 5), (5, 4, 7)], 3, 2)
        matrices = some_metrics(rng, 3, 3, 3) + 0.1 * np.eye(3)
        margins = brute_force(matrices, tasks, 0.6, 2.0)[2]
        assert np.abs(margins).min() > 1e-3  # no kink within reach of the differences

        def objective(at):
            return mtlmnn_objective_and_gradient(at, tasks, 0.6, 2.0)[0]

        gradient = mtlmnn_objective_and_gradient(matrices, tasks, 0.6, 2.0)[1]
        for direction in rng.normal(size=(12, *matrices.shape)):
            towards = 1e-6 * (direction + direction.swapaxes(1, 2))
            numerical = (objective(matrices + towards) - objective(matrices - towards)) / 2
            assert numerical == pytest.approx(np.vdot(gradient, towards), rel=1e-5)

    def test_at_zero_every_triple_is_active(self):
        tasks, _ = some_tasks(2, [(6, 5), (5, 4, 7)], 3, 2)
        matrices = np.zeros((3, 3, 3))
        expected, slope, _ = brute_force(matrices, tasks, 1.0, 1.0)
        objective, gradient = mtlmnn_objective_and_gradient(matrices, tasks, 1.0, 1.0)
        assert objective == pytest.approx(expected, rel=1e-14)
        assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10 * np.abs(slope).max())

    def test_twice_lmnn(self):
        (task,), rng = some_tasks(3, [(8, 9, 5)], 4, 3)
        L = rng.normal(size=(4, 4))
        objective, gradient = lmnn.lmnn_objective_and_gradient(
            L, task.X, task.targets, task.codes, 0.5
        )
        value, slope = _TaskObjective(*task).at_matrix(L.T @ L)
        assert value == pytest.approx(2 * objective, rel=1e-11)
        assert_allclose(L @ slope, gradient, atol=1e-9 * np.abs(gradient).max())


class TestSolver:
    def test_follows_its_step_rule(self):
        tasks, _ = some_tasks(4, [(8, 9), (7, 6, 8)], 3, 3)
        gammas = np.array([5.0, 0.3, 0.3])

        def projected(A):
            values, vectors = np.linalg.eigh(A)
            return (vectors * np.maximum(values, 0)) @ vectors.T

        M = identity_start(2, 3)
        objective, gradient = mtlmnn_objective_and_gradient(M, tasks, 5.0, 0.3)
        step, history, rejected = 1 / np.linalg.norm(gradient), [objective], 0
        for _ in range(60):
            lengths = step / (1 + 2 * step * gammas)
            new = np.array(
                [projected(A - s * g) for A, s, g in zip(M, lengths, gradient, strict=True)]
            )
            value, slope = mtlmnn_objective_and_gradient(new, tasks, 5.0, 0.3)
            if value > objective:
                step /= 2
                rejected += 1
            else:
                M, objective, gradient, step = new, value, slope, step * 1.01
            history.append(objective)
        assert rejected
        seen = []
        solution = solve_mtlmnn(
            tasks,
            start=identity_start(2, 3),
            gamma0=5.0,
            gamma=0.3,
            max_iter=60,
            tol=0.0,
            report=lambda *arguments: seen.append(arguments),
        )
        assert_allclose(solution.history, history, rtol=1e-9)
        assert_allclose(solution.minimiser, M, atol=1e-8)
        assert (solution.n_iter, solution.converged) == (60, False)
        assert seen == list(enumerate(solution.history))[1:]

    @pytest.mark.parametrize(  # at these scales many hinges are active, which hides the kinks
        ("gammas", "scale"), [((1.0, 1.0), 0.1), ((100.0, 0.01), 0.3), ((0.01, 100.0), 0.3)]
    )
    def test_falls_to_the_same_minimum_from_two_starts(self, gammas, scale):
        tasks, rng = some_tasks(5, [(19, 18), (20, 16, 18), (17, 17)], 4, 3, scale=scale)
        solutions = [
            solve_mtlmnn(
                tasks, start=start, gamma0=gammas[0], gamma=gammas[1], tol=1e-8, max_iter=3000
            )
            for start in (identity_start(3, 4), 3 * some_metrics(rng, 4, 4, 3))
        ]
        for solution in solutions:
            assert solution.converged
            assert np.all(np.diff(solution.history) <= 0)
            assert solution.objective == solution.history[-1]
            assert solution.objective < 0.9 * solution.history[0]
            for matrix in solution.minimiser:
                assert_array_equal(matrix, matrix.T)
                assert np.linalg.eigvalsh(matrix)[0] >= -1e-12 * np.abs(matrix).max()
        assert solutions[0].history[0] != pytest.approx(solutions[1].history[0], rel=0.01)
        assert solutions[0].objective == pytest.approx(solutions[1].objective, rel=5e-4)
        at = solutions[0].minimiser
        nearby = at + 0.01 * some_metrics(rng, 4, 4, 3)  # feasible, and no better
        assert mtlmnn_objective_and_gradient(nearby, tasks, *gammas)[0] > solutions[0].objective

    def test_stops_at_the_first_small_decrease(self):
        tasks, _ = some_tasks(6, [(9, 8), (10, 6, 8)], 4, 3)
        solution = solve_mtlmnn(tasks, start=identity_start(2, 4), tol=1e-4)
        falls = -np.diff(solution.history) / solution.history[:-1]
        assert solution.converged
        assert solution.n_iter < 1000
        assert falls[-1] <= 1e-4
        taken = falls[:-1][falls[:-1] > 0]
        assert np.all(taken > 1e-4)

    def test_a_huge_gamma0_holds_the_common_part(self):
        tasks, _ = some_tasks(7, [(9, 8), (10, 6, 8)], 3, 3, scale=0.4)
        solution = solve_mtlmnn(
            tasks, start=identity_start(2, 3), gamma0=1e9, tol=1e-9, max_iter=3000
        )
        assert_allclose(solution.minimiser[0], np.eye(3), atol=1e-5)
        # The tasks are apart then: each has the minimum that it has alone.
        alone = [
            solve_mtlmnn(
                [task], start=identity_start(1, 3), gamma0=1e9, tol=1e-9, max_iter=3000
            ).objective
            for task in tasks
        ]
        assert min(alone) > 0
        assert solution.objective == pytest.approx(sum(alone), rel=1e-4)
        assert np.abs(solution.minimiser[1:]).max() > 0.1

    def test_a_huge_gamma_leaves_nothing_of_the_tasks_own(self):
        tasks, _ = some_tasks(8, [(9, 8), (10, 6, 8)], 3, 3, scale=0.4)
        solution = solve_mtlmnn(
            tasks, start=identity_start(2, 3), gamma=1e9, tol=1e-9, max_iter=3000
        )
        assert_allclose(solution.minimiser[1:], 0, atol=1e-5)
        # The common part is the minimum of what remains; a small step in any direction is no better.
        assert np.linalg.norm(solution.minimiser[0] - np.eye(3)) > 0.1
        rng = np.random.default_rng(0)
        for _ in range(20):
            other = solution.minimiser.copy()
            other[0] += 0.03 * (some_metrics(rng, 1, 3, 3)[0] - some_metrics(rng, 1, 3, 3)[0])
            if np.linalg.eigvalsh(other[0])[0] >= 0:
                value = mtlmnn_objective_and_gradient(other, tasks, 1.0, 1e9)[0]
                assert value > solution.objective * (1 - 1e-5)

    def test_lists_of_pairs_are_kept_and_change_nothing(self, monkeypatch):
        tasks, _ = some_tasks(9, [(60,) * 4, (50,) * 5], 10, 3, spread=2.0)
        made = []

        class Counting(_TaskObjective):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)

        monkeypatch.setattr("simstream.batch.mtlmnn._TaskObjective", Counting)
        monkeypatch.setattr(lmnn, "_SEARCHED_PER_LISTED", 4)
        options = {"start": identity_start(2, 10), "tol": 0.0, "max_iter": 150}
        listed = solve_mtlmnn(tasks, **options)
        monkeypatch.setattr(lmnn, "_LIST_BYTES", -1)
        searched = solve_mtlmnn(tasks, **options)
        assert [task.n_searches for task in made[2:]] == [151, 151]
        assert max(task.n_searches for task in made[:2]) < 75  # the shortcut was taken
        assert_allclose(listed.history, searched.history, rtol=1e-10)
        assert_allclose(listed.minimiser, searched.minimiser, atol=1e-7)

    def test_items_too_large(self):
        tasks, _ = some_tasks(10, [(5, 5)], 2, 2, scale=1e200)
        with pytest.raises(ValueError, match="got an infinite objective at the start"):
            solve_mtlmnn(tasks, start=identity_start(1, 2))


# -- the estimator ------------------------------------------------------------------------------------


@quietly
@parametrize_with_checks([MultiTaskLMNN(k=1, max_iter=20)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def people():
    """Two people who look at features of their own, and at one in common."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 5))
    who = rng.permutation(np.repeat(["ann", "bob"], 80))
    own = np.where(who == "ann", X[:, 0], X[:, 1]) > 0
    y = 2 * own + (X[:, 2] > 0)
    return X, np.array(["p", "q", "r", "s"])[y], who


@pytest.fixture(scope="module")
def fitted(people):
    X, y, who = people
    return MultiTaskLMNN(gamma0=3.0, gamma=0.1, preprocessor=X).fit(X, y, who)


def test_each_task_has_its_distance(fitted, people):
    X, _, who = people
    assert sorted(fitted.tasks_) == ["ann", "bob"]
    assert fitted.tasks_[0] == who[0]
    assert fitted.task_matrices_.shape == (2, 5, 5)
    pairs = np.array([[0, 1], [5, 9], [30, 2]])
    V = X[pairs[:, 0]] - X[pairs[:, 1]]
    for task, own in [
        *zip(fitted.tasks_, fitted.task_matrices_, strict=True),
        ("eve", 0),
        (None, 0),
    ]:
        M = fitted.common_matrix_ + own
        expected = np.einsum("ij,jk,ik->i", V, M, V)
        assert_allclose(fitted.get_mahalanobis_matrix(task), M, atol=1e-12)
        assert_allclose(fitted.pair_distance(pairs, task), expected, rtol=1e-9)
        assert_allclose(fitted.pair_distance(X[pairs], task=task), expected, rtol=1e-9)
        assert_allclose(fitted.pair_score(pairs, task), -expected, rtol=1e-9)
        E = fitted.transform(X, task)
        assert_allclose(((E[pairs[:, 0]] - E[pairs[:, 1]]) ** 2).sum(axis=1), expected, rtol=1e-9)
        scores = fitted.score_items(X[:4], X[4:9], task=task)
        distances = ((E[:4, None] - E[None, 4:9]) ** 2).sum(axis=2)
        assert_allclose(scores, -distances, rtol=1e-9)
        found = fitted.search(X[:4], X[4:9], 2, task=task)
        assert_array_equal(found.indices, np.argsort(distances, axis=1)[:, :2])
        margins = fitted.triplet_margin([[0, 4, 5]], task)
        assert margins == pytest.approx([scores[0, 0] - scores[0, 1]])
        model = fitted.for_task(task)
        assert isinstance(model, simstream.Mahalanobis)
        assert_allclose(model.pair_distance(pairs), expected, rtol=1e-9)
    assert_allclose(fitted.components_.T @ fitted.components_, fitted.common_matrix_, atol=1e-12)
    ann, bob = (np.diag(fitted.get_mahalanobis_matrix(task)) for task in ("ann", "bob"))
    assert ann[0] > 1.5 * ann[1]
    assert bob[1] > 1.5 * bob[0]
    assert min(ann[2], bob[2]) > 1.5 * max(ann[3:].max(), bob[3:].max())


def test_the_report_equals_the_solver(fitted, people):
    X, y, who = people
    matrices = np.concatenate([fitted.common_matrix_[None], fitted.task_matrices_])
    tasks = [
        TaskItems.with_neighbors(
            X[who == name], np.unique(y[who == name], return_inverse=True)[1], 3
        )
        for name in fitted.tasks_
    ]
    objective = mtlmnn_objective_and_gradient(matrices, tasks, 3.0, 0.1)[0]
    assert fitted.objective_ == pytest.approx(objective, rel=1e-10)
    assert fitted.history_[-1] == fitted.objective_
    assert len(fitted.history_) == fitted.n_iter_ + 1
    assert fitted.converged_
    assert fitted.history_[0] == pytest.approx(
        mtlmnn_objective_and_gradient(identity_start(2, 5), tasks, 3.0, 0.1)[0]
    )


def test_models_of_tasks_are_independent(fitted, people):
    _, y, _ = people
    pairs = np.arange(40).reshape(20, 2)
    labels = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
    ann = fitted.for_task("ann").calibrate_threshold(pairs, labels)
    assert ann.threshold_ > 0
    with pytest.raises(NotFittedError, match="calibrate_threshold"):
        fitted.for_task("ann").predict_pairs(pairs)
    changed = fitted.common_matrix_
    changed[:] = 0
    assert fitted.common_matrix_.any()


def test_eigenvectors_are_computed_once_for_each_task(fitted, people, monkeypatch):
    X, _, _ = people
    model, counted = pickle.loads(pickle.dumps(fitted)).set_params(preprocessor=X), []
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda *a, **k: counted.append(a) or eigh(*a, **k))
    for task in ("ann", "bob", "ann", "bob"):
        distances = model.pair_distance([[0, 1]], task=task)
        assert_array_equal(distances, model.for_task(task).pair_distance([[0, 1]]))
        model.transform(X, task)
    assert len(counted) == 2


@quietly
def test_one_task_without_a_name(people):
    X, y, _ = people
    alone = MultiTaskLMNN(max_iter=30).fit(X, y)
    named = MultiTaskLMNN(max_iter=30).fit(X, y, [7] * len(X))
    assert (alone.tasks_, named.tasks_) == ([None], [7])
    assert_array_equal(alone.transform(X), named.transform(X, 7))
    assert_array_equal(alone.transform(X), alone.transform(X, task=None))
    both = alone.common_matrix_ + alone.task_matrices_[0]
    assert_allclose(alone.components_.T @ alone.components_, both, atol=1e-12)
    assert_allclose(alone.get_mahalanobis_matrix("stranger"), alone.common_matrix_, atol=1e-12)


@quietly
def test_names_of_tasks_are_kept_apart_by_value_only(people):
    X, y, who = people
    options = {"max_iter": 10}
    words = MultiTaskLMNN(**options).fit(X, y, who)
    numbers = MultiTaskLMNN(**options).fit(X, y, np.where(who == "ann", 0, 1))
    tuples = MultiTaskLMNN(**options).fit(X, y, [("user", str(name)) for name in who])
    assert_array_equal(words.transform(X, "bob"), numbers.transform(X, np.int64(1)))
    assert_array_equal(words.transform(X, "bob"), tuples.transform(X, ("user", "bob")))
    assert all(type(name) is int for name in numbers.tasks_)


@quietly
def test_init(people):
    X, y, who = people
    first = np.diag([1.0, 2, 3, 4, 0])
    near = MultiTaskLMNN(init=first, max_iter=1, gamma0=2.0).fit(X, y, who)
    assert near.history_[0] != MultiTaskLMNN(max_iter=1, gamma0=2.0).fit(X, y, who).history_[0]
    with pytest.raises(ValueError, match=r"init: expected a square matrix of shape \(5, 5\)"):
        MultiTaskLMNN(init=np.eye(4)).fit(X, y, who)
    with pytest.raises(ValueError, match="init: expected one of 'identity'"):
        MultiTaskLMNN(init="zeros").fit(X, y, who)


def test_reports_and_warns(people, capsys):
    X, y, who = people
    seen = []
    model = MultiTaskLMNN(max_iter=3, callback=lambda *a: seen.append(a), verbose=True)
    with pytest.warns(ConvergenceWarning, match="has not converged after 3 iterations") as caught:
        model.fit(X, y, who)
    assert caught[0].filename == __file__
    assert seen == list(enumerate(model.history_))[1:]
    assert "[MultiTaskLMNN] iteration 3: " in capsys.readouterr().out
    assert not model.converged_


def test_saved_and_loaded(fitted, people, tmp_path):
    X, _, _ = people
    fitted.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m", preprocessor=X)
    assert again.get_params()["gamma0"] == 3.0
    assert again.tasks_ == fitted.tasks_
    for task in ("ann", "bob", None):
        assert_array_equal(again.transform(X, task), fitted.transform(X, task))
        assert_array_equal(
            again.pair_distance([[0, 1]], task), fitted.pair_distance([[0, 1]], task)
        )
    for name in (
        "history_",
        "n_iter_",
        "converged_",
        "objective_",
        "common_matrix_",
        "task_matrices_",
    ):
        assert_array_equal(getattr(again, name), getattr(fitted, name))
    restored = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(restored.transform(X, "bob"), fitted.transform(X, "bob"))
    with pytest.raises(NotFittedError):
        clone(fitted).save(tmp_path / "never")
    with pytest.raises(NotFittedError):
        clone(fitted).for_task("ann")

    header, arrays = fitted._get_state()
    for header_change, array_change, message in (
        ({"tasks": ["ann"]}, {}, "matrices: expected float64 of shape"),
        ({"tasks": ["ann", "ann"]}, {}, "tasks: expected a list of different names"),
        ({}, {"matrices": np.full((3, 5, 5), np.nan)}, "matrices: expected finite numbers"),
        ({}, {"matrices": -arrays["matrices"]}, "expected a positive semi-definite matrix"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(fitted)._set_state({**header, **header_change}, {**arrays, **array_change})


@quietly
def test_only_plain_names_are_saved(people, tmp_path):
    X, y, who = people
    model = MultiTaskLMNN(max_iter=2).fit(X, y, [("user", str(name)) for name in who])
    with pytest.raises(TypeError, match="tasks: expected strings or numbers to save, got"):
        model.save(tmp_path / "m")
    alone = MultiTaskLMNN(max_iter=2).fit(X, y)
    alone.save(tmp_path / "m")
    assert simstream.load(tmp_path / "m").tasks_ == [None]


def test_bad_input_is_refused_before_anything_changes(people):
    X, y, who = people
    model = MultiTaskLMNN(max_iter=500, tol=1e-2).fit(X, y, who)
    before = model.transform(X, "ann")
    few = y.astype("U8")
    few[np.flatnonzero(who == "bob")[:2]] = "rare"
    one_class = np.where(who == "bob", "p", y)
    with pytest.warns(UserWarning, match=r"^task 'bob', k: 1 of . classes .*: rare \(2\);"):
        MultiTaskLMNN(max_iter=500, tol=1e-2).fit(X, few, who)
    for call, error, message in (
        (lambda: model.fit(X, one_class, who), ValueError, "task 'bob', y: expected at least two"),
        (
            lambda: model.fit(X, y, who[:-1]),
            ValueError,
            "tasks: expected one for each of 160 items",
        ),
        (lambda: model.fit(X, y, "ann"), TypeError, "tasks: expected one value per item, got str"),
        (lambda: model.fit(X, y, [[1]] * 160), TypeError, "tasks: expected hashable values"),
        (
            lambda: model.fit(X, y, [None] * 160),
            TypeError,
            "tasks: expected hashable values, got None",
        ),
        (lambda: model.fit(np.where(X > 2, np.nan, X), y, who), ValueError, "NaN"),
        (lambda: model.transform(X[:, :3], "ann"), ValueError, "expecting 5 features"),
        (lambda: model.pair_distance(X[None, :2, :3], "ann"), ValueError, "expected 5 features"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert_array_equal(model.transform(X, "ann"), before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma0", 0, "gamma0: expected a number > 0, got 0"),
        ("gamma", -1.0, "gamma: expected a number > 0, got -1.0"),
        ("gamma", np.inf, "gamma: expected a number > 0, got inf"),
        ("k", 0, "k: expected an integer >= 1, got 0"),
        ("tol", -1, "tol: expected a number >= 0, got -1"),
        ("max_iter", 0, "max_iter: expected an integer >= 1, got 0"),
    ],
)
def test_bad_parameters(name, value, message, people):
    X, y, who = people
    with pytest.raises(ValueError, match=message):
        MultiTaskLMNN(**{name: value}).fit(X, y, who)
