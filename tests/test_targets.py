"""LEGO, OnlineITML and ITML without `lower` and `upper`: the items that these come from."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from cases import items, triplets
from simstream import ITML, LEGO, RCA, OnlineITML
from test_contract import same_model


def bounded_learners():
    return [LEGO(), OnlineITML(), ITML(max_iter=20, tol=0.1)]


@pytest.mark.parametrize("learner", bounded_learners(), ids=repr)
@pytest.mark.parametrize("size", [2, 3])
def test_vectors_and_row_numbers_mean_the_same(learner, size):
    # Only some of the items occur, some of them often.
    tuples = triplets(n=60)[:, :size] % 10 + [0, 10, 20][:size]
    y = np.resize([1, -1, -1], 60) if size == 2 else None
    rows, vectors = (clone(learner).set_params(preprocessor=items()) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for model, given in ((rows, tuples), (vectors, items()[tuples])):
            (model.fit_pairs if isinstance(model, ITML) else model.fit)(given, y)
    np.testing.assert_array_equal(rows.get_mahalanobis_matrix(), vectors.get_mahalanobis_matrix())
    assert rows.threshold_ == vectors.threshold_


@pytest.mark.parametrize(
    "learner",
    [*bounded_learners(), RCA(3, shrinkage=0.1), RCA(weights="between", shrinkage=0.1)],
    ids=repr,
)
@pytest.mark.parametrize("size", [2, 3])
def test_vectors_alone_mean_each_of_them_once(learner, size):
    tuples = triplets(n=60)[:, :size] % 10 + [0, 10, 20][:size]
    tuples[30:, 0] = 0  # one of them is in half of the tuples
    y = np.resize([1, -1, -1], 60) if size == 2 else None
    given = items()[tuples]
    distinct, index = np.unique(given.reshape(-1, given.shape[2]), axis=0, return_inverse=True)
    order = np.random.default_rng(1).permutation(len(distinct))
    vectors, rows = clone(learner), clone(learner).set_params(preprocessor=distinct[order])
    index = np.argsort(order)[index.reshape(tuples.shape)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for model, some in ((vectors, given), (rows, index)):
            getattr(model, "fit_pairs", model.fit)(some, y)
    if isinstance(learner, RCA):
        np.testing.assert_allclose(
            rows.get_mahalanobis_matrix(), vectors.get_mahalanobis_matrix(), rtol=1e-9, atol=1e-12
        )
        assert rows.threshold_ == pytest.approx(vectors.threshold_, rel=1e-9)
    else:
        # Bounds are percentiles of a sample of pairs, which depends on the order of the items. Counted as
        # often as they are in the tuples, the items would give 1 to 2 % more.
        assert rows._own_threshold() == pytest.approx(vectors._own_threshold(), rel=5e-3)


@pytest.mark.parametrize("learner", bounded_learners()[:2], ids=repr)
def test_a_stream_may_begin_with_one_pair_of_known_items(learner):
    X = items()
    expected = clone(learner).set_params(preprocessor=X).fit([[0, 1], [2, 3]], [1, -1])
    model = clone(learner).set_params(preprocessor=X).learn_one(X[0], X[1], 1)
    model.learn_one(X[2], X[3], -1)
    same_model(expected, model)
    with pytest.raises(ValueError, match="items: expected 5 features, as in the model, got 16"):
        clone(learner).set_params(preprocessor=X).learn_one(X[0, :5], X[1, :5], 1)


@pytest.mark.parametrize("learner", bounded_learners(), ids=repr)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])
def test_items_that_are_all_equally_far_apart(learner, convert):
    pairs = np.array([[0, 1], [2, 3], [0, 2], [1, 3]])
    y = np.array([1, 1, -1, -1])
    model = clone(learner).set_params(preprocessor=convert(np.eye(6)))
    learn = model.fit_pairs if isinstance(model, ITML) else model.fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learn(np.tile(pairs, (30, 1)), np.tile(y, 30))
    distances = model.pair_distance(pairs)
    assert distances[:2].max() < distances[2:].min()
    assert model._own_threshold() == pytest.approx(2.0)  # the middle of 1 and 3
    model.set_params(lower=2.0)
    with pytest.raises(ValueError, match=r"lower < upper, got 2 and 2 .*; give both, or none"):
        learn(pairs, y)
