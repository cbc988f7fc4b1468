"""Labels of pairs: learners answer in those that they were given, -1 and +1, 0 and 1, or False and True."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler

import simstream
from simstream import (
    ITML,
    LEGO,
    POLA,
    RCA,
    RDML,
    Mahalanobis,
    OnlineITML,
    PairSampler,
    PAMetric,
)
from simstream.distributed import ShardedLearner
from simstream.similarity.pair_labels import saved_classes
from test_single import took_the_short_way

X, WINES = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
P, SIGNS = PairSampler(WINES, 0).draw(300)
BOUNDS = {"lower": 5.0, "upper": 50.0}

ONLINE = [PAMetric(0.01), POLA(), RDML(), LEGO(**BOUNDS), OnlineITML(**BOUNDS)]
BATCH = [ITML(max_iter=5, tol=1e3, random_state=0, **BOUNDS), RCA()]

labelled = pytest.mark.parametrize("labels", [[-1, 1], [0, 1], [False, True]], ids=str)
with_labels = pytest.mark.parametrize("labels", [[0, 1], [False, True]], ids=str)


def named(labels, signs=SIGNS):
    return np.array(labels)[(signs > 0).astype(int)]


def of(model):
    return clone(model).set_params(preprocessor=X)


def same_labels(found, expected):
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(found, expected)


@labelled
@pytest.mark.parametrize("learner", ONLINE + BATCH, ids=lambda model: type(model).__name__)
def test_predictions_have_the_labels_of_fit(learner, labels, tmp_path):
    y = named(labels)
    model = of(learner).fit(P, y)
    similar = model.pair_distance(P) <= model.threshold_
    model.save(tmp_path / "m")
    copies = pickle.loads(pickle.dumps(model)), simstream.load(tmp_path / "m"), model.similarity_
    for each in (model, *copies):
        same_labels(each.set_params(preprocessor=X).predict(P), named(labels, 2 * similar - 1))
    for each in (model, *copies[:2]):
        same_labels(each.classes_, labels)
    np.testing.assert_array_equal(model.decision_function(P) >= 0, similar)
    assert (
        model.score(P, y) == accuracy_score(y, model.predict(P)) == np.mean(similar == (SIGNS > 0))
    )
    model.set_threshold(1e9)
    assert (model.predict(P) == labels[1]).all()
    model.set_threshold(-1.0)
    assert (model.predict(P) == labels[0]).all()
    triplets = np.column_stack([P[:4], P[4:8, 0]])
    assert set(model.predict(triplets)) <= {-1, 1}


@with_labels
@pytest.mark.parametrize("scoring", ["accuracy", "f1", "roc_auc", "average_precision", None])
@pytest.mark.parametrize(
    "learner", [PAMetric(0.01), BATCH[0]], ids=lambda model: type(model).__name__
)
def test_scorers(learner, scoring, labels):
    expected = cross_val_score(of(learner), P, SIGNS, scoring=scoring, cv=3)
    found = cross_val_score(of(learner), P, named(labels), scoring=scoring, cv=3)
    np.testing.assert_array_equal(found, expected)
    assert found.mean() > 0.6


@labelled
def test_calibrated_probabilities(labels):
    model = CalibratedClassifierCV(of(PAMetric(0.01)), cv=3).fit(P, named(labels))
    same_labels(model.classes_, labels)
    assert model.score(P, named(labels)) > 0.8
    assert model.predict_proba(P)[SIGNS > 0, 1].mean() > 0.5


@labelled
def test_one_pair_at_a_time(labels):
    ones = np.flatnonzero(SIGNS > 0)
    order = np.concatenate([ones[:1], np.flatnonzero(SIGNS < 0)[:1], np.arange(40)])
    y = named(labels)
    one = PAMetric(0.01)
    for t in order[:2]:
        one.learn_one(*X[P[t]], y[t])
    took_the_short_way(one)
    for t in order[2:]:
        one.learn_one(*X[P[t]], y[t].item() if t % 2 else y[t])
    del one._read_vectors
    same_labels(one.classes_, labels)
    whole = PAMetric(0.01, block_size=1, preprocessor=X).fit(P[order], y[order])
    np.testing.assert_array_equal(one.get_mahalanobis_matrix(), whole.get_mahalanobis_matrix())
    found = [one.predict_one(*X[pair]) for pair in P]
    assert {type(label) for label in found} == {type(labels[0])}
    same_labels(np.array(found), whole.predict(P))


@pytest.mark.parametrize("learn", ["partial_fit", "learn_one"])
def test_similar_pairs_alone_leave_labels_open(learn):
    similar = P[SIGNS > 0]

    def after(model, pair, y):
        if learn == "partial_fit":
            return model.partial_fit(pair[None], [y])
        return model.learn_one(*X[pair], y)

    for low in (-1, 0, False):
        model = after(of(PAMetric(0.01)), similar[0], 1)
        same_labels(model.classes_, [-1, 1])
        after(after(model, similar[1], 1), P[SIGNS < 0][0], low)
        labels = [low, type(low)(1)]
        same_labels(model.classes_, labels)
        # These are consistent with all labels; -1, what samplers and files give, is always understood.
        for pair, y in ((similar[2], 1), (similar[3], True), (P[SIGNS < 0][1], -1)):
            same_labels(after(model, pair, y).classes_, labels)
        assert model.n_rounds_ == 6
        same_labels(np.unique(model.predict(P)), labels)
    same_labels(after(of(PAMetric(0.01)), similar[0], True).classes_, [False, True])
    zeros = after(of(PAMetric(0.01)), P[SIGNS < 0][0], 0)
    same_labels(after(zeros, P[SIGNS < 0][1], False).classes_, [0, 1])
    signs = after(of(PAMetric(0.01)), P[SIGNS < 0][0], -1)
    before = signs.get_mahalanobis_matrix()
    for other in (0, False):
        with pytest.raises(
            ValueError, match=rf"expected labels -1 and \+1, as before, got {other}"
        ):
            after(signs, P[SIGNS < 0][1], other)
    np.testing.assert_array_equal(signs.get_mahalanobis_matrix(), before)
    assert signs.n_rounds_ == 1


def test_fit_begins_with_other_labels():
    model = of(PAMetric(0.01)).fit(P, SIGNS > 0).fit(P, SIGNS)
    same_labels(model.classes_, [-1, 1])
    same_labels(clone(model).partial_fit(P, SIGNS > 0).classes_, [False, True])
    triplets = np.column_stack([P[:20], P[20:40, 0]])
    same_labels(model.fit(P, SIGNS > 0).fit(triplets).classes_, [-1, 1])


@with_labels
@pytest.mark.parametrize("model", [of(PAMetric(0.01)), of(RCA())], ids=repr)
def test_a_threshold_brings_labels_where_there_are_none(model, labels):
    y = named(labels)
    if isinstance(model, RCA):
        model.fit(X, WINES)
    else:
        model.fit(np.column_stack([P[:20], P[20:40, 0]]))
    assert set(model.set_threshold(-1.0).predict_pairs(P)) == {-1}
    found = model.calibrate_threshold(P, y).predict_pairs(P)
    same_labels(found, named(labels, np.where(model.pair_distance(P) <= model.threshold_, 1, -1)))
    other = Mahalanobis(np.eye(13), preprocessor=X).calibrate_threshold(P, y)
    same_labels(np.unique(other.predict(P)), labels)
    same_labels(other.classes_, labels)
    same_labels(np.unique(other.truncated(3).set_threshold(9.0).predict(P)), labels)


@labelled
@pytest.mark.parametrize(
    "model", [of(PAMetric(0.01)), of(ITML(max_iter=5, tol=1e3, **BOUNDS))], ids=repr
)
def test_calibrating_keeps_the_labels_of_learning(model, labels):
    y = named(labels)
    model.fit(P, y).calibrate_threshold(P, SIGNS)
    same_labels(model.classes_, labels)
    model.calibrate_threshold(P[SIGNS > 0], SIGNS[SIGNS > 0])
    same_labels(model.classes_, labels)
    model.fit(P, SIGNS)
    if labels != [-1, 1]:
        before = model.threshold_
        with pytest.raises(ValueError, match=r"expected labels -1 and \+1, as before, got"):
            model.calibrate_threshold(P, y)
        assert model.threshold_ == before


def test_a_metric_answers_in_the_labels_of_its_last_calibration():
    metric = Mahalanobis(np.eye(13), preprocessor=X)
    for y in (SIGNS, SIGNS > 0, SIGNS):
        metric.calibrate_threshold(P, y)
        assert accuracy_score(y, metric.predict(P)) == metric.score(P, y)


@pytest.mark.parametrize(
    "learner", [PAMetric(0.01), *BATCH], ids=lambda model: type(model).__name__
)
def test_other_labels_are_no_pairs(learner):
    wrong = SIGNS.copy()
    wrong[7] = 0
    for y in (wrong, np.where(SIGNS > 0, 1, 2), np.where(SIGNS > 0, "yes", "no")):
        with pytest.raises(ValueError, match=r"^y: expected \+1 .* or 1 and 0, or booleans"):
            of(learner).fit(P, y)
    objects = (SIGNS > 0).astype(object)
    same_labels(of(learner).fit(P, objects).classes_, [False, True])


def test_items_beside_a_preprocessor_have_its_features():
    for learner in BATCH:
        with pytest.raises(ValueError, match=r"X: expected items of 13 features.*got 2 features"):
            of(learner).fit(P.astype(float), SIGNS)


def test_labels_that_do_not_go_together():
    for y, got in (([0, 1, 2], "0 and 2"), ([0, 1, -1], "0 and -1"), ([-1, 0, 3], "0 and 3")):
        with pytest.raises(ValueError, match=rf"-1 \(dissimilar\), or 1 and 0, .* got {got}$"):
            of(PAMetric()).fit(P[:3], y)


@with_labels
def test_a_divided_learner_keeps_labels(labels, tmp_path):
    learner, y = PAMetric(0.01, block_size=8), named(labels)
    given = {"folder": tmp_path / "run", "preprocessor": X, "backend": "serial"}
    with ShardedLearner(learner, 2, **given) as divided:
        same_labels(divided.fit(P, y).learner_.classes_, labels)
    with ShardedLearner.resume(tmp_path / "run", backend="serial") as divided:
        same_labels(divided.learner_.classes_, labels)
        same_labels(divided.partial_fit(P, SIGNS).learner_.classes_, labels)


def test_itml_calibrates_its_threshold_on_pairs():
    model = of(BATCH[0]).fit(P, SIGNS)
    distances = model.pair_distance(P)
    best = max(np.mean((distances <= t) == (SIGNS > 0)) for t in distances)
    assert model.score(P, SIGNS) == best
    assert best > np.mean((distances <= 27.5) == (SIGNS > 0))
    one_kind = model.fit(P[SIGNS > 0], SIGNS[SIGNS > 0])
    assert one_kind.threshold_ == pytest.approx(27.5)  # the middle of the bounds


@pytest.mark.parametrize("learner", BATCH, ids=lambda model: type(model).__name__)
def test_row_numbers_need_items(learner):
    model = clone(learner)
    with pytest.raises(ValueError, match=r"^preprocessor: expected the items .* have to be floats"):
        model.fit(P, SIGNS)
    triplets = np.column_stack([P[:20], P[20:40, 0]])
    with pytest.raises(ValueError, match=r"^preprocessor: expected items"):
        model.fit(triplets, None)
    assert not hasattr(model, "n_features_in_")
    assert model.fit(P.astype(float), SIGNS).n_features_in_ == 2
    with pytest.warns(UserWarning, match="two integer features are taken as items"):
        assert model.fit(P, SIGNS > 0).n_features_in_ == 2  # a class of items as well
    rows, vectors = of(learner).fit(triplets, None), clone(learner).fit(X[triplets], None)
    np.testing.assert_allclose(
        rows.get_mahalanobis_matrix(), vectors.get_mahalanobis_matrix(), rtol=1e-6, atol=1e-8
    )


def test_files_of_models():
    old = simstream.load(Path(__file__).parent / "models" / "pametric-pa-dense.safetensors")
    same_labels(old.classes_, [-1, 1])
    with pytest.raises(
        ValueError, match=r"classes: expected the two labels of pairs, got \(2, 3\)"
    ):
        saved_classes({"classes": [2, 3]})
