"""OSLLR-GS, OMLLR and Loreta: the lazy and factored forms against eager ones, and their identities."""

import contextlib
import pickle
import signal
import threading
import time
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.feature_selection import SelectFromModel

import simstream
import simstream_repro.reference as ref
from cases import items, stream, triplets
from simstream import OGD, OMLLR, OSLLRGS, DivergedError, FromLabels, Loreta
from test_contract import same_model

D = 16
X, T = items(), triplets()
S = stream(X, T)
convert_items = pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix])

# -- eager references ------------------------------------------------------------------------------


osllr_gs, omllr, loreta = ref.osllr_gs, ref.omllr, ref.loreta.last
prox_rows, svt, weighted_average = ref.prox_rows, ref.svt, ref.weighted_average


def osllr_gs_in_w(W, stream, beta, gamma, eta):
    path = [W]
    for t, (x, z) in enumerate(stream, 1):
        e, a, b = eta / np.sqrt(t), -z, x
        if 1 + b @ W @ a > 0:
            H = np.eye(len(W)) - e * (np.outer(a, b) + np.outer(b, a))
            W = H @ W @ H
        n = np.sqrt(np.diag(W))
        f = np.clip(n - e * gamma, 0, beta) / np.where(n > 0, n, 1)
        W = W * np.outer(f, f)
        path.append(W)
    return path


def read(F_path, output, eta):
    """W as OSLLR-GS reads it."""
    if output == "last":
        return F_path[-1] @ F_path[-1].T
    if output == "avg_x":
        F = weighted_average(F_path, eta)
        return F @ F.T
    return weighted_average([F @ F.T for F in F_path], eta)


def frobenius(A):
    return np.sqrt((A**2).sum())


# -- OSLLR-GS --------------------------------------------------------------------------------------


class PrintedGradient(OSLLRGS):
    """With the one of the gradient's two terms that the paper prints."""

    _exact_gradient = False


@convert_items
@pytest.mark.parametrize("output", ["last", "avg_x", "avg_w"])
@pytest.mark.parametrize("gradient", ["exact", "printed"])
@pytest.mark.parametrize(
    ("beta", "gamma", "eta"),
    [(1.0, 1e-3, 1.0), (1.0, 0.05, 0.3), (0.3, 0.02, 0.2), (np.inf, 0.0, 0.05), (2.0, 0.6, 0.2)],
)
def test_lazy_rows_are_the_eager_ones(convert, output, gradient, beta, gamma, eta):
    path = osllr_gs(min(1, beta) * np.eye(D), S, beta, gamma, eta, gradient)
    learner = OSLLRGS if gradient == "exact" else PrintedGradient
    model = learner(beta, gamma, eta, output=output, preprocessor=convert(X))
    W = model.fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(W, read(path, output, eta), rtol=0, atol=1e-9)
    lengths = np.sqrt(np.diag(read(path, output, eta)))
    np.testing.assert_allclose(model.feature_importances_, lengths, rtol=0, atol=1e-7)


@convert_items
@pytest.mark.parametrize("output", ["last", "avg_x", "avg_w"])
def test_rows_that_die_rest_and_live_again(convert, output):
    """Sparse features, a strong threshold: most rows are zero for a while."""
    items_ = items(1, n=60, d=40, density=0.2)
    T_ = triplets(1, n=400, n_items=60)
    path = osllr_gs(np.eye(40), stream(items_, T_), 1.0, 0.1, 0.5)
    zero = np.array([np.linalg.norm(F, axis=1) == 0 for F in path])
    assert 0 < zero[-1].sum() < 40
    assert (zero[:-1] & ~zero[1:]).sum() > 100
    model = OSLLRGS(1.0, 0.1, 0.5, output=output, preprocessor=convert(items_)).fit(T_)
    W = read(path, output, 0.5)
    np.testing.assert_allclose(model.get_bilinear_matrix(), W, rtol=0, atol=1e-9)
    if output == "last":
        np.testing.assert_array_equal(model.feature_importances_ == 0, zero[-1])


@pytest.mark.parametrize("output", ["last", "avg_x", "avg_w"])
@convert_items
def test_float32_items(convert, output):
    single = X.astype(np.float32)
    path = osllr_gs(np.eye(D), stream(single, T), 1.0, 0.01, 0.3)
    model = OSLLRGS(1.0, 0.01, 0.3, output=output, preprocessor=convert(single)).fit(T)
    W = model.get_bilinear_matrix()
    assert W.dtype == np.float32
    np.testing.assert_allclose(W, read(path, output, 0.3), rtol=0, atol=1e-5)


def test_few_columns_start_at_random_and_stay_low_rank():
    model = OSLLRGS(0.7, 0.01, 0.3, n_components=3, output="last", random_state=5, preprocessor=X)
    model.prepare()
    start = model._engine.factor().copy()
    assert start.shape == (D, 3)
    assert np.linalg.norm(start, axis=1).max() <= 0.7 + 1e-12
    path = osllr_gs(start, S, 0.7, 0.01, 0.3)
    model.partial_fit(T)
    np.testing.assert_allclose(model.get_bilinear_matrix(), read(path, "last", 0.3), atol=1e-9)
    assert model.rank_ == 3
    assert model.transform(X).shape == (40, 3)
    wide = clone(model).set_params(output="avg_w").fit(T)
    assert wide.rank_ > 3  # an average of matrices of rank three has a higher rank


