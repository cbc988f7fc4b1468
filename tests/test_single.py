"""`learn_one`: vectors that need no conversion take a short way, with the same checks and the same result."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp

from simstream import (
    LEGO,
    OASIS,
    OGD,
    OMTRSL,
    SORS,
    AdaSORS,
    DivergedError,
    Euclidean,
    OnlineITML,
    PAMetric,
)
from test_contract import same_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 12))
WIDE = RNG.normal(size=(120, 130))
TRIPLETS = RNG.permutation(120).reshape(40, 3)
SIGNS = np.where(RNG.random(40) < 0.5, 1, -1)

TRIPLET_LEARNERS = [
    OASIS(0.2),
    OASIS(0.2, average_from=5),
    OGD(0.1),
    SORS(1e-3, 0.1),
    SORS(1e-3, 0.1, off_diagonal=True),
    AdaSORS(1e-3, 0.1),
]
PAIR_LEARNERS = [
    PAMetric(0.2),
    LEGO(0.1, lower=5.0, upper=40.0),
    OnlineITML(0.1, lower=5.0, upper=40.0, scale=0.05),
]


def fresh(learner):
    return copy.deepcopy(learner)


def took_the_short_way(model):
    """Make every further call that goes the general way an error."""

    def refuse(*args):
        raise AssertionError("the general way")

    model._read_vectors = refuse
    return model


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("learner", TRIPLET_LEARNERS, ids=repr)
def test_triplets(learner, dtype):
    items = X.astype(dtype)
    whole = fresh(learner).set_params(preprocessor=items).fit(TRIPLETS)
    one = fresh(learner).learn_one(*items[TRIPLETS[0]])
    took_the_short_way(one)
    for triplet in TRIPLETS[1:]:
        one.learn_one(*items[triplet])
    del one._read_vectors
    same_model(whole, one)


@pytest.mark.parametrize("learner", PAIR_LEARNERS, ids=repr)
def test_pairs(learner):
    whole = fresh(learner).set_params(preprocessor=X).fit(TRIPLETS[:, :2], SIGNS)
    one = fresh(learner).learn_one(*X[TRIPLETS[0, :2]], SIGNS[0])
    took_the_short_way(one)
    for (a, b, _), sign in zip(TRIPLETS[1:], SIGNS[1:], strict=True):
        one.learn_one(X[a], X[b], sign)
    del one._read_vectors
    same_model(whole, one)


@pytest.mark.parametrize("learner", TRIPLET_LEARNERS[:4], ids=repr)
@pytest.mark.parametrize("head_bytes", [None, 300])
def test_sparse_triplets(learner, head_bytes):
    items = sp.csr_matrix(np.where(np.abs(WIDE) > 1, WIDE, 0))
    learner = fresh(learner).set_params(head_bytes=head_bytes)
    whole = fresh(learner).set_params(preprocessor=items).fit(np.tile(TRIPLETS, (12, 1)))
    one = fresh(learner)
    for turn in range(12):
        if turn == 11:  # more than a thousand vectors: features are counted no longer
            took_the_short_way(one)
        for a, p, n in TRIPLETS:
            one.learn_one(items[a], items[p], items[n])
    del one._read_vectors
    np.testing.assert_allclose(
        one.get_bilinear_matrix().toarray(), whole.get_bilinear_matrix().toarray(), atol=1e-12
    )
    assert one.n_rounds_ == whole.n_rounds_


@pytest.mark.parametrize("coupling", [0.0, 1.0])
@pytest.mark.parametrize("items", [X, WIDE[:, :70]], ids=["narrow", "wide"])
def test_tasks(items, coupling):
    names = RNG.choice(["ann", "bob", "cy"], 400)
    stream = np.tile(TRIPLETS, (10, 1))
    signs = np.tile(SIGNS, 10)
    whole = OMTRSL(0.3, coupling, n_tasks=3, preprocessor=items).fit(stream, signs, names)
    one = OMTRSL(0.3, coupling, n_tasks=3)
    for t, triplet in enumerate(stream):
        if set(names[:t]) == {"ann", "bob", "cy"}:
            took_the_short_way(one)
        one.learn_one(*items[triplet], signs[t], names[t])
    assert one.n_rounds_ == whole.n_rounds_
    for name in ("ann", "bob", "cy", "dee"):
        np.testing.assert_allclose(
            one.get_bilinear_matrix(name), whole.get_bilinear_matrix(name), atol=1e-10
        )


def test_many_features_are_learnt_one_at_a_time_too():
    whole = OASIS(0.2, preprocessor=WIDE).fit(TRIPLETS)
    one = OASIS(0.2)
    for triplet in TRIPLETS:
        one.learn_one(*WIDE[triplet])
    np.testing.assert_allclose(one.get_bilinear_matrix(), whole.get_bilinear_matrix(), atol=1e-12)


def test_what_needs_conversion_goes_the_general_way_to_the_same_result():
    plain, mixed = OASIS(0.2), OASIS(0.2)
    forms = [
        lambda v: v.tolist(),
        lambda v: v.astype(object),
        lambda v: np.asfortranarray(v),
        lambda v: v[::-1][::-1],
        lambda v: np.repeat(v, 2)[::2],
    ]
    for number, triplet in enumerate(TRIPLETS):
        plain.learn_one(*X[triplet])
        mixed.learn_one(*map(forms[number % len(forms)], X[triplet]))
    same_model(plain, mixed)
    narrow = OASIS(0.2, dtype="float32")
    for triplet in TRIPLETS:
        narrow.learn_one(*X[triplet])  # float64 for a model in float32
    np.testing.assert_allclose(narrow.get_bilinear_matrix(), plain.get_bilinear_matrix(), atol=1e-4)


def test_checks_stay_and_nothing_is_changed():
    model = OASIS(0.2).learn_one(*X[:3]).learn_one(*X[3:6])
    before, rounds = model.get_bilinear_matrix().copy(), model.n_rounds_
    bad = X[0].copy()
    bad[3] = np.nan
    for vectors, message in (
        ((bad, X[1], X[2]), "x: expected finite numbers, got nan"),
        ((X[0], X[1], np.full(12, -np.inf)), "positive and negative: expected finite"),
        ((X[0], X[1], X[2, :5]), "negative: expected as many features"),
        ((X[0, :5], X[1, :5], X[2, :5]), "items: expected 12 features"),
        ((X[:2], X[1], X[2]), "expected one dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            model.learn_one(*vectors)
    pairs = LEGO(lower=1.0, upper=2.0).learn_one(X[0], X[1], 1).learn_one(X[2], X[3], -1)
    for y in (2, -2, 0.5, np.nan, "1"):
        with pytest.raises(ValueError, match="y: expected"):
            pairs.learn_one(X[0], X[1], y)
    assert pairs.n_rounds_ == 2
    assert model.n_rounds_ == rounds
    np.testing.assert_array_equal(model.get_bilinear_matrix(), before)


def test_labels_of_pairs_may_be_truth_values():
    signs, others = (LEGO(lower=1.0, upper=40.0).learn_one(*X[:2], 1) for _ in range(2))
    for y in (True, False, 1, 0, np.True_, 0.0):
        signs.learn_one(X[2], X[3], 1 if y else -1)
        others.learn_one(X[2], X[3], y)
    same_model(signs, others)


def test_an_error_keeps_the_threshold():
    model = PAMetric(0.2).learn_one(*X[:2], 1).learn_one(*X[2:4], -1).set_threshold(3.0)
    bad = X[0].copy()
    bad[3] = np.nan
    for vectors in ((X[0], X[1, :5]), (X[0, :5], X[1, :5]), (X[0], bad)):
        with pytest.raises(ValueError, match="expected"):
            model.learn_one(*vectors, 1)
    for learn in (model.learn_one, lambda x, other, y: model.partial_fit([[x, other]], [y])):
        with pytest.raises(DivergedError, match="overflowed"):
            learn(1e90 * X[0], 1e90 * X[1], -1)
    assert model.threshold_ == 3.0
    assert model.predict_one(X[0], X[1]) == (1 if model.score_one(X[0], X[1]) >= -3.0 else -1)
    assert model.learn_one(*X[4:6], -1).threshold_ != 3.0


def test_a_distance_that_never_changes_keeps_its_threshold():
    model = Euclidean().learn_one(*X[:3]).set_threshold(3.0)
    assert model.partial_fit(X[None, 3:6]).threshold_ == 3.0
    assert model.learn_one(*X[6:9]).threshold_ == 3.0
    assert model.n_rounds_ == 3


@pytest.mark.parametrize("learner", [OASIS(0.2), OGD(0.1, average_from=3), PAMetric(0.2)], ids=repr)
def test_to_a_device_and_back(learner):
    pytest.importorskip("torch")
    is_pair = isinstance(learner, PAMetric)

    def learn(model, where):
        for number, triplet in enumerate(TRIPLETS):
            vectors = X[triplet]
            model.learn_one(*((*vectors[:2], SIGNS[number]) if is_pair else vectors))
            if number == 10:
                model.set_params(device=where).partial_fit(TRIPLETS)
            if number in (10, 20):
                model.set_params(device="cpu")
            if number == 15:  # to the device with a single tuple
                model.set_params(device=where)
        return model

    expected = learn(fresh(learner).set_params(preprocessor=X), "cpu")
    found = learn(fresh(learner).set_params(preprocessor=X), "torch")
    assert found.n_updates_ == expected.n_updates_
    scores = (model.pair_score(TRIPLETS[:, :2]) for model in (found, expected))
    np.testing.assert_allclose(*scores, rtol=1e-8, atol=1e-8)


def test_parameters_may_change_and_are_checked():
    model, expected = OASIS(0.2), OASIS(0.2, preprocessor=X)
    for number, triplet in enumerate(TRIPLETS):
        if number == 20:
            model.C = expected.C = 0.01
        if number == 30:
            model.set_params(variant="PA")
            expected.set_params(variant="PA")
        model.learn_one(*X[triplet])
        expected.partial_fit(triplet[None])
    same_model(expected, model)
    model.C = -1.0
    with pytest.raises(ValueError, match="C: expected a number > 0"):
        model.learn_one(*X[:3])
    model.set_params(C=0.1, average_from=3)
    with pytest.raises(ValueError, match="average_from: cannot change"):
        model.learn_one(*X[:3])


def test_what_was_read_is_read_anew():
    model = PAMetric(0.2).learn_one(X[0], X[1], 1).learn_one(X[2], X[3], -1)
    model.calibrate_threshold(X[TRIPLETS[:, :2]], SIGNS)
    calibrated, distance = model.threshold_, model.pair_distance(X[None, :2])
    model.learn_one(X[4], X[5], -1)
    assert model.threshold_ != calibrated
    assert model.pair_distance(X[None, :2]) != distance


def test_fit_copies_and_pickles():
    model = OASIS(0.2).learn_one(*X[:3]).learn_one(*X[3:6])
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
    expected = OASIS(0.2, preprocessor=X).fit([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    for each in copies[:2]:
        same_model(expected, each.learn_one(*X[6:9]))
    assert model.n_rounds_ == 2
    model.fit(X[None, :3]).learn_one(*X[3:6]).learn_one(*X[6:9])
    same_model(expected, model)


def test_a_long_stream_of_a_rule_with_thresholds():
    # In float32 the accumulated threshold must be taken off the numbers again and again.
    items = X.astype(np.float32)
    learner = SORS(1e-2, 0.5, dtype="float32")
    stream = np.tile(TRIPLETS, (500, 1))
    whole = fresh(learner).set_params(preprocessor=items).fit(stream)
    one = fresh(learner)
    for triplet in stream:
        one.learn_one(*items[triplet])
    same_model(whole, one)


def test_divergence_is_an_error():
    model = OGD(1e3).learn_one(*X[:3])
    with pytest.raises(DivergedError, match="overflowed"):
        model.learn_one(*(1e90 * X[:3]))
    model = OMTRSL(1e300).learn_one(*X[:3], 1, "ann")
    with pytest.raises(DivergedError, match="overflowed"):
        model.learn_one(1e90 * X[0], 1e90 * X[1], 1e90 * X[2], 1, "ann")


def test_threads_share_a_model():
    items = (
        X / 20
    )  # so short that all margins are violated: in any order the steps add up to the same
    model = OGD(1e-2).learn_one(*items[:3])

    def learn():
        for triplet in np.tile(TRIPLETS, (20, 1)):
            model.learn_one(*items[triplet])

    threads = [threading.Thread(target=learn) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # they take turns in the midst of steps
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert model.n_rounds_ == model.n_updates_ == 1 + 4 * 20 * 40
    anchors, z = items[TRIPLETS[:, 0]], items[TRIPLETS[:, 1]] - items[TRIPLETS[:, 2]]
    steps = np.outer(items[0], items[1] - items[2]) + 80 * anchors.T @ z
    np.testing.assert_allclose(model.get_bilinear_matrix(), np.eye(12) + 1e-2 * steps, atol=1e-10)
