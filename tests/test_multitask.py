"""Many tasks: against K explicit matrices, the identities and bounds of the paper, questions and answers."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import simstream
import simstream_repro.reference as ref
from cases import LAYOUTS, dense, items, triplets
from simstream import OASIS, OGRSL, OMTRSL, OSTRSL

K = 3


def tasks_and_answers(n, seed=0, n_tasks=K):
    rng = np.random.default_rng(seed)
    return rng.integers(0, n_tasks, n), rng.choice([1, -1], n)


def eager(X, T, y, tasks, C, b, n_tasks, delta=None, coins=None, start=None):
    """K explicit matrices; returns them, the margins before each round, and who was asked."""
    d = X.shape[1]
    Ms = [np.eye(d) if start is None else start.copy() for _ in range(n_tasks)]
    margins, asked = [], []
    for t, (a, p, n) in enumerate(T):
        k, x, z = tasks[t], X[a], X[p] - X[n]
        margins.append(x @ Ms[k] @ z)
        asked.append(delta is None or coins[t] < delta / (delta + abs(margins[-1])))
        if asked[-1]:
            Ms = ref.omtrsl.last(Ms, [(x, z, y[t], k)], C, b)
    return Ms, np.array(margins), np.array(asked)


def coins_of(seed, n):
    seed = np.random.RandomState(seed).randint(np.iinfo(np.int32).max)
    return np.random.default_rng(seed).random(n)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-5)])
@pytest.mark.parametrize("b", [0.0, 0.7, 6.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shared_form_is_k_explicit_matrices(layout, b, dtype, tolerance):
    convert, extra = LAYOUTS[layout]
    X, T = items(dtype=dtype), triplets()
    tasks, y = tasks_and_answers(len(T))
    Ms, margins, _ = eager(X.astype(float), T, y, tasks, 0.3, b, K)
    model = OMTRSL(0.3, b, n_tasks=K, preprocessor=convert(X), **extra).fit(T, y, tasks)
    for k in range(K):
        got = model.get_bilinear_matrix(k)
        assert sp.issparse(got) == (layout != "dense")
        np.testing.assert_allclose(dense(got), Ms[k], rtol=0, atol=tolerance)
    assert model.mistake_rate_ == pytest.approx(np.mean(y * margins <= 0))
    assert model.average_loss_ == pytest.approx(np.mean(np.maximum(0, 1 - y * margins)), rel=1e-4)
    assert model.tasks_ == list(dict.fromkeys(tasks.tolist()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fixed", [True, False])
def test_cutting_saving_and_blocks_change_nothing(layout, fixed, tmp_path):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets()
    tasks, y = tasks_and_answers(len(T), n_tasks=7)
    names = np.array(["ann", "bob", "cy", "dee", "eve", "flo", "gus"])[tasks]
    options = {"n_tasks": 7 if fixed else None, "preprocessor": convert(X), **extra}
    whole = OMTRSL(0.3, 1.0, **options).fit(T, y, names)
    cut = OMTRSL(0.3, 1.0, block_size=5, **options)
    for part in np.split(np.arange(len(T)), [1, 2, 50, 51, 200]):
        cut.partial_fit(T[part], y[part], names[part])
        cut.save(tmp_path / "m")
        cut = simstream.load(tmp_path / "m", preprocessor=convert(X))
    one = clone(cut)
    for t in range(len(T)):
        one.learn_one(*(X[i] for i in T[t]), y[t], names[t])
    for model in (cut, one):
        assert model.tasks_ == whole.tasks_
        for name in names[:20]:
            np.testing.assert_allclose(
                dense(model.get_bilinear_matrix(name)),
                dense(whole.get_bilinear_matrix(name)),
                atol=1e-11,
            )


def test_coupling_zero_is_every_task_by_itself():
    X, T = items(), triplets()
    tasks, _ = tasks_and_answers(len(T))
    uncoupled = OMTRSL(0.3, 0.0, n_tasks=K, preprocessor=X).fit(T, tasks=tasks)
    single = OSTRSL(0.3, preprocessor=X).fit(T, tasks=tasks)
    for k in range(K):
        alone = OASIS(0.3, preprocessor=X).fit(T[tasks == k])
        for model in (uncoupled, single):
            np.testing.assert_allclose(
                model.get_bilinear_matrix(k), alone.get_bilinear_matrix(), atol=1e-12
            )


def test_very_large_coupling_is_one_matrix_with_c_over_k():
    X, T = items(), triplets()
    tasks, _ = tasks_and_answers(len(T))
    coupled = OMTRSL(0.3, 1e10, n_tasks=K, preprocessor=X).fit(T, tasks=tasks)
    pooled = OGRSL(0.3 / K, preprocessor=X).fit(T, tasks=tasks)
    plain = OASIS(0.3 / K, preprocessor=X).fit(T)
    np.testing.assert_allclose(
        pooled.get_bilinear_matrix(1), plain.get_bilinear_matrix(), atol=1e-12
    )
    for k in range(K):
        np.testing.assert_allclose(
            coupled.get_bilinear_matrix(k), plain.get_bilinear_matrix(), atol=1e-6
        )


def test_one_task_is_oasis_for_any_coupling_and_flipping_changes_nothing():
    X, T = items(), triplets()
    _, y = tasks_and_answers(len(T))
    one = OMTRSL(0.3, 5.0, n_tasks=1, preprocessor=X).fit(T)
    np.testing.assert_allclose(
        one.get_bilinear_matrix(),
        OASIS(0.3, preprocessor=X).fit(T).get_bilinear_matrix(),
        atol=1e-12,
    )
    flipped = np.where((y > 0)[:, None], T, T[:, [0, 2, 1]])
    np.testing.assert_allclose(
        OMTRSL(0.3, preprocessor=X).fit(flipped, y).get_bilinear_matrix(),
        OMTRSL(0.3, preprocessor=X).fit(T).get_bilinear_matrix(),
        atol=1e-12,
    )


def test_the_mean_of_all_matrices_moves_by_the_step_over_k():
    X, T = items(), triplets(n=60)
    tasks, y = tasks_and_answers(60)
    model = OMTRSL(0.3, 2.0, n_tasks=K, preprocessor=X)
    before = np.eye(16)
    for t in range(60):
        x, z = X[T[t, 0]], X[T[t, 1]] - X[T[t, 2]]
        margin = x @ (np.eye(16) if t == 0 else model.get_bilinear_matrix(tasks[t])) @ z
        model.partial_fit(T[t : t + 1], y[t : t + 1], tasks[t : t + 1])
        shared, own = model._engine.weights()
        S, parts = model._engine._parts()
        own_parts = [parts.matrix(k) for k in range(len(model.tasks_))]
        mean = np.eye(16) + shared * S + own / K * sum(own_parts)
        loss, norm = max(0.0, 1 - y[t] * margin), (2 + K) / (3 * K) * (x @ x) * (z @ z)
        tau = min(0.3, loss / norm) if norm > 0 else 0.0
        np.testing.assert_allclose(mean - before, y[t] * tau / K * np.outer(x, z), atol=1e-12)
        before = mean


def test_tasks_may_appear_at_any_time():
    """With K counted, what earlier steps count for is as if K had been known (documented)."""
    X, T = items(), triplets()
    tasks = np.minimum(np.arange(len(T)) // 60, 4)  # a new task every 60 triplets
    model = OMTRSL(0.3, 1.0, preprocessor=X).fit(T, tasks=tasks)
    # By hand: steps with the weights of their time, read with the weights of now.
    S, D, seen = np.zeros((16, 16)), {}, 0
    for t, (a, p, n) in enumerate(T):
        k, x, z = tasks[t], X[a], X[p] - X[n]
        seen = max(seen, k + 1)
        own = D.setdefault(k, np.zeros((16, 16)))
        margin = x @ z + 0.5 / seen * x @ S @ z + 0.5 * x @ own @ z
        norm = (0.5 / seen + 0.5) * (x @ x) * (z @ z)
        if margin < 1 and norm > 0:
            tau = min(0.3, (1 - margin) / norm)
            S, D[k] = S + tau * np.outer(x, z), own + tau * np.outer(x, z)
    for k in range(5):
        expected = np.eye(16) + 0.1 * S + 0.5 * D[k]
        np.testing.assert_allclose(model.get_bilinear_matrix(k), expected, atol=1e-11)
    np.testing.assert_allclose(
        model.get_bilinear_matrix("stranger"), np.eye(16) + 0.1 * S, atol=1e-11
    )


def test_memory_grows_with_what_a_task_learnt():
    X = items(n=60, d=40, density=1.0)
    T = triplets(n=400, n_items=60)
    tasks = np.where(np.arange(400) < 300, 0, np.arange(400))
    model = OMTRSL(0.3, 1.0, preprocessor=X).fit(T, tasks=tasks)
    state = model._engine.state()[1]
    assert [name for name in state if name.startswith("full")] == ["full.0"]  # many steps: a matrix
    _, parts = model._engine._parts()
    moved = [parts.matrix(k).any() for k in range(1, 101)]
    assert state["count"].tolist() == [0, *moved]  # one step each, or none
    assert len(state["x"]) == sum(moved) < 100
    Ms, _, _ = eager(X, T, np.ones(400), np.unique(tasks, return_inverse=True)[1], 0.3, 1.0, 101)
    fixed = OMTRSL(0.3, 1.0, n_tasks=101, preprocessor=X).fit(T, tasks=tasks)
    np.testing.assert_allclose(fixed.get_bilinear_matrix(0), Ms[0], atol=1e-10)


@pytest.mark.parametrize("learner", [OMTRSL, OSTRSL, OGRSL])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_frozen_model_stays_what_it_was_while_learning_goes_on(layout, learner):
    """With new tasks, with more terms than an arena held, and with tasks that get a matrix of their own."""
    convert, extra = LAYOUTS[layout]
    X, T = convert(items(d=40, density=0.5)), triplets(n=700)
    tasks = np.where(np.arange(700) % 3 == 0, 0, np.arange(700) // 50)
    model, kept = learner(0.3, preprocessor=X, **extra), []
    for begin in range(0, 700, 70):
        part = slice(begin, begin + 70)
        model.partial_fit(T[part], tasks=tasks[part])
        names = [*model.tasks_, "stranger"]
        kept.append((model.freeze(), {name: model.get_bilinear_matrix(name) for name in names}))
    queries = X[:4]
    for frozen, expected in kept:
        for name, matrix in expected.items():
            found = frozen.matrix(name)
            assert sp.issparse(found) == sp.issparse(matrix)
            np.testing.assert_allclose(dense(found), dense(matrix), atol=1e-12)
            asked = frozen.transform_query(queries, name)
            np.testing.assert_allclose(dense(asked), dense(queries @ matrix), atol=1e-11)


def test_frozen_models_share_the_matrices_of_tasks_that_did_not_change():
    X, T = items(d=16), triplets(n=400)
    model = OMTRSL(0.3, preprocessor=X).fit(T, tasks=np.arange(400) % 2)
    before = model.freeze()
    own = before.own._parts.full
    assert set(own) == {0, 1}
    moved = model.n_updates_
    while model.n_updates_ == moved:
        model.partial_fit(T[:5], y=-np.ones(5), tasks=np.zeros(5, int))
    after = model.freeze().own._parts.full
    assert after[1] is own[1]
    assert not np.array_equal(after[0], own[0])


# -- asking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_active_asks_as_the_coins_say(layout, delta):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets()
    tasks, y = tasks_and_answers(len(T))
    Ms, margins, asked = eager(X, T, y, tasks, 0.3, 1.0, K, delta, coins_of(5, len(T)))
    options = {"n_tasks": K, "query": "active", "ask_delta": delta, "random_state": 5}
    model = OMTRSL(0.3, 1.0, **options, preprocessor=convert(X), **extra)
    for part in np.split(np.arange(len(T)), [1, 70]):
        model.partial_fit(T[part], tasks=tasks[part], oracle=y[part])
    for k in range(K):
        np.testing.assert_allclose(dense(model.get_bilinear_matrix(k)), Ms[k], atol=1e-11)
    assert model.query_ratio_ == np.mean(asked)
    assert model.mistake_rate_ == np.mean(y * margins <= 0)  # all rounds count, asked or not


def test_asking_one_by_one_is_the_simulation():
    X, T = items(), triplets(n=120)
    tasks, y = tasks_and_answers(120)
    options = {"n_tasks": K, "query": "active", "ask_delta": 0.5, "random_state": 1}
    simulated = OMTRSL(0.3, 1.0, **options, preprocessor=X).partial_fit(T, tasks=tasks, oracle=y)
    live = OMTRSL(0.3, 1.0, **options, preprocessor=X)
    live.prepare()
    for t in range(120):
        if live.should_ask(T[t], tasks[t]):
            live.partial_fit(T[t : t + 1], y[t : t + 1], tasks[t : t + 1])
    assert live.query_ratio_ == simulated.query_ratio_ < 1
    assert live.n_rounds_ == round(120 * live.query_ratio_)
    for k in range(K):
        np.testing.assert_allclose(
            live.get_bilinear_matrix(k), simulated.get_bilinear_matrix(k), atol=1e-11
        )


def test_limits_of_asking():
    X, T = items(), triplets()
    tasks, y = tasks_and_answers(len(T))
    everything = OMTRSL(0.3, 1.0, n_tasks=K, preprocessor=X).fit(T, y, tasks)
    for options in (
        {"query": "active", "ask_delta": np.inf},
        {"query": "random", "ask_rate": 1.0},
        {"query": "all"},
    ):
        model = OMTRSL(0.3, 1.0, n_tasks=K, random_state=0, preprocessor=X, **options)
        model.partial_fit(T, tasks=tasks, oracle=y)
        assert model.query_ratio_ == 1.0
        for k in range(K):
            np.testing.assert_array_equal(
                model.get_bilinear_matrix(k), everything.get_bilinear_matrix(k)
            )
    nothing = OMTRSL(query="random", ask_rate=0.0, preprocessor=X).partial_fit(T, oracle=y)
    assert (nothing.query_ratio_, nothing.n_updates_) == (0.0, 0)
    # A margin of exactly zero is always asked about.
    zero = OMTRSL(query="active", ask_delta=1e-12, init="zeros", random_state=0, preprocessor=X)
    assert zero.partial_fit(T[:1], oracle=[1]).query_ratio_ == 1.0


def test_the_query_ratio_rises_with_delta_and_random_asks_its_share():
    X, T = items(), triplets(n=2000)
    _, y = tasks_and_answers(2000)
    ratios = [
        OMTRSL(1e-9, query="active", ask_delta=delta, random_state=0, preprocessor=X)
        .partial_fit(T, oracle=y)
        .query_ratio_
        for delta in (0.01, 0.1, 1.0, 10.0)
    ]
    assert ratios == sorted(ratios)
    assert len(set(ratios)) == 4
    share = OMTRSL(query="random", ask_rate=0.3, random_state=0, preprocessor=X)
    assert share.partial_fit(T, oracle=y).query_ratio_ == pytest.approx(0.3, abs=0.03)


# -- the mistake bound ------------------------------------------------------------------------------------


@functools.cache
def separable(n_tasks, n, flipped=0):
    """Unit items, triplets and answers of tasks with related directions, and a U that is right by 1.

    Some answers are then flipped.
    """
    rng = np.random.default_rng(3)
    directions = np.eye(6)[0] + 0.15 * rng.normal(size=(n_tasks, 6))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    X = rng.normal(size=(60, 6))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    T, tasks = triplets(n=16 * n, n_items=60), rng.integers(0, n_tasks, 16 * n)
    along = np.einsum("id,id->i", X[T[:, 0]], directions[tasks])
    margins = along * np.einsum("id,id->i", X[T[:, 1]] - X[T[:, 2]], directions[tasks])
    kept = np.flatnonzero(np.abs(margins) > 0.4)[:n]
    assert len(kept) == n
    y = np.sign(margins[kept])
    y[:flipped] *= -1
    return X, T[kept], y, tasks[kept], [np.outer(u, u) / 0.4 for u in directions]


def parts_of_bound(U, X, T, y, tasks, C, b):
    """The factor max(4 (b + K) R^4 / ((1 + b) K), 1/C), ||U||_A^2 and the sum of the losses of U."""
    n_tasks, D = len(U), np.array(U)
    squared_norm = (D**2).sum() + b * ((D - D.mean(axis=0)) ** 2).sum()
    margins = [X[a] @ U[k] @ (X[p] - X[n]) for k, (a, p, n) in zip(tasks, T, strict=True)]
    R4 = (X[np.unique(T)] ** 2).sum(axis=1).max() ** 2
    factor = max(4 * (b + n_tasks) * R4 / ((1 + b) * n_tasks), 1 / C)
    return factor, squared_norm, np.maximum(0, 1 - y * margins).sum()


@pytest.mark.parametrize("b", [0.0, 1.0, 10.0])
@pytest.mark.parametrize(("C", "flipped"), [(0.05, 0), (0.05, 40), (0.3, 5), (5.0, 0)])
def test_mistake_bound_with_2c(b, C, flipped):
    n = 1500
    X, T, y, tasks, U = separable(K, n, flipped)
    factor, squared_norm, losses = parts_of_bound(U, X, T, y, tasks, C, b)
    bound = factor * (squared_norm + 2 * C * losses)
    assert bound < n  # a learner that learns nothing has a margin of 0, a mistake, every time
    model = OMTRSL(C, b, n_tasks=K, init="zeros", preprocessor=X).fit(T, y, tasks)
    assert 0 < model.mistake_rate_ * n <= bound
    # From the identity, the distance is that from the identity.
    start = [u - np.eye(6) for u in U]
    bound = factor * (parts_of_bound(start, X, T, y, tasks, C, b)[1] + 2 * C * losses)
    model = OMTRSL(C, b, n_tasks=K, preprocessor=X).fit(T, y, tasks)
    assert 0 < model.mistake_rate_ * n <= bound


def test_the_printed_bound_with_c_is_false():
    """One task, from zero, nearly orthonormal x z', each tilted against what was learnt so far."""
    n, C, norm = 50, 1.0, 0.5**0.5  # of x, x1 and x2: C = 1 = 1 / (4 R^4)
    x = norm * np.eye(n + 1)[0]
    model, U, rows, mistakes = OMTRSL(C, 0.0, n_tasks=1, init="zeros"), 0.0, [], 0
    for t in range(n):
        z = np.eye(n + 1)[1 + t]
        if t:
            learnt = model.transform_query([x])[0]
            z = z - 1e-6 * learnt / np.linalg.norm(learnt)
        z *= 2 * norm / np.linalg.norm(z)
        rows.append([x, z / 2, -z / 2])
        if t:
            mistakes += model.triplet_margin([rows[-1]])[0] < 0
        model.learn_one(*rows[-1])
        U = U + 0.5 * np.outer(x, z)
    assert mistakes == n - 1  # all but the first, whose margin is 0 and counted below
    assert model.mistake_rate_ == 1.0
    X, T = np.reshape(rows, (-1, n + 1)), np.arange(3 * n).reshape(n, 3)
    given = X, T, np.ones(n), np.zeros(n, int)
    factor, squared_norm, losses = parts_of_bound([U], *given, C, 0.0)
    assert factor == pytest.approx(1.0)
    assert mistakes > factor * (squared_norm + C * losses)  # as printed
    assert n <= factor * (squared_norm + 2 * C * losses)  # as it should be


