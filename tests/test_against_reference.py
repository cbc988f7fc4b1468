"""Every learner, layout, precision and start against its eager float64 textbook version."""

import numpy as np
import pytest
import scipy.sparse as sp

import simstream_repro.reference as ref
from cases import CASES, LAYOUTS, LIST_CASES, cells, dense, items, stream, triplets
from simstream import OASIS, OGD, SORS, AdaSORS

TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}


@cells(CASES, dtypes=[np.float64, np.float32])
def test_equals_eager(case, layout, dtype):
    convert, extra = LAYOUTS[layout]
    X, T = items(dtype=dtype), triplets()
    model = case.make(preprocessor=convert(X), **extra).fit(T)
    path = case.reference(np.eye(X.shape[1]), stream(X, T))
    got = model.get_bilinear_matrix()
    assert got.dtype == dtype
    assert sp.issparse(got) == (layout != "dense" and case.name != "aroma-factored")
    np.testing.assert_allclose(dense(got), path[-1], rtol=0, atol=TOLERANCE[dtype])

    margins = [x @ M @ z for M, (x, z) in zip(path, stream(X, T), strict=False)]
    assert model.n_rounds_ == len(T)
    assert model.n_updates_ == sum(m < 1 for m in margins)
    assert model.mistake_rate_ == pytest.approx(np.mean(np.array(margins) <= 0))
    assert model.average_loss_ == pytest.approx(
        np.mean(np.maximum(0, 1 - np.array(margins))), rel=1e-4
    )
    assert model.sparsity_ == pytest.approx(np.mean(np.abs(dense(got)) <= 1e-12))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_equals_eager_over_several_calls_of_the_kernel(layout):
    """Dense rows are copied side by side, about a thousand triplets at a time."""
    case = next(c for c in CASES if c.name == "sors2-inv-sqrt")
    X, T = items(), triplets(n=2500)
    model = case.make(preprocessor=LAYOUTS[layout][0](X)).fit(T)
    expected = case.reference(np.eye(16), stream(X, T))[-1]
    np.testing.assert_allclose(dense(model.get_bilinear_matrix()), expected, rtol=0, atol=1e-11)


@cells([*CASES, *LIST_CASES])
def test_equals_eager_on_zeros_and_matrix_start(case, layout):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets(n=100)
    start = np.random.default_rng(5).normal(size=(16, 16)) * 0.3
    for init, first in (
        ("zeros", np.zeros((16, 16))),
        (start, start),
        (sp.csr_matrix(start), start),
    ):
        model = case.make(preprocessor=convert(X), init=init, **extra).fit(T)
        expected = case.reference(first, stream(X, T))[-1]
        np.testing.assert_allclose(dense(model.get_bilinear_matrix()), expected, rtol=0, atol=1e-11)


@cells([case for case in [*CASES, *LIST_CASES] if not case.needs_diagonal])
def test_two_item_spaces(case, layout):
    convert, extra = LAYOUTS[layout]
    Q, X = items(1, n=20, d=11), items(2, n=30, d=17)
    T = triplets(n=150, n_items=20, n_candidates=30)
    model = case.make(preprocessor=(convert(Q), convert(X)), init="zeros", **extra).fit(T)
    expected = case.reference(np.zeros((11, 17)), stream(Q, T, X))[-1]
    np.testing.assert_allclose(dense(model.get_bilinear_matrix()), expected, rtol=0, atol=1e-11)
    assert model.transform_query(convert(Q)).shape == (20, 17)
    scores = model.pair_score([[3, 4], [19, 29]])
    np.testing.assert_allclose(
        scores, [Q[3] @ expected @ X[4], Q[19] @ expected @ X[29]], atol=1e-10
    )


@cells([case for case in [*CASES, *LIST_CASES] if case.averages])
def test_average(case, layout):
    convert, extra = LAYOUTS[layout]
    X, T = items(), triplets()
    path = case.reference(np.eye(16), stream(X, T))
    for start in (1, 7, 250):
        model = case.make(preprocessor=convert(X), average_from=start, **extra).fit(T)
        expected = ref.average(path, start)
        np.testing.assert_allclose(dense(model.get_bilinear_matrix()), expected, rtol=0, atol=1e-11)


