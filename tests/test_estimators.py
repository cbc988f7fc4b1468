"""What users of scikit-learn, river and metric-learn expect: scorers, thresholds, weights, clones."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import fbeta_score, get_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import simstream
from simstream import (
    AROMA,
    ITML,
    LEGO,
    LMNN,
    MCML,
    OASIS,
    OGD,
    OMTRSL,
    OSLLRGS,
    POLA,
    RCA,
    RDML,
    SDCA,
    SORS,
    AdaSORS,
    Dot,
    FromLabels,
    ListwiseSoftmax,
    Loreta,
    Mahalanobis,
    OnlineITML,
    PairSampler,
    PAMetric,
    TripletSampler,
    metrics,
)
from simstream._engines import sparse
from simstream.data import comparisons
from simstream.online import from_labels


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def pairs(wine):
    return PairSampler(wine[1], 0).draw(300)


# -- FromLabels as a transformer ------------------------------------------------------------------


def test_a_learnt_space_stands_before_other_steps(wine):
    X, y = wine
    metric = FromLabels(PAMetric(0.1), n_tuples=1000, random_state=0)
    model = make_pipeline(metric, KNeighborsClassifier()).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.9
    learner = model[0].learner_
    distances = np.linalg.norm(model[0].transform(X[:1]) - model[0].transform(X[1:]), axis=1)
    expected = [learner.get_metric()(X[0], x) for x in X[1:]]
    np.testing.assert_allclose(distances, expected, rtol=1e-8, atol=1e-10)


def test_the_transformer_names_its_features(wine):
    pandas = pytest.importorskip("pandas")
    X, y = wine
    model = FromLabels(OSLLRGS(n_components=3), n_tuples=100, random_state=0)
    frame = model.set_output(transform="pandas").fit_transform(X, y)
    assert isinstance(frame, pandas.DataFrame)
    names = ["fromlabels0", "fromlabels1", "fromlabels2"]
    assert list(frame.columns) == list(model.get_feature_names_out()) == names
    assert list(clone(model).fit_transform(X, y).columns) == names  # a clone keeps the setting


@pytest.mark.parametrize(
    "name", ["transform", "fit_transform", "get_feature_names_out", "set_output"]
)
def test_without_a_space_there_is_no_transformer(name):
    assert not hasattr(FromLabels(OASIS()), name)
    assert hasattr(FromLabels(PAMetric()), name)


@pytest.mark.parametrize("learner", [SDCA(), OSLLRGS(n_components=3), Loreta(3, init="random")])
def test_the_seed_reaches_the_learner(learner, wine):
    X, y = wine

    def learnt(model, seed):
        fitted = FromLabels(model, n_tuples=200, random_state=seed).fit(X, y)
        return fitted.learner_.get_bilinear_matrix()

    np.testing.assert_array_equal(learnt(learner, 0), learnt(learner, 0))
    assert not np.array_equal(learnt(learner, 0), learnt(learner, 1))
    own = clone(learner).set_params(random_state=5)  # its own seed stays
    assert FromLabels(own, n_tuples=10, random_state=0).fit(X, y).learner_.random_state == 5


def test_texts():
    texts = ["red apple", "green apple", "apple pie", "blue car", "fast car", "car race"] * 5
    y = [0, 0, 0, 1, 1, 1] * 5
    model = make_pipeline(TfidfVectorizer(), FromLabels(SORS(), n_tuples=300, random_state=0))
    assert model.fit(texts, y).predict(["apple", "a new car"]).tolist() == [0, 1]


def test_texts_of_many_words_take_the_memory_of_what_was_learnt():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    texts = [
        " ".join(f"w{word}" for word in [*rng.integers(0, 100_000, 15), *rng.integers(0, 50, 5)])
        + f" topic{topic}"
        for topic in y
    ]
    words = TfidfVectorizer().fit(texts)
    X = words.transform(texts)
    assert X.shape[1] > 8000  # a dense block of all of them would take 512 MB
    model = FromLabels(SORS(), n_tuples=1000, random_state=0)
    tracemalloc.start()
    try:
        predicted = model.fit(X[:400], y[:400]).predict(X[400:])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.mean(predicted == y[400:]) > 0.6
    assert peak < 3e8


def test_weights_that_change_count_the_items_once(wine, monkeypatch):
    made = []
    make = sparse.csr_reader
    monkeypatch.setattr(sparse, "csr_reader", lambda rows: made.append(rows) or make(rows))
    X, y = sp.csr_matrix(wine[0]), wine[1]
    T = TripletSampler(y, 0).draw(50)
    model = SORS(preprocessor=X).fit(T, sample_weight=np.linspace(1, 2, 50))
    assert model.n_rounds_ == 50
    assert len(made) == 1


# -- precision and votes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "learnt"),
    [
        (np.asarray, "float16", "float32"),  # scipy has no float16
        *((kind, "float32", "float32") for kind in (np.asarray, sp.csr_matrix)),
        *((kind, "int64", "float64") for kind in (np.asarray, sp.csr_matrix)),
    ],
)
def test_the_precision_of_items_is_kept(kind, given, learnt, wine):
    X, y = kind(wine[0].astype(given)), wine[1]
    model = FromLabels(OASIS(), n_tuples=100, random_state=0).fit(X, y)
    assert model.learner_.dtype_ == learnt
    assert model.predict(X).shape == y.shape


class Column:
    """As a column of pandas: `dtypes` is one type, not those of several columns."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape
        self.dtype = self.dtypes = values.dtype

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_a_column_of_a_table_is_refused_as_a_vector_is(wine):
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        FromLabels(OASIS()).fit(Column(wine[0][:, 0]), wine[1])


