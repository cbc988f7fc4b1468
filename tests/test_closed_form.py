"""LDA, RCA and the first matrix "lda" beside covariances written out; NCA beside scikit-learn's own."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import sqrtm
from sklearn.base import clone
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.preprocessing import StandardScaler

from simstream import LDA, NCA, OASIS, OGD, RCA, SORS, FromLabels, ListwiseSoftmax, TripletSampler
from simstream.metrics import mean_average_precision


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def many_classes():
    """More classes than features: LDA keeps every direction."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 8
    return rng.normal(size=(8, 4))[y] + rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4)), y


def inside(X, y):
    """Items minus the means of their classes."""
    means = {c: X[y == c].mean(axis=0) for c in set(y.tolist())}
    return X - np.array([means[c] for c in y.tolist()])


def distances(L):
    return ((L[:, None] - L[None]) ** 2).sum(axis=2)


def positive_part(M):
    values, vectors = np.linalg.eigh(M)
    return (vectors * np.maximum(values, 0)) @ vectors.T


# -- LDA -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_components", "shrinkage"), [(None, "auto"), (1, None), (2, 0.3)])
def test_equal_weights_are_scikit_learns_transform(wine, n_components, shrinkage):
    X, y = wine
    theirs = LinearDiscriminantAnalysis(
        solver="eigen", shrinkage=shrinkage, n_components=n_components
    )
    model = LDA(n_components, shrinkage=shrinkage, weights="equal").fit(X, y)
    expected = distances(theirs.fit_transform(X, y))
    np.testing.assert_allclose(distances(model.transform(X)), expected, rtol=1e-8, atol=1e-9)


def test_weights_between_are_a_difference_of_inverses(many_classes):
    X, y = many_classes
    Z = inside(X, y)
    C, T = Z.T @ Z / len(Z), np.cov(X, rowvar=False, bias=True)
    model = LDA(shrinkage=None).fit(X, y)
    expected = np.linalg.inv(C) - np.linalg.inv(T)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), expected, rtol=1e-8)
    ratios = np.sort(np.linalg.eigvals(np.linalg.solve(C, T)).real)[::-1]
    np.testing.assert_allclose(model.ratios_, ratios)


def test_lda_ranks_wine(wine):
    X, y = wine
    half = np.arange(len(y)) % 2 == 0
    plain = mean_average_precision(RCA().fit(X[half], y[half]), X[~half], y[~half])
    assert mean_average_precision(LDA().fit(X[half], y[half]), X[~half], y[~half]) > plain + 0.02


def test_what_lda_refuses(wine):
    X, y = wine
    with pytest.raises(ValueError, match="n_components: expected at most 2"):
        LDA(3).fit(X, y)
    with pytest.raises(ValueError, match="shrinkage"):
        LDA(shrinkage=1.5).fit(X, y)
    with pytest.raises(ValueError, match="shrinkage"):
        LDA(shrinkage="some").fit(X, y)
    with pytest.raises(ValueError, match="weights"):
        LDA(weights="none").fit(X, y)
    flat = X.copy()
    flat[:, 3] = 0
    with pytest.raises(ValueError, match="singular covariance"):
        LDA(shrinkage=None).fit(flat, y)
    LDA().fit(flat, y)


# -- RCA -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_rca_shrinks_as_ledoit_and_wolf_say(wine, scale):
    X, y = wine
    X = X * np.r_[scale, np.ones(12)]
    Z = inside(X, y)
    units = Z.std(axis=0)
    shrunk = LedoitWolf(assume_centered=True).fit(Z / units).covariance_ * np.outer(units, units)
    model = RCA(shrinkage="auto", regularization=0).fit(X, y)
    M = model.get_mahalanobis_matrix()
    np.testing.assert_allclose(M @ shrunk, np.eye(13), atol=1e-9)
    half = RCA(shrinkage=0.5, regularization=0).fit(X, y).get_mahalanobis_matrix()
    C = Z.T @ Z / len(Z)
    np.testing.assert_allclose(half @ ((C + np.diag(np.diag(C))) / 2), np.eye(13), atol=1e-9)


def test_rca_with_weights_is_a_difference_of_inverses(wine):
    X, y = wine
    Z = inside(X, y)
    C, T = Z.T @ Z / len(Z), np.cov(X, rowvar=False, bias=True)
    # The mean of each class takes one deviation: C is too small by (n - 3) / n.
    free = 1 - 3 / len(X)
    root = np.real(sqrtm(np.linalg.inv(C)))
    shares = positive_part(np.eye(13) - np.linalg.inv(root @ T @ root * free))
    model = RCA(weights="between", regularization=0).fit(X, y)
    np.testing.assert_allclose(model.get_mahalanobis_matrix(), root @ shares @ root, atol=1e-8)
    two = RCA(2, weights="between", regularization=0).fit(X, y)
    assert two.effective_dimension_ == 2