@pytest.mark.parametrize("output", ["last", "avg_x", "avg_w"])
def test_zero_is_a_fixed_point(output):
    model = OSLLRGS(init=np.zeros((D, 4)), output=output, preprocessor=X).fit(T)
    np.testing.assert_array_equal(model.get_bilinear_matrix(), 0)
    np.testing.assert_array_equal(model.singular_values_, 0)
    assert model.rank_ == 0
    assert model.average_loss_ == 1.0


@pytest.mark.parametrize("output", ["last", "avg_x", "avg_w"])
def test_rotating_or_padding_the_start_changes_nothing(output):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(D, D)) / 4
    Q = np.linalg.qr(rng.normal(size=(D, D)))[0]
    starts = [start, start @ Q, np.hstack([start, np.zeros((D, 5))])]
    models = [OSLLRGS(0.8, 0.02, 0.3, output=output, init=F, preprocessor=X).fit(T) for F in starts]
    for other in models[1:]:
        np.testing.assert_allclose(
            other.get_bilinear_matrix(), models[0].get_bilinear_matrix(), rtol=0, atol=1e-9
        )


def test_identity_with_more_columns_than_features():
    W = OSLLRGS(n_components=D, preprocessor=X).fit(T).get_bilinear_matrix()
    more = OSLLRGS(n_components=D + 5, preprocessor=X).fit(T)
    np.testing.assert_allclose(more.get_bilinear_matrix(), W, rtol=0, atol=1e-12)
    assert more.transform(X).shape == (40, D + 5)