@pytest.mark.parametrize("n_tuples", [10, 100, 10**9])
def test_the_dense_head_has_what_tuples_touch_and_no_more_than_by_default(n_tuples):
    d = 50_000
    shares = np.minimum(1.0, 100 / np.arange(1, d + 1))  # as words of texts have
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.uniform(size=(40, d)) < shares, dtype=np.float64)
    found = from_labels._head_bytes(X, n_tuples)
    assert 2**26 <= found <= 2 * 2**30
    assert (found == 2**26) == (n_tuples == 10)
    assert (found > 2**30) == (n_tuples == 10**9)
    model = FromLabels(OASIS(), n_tuples=10, random_state=0).fit(X, np.arange(40) % 2)
    assert model.learner_.head_bytes is None
    assert model.learner_._engine.head_bytes == 2**26


def test_shares_of_votes(wine):
    X, y = wine
    names = np.array(["a", "b", "c"])[y]
    model = FromLabels(OASIS(C=0.1), n_tuples=500, random_state=0, n_neighbors=4)
    model.partial_fit(X[::2], names[::2], classes=["a", "b", "c", "none"])
    shares = model.predict_proba(X[1::2])
    nearest = names[::2][model.search(X[1::2], k=4).indices]
    expected = [(nearest == name).mean(axis=1) for name in model.classes_]
    np.testing.assert_allclose(shares, np.transpose(expected), atol=1e-8)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (np.sort(expected, axis=0)[-1] == np.sort(expected, axis=0)[-2]).any()  # there are ties
    np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X[1::2]))


def test_scorers_of_shares(wine):
    X, y = wine
    model = make_pipeline(StandardScaler(), FromLabels(OASIS(C=0.1), n_tuples=500, random_state=0))
    for scoring, classes in (("roc_auc_ovr", y), ("roc_auc", y == 1), ("neg_brier_score", y == 1)):
        found = cross_val_score(model, X, classes, scoring=scoring, cv=3, error_score="raise")
        assert np.isfinite(found).all()
        assert scoring == "neg_brier_score" or found.min() > 0.9


# -- weights --------------------------------------------------------------------------------------


def test_items_of_weight_zero_are_left_out(wine):
    X, y = wine
    weights = np.where(np.arange(len(y)) % 3 == 0, 0.0, 1.0)
    model = FromLabels(OASIS(), n_tuples=200, random_state=0).fit(X, y, sample_weight=weights)
    used = weights > 0
    expected = FromLabels(OASIS(), n_tuples=200, random_state=0).fit(X[used], y[used])
    assert model.search(X, k=1000).indices.shape[1] == used.sum()
    np.testing.assert_allclose(
        model.learner_.get_bilinear_matrix(), expected.learner_.get_bilinear_matrix()
    )


@pytest.mark.parametrize("share", [0.5, None])
def test_items_begin_tuples_in_proportion_to_their_weights(share):
    y = np.array([0, 0, 0, 1, 1, 1])
    weights = np.array([5.0, 1.0, 0.0, 2.0, 1.0, 1.0])
    for first in (
        TripletSampler(y, 0, weights=weights).draw(20_000)[:, 0],
        PairSampler(y, 0, similar_share=share, weights=weights).draw(20_000)[0][:, 0],
    ):
        found = np.bincount(first, minlength=6) / 20_000
        np.testing.assert_allclose(found, weights / weights.sum(), atol=0.015)


def test_weights_that_leave_nothing_to_draw():
    with pytest.raises(ValueError, match="weights: expected a positive one"):
        TripletSampler([0, 0, 1], weights=[0, 0, 1])
    with pytest.raises(ValueError, match="weights: expected a positive one"):
        PairSampler([0, 0, 1], weights=[0, 0, 1])


