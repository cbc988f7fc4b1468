"""The cosine in the learnt space: its formula, what ranks without a new index, files, and bad input."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.datasets import load_digits

import simstream
from cases import CASES, dense, items, triplets
from pair_cases import PAIR_CASES
from simstream import (
    ITML,
    LMNN,
    MCML,
    OASIS,
    OMTRSL,
    RCA,
    SDCA,
    Bilinear,
    Dot,
    Euclidean,
    FromLabels,
    LowRank,
    Mahalanobis,
    MultiTaskLMNN,
    Tasks,
)
from simstream.cli import main
from simstream.metrics import knn_predict, precision_at_k
from simstream.search import ExactIndex, item_vectors, query_vectors
from simstream.similarity import bilinear, cosine
from simstream.similarity.cosine import Cosine

BILINEAR = [case for case in CASES if case.kind]
DISTANCES = [case for case in PAIR_CASES if case.kind]


def plain_cosine(Q, X, M, centre=0.0):
    """By the definition, pair by pair: P is the positive part of the symmetric part of M."""
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    P = sum(value * np.outer(v, v) for value, v in zip(values, vectors.T, strict=True) if value > 0)
    scores = np.zeros((len(Q), len(X)))
    for i, q in enumerate(np.asarray(Q, float) - centre):
        for j, x in enumerate(np.asarray(X, float) - centre):
            lengths = np.sqrt(q @ P @ q) * np.sqrt(x @ P @ x)
            scores[i, j] = q @ P @ x / lengths if lengths > 1e-12 else 0.0
    return scores


def indefinite(d=6, seed=0, skew=1.0):
    """A matrix with eigenvalues of both signs, not symmetric, whose positive part has several directions."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    skewed = rng.normal(size=(d, d))
    return Q @ np.diag(np.linspace(3, -2, d)) @ Q.T + skew * (skewed - skewed.T)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# -- the formula -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_bilinear(rng, dtype, layout):
    M, X = indefinite(), rng.normal(size=(30, 6))
    model = Bilinear(M, dtype=dtype, normalise=True, preprocessor=layout(X))
    expected, atol = plain_cosine(X, X, M), 1e-12 if dtype == "float64" else 3e-6
    scores = model.score_items(layout(X), layout(X))
    assert scores.dtype == dtype
    np.testing.assert_allclose(scores, expected, atol=atol)
    T = np.array([rng.permutation(30)[:3] for _ in range(50)])
    np.testing.assert_allclose(model.pair_score(T[:, :2]), expected[T[:, 0], T[:, 1]], atol=atol)
    margins = expected[T[:, 0], T[:, 1]] - expected[T[:, 0], T[:, 2]]
    np.testing.assert_allclose(model.triplet_margin(T), margins, atol=2 * atol)
    assert model.get_metric()(X[1], X[2]) == pytest.approx(expected[1, 2], abs=atol)
    found = model.search(layout(X), layout(X), k=4)
    np.testing.assert_allclose(found.scores, -np.sort(-expected, axis=1)[:, :4], atol=atol)
    np.testing.assert_array_equal(dense(model.get_bilinear_matrix()), M.astype(dtype))


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("centre", [None, np.linspace(-1, 2, 6)])
def test_distance(rng, layout, centre):
    L, X = rng.normal(size=(4, 6)), rng.normal(size=(25, 6))
    M = L.T @ L  # of rank 4
    plain = Mahalanobis(M, preprocessor=layout(X))
    model = Mahalanobis(M, centre=centre, normalise=True, preprocessor=layout(X))
    expected = plain_cosine(X, X, M, 0.0 if centre is None else centre)
    np.testing.assert_allclose(model.score_items(layout(X), layout(X)), expected, atol=1e-12)
    asked = model.transform_query(layout(X))
    moved = X if centre is None else X - centre
    np.testing.assert_allclose(
        (asked @ moved.T) * model.item_scale(layout(X)), expected, atol=1e-12
    )
    # Distances, and what is decided by them, are those of the metric.
    pairs, y = np.array([[0, 1], [2, 3], [4, 5]]), [1, -1, 1]
    np.testing.assert_array_equal(model.pair_distance(pairs), plain.pair_distance(pairs))
    np.testing.assert_array_equal(model.transform(layout(X)), plain.transform(layout(X)))
    assert model.get_metric()(X[0], X[1]) == plain.get_metric()(X[0], X[1])
    assert model.calibrate_threshold(pairs, y).threshold_ == (
        plain.calibrate_threshold(pairs, y).threshold_
    )
    np.testing.assert_array_equal(model.predict_pairs(pairs), plain.predict_pairs(pairs))
    assert not hasattr(plain, "transform_query")


