"""The batch learners as estimators: scikit-learn's checks, identities, bad input, saving."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, minmax_scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import simstream
import simstream_repro.reference as ref
from simstream import ITML, LDA, LMNN, MCML, NCA, RCA, PairSampler

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LEARNERS = [
    ITML(random_state=0),
    LDA(),
    LMNN(k=1, max_iter=50),
    MCML(max_iter=20),
    NCA(max_iter=20, random_state=0),
    RCA(),
]
every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=lambda m: type(m).__name__)


@parametrize_with_checks(LEARNERS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return minmax_scale(X), y


def labelled_pairs(y, n, seed=0):
    return PairSampler(y, seed).draw_distinct(n)


# -- every learner -----------------------------------------------------------------------------------


@every_learner
def test_the_metric_reads_the_same_in_every_way(learner, wine):
    X, y = wine
    model = clone(learner).fit(X, y).set_params(preprocessor=X)
    M, L = model.get_mahalanobis_matrix(), model.components_
    np.testing.assert_allclose(L.T @ L, M, atol=1e-10 * np.abs(M).max())
    P, _ = labelled_pairs(y, 50)
    V = X[P[:, 0]] - X[P[:, 1]]
    expected = np.einsum("ij,jk,ik->i", V, M, V)
    np.testing.assert_allclose(model.pair_distance(P), expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(model.pair_distance(X[P]), expected, rtol=1e-8, atol=1e-12)
    E = model.transform(X)
    np.testing.assert_allclose(((E[P[:, 0]] - E[P[:, 1]]) ** 2).sum(axis=1), expected, rtol=1e-8)
    assert model.get_metric()(X[0], X[1]) == pytest.approx(
        np.sqrt(-model.score_items(X[:1], X[1:2])[0, 0])
    )
    assert np.linalg.eigvalsh(M)[0] >= -1e-10 * np.abs(M).max()
    found = model.search(X, X, k=2)
    assert (found.indices[:, 0] == np.arange(len(X))).mean() > 0.98  # equal items may come first
    assert len(model.get_feature_names_out()) == E.shape[1]


@every_learner
def test_saved_and_loaded(learner, wine, tmp_path):
    X, y = wine
    model = clone(learner).fit(X, y)
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    for name in ("history_", "n_iter_", "converged_", "objective_", "dual_", "gamma_"):
        if hasattr(model, name):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    if isinstance(model, ITML):
        assert again.threshold_ == model.threshold_
    with pytest.raises(NotFittedError):
        clone(learner).save(tmp_path / "never")


@every_learner
def test_neighbours_get_better_than_euclidean(learner):
    X, y = load_wine(return_X_y=True)  # raw: one feature has nearly all the variance
    X = X / X.max()
    split = np.arange(len(X)) % 2 == 0
    knn = KNeighborsClassifier(3)
    euclidean = knn.fit(X[split], y[split]).score(X[~split], y[~split])
    longer = {LMNN: {"max_iter": 1000}, NCA: {"n_components": 2}}.get(type(learner), {})
    model = clone(learner).set_params(**longer).fit(X[split] * 30, y[split])
    learnt = knn.fit(model.transform(X[split] * 30), y[split])
    assert learnt.score(model.transform(X[~split] * 30), y[~split]) > euclidean + 0.05


def test_in_a_pipeline_with_a_grid_search(wine):
    X, y = wine
    pipeline = make_pipeline(StandardScaler(), LMNN(max_iter=30), KNeighborsClassifier())
    grid = GridSearchCV(pipeline, {"lmnn__mu": [0.1, 0.9], "lmnn__k": [1, 3]}, cv=2).fit(X, y)
    assert grid.best_score_ > 0.9
    assert grid.best_estimator_.score(X, y) > 0.9


@every_learner
def test_bad_input_is_refused_before_anything_changes(learner, wine):
    X, y = wine
    model = clone(learner).fit(X, y)
    before = model.transform(X)
    nan = X.copy()
    nan[3, 2] = np.nan
    for call, message in (
        (lambda: model.fit(nan, y), "NaN"),
        (lambda: model.fit(X[:5], y[:4]), "inconsistent numbers of samples"),
        (lambda: model.fit(X, np.linspace(0, 1, len(y))), "Unknown label type"),
        (lambda: model.transform(X[:, :3]), "expecting 13 features"),
        (lambda: model.pair_distance(X[None, :2, :3]), "expected 13 features"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        model.fit(sp.csr_matrix(X), y)
    np.testing.assert_array_equal(model.transform(X), before)


@pytest.mark.filterwarnings("ignore:The number of unique classes")
@every_learner
def test_classes_of_one_item_each_say_nothing(learner, wine):
    X, _ = wine
    with pytest.raises(ValueError, match=r"of one item each|with 1 \(|similar pairs"):
        clone(learner).fit(X[:10], np.arange(10))


def test_thresholds():
    X, y = load_wine(return_X_y=True)
    X = minmax_scale(X)
    P, labels = labelled_pairs(y, 500)
    model = LMNN(max_iter=30, preprocessor=X).fit(X, y)
    with pytest.raises(NotFittedError, match="calibrate_threshold"):
        model.predict_pairs(P)
    model.calibrate_threshold(P, labels)
    assert np.mean(model.predict_pairs(P) == labels) > 0.8
    with pytest.raises(NotFittedError, match="calibrate_threshold"):  # it was for another matrix
        model.fit(X, y).threshold_  # noqa: B018


def test_a_fit_that_has_not_converged_warns_its_caller(wine):
    X, y = wine
    P, labels = labelled_pairs(y, 50)
    itml = ITML(max_iter=1, tol=0, random_state=0, preprocessor=X)
    for call in (
        lambda: LMNN(max_iter=1).fit(X, y),
        lambda: MCML(max_iter=1).fit(X, y),
        lambda: itml.fit(X, y),
        lambda: itml.fit_pairs(P, labels),
    ):
        with pytest.warns(ConvergenceWarning, match="has not converged after 1 iter") as caught:
            call()
        assert caught[0].filename == __file__


def test_reports(wine, capsys):
    X, y = wine
    for learner in (
        ITML(random_state=0, max_iter=5, tol=0),
        LMNN(max_iter=5),
        MCML(max_iter=5, tol=0),
    ):
        seen = []
        model = learner.set_params(
            callback=lambda i, f, seen=seen: seen.append((i, f)), verbose=True
        )
        model.fit(X, y)
        assert [i for i, _ in seen] == [1, 2, 3, 4, 5]
        np.testing.assert_array_equal([f for _, f in seen], model.history_[-5:])
        assert capsys.readouterr().out.count("iteration") == 5
        assert (model.n_iter_, model.converged_) == (5, False)

        def stop(iteration, objective):
            if iteration == 2:
                raise KeyboardInterrupt

        before = model.transform(X)
        with pytest.raises(KeyboardInterrupt):
            model.set_params(callback=stop, verbose=False).fit(X, y)
        np.testing.assert_array_equal(model.transform(X), before)


# -- ITML ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0, np.inf])
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_itml_equals_eager_sweeps(wine, gamma, block_size):
    X, y = wine
    P, labels = labelled_pairs(y, 120)
    model = ITML(
        gamma, lower=0.4, upper=1.5, max_iter=3, tol=0, block_size=block_size, preprocessor=X
    ).fit_pairs(P, labels)
    V = X[P[:, 0]] - X[P[:, 1]]
    A, dual, slack = ref.itml(np.eye(13), V, labels, 0.4, 1.5, gamma, 3)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), A, atol=1e-9 * np.abs(A).max())
    np.testing.assert_allclose(model.dual_, dual, atol=1e-9 * dual.max())
    np.testing.assert_allclose(model.slack_, slack, rtol=1e-8)


def test_itml_inverse_is_the_dual_sum_and_the_solution_does_not_depend_on_the_order(wine):
    X, y = wine
    G = np.random.default_rng(0).normal(size=(13, 13))
    start = np.eye(13) + 0.1 * G @ G.T
    P, labels = labelled_pairs(y, 200)
    options = {"lower": 0.4, "upper": 1.5, "init": start, "max_iter": 5000, "tol": 1e-9}
    model = ITML(1.0, **options, preprocessor=X).fit_pairs(P, labels)
    assert model.converged_
    assert model.dual_.min() >= 0
    assert np.linalg.eigvalsh(model.get_mahalanobis_matrix())[0] > 0
    inverse = (
        np.linalg.inv(start)
        + (model.differences_.T * (model.labels_ * model.dual_)) @ model.differences_
    )
    np.testing.assert_allclose(np.linalg.inv(model.get_mahalanobis_matrix()), inverse, atol=1e-8)
    other = ITML(1.0, **options, preprocessor=X).fit_pairs(P[::-1], labels[::-1])
    np.testing.assert_allclose(
        other.get_mahalanobis_matrix(), model.get_mahalanobis_matrix(), atol=1e-5
    )
    # At the solution every constraint holds with its slack, and those with a price hold exactly.
    distances = model.pair_distance(P)
    assert (labels * (model.slack_ - distances)).min() > -1e-6
    priced = model.dual_ > 1e-6
    np.testing.assert_allclose(distances[priced], model.slack_[priced], atol=1e-5)


def test_itml_with_an_infinite_gamma_satisfies_feasible_pairs_exactly():
    X = np.vstack([np.eye(4), np.zeros((1, 4))])
    P, labels = [[0, 4], [1, 4], [2, 4]], [1, -1, 1]
    model = ITML(np.inf, lower=0.25, upper=3.0, max_iter=2000, tol=1e-12, preprocessor=X)
    np.testing.assert_allclose(model.fit_pairs(P, labels).pair_distance(P), [0.25, 3.0, 0.25])


def test_itml_tunes_gamma(wine):
    X, y = wine
    model = ITML("auto", random_state=0, max_iter=50).fit(X, y)
    np.testing.assert_allclose(model.tuning_[:, 0], 10.0 ** np.arange(-4, 5))
    assert model.gamma_ == model.tuning_[np.argmax(model.tuning_[:, 1]), 0]
    assert 0.85 < model.tuning_[:, 1].max() <= 1
    again = ITML("auto", random_state=0, max_iter=50).fit(X, y)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    with pytest.raises(ValueError, match="tuning needs labels"):
        ITML("auto", preprocessor=X).fit_pairs([[0, 1]], [1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_itml_draws_balanced_pairs_unless_told_otherwise():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 50
    X = rng.normal(size=(50, 3))[y] + 0.1 * rng.normal(size=(200, 3))
    options = {"n_constraints": 400, "random_state": 0, "max_iter": 1}
    assert np.sum(ITML(**options).fit(X, y).labels_ > 0) == 200
    assert np.sum(ITML(similar_share=0.25, **options).fit(X, y).labels_ > 0) == 100
    uniform = ITML(similar_share=None, **options).fit(X, y)
    assert np.sum(uniform.labels_ > 0) < 20  # three pairs in 199 are similar
    with pytest.raises(ValueError, match="similar_share: expected at most 1"):
        ITML(similar_share=2.0, **options).fit(X, y)


def test_itml_from_triplets_is_itml_from_their_pairs(wine):
    X, _ = wine
    T = [[0, 1, 100], [50, 51, 150]]
    P, labels = [[0, 1], [0, 100], [50, 51], [50, 150]], [1, -1, 1, -1]
    options = {"lower": 0.4, "upper": 1.5, "preprocessor": X}
    np.testing.assert_array_equal(
        ITML(**options).fit_pairs(T).transform(X), ITML(**options).fit_pairs(P, labels).transform(X)
    )


def test_itml_leaves_out_pairs_of_equal_items(wine):
    X = wine[0].copy()
    X[5] = X[9]
    model = ITML(lower=0.4, upper=1.5, preprocessor=X).fit_pairs([[5, 9], [0, 1]], [1, -1])
    assert len(model.differences_) == 1
    with pytest.raises(ValueError, match="only pairs of equal ones"):
        model.fit_pairs([[5, 9]], [1])


# -- LMNN, MCML, RCA ---------------------------------------------------------------------------------------


def test_lmnn_warns_of_small_classes(wine):
    X, y = wine
    with pytest.warns(
        UserWarning, match=r"1 of 3 classes have no more than k = 50 members: 2 \(48\)"
    ):
        LMNN(k=50, max_iter=200, tol=10.0).fit(X, y)
    lonely = y.copy()
    lonely[:3] = [9, 8, 8]
    with pytest.warns(UserWarning, match=r"2 of 5 classes .* k = 3 members: 8 \(2\), 9 \(1\)"):
        model = LMNN(tol=1.0).fit(X, lonely)
    assert model.objective_ < model.history_[0]
    with pytest.raises(ValueError, match="classes: expected at least two items in some class"):
        LMNN().fit(X[:5], np.arange(5))


def test_lmnn_checks_its_parameters(wine):
    X, y = wine
    for parameters in (
        {"k": 0},
        {"mu": 1.5},
        {"init": "zeros"},
        {"init": np.eye(14)},
        {"tol": -1},
        {"solver": "newton"},
        {"impostors": "kd-tree"},
    ):
        with pytest.raises(ValueError, match=next(iter(parameters))):
            LMNN(**parameters).fit(X, y)


def test_lmnn_is_monotone_and_can_learn_a_projection(wine):
    X, y = wine
    model = LMNN(max_iter=200).fit(X, y)
    assert (np.diff(model.history_) <= 0).all()
    assert model.objective_ == model.history_[-1] < model.history_[0]
    flat = LMNN(init=np.eye(13)[:2], max_iter=200).fit(X, y)
    assert flat.transform(X).shape == (len(X), 2)
    assert flat.effective_dimension_ == 2


def test_mcml_does_not_stop_where_a_longer_step_would_help(wine):
    """The optimum does not depend on the units of the items."""
    X, y = wine
    X = StandardScaler().fit_transform(X)
    reached = [MCML(max_iter=300).fit(X * s, y).objective_ for s in (1.0, 1e-4)]
    assert reached[1] == pytest.approx(reached[0], abs=0.05)


def test_one_class_is_nothing_to_tell_apart(wine):
    X, _ = wine
    for learner in (ITML(), LDA(), LMNN(), MCML(), NCA()):
        with pytest.raises(ValueError, match="two classes"):
            learner.fit(X, np.zeros(len(X)))


def test_pairs_given_to_fit_are_noticed(wine):
    X, y = wine
    P, labels = labelled_pairs(y, 50)
    for learner in (ITML(), RCA()):
        found = clone(learner).set_params(preprocessor=X).fit(P, labels)
        expected = clone(learner).fit_pairs(X[P], labels)
        named = found.pair_distance(P)
        if isinstance(learner, RCA):  # targets of ITML are percentiles over all items given
            np.testing.assert_allclose(named, expected.pair_distance(X[P]))
        again = clone(learner).set_params(preprocessor=X).fit_pairs(P, labels)
        np.testing.assert_array_equal(named, again.pair_distance(P))
    with pytest.raises(ValueError, match="labels only"):
        LMNN(preprocessor=X).fit(P, labels)


@every_learner
def test_a_failed_fit_changes_nothing(learner, wine):
    X, y = wine
    model = clone(learner).fit(X, y)
    before = model.transform(X)
    with pytest.raises(ValueError):  # noqa: PT011
        model.fit(X[:6, :3] * 1e200, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(model.transform(X), before)
    never = clone(learner)
    with pytest.raises(ValueError):  # noqa: PT011
        never.fit(X[:6, :3] * 1e200, [0, 0, 0, 1, 1, 1])
    assert not hasattr(never, "n_features_in_")


def test_rca_does_not_care_about_the_order_inside_pairs(wine):
    X, y = wine
    P, labels = labelled_pairs(y, 200)
    swapped = np.where(np.arange(200)[:, None] % 2, P, P[:, ::-1])
    one, other = (
        RCA(n_components=3, preprocessor=X).fit_pairs(Q, labels).get_mahalanobis_matrix()
        for Q in (P, swapped)
    )
    np.testing.assert_allclose(one, other, rtol=1e-9)
    with pytest.raises(ValueError, match="n_components"):
        RCA(n_components=50).fit(X, y)


def test_mcml_is_monotone_and_ignores_lonely_items(wine):
    X, y = wine
    model = MCML().fit(X, y)
    lonely = np.append(y, 9)
    far = np.vstack([X, X[0] + 100.0])  # so far away that it does not take part in any p(j|i)
    with_one = MCML().fit(far, lonely)
    assert with_one.objective_ == pytest.approx(model.objective_, rel=1e-2)
    assert (np.diff(model.history_) <= 0).all()
    assert 0 <= model.objective_ < model.history_[0]
    with pytest.raises(ValueError, match="semi-definite"):
        MCML(init=-np.eye(13)).fit(X, y)


def test_rca_is_invariant_to_linear_maps_and_whitens(wine):
    X, y = wine
    T = np.random.default_rng(0).normal(size=(13, 13))
    plain, mapped = RCA(regularization=0).fit(X, y), RCA(regularization=0).fit(X @ T, y)
    P, _ = labelled_pairs(y, 100)
    distances = [m.pair_distance(Z[P]) for m, Z in ((plain, X), (mapped, X @ T))]
    np.testing.assert_allclose(*distances, rtol=1e-8)
    E = plain.transform(X)
    inner = np.concatenate([E[y == c] - E[y == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(inner.T @ inner / len(X), np.eye(13), atol=1e-9)
    one_class = RCA(regularization=0).fit(X[y == 1], y[y == 1])
    covariance = np.cov(X[y == 1], rowvar=False, bias=True)
    np.testing.assert_allclose(
        one_class.get_mahalanobis_matrix() @ covariance, np.eye(13), atol=1e-7
    )


def test_rca_from_chunklets_and_pairs(wine):
    X, y = wine
    from_labels = RCA().fit(X, y).get_mahalanobis_matrix()
    np.testing.assert_allclose(
        RCA().fit_chunklets(X, y).get_mahalanobis_matrix(), from_labels, rtol=1e-9
    )
    some = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    part = RCA().fit(X[some >= 0], y[some >= 0]).get_mahalanobis_matrix()
    np.testing.assert_allclose(
        RCA().fit_chunklets(X, some).get_mahalanobis_matrix(), part, rtol=1e-9
    )
    P, labels = labelled_pairs(y, 500)
    V = (X[P[:, 0]] - X[P[:, 1]])[labels > 0]
    C = V.T @ V / (4 * len(V))
    C += 1e-9 * np.trace(C) / 13 * np.eye(13)
    from_pairs = RCA(preprocessor=X).fit_pairs(P, labels).get_mahalanobis_matrix()
    np.testing.assert_allclose(from_pairs, np.linalg.inv(C), rtol=1e-7)
    model = RCA().fit(X, y)
    with pytest.raises(ValueError, match="one integer for each"):
        model.fit_chunklets(X[:, :4], y[:5])
    assert model.transform(X).shape == X.shape  # a failed fit changes nothing
    with pytest.raises(ValueError, match="similar pairs"):
        RCA(preprocessor=X).fit_pairs([[0, 100]], [-1])


def test_rca_reduces_to_the_directions_that_tell_classes_apart(wine):
    X, y = wine
    model = RCA(n_components=2).fit(X, y)
    E = model.transform(X)
    inner = np.concatenate([E[y == c] - E[y == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(inner.T @ inner / len(X), np.eye(2), atol=1e-7)
    ratios = np.linalg.eigvals(
        np.linalg.solve(
            sum(np.cov(X[y == c], rowvar=False, bias=True) * np.sum(y == c) for c in range(3))
            / len(X),
            np.cov(X, rowvar=False, bias=True),
        )
    ).real
    got = np.sort(np.linalg.eigvalsh(np.cov(E, rowvar=False, bias=True)))[::-1]
    np.testing.assert_allclose(got, np.sort(ratios)[::-1][:2], rtol=1e-6)


def test_rca_refuses_what_it_cannot_whiten(wine):
    X, y = wine
    with pytest.raises(ValueError, match="variance inside chunklets"):
        RCA().fit(np.repeat(X[:3], 4, axis=0), np.repeat([0, 1, 2], 4))
    flat = X.copy()
    flat[:, 3] = 0
    with pytest.raises(ValueError, match="regularization"):
        RCA(regularization=0).fit(flat, y)
    with pytest.warns(UserWarning, match="is singular: items vary in 12 of 13") as caught:
        assert np.isfinite(RCA().fit(flat, y).transform(flat)).all()
    assert caught[0].filename == __file__
    RCA(shrinkage="auto").fit(flat, y)  # nothing to warn about
    RCA(regularization=1e-3).fit(flat, y)