TRIPLET = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
PAIR = np.array([[[1.0, 0.0], [0.0, 1.0]]])


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_a_weight_multiplies_a_gradient_step(weight):
    found = OGD(eta=0.1, init="zeros").fit(TRIPLET, sample_weight=[weight])
    expected = 0.1 * weight * np.outer(TRIPLET[0, 0], TRIPLET[0, 1] - TRIPLET[0, 2])
    np.testing.assert_allclose(found.get_bilinear_matrix(), expected)
    sparse = SORS(lam=0.3, eta=0.1, init="zeros").fit(TRIPLET, sample_weight=[weight])
    np.testing.assert_allclose(  # the threshold of a round stays eta lam
        sparse.get_bilinear_matrix(), np.maximum(expected - 0.03, 0)
    )
    v = PAIR[0, 0] - PAIR[0, 1]
    found = RDML(lam=0.1).fit(PAIR, [-1], sample_weight=[weight])
    np.testing.assert_allclose(found.get_mahalanobis_matrix(), 0.1 * weight * np.outer(v, v))


@pytest.mark.parametrize("weight", [0.5, 2.0])
@pytest.mark.parametrize(
    ("model", "heavier", "tuples", "y"),
    [
        (OASIS(0.01), {"C": 0.01}, TRIPLET, None),
        (OASIS(0.1, variant="PA-II"), {"C": 0.1}, TRIPLET, None),
        (PAMetric(0.01, variant="PA-I"), {"C": 0.01}, PAIR, [-1]),
        (PAMetric(0.1, variant="PALS"), {"C": 0.1}, PAIR, [-1]),
        (LEGO(0.1, lower=0.5, upper=3.0), {"eta": 0.1}, PAIR, [-1]),
        (OnlineITML(0.1, lower=0.5, upper=3.0, scale=0.5), {"eta": 0.1}, PAIR, [-1]),
        (ListwiseSoftmax(0.1), {"eta": 0.1}, TRIPLET, None),
        (Loreta(1, eta=0.1), {"eta": 0.1}, TRIPLET, None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_a_weight_multiplies_the_number_of_the_step(model, heavier, tuples, y, weight):
    found = clone(model).fit(tuples, y, sample_weight=[weight])
    (name, value), *_ = heavier.items()
    expected = clone(model).set_params(**{name: value * weight}).fit(tuples, y)
    np.testing.assert_allclose(found.pair_score(PAIR), expected.pair_score(PAIR))
    assert not np.allclose(found.pair_score(PAIR), clone(model).fit(tuples, y).pair_score(PAIR))


@pytest.mark.parametrize(
    "model", [OASIS(0.1), SORS(1e-3), PAMetric(0.01), PAMetric(0.1, variant="PALS")]
)
def test_weighted_streams(model, wine):
    X, y = wine
    tuples = TripletSampler(y, 0).draw(60)
    model = clone(model).set_params(preprocessor=X)
    plain = clone(model).fit(tuples)
    ones = clone(model).fit(tuples, sample_weight=np.ones(60))
    np.testing.assert_array_equal(ones.pair_score(tuples[:, :2]), plain.pair_score(tuples[:, :2]))
    weights = np.array([1.0, 1.0, 0.0, 2.0, 0.5] * 12)
    found = clone(model).fit(tuples, sample_weight=weights)
    assert found.n_rounds_ == (1 + isinstance(model, PAMetric)) * 48
    one_by_one = clone(model)
    for row, weight in zip(tuples, weights, strict=True):
        if weight:
            one_by_one.partial_fit(row[None], sample_weight=[weight])
    np.testing.assert_allclose(
        found.pair_score(tuples[:, :2]), one_by_one.pair_score(tuples[:, :2]), rtol=1e-9
    )


@pytest.mark.parametrize(
    "model",
    [OASIS(variant="PA"), PAMetric(variant="PA"), POLA(), AdaSORS(), AROMA(), OSLLRGS()],
    ids=lambda model: type(model).__name__,
)
def test_learners_without_weights_say_so(model):
    tuples = TRIPLET if model.natural_tuples == "triplets" else PAIR
    y = None if model.natural_tuples == "triplets" else [-1]
    with pytest.raises(TypeError, match="sample_weight: expected None for"):
        model.fit(tuples, y, sample_weight=[2.0])
    assert not model.__sklearn_is_fitted__()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], "expected 1 numbers"),
        ([-1.0], "got -1"),
        ([0.0], "only zeros"),
        ([np.nan], "nan"),
    ],
)
def test_wrong_weights(weights, message):
    with pytest.raises(ValueError, match=f"sample_weight: .*{message}"):
        OASIS().fit(TRIPLET, sample_weight=weights)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_weights_are_counted_by_the_tuples_given(n):
    # A learner from pairs reads the two triplets as four pairs.
    triplets = np.concatenate([TRIPLET, TRIPLET])
    with pytest.raises(ValueError, match=rf"sample_weight: expected 2 numbers, got .*\({n},\)"):
        PAMetric().fit(triplets, sample_weight=np.ones(n))