def test_the_step_in_w_is_the_step_in_x():
    start = prox_rows(np.random.default_rng(3).normal(size=(D, 5)) / 4, 0, 0.8)
    in_w = osllr_gs_in_w(start @ start.T, S, 0.8, 0.02, 0.3)
    model = OSLLRGS(0.8, 0.02, 0.3, init=start, output="last", preprocessor=X)
    for t, W in zip(T, in_w[1:], strict=True):
        now = model.partial_fit(t[None]).get_bilinear_matrix()
        np.testing.assert_allclose(now, W, rtol=0, atol=1e-9)
    average = OSLLRGS(0.8, 0.02, 0.3, init=start, output="avg_w", preprocessor=X).fit(T)
    expected = weighted_average(in_w, 0.3)
    np.testing.assert_allclose(average.get_bilinear_matrix(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("beta", [0.2, 0.6, 1.5])
def test_every_step_keeps_the_ball_and_shortens_rows_by_the_threshold(beta):
    gamma, eta = 0.03, 0.5
    model = OSLLRGS(beta, gamma, eta, output="last", preprocessor=X)
    model.prepare()
    at_the_bound = 0
    for t, (triplet, (x, z)) in enumerate(zip(T, S, strict=True), 1):
        F, e = model._engine.factor(), eta / np.sqrt(t)
        if x @ F @ F.T @ z < 1:
            F = F + e * (np.outer(z, x) + np.outer(x, z)) @ F
        expected = np.clip(np.linalg.norm(F, axis=1) - e * gamma, 0, beta)
        W = model.partial_fit(triplet[None]).get_bilinear_matrix()
        assert np.diag(W).max() <= beta**2 * (1 + 1e-12)
        np.testing.assert_allclose(np.sqrt(np.diag(W)), expected, rtol=0, atol=1e-12)
        at_the_bound += (expected == beta).any()
    assert at_the_bound > 10


def test_average_of_w_exceeds_the_average_of_x():
    make = OSLLRGS(1.0, 0.01, 0.5, preprocessor=X)
    of_w, of_x = (clone(make).set_params(output=o).fit(T) for o in ("avg_w", "avg_x"))
    excess = of_w.get_bilinear_matrix() - of_x.get_bilinear_matrix()
    assert np.linalg.eigvalsh(excess).min() >= -1e-12
    assert frobenius(excess) > 0.01


def test_average_of_w_has_no_more_loss_than_its_iterates():
    path = osllr_gs(np.eye(D), S, 1.0, 0.01, 0.5)
    weights = 0.5 / np.sqrt(np.arange(1, len(path)))
    losses = np.array([ref.hinge(F @ F.T, S) for F in path[:-1]])
    W = OSLLRGS(1.0, 0.01, 0.5, output="avg_w", preprocessor=X).fit(T).get_bilinear_matrix()
    assert (ref.hinge(W, S) <= weights @ losses / weights.sum() + 1e-9).all()


@convert_items
def test_a_large_gamma_leaves_nothing(convert):
    model = OSLLRGS(1.0, 1e3, 1.0, output="last", preprocessor=convert(X)).fit(T)
    np.testing.assert_array_equal(model.get_bilinear_matrix(), 0)
    np.testing.assert_array_equal(model.feature_importances_, 0)


def test_without_constraints_it_is_gradient_descent_on_x():
    F = np.eye(D)
    for t, (x, z) in enumerate(S, 1):
        if x @ F @ F.T @ z < 1:
            F = F + 0.02 / np.sqrt(t) * (np.outer(z, x) @ F + np.outer(x, z) @ F)
    model = OSLLRGS(np.inf, 0.0, 0.02, output="last", preprocessor=X).fit(T)
    np.testing.assert_allclose(model.get_bilinear_matrix(), F @ F.T, rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_loss():
    """One small step of the exact gradient lowers the loss by eta ||gradient||^2, to second order."""
    x, z = S[0]
    W = OSLLRGS(np.inf, 0.0, 1e-6, output="last", preprocessor=X).fit(T[:1]).get_bilinear_matrix()
    gain = (x @ W @ z - x @ z) / 1e-6
    assert gain == pytest.approx(frobenius(np.outer(z, x) + np.outer(x, z)) ** 2, rel=1e-4)


def test_only_what_a_triplet_names_is_touched():
    sparse = items(2, n=40, d=60, density=0.05)
    model = OSLLRGS(
        1.0, 1e-3, 0.5, n_components=4, random_state=0, preprocessor=sp.csr_matrix(sparse)
    )
    model.prepare()
    steps, rests = 0, 0
    for t, (x, z) in zip(T, stream(sparse, T), strict=True):
        before, updates = model._engine.arrays.values.copy(), model.n_updates_
        model.partial_fit(t[None])
        changed = (model._engine.arrays.values != before).any(axis=1)
        named = (x != 0) | (z != 0)
        if model.n_updates_ > updates:
            assert not changed[~named].any()
            steps += changed.any()
        else:
            assert not changed.any()
            rests += 1
    assert steps > 20
    assert rests > 20


def test_selects_features_in_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    informative = np.eye(3)[y] + 0.2 * rng.normal(size=(150, 3))
    data = np.hstack([informative, 0.2 * rng.normal(size=(150, 7))])
    learner = OSLLRGS(1.0, 0.3, 0.1, output="last")
    wrapped = FromLabels(learner, n_tuples=3000, random_state=0)
    selector = SelectFromModel(wrapped, importance_getter="learner_.feature_importances_")
    np.testing.assert_array_equal(selector.fit(data, y).get_support(indices=True), [0, 1, 2])
    fitted = selector.estimator_.learner_
    direct = SelectFromModel(fitted, prefit=True)
    assert direct.transform(data).shape == (150, 3)


# -- OMLLR -----------------------------------------------------------------------------------------


@convert_items
@pytest.mark.parametrize("init", ["zeros", "identity"])
@pytest.mark.parametrize("projection", [None, "psd"])
@pytest.mark.parametrize("lam", [0.0, 0.02, 0.3, 2.0])
def test_singular_vectors_give_the_full_decomposition(convert, init, projection, lam):
    start = np.eye(D) if init == "identity" else np.zeros((D, D))
    path = omllr(start, S, lam, 0.3, projection == "psd")
    make = OMLLR(lam, 0.3, projection=projection, init=init, preprocessor=convert(X))
    for output, W in (("last", path[-1]), ("average", weighted_average(path, 0.3))):
        model = clone(make).set_params(output=output).fit(T)
        np.testing.assert_allclose(model.get_bilinear_matrix(), W, rtol=0, atol=1e-9)
        singular = np.linalg.svd(W, compute_uv=False)
        found = np.zeros(D)
        found[: len(model.singular_values_)] = model.singular_values_
        np.testing.assert_allclose(found, singular, rtol=0, atol=1e-9)
        assert model.rank_ == (singular > 1e-6 * singular[0]).sum()


def test_a_start_of_ones_own_and_two_item_spaces():
    rng = np.random.default_rng(0)
    right = rng.normal(size=(30, 9))
    T_ = triplets(n=200, n_candidates=30)
    start = rng.normal(size=(D, 9))
    path = omllr(start, stream(X, T_, right), 0.05, 0.3)
    for output, W in (("last", path[-1]), ("average", weighted_average(path, 0.3))):
        model = OMLLR(0.05, 0.3, init=start, output=output, preprocessor=(X, right)).fit(T_)
        np.testing.assert_allclose(model.get_bilinear_matrix(), W, rtol=0, atol=1e-9)
        np.testing.assert_allclose(
            model.transform_query(X) @ model.transform_items(right).T,
            model.score_items(X, right),
            atol=1e-9,
        )
    with pytest.raises(ValueError, match="init='identity': expected one feature space"):
        OMLLR(preprocessor=(X, right)).fit(T_)


def test_without_a_nuclear_norm_it_is_gradient_descent():
    for init in ("identity", "zeros"):
        expected = OGD(0.4, schedule="inv-sqrt", init=init, preprocessor=X).fit(T)
        model = OMLLR(0.0, 0.4, init=init, output="last", preprocessor=X).fit(T)
        np.testing.assert_allclose(
            model.get_bilinear_matrix(), expected.get_bilinear_matrix(), rtol=0, atol=1e-9
        )
        assert model.n_updates_ == expected.n_updates_


def test_thresholds_of_rounds_without_loss_add_up():
    """Triplets that are satisfied only lower the singular values: SVT_s(SVT_t(W)) = SVT_{s+t}(W)."""
    start = 50 * np.eye(D)
    satisfied = np.array([[0, 0, 1]])
    points = np.vstack([2 * np.eye(D)[0], np.zeros(D)])
    model = OMLLR(3.0, 1.0, init=start, output="last", preprocessor=points)
    model.fit(np.repeat(satisfied, 40, axis=0))
    assert model.n_updates_ == 0
    total = 3.0 * (1 / np.sqrt(np.arange(1, 41))).sum()
    np.testing.assert_allclose(model.get_bilinear_matrix(), svt(start, total), atol=1e-12)
    A = np.random.default_rng(0).normal(size=(6, 6))
    np.testing.assert_allclose(svt(svt(A, 0.3), 0.4), svt(A, 0.7), atol=1e-12)


@pytest.mark.parametrize("init", ["zeros", "identity"])
def test_the_rank_grows_by_one_at_most(init):
    model = OMLLR(0.2, 0.3, init=init, output="last", preprocessor=X)
    model.prepare()
    ranks = [model._engine.rank]
    for t in T:
        ranks.append(model.partial_fit(t[None])._engine.rank)
        assert ranks[-1] == np.linalg.matrix_rank(model.get_bilinear_matrix(), tol=1e-12)
    assert max(np.diff(ranks)) == 1 if init == "zeros" else max(np.diff(ranks)) <= 1
    assert min(np.diff(ranks)) < 0


def test_positive_after_every_step():
    model = OMLLR(0.05, 0.3, projection="psd", output="last", preprocessor=X)
    for t in T:
        W = model.partial_fit(t[None]).get_bilinear_matrix()
        np.testing.assert_allclose(W, W.T, atol=1e-12)
        assert np.linalg.eigvalsh((W + W.T) / 2).min() >= -1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("init", ["identity", "zeros"])
def test_regret_with_the_nuclear_norm(seed, lam, init):
    d, eta = 8, 0.5
    data, T_ = items(seed, d=d, density=0.8), triplets(seed, n=150)
    S_ = stream(data, T_)
    model = OMLLR(lam, eta, init=init, output="last", preprocessor=data)
    path = [np.eye(d) if init == "identity" else np.zeros((d, d))]
    for t in T_:
        path.append(model.partial_fit(t[None]).get_bilinear_matrix())
    etas = eta / np.sqrt(np.arange(1, len(S_) + 1))

    def r(M):
        return lam * np.linalg.svd(M, compute_uv=False).sum()

    own, gradients = [], []
    for M, (x, z) in zip(path, S_, strict=False):
        loss = max(0, 1 - x @ M @ z)
        own.append(loss + r(M))
        gradients.append((x @ x) * (z @ z) * (loss > 0))
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(d, 2)) @ rng.normal(size=(2, d)) / 3
    for U in (np.zeros((d, d)), np.eye(d), low_rank):
        regret = (etas * (np.array(own) - ref.hinge(U, S_) - r(U))).sum()
        bound = frobenius(path[0] - U) ** 2 / 2 + (etas**2 * gradients).sum() / 2
        assert regret <= bound + etas[0] * r(path[0]) + 1e-9


@pytest.mark.parametrize("projection", [None, "psd"])
def test_singular_vectors_stay_orthonormal(projection):
    model = OMLLR(0.05, 0.3, init="zeros", projection=projection, preprocessor=X)
    model.fit(np.tile(T, (40, 1)))
    assert model.n_updates_ > 5000
    value, left, right = model._engine.sides()
    for vectors in (left, right):  # without a correction they would be off by 1e-12
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(value)), rtol=0, atol=1e-13)