@pytest.mark.parametrize("delta", [0.2, 1.0])
@pytest.mark.parametrize(("b", "flipped"), [(0.0, 0), (1.0, 0), (1.0, 2)])
def test_mistake_bound_of_active_questions_in_expectation(b, flipped, delta):
    n, C, seeds = 800, 0.5, 50
    X, T, y, tasks, U = separable(K, n, flipped)
    factor, squared_norm, losses = parts_of_bound(U, X, T, y, tasks, C, b)
    bound = factor / delta * (((delta + 1) / 2) ** 2 * squared_norm + (delta + 1) * C * losses)
    assert bound < n
    options = {"n_tasks": K, "init": "zeros", "query": "active", "ask_delta": delta}
    mistakes, asked = [], []
    for seed in range(seeds):
        model = OMTRSL(C, b, random_state=seed, preprocessor=X, **options)
        model.partial_fit(T, tasks=tasks, oracle=y)
        mistakes.append(model.mistake_rate_ * n)  # of all rounds, asked or not
        asked.append(model.query_ratio_)
    assert 0 < np.mean(mistakes) <= bound
    assert len(set(asked)) > 5  # the coins do decide
    assert np.mean(asked) < 0.9


# -- errors ----------------------------------------------------------------------------------------


def test_bad_input_changes_nothing():
    X, T = items(), triplets(n=30)
    tasks, y = tasks_and_answers(30)
    model = OMTRSL(0.3, n_tasks=K, preprocessor=X).fit(T, y, tasks)
    before = {name: a.copy() for name, a in model._engine.state()[1].items()}
    for call, error, message in (
        (lambda: model.partial_fit(T, y, tasks + 1), ValueError, "at most n_tasks = 3"),
        (lambda: model.partial_fit(T, np.zeros(30), tasks), ValueError, "expected \\+1"),
        (lambda: model.partial_fit(T, y, tasks[:-1]), ValueError, "one for each of 30"),
        (lambda: model.partial_fit(T, y, "ann"), TypeError, "one value per triplet"),
        (lambda: model.partial_fit(T, y, [[1]] * 30), TypeError, "hashable"),
        (lambda: model.partial_fit(T, y, tasks, oracle=y), ValueError, "got both"),
        (lambda: model.partial_fit(np.ones((1, 3, 5)), None, [0]), ValueError, "16 features"),
        (
            lambda: model.set_params(coupling=9.0).partial_fit(T, y, tasks),
            ValueError,
            "coupling: cannot change",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
        model.set_params(coupling=1.0)
    after = model._engine.state()[1]
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert model.tasks_ == list(dict.fromkeys(tasks.tolist()))


def test_bad_parameters_and_unfitted():
    X, T = items(), triplets(n=5)
    for parameters in (
        {"C": 0},
        {"coupling": -1},
        {"query": "some"},
        {"ask_delta": 0},
        {"ask_rate": 2},
        {"init": "ones"},
        {"n_tasks": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(parameters))):
            OMTRSL(**parameters, preprocessor=X).fit(T)
    with pytest.raises(NotFittedError):
        OMTRSL(preprocessor=X).pair_score([[0, 1]])
    with pytest.raises(ValueError, match="identity"):
        OMTRSL(preprocessor=(X, X[:, :5])).fit(T)
    two = OMTRSL(0.3, init="zeros", preprocessor=(X, X[:, :5])).fit(T, tasks=[0, 1, 0, 1, 0])
    assert two.get_bilinear_matrix(1).shape == (16, 5)


def test_reading_by_task():
    X, T = items(), triplets()
    tasks, _ = tasks_and_answers(len(T))
    model = OMTRSL(0.3, 1.0, n_tasks=K, preprocessor=X).fit(T, tasks=tasks)
    margins = np.empty(len(T))
    for k in range(K):
        M = model.get_bilinear_matrix(k)
        np.testing.assert_allclose(model.score_items(X, X, task=k), X @ M @ X.T, atol=1e-11)
        np.testing.assert_allclose(model.transform_query(X, task=k), X @ M, atol=1e-11)
        np.testing.assert_allclose(
            model.pair_score(T[:, :2], task=k), (X @ M @ X.T)[T[:, 0], T[:, 1]], atol=1e-11
        )
        found = model.search(X[:3], X, k=4, task=k)
        np.testing.assert_array_equal(found.indices[:, 0], (X[:3] @ M @ X.T).argmax(axis=1))
        mine = tasks == k
        margins[mine] = np.einsum("ij,jk,ik->i", X[T[mine, 0]], M, X[T[mine, 1]] - X[T[mine, 2]])
    np.testing.assert_allclose(model.decision_function(T, tasks), margins, atol=1e-11)
    assert model.score(T, None, tasks) == np.mean(margins > 0)
    assert isinstance(model.for_task(0), simstream.Bilinear)
    common = np.eye(16) + model._engine.weights()[0] * model._engine.shared
    np.testing.assert_allclose(
        model.get_bilinear_matrix(), common
    )  # no task: what all have in common


# -- nothing half changed ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_tasks", [None, 9])
def test_names_of_a_call_that_diverges_are_those_it_came_to(layout, n_tasks, tmp_path):
    convert, extra = LAYOUTS[layout]
    X = items()
    X[39] = 1e200
    T, names = triplets(n=30, n_items=39), ["ann", "bob"] * 15
    options = {"n_tasks": n_tasks, "preprocessor": convert(X), **extra}
    model = OMTRSL(0.3, 1.0, **options).fit(T, tasks=names)
    expected = OMTRSL(0.3, 1.0, **options).fit(T, tasks=names)
    bad = np.vstack([T[:1], [39, 39, 0], T[:2]])
    with pytest.raises(simstream.DivergedError):
        model.partial_fit(bad, tasks=["cy", "dee", "eve", "ann"])
    expected.partial_fit(bad[:1], tasks=["cy"])
    assert model._engine.n_seen == 3

    def same():
        assert model.tasks_ == expected.tasks_
        assert model.n_rounds_ == expected.n_rounds_
        for name in ("ann", "bob", "cy", "dee", "eve", None):
            np.testing.assert_allclose(
                dense(model.get_bilinear_matrix(name)),
                dense(expected.get_bilinear_matrix(name)),
                atol=1e-12,
            )

    same()
    # Numbers are given anew: the next new name is not mixed up with one that was dropped.
    for one in (model, expected):
        one.partial_fit(T[5:9], tasks=["eve", "ann", "dee", "eve"])
    assert model.tasks_ == ["ann", "bob", "cy", "eve", "dee"]
    same()
    model.save(tmp_path / "m")
    model = simstream.load(tmp_path / "m", preprocessor=convert(X))
    same()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_task_that_diverges_at_once_changes_no_weights(layout):
    convert, extra = LAYOUTS[layout]
    X = items()
    X[39] = 1e200
    T = triplets(n=30, n_items=39)
    model = OMTRSL(0.3, 1.0, preprocessor=convert(X), **extra).fit(T, tasks=["ann"] * 30)
    before = dense(model.get_bilinear_matrix("ann"))
    with pytest.raises(simstream.DivergedError):
        model.partial_fit([[39, 39, 0]], tasks=["bob"])
    assert (model.tasks_, model._engine.n_seen) == (["ann"], 1)
    model._reads().clear()
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix("ann")), before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ctrl_c_leaves_the_tasks_it_came_to(layout, monkeypatch):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets(n=60)
    names = [f"user {t // 10}" for t in range(60)]
    model = OMTRSL(0.3, 1.0, block_size=5, preprocessor=convert(X), **extra)
    model.fit(T[:10], tasks=names[:10])
    engine = model._engine
    drive = type(engine)._drive

    def interrupted(learn, n, chunk):
        def learn_then_stop(begin, end):
            if engine.clock[0] >= 30:
                raise KeyboardInterrupt
            return learn(begin, end)

        drive(engine, learn_then_stop, n, 5)

    monkeypatch.setattr(engine, "_drive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(T[10:], tasks=names[10:])
    monkeypatch.undo()
    assert model.n_rounds_ == 30
    assert model.tasks_ == ["user 0", "user 1", "user 2"]
    model.partial_fit(T[30:], tasks=names[30:])
    whole = OMTRSL(0.3, 1.0, preprocessor=convert(X), **extra).fit(T, tasks=names)
    assert model.tasks_ == whole.tasks_
    for name in whole.tasks_:
        np.testing.assert_allclose(
            dense(model.get_bilinear_matrix(name)),
            dense(whole.get_bilinear_matrix(name)),
            atol=1e-11,
        )


@pytest.mark.parametrize("changed", [{"coupling": 9.0}, {"n_tasks": 8}])
def test_a_refused_change_takes_no_coin_and_no_name(changed):
    X, T = items(), triplets(n=30)
    options = {"n_tasks": 4, "query": "active", "random_state": 0, "preprocessor": X}
    model = OMTRSL(0.3, 1.0, **options).partial_fit(T, oracle=np.ones(30), tasks=["ann"] * 30)
    coins, kept = model._coins.bit_generator.state, {name: getattr(model, name) for name in changed}
    model.set_params(**changed)
    for call in (
        lambda: model.partial_fit(T, oracle=np.ones(30), tasks=["bob"] * 30),
        lambda: model.should_ask(T[0], "bob"),
    ):
        with pytest.raises(ValueError, match="cannot change"):
            call()
    model.set_params(**kept)
    assert model._coins.bit_generator.state == coins
    assert (model.tasks_, model.n_rounds_) == (["ann"], 30)


# -- memory and reading ------------------------------------------------------------------------------


def wide_items(d):
    rng = np.random.default_rng(0)
    columns = np.sort(rng.choice(d, (30, 5)), axis=1)
    X = sp.csr_matrix((rng.normal(size=150), columns.ravel(), np.arange(0, 151, 5)), (30, d))
    X.sum_duplicates()
    return X


def test_sparse_memory_grows_with_rows_that_tasks_touched():
    d, n_tasks = 50_000, 100_000  # stacked, the matrices have 5e9 rows: no int32 could number them
    X, T = wide_items(d), triplets(n=200, n_items=30)
    model = OMTRSL(0.3, 1.0, n_tasks=n_tasks, head_bytes=1 << 16, preprocessor=X)
    tasks = np.arange(200) % 70
    model.fit(T, tasks=tasks)
    touched = {(k, f) for k, a in zip(tasks, T[:, 0], strict=True) for f in X[a].indices}
    assert model._engine._used[0] == len(touched)
    assert model._engine._store.nbytes < 20e6
    used = np.unique(X.indices)
    small = OMTRSL(0.3, 1.0, n_tasks=n_tasks, preprocessor=X[:, used].toarray())
    small.fit(T, tasks=tasks)
    for k in (0, 33, 69):
        np.testing.assert_allclose(
            model.get_bilinear_matrix(k)[used][:, used].toarray(),
            small.get_bilinear_matrix(k),
            atol=1e-12,
        )


def test_more_rows_than_can_be_numbered_are_refused(monkeypatch):
    from simstream._engines import sparse_tasks

    monkeypatch.setattr(sparse_tasks, "_MOST_ROWS", 1000 + 1 + 1200)
    X, T = wide_items(1000), triplets(n=200, n_items=30)
    model = OMTRSL(0.3, preprocessor=X).fit(T[:100], tasks=range(100))
    before = dense(model.get_bilinear_matrix(5))
    with pytest.raises(ValueError, match=r"at most 2,201 rows .* got more with triplet"):
        model.partial_fit(np.tile(T, (3, 1)), tasks=np.arange(600) + 100)
    assert (model.n_rounds_, len(model.tasks_)) == (100, 100)
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix(5)), before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_builds_no_matrix_and_keeps_one_at_most(layout, monkeypatch):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets()
    tasks, _ = tasks_and_answers(len(T))
    options = {"query": "active", "random_state": 0, "preprocessor": convert(X), **extra}
    model = OMTRSL(0.3, 1.0, **options).fit(T, tasks=tasks)
    asked = np.append(tasks[:-1], "a stranger").astype(object)
    asked[:-1] = tasks[:-1]
    expected = [
        X[a] @ dense(model.get_bilinear_matrix(k)) @ (X[p] - X[n])
        for k, (a, p, n) in zip(asked, T, strict=True)
    ]
    *_, held = model._reads()._pair[1]._built
    assert held._matrix().shape == (16, 16)  # one matrix, not one for each task
    model._reads().clear()

    def refuse(task=None):
        raise AssertionError("a matrix was built")

    monkeypatch.setattr(model._engine, "matrix", refuse)
    np.testing.assert_allclose(model.triplet_margin(T, asked), expected, atol=1e-11)
    assert isinstance(model.should_ask(T[0], 1), bool)
    assert model._reads()._pair[1]._built is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fresh_model_may_ask_and_asks_as_the_simulation(layout):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets(n=120)
    tasks, y = tasks_and_answers(120)
    options = {"n_tasks": K, "query": "active", "ask_delta": 0.5, "random_state": 1, **extra}
    simulated = OMTRSL(0.3, **options, preprocessor=convert(X))
    simulated.partial_fit(T, tasks=tasks, oracle=y)
    live = OMTRSL(0.3, **options, preprocessor=convert(X))
    for t in range(120):
        if live.should_ask(T[t], tasks[t]):
            live.partial_fit(T[t : t + 1], y[t : t + 1], tasks[t : t + 1])
    assert live.query_ratio_ == simulated.query_ratio_ < 1
    assert simulated.n_rounds_ == 120
    by_vectors = OMTRSL(0.3, **options)
    assert by_vectors.should_ask(X[T[0]], "ann") in (True, False)
    assert by_vectors.tasks_ == []  # asked about, not learnt from


def test_tasks_that_are_not_themselves_or_too_few_are_refused():
    X, T = items(), triplets(n=30)
    for cls in (OMTRSL, OSTRSL, OGRSL):
        model = cls(preprocessor=X)
        for tasks, error, message in (
            ([np.nan] * 30, ValueError, "got nan for triplet 0"),
            (np.array(["NaT"] * 30, "datetime64[D]"), ValueError, "got NaT"),
            ([1] * 29, ValueError, "one for each of 30"),
            ([[1]] * 30, TypeError, "hashable"),
        ):
            with pytest.raises(error, match=message):
                model.fit(T, tasks=tasks)
            with pytest.raises(error, match=message):
                model.partial_fit(T, tasks=tasks)
        model.fit(T, tasks=range(30))
        with pytest.raises(ValueError, match="one for each of 30"):
            model.triplet_margin(T, [1] * 29)