# -- one at a time --------------------------------------------------------------------------------


def test_predict_and_score_one(wine, pairs):
    X, y = wine
    (a, b, c), (tuples, labels) = TripletSampler(y, 0).draw(1)[0], pairs
    model = OASIS(preprocessor=X).fit(TripletSampler(y, 1).draw(100))
    assert model.score_one(X[a], X[b]) == pytest.approx(model.pair_score([[a, b]])[0])
    for p, n in ((b, c), (c, b)):
        assert model.predict_one(X[a], X[p], X[n]) == model.predict([[a, p, n]])[0]
    sparse = sp.csr_matrix(X)
    assert model.predict_one(sparse[a], sparse[b], sparse[c]) == model.predict([[a, b, c]])[0]
    metric = PAMetric(0.01, preprocessor=X).fit(tuples, labels)
    predicted = [metric.predict_one(X[i], X[j]) for i, j in tuples[:40]]
    np.testing.assert_array_equal(predicted, metric.predict(tuples[:40]))
    assert set(predicted) == {-1, 1}
    assert metric.predict_one(X[a], X[b], X[c]) == metric.predict([[a, b, c]])[0]
    users = OMTRSL(preprocessor=X).fit(TripletSampler(y, 1).draw(100), tasks=["ann", "bob"] * 50)
    for task in ("ann", "bob"):
        assert users.score_one(X[a], X[b], task) == pytest.approx(
            users.pair_score([[a, b]], task)[0]
        )
        assert users.predict_one(X[a], X[b], X[c], task) == users.predict([[a, b, c]], [task])[0]


def test_predict_one_of_something_wrong():
    with pytest.raises(NotFittedError, match="has not learnt"):
        OASIS().predict_one([1.0], [1.0], [0.0])
    model = OASIS().learn_one([1.0, 0.0], [1.0, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="expected 2 features"):
        model.score_one([1.0], [1.0])


# -- thresholds -----------------------------------------------------------------------------------


def rates(similar, accepted):
    return accepted[similar].mean(), (~accepted)[~similar].mean()


@pytest.fixture(scope="module")
def distances():
    rng = np.random.default_rng(0)
    similar = rng.random(200) < 0.4
    return np.round(rng.gamma(2, 1 + ~similar), 1), similar  # with ties


def at_distances(values):
    """A metric on the line, and pairs at these squared distances."""
    roots = np.sqrt(values)
    return Mahalanobis(np.eye(1)), np.stack([np.zeros_like(roots), roots], axis=1)[:, :, None]


@pytest.mark.parametrize("min_rate", [0.0, 0.3, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("criterion", ["max_tpr", "max_tnr"])
def test_the_best_rate_where_the_other_is_kept(criterion, min_rate, distances):
    values, similar = distances
    model, P = at_distances(values)
    model.calibrate_threshold(P, np.where(similar, 1, -1), criterion, min_rate=min_rate)
    wanted = 0 if criterion == "max_tpr" else 1
    found = rates(similar, model.predict(P) == 1)
    assert found[1 - wanted] >= min_rate
    possible = [rates(similar, values <= t) for t in [-1.0, *np.unique(values)]]
    best = max(r[wanted] for r in possible if r[1 - wanted] >= min_rate)
    assert found[wanted] == pytest.approx(best)
    others = [r[1 - wanted] for r in possible if r[wanted] >= best - 1e-12]
    assert found[1 - wanted] == pytest.approx(max(others))


@pytest.mark.parametrize("beta", [0.2, 1.0, 3.0])
def test_the_best_f_beta(beta, distances):
    values, similar = distances
    model, P = at_distances(values)
    model.calibrate_threshold(P, np.where(similar, 1, -1), "f_beta", beta=beta)
    found = fbeta_score(similar, model.predict(P) == 1, beta=beta)
    best = max(fbeta_score(similar, values <= t, beta=beta) for t in np.unique(values))
    assert found == pytest.approx(best)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"criterion": "max_tpr"}, "min_rate: expected a number from 0 to 1 .* got None"),
        ({"criterion": "max_tnr", "min_rate": 1.5}, "min_rate: expected .* got 1.5"),
        ({"min_rate": 0.5}, "min_rate: expected None with criterion='accuracy', got 0.5"),
        ({"criterion": "f1", "beta": 2.0}, "beta: expected 1 with criterion='f1', got 2.0"),
        ({"criterion": "f_beta", "beta": -1.0}, "beta: expected a number >= 0"),
        ({"criterion": "best"}, "criterion: expected one of 'accuracy'"),
    ],
)
def test_criteria_that_are_refused(given, message, distances):
    model, P = at_distances(distances[0])
    with pytest.raises(ValueError, match=message):
        model.calibrate_threshold(P, np.where(distances[1], 1, -1), **given)


