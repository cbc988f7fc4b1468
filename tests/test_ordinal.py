"""Ordinal embedding: the objectives as they are written, planted places, answers that repeat."""

import warnings

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import simstream
from simstream import OrdinalEmbedding
from simstream.batch import ordinal

METHODS = ("soe", "t-ste")
PLACES = np.random.default_rng(0).normal(size=(30, 2))


def answers(n, size=3, seed=1, places=PLACES):
    """Comparisons that hold for planted places."""
    rng = np.random.default_rng(seed)
    Q = np.array([rng.choice(len(places), size, replace=False) for _ in range(n)])
    others = Q[:, [0, 2]] if size == 3 else Q[:, 2:]
    near, far = (
        np.linalg.norm(places[pair[:, 0]] - places[pair[:, 1]], axis=1)
        for pair in (Q[:, :2], others)
    )
    swapped = [0, 2, 1] if size == 3 else [2, 3, 0, 1]
    return np.where((near < far)[:, None], Q, Q[:, swapped])


def by_hand(method, Y, Q, alpha):
    """The mean loss of comparisons, one after the other."""
    total = 0.0
    for row in Q:
        i, j, k, m = row if len(row) == 4 else (row[0], row[1], row[0], row[2])
        near, far = np.linalg.norm(Y[i] - Y[j]), np.linalg.norm(Y[k] - Y[m])
        if method == "soe":
            total += max(0, 1 + near - far) ** 2
        else:
            a, b = ((1 + d**2 / alpha) ** (-(alpha + 1) / 2) for d in (near, far))
            total -= np.log(a / (a + b))
    return total / len(Q)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_objectives_and_gradients(method, size):
    Q, Y = answers(40, size), np.random.default_rng(5).normal(size=(30, 3))
    problem = ordinal._Problem.of(ordinal._as_pairs(Q), np.full(40, 1 / 40), 30)
    objective = OrdinalEmbedding(3, method, alpha=1.7)._objective(problem, Y.shape)
    value, gradient = objective(Y.ravel())
    assert value == pytest.approx(by_hand(method, Y, Q, 1.7), rel=1e-9)
    numeric = approx_fprime(Y.ravel(), lambda flat: objective(flat)[0], 1e-7)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_planted_places_are_found(method, size):
    model = OrdinalEmbedding(2, method, n_init=1, random_state=0).fit(answers(3000, size))
    # The heavy tails of t-STE crowd far items together, even where no answer contradicts another.
    assert model.score(answers(2000, size, seed=2)) > (0.98 if method == "soe" else 0.9)
    upper = np.triu_indices(30, 1)
    distances = [
        np.linalg.norm(P[:, None] - P[None], axis=2)[upper] for P in (PLACES, model.embedding_)
    ]
    ranks = [np.argsort(np.argsort(d)) for d in distances]
    assert np.corrcoef(*ranks)[0, 1] > (0.99 if method == "soe" else 0.94)
    np.testing.assert_allclose(model.embedding_.mean(axis=0), 0, atol=1e-12)


def test_answers_that_repeat_count_as_often():
    Q = answers(200)
    doubled = np.concatenate([Q, Q[:50], Q[:50]])
    model = OrdinalEmbedding(2, "soe", n_init=1, random_state=0).fit(doubled)
    assert model.objective_ == pytest.approx(by_hand("soe", model.embedding_, doubled, 1))
    shuffled = np.random.default_rng(0).permutation(doubled)
    again = OrdinalEmbedding(2, "soe", n_init=1, random_state=0).fit(shuffled)
    np.testing.assert_array_equal(again.embedding_, model.embedding_)


def test_more_starts_are_never_worse():
    Q = answers(100)
    reached = [
        OrdinalEmbedding(2, "soe", n_init=n, random_state=3).fit(Q).objective_ for n in (1, 4)
    ]
    assert reached[1] <= reached[0]


def test_neighbours_and_the_similarity(tmp_path):
    model = OrdinalEmbedding(2, random_state=0).fit(answers(2000))
    Y = model.embedding_
    D = ((Y[:, None] - Y[None]) ** 2).sum(axis=2)
    np.fill_diagonal(D, np.inf)
    found = model.search([4, 17], k=3)
    np.testing.assert_array_equal(found.indices, np.argsort(D, axis=1)[[4, 17], :3])
    np.testing.assert_allclose(found.scores, -np.sort(D, axis=1)[[4, 17], :3])
    np.testing.assert_allclose(model.similarity_.pair_distance([[0, 1]]), D[0, 1])
    np.testing.assert_allclose(model.decision_function([[0, 1, 2]]), D[0, 2] - D[0, 1])
    assert model.search(0, k=100).indices.shape == (1, 29)
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    np.testing.assert_array_equal(again.embedding_, Y)
    assert (again.objective_, again.n_iter_, again.converged_) == (
        model.objective_,
        model.n_iter_,
        model.converged_,
    )


def test_items_at_one_place_are_their_own_neighbours_never():
    model = OrdinalEmbedding(2, random_state=0).fit(answers(50))
    model.embedding_ = np.zeros((30, 2))
    found = model.search(np.arange(30), k=5).indices
    assert found.shape == (30, 5)
    assert not (found == np.arange(30)[:, None]).any()


def test_items_that_were_never_compared_stay_at_the_origin():
    model = OrdinalEmbedding(2, n_items=12, random_state=0).fit([[0, 1, 5], [1, 0, 5], [5, 1, 0]])
    assert model.embedding_.shape == (12, 2)
    assert not model.embedding_[[2, 3, 4, 6, 11]].any()
    assert model.embedding_[[0, 1, 5]].any(axis=1).all()


def test_what_is_refused():
    model = OrdinalEmbedding(random_state=0)
    with pytest.raises(NotFittedError, match="call fit first"):
        model.search([0])
    for parameters in ({"method": "mds"}, {"n_components": 0}, {"alpha": -1.0}, {"n_init": 0}):
        with pytest.raises(ValueError, match=next(iter(parameters))):
            OrdinalEmbedding(**parameters).fit([[0, 1, 2]])
    with pytest.raises(ValueError, match="expected shape"):
        model.fit([[0, 1]])
    with pytest.raises(TypeError, match="expected integers"):
        model.fit([[0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="from 0 to 4, got 9"):
        clone(model).set_params(n_items=5).fit([[0, 1, 9]])
    assert not hasattr(model, "embedding_")
    model.fit(answers(50))
    with pytest.raises(ValueError, match="rows: expected item numbers from 0 to 29"):
        model.search([30])
    with pytest.raises(ValueError, match="row number from 0 to 29"):
        model.score([[0, 1, 30]])
    with pytest.warns(ConvergenceWarning, match="has not converged after 2 iter"):
        OrdinalEmbedding(max_iter=2, n_init=1, random_state=0).fit(answers(500))


def test_the_same_seed_gives_the_same_places():
    Q = answers(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = (OrdinalEmbedding(3, "t-ste", random_state=7).fit(Q) for _ in range(2))
    np.testing.assert_array_equal(one.embedding_, other.embedding_)


def test_ids_are_not_taken_for_item_numbers():
    with pytest.raises(
        ValueError, match=r"item numbers below 1,000,000 .* got 1,000,000,000; .*n_items"
    ):
        OrdinalEmbedding().fit([[0, 1, 10**9], [2, 1, 0]])
    model = OrdinalEmbedding(n_items=1_500_000, max_iter=5, tol=1.0, random_state=0)
    assert model.fit([[0, 1, 1_400_000]]).embedding_.shape == (1_500_000, 2)