def test_average_not_begun_is_the_last_iterate():
    X, T = items(), triplets(n=50)
    late = OASIS(average_from=1000, preprocessor=X).fit(T).get_bilinear_matrix()
    np.testing.assert_array_equal(late, OASIS(preprocessor=X).fit(T).get_bilinear_matrix())


@pytest.mark.parametrize("average_from", [None, 20])
@pytest.mark.parametrize(
    "case", [c for c in [*CASES, *LIST_CASES] if c.blocks], ids=lambda c: c.name
)
def test_blocked_equals_sequential(case, average_from):
    X, T = items(d=30, density=1.0), triplets()
    options = {"preprocessor": X, "average_from": average_from}
    single = case.make(block_size=1, **options).fit(T)
    for block_size in (2, 7, 64, 1000):
        blocked = case.make(block_size=block_size, **options).fit(T)
        np.testing.assert_allclose(
            blocked.get_bilinear_matrix(), single.get_bilinear_matrix(), rtol=0, atol=1e-10
        )
        assert blocked.n_updates_ == single.n_updates_
        assert blocked.average_loss_ == pytest.approx(single.average_loss_, rel=1e-9)


@pytest.mark.parametrize("average_from", [None, 20])
def test_blocks_with_few_violations_equal_one_at_a_time(average_from):
    """Where most triplets are satisfied, a block works out Gram rows for the others alone."""
    X, T = items(d=30, density=1.0), triplets(n=1000)
    margins = np.array([x @ z for x, z in stream(X, T)])
    easy, hard = T[margins > 3], T[margins < 1][:40]
    T = np.random.default_rng(0).permutation(np.concatenate([easy[:360], hard]))
    options = {"C": 0.003, "preprocessor": X, "average_from": average_from}
    single, blocked = (OASIS(block_size=size, **options).fit(T) for size in (1, 64))
    assert 20 < single.n_updates_ < 0.15 * len(T)
    assert blocked.n_updates_ == single.n_updates_
    np.testing.assert_allclose(
        blocked.get_bilinear_matrix(), single.get_bilinear_matrix(), rtol=0, atol=1e-10
    )


def test_blocked_float32_stays_close_to_float64():
    X, T = items(d=64, n=200, density=1.0), triplets(n=3000, n_items=200)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    exact = OASIS(C=0.1, preprocessor=X, block_size=1).fit(T).get_bilinear_matrix()
    single = OASIS(C=0.1, preprocessor=X.astype(np.float32), block_size=128).fit(T)
    error = np.linalg.norm(single.get_bilinear_matrix() - exact) / np.linalg.norm(exact)
    assert error < 1e-5


# -- identities of the specification ---------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "inv-sqrt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sors_without_threshold_is_ogd(layout, schedule):
    convert, extra = LAYOUTS[layout]
    X, T = convert(items()), triplets()
    options = {"schedule": schedule, "preprocessor": X, **extra}
    a = SORS(lam=0.0, eta=0.3, **options).fit(T).get_bilinear_matrix()
    b = OGD(eta=0.3, **options).fit(T).get_bilinear_matrix()
    np.testing.assert_array_equal(dense(a), dense(b))


def test_adasors_with_huge_delta_tends_to_sors():
    X, T = items(), triplets()
    ada = AdaSORS(lam=1e-3, eta=1e8 * 0.2, delta=1e8, preprocessor=X).fit(T).get_bilinear_matrix()
    plain = SORS(lam=1e-3, eta=0.2, preprocessor=X).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(ada, plain, rtol=0, atol=1e-6)