@pytest.mark.parametrize("criterion", ["max_tpr", "max_tnr", "balanced_accuracy"])
def test_rates_need_both_kinds_of_pairs(criterion):
    model, P = at_distances(np.array([1.0, 2.0]))
    given = {} if criterion == "balanced_accuracy" else {"min_rate": 0.5}
    with pytest.raises(ValueError, match="y: expected similar and dissimilar pairs"):
        model.calibrate_threshold(P, [1, 1], criterion, **given)


@pytest.mark.parametrize(
    "model",
    [PAMetric(0.01), LEGO(), ITML(max_iter=5, tol=1e3), RCA()],
    ids=lambda model: type(model).__name__,
)
def test_a_threshold_that_is_set(model, wine, pairs, tmp_path):
    X, (P, y) = wine[0], pairs
    model = clone(model).set_params(preprocessor=X)
    model = (model.fit_pairs if hasattr(model, "fit_pairs") else model.fit)(P, y)
    middle = float(np.median(model.pair_distance(P)))
    assert model.set_threshold(middle) is model
    assert model.threshold_ == middle
    expected = np.where(model.pair_distance(P) <= middle, 1, -1)
    np.testing.assert_array_equal(model.predict(P), expected)
    np.testing.assert_array_equal(model.decision_function(P) >= 0, expected == 1)
    assert model.score(P, y) == np.mean(expected == y)
    model.save(tmp_path / "m.safetensors")
    loaded = simstream.load(tmp_path / "m.safetensors").set_params(preprocessor=X)
    assert loaded.threshold_ == middle
    assert loaded.score(P, y) == model.score(P, y)
    for wrong, error in (("1", TypeError), (None, TypeError), (np.nan, ValueError)):
        with pytest.raises(error, match="threshold: expected"):
            model.set_threshold(wrong)
    assert model.threshold_ == middle


def test_roots_of_distances(wine, pairs):
    X, (P, y) = wine[0], pairs
    model = PAMetric(0.01, preprocessor=X).fit(P, y)
    metric = model.get_metric()
    np.testing.assert_allclose(
        model.pair_distance(P[:5], squared=False), [metric(X[i], X[j]) for i, j in P[:5]]
    )
    np.testing.assert_allclose(model.pair_distance(P), model.pair_distance(P, squared=False) ** 2)


def test_a_metric_takes_rows_of_matrices(wine, pairs):
    X, (P, y) = wine[0], pairs
    for model in (PAMetric(0.01, preprocessor=X).fit(P, y), OASIS().fit(X[:3][None])):
        metric = model.get_metric()
        assert metric(X[:1], X[1:2]) == metric(X[0], X[1])
        with pytest.raises(ValueError, match="expected one dimension"):
            metric(X[:2], X[2:4])
    metric = PAMetric(0.01, preprocessor=X).fit(P, y).get_metric()
    assert metric(X[0], X[1], squared=True) == pytest.approx(metric(X[0], X[1]) ** 2)


# -- scorers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision", "accuracy", "f1", None])
@pytest.mark.parametrize(
    "model",
    [PAMetric(0.01), ITML(max_iter=5, tol=1e3, random_state=0), RCA()],
    ids=["PAMetric", "ITML", "RCA"],
)
@pytest.mark.parametrize("as_vectors", [False, True])
def test_scorers_of_pairs(model, scoring, as_vectors, wine, pairs):
    X, (P, y) = wine[0], pairs
    model = clone(model) if as_vectors else clone(model).set_params(preprocessor=X)
    tuples = X[P] if as_vectors else P
    found = cross_val_score(model, tuples, y, scoring=scoring, cv=2, error_score="raise")
    assert np.isfinite(found).all()
    if scoring == "roc_auc":
        half = len(y) // 2
        fitted = clone(model).fit(tuples[:half], y[:half])
        scores = -fitted.pair_distance(tuples[half:])
        by_scorer = get_scorer("roc_auc")(fitted, tuples[half:], y[half:])
        assert by_scorer == pytest.approx(roc_auc_score(y[half:], scores))


def test_rca_calibrates_on_the_pairs_it_learns_from(wine, pairs):
    X, (P, y) = StandardScaler().fit_transform(wine[0]), pairs
    model = RCA().fit(X[P], y)
    distances, similar = model.pair_distance(X[P]), np.asarray(y) > 0
    best = max(np.mean((distances <= t) == similar) for t in distances)
    assert model.score(X[P], y) == pytest.approx(best)
    assert model.fit_pairs(X[P][similar], y[similar]).score(X[P][similar], y[similar]) == 1.0
    with pytest.raises(NotFittedError, match="no threshold"):
        model.fit(X, wine[1]).threshold_  # noqa: B018