# -- Loreta ----------------------------------------------------------------------------------------


def pair_of_factors(k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(D, k)) / 2, rng.normal(size=(D, k)) / 2


@convert_items
@pytest.mark.parametrize("init", ["truncated-identity", "random", "pair"])
def test_loreta_is_its_reference(convert, init):
    given = pair_of_factors(5) if init == "pair" else init
    model = Loreta(5, 0.1, init=given, random_state=0, preprocessor=convert(X))
    model.prepare()
    start = [f.copy() for f in model._engine.pair[:2]]
    if init == "truncated-identity":
        np.testing.assert_array_equal(start, np.eye(D, 5)[None].repeat(2, axis=0))
    A, B = loreta(*start, S, 0.1)
    model.partial_fit(T)
    np.testing.assert_allclose(model.get_bilinear_matrix(), A @ B.T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.transform_query(X), X @ A, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.transform_items(X), X @ B, rtol=0, atol=1e-9)


def test_the_rank_is_kept_and_the_inverses_do_not_drift():
    model = Loreta(4, 0.05, init="random", random_state=1, preprocessor=X)
    for _ in range(12):
        model.partial_fit(T)
        assert model.rank_ == 4
    assert model.n_updates_ > 1500  # past the first fresh start, short of the second
    a, b, inverse_a, inverse_b = model._engine.pair
    for factor, inverse in ((a, inverse_a), (b, inverse_b)):
        np.testing.assert_allclose(inverse @ (factor.T @ factor), np.eye(4), atol=1e-9)