def test_plain_pa_repairs_the_triplet_just_seen():
    X = items(density=1.0)
    for variant, C in (("PA", 1.0), ("PA-I", np.inf)):
        model = OASIS(C=C, variant=variant, preprocessor=X)
        for T in triplets(n=50):
            model.partial_fit(T[None])
            assert model.decision_function(T[None])[0] >= 1 - 1e-9


def test_clipped_step_moves_the_margin_by_c_times_k():
    X = items(density=1.0)
    model = OASIS(C=1e-4, preprocessor=X).fit(triplets(n=1))
    for T in triplets(n=50):
        before = model.decision_function(T[None])[0]
        model.partial_fit(T[None])
        x, z = X[T[0]], X[T[1]] - X[T[2]]
        K = (x @ x) * (z @ z)
        if before < 1 and (1 - before) / K > 1e-4:
            assert model.decision_function(T[None])[0] == pytest.approx(
                before + 1e-4 * K, abs=1e-10
            )


def test_one_feature_sors2_is_ogd():
    X, T = items(d=1, density=1.0), triplets()
    a = SORS(lam=0.5, eta=0.1, off_diagonal=True, preprocessor=X).fit(T).get_bilinear_matrix()
    b = OGD(eta=0.1, preprocessor=X).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(a, b, rtol=1e-12)


def test_huge_threshold_leaves_nothing_but_the_diagonal_of_variant_two():
    X, T = items(), triplets()
    assert SORS(lam=1e3, eta=0.1, preprocessor=X).fit(T).sparsity_ == 1.0
    M = SORS(lam=1e3, eta=0.1, off_diagonal=True, preprocessor=X).fit(T).get_bilinear_matrix()
    assert np.count_nonzero(M - np.diag(np.diag(M))) == 0
    assert np.count_nonzero(np.diag(M)) == 16


def test_sors_step_minimises_its_objective():
    rng = np.random.default_rng(3)
    X, lam, eta = items(density=1.0), 0.05, 0.3
    model = SORS(lam=lam, eta=eta, preprocessor=X).fit(triplets(n=30))
    M = model.get_bilinear_matrix()
    a, p, n = triplets(seed=9, n=1)[0]
    x, z = X[a], X[p] - X[n]
    G = -np.outer(x, z) if x @ M @ z < 1 else np.zeros_like(M)

    def objective(N):
        return (G * N).sum() + lam * np.abs(N).sum() + ((N - M) ** 2).sum() / (2 * eta)

    new = model.partial_fit([[a, p, n]]).get_bilinear_matrix()
    for scale in (1e-4, 1e-2, 1.0):
        for _ in range(50):
            assert objective(new) <= objective(new + scale * rng.normal(size=M.shape))


def test_aroma_full_equals_its_dual_and_one_feature_equals_diagonal():
    X, T = items(d=4, density=1.0), triplets(n=40)
    S = stream(X, T)
    primal = ref.aroma_full(np.eye(4), S, 2.0)[-1]
    updates = []
    for x, z in S:  # the dual keeps update rounds only
        P = np.array([a @ b for a, b in updates])
        m = x @ z
        if updates:
            K = np.array([[(a @ c) * (b @ d) for c, d in updates] for a, b in updates])
            k = np.array([(a @ x) * (b @ z) for a, b in updates])
            m += k @ np.linalg.solve(K + 2.0 * np.eye(len(K)), 1 - P)
        if m < 1:
            updates.append((x, z))
    K = np.array([[(a @ c) * (b @ d) for c, d in updates] for a, b in updates])
    alpha = np.linalg.solve(K + 2.0 * np.eye(len(K)), 1 - np.array([a @ b for a, b in updates]))
    dual = np.eye(4) + sum(c * np.outer(a, b) for c, (a, b) in zip(alpha, updates, strict=True))
    np.testing.assert_allclose(primal, dual, atol=1e-10)

    one = [(x[:1], z[:1]) for x, z in S]
    full, diagonal = ref.aroma_full(np.eye(1), one, 2.0), ref.aroma_diagonal(np.eye(1), one, 2.0)
    np.testing.assert_allclose(full, diagonal, atol=1e-10)