def test_pair_learners_are_classifiers(wine, pairs):
    X, (P, y) = wine[0], pairs
    model = PAMetric(0.01, preprocessor=X)
    assert is_classifier(model)
    with pytest.raises(NotFittedError):
        model.classes_  # noqa: B018
    np.testing.assert_array_equal(model.fit(P, y).classes_, [-1, 1])
    assert not is_classifier(OASIS())


def test_a_batch_learner_decides_pairs_where_it_has_seen_some(wine, pairs):
    X, y = wine
    model = ITML(max_iter=5, tol=1e3, random_state=0, preprocessor=X).fit(*pairs)
    assert is_classifier(model)
    assert model.predict(pairs[0]).shape == pairs[1].shape
    model.fit(X, y)
    assert not is_classifier(model)
    for name in ("predict", "score", "decision_function", "classes_"):
        assert not hasattr(model, name)
    assert not hasattr(LMNN(), "predict")
    with pytest.raises(ValueError, match="LMNN learns from labels only"):
        LMNN().fit(X[pairs[0]], pairs[1])


@pytest.mark.parametrize("labels", [[-1, 1], [0, 1], [False, True]])
@pytest.mark.parametrize("kind", ["rows", "ids", "keys"])
def test_fit_takes_pairs_however_they_are_labelled(kind, labels, wine, pairs):
    X, _ = wine
    P, y = pairs
    names = np.array([f"wine-{row:03}" for row in range(len(X))])
    items, given = {
        "rows": (X, P),
        "ids": (simstream.Items(X, ids=names), names[P]),
        "keys": (lambda keys: X[np.searchsorted(names, keys)], names[P]),
    }[kind]
    options = {"gamma": 1.0, "lower": 5.0, "upper": 50.0, "max_iter": 20, "tol": 1e3}
    model = ITML(**options, preprocessor=items).fit(given, np.array(labels)[(y > 0).astype(int)])
    expected = ITML(**options).fit_pairs(X[P], y)
    np.testing.assert_allclose(
        model.get_mahalanobis_matrix(), expected.get_mahalanobis_matrix(), rtol=1e-8, atol=1e-10
    )
    assert is_classifier(model)


def test_items_that_could_be_pairs_are_floats(wine, pairs):
    X, _ = wine
    counts, y = np.round(10 * X[:, :2]).astype(int), wine[1] > 0
    with pytest.raises(ValueError, match=r"looks like pairs.*have to be floats"):
        LMNN(preprocessor=X).fit(counts, y)
    assert RCA(preprocessor=X[:, :2]).fit(counts.astype(float), y).n_features_in_ == 2


def test_chunklets_after_pairs(wine, pairs):
    X, y = wine
    model = RCA(preprocessor=X).fit_pairs(*pairs)
    assert is_classifier(model)
    assert not is_classifier(model.fit_chunklets(X, y))
    assert not hasattr(model, "classes_")


def test_grid_search_over_pairs(wine, pairs):
    X, (P, y) = wine[0], pairs
    grid = GridSearchCV(PAMetric(preprocessor=X), {"C": [1e-3, 1e-2]}, scoring="roc_auc", cv=2)
    grid.fit(P, y)
    assert np.isfinite(grid.best_score_)
    assert grid.best_estimator_.preprocessor is X


# -- preprocessors --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        ITML(max_iter=5, tol=1e3, random_state=0),
        LMNN(max_iter=3, tol=1e3),
        RCA(),
        MCML(max_iter=2, tol=1e3),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, lambda X: X.__getitem__], ids=["array", "function"])
def test_labelled_rows_are_looked_up(model, kind, wine):
    X, y = wine
    rows = np.arange(len(X))[::-1]
    expected = clone(model).fit(X[rows], y[rows])
    found = clone(model).set_params(preprocessor=kind(X)).fit(rows, y[rows])
    np.testing.assert_array_equal(found.transform(rows), expected.transform(X[rows]))
    np.testing.assert_array_equal(found.transform(X), expected.transform(X))


def test_from_labels_looks_rows_up(wine):
    X, y = wine
    rows = np.arange(0, len(X), 2)
    for items in (X, sp.csr_matrix(X), X.__getitem__):
        model = FromLabels(PAMetric(0.01, preprocessor=items), n_tuples=100, random_state=0)
        plain = FromLabels(PAMetric(0.01), n_tuples=100, random_state=0).fit(X[rows], y[rows])
        model.fit(rows, y[rows])
        np.testing.assert_array_equal(model.predict(rows), plain.predict(X[rows]))
        np.testing.assert_allclose(model.transform(rows), plain.transform(X[rows]), rtol=1e-6)