def test_a_vanishing_step_changes_nothing():
    start = pair_of_factors(4)
    model = Loreta(4, 1e-13, init=start, preprocessor=X).fit(T)
    assert model.n_updates_ > 50
    np.testing.assert_allclose(model.get_bilinear_matrix(), start[0] @ start[1].T, atol=1e-9)


def test_one_step_is_a_second_order_retraction():
    A, B = pair_of_factors(4)
    W = A @ B.T
    t, (x, z) = next((t, s) for t, s in zip(T, S, strict=True) if s[0] @ W @ s[1] < 1)
    PA, PB = A @ np.linalg.pinv(A), B @ np.linalg.pinv(B)
    eye, errors = np.eye(D), []
    for eta in (0.04, 0.02, 0.01, 0.005):
        G = eta * np.outer(x, z)
        tangent = PA @ G + G @ PB - PA @ G @ PB
        second = (eye - PA) @ G @ np.linalg.pinv(W, rcond=1e-10) @ G @ (eye - PB)
        new = Loreta(4, eta, init=(A, B), preprocessor=X).fit(t[None]).get_bilinear_matrix()
        errors.append(frobenius(new - W - tangent - second))
        assert frobenius(new - W - tangent) < 50 * eta**2 * frobenius(np.outer(x, z)) ** 2
    ratios = np.array(errors[:-1]) / errors[1:]
    assert ((ratios > 6) & (ratios < 10)).all()  # eight: of third order


def test_what_the_factors_are_does_not_matter():
    A, B = pair_of_factors(4)
    mix = np.random.default_rng(8).normal(size=(4, 4)) + 2 * np.eye(4)
    models = [
        Loreta(4, 0.1, init=init, preprocessor=X).fit(T)
        for init in ((A, B), (A @ mix, B @ np.linalg.inv(mix).T))
    ]
    one, other = (model.get_bilinear_matrix() for model in models)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_at_full_rank_small_steps_are_gradient_steps():
    x, z = S[0]
    for eta in (1e-2, 1e-3, 1e-4):
        model = Loreta(D, eta, preprocessor=X).fit(T[:1])
        error = frobenius(model.get_bilinear_matrix() - np.eye(D) - eta * np.outer(x, z))
        assert error <= eta**2 * frobenius(np.outer(x, z)) ** 2


def solved(G, b):
    """The solution of G y = b by elimination, in the numbers that G and b are made of."""
    G, b = G.copy(), b.copy()
    for i in range(len(G)):
        pivot = i + np.argmax(np.abs(G[i:, i]))
        G[[i, pivot]], b[[i, pivot]] = G[[pivot, i]], b[[pivot, i]]
        for j in range(i + 1, len(G)):
            factor = G[j, i] / G[i, i]
            G[j], b[j] = G[j] - factor * G[i], b[j] - factor * b[i]
    for i in reversed(range(len(G))):
        b[i] = (b[i] - G[i, i + 1 :] @ b[i + 1 :]) / G[i, i]
    return b


def loreta_in_digits(n_digits, k, pairs, eta):
    """The textbook version with so many decimal digits, and the worst condition of its factors."""
    decimals = np.vectorize(Decimal, otypes=[object])
    worst = 1.0
    with localcontext() as context:
        context.prec = n_digits
        A, B, eta = decimals(np.eye(k)), decimals(np.eye(k)), Decimal(eta)
        half, three_eighths = Decimal("0.5"), Decimal("0.375")
        for x, z in pairs:
            x, q = decimals(x), eta * decimals(z)
            if 1 - (x @ A) @ (B.T @ q) / eta > 0:
                a1, b1 = solved(A.T @ A, A.T @ x), solved(B.T @ B, B.T @ q)
                s = a1 @ b1
                on_own, on_new = three_eighths * s - half, 1 - half * s
                A, B = (
                    A + np.outer((A @ a1) * on_own + x * on_new, b1),
                    B + np.outer((B @ b1) * on_own + q * on_new, a1),
                )
                worst = max(worst, np.linalg.cond(A.astype(float)))
        return (A @ B.T).astype(float), worst


@pytest.mark.parametrize(("eta", "seed"), [(0.1, 0), (0.1, 3), (0.5, 0), (0.5, 3)])
def test_loreta_near_singular_factors(eta, seed):
    X_ = np.random.default_rng(seed).normal(size=(450, 7))
    T_ = np.arange(450).reshape(150, 3)
    exact, worst = loreta_in_digits(60, 7, stream(X_, T_), eta)
    assert worst > 1000  # squared, that is most of the digits of an inverse
    model = Loreta(7, eta, preprocessor=X_).fit(T_)
    error = np.abs(model.get_bilinear_matrix() - exact).max() / np.abs(exact).max()
    assert error < 1e-5  # how much rounding is left differs between CPUs
    halves = Loreta(7, eta, preprocessor=X_).fit(T_[:77]).partial_fit(T_[77:])
    np.testing.assert_array_equal(halves.get_bilinear_matrix(), model.get_bilinear_matrix())