@pytest.mark.parametrize("m", [2, 5])  # fewer and more columns than half of the features
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_low_rank(rng, m, layout):
    left, right, X = rng.normal(size=(7, m)), rng.normal(size=(7, m)), rng.normal(size=(20, 7))
    model = LowRank(left, right, normalise=True)
    expected = plain_cosine(X, X, left @ right.T)
    np.testing.assert_allclose(model.score_items(layout(X), layout(X)), expected, atol=1e-12)
    mapped = model.transform_query(layout(X)) @ model.transform_items(layout(X)).T
    np.testing.assert_allclose(mapped, expected, atol=1e-12)


@pytest.mark.parametrize("case", BILINEAR + DISTANCES, ids=lambda c: c.name)
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_every_online_learner(case, layout):
    X, T = layout(items()), triplets()
    plain = case.make(preprocessor=X).fit(T)
    model = case.make(preprocessor=X, normalise=True).fit(T)
    is_distance = hasattr(plain, "pair_distance")
    M = plain.get_mahalanobis_matrix() if is_distance else dense(plain.get_bilinear_matrix())
    expected = plain_cosine(items(), items(), M)
    np.testing.assert_allclose(model.score_items(X, X), expected, atol=1e-9)
    # It changes what is read, not what is learnt, and may be set at any time.
    assert (model.n_updates_, model.average_loss_) == (plain.n_updates_, plain.average_loss_)
    before = plain.score_items(X, X)
    np.testing.assert_array_equal(
        plain.set_params(normalise=True).score_items(X, X), model.score_items(X, X)
    )
    np.testing.assert_array_equal(plain.set_params(normalise=False).score_items(X, X), before)
    np.testing.assert_allclose(
        model.similarity_.score_items(X, X), model.score_items(X, X), atol=1e-9
    )
    if hasattr(model, "transform_items"):
        got = model.transform_query(X) @ model.transform_items(X).T
    else:
        got = dense(model.transform_query(X)) @ items().T * model.item_scale(X)
    np.testing.assert_allclose(got, model.score_items(X, X), atol=1e-9)
    model.partial_fit(T[:50])
    later = plain.partial_fit(T[:50])
    M = later.get_mahalanobis_matrix() if is_distance else dense(later.get_bilinear_matrix())
    np.testing.assert_allclose(
        model.score_items(X, X), plain_cosine(items(), items(), M), atol=1e-9
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "learner",
    [
        ITML(max_iter=3),
        LMNN(max_iter=3),
        MCML(max_iter=3),
        RCA(regularization=0.1),
        MultiTaskLMNN(max_iter=3),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_batch_learners_measure_from_the_mean_of_their_items(learner, tmp_path):
    X, y = load_digits(return_X_y=True)
    X, y = X[:200, X[:200].std(axis=0) > 1] / 16, y[:200]
    model = clone(learner).set_params(normalise=True).fit(X, y)
    np.testing.assert_allclose(model.centre_, X.mean(axis=0), atol=1e-12)
    M = model.get_mahalanobis_matrix()
    expected = plain_cosine(X[:9], X, M, X.mean(axis=0))
    np.testing.assert_allclose(model.score_items(X[:9], X), expected, atol=1e-9)
    np.testing.assert_allclose(model.similarity_.score_items(X[:9], X), expected, atol=1e-9)
    model.save(tmp_path / "model")
    again = simstream.load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_items(X[:9], X), model.score_items(X[:9], X))
    model.similarity_.save(tmp_path / "similarity")
    again = simstream.load(tmp_path / "similarity")
    np.testing.assert_allclose(again.score_items(X[:9], X), expected, atol=1e-9)
    index = ExactIndex()
    index.add(range(200), X)
    found = index.view().scaled(model).search(model.transform_query(X[:9]), k=200)
    for row in range(9):
        np.testing.assert_allclose(
            found.scores[row], expected[row, found.ids[row].astype(int)], atol=1e-4
        )


def test_pairs_have_the_mean_of_their_items_each_counted_once():
    X = np.arange(12.0).reshape(6, 2) ** 2
    pairs = [[0, 1], [0, 2], [0, 5]]
    model = RCA(regularization=0.1, preprocessor=X).fit_pairs(pairs, [1, 1, -1])
    np.testing.assert_array_equal(model.centre_, X[[0, 1, 2, 5]].mean(axis=0))
    vectors = RCA(regularization=0.1).fit_pairs(X[np.array(pairs)], [1, 1, -1])
    assert vectors.centre_.shape == (2,)


def test_sdca_and_tasks(rng):
    X, T = items(), triplets(n=100)
    model = SDCA(lam=0.1, normalise=True, random_state=0, preprocessor=X).fit(T)
    expected = plain_cosine(X, X, model.get_bilinear_matrix())
    np.testing.assert_allclose(model.score_items(X, X), expected, atol=1e-12)
    users = ["ann", "bob"] * 50
    tasks = OMTRSL(0.3, 1.0, normalise=True, preprocessor=X).fit(T, tasks=users)
    similarity = tasks.similarity_
    assert isinstance(similarity, Tasks)
    for user in ("ann", "bob", "a stranger"):
        expected = plain_cosine(X, X, tasks.get_bilinear_matrix(user))
        for one in (tasks, similarity, tasks.for_task(user)):
            by = {} if isinstance(one, Bilinear) else {"task": user}
            np.testing.assert_allclose(one.score_items(X, X, **by), expected, atol=1e-9)
            asked = one.transform_query(X, **by) @ X.T * one.item_scale(X, **by)
            np.testing.assert_allclose(asked, expected, atol=1e-9)
        margins = expected[T[:, 0], T[:, 1]] - expected[T[:, 0], T[:, 2]]
        np.testing.assert_allclose(tasks.triplet_margin(T, [user] * 100), margins, atol=1e-9)


def test_dot_is_the_plain_cosine(rng):
    X = rng.normal(size=(12, 5))
    for rows in (X, sp.csr_matrix(X)):
        model = Dot(normalise=True, preprocessor=rows).fit([[0, 1, 2]])
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        np.testing.assert_allclose(model.score_items(rows, rows), unit @ unit.T, atol=1e-12)


# -- learners with a centre --------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("item_term", [False, True])
@pytest.mark.parametrize("many", [2000, 3])  # features up to which eigenvectors are found
def test_learnt_around_a_centre(layout, item_term, many, monkeypatch, tmp_path):
    """Lengths are those of x - m, and the item term is left out."""
    monkeypatch.setattr(bilinear, "MANY_FEATURES", many)
    X, T = items() + 1.0, triplets()
    rows = layout(X)
    model = OASIS(C=0.01, centre="auto", item_term=item_term, normalise=True, preprocessor=rows)
    model.fit(T)
    M, m = dense(model.get_bilinear_matrix()), X.mean(axis=0)
    if many < 16 and layout is sp.csr_matrix:
        S, Z = (M + M.T) / 2, X - m
        squares = np.einsum("ij,jk,ik->i", Z, S, Z)
        least = 0.1 * (Z**2).sum(axis=1) * np.trace(M) / len(M)
        scale = np.maximum(squares, least) ** -0.5
        expected = scale[:, None] * (Z @ S @ Z.T) * scale
    else:
        expected = plain_cosine(X, X, M, m)
    np.testing.assert_allclose(model.score_items(rows, rows), expected, atol=1e-9)
    asked = dense(model.transform_query(rows))
    got = (asked @ X.T - (asked @ m)[:, None]) * model.item_scale(rows)
    np.testing.assert_allclose(got, expected, atol=1e-9)
    got = query_vectors(model, rows) @ item_vectors(model, rows).T
    np.testing.assert_allclose(dense(got), expected, atol=1e-9)
    index = ExactIndex()
    index.add(range(40), rows)
    found = index.view().scaled(model).search(model.transform_query(rows), k=40)
    assert found.scores.shape == (40, 40)
    for row in range(40):
        np.testing.assert_allclose(
            found.scores[row], expected[row, found.ids[row].astype(int)], atol=1e-4
        )
    model.similarity_.save(tmp_path / "similarity")
    again = simstream.load(tmp_path / "similarity")
    np.testing.assert_allclose(again.score_items(rows, rows), expected, atol=1e-9)


def test_queries_and_items_with_means_of_their_own(rng):
    M, Q, X = indefinite(), rng.normal(size=(5, 6)) + 2, rng.normal(size=(20, 6)) - 1
    a, b = Q.mean(axis=0), X.mean(axis=0)
    model = Bilinear(M, centre=(a, b), normalise=True)
    expected = plain_cosine(Q - a, X - b, M)
    np.testing.assert_allclose(model.score_items(Q, X), expected, atol=1e-12)
    np.testing.assert_allclose(
        query_vectors(model, Q) @ item_vectors(model, X).T, expected, atol=1e-12
    )
    index = ExactIndex()
    index.add(range(20), X)
    found = index.view().scaled(model).search(model.transform_query(Q), k=20)
    for row in range(5):
        np.testing.assert_allclose(
            found.scores[row], expected[row, found.ids[row].astype(int)], atol=1e-5
        )


# -- large sparse matrices ---------------------------------------------------------------------------


def test_a_large_sparse_matrix_is_divided_by_its_own_lengths(rng, monkeypatch):
    """Without eigenvectors: q'Sx / sqrt(q'Sq x'Sx), S the symmetric part, x'Sx at least a tenth of usual."""
    monkeypatch.setattr(bilinear, "MANY_FEATURES", 20)
    M = np.eye(30) + 0.1 * rng.normal(size=(30, 30)) * (rng.random((30, 30)) < 0.3)
    M[0, 0] = -5.0  # items of feature 0 have a negative square
    X = rng.normal(size=(40, 30)) * (rng.random((40, 30)) < 0.2)
    X[3] = 0
    X[4] = np.eye(30)[0]
    S, plain = (M + M.T) / 2, np.trace(M) / 30 * (X**2).sum(axis=1)
    squares = np.maximum(np.einsum("ij,jk,ik->i", X, S, X), 0.1 * plain)
    scale = np.array([0 if square == 0 else square**-0.5 for square in squares])
    model = Bilinear(sp.csr_matrix(M), normalise=True)
    rows = sp.csr_matrix(X)
    expected = scale[:, None] * (X @ S @ X.T) * scale
    np.testing.assert_allclose(model.score_items(rows, rows), expected, atol=1e-9)
    np.testing.assert_allclose(model.item_scale(rows), scale, rtol=1e-12)
    asked = model.transform_query(rows)
    assert sp.issparse(asked)
    np.testing.assert_allclose(asked.toarray() @ X.T * scale, expected, atol=1e-9)
    got = query_vectors(model, rows) @ item_vectors(model, rows).T
    np.testing.assert_allclose(dense(got), expected, atol=1e-9)


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_a_sparse_matrix_around_a_centre(rng, layout):
    B, m, X = rng.normal(size=(6, 6)), rng.normal(size=6), rng.normal(size=(15, 6))
    S = B.T @ B + np.eye(6)
    space, rows = Cosine(matrix=sp.csr_matrix(S), centre=m), layout(X)
    expected = plain_cosine(X, X, S, m)
    np.testing.assert_allclose(space.score_all(rows, rows), expected, atol=1e-12)
    np.testing.assert_allclose(space.score_rows(rows, rows), 1.0, atol=1e-12)
    got = space.unit(rows, "queries") @ space.unit(rows).T
    np.testing.assert_allclose(dense(got), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_rows", [1, 40])
def test_a_large_sparse_matrix_is_not_copied_at_once(n_rows, dtype, rng, monkeypatch):
    monkeypatch.setattr(cosine, "_MANY_ENTRIES", 1)
    monkeypatch.setattr(cosine, "_FIRST_CALLS", 2)
    M = sp.random(50, 50, density=0.3, format="csr", random_state=0, dtype=dtype)
    X = sp.random(60, 50, density=0.2, format="csr", random_state=1)
    S, dense_rows = M.toarray().astype("float64"), X.toarray()
    S = (S + S.T) / 2
    plain = M.diagonal().mean() * (dense_rows**2).sum(axis=1)
    squares = np.maximum(np.einsum("ij,jk,ik->i", dense_rows, S, dense_rows), 0.1 * plain)
    expected = dense_rows @ S @ dense_rows.T / np.sqrt(np.outer(squares, squares))
    space = Cosine(matrix=M)
    np.testing.assert_allclose(space.scale(X), squares**-0.5, rtol=1e-12)
    first, size = space.transform(X[:n_rows]), len(pickle.dumps(space))
    for call in range(1, 4):
        np.testing.assert_array_equal(space.transform(X[:n_rows]).toarray(), first.toarray())
        assert (space._transposed is None) == (n_rows > 32 or call < 2)
    np.testing.assert_allclose(space.score_all(X[:n_rows], X), expected[:n_rows], atol=1e-7)
    space.transform(X[:1].toarray())
    np.testing.assert_array_equal(space.transform(X[:n_rows]).toarray(), first.toarray())
    assert len(pickle.dumps(space)) == size


def test_columns_of_a_sparse_matrix_in_any_order():
    # More than a hundred times as many entries in a row of M as in one of X: they are searched.
    M = sp.random(300, 300, density=0.9, format="csr", random_state=0)
    X = sp.csr_matrix(([1.0, 2.0], ([0, 0], [3, 7])), shape=(1, 300))
    other = M.copy()
    for i in range(300):
        some = slice(*other.indptr[i : i + 2])
        other.indices[some], other.data[some] = other.indices[some][::-1], other.data[some][::-1]
    other.has_sorted_indices = False
    before = other.indices.copy()
    assert Cosine(matrix=other).scale(X) == Cosine(matrix=M).scale(X)
    np.testing.assert_array_equal(other.indices, before)


def test_thousands_of_sparse_features_take_no_eigenvectors(monkeypatch):
    X = sp.random(60, 5000, density=0.01, format="csr", random_state=0)
    T = simstream.TripletSampler([0, 1, 2] * 20, 0).draw(300)
    model = OASIS(normalise=True, preprocessor=X).fit(T)
    monkeypatch.setattr(np.linalg, "eigh", None)
    scores = model.score_items(X, X)
    np.testing.assert_allclose(np.diag(scores), 1.0, atol=1e-9)


# -- searching ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("k", [5, 200])  # by a short list, and by sorting
def test_numbers_beside_an_index_rank_as_the_model(rng, layout, k):
    M, X = indefinite(), rng.normal(size=(300, 6)) * rng.uniform(0.1, 10, (300, 1))
    X[11] = 0
    model = Bilinear(M, normalise=True)
    index = ExactIndex()
    index.add(range(300), layout(X))
    plain = index.search(X[:20], k)
    scaled = index.view().scaled(model)
    found, wanted = scaled.search(model.transform_query(X[:20]), k), model.search(X[:20], X, k)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
    assert (found.ids == wanted.indices).mean() > 0.99  # the rest are near ties in float32
    again = index.search(X[:20], k)  # the index itself is as it was
    np.testing.assert_array_equal(again.ids, plain.ids)


def test_numbers_follow_items_that_come_and_go(rng):
    M, X = indefinite(), rng.normal(size=(200, 6))
    model, index = Bilinear(M, normalise=True), ExactIndex()
    index.add(range(100), X[:100])
    first = index.view().scaled(model)
    index.remove([3])
    index.add(range(100, 150), X[100:150])
    counted = []
    item_scale = Bilinear.item_scale

    class Counting(Bilinear):
        def item_scale(self, items):
            counted.append(len(items))
            return item_scale(self, items)

    second = index.view().scaled(model, first)
    same = index.view().scaled(model)
    asked = model.transform_query(X[150:])
    for view in (second, same):
        found = view.search(asked, k=149)
        names = [name for name in range(150) if name != 3]
        assert sorted(found.ids[0]) == names
        expected = plain_cosine(X[150:], X, M)
        for row in range(50):
            np.testing.assert_allclose(
                found.scores[row], expected[row, found.ids[row].astype(int)], atol=1e-6
            )
    np.testing.assert_array_equal(first.search(asked, 1).ids.shape, (50, 1))
    assert 3 in first
    counting = Counting(M, normalise=True)
    before = index.view().scaled(counting)
    index.add([999], X[199:])
    index.view().scaled(counting, before)
    assert counted == [150, 1]
    index.remove([*range(4, 50), 999])  # more than a quarter: the rows move
    moved = index.view().scaled(counting, before)
    assert counted[2:] == [103]
    assert set(moved.search(asked, 103).ids[0]) == {0, 1, 2, *range(50, 150)}


def test_vectors_for_any_index(rng):
    M, X = indefinite(), rng.normal(size=(40, 6))
    for model in (
        Bilinear(M, normalise=True),
        LowRank(M[:, :2], M[:, 2:4], normalise=True),
        Mahalanobis(M.T @ M, normalise=True, centre=np.ones(6)),
    ):
        vectors, asked = item_vectors(model, X), query_vectors(model, X)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
        np.testing.assert_allclose(asked @ vectors.T, model.score_items(X, X), atol=1e-12)
    with pytest.raises(
        TypeError, match="leaves items as they are, got LowRank; index its item_vectors"
    ):
        ExactIndex().view().scaled(LowRank(M[:, :2], M[:, 2:4], normalise=True))
    with pytest.raises(ValueError, match="unit_vectors: expected a similarity with normalise=True"):
        Bilinear(M).unit_vectors(X)
    with pytest.raises(ValueError, match="side: expected one of 'items', 'queries', got 'left'"):
        Bilinear(M, normalise=True).unit_vectors(X, "left")
    np.testing.assert_array_equal(Bilinear(M).item_scale(X), np.ones(40))


# -- edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_vectors_of_no_length_score_zero(layout):
    """A zero vector, one in a direction that the model ignores, and one of negative length by M itself."""
    M = np.diag([2.0, 0.0, -1.0])
    X = np.array([[1.0, 1.0, 1.0], [0, 0, 0], [0, 3.0, 0], [0, 0, 1e-3], [1e-100, 0, 0]])
    model = Bilinear(M, normalise=True)
    scores = model.score_items(layout(X), layout(X))
    np.testing.assert_array_equal(scores[[0, 4]], [[1, 0, 0, 0, 1], [1, 0, 0, 0, 1]])
    np.testing.assert_array_equal(scores[1:4], 0.0)
    np.testing.assert_array_equal(model.item_scale(layout(X))[1:4], 0.0)
    np.testing.assert_array_equal(dense(model.transform_query(layout(X)))[1:4], 0.0)


def test_a_matrix_without_a_positive_direction_scores_zero(rng):
    X = rng.normal(size=(5, 3))
    for model in (
        Bilinear(-np.eye(3), normalise=True),
        Bilinear(np.zeros((3, 3)), normalise=True),
        LowRank(np.eye(3), -np.eye(3), normalise=True),
        Mahalanobis(np.zeros((3, 3)), normalise=True),
    ):
        np.testing.assert_array_equal(model.score_items(X, X), 0.0)


def test_parallel_vectors_tie_and_go_to_the_lower_row(rng):
    directions = rng.normal(size=(10, 8))
    X = (directions[None] * rng.uniform(0.1, 9, (7, 10, 1))).reshape(70, 8)
    for dtype in (np.float32, np.float64):
        for M in (indefinite(8), np.outer(X[0], X[0])):  # the second knows one direction only
            found = Bilinear(M.astype(dtype), normalise=True).search(X[:9].astype(dtype), X, k=70)
            same = found.scores[:, 1:] == found.scores[:, :-1]
            assert same.sum() >= 9 * 10 * 6 * 0.9
            assert (np.diff(found.indices, axis=1) > 0)[same].all()


def test_bad_input(rng):
    X = rng.normal(size=(8, 4))
    rectangular = Bilinear(np.ones((4, 3)), normalise=True)
    with pytest.raises(ValueError, match="normalise: expected queries and items with the same"):
        rectangular.score_items(X, X[:, :3])
    pair = (X, X[:, :3])
    with pytest.raises(ValueError, match="normalise=True: expected one feature space"):
        OASIS(init="zeros", normalise=True, preprocessor=pair).fit([[0, 1, 2]])
    model = OASIS(init="zeros", preprocessor=pair).fit([[0, 1, 2]])
    with pytest.raises(ValueError, match="with the same features, got 4 and 3"):
        model.set_params(normalise=True).score_items(*pair)
    model.set_params(normalise=False).score_items(*pair)
    with pytest.raises(ValueError, match="normalise: expected one of False, True, got 'yes'"):
        OASIS(normalise="yes", preprocessor=X).fit([[0, 1, 2]])
    with pytest.raises(ValueError, match="normalise: expected one of False, True, got 1"):
        RCA(normalise=1).fit(X, [0, 0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(ValueError, match="normalise: expected one of False, True, got 'yes'"):
        Bilinear(np.eye(4), normalise="yes").score_items(X, X)
    with pytest.raises(ValueError, match="centre: expected 4 features, got 3"):
        Mahalanobis(np.eye(4), normalise=True, centre=np.ones(3)).score_items(X, X)
    with pytest.raises(ValueError, match="centre"):
        Mahalanobis(np.eye(4), normalise=True, centre=[1, 2, np.nan, 0]).score_items(X, X)
    with pytest.raises(ValueError, match="items: expected 4 features, got 3"):
        Bilinear(np.eye(4), normalise=True).item_scale(X[:, :3])


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BILINEAR + DISTANCES, ids=lambda c: c.name)
def test_saved_with_the_model(case, tmp_path):
    X, T = items(), triplets()
    model = case.make(preprocessor=X, normalise=True).fit(T)
    model.save(tmp_path / "m")
    model.similarity_.save(tmp_path / "s")
    for name in ("m", "s"):
        again = simstream.load(tmp_path / name)
        assert again.normalise is True
        np.testing.assert_allclose(again.score_items(X, X), model.score_items(X, X), atol=1e-9)


def test_files_without_it_are_not_normalised(tmp_path, monkeypatch):
    X, T = items(), triplets()
    model = OASIS(preprocessor=X).fit(T)
    params = OASIS.get_params
    with monkeypatch.context() as patch:  # as an earlier version wrote it
        patch.setattr(
            OASIS,
            "get_params",
            lambda self, deep=True: {
                k: v for k, v in params(self, deep).items() if k != "normalise"
            },
        )
        model.save(tmp_path / "old")
    assert "normalise" not in simstream.read_header(tmp_path / "old")["model"]["params"]
    again = simstream.load(tmp_path / "old")
    assert again.normalise is False
    np.testing.assert_array_equal(again.score_items(X, X), model.score_items(X, X))


# -- where it is the default -------------------------------------------------------------------------


def test_from_labels():
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    train, test = slice(0, 900), slice(900, None)
    made = {
        normalise: FromLabels(OASIS(), n_tuples=20_000, random_state=0, normalise=normalise).fit(
            X[train], y[train]
        )
        for normalise in ("auto", True, False)
    }
    assert [model.learner_.normalise for model in made.values()] == [True, True, False]
    assert made["auto"].learner.normalise is False  # the original is left alone
    auto, plain = made["auto"], made[False]
    assert auto.score(X[test], y[test]) > plain.score(X[test], y[test]) + 0.01
    first = {
        name: precision_at_k(model.learner_, X[test], y[test], k=1) for name, model in made.items()
    }
    assert first["auto"] > first[False] + 0.03
    expected = knn_predict(auto.learner_, X[test], X[train], y[train], n_neighbors=5)
    np.testing.assert_array_equal(auto.predict(X[test]), expected)
    distance = FromLabels(simstream.PAMetric(), n_tuples=100, random_state=0).fit(
        X[train], y[train]
    )
    assert distance.learner_.normalise is False
    with pytest.raises(ValueError, match="normalise: expected 'auto' or False for Euclidean"):
        FromLabels(Euclidean(), normalise=True).fit(X[train], y[train])
    with pytest.raises(
        ValueError, match="normalise: expected one of 'auto', False, True, got 'no'"
    ):
        FromLabels(OASIS(), normalise="no").fit(X[train], y[train])


@pytest.fixture
def files(tmp_path):
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.savez(tmp_path / "items.npz", items=X[:300], labels=y[:300])
    rows = simstream.TripletSampler(y[:300], 0).draw(200)
    np.savetxt(tmp_path / "triplets.csv", rows, "%d", delimiter=",")
    return tmp_path


def succeed(*arguments):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-n", 100], True),
        (["-n", 100, "--no-normalise"], False),
        (["-n", 100, "-p", "normalise=false"], False),
        (["-n", 100, "-a", "sdca"], True),
        (["-n", 100, "-a", "pametric"], False),
        (["-n", 100, "-a", "pametric", "--normalise"], True),
        (["-a", "rca"], False),
        (["--triplets", "triplets.csv"], False),
        (["--triplets", "triplets.csv", "--normalise"], True),
    ],
)
def test_train(files, monkeypatch, options, expected):
    monkeypatch.chdir(files)
    if "rca" in options:
        options = [*options, "-p", "regularization=0.1"]
    succeed("train", "items.npz", *options, "-o", "model")
    assert simstream.load("model").normalise is expected


def test_evaluate_compares_the_two(files, monkeypatch):
    monkeypatch.chdir(files)
    succeed("train", "items.npz", "-n", 20_000, "-o", "model")
    measured = {}
    for options in ((), ("--normalise",), ("--no-normalise",)):
        printed = succeed("evaluate", "model", "items.npz", "--json", *options).stdout
        measured[options] = json.loads(printed)["results"]["learnt"]
    assert measured[()] == measured["--normalise",]
    assert measured[()]["P@1"] > measured["--no-normalise",]["P@1"]
    again = succeed("train", "items.npz", "--resume", "model", "-n", 30_000, "--no-normalise")
    assert simstream.load("model").normalise is False
    assert again.exit_code == 0
    both = CliRunner().invoke(
        main, ["train", "items.npz", "-o", "x", "--normalise", "-p", "normalise=true"]
    )
    assert both.exit_code == 2
    assert "expected --normalise or --param normalise, got both" in both.stderr
    succeed("train", "items.npz", "-a", "euclidean", "-n", 10, "-o", "plain")
    refused = CliRunner().invoke(main, ["evaluate", "plain", "items.npz", "--normalise"])
    assert refused.exit_code == 2
    assert "not for a model of Euclidean" in refused.stderr