def test_from_labels_checks_the_items_once(wine, monkeypatch):
    X, y = wine
    n_checked = []
    sides = comparisons._checked_sides
    monkeypatch.setattr(
        comparisons, "_checked_sides", lambda *args: n_checked.append(0) or sides(*args)
    )
    model = FromLabels(PAMetric(0.01, preprocessor=X), n_tuples=50, random_state=0)
    model.fit(np.arange(100), y[:100])
    before = len(n_checked)
    for _ in range(3):
        model.predict([100, 101])
    assert len(n_checked) == before


def test_a_fit_that_fails_leaves_from_labels_as_it_was(wine):
    X, y = wine
    model = FromLabels(OASIS(), n_tuples=50, random_state=0).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="class"):
        model.fit(X[:, :5], np.zeros(len(y)))  # nothing to tell apart
    assert model.n_features_in_ == X.shape[1]
    np.testing.assert_array_equal(model.predict(X), before)
    model = FromLabels(OASIS(), n_tuples=50)
    with pytest.raises(ValueError, match="class"):
        model.fit(X, np.zeros(len(y)))
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("model", [LEGO(), OnlineITML(), ITML(gamma=1.0, max_iter=5, tol=1e3)])
def test_a_function_has_no_collection_to_take_targets_from(model, wine, pairs):
    X, _ = wine
    V, y = X[pairs[0]], pairs[1]
    expected = clone(model).fit(V, y).get_mahalanobis_matrix()
    found = clone(model).set_params(preprocessor=X.__getitem__).fit(V, y)
    np.testing.assert_array_equal(found.get_mahalanobis_matrix(), expected)


def test_single_pairs_beside_a_function(wine):
    X, _ = wine
    model = LEGO(lower=1.0, upper=5.0, preprocessor=X.__getitem__).learn_one(X[0], X[1], 1)
    expected = LEGO(lower=1.0, upper=5.0).learn_one(X[0], X[1], 1)
    np.testing.assert_array_equal(model.get_mahalanobis_matrix(), expected.get_mahalanobis_matrix())
    with pytest.raises(ValueError, match="lower, upper: expected both"):
        LEGO(preprocessor=X.__getitem__).learn_one(X[0], X[1], 1)


@pytest.mark.parametrize("kind", ["pairs", "triplets"])
def test_functions_fetch_the_items_of_tuples(kind, wine, pairs):
    X, labels = wine
    table = {f"wine-{row:03}": x for row, x in enumerate(X)}
    asked = []

    def fetch(names):
        asked.append(list(names))
        return np.array([table[name] for name in names])

    names = np.array(sorted(table))
    if kind == "pairs":
        model, tuples, y = PAMetric(0.01), *pairs
    else:
        model, tuples, y = OASIS(), TripletSampler(labels, 0).draw(100), None
    found = clone(model).set_params(preprocessor=fetch).fit(names[tuples], y)
    expected = clone(model).set_params(preprocessor=X).fit(tuples, y)
    assert asked[0] == sorted({*names[tuples].ravel()})  # each of them once
    np.testing.assert_allclose(
        found.pair_score(names[tuples[:, :2]]), expected.pair_score(tuples[:, :2])
    )


@pytest.mark.parametrize(
    ("preprocessor", "X", "error", "message"),
    [
        (
            np.eye(3),
            [0, 3],
            ValueError,
            "row numbers: expected 0 to 2, rows of preprocessor, got 3",
        ),
        (np.eye(3), [0.5, 1.0], TypeError, "row numbers: expected integers"),
        ((np.eye(3), np.eye(3)), [0, 1], ValueError, "expected items of one space"),
        (
            lambda keys: np.eye(3)[:1],
            [0, 1],
            ValueError,
            "expected one row for each of 2 keys, got 1",
        ),
    ],
)
def test_rows_that_cannot_be_looked_up(preprocessor, X, error, message):
    with pytest.raises(error, match=message):
        RCA(preprocessor=preprocessor).fit(X, [0, 0])


def test_lists_and_streams_need_items():
    with pytest.raises(TypeError, match="preprocessor: expected items here, got a function"):
        OASIS(preprocessor=np.eye(3).__getitem__).prepare()


# -- first matrices -------------------------------------------------------------------------------