def test_loreta_on_two_item_spaces_and_with_few_features():
    right = np.random.default_rng(0).normal(size=(30, 7))
    T_ = triplets(n=100, n_candidates=30)
    A, B = loreta(np.eye(D, 7), np.eye(7), stream(X, T_, right), 0.1)
    model = Loreta(10, 0.1, preprocessor=(X, right)).fit(T_)
    np.testing.assert_allclose(model.get_bilinear_matrix(), A @ B.T, rtol=0, atol=1e-9)
    assert model.rank_ == 7


# -- what all three promise ------------------------------------------------------------------------

MODELS = {
    "osllr-gs": OSLLRGS(1.0, 0.05, 0.3),
    "osllr-gs-avg-w": OSLLRGS(1.0, 0.05, 0.3, output="avg_w"),
    "osllr-gs-last": OSLLRGS(1.0, 0.05, 0.3, n_components=3, output="last", random_state=0),
    "omllr": OMLLR(0.05, 0.3),
    "omllr-last": OMLLR(0.05, 0.3, init="zeros", output="last"),
    "omllr-psd": OMLLR(0.05, 0.3, projection="psd"),
    "loreta": Loreta(4, 0.1, init="random", random_state=0),
}
every_model = pytest.mark.parametrize("name", MODELS)


def make(name, convert=np.asarray, **options):
    return clone(MODELS[name]).set_params(preprocessor=convert(X), **options)


@convert_items
@every_model
def test_cutting_the_stream_changes_nothing(name, convert):
    whole, cut = make(name, convert).fit(T), make(name, convert)
    for part in np.split(T, [1, 2, 50, 51, 200]):
        cut.partial_fit(part)
    same_model(whole, cut)


@convert_items
@every_model
def test_one_at_a_time_as_vectors(name, convert):
    whole = make(name, convert).fit(T[:60])
    one = make(name, convert).set_params(preprocessor=None)
    rows = convert(X)
    for t in T[:60]:
        one.learn_one(*(rows[i] for i in t))
    same_model(whole, one)


@convert_items
@every_model
def test_saved_and_loaded_goes_on_as_if_never_saved(name, convert, tmp_path):
    never = make(name, convert).fit(T[:150])
    never.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m", preprocessor=never.preprocessor)
    same_model(never, again)
    same_model(never.partial_fit(T[150:]), again.partial_fit(T[150:]))
    np.testing.assert_array_equal(never.decision_function(T), again.decision_function(T))
    copy = pickle.loads(pickle.dumps(never))
    same_model(never.partial_fit(T), copy.partial_fit(T))


@every_model
def test_damaged_state_is_refused(name):
    model = make(name).fit(T[:50])
    engine, (scalars, good) = model._engine, model._engine.state()
    for key, value in scalars.items():
        with pytest.raises((TypeError, ValueError)):
            type(engine).from_state({**scalars, key: [value, value, value]}, good)
    for key, array in good.items():
        wrong = [array.astype(str)]
        if array.size and key not in ("clock", "a", "b"):  # those may have any length
            wrong.append(array[:-1])
        for bad in wrong:
            with pytest.raises(ValueError, match="expected"):
                type(engine).from_state(scalars, {**good, key: bad})


@every_model
def test_dense_and_sparse_items_and_mixing_them(name):
    expected = make(name).fit(T).decision_function(T)
    sparse = make(name, sp.csr_matrix).fit(T)
    np.testing.assert_allclose(sparse.decision_function(T), expected, rtol=0, atol=1e-9)
    for first, second in ((X, sp.csr_matrix(X)), (sp.csr_matrix(X), X), (X, (X, sp.csr_matrix(X)))):
        model = make(name).set_params(preprocessor=first).fit(T[:100])
        model.set_params(preprocessor=second).partial_fit(T[100:])
        np.testing.assert_allclose(model.decision_function(T), expected, rtol=0, atol=1e-9)


@every_model
def test_float32_is_close_to_float64(name):
    model = make(name).set_params(preprocessor=X.astype(np.float32)).fit(T)
    assert model.dtype_ == np.float32
    assert model.get_bilinear_matrix().dtype == np.float32
    expected = make(name).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected, rtol=0, atol=1e-4)
    single = make(name, dtype="float32").fit(T)
    same_model(single, model)


@convert_items
@every_model
def test_inner_products_of_the_maps_are_the_similarity(name, convert):
    model = make(name, convert).fit(T)
    rows = model.preprocessor
    scores = model.score_items(rows, rows)
    np.testing.assert_allclose(scores, X @ model.get_bilinear_matrix() @ X.T, rtol=0, atol=1e-9)
    mapped = model.transform_query(rows) @ model.transform_items(rows).T
    np.testing.assert_allclose(mapped, scores, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.pair_score(T[:, :2]), scores[T[:, 0], T[:, 1]], atol=1e-9)
    assert model.get_metric()(rows[3], rows[5]) == pytest.approx(scores[3, 5], abs=1e-9)
    singular = np.linalg.svd(model.get_bilinear_matrix(), compute_uv=False)
    found = model.singular_values_
    np.testing.assert_allclose(found, singular[: len(found)], rtol=0, atol=1e-9)
    assert model.rank_ == (singular > 1e-6 * singular[0]).sum()
    if hasattr(model, "transform"):
        mapped = model.transform(rows)
        np.testing.assert_allclose(mapped @ mapped.T, scores, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="queries: expected 16 features, got 3"):
        model.transform_query(X[:, :3])