def test_rca_from_pairs_knows_the_bias_of_two_items(many_classes):
    """A pair has one free deviation of two: pairs from labels say nearly what labels say."""
    X, y = many_classes
    rng = np.random.default_rng(0)
    similar = np.array(
        [rng.choice(np.flatnonzero(y == c), 2, replace=False) for c in np.repeat(range(8), 4000)]
    )
    pairs = RCA(weights="between", preprocessor=X).fit_pairs(similar, np.ones(len(similar)))
    M = RCA(weights="between").fit(X, y).get_mahalanobis_matrix()
    error = np.linalg.norm(pairs.get_mahalanobis_matrix() / 2 - M) / np.linalg.norm(M)
    assert error < 0.03  # the scale is RCA's own: twice as large from pairs


def test_chunklets_that_are_drawn(wine):
    X, y = wine
    sizes = np.bincount(y)
    kept = np.concatenate([np.flatnonzero(y == c)[: sizes.min()] for c in range(3)])
    whole = RCA(n_chunks=3, chunk_size=int(sizes.min()), random_state=0).fit(X[kept], y[kept])
    np.testing.assert_allclose(
        whole.get_mahalanobis_matrix(), RCA().fit(X[kept], y[kept]).get_mahalanobis_matrix()
    )
    one, same, other = (
        RCA(n_chunks=20, shrinkage="auto", random_state=seed).fit(X, y).get_mahalanobis_matrix()
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    rows, codes = RCA(n_chunks=20, chunk_size=3, random_state=5)._drawn(np.arange(len(y)), y)
    assert len(set(rows.tolist())) == 60
    assert (y[rows].reshape(20, 3) == y[rows].reshape(20, 3)[:, :1]).all()
    np.testing.assert_array_equal(codes, np.repeat(np.arange(20), 3))
    with pytest.raises(ValueError, match="n_chunks: expected at most the 88 chunklets of 2 items"):
        RCA(n_chunks=100).fit(X, y)
    with pytest.raises(ValueError, match="chunk_size: expected at least 2"):
        RCA(n_chunks=3, chunk_size=1).fit(X, y)


def test_unlabelled_items_are_in_no_class(wine):
    X, y = wine
    some = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    np.testing.assert_allclose(
        RCA(2, unlabelled=-1).fit(X, some).get_mahalanobis_matrix(),
        RCA(2).fit_chunklets(X, some).get_mahalanobis_matrix(),
    )
    as_class = RCA(2).fit(X, some).get_mahalanobis_matrix()
    assert not np.allclose(as_class, RCA(2, unlabelled=-1).fit(X, some).get_mahalanobis_matrix())
    with pytest.raises(ValueError, match="other than that of unlabelled"):
        RCA(unlabelled=-1).fit(X, np.full(len(y), -1))


# -- NCA -----------------------------------------------------------------------------------------------


def test_nca_is_scikit_learns(wine):
    X, y = wine
    options = {"n_components": 2, "init": "lda", "max_iter": 200, "random_state": 0}
    theirs = NeighborhoodComponentsAnalysis(**options).fit(X, y)
    model = NCA(**options).fit(X, y)
    expected = distances(theirs.transform(X))
    np.testing.assert_allclose(distances(model.transform(X)), expected, rtol=1e-6, atol=1e-9)
    assert model.n_iter_ == theirs.n_iter_
    assert model.converged_
    L = np.eye(13)[:3]
    started = NCA(3, init=L, max_iter=100).fit(X, y)
    assert started.transform(X).shape == (len(X), 3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_nca_says(wine):
    X, y = wine
    with pytest.raises(ValueError, match="init"):
        NCA(init="zeros").fit(X, y)
    with pytest.raises(ValueError, match="n_components"):
        NCA(14).fit(X, y)
    assert not NCA(max_iter=1).fit(X, y).converged_


# -- the first matrix ----------------------------------------------------------------------------------


def first_matrix(X, T, centre):
    """inv(C) - inv(T) of similar pairs, in the scale of the geometry."""
    V = (X[T[:, 0]] - X[T[:, 1]]) / np.sqrt(2)
    units = np.sqrt(np.mean(V**2, axis=0))
    fit = LedoitWolf(assume_centered=True).fit(V[: len(X)] / units)
    C = V.T @ V / len(V) / np.outer(units, units)
    share = fit.shrinkage_
    C = (1 - share) * C + share * np.trace(C) / len(C) * np.eye(len(C))
    C = C * np.outer(units, units)
    root = np.real(sqrtm(np.linalg.inv(C)))
    total = np.cov(X, rowvar=False, bias=True)
    M = root @ positive_part(np.eye(len(C)) - np.linalg.inv(root @ total @ root)) @ root
    scores = (X - centre) @ M @ X.T
    return M / np.sqrt(np.mean(scores.var(axis=1)))


@pytest.mark.parametrize("centre", [None, "auto"])
@pytest.mark.parametrize("learner", [OASIS(1e-12), OGD(1e-12), ListwiseSoftmax(1e-12)])
def test_the_first_matrix_of_similar_pairs(wine, learner, centre):
    X, y = wine
    T = TripletSampler(y, 0).draw(3000)
    model = learner.set_params(init="lda", centre=centre, preprocessor=X).fit(T)
    expected = first_matrix(X, T, X.mean(axis=0) if centre else 0)
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected, atol=1e-6)


def test_learning_begins_where_classes_differ(wine):
    X, y = wine
    half = np.arange(len(y)) % 2 == 0
    scores = [
        FromLabels(OASIS(0.01, init=init, centre="auto"), n_tuples=500, random_state=0)
        .fit(X[half], y[half])
        .score(X[~half], y[~half])
        for init in ("identity", "lda")
    ]
    assert scores[1] > scores[0]


def test_where_there_is_no_such_first_matrix(wine):
    X, y = wine
    T = TripletSampler(y, 0).draw(100)
    for items, tuples, message in (
        (sp.csr_matrix(X), T, "dense items"),
        (X, T[:5], "at least 10 tuples in the first call"),
        ((X, X[:, :5]), T, "one feature space"),
    ):
        model = OASIS(init="lda", preprocessor=items)
        with pytest.raises(ValueError, match=message):
            model.fit(tuples)
        assert not hasattr(model, "n_features_in_")
    with pytest.raises(ValueError, match="init_scale: expected 1"):
        OASIS(init="lda", init_scale=2.0, preprocessor=X).fit(T)
    for items, message in ((sp.csr_matrix(X), "dense items"), ((X, X[:, :5]), "one feature space")):
        with pytest.raises(ValueError, match=message):
            OASIS(init="lda", preprocessor=items).prepare()


def test_similar_pairs_that_differ_more_than_all_items():
    X = np.random.default_rng(0).normal(size=(30, 4))
    n = np.arange(30)
    T = np.column_stack([n, n + 30, (n + 1) % 30])  # every item and its opposite
    with pytest.raises(
        ValueError, match=r"init='lda': expected similar pairs.*differ less"
    ) as found:
        OASIS(init="lda", preprocessor=np.concatenate([X, -X])).fit(T)
    assert "weights" not in str(found.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("learner", [OASIS(), OGD(), SORS(), ListwiseSoftmax()])
def test_the_first_matrix_waits_for_the_first_triplets(wine, learner, dtype):
    X, y = wine
    T = TripletSampler(y, 0).draw(1000)
    learner = clone(learner).set_params(init="lda", dtype=dtype, preprocessor=X)
    expected = clone(learner).fit(T[:640]).partial_fit(T[640:])
    block = learner.prepare()
    assert not learner.__sklearn_is_fitted__()
    assert block == clone(learner).set_params(init="identity").prepare()
    assert 640 % block == 0
    learner.partial_fit(T[:640])
    assert learner.prepare() == block  # which changes nothing
    learner.partial_fit(T[640:])
    np.testing.assert_array_equal(learner.get_bilinear_matrix(), expected.get_bilinear_matrix())


def test_near_triplets_from_the_first_matrix(wine):
    X, y = wine
    half = np.arange(len(y)) % 2 == 0
    options = {"negatives": "near", "n_tuples": 2000, "random_state": 0}
    model = FromLabels(OASIS(0.01, init="lda", centre="auto"), **options).fit(X[half], y[half])
    assert model.learner_.n_rounds_ == 2000
    assert model.score(X[~half], y[~half]) > 0.9


def test_the_first_matrix_has_no_weights(wine):
    X, y = wine
    T = TripletSampler(y, 0).draw(500)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 500)
    plain, weighted = (
        OASIS(1e-12, init="lda", preprocessor=X).fit(T, sample_weight=given)
        for given in (None, weights)
    )
    np.testing.assert_allclose(
        weighted.get_bilinear_matrix(), plain.get_bilinear_matrix(), atol=1e-8
    )