def test_first_matrices_of_itml(wine, pairs):
    X, (P, y) = wine[0], pairs
    named = X[np.unique(P)]
    options = {"max_iter": 20, "tol": 1e3, "preprocessor": X}
    found = ITML(init="covariance", **options).fit_pairs(P, y)
    given = ITML(init=np.linalg.inv(np.cov(named.T)), **options).fit_pairs(P, y)
    np.testing.assert_allclose(
        found.get_mahalanobis_matrix(), given.get_mahalanobis_matrix(), rtol=1e-6, atol=1e-9
    )
    drawn = [ITML(init="random", random_state=s, **options).fit_pairs(P, y) for s in (0, 0, 1)]
    first, same, other = (m.get_mahalanobis_matrix() for m in drawn)
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)
    assert np.linalg.eigvalsh(first)[0] > 0
    flat = np.column_stack([X, X[:, 0]])
    with pytest.raises(
        ValueError, match="init: expected items with a covariance that has an inverse"
    ):
        ITML(init="covariance", preprocessor=flat).fit_pairs(P, y)
    with pytest.raises(ValueError, match="init: expected one of 'identity'"):
        LMNN(init="random").fit(*wine)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_first_matrix_of_mcml(wine):
    X, y = wine
    flat = np.column_stack([X, X[:, 0]])
    found = MCML(init="covariance", max_iter=2, tol=1e3).fit(flat, y)
    given = MCML(init=np.linalg.pinv(np.cov(flat.T)), max_iter=2, tol=1e3).fit(flat, y)
    np.testing.assert_allclose(
        found.get_mahalanobis_matrix(), given.get_mahalanobis_matrix(), rtol=1e-5, atol=1e-8
    )


# -- reading changes nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [OASIS(), SORS(), PAMetric(0.01), LEGO(), OSLLRGS(), SDCA(random_state=0), OMTRSL(), Dot()],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("moved", [lambda m: m, lambda m: pickle.loads(pickle.dumps(m)), copy.copy])
def test_reading_changes_no_attribute(model, moved, wine):
    X, y = wine
    tuples = TripletSampler(y, 0).draw(50)
    model = moved(clone(model).set_params(preprocessor=X).fit(tuples))
    before = dict(vars(model))
    model.predict(tuples)
    model.score(tuples)
    model.pair_score(tuples[:, :2])
    after = vars(model)
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_a_copy_reads_what_it_has_learnt_itself(wine):
    X, y = wine
    tuples = TripletSampler(y, 0).draw(50)
    model = OASIS(preprocessor=X).fit(tuples[:20])
    model.predict(tuples)
    other = copy.deepcopy(model).partial_fit(tuples[20:30])
    model.partial_fit(tuples[30:40])
    shallow = copy.copy(model)
    for one, expected in ((model, tuples[30:40]), (other, tuples[20:30]), (shallow, tuples[30:40])):
        fresh = OASIS(preprocessor=X).fit(tuples[:20]).partial_fit(expected)
        np.testing.assert_array_equal(
            one.pair_score(tuples[:, :2]), fresh.pair_score(tuples[:, :2])
        )


# -- clones and pickles ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items", [np.eye(4), sp.eye_array(4, format="csr"), (np.eye(4), np.eye(4))]
)
def test_clones_share_the_items(items):
    start = np.eye(4)
    model = OASIS(C=0.5, init=start, preprocessor=items)
    cloned = clone(model)
    assert cloned.preprocessor is items
    assert cloned.init is not start
    np.testing.assert_array_equal(cloned.init, start)
    assert cloned.C == 0.5
    assert clone(FromLabels(model)).learner.preprocessor is items
    assert clone(Mahalanobis(start, preprocessor=items)).preprocessor is items


def test_pickles_carry_the_items_and_files_do_not(wine, tmp_path):
    X, y = wine
    tuples = TripletSampler(y, 0).draw(50)
    model = OASIS(preprocessor=X).fit(tuples)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).preprocessor, X)
    small = pickle.dumps(clone(model).set_params(preprocessor=None))
    assert len(small) < X.nbytes
    model.save(tmp_path / "m.safetensors")
    assert simstream.load(tmp_path / "m.safetensors").preprocessor is None


# -- mAP@k ----------------------------------------------------------------------------------------


def test_map_at_k_by_all_relevant_items():
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0]])
    relevant = np.array([[1, 0, 1, 1, 1]])
    wanted = {"relevant": (1 + 2 / 3) / 3, "all": (1 + 2 / 3) / 4, "hits": (1 + 2 / 3) / 2}
    for normalizer, expected in wanted.items():
        found = metrics.ranking_report_from_scores(scores, relevant, k=3, normalizer=normalizer)
        assert found["mAP@3"] == pytest.approx(expected)
        assert found["mAP"] == pytest.approx((1 + 2 / 3 + 3 / 4 + 4 / 5) / 4)
    with pytest.raises(ValueError, match="normalizer: expected one of 'relevant', 'all', 'hits'"):
        metrics.ranking_report_from_scores(scores, relevant, normalizer="trec")