@every_model
def test_reading_changes_nothing(name):
    read_often, left_alone = make(name), make(name)
    for part in np.split(T, 10):
        read_often.partial_fit(part)
        W = read_often.get_bilinear_matrix()
        W += 1.0
        read_often.score(T)
        _ = read_often.singular_values_, read_often.rank_, read_often.sparsity_
        read_often.transform_items(X)[:] = 0
        left_alone.partial_fit(part)
    same_model(read_often, left_alone)


@convert_items
@every_model
def test_equal_rows_and_zero_anchors_are_skipped_but_shrink(name, convert):
    data = X.copy()
    data[7], data[9] = data[3], 0
    model = make(name).set_params(preprocessor=convert(data)).fit(T[:20])
    before, updates = model.n_skipped_, model.n_updates_
    model.partial_fit([[0, 3, 7], [9, 1, 2], [5, 7, 3]])
    assert model.n_skipped_ == before + 3
    assert model.n_updates_ == updates
    assert model.n_rounds_ == 23


@pytest.mark.parametrize("name", ["osllr-gs", "omllr", "loreta"])
def test_an_interrupted_fit_is_a_shorter_fit(name):
    long = np.tile(T, (300, 1))
    make(name).fit(T[:40])
    for delay in (0.02, 0.06):
        model = make(name)
        timer = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        with contextlib.suppress(KeyboardInterrupt):
            timer.start()
            model.fit(long)
            timer.join()
            time.sleep(0.1)  # the signal comes for certain before the block ends
        same_model(model, make(name).fit(long[: model.n_rounds_]))


@every_model
def test_divergence_is_noticed_before_the_matrix_is_lost(name):
    model = make(name).fit(T[:50])
    before = model.get_bilinear_matrix()
    huge = 1e80 * X
    with pytest.raises(DivergedError, match="margin of round 51 overflowed"):
        model.set_params(preprocessor=huge).partial_fit(T[50:])
    np.testing.assert_array_equal(model.get_bilinear_matrix(), before)
    assert model.n_rounds_ == 50


@pytest.mark.parametrize(
    ("cls", "changes", "message"),
    [
        (OSLLRGS, {"beta": 0}, "beta: expected a number > 0"),
        (OSLLRGS, {"gamma": -1e-3}, "gamma: expected a number >= 0"),
        (OSLLRGS, {"eta": np.inf}, "eta: expected a number > 0"),
        (OSLLRGS, {"n_components": 0}, "n_components: expected an integer >= 1"),
        (OSLLRGS, {"output": "average"}, "output: expected one of"),
        (OSLLRGS, {"init": "identity"}, "init: expected one of 'auto'"),
        (OSLLRGS, {"init": np.eye(5)}, r"init: expected an array of shape \(16, n_components\)"),
        (OSLLRGS, {"init": np.eye(D), "n_components": 3}, r"of shape \(16, 3\)"),
        (OMLLR, {"lam": -1}, "lam: expected a number >= 0"),
        (OMLLR, {"eta": 0}, "eta: expected a number > 0"),
        (OMLLR, {"projection": "end"}, "projection: expected one of"),
        (OMLLR, {"output": "avg_w"}, "output: expected one of"),
        (OMLLR, {"init": "random"}, "init: expected one of"),
        (OMLLR, {"init": np.eye(5)}, r"init: expected a matrix of shape \(16, 16\)"),
        (OMLLR, {"init": -np.eye(D), "projection": "psd"}, "init: expected"),
        (Loreta, {"n_components": 0}, "n_components: expected an integer >= 1"),
        (Loreta, {"eta": -1}, "eta: expected a number > 0"),
        (Loreta, {"init": "identity"}, "init: expected one of"),
        (Loreta, {"init": (np.eye(D, 10),)}, "init: expected a pair"),
        (Loreta, {"init": (np.eye(D, 10), np.eye(D, 9))}, r"B of shape \(16, 10\)"),
        (Loreta, {"init": (np.eye(D, 10), np.ones((D, 10)))}, "independent columns of B"),
        (Loreta, {"dtype": "float16"}, "dtype: expected one of"),
    ],
)
def test_bad_parameters_are_refused(cls, changes, message):
    model = cls(preprocessor=X, **changes)
    with pytest.raises(ValueError, match=message):
        model.fit(T)
    assert not model.__sklearn_is_fitted__()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("osllr-gs", {"output": "last"}),
        ("osllr-gs", {"beta": 2.0}),
        ("osllr-gs", {"n_components": 3}),
        ("osllr-gs-avg-w", {"n_components": 3}),
        ("loreta", {"n_components": 2}),
        ("osllr-gs-avg-w", {"output": "avg_x"}),
        ("omllr", {"output": "last"}),
        ("omllr", {"projection": "psd"}),
    ],
)
def test_what_is_kept_cannot_change_in_the_middle(name, changes):
    model = make(name).fit(T[:50])
    before = model.get_bilinear_matrix()
    model.set_params(**changes)
    np.testing.assert_array_equal(model.get_bilinear_matrix(), before)
    with pytest.raises(ValueError, match="cannot change in the middle of a stream"):
        model.partial_fit(T)
    assert model.n_rounds_ == 50
    assert model.fit(T).n_rounds_ == len(T)


