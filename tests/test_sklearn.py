"""scikit-learn's own checks of `FromLabels` over each kind of learner, and the ways people use it."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import simstream
from cases import BASELINES, CASES, items
from pair_cases import PAIR_CASES
from simstream import (
    OASIS,
    OMLLR,
    OSLLRGS,
    SDCA,
    SORS,
    Dot,
    FromLabels,
    Loreta,
    PairSampler,
    PAMetric,
    TripletSampler,
    metrics,
)

#: The wrapper is one; what it wraps has a dense or sparse matrix, learns from pairs, or keeps factors.
KINDS = [
    FromLabels(learner, n_tuples=300)
    for learner in (OASIS(0.3), SORS(2e-3), PAMetric(0.01), OMLLR())
]


#: Of a random stream: the same data given in another way is another stream.
STOCHASTIC = {
    f"check_sample_weight_equivalence_on_{kind}_data": "tuples are drawn in proportion to weights"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(KINDS, expected_failed_checks=lambda estimator: STOCHASTIC)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


OTHERS = {case.name: case.make() for case in [*CASES, *BASELINES, *PAIR_CASES]} | {
    "osllr-gs": OSLLRGS(),
    "omllr": OMLLR(),
    "loreta": Loreta(3),
    "sdca": SDCA(0.1, random_state=0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_learner_learns_from_labels(name):
    X, y = items(n=30), np.array(list("abc"))[np.arange(30) % 3]
    model = FromLabels(OTHERS[name], n_tuples=100, random_state=0)
    predicted = model.fit(X, y).predict(X)
    assert set(predicted) <= set(y)
    assert 0 <= model.score(X, y) <= 1
    for copy in (
        clone(model).fit(X, y),
        pickle.loads(pickle.dumps(model)),
        clone(model).fit(sp.csr_matrix(X), y),
    ):
        np.testing.assert_array_equal(copy.predict(X), predicted)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def test_score_is_map_without_the_query(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=500, random_state=0).fit(X, y)
    scores = model.learner_.score_items(X, X)
    np.fill_diagonal(scores, -np.inf)
    expected = []
    for q in range(len(X)):
        order = np.argsort(-scores[q], kind="stable")[:-1]
        relevant = y[order] == y[q]
        precision = np.cumsum(relevant) / np.arange(1, len(order) + 1)
        expected.append(precision[relevant].mean())
    assert model.score(X, y) == pytest.approx(np.mean(expected))


def test_predict_is_the_vote_of_the_nearest(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=500, random_state=0, n_neighbors=1).fit(X[::2], y[::2])
    nearest = model.learner_.score_items(X[1::2], X[::2]).argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X[1::2]), y[::2][nearest])
    np.testing.assert_array_equal(model.search(X[1::2], k=1).indices[:, 0], nearest)


def test_learning_beats_the_inner_product(wine):
    X, y = wine
    learnt = FromLabels(OASIS(), n_tuples=2000, random_state=0)
    assert cross_val_score(learnt, X, y).mean() > cross_val_score(FromLabels(Dot()), X, y).mean()


def test_grid_search_in_a_pipeline():
    X, y = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), FromLabels(OASIS(), n_tuples=300, random_state=0))
    grid = GridSearchCV(pipeline, {"fromlabels__learner__C": [1e-4, 0.1]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"fromlabels__learner__C": 0.1}
    assert grid.best_estimator_.score(X, y) == grid.score(X, y)


def test_sparse_and_dense_agree(wine):
    X, y = wine
    X = np.where(np.abs(X) > 1, X, 0)
    dense = FromLabels(SORS(), n_tuples=500, random_state=0).fit(X, y)
    sparse = FromLabels(SORS(), n_tuples=500, random_state=0).fit(sp.csr_matrix(X), y)
    assert sparse.score(sp.csr_matrix(X), y) == pytest.approx(dense.score(X, y))
    np.testing.assert_array_equal(sparse.predict(sp.csr_matrix(X)), dense.predict(X))


def test_partial_fit_goes_on(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=100, random_state=0)
    for part in range(4):
        model.partial_fit(X[part::4], y[part::4])
    assert model.learner_.n_rounds_ == 400
    assert model.search(X, k=1000).indices.shape == (len(X), len(X))  # all parts are references
    assert clone(model).fit(X, y).learner_.n_rounds_ == 100


def generator(random_state):
    """The generator that a seed stands for."""
    return np.random.default_rng(np.random.RandomState(random_state).randint(2**31 - 1))


def test_every_call_draws_new_tuples_from_one_generator(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=100, random_state=7)
    model.partial_fit(X, y).partial_fit(X, y)
    rng, expected = generator(7), OASIS(preprocessor=X)
    for _ in range(2):
        expected.partial_fit(TripletSampler(y, rng).draw(100))
    np.testing.assert_array_equal(
        model.learner_.get_bilinear_matrix(), expected.get_bilinear_matrix()
    )


def test_the_learner_given_is_left_alone(wine):
    learner = OASIS()
    FromLabels(learner, n_tuples=10).fit(*wine)
    assert not learner.__sklearn_is_fitted__()


def test_metrics_take_the_learner_directly(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=300, random_state=0).fit(X, y)
    assert metrics.mean_average_precision(model.learner_, X, y) == model.score(X, y)


def test_classes_named_in_the_first_call_are_kept(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=50, random_state=0)
    model.partial_fit(X[::2], y[::2], classes=[0, 1, 2, 9])
    np.testing.assert_array_equal(model.partial_fit(X, y).classes_, [0, 1, 2, 9])


def test_pairs_are_balanced_or_uniform(wine):
    X, y = wine
    for share in (0.5, None):
        model = FromLabels(PAMetric(0.01), n_tuples=200, random_state=7, similar_share=share)
        drawn = PairSampler(y, generator(7), similar_share=share).draw(200)
        expected = PAMetric(0.01, preprocessor=X).fit(*drawn)
        np.testing.assert_array_equal(
            model.fit(X, y).learner_.get_mahalanobis_matrix(), expected.get_mahalanobis_matrix()
        )


@pytest.mark.parametrize("n_tuples", [700, 2300])
def test_near_triplets_are_chosen_by_the_learner_as_it_learns(wine, n_tuples):
    X, y = wine
    options = {"negatives": "near", "positives": "near", "share": 0.8}
    model = FromLabels(OASIS(0.01), n_tuples=n_tuples, random_state=7, **options).fit(X, y)
    expected = OASIS(0.01, preprocessor=X, normalise=True)  # as it is read from labels
    expected.prepare()
    sampler = TripletSampler(y, generator(7), items=X, model=expected, **options)
    for begin in range(0, n_tuples, 1000):
        expected.partial_fit(sampler.draw(min(1000, n_tuples - begin)))
    np.testing.assert_array_equal(
        model.learner_.get_bilinear_matrix(), expected.get_bilinear_matrix()
    )
    assert model.learner_.n_rounds_ == n_tuples


def test_near_triplets_of_a_distance_and_of_a_set(wine):
    X, y = wine
    model = FromLabels(
        PAMetric(0.01), n_tuples=1500, tuples="triplets", negatives="near", random_state=0
    )
    assert model.fit(X, y).partial_fit(X, y).learner_.n_rounds_ == 2 * 2 * 1500
    model = FromLabels(
        simstream.SDCA(n_epochs=1, random_state=0), n_tuples=1500, negatives="near", random_state=0
    )
    sampler = TripletSampler(
        y, generator(0), items=X, negatives="near"
    )  # it sees all triplets at once: they are near by inner products
    expected = simstream.SDCA(n_epochs=1, random_state=0, preprocessor=X).fit(sampler.draw(1500))
    found = model.fit(X, y).learner_
    np.testing.assert_allclose(found.get_bilinear_matrix(), expected.get_bilinear_matrix())


def test_what_is_drawn_depends_on_the_learner_and_can_be_chosen(wine):
    X, y = wine
    drawn = {
        "pairs": PairSampler(y, generator(7)).draw(200),
        "triplets": (TripletSampler(y, generator(7)).draw(200),),
    }
    for tuples, kind in (("auto", "pairs"), ("pairs", "pairs"), ("triplets", "triplets")):
        model = FromLabels(PAMetric(0.01), n_tuples=200, tuples=tuples, random_state=7)
        expected = PAMetric(0.01, preprocessor=X).fit(*drawn[kind])
        np.testing.assert_array_equal(
            model.fit(X, y).learner_.get_mahalanobis_matrix(), expected.get_mahalanobis_matrix()
        )
    with pytest.raises(ValueError, match="tuples: expected 'auto' or 'triplets' for OASIS"):
        FromLabels(OASIS(), tuples="pairs").fit(X, y)
    with pytest.raises(TypeError, match=r"expected a learner .* got LMNN"):
        FromLabels(simstream.LMNN()).fit(X, y)
    with pytest.raises(ValueError, match="tuples"):
        FromLabels(OASIS(), tuples="quadruplets").fit(X, y)


def test_learning_a_distance_beats_the_euclidean_one():
    X, y = load_wine(return_X_y=True)
    X = X / X.max(axis=0)
    learnt = FromLabels(PAMetric(0.1), n_tuples=2000, random_state=0)
    untrained = FromLabels(simstream.Euclidean(), n_tuples=1)
    assert cross_val_score(learnt, X, y).mean() > cross_val_score(untrained, X, y).mean()