def test_the_number_of_components_may_be_said_in_other_words():
    """None is the number of features or the width of the start, also after saving; more than that is all."""
    start = np.random.default_rng(0).normal(size=(D, 5))
    for output in ("avg_x", "avg_w"):
        model = OSLLRGS(output=output, preprocessor=X).fit(T[:50])
        assert model.set_params(n_components=D).partial_fit(T[50:60]).n_rounds_ == 60
        model = OSLLRGS(output=output, init=start, preprocessor=X).fit(T[:50])
        assert model.partial_fit(T[50:60]).n_rounds_ == 60
        assert model.set_params(n_components=5).partial_fit(T[60:70]).n_rounds_ == 70
    model = Loreta(n_components=D + 5, eta=0.01, preprocessor=X).fit(T[:50])
    assert model.set_params(n_components=D + 1).partial_fit(T[50:60]).n_rounds_ == 60


@pytest.mark.parametrize("output", ["avg_x", "avg_w"])
def test_a_saved_model_with_a_given_start_goes_on(output, tmp_path):
    start = np.random.default_rng(0).normal(size=(D, 5))
    model = OSLLRGS(output=output, init=start, preprocessor=X).fit(T[:50])
    model.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m").set_params(preprocessor=X)
    same_model(again.partial_fit(T[50:]), model.partial_fit(T[50:]))
    with pytest.raises(ValueError, match="n_components: cannot change"):
        again.set_params(n_components=4).partial_fit(T)


def test_two_item_spaces_of_different_size_have_no_factor_in_common():
    for model in (OSLLRGS(), OMLLR(projection="psd")):
        model.set_params(preprocessor=(X, X[:, :7]))
        with pytest.raises(ValueError, match="expected one feature space, got 16 features"):
            model.fit(T)


@pytest.mark.parametrize("name", ["osllr-gs", "osllr-gs-avg-w", "omllr"])
def test_parameters_of_the_step_may_change_between_calls(name):
    """Thresholds that wait were added up with the parameters of their own rounds."""
    strength = "lam" if name == "omllr" else "gamma"
    model, cut = make(name), make(name)
    model.fit(T[:150]).set_params(eta=0.1, **{strength: 0.2}).partial_fit(T[150:])
    for t in T[:150]:
        cut.partial_fit(t[None])
    cut.set_params(eta=0.1, **{strength: 0.2})
    for t in T[150:]:
        cut.partial_fit(t[None])
    same_model(model, cut)
    F = np.eye(D)
    path = [F]
    weights = []
    for n, (x, z) in enumerate(S, 1):
        e, s = (0.3, 0.05) if n <= 150 else (0.1, 0.2)
        e /= np.sqrt(n)
        if name == "omllr":
            F = svt(F + e * np.outer(x, z) * (x @ F @ z < 1), e * s)
        else:
            if x @ F @ F.T @ z < 1:
                F = F + e * (np.outer(z, x) + np.outer(x, z)) @ F
            F = prox_rows(F, e * s, 1.0)
        path.append(F)
        weights.append(e)
    if name == "osllr-gs-avg-w":
        path = [F @ F.T for F in path]
    average = np.average(path[:-1], axis=0, weights=weights)
    expected = average @ average.T if name == "osllr-gs" else average
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected, rtol=0, atol=1e-9)


@convert_items
def test_rows_that_die_before_and_after_the_history_is_full(convert):
    """Longer than the kernels remember: rows are buried in passing, or when they are next touched."""
    from simstream._kernels.osllrgs import HISTORY

    data = items(3, n=60, d=30, density=0.1)
    T_ = triplets(3, n=3 * HISTORY + 100, n_items=60)
    path = osllr_gs(np.eye(30), stream(data, T_), 1.0, 0.03, 0.4)
    zero = np.array([np.linalg.norm(F, axis=1) == 0 for F in path])
    died = np.flatnonzero((~zero[:-1] & zero[1:]).any(axis=1))
    assert (np.histogram(died, np.arange(0, len(T_), HISTORY))[0][1:] > 100).all()
    model = OSLLRGS(1.0, 0.03, 0.4, preprocessor=convert(data))
    for begin in range(0, len(T_), 97):
        model.partial_fit(T_[begin : begin + 97])
        n = model.n_rounds_
        expected = weighted_average(path[: n + 1], 0.4)
        np.testing.assert_allclose(model._engine.factor(), expected, rtol=0, atol=1e-9)
